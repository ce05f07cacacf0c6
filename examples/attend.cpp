// Attention over the blocks of a cache: two prompts in one batch, then a token of each per step. On the host, and by a
// plan on a device: a GPU if the program is linked with kernels for it, otherwise the host executor's. For a host
// compiler, not nvcc. See docs/attention.md.

#include <pagedkv/device/allocators.hpp>
#include <pagedkv/device/backend.hpp>
#include <pagedkv/device/stream.hpp>
#include <pagedkv/host/attend.hpp>
#include <pagedkv/host/thread_pool.hpp>
#include <pagedkv/pagedkv.hpp>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

namespace {

namespace hip = pagedkv::hip;
using pagedkv::bfloat16;
using pagedkv::float32;

constexpr auto num_kv_heads = std::int32_t{2};
constexpr auto group_size = std::int32_t{4};  // query heads of each KV head
constexpr auto num_heads = num_kv_heads * group_size;
constexpr auto head_dim = std::int32_t{64};
constexpr auto max_rows = std::int32_t{8};
constexpr auto max_tokens = std::int32_t{128};  // computed in a step

/// Zeros in memory that host and device access.
template <class T>
class array {
 public:
  explicit array(std::size_t size)
      : size_(size), data_(reinterpret_cast<T*>(memory_.allocate(size * sizeof(T), alignof(std::max_align_t)))) {
    std::uninitialized_value_construct_n(data_, size);
  }
  array(const array&) = delete;
  array& operator=(const array&) = delete;
  ~array() { memory_.deallocate(reinterpret_cast<std::byte*>(data_), size_ * sizeof(T)); }

  [[nodiscard]] T* data() const { return data_; }

 private:
  hip::pinned_allocator memory_;
  std::size_t size_;
  T* data_;
};

/// On the host, a batch is all that attention needs.
struct without_plan {
  static pagedkv::attention_batch add_to(const pagedkv::attention_batch& batch) { return batch; }
};

/// A plan for batches of one use, and the memory in which a device reads it. One serves all layers of a group.
class device_plan {
 public:
  device_plan(const pagedkv::block_storage_view& view, const hip::attention_use& use)
      : shape_(hip::attention_shape_on<bfloat16>(0, view, group_size, use).value()),
        planner_(shape_),
        words_(planner_.bytes().size()),
        workspace_(pagedkv::attention_workspace_bytes(shape_, view.dim_of_values())),
        blocks_(1024) {}

  /// Once a step, when the device has done the step before.
  pagedkv::attention_batch add_to(pagedkv::attention_batch batch) {
    planner_.update(batch).value();  // reads the batch on the host
    std::ranges::copy(planner_.bytes(), words_.data());
    std::ranges::copy(batch.indices, blocks_.data());
    batch.indices = {blocks_.data(), batch.indices.size()};  // the device reads the ids of blocks
    batch.plan = {shape_, words_.data(), workspace_.data()};
    return batch;
  }

 private:
  pagedkv::attention_shape shape_;
  pagedkv::attention_planner planner_;
  array<std::byte> words_;
  array<std::byte> workspace_;
  array<pagedkv::block_id> blocks_;
};

/// A model of one layer. Keys are zeros, so a query weighs all tokens that it sees equally; values are the tokens.
template <class Cache>
class model {
 public:
  model(Cache& cache, typename Cache::stream_type stream) : cache_(cache), stream_(stream) {}

  void add_sequence(const std::vector<pagedkv::token>& prompt) {
    const auto made = cache_.create_sequence(prompt).value();
    sequences_.push_back(made.id);
    lengths_.push_back(made.num_cached_tokens);
    tokens_.push_back(prompt);
  }

  /// Appends a token to every sequence.
  void append(pagedkv::token next) {
    for (auto i = std::size_t{0}; i < sequences_.size(); ++i) {
      cache_.append(sequences_[i], next).value();
      tokens_[i].push_back(next);
    }
  }

  /// Computes the new tokens of every sequence. Prints the output of each one's last token.
  template <class Plan>
  void step(Plan& plan) {
    auto starts = std::vector<std::int32_t>{0};  // of the queries of each row
    for (auto i = std::size_t{0}; i < sequences_.size(); ++i) {
      starts.push_back(starts.back() + write_new_tokens(i));
    }
    cache_.update(tables_, sequences_).value();
    const auto batch = plan.add_to({tables_.indptr(), tables_.indices(), tables_.last_block_len(), starts});
    const auto layer = 0;
    const auto stride = std::int64_t{num_heads} * head_dim;  // from a token to the next
    const auto queries =
        pagedkv::token_rows<const float>{queries_.data(), stride, head_dim, starts.back(), num_heads, head_dim};
    const auto output =
        pagedkv::token_rows<float>{output_.data(), stride, head_dim, starts.back(), num_heads, head_dim};
    cache_.attend(layer, batch, queries, {output, nullptr}, {}, stream_).value();
    cache_.backend().synchronize(stream_).value();
    for (auto i = std::size_t{0}; i < sequences_.size(); ++i) {
      std::printf("%s%.4g", i == 0 ? "" : " ", static_cast<double>(output_.data()[(starts[i + 1] - 1) * stride]));
    }
    std::printf("\n");
  }

 private:
  std::int32_t write_new_tokens(std::size_t i) {
    const auto first = static_cast<std::size_t>(lengths_[i]);
    const auto count = tokens_[i].size() - first;
    constexpr auto numbers = std::size_t{num_kv_heads} * head_dim;
    cache_.slot_mapping(sequences_[i], lengths_[i], std::span(slots_.data(), count)).value();
    for (auto t = std::size_t{0}; t < count; ++t) {
      std::fill_n(values_.data() + t * numbers, numbers, static_cast<float>(tokens_[i][first + t]));
    }
    const auto rows = [](const float* from) {
      return pagedkv::token_rows<const float>{from, numbers, head_dim, max_tokens, num_kv_heads, head_dim};
    };
    cache_.write(0, std::span(slots_.data(), count), rows(keys_.data()), rows(values_.data()), stream_).value();
    cache_.backend().synchronize(stream_).value();  // before the next sequence overwrites the values
    lengths_[i] = static_cast<std::int64_t>(tokens_[i].size());
    cache_.commit(sequences_[i], lengths_[i]).value();
    return static_cast<std::int32_t>(count);
  }

  Cache& cache_;
  typename Cache::stream_type stream_;
  std::vector<pagedkv::sequence_id> sequences_;
  std::vector<std::int64_t> lengths_;  // tokens that have K and V
  std::vector<std::vector<pagedkv::token>> tokens_;
  pagedkv::compressed_batch tables_{max_rows, 1024};
  array<pagedkv::slot> slots_{max_tokens};
  array<float> keys_{std::size_t{max_tokens} * num_kv_heads * head_dim};
  array<float> values_{std::size_t{max_tokens} * num_kv_heads * head_dim};
  array<float> queries_{std::size_t{max_tokens} * num_heads * head_dim};
  array<float> output_{std::size_t{max_tokens} * num_heads * head_dim};
};

/// The numbers of tokens 1 to 40, and 1 to 20, have the means 20.5 and 10.5; then 0 follows three times.
template <class Cache, class Plan>
void generate(Cache& cache, typename Cache::stream_type stream, Plan& for_prompts, Plan& for_decoding) {
  auto running = model<Cache>(cache, stream);
  for (const auto length : {40, 20}) {
    auto prompt = std::vector<pagedkv::token>(static_cast<std::size_t>(length));
    std::iota(prompt.begin(), prompt.end(), pagedkv::token{1});
    running.add_sequence(prompt);
  }
  running.step(for_prompts);
  for (auto i = 0; i < 3; ++i) {
    running.append(0);
    running.step(for_decoding);
  }
}

}  // namespace

int main() {
  const auto config =
      pagedkv::cache_config{.block_size = 16, .num_blocks = 64, .num_kv_heads = num_kv_heads, .head_dim = head_dim};
  auto threads = pagedkv::host::thread_pool();
  auto on_host = pagedkv::kv_cache<bfloat16>(config);
  auto none = without_plan{};
  generate(on_host, pagedkv::host_backend::stream_type{threads}, none, none);

  if (hip::check_device(0)) {
    const auto stream = hip::stream();
    auto on_device = pagedkv::kv_cache<bfloat16, pagedkv::hip_backend>(config);
    auto for_prompts = device_plan(on_device.view(), {.max_rows = max_rows, .max_query_tokens = max_tokens});
    auto for_decoding = device_plan(on_device.view(), {.max_rows = max_rows});
    generate(on_device, stream.get(), for_prompts, for_decoding);
  }
  return 0;
}
