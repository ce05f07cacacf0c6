#pragma once

#include "few_rows.hpp"
#include "tiles.hpp"

#include <pagedkv/kernels/attention/warpgroup_buffers.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>

// Products of up to 64 rows with a matrix by clusters of workgroups, whose processors read each other's shared memory.

namespace llama::device {

/// Rows of one product.
inline constexpr auto cluster_rows = std::int32_t{64};
/// Pairs of the matrix' rows that a tile has.
inline constexpr auto cluster_pairs = std::int32_t{32};
/// The numbers of a row are dealt to the warpgroups of a cluster in runs of 64: whole lines of 128 bytes.
inline constexpr auto cluster_run = std::int32_t{64};
inline constexpr auto cluster_warpgroups = std::int32_t{2};  // of a workgroup; a third one puts results
inline constexpr auto cluster_lanes = (cluster_warpgroups + 1) * 128;

/// Workgroups of a cluster for rows of most models, and for longer ones. The second is the most that a device has.
inline constexpr auto small_cluster = std::int32_t{8};
inline constexpr auto large_cluster = std::int32_t{16};
/// Runs of the step's rows that a warpgroup keeps in registers.
[[nodiscard]] PAGEDKV_HOST_DEVICE constexpr std::int32_t kept_runs_of_cluster(std::int32_t workgroups) {
  return workgroups == small_cluster ? 4 : 7;
}
/// The most numbers of a row that a cluster multiplies.
[[nodiscard]] constexpr std::int32_t most_numbers_of_cluster(std::int32_t workgroups) {
  return workgroups * cluster_warpgroups * kept_runs_of_cluster(workgroups) * cluster_run;
}

/// Sums of squares that the kernel makes of a hidden row of so many numbers.
[[nodiscard]] constexpr std::int32_t parts_by_clusters(std::int32_t width) { return width / (2 * cluster_pairs); }

#if defined(__HIPCC__) || !defined(__CUDACC__)
template <class Element, std::int32_t Workgroups>
[[nodiscard]] std::int32_t clusters_at_once() {
  return 0;
}
#else

/// Shared memory of a workgroup. Each warpgroup has a ring of runs of weights, of which most are on their way and the
/// others are multiplied.
struct cluster_memory {
  static constexpr auto alignment = 1024U;  // of runs
  static constexpr auto depth = 9;
  static constexpr auto ahead = depth - 2;
  static constexpr auto run_bytes = 2U * cluster_pairs * 128U;
  static constexpr auto ring_bytes = depth * run_bytes;
  /// An outbox: half of a warpgroup's sums of a tile.
  static constexpr auto outbox_bytes = cluster_rows * cluster_pairs * 4U;
  /// An inbox: sums of a tile for the rows of this workgroup, from each workgroup of the cluster.
  static constexpr auto inbox_bytes = cluster_rows * cluster_pairs * 8U;
  // Tiles use them in turns. A workgroup sends sums when its inbox was read, so when all others have sent theirs of the
  // tile before. By then they have read those of the second tile before, and received all of the third.
  static constexpr auto num_inboxes = 2;
  static constexpr auto num_outboxes = 3;  // of each warpgroup
  static constexpr auto outboxes = cluster_warpgroups * ring_bytes;
  static constexpr auto inboxes = outboxes + num_outboxes * cluster_warpgroups * outbox_bytes;
  static constexpr auto bytes = std::size_t{inboxes + num_inboxes * inbox_bytes + alignment};
};

  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

/// Registers of a lane that puts results, and of one that multiplies: together those of the launch.
inline constexpr auto cluster_registers_to_put = 72;
inline constexpr auto cluster_registers_to_multiply = 216;

/// The runs of each row, and the tiles, that a warpgroup takes of a product.
struct cluster_share {
  std::int32_t first_run;
  std::int32_t run_stride;
  std::int32_t first_tile;
  std::int32_t tile_stride;
  std::int32_t num_tiles;

  [[nodiscard]] PAGEDKV_DEVICE std::int32_t num_runs(std::int32_t num_in) const {
    return ((num_in + cluster_run - 1) / cluster_run - first_run + run_stride - 1) / run_stride;
  }
};

PAGEDKV_DEVICE inline void put_four(unsigned to, const float* sums) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(to), "f"(sums[0]), "f"(sums[1]), "f"(sums[2]), "f"(sums[3])
               : "memory");
}
PAGEDKV_DEVICE inline void add_four(unsigned from, float* sums) {
  float more[4];
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(more[0]), "=f"(more[1]), "=f"(more[2]), "=f"(more[3])
               : "r"(from)
               : "memory");
  for (auto i = 0; i < 4; ++i) {
    sums[i] += more[i];
  }
}
PAGEDKV_DEVICE inline void put_two(unsigned to, const float* sums) {
  asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(to), "f"(sums[0]), "f"(sums[1]) : "memory");
}
PAGEDKV_DEVICE inline void add_two(unsigned from, float* sums) {
  float more[2];
  asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(more[0]), "=f"(more[1]) : "r"(from) : "memory");
  sums[0] += more[0];
  sums[1] += more[1];
}

/// A barrier of each workgroup of a cluster, whose phases end when so many bytes have come from the others, and both
/// warpgroups have put their own.
class inbox_barrier {
 public:
  explicit PAGEDKV_DEVICE inbox_barrier(unsigned address) : address_(address) {}

  /// By one lane, before the cluster meets.
  PAGEDKV_DEVICE void begin() const {
    kernels::phase_barrier(address_).begin(1 + cluster_warpgroups);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  /// By one lane, once a phase.
  PAGEDKV_DEVICE void expect(unsigned bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address_), "r"(bytes) : "memory");
  }
  PAGEDKV_DEVICE void arrive() const { kernels::phase_barrier(address_).arrive(); }
  PAGEDKV_DEVICE void wait(unsigned parity) const { kernels::phase_barrier(address_).wait(parity); }
  /// Copies bytes of shared memory into that of another workgroup of the cluster, and counts them there.
  PAGEDKV_DEVICE void send(std::int32_t workgroup, unsigned to, unsigned from, unsigned bytes) const {
    asm volatile(
        "{.reg .u32 there, bar;\n"
        "mapa.shared::cluster.u32 there, %0, %4;\n"
        "mapa.shared::cluster.u32 bar, %1, %4;\n"
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [there], [%2], %3, [bar];}" ::"r"(to),
        "r"(address_), "r"(from), "r"(bytes), "r"(workgroup)
        : "memory");
  }

 private:
  unsigned address_;
};

/// A barrier of the cluster, in two steps.
PAGEDKV_DEVICE inline void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
PAGEDKV_DEVICE inline void wait_for_cluster() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }

/// Runs of weights on their way to a warpgroup's ring, tile after tile.
template <class Element, class Pairs>
class cluster_weights {
 public:
  using number = storage_of<Element>;
  using memory = cluster_memory;
  using rows = kernels::warpgroup_rows<2 * cluster_pairs>;
  /// Before the step's numbers are read, which would otherwise come behind all copies.
  static constexpr auto first_copies = 4;

  /// Starts the first copies.
  PAGEDKV_DEVICE cluster_weights(const number* weights, std::int32_t num_in, const Pairs& pairs,
                                 const cluster_share& share, unsigned ring)
      : weights_(weights),
        num_in_(num_in),
        pairs_(pairs),
        share_(share),
        ring_(ring),
        tile_(share.num_runs(num_in) > 0 ? share.first_tile : share.num_tiles),
        place_(ring + rows::at(lane() / 8, lane() % 8)),
        end_of_places_(place_ + memory::ring_bytes) {
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(read_once_));
    begin_tile();
    for (auto run = 0; run < first_copies; ++run) {
      copy_run();
    }
  }

  /// Starts copies until the ring is full.
  PAGEDKV_DEVICE void fill() {
    for (auto run = first_copies; run < memory::ahead; ++run) {
      copy_run();
    }
  }

  /// Waits for the next run, and starts the copy of another in place of the second one before.
  PAGEDKV_DEVICE std::uint64_t next(std::int32_t warpgroup) {
    asm volatile("cp.async.wait_group %0;" ::"n"(memory::ahead - 1) : "memory");
    kernels::publish_to_products();
    asm volatile("barrier.cta.sync.aligned %0, 128;" ::"r"(warpgroup + 1) : "memory");
    copy_run();
    const auto run = rows::describe(ring_ + static_cast<unsigned>(slot_) * memory::run_bytes);
    slot_ = slot_ + 1 == memory::depth ? 0 : slot_ + 1;
    return run;
  }

 private:
  [[nodiscard]] PAGEDKV_DEVICE static std::int32_t lane() { return lane_of_workgroup() % 128; }

  PAGEDKV_DEVICE void begin_tile() {
    const auto row = lane() / 8;
    const auto pair = tile_ * cluster_pairs + row / 2;
    at_ = share_.first_run * cluster_run + lane() % 8 * 8;
    from_ = weights_ + std::int64_t{row % 2 == 0 ? pairs_.first(pair) : pairs_.second(pair)} * num_in_;
  }

  PAGEDKV_DEVICE void copy_run() {
    if (tile_ < share_.num_tiles) {
      constexpr auto copies = 2 * cluster_pairs / 16;  // of each lane, 16 rows apart
      const auto step = std::int64_t{pairs_.first(8) - pairs_.first(0)} * num_in_;
      const auto bytes = at_ < num_in_ ? 16 : 0;  // zeros where nothing exists
      PAGEDKV_UNROLL
      for (auto i = 0; i < copies; ++i) {
        // No kernel reads the weights again in this step.
        asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(
                         place_ + static_cast<unsigned>(i) * 2048U),
                     "l"(from_ + at_ + i * step), "r"(bytes), "l"(read_once_)
                     : "memory");
      }
      place_ += memory::run_bytes;
      place_ = place_ == end_of_places_ ? place_ - memory::ring_bytes : place_;
      at_ += share_.run_stride * cluster_run;
      if (at_ - lane() % 8 * 8 >= num_in_) {
        tile_ += share_.tile_stride;
        begin_tile();
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  const number* weights_;
  std::int32_t num_in_;
  const Pairs& pairs_;
  const cluster_share& share_;
  unsigned ring_;
  std::int32_t slot_ = 0;        // of the next run
  std::uint64_t read_once_ = 0;  // a policy of the second-level cache
  // Of the next copy.
  std::int32_t tile_;
  std::int32_t at_ = 0;
  const number* from_ = nullptr;
  unsigned place_;
  unsigned end_of_places_;
};

/// A warpgroup's numbers of the step, which stay in registers as first factors of products.
template <class Element, std::int32_t Runs>
class cluster_step {
 public:
  using places = kernels::warpgroup_rows<16>;

  /// Reads runs. Each wave reads the 16 rows that it multiplies, whole lines at a time.
  PAGEDKV_DEVICE cluster_step(const step_rows<Element>& rows, std::int32_t num_in, const cluster_share& share) {
    PAGEDKV_UNROLL
    for (auto run = 0; run < Runs; ++run) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < 4; ++i) {
        const auto row = lane_of_workgroup() % 128 / 32 * 16 + row_in_wave(i);
        const auto at = (share.first_run + run * share.run_stride) * cluster_run + chunk() * 8;
        if (row < rows.num_rows && at < num_in) {
          const auto read = kernels::load_vector<4>(
              reinterpret_cast<const kernels::lane_word*>(rows.numbers + std::int64_t{row} * num_in + at));
          PAGEDKV_UNROLL
          for (auto word = 0; word < 4; ++word) {
            words_[run][i][word] = read.values[word];
          }
        }
      }
    }
  }

  /// Makes first factors of what was read, by way of shared memory.
  PAGEDKV_DEVICE void arrange(unsigned place) {
    const auto wave = place + static_cast<unsigned>(lane_of_workgroup() % 128 / 32) * 2048U;
    PAGEDKV_UNROLL
    for (auto& run : words_) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < 4; ++i) {
        kernels::put_chunk(wave + places::at(row_in_wave(i), chunk()), run[i]);
      }
      kernels::meet_wave();
      PAGEDKV_UNROLL
      for (auto step = 0; step < 4; ++step) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(run[step][0]), "=r"(run[step][1]), "=r"(run[step][2]), "=r"(run[step][3])
                     : "r"(wave + places::at(lane_of_workgroup() % 16, 2 * step + lane_of_workgroup() % 32 / 16))
                     : "memory");
      }
      kernels::meet_wave();
    }
  }

  /// Adds the products of a run with weights.
  PAGEDKV_DEVICE void multiply(int run, std::uint64_t weights, float (&into)[32]) const {
    PAGEDKV_UNROLL
    for (auto step = 0; step < 4; ++step) {
      kernels::multiply_64x64<Element, false>(
          into, words_[run][step], kernels::later(weights, static_cast<unsigned>(step) * kernels::next_numbers), 1);
    }
  }

 private:
  [[nodiscard]] PAGEDKV_DEVICE static std::int32_t row_in_wave(int i) { return i * 4 + lane_of_workgroup() % 32 / 8; }
  [[nodiscard]] PAGEDKV_DEVICE static std::int32_t chunk() { return lane_of_workgroup() % 8; }

  kernels::lane_word words_[Runs][4][4] = {};
};

/// How the workgroups of a cluster exchange sums of a tile. Each has an inbox for the sums of some rows. Waves of the
/// two warpgroups exchange halves of their sums first, and send what they have added.
template <std::int32_t Workgroups>
class cluster_exchange {
 public:
  using memory = cluster_memory;
  static constexpr auto rows_of_each = cluster_rows / Workgroups;
  /// A block of sums goes from a wave to a workgroup: those of some rows and one half of pairs.
  static constexpr auto block_bytes = static_cast<unsigned>(rows_of_each * cluster_pairs / 2) * 8U;
  static constexpr auto blocks_of_wave = std::int32_t{16} / rows_of_each;

  /// A barrier for each inbox.
  using barriers = kernels::shared_array<std::uint64_t, memory::num_inboxes>;

  PAGEDKV_DEVICE cluster_exchange(unsigned shared, barriers& arrivals)
      : shared_(shared),
        arrivals_(static_cast<unsigned>(__cvta_generic_to_shared(&arrivals[0]))),
        rank_(index_of_workgroup() % Workgroups) {}

  [[nodiscard]] PAGEDKV_DEVICE std::int32_t rank() const { return rank_; }
  /// Its phases end when the sums of every second tile have come.
  [[nodiscard]] PAGEDKV_DEVICE inbox_barrier arrival(std::int32_t index) const {
    return inbox_barrier(arrivals_ + static_cast<unsigned>(index % memory::num_inboxes) * 8U);
  }
  PAGEDKV_DEVICE void wait_for_sums(std::int32_t index) const {
    arrival(index).wait(static_cast<unsigned>(index / memory::num_inboxes % 2));
  }

  /// Gives half of a wave's sums of a tile to the other warpgroup, and returns the other half.
  PAGEDKV_DEVICE void halve(std::int32_t index, std::int32_t warpgroup, std::int32_t wave, const float (&of_tile)[32],
                            float (&sums)[16]) const {
    PAGEDKV_UNROLL
    for (auto i = 0; i < 4; ++i) {
      float other[4];
      PAGEDKV_UNROLL
      for (auto n = 0; n < 4; ++n) {
        sums[4 * i + n] = warpgroup == 0 ? of_tile[4 * i + n] : of_tile[4 * i + n + 16];
        other[n] = warpgroup == 0 ? of_tile[4 * i + n + 16] : of_tile[4 * i + n];
      }
      put_four(outbox(index, 1 - warpgroup, wave) + static_cast<unsigned>(i * 32 + lane()) * 16U, other);
    }
  }

  /// By the warpgroup that puts results, when it has taken sums: lets those of the next tile be sent.
  PAGEDKV_DEVICE void allow_send() const {
    asm volatile("barrier.cta.arrive.aligned 3, %0;" ::"n"(cluster_lanes) : "memory");
  }

  /// Adds what the other warpgroup gave, and sends the sums.
  PAGEDKV_DEVICE void send(std::int32_t index, std::int32_t warpgroup, std::int32_t wave, float (&sums)[16]) const {
    const auto mine = outbox(index, warpgroup, wave);
    asm volatile("barrier.cta.sync.aligned 3, %0;" ::"n"(cluster_lanes) : "memory");
    PAGEDKV_UNROLL
    for (auto i = 0; i < 4; ++i) {
      add_four(mine + static_cast<unsigned>(i * 32 + lane()) * 16U, sums + 4 * i);
    }
    kernels::meet_wave();
    PAGEDKV_UNROLL
    for (auto i = 0; i < 8; ++i) {
      const auto row = i % 2 * 8 + lane() / 4;
      const auto block = row / rows_of_each;
      const auto to = wave * blocks_of_wave + block == rank_ ? inbox(index, rank_, warpgroup)
                                                             : mine + static_cast<unsigned>(block) * block_bytes;
      put_two(to + place_in_block(row, warpgroup * 16 + i / 2 * 4 + lane() % 4), sums + 2 * i);
    }
    kernels::publish_to_products();
    kernels::meet_wave();
    if (const auto to = wave * blocks_of_wave + lane(); lane() < blocks_of_wave && to == rank_) {
      arrival(index).arrive();
    } else if (lane() < blocks_of_wave) {
      arrival(index).send(to, inbox(index, rank_, warpgroup), mine + static_cast<unsigned>(lane()) * block_bytes,
                          block_bytes);
    }
  }

  /// Adds up what has come for a row of this workgroup and a pair.
  PAGEDKV_DEVICE void take(std::int32_t index, std::int32_t row, std::int32_t pair, float (&sums)[2]) const {
    PAGEDKV_UNROLL
    for (auto from = 0; from < Workgroups; ++from) {
      add_two(inbox(index, from, pair / 16) + place_in_block(row, pair), sums);
    }
  }

 private:
  [[nodiscard]] PAGEDKV_DEVICE static std::int32_t lane() { return lane_of_workgroup() % 32; }
  /// In a block, places are permuted so that lanes which read at once read different banks.
  [[nodiscard]] PAGEDKV_DEVICE static unsigned place_in_block(std::int32_t row, std::int32_t pair) {
    constexpr auto places = rows_of_each * 4;
    const auto place = row % rows_of_each * 4 + pair % 4;
    return static_cast<unsigned>(pair / 4 % 4 * places + (place ^ (pair / 4 * 4 % places))) * 8U;
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned outbox(std::int32_t index, std::int32_t warpgroup, std::int32_t wave) const {
    return shared_ + memory::outboxes +
           static_cast<unsigned>(index % memory::num_outboxes * cluster_warpgroups + warpgroup) * memory::outbox_bytes +
           static_cast<unsigned>(wave) * (memory::outbox_bytes / 4);
  }
  [[nodiscard]] PAGEDKV_DEVICE unsigned inbox(std::int32_t index, std::int32_t from, std::int32_t warpgroup) const {
    return shared_ + memory::inboxes + static_cast<unsigned>(index % memory::num_inboxes) * memory::inbox_bytes +
           static_cast<unsigned>(from * cluster_warpgroups + warpgroup) * block_bytes;
  }

  unsigned shared_;
  unsigned arrivals_;
  std::int32_t rank_;
};

/// Puts the results of a cluster's tiles for the rows of this workgroup, by a warpgroup.
template <class Element, std::int32_t Workgroups, class Pairs>
PAGEDKV_DEVICE void put_tiles(const cluster_exchange<Workgroups>& exchange, const step_rows<Element>& rows,
                              std::int32_t num_in, const Pairs& pairs, const cluster_share& share) {
  // A wave has a row at a time, and a lane a pair.
  constexpr auto rows_of_wave = cluster_exchange<Workgroups>::rows_of_each / 4;
  const auto wave = lane_of_workgroup() % 128 / 32;
  const auto lane = lane_of_workgroup() % 32;
  const auto row_of = [&](int i) { return wave * rows_of_wave + i; };
  const auto row_of_step = [&](int i) { return exchange.rank() * rows_of_wave * 4 + row_of(i); };
  float factors[rows_of_wave];
  PAGEDKV_UNROLL
  for (auto i = 0; i < rows_of_wave; ++i) {
    auto sum = 0.0F;
    for (auto part = lane; part < rows.num_parts && row_of_step(i) < rows.num_rows; part += 32) {
      sum += kernels::load(rows.squares + row_of_step(i) * rows.num_parts + part);
    }
    const auto mean = sum_of_wave(sum) / static_cast<float>(num_in);
    factors[i] = rows.num_parts > 0 ? 1.0F / std::sqrt(mean + rows.epsilon) : 1.0F;
  }
  exchange.allow_send();
  for (auto index = std::int32_t{0}, tile = share.first_tile; tile < share.num_tiles;
       ++index, tile += share.tile_stride) {
    const auto pair = tile * cluster_pairs + lane;
    typename Pairs::addends addends[rows_of_wave] = {};
    PAGEDKV_UNROLL
    for (auto i = 0; i < rows_of_wave; ++i) {
      if (row_of_step(i) < rows.num_rows) {
        addends[i] = pairs.read(row_of_step(i), pair);
      }
    }
    if (lane_of_workgroup() % 128 == 0) {
      exchange.arrival(index).expect(cluster_memory::inbox_bytes / Workgroups * (Workgroups - 1));
    }
    exchange.wait_for_sums(index);
    float sums[rows_of_wave][2] = {};
    PAGEDKV_UNROLL
    for (auto i = 0; i < rows_of_wave; ++i) {
      exchange.take(index, row_of(i), lane, sums[i]);
    }
    if (tile + share.tile_stride < share.num_tiles) {
      exchange.allow_send();
    }
    PAGEDKV_UNROLL
    for (auto i = 0; i < rows_of_wave; ++i) {
      if (row_of_step(i) < rows.num_rows) {
        const auto one = sums[i][0] * factors[i];
        const auto other = sums[i][1] * factors[i];
        if constexpr (Pairs::makes_squares) {
          const auto square = sum_of_wave(pairs.put(row_of_step(i), pair, one, other, addends[i]));
          if (lane == 0) {
            kernels::store(pairs.squares + row_of_step(i) * pairs.num_parts + tile, square);
          }
        } else {
          pairs.put(row_of_step(i), pair, one, other, addends[i]);
        }
      }
    }
  }
}

    #define LLAMA_IN_CLUSTERS(workgroups) __cluster_dims__(workgroups)
  #else
    #define LLAMA_IN_CLUSTERS(workgroups)
  #endif

/// Multiplies up to `cluster_rows` rows with a matrix. Each processor has one workgroup. A cluster has a tile at a
/// time, whose weights its warpgroups share by runs; each workgroup then adds up and puts the results of some rows.
/// Sums are added in the same order in every run. Weights, which no kernel writes, are copied before the kernel that
/// writes the rows has ended. `num_in` is a multiple of eight, and the pairs one of `cluster_pairs`.
template <class Element, std::int32_t Workgroups, class Pairs>
PAGEDKV_KERNEL void LLAMA_IN_CLUSTERS(Workgroups) PAGEDKV_LAUNCH_BOUNDS(cluster_lanes, 1)
    multiply_in_clusters(step_rows<Element> rows, const storage_of<Element>* weights, std::int32_t num_in, Pairs pairs,
                         std::int32_t num_tiles) {
  // Barriers of the workgroup: 1 and 2 are a warpgroup's, 3 is that of sums.
  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)
  using memory = cluster_memory;
  static_assert(cluster_warpgroups * cluster_registers_to_multiply + cluster_registers_to_put <=
                65'536 / cluster_lanes / 8 * 8 * (cluster_warpgroups + 1));
  constexpr auto kept_runs = kept_runs_of_cluster(Workgroups);
  PAGEDKV_SHARED typename cluster_exchange<Workgroups>::barriers arrivals;
  kernels::let_next_kernel_start();
  const auto shared = kernels::aligned_shared(memory::alignment);
  const auto exchange = cluster_exchange<Workgroups>(shared, arrivals);
  if (lane_of_workgroup() == 0) {
    for (auto inbox = 0; inbox < memory::num_inboxes; ++inbox) {
      exchange.arrival(inbox).begin();
    }
  }
  arrive_at_cluster();
  const auto wave = static_cast<std::int32_t>(kernels::of_wave(static_cast<unsigned>(lane_of_workgroup() / 32)));
  const auto warpgroup = wave / 4;
  const auto share = cluster_share{.first_run = warpgroup * Workgroups + exchange.rank(),
                                   .run_stride = Workgroups * cluster_warpgroups,
                                   .first_tile = index_of_workgroup() / Workgroups,
                                   .tile_stride = static_cast<std::int32_t>(kernels::grid_extent().x) / Workgroups,
                                   .num_tiles = num_tiles};
  if (warpgroup == cluster_warpgroups) {
    kernels::give_registers<cluster_registers_to_put>();
    kernels::wait_for_previous_kernel();
    wait_for_cluster();
    put_tiles(exchange, rows, num_in, pairs, share);
  } else {
    kernels::take_registers<cluster_registers_to_multiply>();
    const auto ring = shared + static_cast<unsigned>(warpgroup) * memory::ring_bytes;
    auto ahead = cluster_weights<Element, Pairs>(weights, num_in, pairs, share, ring);
    kernels::wait_for_previous_kernel();
    auto step = cluster_step<Element, kept_runs>(rows, num_in, share);
    ahead.fill();
    step.arrange(ring + (memory::depth - 1) * memory::run_bytes);  // a place that no copy has taken yet
    wait_for_cluster();
    const auto num_runs = share.num_runs(num_in);
    float halves[16] = {};
    auto index = std::int32_t{0};
    for (auto tile = share.first_tile; tile < num_tiles; tile += share.tile_stride, ++index) {
      float sums[32] = {};
      PAGEDKV_UNROLL
      for (auto run = 0; run < kept_runs; ++run) {
        if (run < num_runs) {
          const auto of_weights = ahead.next(warpgroup);
          kernels::begin_products();
          step.multiply(run, of_weights, sums);
          kernels::end_products();
          kernels::wait_for_products<1>();
        }
        if (run == 0 && index > 0) {  // while the first run is multiplied
          exchange.send(index - 1, warpgroup, wave % 4, halves);
        }
      }
      kernels::wait_for_products<0>();
      kernels::settle(sums);
      exchange.halve(index, warpgroup, wave % 4, sums, halves);
    }
    exchange.send(index - 1, warpgroup, wave % 4, halves);
  }
  // The last sums have left this workgroup when they have come to the others.
  arrive_at_cluster();
  wait_for_cluster();
  #endif
}

  #undef LLAMA_IN_CLUSTERS

/// The clusters of so many workgroups that a device runs at once: none where the kernel was not compiled for it.
template <class Element, std::int32_t Workgroups>
[[nodiscard]] std::int32_t clusters_at_once() {
  const auto* const kernel =
      reinterpret_cast<const void*>(multiply_in_clusters<Element, Workgroups, gated_pairs<Element>>);
  auto static_bytes = std::size_t{0};
  auto count = 0;
  auto launch = cudaLaunchConfig_t{};
  launch.gridDim = dim3(static_cast<unsigned>(Workgroups));
  launch.blockDim = dim3(static_cast<unsigned>(cluster_lanes));
  launch.dynamicSmemBytes = cluster_memory::bytes;
  if (pagedkv::runtime::get_static_shared(&static_bytes, kernel) != cudaSuccess || static_bytes == 0 ||
      pagedkv::runtime::allow_dynamic_shared(kernel, cluster_memory::bytes) != cudaSuccess ||
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess ||
      cudaOccupancyMaxActiveClusters(&count, kernel, &launch) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
  return count;
}

/// Launches a product in up to so many clusters.
template <class Element, std::int32_t Workgroups, class Pairs>
[[nodiscard]] pagedkv::runtime::status launch_clusters(const step_rows<Element>& rows,
                                                       const storage_of<Element>* weights, std::int32_t num_in,
                                                       const Pairs& pairs, std::int32_t most_clusters,
                                                       pagedkv::runtime::stream stream) {
  constexpr auto kernel = multiply_in_clusters<Element, Workgroups, Pairs>;
  if (const auto allowed = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
      allowed != cudaSuccess) {
    return allowed;
  }
  const auto num_tiles = pairs.count() / cluster_pairs;
  const auto num_clusters = num_tiles < most_clusters ? num_tiles : most_clusters;
  return kernels::launch_following<kernel>(
      {{static_cast<std::uint32_t>(num_clusters * Workgroups)}, {cluster_lanes}, cluster_memory::bytes}, stream, rows,
      weights, num_in, pairs, num_tiles);
}

#endif

}  // namespace llama::device
