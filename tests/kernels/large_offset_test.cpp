#include "../support/printing.hpp"
#include "reference.hpp"
#include "target.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#if defined(__HIPCC__) || defined(__CUDACC__)
constexpr auto memory_is_sparse = false;
#else
constexpr auto memory_is_sparse = true;
#endif

namespace large_offset_test {

using namespace pagedkv;
using namespace pagedkv::test;

constexpr auto limit = std::int64_t{1} << 31;

/// On the executor, device memory costs only the pages that are touched; a real device must have all of it.
template <class T>
class sparse_array {
 public:
  sparse_array(const hip_target<0>& target, std::int64_t size)
      : target_(target), data_(static_cast<T*>(target.allocate(static_cast<std::size_t>(size) * sizeof(T)))) {}
  sparse_array(const sparse_array&) = delete;
  sparse_array& operator=(const sparse_array&) = delete;
  ~sparse_array() { target_.release(data_); }

  [[nodiscard]] T* data() const { return data_; }

 private:
  const hip_target<0>& target_;
  T* data_;
};

void skip_unless_memory_is_sparse() {
  if (!memory_is_sparse) {
    SKIP("needs memory that costs only what is touched");
  }
}

/// Appends distinguishable rows to `slots`, gathers them, and compares.
template <class Element>
void check_round_trip(hip_target<0>& target, const block_storage_view& view, std::int32_t layer,
                      const std::vector<slot>& slots) {
  const auto tokens = static_cast<std::int64_t>(slots.size());
  auto keys = rows_of<float32>(tokens, view.num_kv_heads, view.head_dim, 0);
  for (auto i = std::size_t{0}; i < keys.numbers.size(); ++i) {
    keys.numbers[i] = static_cast<float>(i % 127) * (i % 3 == 0 ? 1.0F : -1.0F);
  }
  for (auto token = std::int64_t{0}; token < tokens; ++token) {
    for (auto head = 0; head < view.num_kv_heads; ++head) {
      *keys.row(token, head) = 127.0F;  // the scale of int8 is 1, so that small whole numbers are exact
    }
  }
  const auto mapping = target_array<slot, hip_target<0>>(target, slots);
  const auto in = target_array<float, hip_target<0>>(target, keys.numbers);
  const auto key_out = target_array<float, hip_target<0>>(target, std::vector<float>(keys.numbers.size()));
  const auto value_out = target_array<float, hip_target<0>>(target, std::vector<float>(keys.numbers.size()));
  const float* const data = in.data();
  const auto span = std::span<const slot>(mapping.data(), mapping.size());
  REQUIRE(target.backend.append<Element>(view, layer, span, keys.view(data), keys.view(data), target.stream()));
  REQUIRE(target.backend.gather<Element>(view, layer, span, keys.view(key_out.data()), keys.view(value_out.data()),
                                         target.stream()));
  REQUIRE(target.backend.synchronize(target.stream()));
  CHECK(key_out.values() == keys.numbers);
  CHECK(value_out.values() == keys.numbers);
}

template <class Element, class Layout>
struct combination {
  using element = Element;
  using layout_type = Layout;
};

TEMPLATE_TEST_CASE("Storage of more than 2^31 elements is addressed to its end", "[large]",
                   (combination<float32, nhd_by_layer>), (combination<float16, hnd_by_block>),
                   (combination<bfloat16, nhd_by_block>), (combination<int8, hnd_by_layer>)) {
  skip_unless_memory_is_sparse();
  using element = typename TestType::element;
  auto target = require_target<hip_target<0>>();
  // 2 * 16 * 8 * 128 numbers per layer of a block make 2^31 in 65,536 blocks: more in each layer, and twice that in
  // all.
  const auto config = make_config(16, 70000, 2, 8, 128);
  const auto layout = plan<element, typename TestType::layout_type>(config);
  REQUIRE(layout.bytes / static_cast<std::int64_t>(sizeof(typename element::storage)) > 2 * limit);
  const auto storage = sparse_array<std::byte>(target, layout.bytes);
  const auto view = at(layout.view, storage.data());
  const auto last = std::int64_t{70000} * 16 - 1;
  for (const auto layer : {0, 1}) {
    check_round_trip<element>(target, view, layer, {slot{0}, slot{last}, slot{last - 16}, slot{15}, slot{last / 2}});
  }

  const auto pairs = std::vector<block_pair>{{69999, 1}, {0, 69990}};
  REQUIRE(target.backend.copy_blocks(view, pairs, target.stream()));
  REQUIRE(target.backend.move_blocks(view, std::vector<block_pair>{{1, 69999}, {69999, 1}}, target.stream()));
  REQUIRE(target.backend.synchronize(target.stream()));
  const auto bytes = static_cast<std::size_t>(view.layer_bytes());
  for (const auto layer : {0, 1}) {
    CHECK(std::memcmp(view.block(layer, 69999), view.block(layer, 1), bytes) == 0);
    CHECK(std::memcmp(view.block(layer, 0), view.block(layer, 69990), bytes) == 0);
  }
}

TEST_CASE("Scales beyond 2^31 of them are addressed", "[large]") {
  skip_unless_memory_is_sparse();
  auto target = require_target<hip_target<0>>();
  const auto config = make_config(256, 1 << 20, 1, 8, 8);
  const auto layout = plan<int8, nhd_by_layer>(config);
  REQUIRE(std::int64_t{256} * (1 << 20) * 8 >= limit);
  const auto storage = sparse_array<std::byte>(target, layout.bytes);
  const auto last = std::int64_t{256} * (1 << 20) - 1;
  check_round_trip<int8>(target, at(layout.view, storage.data()), 0, {slot{last}, slot{0}, slot{last - 256}});
}

TEST_CASE("Rows of a caller more than 2^31 numbers apart are read and written", "[large]") {
  skip_unless_memory_is_sparse();
  auto target = require_target<hip_target<0>>();
  const auto config = make_config(16, 1, 1, 2, 64);
  const auto layout = plan<float16, nhd_by_layer>(config);
  const auto storage = sparse_array<std::byte>(target, layout.bytes);
  const auto view = at(layout.view, storage.data());
  const auto stride = limit + 64;
  const auto rows = sparse_array<float>(target, 2 * stride);
  const auto mapping = target_array<slot, hip_target<0>>(target, {slot{3}, slot{4}});
  const auto span = std::span<const slot>(mapping.data(), 2);
  for (auto i = 0; i < 128; ++i) {
    rows.data()[i] = static_cast<float>(i);
    rows.data()[stride + i] = static_cast<float>(1000 + i);
  }
  const auto in = token_rows<const float>{rows.data(), stride, 64, 2, 2, 64};
  REQUIRE(target.backend.append<float16>(view, 0, span, in, in, target.stream()));
  const auto out = token_rows<float>{rows.data() + 128, stride, 64, 2, 2, 64};
  REQUIRE(target.backend.gather<float16>(view, 0, span, out, out, target.stream()));
  REQUIRE(target.backend.synchronize(target.stream()));
  for (auto i = 0; i < 128; ++i) {
    REQUIRE(rows.data()[128 + i] == static_cast<float>(i));
    REQUIRE(rows.data()[stride + 128 + i] == static_cast<float>(1000 + i));
  }
}

TEST_CASE("Pairs of blocks of more tokens than a launch takes are converted", "[large]") {
  skip_unless_memory_is_sparse();
  auto target = require_target<hip_target<0>>();
  constexpr auto block_size = 42'000;
  REQUIRE(std::int64_t{kernels::block_batch::capacity} * block_size > kernels::max_tokens_per_launch);
  const auto from_layout = plan<float32, nhd_by_layer>(make_config(block_size, 1, 1, 1, 1));
  const auto to_layout = plan<bfloat16, nhd_by_layer>(make_config(block_size, kernels::block_batch::capacity, 1, 1, 1));
  const auto from_memory = sparse_array<std::byte>(target, from_layout.bytes);
  const auto to_memory = sparse_array<std::byte>(target, to_layout.bytes);
  const auto from = at(from_layout.view, from_memory.data());
  const auto to = at(to_layout.view, to_memory.data());
  *from.value<float>(0, 0, block_size - 1, 0) = 3;
  auto pairs = std::vector<block_pair>();
  for (auto block = 0; block < kernels::block_batch::capacity; ++block) {
    pairs.push_back({0, block});
  }
  REQUIRE(hip::convert_blocks<bfloat16, float32>(from, to, pairs, target.stream()));
  REQUIRE(target.backend.synchronize(target.stream()));
  for (const auto [source, block] : pairs) {
    REQUIRE(bfloat16::decode(*to.value<bfloat16::storage>(0, block, block_size - 1, 0), 1) == 3);
  }
}

}  // namespace large_offset_test
