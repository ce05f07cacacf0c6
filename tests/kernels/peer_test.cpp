#include "../support/small_config.hpp"
#include "target.hpp"

#include <pagedkv/device/allocators.hpp>
#include <pagedkv/device/backend.hpp>
#include <pagedkv/device/device.hpp>
#include <pagedkv/device/stream.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/tier/hand_over.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <numeric>
#include <vector>

namespace peer_test {

using namespace pagedkv;
using namespace pagedkv::test;

using by_layer = kv_cache<float32, hip_backend>;
using by_block = kv_cache<float32, hip_backend, nhd_block_major>;

constexpr auto row_size = std::size_t{2 * 8};

/// Device memory with numbers.
class device_numbers {
 public:
  device_numbers(int device, const std::vector<float>& numbers) : memory_(device), size_(numbers.size() * 4) {
    data_ = memory_.allocate(size_, 256);
    const auto scope = hip::device_scope{device};
    hip::require(runtime::copy_async(data_, numbers.data(), size_, runtime::host_to_device, {}), "the copy of numbers");
    hip::require(runtime::synchronize_stream({}), "the wait for a stream");
  }
  device_numbers(const device_numbers&) = delete;
  device_numbers& operator=(const device_numbers&) = delete;
  ~device_numbers() { memory_.deallocate(data_, size_); }

  [[nodiscard]] token_rows<float> rows(std::size_t num_tokens) const {
    return {reinterpret_cast<float*>(data_), row_size, 8, static_cast<std::int64_t>(num_tokens), 2, 8};
  }
  [[nodiscard]] std::vector<float> read() const {
    auto numbers = std::vector<float>(size_ / 4);
    hip::require(runtime::copy_async(numbers.data(), data_, size_, runtime::device_to_host, {}), "the copy of numbers");
    hip::require(runtime::synchronize_stream({}), "the wait for a stream");
    return numbers;
  }
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  hip::device_allocator memory_;
  std::size_t size_;
  std::byte* data_;
};

/// Slots in device memory.
template <class Cache>
device_numbers slots_of(int device, const Cache& cache, sequence_id id, std::size_t num_tokens) {
  auto slots = std::vector<slot>(num_tokens);
  REQUIRE(cache.slot_mapping(id, 0, slots));
  auto words = std::vector<float>(2 * num_tokens);
  std::memcpy(words.data(), slots.data(), num_tokens * sizeof(slot));
  return {device, words};
}

std::span<const slot> as_slots(const device_numbers& numbers, std::size_t size) {
  return {reinterpret_cast<const slot*>(numbers.data()), size};
}

TEMPLATE_TEST_CASE("A sequence goes on on another device", "[hip][peer]", by_layer, by_block) {
  if (const auto connected = hip::connect_peer(1, 0); !connected) {
    SKIP(connected.error().message());
  }
  auto first = TestType{small_config(40), hip::device_allocator{0}, hip_backend{0}};
  auto second = TestType{small_config(40), hip::device_allocator{1}, hip_backend{1}};
  auto tokens = std::vector<token>(90);
  std::iota(tokens.begin(), tokens.end(), 1);
  auto numbers = std::vector<float>(tokens.size() * row_size);
  std::iota(numbers.begin(), numbers.end(), 1.0F);
  const auto from = first.create_sequence(tokens).value().id;
  {
    const auto scope = hip::device_scope{0};
    const auto stream = hip::stream{0};
    const auto rows = device_numbers{0, numbers};
    const auto slots = slots_of(0, first, from, tokens.size());
    for (auto layer = 0; layer < 3; ++layer) {
      REQUIRE(first.write(layer, as_slots(slots, tokens.size()), rows.rows(tokens.size()), rows.rows(tokens.size()),
                          stream.get()));
    }
    REQUIRE(first.backend().synchronize(stream.get()));
    REQUIRE(first.commit(from, std::ssize(tokens)));
  }
  const auto scope = hip::device_scope{1};
  const auto stream = hip::stream{1};
  const auto made = hand_over(first, from, second, {}, stream.get());
  REQUIRE(made);
  const auto slots = slots_of(1, second, made->id, tokens.size());
  for (auto layer = 0; layer < 3; ++layer) {
    const auto keys = device_numbers{1, std::vector<float>(numbers.size())};
    const auto values = device_numbers{1, std::vector<float>(numbers.size())};
    REQUIRE(second.read(layer, as_slots(slots, tokens.size()), keys.rows(tokens.size()), values.rows(tokens.size()),
                        stream.get()));
    REQUIRE(second.backend().synchronize(stream.get()));
    CHECK(keys.read() == numbers);
    CHECK(values.read() == numbers);
  }
  CHECK(first.release(from));
  CHECK(second.check_invariants().empty());
}

TEST_CASE("Devices that there are not have no peers", "[hip][peer]") {
  const auto target = require_target<hip_target<0>>();
  CHECK_FALSE(hip::connect_peer(0, 0));
  CHECK_FALSE(hip::connect_peer(0, 1'000));
  CHECK_FALSE(hip::connect_peer(-1, 0));
}

#if !defined(__HIPCC__) && !defined(__CUDACC__)
// On devices, another process has to open the handle.
TEST_CASE("A handle names memory until it is closed", "[hip][peer]") {
  auto memory = hip::device_allocator{};
  auto* const data = memory.allocate(4096, 256);
  const auto handle = hip::share_memory(data).value();
  {
    auto opened = hip::shared_memory::open(handle).value();
    const auto moved = std::move(opened);
    CHECK(moved.data() == data);
  }
  memory.deallocate(data, 4096);
}
#endif

}  // namespace peer_test
