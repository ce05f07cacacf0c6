// Decode attention as a share of the device's read bandwidth, measured in the same run; decoding over latent vectors
// and attention of prompts as operations per second; prefixes that are read once for all sequences that share them;
// lists of blocks.
// Built for a device by scripts/device-test; built for the host it only checks that every shape runs, and reports in
// TAP.
//
//   kernel_attention [--latent | --prompts | --prefixes | --lists | --shapes SHAPES] [FILE]
//
// prints the tables; or only that of latent vectors, of prompts, of shared prefixes, of lists, or one of the shapes
// that a file lists (attention_shapes.hpp); writes the same as JSON to FILE.

#include "attention_shapes.hpp"
#include "records.hpp"
#include "timer.hpp"

#include <pagedkv/attention/plan.hpp>
#include <pagedkv/device/allocators.hpp>
#include <pagedkv/device/backend.hpp>
#include <pagedkv/device/stream.hpp>
#include <pagedkv/host/rows.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float8.hpp>
#include <pagedkv/policy/element/int8.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/storage/block_storage.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace attention_bench {

using namespace pagedkv;

using device_bench::on_device;
using layout = hnd_layer_major;

constexpr auto head_dim = 128;
constexpr auto block_size = 16;

/// Reads all words once, with eight vectors in flight per lane.
PAGEDKV_KERNEL void read_kernel(const std::uint32_t* words, std::int64_t num_vectors, std::uint32_t* sink) {
  constexpr auto at_once = 8;
  const auto step = static_cast<std::int64_t>(kernels::grid_extent().x) * kernels::workgroup_extent().x;
  auto all = std::uint32_t{0};
  for (auto i = static_cast<std::int64_t>(kernels::workgroup_index().x) * kernels::workgroup_extent().x +
                kernels::local_index().x;
       i + (at_once - 1) * step < num_vectors; i += at_once * step) {
    kernels::vector<std::uint32_t, 4> read[at_once];
    for (auto j = 0; j < at_once; ++j) {
      read[j] = kernels::load_vector<4>(words + (i + j * step) * 4);
    }
    for (auto j = 0; j < at_once; ++j) {
      all ^= read[j].values[0] ^ read[j].values[1] ^ read[j].values[2] ^ read[j].values[3];
    }
  }
  if (all == 0x12345678U) {
    kernels::store(sink, all);
  }
}

/// Device memory until the end of the scope.
template <class T>
class device_array {
 public:
  explicit device_array(std::size_t size) : size_(size), data_(allocator_.allocate(size * sizeof(T), block_alignment)) {
    if (data_ == nullptr) {
      throw exception(error{error_code::out_of_memory, "bytes of a benchmark's buffer",
                            static_cast<std::int64_t>(size * sizeof(T))});
    }
  }
  device_array(const device_array&) = delete;
  device_array& operator=(const device_array&) = delete;
  ~device_array() { allocator_.deallocate(data_, size_ * sizeof(T)); }

  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(data_); }
  [[nodiscard]] std::size_t size() const { return size_; }

  void upload(const T* from, runtime::stream stream) const {
    hip::require(runtime::copy_async(data_, from, size_ * sizeof(T), runtime::host_to_device, stream),
                 "the copy of memory");
    hip::require(runtime::synchronize_stream(stream), "the wait for a stream");
  }

 private:
  hip::device_allocator allocator_;
  std::size_t size_;
  std::byte* data_;
};

struct batch_shape {
  std::string name;
  std::vector<std::int32_t> lengths;
};

/// Attention whose arithmetic counts, not its bytes. `queries`: of each row; empty: one, of decoding.
struct product_shape {
  std::string name;
  group_config group;
  std::int32_t query_heads;
  std::vector<std::int32_t> lengths;
  std::vector<std::int32_t> queries;

  /// Multiplications and additions.
  [[nodiscard]] double num_operations() const {
    auto pairs = 0.0;  // of query and key
    for (auto row = std::size_t{0}; row < lengths.size(); ++row) {
      const auto num_queries = queries.empty() ? 1.0 : static_cast<double>(queries[row]);
      pairs += num_queries * (lengths[row] - (num_queries - 1) / 2);
    }
    return 2 * pairs * query_heads * (group.key_dim + group.value_dim);
  }
};

[[nodiscard]] std::vector<product_shape> make_product_shapes() {
  auto latent = group_config{};
  latent.kind = group_kind::latent;
  latent.key_dim = 576;
  latent.value_dim = 512;
  auto full = group_config{};
  full.num_kv_heads = on_device ? 8 : 1;
  full.key_dim = full.value_dim = head_dim;
  auto longer = full;
  longer.key_dim = longer.value_dim = 2 * head_dim;
  auto longer_keys = full;
  longer_keys.num_kv_heads = on_device ? 16 : 1;
  longer_keys.key_dim = 192;
  if (!on_device) {
    return {{"MLA 1 x 40", latent, 4, {40}, {}}, {"prefill 40", full, 2, {40, 10}, {30, 10}}};
  }
  const auto equal = [](std::size_t count, std::int32_t length) { return std::vector(count, length); };
  const auto ramp = [](std::size_t count, std::int32_t first, std::int32_t step) {
    auto lengths = std::vector<std::int32_t>{};
    for (auto i = std::size_t{0}; i < count; ++i) {
      lengths.push_back(first + static_cast<std::int32_t>(i) * step);
    }
    return lengths;
  };
  const auto mixed = ramp(48, 500, 200);
  const auto ragged = ramp(16, 100, 250);
  return {{"MLA 64 x 4096", latent, 128, equal(64, 4096), {}},
          {"MLA 64 x 4096", latent, 16, equal(64, 4096), {}},
          {"MLA 16 x 16384", latent, 128, equal(16, 16384), {}},
          {"MLA 256 x 1000", latent, 128, equal(256, 1000), {}},
          {"MLA 512 x 500", latent, 16, equal(512, 500), {}},
          {"MLA ramp", latent, 128, mixed, {}},
          {"MLA ramp", latent, 16, mixed, {}},
          {"MLA 1 x 9000", latent, 128, {9000}, {}},
          {"MLA 1 x 9000", latent, 16, {9000}, {}},
          {"MLA 8 x 1000", latent, 16, equal(8, 1000), {}},
          {"prefill 8 x 2048", full, 32, equal(8, 2048), equal(8, 2048)},
          {"prefill 8 x 512 over 8192", full, 32, equal(8, 8704), equal(8, 512)},
          {"prefill 8 x 2048, 192/128", longer_keys, 16, equal(8, 2048), equal(8, 2048)},
          {"prefill 8 x 2048, 256", longer, 16, equal(8, 2048), equal(8, 2048)},
          {"prefill 8 x 512 over 8192, 256", longer, 16, equal(8, 8704), equal(8, 512)},
          {"prefill 1 x 16384", full, 32, {16384}, {16384}},
          {"prefill 4 x 4096", full, 32, equal(4, 4096), equal(4, 4096)},
          {"prefill 16 x 1024", full, 32, equal(16, 1024), equal(16, 1024)},
          {"prefill 32 x 300", full, 32, equal(32, 300), equal(32, 300)},
          {"prefill ragged", full, 32, ragged, ragged},
          {"prefill 16 x 256 over 4096", full, 32, equal(16, 4352), equal(16, 256)},
          {"prefill 4 x 1024 over 4096", full, 32, equal(4, 5120), equal(4, 1024)},
          {"prefill 2 x 2048 over 30000", full, 32, equal(2, 32048), equal(2, 2048)}};
}

/// The shapes of the comparison with other libraries; bench/peers reads the same lengths from the JSON.
[[nodiscard]] std::vector<batch_shape> make_shapes() {
  if (!on_device) {
    return {{"2 x 40", {40, 40}}, {"ragged", {1, 100, 17}}};
  }
  auto random = std::mt19937(7);
  auto log_normal = std::lognormal_distribution<double>(std::log(3000.0), 1.0);
  auto ragged = batch_shape{"128 ragged", {}};
  for (auto i = 0; i < 128; ++i) {
    ragged.lengths.push_back(std::clamp(static_cast<std::int32_t>(log_normal(random)), 16, 65536));
  }
  auto skewed = batch_shape{"64 skewed", std::vector<std::int32_t>(64, 512)};
  skewed.lengths[0] = 131072;
  return {{"64 x 4096", std::vector<std::int32_t>(64, 4096)},
          {"16 x 32768", std::vector<std::int32_t>(16, 32768)},
          {"1 x 131072", {131072}},
          ragged,
          skewed,
          {"8 x 1024", std::vector<std::int32_t>(8, 1024)}};
}

/// Sequences that start with the same tokens.
struct prefix_shape {
  std::string name;
  std::int32_t num_rows;
  std::int32_t shared;
  std::int32_t own;
};

[[nodiscard]] std::vector<prefix_shape> make_prefix_shapes() {
  if (!on_device) {
    return {{"12 x (320 + 8)", 12, 320, 8}, {"3 x (0 + 40)", 3, 0, 40}};
  }
  return {{"64 x (16384 + 512)", 64, 16384, 512}, {"64 x (16384 + 1)", 64, 16384, 1},
          {"64 x (2048 + 2048)", 64, 2048, 2048}, {"64 x (512 + 4096)", 64, 512, 4096},
          {"16 x (16384 + 512)", 16, 16384, 512}, {"6 x (16384 + 512)", 6, 16384, 512},
          {"4 x (16384 + 512)", 4, 16384, 512},   {"3 x (131072 + 16)", 3, 131072, 16},
          {"12 x (8192 + 512)", 12, 8192, 512},   {"24 x (4096 + 1024)", 24, 4096, 1024},
          {"32 x (4096 + 4096)", 32, 4096, 4096}, {"64 x (1024 + 1024)", 64, 1024, 1024},
          {"128 x (512 + 256)", 128, 512, 256},   {"64 x (0 + 4096)", 64, 0, 4096},
          {"8 x (0 + 1024)", 8, 0, 1024}};
}

/// The share of its blocks that each row reads; in percent.
inline constexpr int listed_percents[] = {5, 10, 25, 100};

/// A block of packed tokens.
template <class Element, class Draw>
void fill_packed(block_storage_view view, std::byte* block, Draw draw) {
  auto numbers = std::vector<float>(static_cast<std::size_t>(view.block_size * view.head_dim));
  std::ranges::generate(numbers, draw);
  auto slots = std::vector<slot>{};
  for (auto token = 0; token < view.block_size; ++token) {
    slots.push_back(slot{token});
  }
  view.base = block;
  host::append<Element>(view, 0, slots, contiguous_rows(std::as_const(numbers), 1, view.head_dim), {}).value();
}

/// Finite numbers and scales for 64 blocks, repeated.
template <class Element>
void fill(const block_storage_view& view, std::int64_t bytes, runtime::stream stream) {
  const auto layer_bytes = static_cast<std::size_t>(view.layer_bytes());
  auto pattern = std::vector<std::byte>(64 * layer_bytes);
  auto random = std::mt19937(3);
  auto number = std::uniform_real_distribution<float>(-1.0F, 1.0F);
  for (auto block = std::size_t{0}; block < 64; ++block) {
    auto* const start = pattern.data() + block * layer_bytes;
    if constexpr (packs_tokens<Element>) {
      fill_packed<Element>(view, start, [&] { return number(random); });
      continue;
    }
    const auto row = view.head_dim + (view.is_latent() ? 0 : view.dim_of_values());
    const auto numbers = static_cast<std::size_t>(view.block_size * view.num_kv_heads * row);
    for (auto i = std::size_t{0}; i < numbers; ++i) {
      const auto stored = Element::encode(number(random), Element::scaled ? 1.0F / 127 : 1.0F);
      std::memcpy(start + i * sizeof(stored), &stored, sizeof(stored));
    }
    if constexpr (Element::scaled) {
      const auto num_scales = static_cast<std::size_t>(2 * view.block_size * view.num_kv_heads);
      for (auto i = std::size_t{0}; i < num_scales; ++i) {
        const auto scale = (1.0F + number(random) / 2) / 127;
        std::memcpy(start + static_cast<std::size_t>(view.key_scale_offset) + i * sizeof(scale), &scale, sizeof(scale));
      }
    }
  }
  const auto period = static_cast<std::int64_t>(pattern.size());
  for (auto at = std::int64_t{0}; at < bytes; at += period) {
    hip::require(
        runtime::copy_async(view.base + at, pattern.data(), static_cast<std::size_t>(std::min(period, bytes - at)),
                            runtime::host_to_device, stream),
        "the copy of memory");
  }
  hip::require(runtime::synchronize_stream(stream), "the wait for a stream");
}

[[nodiscard]] std::string json_list(const char* name, const std::vector<std::int32_t>& numbers) {
  auto list = "\"" + std::string(name) + "\": [";
  for (auto i = std::size_t{0}; i < numbers.size(); ++i) {
    list += (i == 0 ? "" : ", ") + std::to_string(numbers[i]);
  }
  return list + "]";
}

class bench {
 public:
  [[nodiscard]] double read_ceiling() const { return ceiling_; }
  [[nodiscard]] int num_reports() const { return num_reports_; }
  /// All that was printed.
  [[nodiscard]] std::string json() const {
    char ceiling[64];
    std::snprintf(ceiling, sizeof(ceiling), "{\"read_ceiling\": %.4g", ceiling_);
    return ceiling + (", \"results\": " + results_.list()) + ", \"products\": " + products_.list() +
           ", \"prefixes\": " + prefixes_.list() + ", \"lists\": " + lists_.list() + "}\n";
  }

  /// The fastest of several grids over 4 GiB, much more than the caches hold.
  void measure_ceiling() {
    const auto bytes = on_device ? std::size_t{4} << 30 : std::size_t{1} << 12;
    const auto memory = device_array<std::uint32_t>(bytes / 4);
    hip::require(runtime::fill_async(memory.data(), 0x5a, bytes, stream_.get()), "the fill of memory");
    for (const auto lanes : {256U, 512U}) {
      for (const auto workgroups : {264U, 528U, 1056U, 2112U}) {
        const auto shape = kernels::launch_shape{{on_device ? workgroups : 1}, {on_device ? lanes : 64}};
        const auto seconds = timer_.measure(stream_.get(), [&] {
          hip::require(
              kernels::launch<read_kernel>(shape, stream_.get(), static_cast<const std::uint32_t*>(memory.data()),
                                           static_cast<std::int64_t>(bytes / 16), memory.data()),
              "launch of read_kernel");
        });
        ceiling_ = std::max(ceiling_, static_cast<double>(bytes) / seconds);
      }
    }
  }

  template <class Element>
  void report(const decode_shape& asked) {
    const auto& heads = asked.heads;
    auto config = cache_config{};
    config.block_size = asked.block_size;
    config.num_kv_heads = heads.kv_heads;
    config.head_dim = asked.head_dim;
    auto indptr = std::vector<std::int32_t>{0};
    auto last_block_len = std::vector<std::int32_t>{};
    auto bytes = std::int64_t{0};
    for (const auto length : asked.lengths) {
      indptr.push_back(indptr.back() + (length + asked.block_size - 1) / asked.block_size);
      last_block_len.push_back((length - 1) % asked.block_size + 1);
      bytes += std::int64_t{length} * heads.kv_heads * 2 *
               (asked.head_dim * size_of_element<Element>.bytes + size_of_element<Element>.scale_bytes);
    }
    config.num_blocks = indptr.back();
    const auto storage = block_storage<Element, layout, hip::device_allocator>::create(config).value();
    fill<Element>(storage.view(), storage.bytes(), stream_.get());
    const auto num_rows = static_cast<std::int32_t>(asked.lengths.size());
    const auto shape =
        hip::attention_shape_on<Element>(0, storage.view(), heads.query_heads / heads.kv_heads, num_rows).value();
    const auto measured = measure<Element>(storage.view(), shape, {indptr, {}, last_block_len, {}}, num_rows);
    print<Element>(asked, measured, static_cast<double>(bytes) / measured.call);
  }

  /// `expands`: each call expands the blocks once.
  template <class Element>
  void report(const product_shape& asked, bool expands = false) {
    auto indptr = std::vector<std::int32_t>{0};
    auto query_indptr = std::vector<std::int32_t>{0};
    auto last_block_len = std::vector<std::int32_t>{};
    for (auto row = std::size_t{0}; row < asked.lengths.size(); ++row) {
      indptr.push_back(indptr.back() + (asked.lengths[row] + block_size - 1) / block_size);
      last_block_len.push_back((asked.lengths[row] - 1) % block_size + 1);
      query_indptr.push_back(query_indptr.back() + (asked.queries.empty() ? 1 : asked.queries[row]));
    }
    auto plan = plan_storage<layout>(asked.group, block_size, indptr.back(), size_of_element<Element>).value();
    const auto memory = device_array<std::byte>(static_cast<std::size_t>(plan.bytes));
    plan.view.base = memory.data();
    fill<Element>(plan.view, plan.bytes, stream_.get());
    const auto prefill = !asked.queries.empty();
    auto use = hip::attention_use{};
    use.max_rows = static_cast<std::int32_t>(asked.lengths.size());
    use.max_query_tokens = prefill ? query_indptr.back() : 0;
    use.max_expanded_blocks = expands ? indptr.back() : 0;
    const auto group_size = asked.query_heads / asked.group.num_kv_heads;
    const auto shape = hip::attention_shape_on<Element>(0, plan.view, group_size, use).value();
    auto batch = attention_batch{indptr, {}, last_block_len, {}};
    if (prefill) {
      batch.query_indptr = query_indptr;
    }
    const auto measured = measure<Element>(plan.view, shape, batch, query_indptr.back());
    print<Element>(asked, expands, measured);
  }

  /// Three plans: flat; with shared prefixes where they save time; and the same in a form that a captured graph may
  /// replay, which launches the kernel for prefixes always.
  template <class Element>
  void report(const prefix_shape& asked, const head_shape& heads) {
    auto config = cache_config{};
    config.block_size = block_size;
    config.num_kv_heads = heads.kv_heads;
    config.head_dim = head_dim;
    const auto blocks_of = [](std::int32_t tokens) { return (tokens + block_size - 1) / block_size; };
    config.num_blocks = blocks_of(asked.shared) + asked.num_rows * blocks_of(asked.own);
    const auto storage = block_storage<Element, layout, hip::device_allocator>::create(config).value();
    fill<Element>(storage.view(), storage.bytes(), stream_.get());
    const auto blocks = shuffled_blocks(config.num_blocks);
    auto indices = std::vector<block_id>{};
    auto indptr = std::vector<std::int32_t>{0};
    for (auto row = 0; row < asked.num_rows; ++row) {
      const auto own = blocks.begin() + blocks_of(asked.shared) + row * blocks_of(asked.own);
      indices.insert(indices.end(), blocks.begin(), blocks.begin() + blocks_of(asked.shared));
      indices.insert(indices.end(), own, own + blocks_of(asked.own));
      indptr.push_back(static_cast<std::int32_t>(indices.size()));
    }
    const auto last_block_len =
        std::vector<std::int32_t>(static_cast<std::size_t>(asked.num_rows), (asked.own - 1) % block_size + 1);
    const auto batch = attention_batch{indptr, indices, last_block_len, {}};
    const auto measure_plan = [&](bool shares_prefixes, bool for_graph) {
      auto use = hip::attention_use{};
      use.max_rows = asked.num_rows;
      use.shares_prefixes = shares_prefixes;
      const auto shape =
          hip::attention_shape_on<Element>(0, storage.view(), heads.query_heads / heads.kv_heads, use).value();
      return measure<Element>(storage.view(), shape, batch, asked.num_rows, for_graph);
    };
    const auto flat = measure_plan(false, false);
    print<Element>(asked, heads, "flat", flat, flat.call);
    print<Element>(asked, heads, "cascade", measure_plan(true, false), flat.call);
    print<Element>(asked, heads, "cascade in a graph", measure_plan(true, true), flat.call);
  }

  /// Lists of so many of each row's blocks, in random order; a row has one for all heads, or one for each KV head.
  /// Compared with the read of all blocks without lists.
  template <class Element>
  void report_lists(const decode_shape& asked, listed_blocks kind) {
    const auto& heads = asked.heads;
    auto config = cache_config{};
    config.block_size = asked.block_size;
    config.num_kv_heads = heads.kv_heads;
    config.head_dim = asked.head_dim;
    auto indptr = std::vector<std::int32_t>{0};
    auto last_block_len = std::vector<std::int32_t>{};
    for (const auto length : asked.lengths) {
      indptr.push_back(indptr.back() + (length + asked.block_size - 1) / asked.block_size);
      last_block_len.push_back((length - 1) % asked.block_size + 1);
    }
    config.num_blocks = indptr.back();
    const auto storage = block_storage<Element, layout, hip::device_allocator>::create(config).value();
    fill<Element>(storage.view(), storage.bytes(), stream_.get());
    auto use = hip::attention_use{};
    use.max_rows = static_cast<std::int32_t>(asked.lengths.size());
    const auto measure_use = [&](const attention_lists& lists) {
      use.lists = lists.kind;
      const auto shape =
          hip::attention_shape_on<Element>(0, storage.view(), heads.query_heads / heads.kv_heads, use).value();
      auto batch = attention_batch{indptr, {}, last_block_len, {}};
      batch.lists = lists;
      return measure<Element>(storage.view(), shape, batch, use.max_rows);
    };
    const auto all = measure_use({});
    auto random = std::mt19937(5);
    for (const auto percent : listed_percents) {
      auto list_indptr = std::vector<std::int32_t>{0};
      auto blocks = std::vector<std::int32_t>{};
      for (auto row = std::size_t{0}; row < asked.lengths.size(); ++row) {
        auto positions = std::vector<std::int32_t>(static_cast<std::size_t>(indptr[row + 1] - indptr[row]));
        std::iota(positions.begin(), positions.end(), 0);
        const auto listed = (std::ssize(positions) * percent + 99) / 100;
        for (auto list = 0; list < (kind == listed_blocks::of_heads ? heads.kv_heads : 1); ++list) {
          std::ranges::shuffle(positions, random);
          blocks.insert(blocks.end(), positions.begin(), positions.begin() + listed);
        }
        list_indptr.push_back(static_cast<std::int32_t>(blocks.size()));
      }
      print<Element>(asked, kind, percent, measure_use({kind, list_indptr, blocks}), all.call);
    }
  }

 private:
  struct times {
    double call;
    double in_graph;
    double plan;
    std::size_t num_prefixes;
  };

  [[nodiscard]] static std::vector<block_id> shuffled_blocks(std::int32_t num_blocks) {
    auto blocks = std::vector<block_id>{};
    for (auto i = 0; i < num_blocks; ++i) {
      blocks.push_back(block_id{i});
    }
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
    return blocks;
  }

  /// Measures attention. Without `indices`, `planned` gets all blocks in random order.
  template <class Element>
  [[nodiscard]] times measure(const block_storage_view& view, const attention_shape& shape, attention_batch planned,
                              std::int32_t num_query_tokens, bool for_graph = false) {
    const auto blocks = planned.indices.empty() ? shuffled_blocks(view.num_blocks)
                                                : std::vector(planned.indices.begin(), planned.indices.end());
    planned.indices = blocks;
    const auto listed = device_array<std::int32_t>(std::max<std::size_t>(planned.lists.blocks.size(), 1));
    if (!planned.lists.blocks.empty()) {
      listed.upload(planned.lists.blocks.data(), stream_.get());
      planned.lists.blocks = {listed.data(), listed.size()};
    }
    auto planner = attention_planner(shape);
    const auto start = std::chrono::steady_clock::now();
    planner.plan(planned).value();
    const auto plan_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

    const auto query_heads = shape.num_kv_heads * shape.group_size;
    const auto words = device_array<std::byte>(planner.bytes().size());
    const auto indices = device_array<block_id>(blocks.size());
    const auto workspace = device_array<std::byte>(attention_workspace_bytes(shape, view.dim_of_values()));
    const auto num_heads = static_cast<std::size_t>(num_query_tokens) * static_cast<std::size_t>(query_heads);
    auto numbers = std::vector<std::uint16_t>(num_heads * static_cast<std::size_t>(view.head_dim));
    const auto queries = device_array<std::uint16_t>(numbers.size());
    const auto output = device_array<std::uint16_t>(num_heads * static_cast<std::size_t>(view.dim_of_values()));
    words.upload(planner.bytes().data(), stream_.get());
    indices.upload(blocks.data(), stream_.get());
    auto random = std::mt19937(4);
    std::ranges::generate(numbers, [&] { return bfloat16::encode(static_cast<float>(random() % 2001) / 1000 - 1, 1); });
    queries.upload(numbers.data(), stream_.get());

    auto asked = planned;
    asked.indices = {indices.data(), indices.size()};
    asked.plan = {shape, words.data(), workspace.data(), for_graph || planner.num_prefixes() != 0};
    const auto rows_of = [&](std::uint16_t* data, std::int32_t dim) {
      return token_rows<std::uint16_t>{data, std::int64_t{query_heads} * dim, dim, num_query_tokens, query_heads, dim};
    };
    const auto from = rows_of(queries.data(), view.head_dim);
    const auto to = attention_output<std::uint16_t>{rows_of(output.data(), view.dim_of_values()), nullptr};
    const auto attend = [&](runtime::stream stream) {
      backend_.template attend<Element, bfloat16>(view, 0, asked, from, to, {}, stream).value();
    };
    const auto seconds = timer_.measure(stream_.get(), [&] { attend(stream_.get()); });
    const auto in_graph = timer_.measure_in_graph(stream_.get(), attend);
    stream_.synchronize().value();
    return {seconds, in_graph, plan_seconds, planner.num_prefixes()};
  }

  template <class Element>
  void print(const product_shape& asked, bool expanded, const times& measured) {
    const auto rate = asked.num_operations() / measured.call;
    const auto label = std::string(Element::name) + (expanded ? ", expanded" : "");
    char line[512];
    std::snprintf(line, sizeof(line),
                  R"({"library": "pagedkv", "shape": "%s", "query_heads": %d, "kv_heads": %d, "element": "%s", )"
                  R"("expanded": %s, "key_dim": %d, "value_dim": %d, )"
                  R"("microseconds": %.2f, "graph_microseconds": %.2f, "operations_per_second": %.4g, )"
                  R"("plan_microseconds": %.2f, )",
                  asked.name.c_str(), asked.query_heads, asked.group.num_kv_heads, std::string(Element::name).c_str(),
                  expanded ? "true" : "false", asked.group.key_dim, asked.group.value_dim, measured.call * 1e6,
                  measured.in_graph * 1e6, rate, measured.plan * 1e6);
    products_.add(line + json_list("lengths", asked.lengths) + ", " + json_list("queries", asked.queries) + "}");
    ++num_reports_;
    if (on_device) {
      std::printf("| %-25s | %3d/%-2d | %-21s | %8.1f | %8.1f | %5.1f | %5.1f |\n", asked.name.c_str(),
                  asked.query_heads, asked.group.num_kv_heads, label.c_str(), measured.call * 1e6,
                  measured.in_graph * 1e6, rate / 1e12, measured.plan * 1e6);
    } else {
      std::printf("ok %d - %s, %d/%d heads, %s\n", num_reports_, asked.name.c_str(), asked.query_heads,
                  asked.group.num_kv_heads, label.c_str());
    }
    std::fflush(stdout);
  }

  /// `flat`: seconds of the flat plan.
  template <class Element>
  void print(const prefix_shape& asked, const head_shape& heads, const char* plan, const times& measured, double flat) {
    char line[512];
    std::snprintf(
        line, sizeof(line),
        R"({"library": "pagedkv", "shape": "%s", "query_heads": %d, "kv_heads": %d, "element": "%s", "plan": "%s", )"
        R"("prefixes": %zu, "microseconds": %.2f, "speed_of_flat": %.4f, "plan_microseconds": %.2f})",
        asked.name.c_str(), heads.query_heads, heads.kv_heads, std::string(Element::name).c_str(), plan,
        measured.num_prefixes, measured.call * 1e6, flat / measured.call, measured.plan * 1e6);
    prefixes_.add(line);
    ++num_reports_;
    if (on_device) {
      std::printf("| %-18s | %2d/%-2d | %-8s | %-18s | %2zu | %8.1f | %6.3f | %5.1f |\n", asked.name.c_str(),
                  heads.query_heads, heads.kv_heads, std::string(Element::name).c_str(), plan, measured.num_prefixes,
                  measured.call * 1e6, flat / measured.call, measured.plan * 1e6);
    } else {
      std::printf("ok %d - %s, %d/%d heads, %s, %s\n", num_reports_, asked.name.c_str(), heads.query_heads,
                  heads.kv_heads, std::string(Element::name).c_str(), plan);
    }
    std::fflush(stdout);
  }

  /// `all`: seconds of the read of all blocks.
  template <class Element>
  void print(const decode_shape& asked, listed_blocks kind, int percent, const times& measured, double all) {
    const auto* const lists = kind == listed_blocks::of_heads ? "KV heads" : "rows";
    char line[512];
    std::snprintf(line, sizeof(line),
                  R"({"library": "pagedkv", "shape": "%s", "query_heads": %d, "kv_heads": %d, "element": "%s", )"
                  R"("lists": "%s", "percent": %d, "all_microseconds": %.2f, "microseconds": %.2f, )"
                  R"("share_of_all": %.4f})",
                  asked.name.c_str(), asked.heads.query_heads, asked.heads.kv_heads, std::string(Element::name).c_str(),
                  lists, percent, all * 1e6, measured.call * 1e6, measured.call / all);
    lists_.add(line);
    ++num_reports_;
    if (on_device) {
      std::printf("| %-11s | %2d/%-2d | %-8s | %-8s | %3d | %8.1f | %8.1f | %5.3f |\n", asked.name.c_str(),
                  asked.heads.query_heads, asked.heads.kv_heads, std::string(Element::name).c_str(), lists, percent,
                  all * 1e6, measured.call * 1e6, measured.call / all);
    } else {
      std::printf("ok %d - %s, %d/%d heads, %s, lists of %s, %d %%\n", num_reports_, asked.name.c_str(),
                  asked.heads.query_heads, asked.heads.kv_heads, std::string(Element::name).c_str(), lists, percent);
    }
    std::fflush(stdout);
  }

  template <class Element>
  void print(const decode_shape& asked, const times& measured, double rate) {
    const auto& heads = asked.heads;
    char line[512];
    std::snprintf(
        line, sizeof(line),
        R"({"library": "pagedkv", "shape": "%s", "query_heads": %d, "kv_heads": %d, "head_dim": %d, "block_size": %d, )"
        R"("element": "%s", "microseconds": %.2f, "graph_microseconds": %.2f, "bytes_per_second": %.4g, )"
        R"("share_of_ceiling": %.4f, "plan_microseconds": %.2f)",
        asked.name.c_str(), heads.query_heads, heads.kv_heads, asked.head_dim, asked.block_size,
        std::string(Element::name).c_str(), measured.call * 1e6, measured.in_graph * 1e6, rate, rate / ceiling_,
        measured.plan * 1e6);
    results_.add(line + (", " + json_list("lengths", asked.lengths)) + "}");
    ++num_reports_;
    if (on_device) {
      std::printf("| %-11s | %2d/%-2d | %3d | %2d | %-11s | %8.1f | %8.1f | %5.0f | %5.3f | %5.1f |\n",
                  asked.name.c_str(), heads.query_heads, heads.kv_heads, asked.head_dim, asked.block_size,
                  std::string(Element::name).c_str(), measured.call * 1e6, measured.in_graph * 1e6, rate / 1e9,
                  rate / ceiling_, measured.plan * 1e6);
    } else {
      std::printf("ok %d - %s, %d/%d heads of %d numbers, blocks of %d, %s\n", num_reports_, asked.name.c_str(),
                  heads.query_heads, heads.kv_heads, asked.head_dim, asked.block_size,
                  std::string(Element::name).c_str());
    }
    std::fflush(stdout);
  }

  hip_backend backend_;
  hip::stream stream_;
  device_bench::timer timer_;
  double ceiling_ = 0;
  int num_reports_ = 0;
  device_bench::records results_;
  device_bench::records products_;
  device_bench::records prefixes_;
  device_bench::records lists_;
};

void report_lists(bench& b, const std::vector<head_shape>& heads) {
  if (on_device) {
    std::printf(
        "\n| batch | heads | element | lists of | %% of the blocks | all blocks, us | us | of that time |\n"
        "|---|---|---|---|---|---|---|---|\n");
  }
  for (const auto& shape : make_shapes()) {
    for (const auto kind : {listed_blocks::of_rows, listed_blocks::of_heads}) {
      const auto asked = decode_shape{shape.name, heads[1], head_dim, block_size, {}, shape.lengths};
      b.report_lists<bfloat16>(asked, kind);
      b.report_lists<int8>(asked, kind);
    }
  }
}

void report_prefixes(bench& b, const std::vector<head_shape>& heads) {
  if (on_device) {
    std::printf(
        "\n| batch x (shared + own) | heads | element | plan | prefixes | us | speed of flat | plan us |\n"
        "|---|---|---|---|---|---|---|---|\n");
  }
  for (const auto& shape : make_prefix_shapes()) {
    for (const auto& each : heads) {
      b.report<bfloat16>(shape, each);
    }
    b.report<int8>(shape, heads.back());
  }
}

void print_header() {
  if (on_device) {
    std::printf(
        "| batch       | heads | dim | block | element     |       us | in graph |  GB/s | share |  plan |\n"
        "|---|---|---|---|---|---|---|---|---|---|\n");
  }
}

void report_shapes(bench& b, const std::vector<decode_shape>& shapes) {
  print_header();
  for (const auto& shape : shapes) {
    for (const auto& element : shape.elements) {
      if (element == bfloat16::name) {
        b.report<bfloat16>(shape);
      } else if (element == int8::name) {
        b.report<int8>(shape);
      } else {
        b.report<float8_e4m3>(shape);
      }
    }
  }
}

void report_products(bench& b, bool with_latent, bool with_prompts) {
  if (on_device) {
    std::printf("\n| batch | heads | element | us | in a graph | TFLOP/s | plan |\n|---|---|---|---|---|---|---|\n");
  }
  for (const auto& shape : make_product_shapes()) {
    const auto latent = shape.group.kind == group_kind::latent;
    if (latent ? !with_latent : !with_prompts) {
      continue;
    }
    b.report<bfloat16>(shape);
    if (latent) {
      b.report<float8_latent>(shape);
      continue;
    }
    if (std::max(shape.group.key_dim, shape.group.value_dim) <= head_dim) {  // plain arithmetic reads longer rows
      b.report<int8>(shape);
      b.report<float8_e4m3>(shape);
    }
    b.report<int8>(shape, true);
    b.report<float8_e4m3>(shape, true);
  }
}

void report_all(bench& b, const std::vector<head_shape>& heads) {
  print_header();
  for (const auto& shape : make_shapes()) {
    for (const auto& each : heads) {
      const auto asked = decode_shape{shape.name, each, head_dim, block_size, {}, shape.lengths};
      b.report<bfloat16>(asked);
      b.report<int8>(asked);
      b.report<float8_e4m3>(asked);
    }
  }
  report_products(b, true, true);
  report_prefixes(b, heads);
  report_lists(b, heads);
}

void run(const std::vector<std::string>& arguments) {
  const auto only_latent = !arguments.empty() && arguments[0] == "--latent";
  const auto only_prompts = !arguments.empty() && arguments[0] == "--prompts";
  const auto only_prefixes = !arguments.empty() && arguments[0] == "--prefixes";
  const auto only_lists = !arguments.empty() && arguments[0] == "--lists";
  const auto only_shapes = arguments.size() > 1 && arguments[0] == "--shapes";
  const auto shapes = only_shapes ? read_shapes(arguments[1]) : std::vector<decode_shape>{};
  const auto heads =
      on_device ? std::vector<head_shape>{{32, 32}, {32, 8}, {64, 8}} : std::vector<head_shape>{{2, 2}, {8, 2}};
  auto b = bench();
  b.measure_ceiling();
  if (on_device) {
    std::printf("read ceiling: %.0f GB/s\n\n", b.read_ceiling() / 1e9);
  } else {
    std::printf("# built for the host: no bandwidth, only whether every shape runs\n");
  }
  if (only_latent) {
    report_products(b, true, false);
  } else if (only_prompts) {
    report_products(b, false, true);
  } else if (only_prefixes) {
    report_prefixes(b, heads);
  } else if (only_lists) {
    report_lists(b, heads);
  } else if (only_shapes) {
    report_shapes(b, shapes);
  } else {
    report_all(b, heads);
  }
  if (!on_device) {
    std::printf("1..%d\n", b.num_reports());
  }
  const auto options =
      std::size_t{only_shapes ? 2U : (only_latent || only_prompts || only_prefixes || only_lists ? 1U : 0U)};
  if (arguments.size() > options) {
    device_bench::write_file(arguments[options], b.json());
  }
}

}  // namespace attention_bench

int main(int argc, char** argv) {
  using namespace attention_bench;
  if (const auto found = hip::check_device(0); !found) {
    std::fprintf(stderr, "%s\n", found.error().message().c_str());
    return 77;
  }
  try {
    run({argv + 1, argv + argc});
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
