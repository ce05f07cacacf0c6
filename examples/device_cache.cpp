// A cache in a device's memory, which kernels fill and read on one stream. Without a device, it prints a message and
// uses the host. Built by hipcc or nvcc it runs on the GPU; by any other compiler, on the host executor.

#include <pagedkv/device/allocators.hpp>
#include <pagedkv/device/backend.hpp>
#include <pagedkv/device/stream.hpp>
#include <pagedkv/pagedkv.hpp>

#include <cstdio>
#include <memory>
#include <numeric>
#include <vector>

namespace {

constexpr auto num_tokens = std::size_t{64};
constexpr auto numbers_per_token = std::size_t{2 * 64};

/// Zeros in memory that the program and the cache's backend can access.
template <class T, pagedkv::allocator Allocator>
class array {
 public:
  explicit array(std::size_t size)
      : size_(size), data_(reinterpret_cast<T*>(memory_.allocate(size * sizeof(T), alignof(T)))) {
    std::uninitialized_value_construct_n(data_, size);
  }
  array(const array&) = delete;
  array& operator=(const array&) = delete;
  ~array() { memory_.deallocate(reinterpret_cast<std::byte*>(data_), size_ * sizeof(T)); }

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::span<T> values() const { return {data_, size_}; }

 private:
  Allocator memory_;
  std::size_t size_;
  T* data_;
};

/// Writes a prompt's keys and values, finds them again under a second sequence, and reads them back.
template <class Shared, class Cache>
int serve(Cache& cache, typename Cache::stream_type stream) {
  auto prompt = std::vector<pagedkv::token>(num_tokens);
  std::iota(prompt.begin(), prompt.end(), pagedkv::token{1});
  const auto slots = array<pagedkv::slot, Shared>(num_tokens);
  const auto written = array<float, Shared>(num_tokens * numbers_per_token);
  const auto read = array<float, Shared>(num_tokens * numbers_per_token);
  for (auto i = std::size_t{0}; i < written.values().size(); ++i) {
    written.values()[i] = static_cast<float>(i / numbers_per_token);
  }

  const auto first = cache.create_sequence(prompt).value().id;
  cache.slot_mapping(first, 0, slots.values()).value();
  const auto rows = pagedkv::token_rows<const float>{written.data(), numbers_per_token, 64, num_tokens, 2, 64};
  cache.write(0, slots.values(), rows, rows, stream).value();
  cache.commit(first, num_tokens).value();
  cache.release(first).value();

  const auto second = cache.create_sequence(prompt).value();
  cache.slot_mapping(second.id, 0, slots.values().first(static_cast<std::size_t>(second.num_cached_tokens))).value();
  const auto back = pagedkv::token_rows<float>{read.data(), numbers_per_token, 64, num_tokens, 2, 64};
  cache.read(0, slots.values().first(static_cast<std::size_t>(second.num_cached_tokens)), back, back, stream).value();
  cache.backend().synchronize(stream).value();
  std::printf("%d of %d tokens were cached; the key of token 40 is %g\n", static_cast<int>(second.num_cached_tokens),
              static_cast<int>(num_tokens), static_cast<double>(read.values()[40 * numbers_per_token]));
  return read.values()[40 * numbers_per_token] == 40 ? 0 : 1;
}

}  // namespace

int main() {
  const auto config = pagedkv::cache_config{.block_size = 16, .num_blocks = 64, .num_kv_heads = 2, .head_dim = 64};
  if (const auto device = pagedkv::hip::check_device(0); !device) {
    std::printf("%s; so the host serves\n", device.error().message().c_str());
    auto cache = pagedkv::kv_cache<pagedkv::float16>(config);
    return serve<pagedkv::host_allocator>(cache, {});
  }
  const auto stream = pagedkv::hip::stream();
  auto cache = pagedkv::kv_cache<pagedkv::hip_backend>(config);
  return serve<pagedkv::hip::pinned_allocator>(cache, stream.get());
}
