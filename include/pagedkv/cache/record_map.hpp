#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/policy/locking/concept.hpp>
#include <pagedkv/pool/free_list.hpp>
#include <pagedkv/pool/lock_free_free_list.hpp>
#include <pagedkv/pool/sharded_free_list.hpp>
#include <pagedkv/sequence/block_table.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

namespace pagedkv {

/// A number below 2^31 for a new record map, most likely different from those of all other maps: the map's address and
/// the number of earlier maps, mixed by the finaliser of splitmix64.
[[nodiscard]] inline std::uint32_t draw_generation(const void* map) noexcept {
  static constinit auto num_maps = std::atomic<std::uint64_t>{0};
  const auto address = std::uint64_t{reinterpret_cast<std::uintptr_t>(map)};
  auto x = num_maps.fetch_add(1, std::memory_order_relaxed) * 0x9e3779b97f4a7c15 + address;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return static_cast<std::uint32_t>((x ^ x >> 31) >> 33);
}

/// A record of two parts. The hot one, which every step touches, lies in the record's cell; the rest, which is made
/// from a reference to it, lies elsewhere.
template <class Record>
concept has_hot_part = std::is_nothrow_constructible_v<Record, typename Record::hot_part&>;

/// The part of a record that lies in its cell.
template <class Record>
struct record_part {
  static constexpr auto alignment = alignof(Record);
  struct elsewhere {};

  void join(elsewhere&) noexcept {}
  [[nodiscard]] Record& record() noexcept { return whole; }
  [[nodiscard]] const Record& record() const noexcept { return whole; }

  Record whole{};
};
template <has_hot_part Record>
struct record_part<Record> {
  static constexpr auto alignment = std::size_t{64};  // of a cache line
  using elsewhere = std::optional<Record>;

  void join(elsewhere& part) noexcept { rest = &part.emplace(hot); }
  [[nodiscard]] Record& record() noexcept { return *rest; }
  [[nodiscard]] const Record& record() const noexcept { return *rest; }

  typename Record::hot_part hot{};
  Record* rest = nullptr;
};

/// Records with stable addresses and ids that become stale: an id holds a cell and the cell's generation, which is odd
/// while the cell is taken. Generations of a map start at a number of its own, so that it also recognises ids of other
/// maps. Memory grows by chunks and is kept for reuse.
template <class Record, locking Locking>
class record_map {
 public:
  using locking_type = Locking;

 private:
  /// A copy of a record's usage for readers outside: each number is right, but they may be of different times.
  class shared_usage {
   public:
    void write(const table_usage& now) noexcept {
      num_tokens_.store(now.num_tokens, std::memory_order_relaxed);
      num_blocks_.store(now.num_blocks, std::memory_order_relaxed);
      bytes_.store(now.bytes, std::memory_order_relaxed);
    }
    void write_num_tokens(std::int64_t now) noexcept { num_tokens_.store(now, std::memory_order_relaxed); }
    [[nodiscard]] table_usage read() const noexcept {
      return {num_tokens_.load(std::memory_order_relaxed), num_blocks_.load(std::memory_order_relaxed),
              bytes_.load(std::memory_order_relaxed)};
    }

   private:
    typename Locking::template atomic<std::int64_t> num_tokens_{0};
    typename Locking::template atomic<std::int64_t> num_blocks_{0};
    typename Locking::template atomic<std::int64_t> bytes_{0};
  };
  struct no_usage {};
  using noted_usage = std::conditional_t<Locking::family::concurrent, shared_usage, no_usage>;

  // Different threads may use neighbours.
  static constexpr auto alignment =
      Locking::family::concurrent ? 64 : std::max(record_part<Record>::alignment, alignof(std::uint32_t));

 public:
  using record_type = Record;

  struct alignas(alignment) cell {
    [[nodiscard]] Record& record() noexcept { return part.record(); }
    [[nodiscard]] const Record& record() const noexcept { return part.record(); }

    [[no_unique_address]] typename Locking::sequence_mutex mutex;
    typename Locking::template atomic<std::uint32_t> generation{0};
    std::uint32_t index = 0;
    record_part<Record> part;
    [[no_unique_address]] noted_usage usage;
  };

  explicit record_map(std::int32_t capacity)
      : capacity_(capacity),
        num_chunks_((static_cast<std::size_t>(capacity) + chunk_size - 1) / chunk_size),
        first_generation_(draw_generation(this) | 1),
        vacant_(capacity),
        chunks_(std::make_unique<chunk_pointer[]>(num_chunks_)) {}

  record_map(const record_map&) = delete;
  record_map& operator=(const record_map&) = delete;
  ~record_map() {
    for (std::size_t i = 0; i < num_chunks_; ++i) {
      delete chunks_[i].load(std::memory_order_acquire);
    }
  }

  /// Reserves a vacant cell for the caller alone, until it is opened or abandoned. Errors: `limit_reached` when all
  /// cells are taken, and `out_of_memory`; their subject is `what`, such as "number of sequences".
  [[nodiscard]] result<cell*> reserve(const char* what) noexcept {
    const auto vacant = vacant_.pop();
    if (vacant == no_block) {
      return error{error_code::limit_reached, what, std::int64_t{capacity_} + 1, capacity_};
    }
    auto* chunk = ensure_chunk(to_index(vacant) / chunk_size);
    if (chunk == nullptr) {
      vacant_.push(vacant);
      return error{error_code::out_of_memory, what, size()};
    }
    return &chunk->cells[to_index(vacant) % chunk_size];
  }

  void abandon(cell& reserved) noexcept { vacant_.push(static_cast<block_id>(reserved.index)); }

  /// Makes a reserved cell reachable, and returns its id. Another thread may end it at once.
  std::uint64_t open(cell& reserved) noexcept {
    const auto before = reserved.generation.load(std::memory_order_relaxed);
    const auto generation = before == 0 ? first_generation_ : next(before);
    reserved.generation.store(generation, std::memory_order_release);
    return std::uint64_t{generation} << 32 | reserved.index;
  }

  /// Ends an open cell: its ids are stale from now on. Requires that no other thread is inside.
  void close(cell& open) noexcept {
    open.generation.store(next(open.generation.load(std::memory_order_relaxed)), std::memory_order_release);
  }

  enum class entry : std::uint8_t { inside, busy, stale };

  /// Admits the caller to the open cell of an id, alone until it leaves. If the cell is taken, waits or returns `busy`,
  /// depending on the locking policy. Without waiting, the generation itself is marked, so that a stale id makes no
  /// later record busy.
  [[nodiscard]] static entry enter(cell& found, std::uint64_t id) noexcept {
    if constexpr (Locking::waits_for_sequence) {
      found.mutex.lock();
      if (is_open(found, id)) {
        return entry::inside;
      }
      found.mutex.unlock();
      return entry::stale;
    } else {
      auto seen = generation_of(id);
      if (!may_be_open(seen)) {
        return entry::stale;
      }
      if (found.generation.compare_exchange_strong(seen, seen | busy, std::memory_order_acquire,
                                                   std::memory_order_relaxed)) {
        return entry::inside;
      }
      return seen == (generation_of(id) | busy) ? entry::busy : entry::stale;
    }
  }
  static void leave(cell& inside, std::uint64_t id) noexcept {
    if constexpr (Locking::waits_for_sequence) {
      inside.mutex.unlock();
    } else {
      inside.generation.store(generation_of(id), std::memory_order_release);
    }
  }
  /// Ends the cell and leaves it; call `abandon` next.
  void leave_closed(cell& inside) noexcept {
    close(inside);
    if constexpr (Locking::waits_for_sequence) {
      inside.mutex.unlock();
    }
  }

  /// The cell that an id names, open or not; null for an id that never existed.
  [[nodiscard]] cell* find(std::uint64_t id) const noexcept {
    const auto index = id & 0xffff'ffff;
    if (index >= static_cast<std::uint64_t>(capacity_)) {
      return nullptr;
    }
    auto* chunk = chunks_[index / chunk_size].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : &chunk->cells[index % chunk_size];
  }
  /// Prefetches the record of an id, open or not.
  [[gnu::always_inline]] void prefetch(std::uint64_t id) const noexcept {
    if (const auto* const found = find(id)) {
      found->record().prefetch();
    }
  }
  [[nodiscard]] static bool is_open(const cell& found, std::uint64_t id) noexcept {
    const auto generation = generation_of(id);
    return may_be_open(generation) && (found.generation.load(std::memory_order_acquire) & ~mark) == generation;
  }

  [[nodiscard]] static std::uint64_t id_of(const cell& open) noexcept {
    return std::uint64_t{open.generation.load(std::memory_order_relaxed) & ~busy} << 32 | open.index;
  }

  /// Calls `visit(cell)` for every open cell.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for_each_cell([&](cell& each) {
      if (each.generation.load(std::memory_order_acquire) % 2 == 1) {
        visit(each);
      }
    });
  }

  /// Calls `visit(usage)` for every open cell, without entering it: threads inside are not delayed.
  template <class Visit>
  void for_each_usage(Visit&& visit) const {
    for_each([&](const cell& open) {
      if constexpr (Locking::family::concurrent) {
        visit(open.usage.read());
      } else {
        visit(open.record().usage());
      }
    });
  }

  /// Publishes a record's usage to other threads. Call it inside the record, after changing it.
  static void note_usage([[maybe_unused]] cell& inside) noexcept {
    if constexpr (Locking::family::concurrent && requires { inside.record().usage(); }) {
      inside.usage.write(inside.record().usage());
    }
  }

  /// Publishes the number of tokens, where that alone has changed.
  static void note_num_tokens([[maybe_unused]] cell& inside, [[maybe_unused]] std::int64_t num_tokens) noexcept {
    if constexpr (Locking::family::concurrent) {
      inside.usage.write_num_tokens(num_tokens);
    }
  }

  [[nodiscard]] std::int32_t capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::int32_t size() const noexcept { return capacity_ - vacant_.size(); }

  /// Contention of all cells, open or not.
  [[nodiscard]] contention_counts contention() const noexcept {
    auto sum = detail::contention_in(vacant_);
    if constexpr (requires(const cell& each) { each.mutex.contention(); }) {
      for_each_cell([&](const cell& each) { sum += each.mutex.contention(); });
    }
    return sum;
  }

  /// Bytes of the records, without memory that they own.
  [[nodiscard]] std::size_t metadata_bytes() const noexcept {
    auto bytes = vacant_.metadata_bytes() + num_chunks_ * sizeof(chunk_pointer);
    for (std::size_t i = 0; i < num_chunks_; ++i) {
      bytes += chunks_[i].load(std::memory_order_acquire) == nullptr ? 0 : sizeof(record_chunk);
    }
    return bytes;
  }

 private:
  static constexpr auto chunk_size = std::size_t{64};
  static constexpr auto busy = std::uint32_t{1} << 31;  // beside a generation, while a thread is inside
  static constexpr auto mark = Locking::waits_for_sequence ? std::uint32_t{0} : busy;  // that a generation may carry
  struct record_chunk {
    explicit record_chunk(std::size_t first) noexcept {
      for (std::size_t i = 0; i < chunk_size; ++i) {
        cells[i].index = static_cast<std::uint32_t>(first + i);
        cells[i].part.join(elsewhere[i]);
      }
    }

    std::array<cell, chunk_size> cells;
    [[no_unique_address]] std::array<typename record_part<Record>::elsewhere, chunk_size> elsewhere;
  };
  using chunk_pointer = typename Locking::template atomic<record_chunk*>;

  [[nodiscard]] static std::uint32_t generation_of(std::uint64_t id) noexcept {
    return static_cast<std::uint32_t>(id >> 32);
  }
  [[nodiscard]] static bool may_be_open(std::uint32_t generation) noexcept {
    return generation % 2 == 1 && (generation & mark) == 0;
  }
  /// Never 0, which is the generation of a cell that was never open.
  [[nodiscard]] static std::uint32_t next(std::uint32_t generation) noexcept {
    const auto after = (generation + 1) & ~busy;
    return after == 0 ? 2 : after;
  }

  /// Open or not.
  template <class Visit>
  void for_each_cell(Visit&& visit) const {
    for (std::size_t i = 0; i < num_chunks_; ++i) {
      if (auto* chunk = chunks_[i].load(std::memory_order_acquire)) {
        std::for_each(chunk->cells.begin(), chunk->cells.end(), visit);
      }
    }
  }

  [[nodiscard]] record_chunk* ensure_chunk(std::size_t index) noexcept {
    auto* there = chunks_[index].load(std::memory_order_acquire);
    if (there == nullptr) {
      auto* fresh = new (std::nothrow) record_chunk{index * chunk_size};
      if (fresh == nullptr ||
          chunks_[index].compare_exchange_strong(there, fresh, std::memory_order_acq_rel, std::memory_order_acquire)) {
        return fresh;
      }
      delete fresh;  // another thread was first
    }
    return there;
  }

  std::int32_t capacity_;
  std::size_t num_chunks_;
  std::uint32_t first_generation_;
  free_list_for<Locking> vacant_;
  std::unique_ptr<chunk_pointer[]> chunks_;
};

}  // namespace pagedkv

namespace pagedkv::detail {

/// Fills a vacant record by `fill(record)`, makes it reachable and returns its id, or leaves it vacant. `what`: see
/// `reserve`.
template <class Map, class Fill>
[[nodiscard]] result<std::uint64_t> make_record(Map& map, const char* what, Fill&& fill) noexcept {
  auto reserved = map.reserve(what);
  if (!reserved) {
    return reserved.error();
  }
  auto& cell = **reserved;
  if (const result<void> filled = fill(cell.record()); !filled) {
    map.abandon(cell);
    return filled.error();
  }
  map.note_usage(cell);
  return map.open(cell);
}

/// Calls `body(cell)` alone in the open cell of an id: waits for it, or returns `sequence_busy`, depending on the
/// locking policy. The body leaves the cell.
template <class Map, class Body>
[[nodiscard]] auto enter_record(Map& map, std::uint64_t id, Body&& body) noexcept
    -> std::invoke_result_t<Body, typename Map::cell&> {
  using entry = typename Map::entry;
  using record = typename Map::record_type;
  auto* cell = map.find(id);
  const auto entered = cell != nullptr ? map.enter(*cell, id) : entry::stale;
  if (entered == entry::stale) {
    return error{record::unknown_code, record::id_name, static_cast<std::int64_t>(id)};
  }
  if (entered == entry::busy) {
    return error{error_code::sequence_busy, record::busy_id_name, static_cast<std::int64_t>(id)};
  }
  return std::forward<Body>(body)(*cell);
}

/// A map's record, constant where the map is.
template <class Map>
using record_of = std::conditional_t<std::is_const_v<Map>, const typename Map::record_type, typename Map::record_type>;

/// Calls `body(record)` alone in the record.
template <class Map, class Body>
[[nodiscard]] auto visit_record(Map& map, std::uint64_t id, Body&& body) noexcept
    -> std::invoke_result_t<Body, record_of<Map>&> {
  return enter_record(map, id, [&](typename Map::cell& inside) {
    auto outcome = std::forward<Body>(body)(static_cast<record_of<Map>&>(inside.record()));
    if constexpr (!std::is_const_v<Map>) {
      map.note_usage(inside);
    }
    map.leave(inside, id);
    return outcome;
  });
}

/// Calls `body(sequence)` alone in the sequence.
template <class State, class Body>
[[nodiscard]] auto visit_sequence(State& state, sequence_id id, Body&& body) noexcept {
  return visit_record(state.sequences, static_cast<std::uint64_t>(id), std::forward<Body>(body));
}

/// Calls `step(hot)` alone in the sequence, which does its work on the hot part alone, or returns false and changes
/// nothing but the room. Also false where the sequence cannot be entered.
template <class State, class Step>
[[nodiscard]] [[gnu::always_inline]] inline bool step_inside(State& state, sequence_id id, Step&& step) noexcept {
  using map = decltype(state.sequences);
  const auto key = static_cast<std::uint64_t>(id);
  auto* const found = state.sequences.find(key);
  if (found == nullptr || map::enter(*found, key) != map::entry::inside) [[unlikely]] {
    return false;
  }
  auto& hot = found->part.hot;
  const bool done = std::forward<Step>(step)(hot);
  if (done) [[likely]] {
    map::note_num_tokens(*found, hot.num_tokens);
  }
  map::leave(*found, key);
  return done;
}

/// Empties a record by `empty(record)`, closes it, and makes its cell vacant.
template <class Map, class Empty>
[[nodiscard]] result<void> end_record(Map& map, std::uint64_t id, Empty&& empty) noexcept {
  return enter_record(map, id, [&](typename Map::cell& inside) -> result<void> {
    empty(inside.record());
    map.leave_closed(inside);
    map.abandon(inside);
    return {};
  });
}

}  // namespace pagedkv::detail
