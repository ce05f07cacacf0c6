#include <pagedkv/policy/element/all.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/storage/layout.hpp>

#include "../support/messages.hpp"
#include "../support/printing.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/mman.h>

using namespace pagedkv;

namespace {

cache_config config_of(std::int32_t block_size, std::int32_t blocks, std::int32_t layers, std::int32_t heads,
                       std::int32_t dim) {
  auto config = cache_config{};
  config.block_size = block_size;
  config.num_blocks = blocks;
  config.num_layers = layers;
  config.num_kv_heads = heads;
  config.head_dim = dim;
  return config;
}

struct extent {
  std::int64_t begin;
  std::int64_t end;
};

/// Byte extents, from the base, of every row of numbers and every scale that the view addresses.
template <class Storage>
std::vector<extent> extents_of(const block_storage_view& view, bool scaled) {
  auto extents = std::vector<extent>{};
  const auto add = [&](const auto* address, std::int64_t count) {
    const auto begin = reinterpret_cast<const std::byte*>(address) - view.base;
    extents.push_back({begin, begin + count * static_cast<std::int64_t>(sizeof(*address))});
  };
  for (auto layer = 0; layer < view.num_layers; ++layer) {
    for (auto block = 0; block < view.num_blocks; ++block) {
      for (auto offset = 0; offset < view.block_size; ++offset) {
        for (auto head = 0; head < view.num_kv_heads; ++head) {
          add(view.template key<Storage>(layer, block, offset, head), view.head_dim);
          if (!view.is_latent()) {
            add(view.template value<Storage>(layer, block, offset, head), view.dim_of_values());
          }
          if (scaled) {
            add(view.key_scale(layer, block, offset, head), 1);
          }
          if (scaled && !view.is_latent()) {
            add(view.value_scale(layer, block, offset, head), 1);
          }
        }
      }
    }
  }
  return extents;
}

template <class Storage>
void check_disjoint(storage_plan plan, std::int64_t scale_bytes) {
  const auto& view = plan.view;
  CAPTURE(view.block_size, view.num_kv_heads, view.head_dim, view.value_dim, sizeof(Storage), scale_bytes);
  const auto memory = std::make_unique<std::byte[]>(static_cast<std::size_t>(plan.bytes));
  plan.view.base = memory.get();

  auto extents = extents_of<Storage>(plan.view, scale_bytes != 0);
  std::sort(extents.begin(), extents.end(), [](const extent& a, const extent& b) { return a.begin < b.begin; });
  CHECK(extents.front().begin == 0);
  CHECK(extents.back().end <= plan.bytes);
  const auto overlap = std::adjacent_find(extents.begin(), extents.end(),
                                          [](const extent& a, const extent& b) { return a.end > b.begin; });
  CHECK(overlap == extents.end());

  const auto layers_and_blocks = std::int64_t{view.num_layers} * view.num_blocks;
  CHECK(plan.bytes == plan.view.layer_bytes() * layers_and_blocks);
  auto payload = std::int64_t{0};
  for (const auto& e : extents) {
    payload += e.end - e.begin;
    const auto width = static_cast<std::int64_t>(e.end - e.begin == 4 && scale_bytes != 0 ? 4 : sizeof(Storage));
    CHECK(e.begin % width == 0);
  }
  CHECK(plan.bytes - payload < (block_alignment + 4) * layers_and_blocks);
  for (auto layer = 0; layer < view.num_layers; ++layer) {
    for (auto block = 0; block < view.num_blocks; ++block) {
      CHECK((plan.view.block(layer, block) - plan.view.base) % block_alignment == 0);
    }
  }
}

template <class Layout, class Storage>
void check_disjoint(const cache_config& config, std::int64_t scale_bytes) {
  check_disjoint<Storage>(plan_storage<Layout>(config, {sizeof(Storage), scale_bytes}).value(), scale_bytes);
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("rows and scales lie apart, inside the storage and aligned", "[layout]", strided_layouts) {
  for (const auto block_size : {1, 5, 16}) {
    for (const auto heads : {1, 3, 8}) {
      for (const auto dim : {1, 7, 64}) {
        const auto config = config_of(block_size, 3, 2, heads, dim);
        check_disjoint<TestType, float>(config, 0);
        check_disjoint<TestType, std::uint16_t>(config, 0);
        check_disjoint<TestType, std::int8_t>(config, sizeof(float));
        check_disjoint<TestType, std::uint16_t>(config, sizeof(float));
      }
    }
  }
}

TEMPLATE_LIST_TEST_CASE("values may have rows of their own, or be the first part of keys", "[layout]", strided_layouts) {
  for (const auto latent : {false, true}) {
    auto group = group_config{};
    group.kind = latent ? group_kind::latent : group_kind::full;
    group.num_layers = 2;
    group.num_kv_heads = latent ? 1 : 3;
    group.key_dim = 21;
    group.value_dim = latent ? 16 : 35;
    for (const auto scale_bytes : {std::int64_t{0}, std::int64_t{4}}) {
      const auto plan = plan_storage<TestType>(group, 5, 3, {2, scale_bytes}).value();
      check_disjoint<std::uint16_t>(plan, scale_bytes);
      REQUIRE(plan.view.value_dim == group.value_dim);
      CHECK(plan.view.is_latent() == latent);
      auto view = plan.view;
      view.base = reinterpret_cast<std::byte*>(std::uintptr_t{4096});
      const auto head = latent ? 0 : 2;
      CHECK(view.keys_alone().template key<std::uint16_t>(1, 2, 3, head) ==
            view.template key<std::uint16_t>(1, 2, 3, head));
      CHECK(view.values_alone().template key<std::uint16_t>(1, 2, 3, head) ==
            view.template value<std::uint16_t>(1, 2, 3, head));
    }
  }
  auto state = group_config{};
  state.kind = group_kind::state;
  state.state_bytes = 8;
  const auto refusal = [](const group_config& group, std::int32_t block_size, std::int32_t num_blocks) {
    return test::said(plan_storage<TestType>(group, block_size, num_blocks, {2, 0}));
  };
  test::check_messages({
      {refusal(state, 5, 3), test::invalid("group_config.kind, which holds no tokens, is 4")},
      {refusal(group_config{}, 0, 3), test::invalid("block_size of the storage is 0, limit 1")},
      {refusal(group_config{}, 5, -2), test::invalid("num_blocks of the storage is -2, limit 1")},
  });
}

TEMPLATE_LIST_TEST_CASE("pieces fill K and V, and take no more memory than rows", "[layout]", piecewise_layouts) {
  for (const auto block_size : {16, 32, 48}) {
    for (const auto dim : {16, 80, 128}) {
      const auto config = config_of(block_size, 3, 2, 3, dim);
      for (const auto bytes : {1, 2, 4}) {
        CAPTURE(block_size, dim, bytes);
        const auto element = element_size{bytes, bytes == 1 ? 4 : 0};
        const auto plan = plan_storage<TestType>(config, element).value();
        const auto strided = plan_storage<nhd_layer_major>(config, element).value();
        CHECK(plan.bytes == strided.bytes);
        CHECK_FALSE(plan.view.strided());
        for (const auto& order : {plan.view.key_pieces, plan.view.value_pieces}) {
          auto seen = std::vector<int>(static_cast<std::size_t>(block_size * 3 * dim));
          for (auto offset = 0; offset < block_size; ++offset) {
            for (auto head = 0; head < 3; ++head) {
              for (auto d = 0; d < dim; ++d) {
                ++seen.at(static_cast<std::size_t>(order.index(offset, head, d)));
              }
            }
          }
          CHECK(std::ranges::all_of(seen, [](int times) { return times == 1; }));
        }
      }
    }
  }
}

TEST_CASE("sizes that leave a part of a piece are refused with a sentence", "[layout]") {
  const auto message = [](const result<storage_plan>& plan) {
    REQUIRE(plan.has_error());
    CHECK(plan.error().code == error_code::invalid_argument);
    return plan.error().message();
  };
  CHECK(message(plan_storage<transposed_layer_major>(config_of(16, 3, 1, 1, 100), {2, 0})) ==
        "invalid argument: cache_config.head_dim or group_config.key_dim, which this layout needs as a multiple of the "
        "limit, is 100, limit 8");
  CHECK(message(plan_storage<shuffled_layer_major>(config_of(24, 3, 1, 1, 64), {1, 4})) ==
        "invalid argument: cache_config.block_size, which this layout needs as a multiple of the limit, is 24, limit 16");
  CHECK(message(plan_storage<shuffled_block_major>(config_of(24, 3, 1, 1, 64), {3, 0})) ==
        "invalid argument: bytes of an element, of which 16 bytes hold no whole number, is 3");
  auto unlike = group_config{};
  unlike.num_kv_heads = 2;
  unlike.key_dim = 64;
  unlike.value_dim = 32;
  CHECK(message(plan_storage<transposed_layer_major>(unlike, 16, 3, {2, 0})) ==
        "invalid argument: group_config.value_dim, unlike keys, which only nhd and hnd lay out, is 32, limit 64");
  auto latent = unlike;
  latent.kind = group_kind::latent;
  latent.num_kv_heads = 1;
  CHECK(message(plan_storage<shuffled_block_major>(latent, 16, 3, {2, 0})) ==
        "invalid argument: group_config.num_layers of latent vectors, one for K and V, which only nhd and hnd lay out, "
        "is 1, limit 0");
  // Of V as [dim][token], the tokens of a block need not fill a piece.
  CHECK(plan_storage<transposed_layer_major>(config_of(5, 3, 1, 1, 64), {1, 4}));
  CHECK(plan_storage<transposed_block_major>(config_of(8, 3, 1, 1, 64), {1, 4}));
}

TEST_CASE("one layer of one block is K, V, K scales, V scales, padded", "[layout]") {
  const auto plan = plan_storage<nhd_layer_major>(config_of(5, 7, 3, 3, 9), {1, 4}).value();
  const auto payload = 5 * 3 * 9;
  CHECK(plan.view.value_offset == payload);
  CHECK(plan.view.key_scale_offset == 272);  // 270 bytes of K and V, rounded up to a whole float
  CHECK(plan.view.value_scale_offset == 272 + 5 * 3 * 4);
  CHECK(plan.view.layer_bytes() == 512);

  const auto unscaled = plan_storage<nhd_layer_major>(config_of(5, 7, 3, 3, 9), {4, 0}).value();
  CHECK(unscaled.view.value_offset == payload * 4);
  CHECK(unscaled.view.key_scale_offset == 0);
  CHECK(unscaled.view.value_scale_offset == 0);
  CHECK(unscaled.view.layer_bytes() == 1280);
}

TEST_CASE("strides follow the order of the dimensions", "[layout]") {
  const auto config = config_of(16, 10, 4, 8, 64);
  const auto nhd = plan_storage<nhd_layer_major>(config, {1, 4})->view;
  CHECK(nhd.token_stride == 8 * 64);
  CHECK(nhd.head_stride == 64);
  CHECK(nhd.scale_token_stride == 8);
  CHECK(nhd.scale_head_stride == 1);

  const auto hnd = plan_storage<hnd_layer_major>(config, {1, 4})->view;
  CHECK(hnd.token_stride == 64);
  CHECK(hnd.head_stride == 16 * 64);
  CHECK(hnd.scale_token_stride == 1);
  CHECK(hnd.scale_head_stride == 16);
}

TEST_CASE("strides follow the order of layers and blocks", "[layout]") {
  const auto config = config_of(16, 10, 4, 8, 64);
  const auto layer_bytes = 2 * 16 * 8 * 64 * 2;
  const auto by_layer = plan_storage<nhd_layer_major>(config, {2, 0})->view;
  CHECK(by_layer.block_stride == layer_bytes);
  CHECK(by_layer.layer_stride == 10 * layer_bytes);
  CHECK(by_layer.layer_bytes() == layer_bytes);

  const auto by_block = plan_storage<nhd_block_major>(config, {2, 0})->view;
  CHECK(by_block.block_stride == 4 * layer_bytes);
  CHECK(by_block.layer_stride == layer_bytes);
  CHECK(by_block.layer_bytes() == layer_bytes);
}

TEST_CASE("regions that grow start at granules of memory", "[layout]") {
  auto config = config_of(16, 10, 4, 8, 64);
  const auto layer_bytes = std::int64_t{2 * 16 * 8 * 64 * 2};
  config.max_blocks = 11;
  const auto granule = std::int64_t{1} << 20;
  const auto by_layer = plan_storage<nhd_layer_major>(config, {2, 0}, granule).value();
  CHECK(by_layer.view.num_blocks == 11);
  CHECK(by_layer.view.layer_stride == granule);
  CHECK(by_layer.view.block_stride == layer_bytes);
  CHECK(by_layer.bytes == 4 * granule);

  const auto by_block = plan_storage<nhd_block_major>(config, {2, 0}, granule).value();
  CHECK(by_block.view.block_stride == 4 * layer_bytes);
  CHECK(by_block.view.layer_stride == layer_bytes);
  CHECK(by_block.bytes == 2 * granule);
}

TEMPLATE_LIST_TEST_CASE("offsets beyond 2^31 numbers are addressed", "[layout]", strided_layouts) {
  // 4 layers of 40,000 blocks of 64 KiB: 10 GB, of which only addresses are used.
  auto plan = plan_storage<TestType>(config_of(16, 40'000, 4, 8, 128), {2, 0}).value();
  REQUIRE(plan.bytes == std::int64_t{4} * 40'000 * 65'536);
  const auto length = static_cast<std::size_t>(plan.bytes);
  auto* const reserved = ::mmap(nullptr, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(reserved != MAP_FAILED);
  plan.view.base = static_cast<std::byte*>(reserved);

  const auto* const first = plan.view.template key<std::uint16_t>(0, 0, 0, 0);
  const auto* const last = plan.view.template value<std::uint16_t>(3, 39'999, 15, 7);
  CHECK(last - first == plan.bytes / 2 - 128);
  const auto* const middle = plan.view.template key<std::uint16_t>(2, 20'000, 0, 0);
  const auto layer_first = TestType::storage == storage_order::layer_major;
  CHECK(middle - first == (layer_first ? 2 * 40'000 + 20'000 : 20'000 * 4 + 2) * std::int64_t{32'768});
  ::munmap(reserved, length);
}

TEST_CASE("a size beyond 63 bits is an error that names the blocks", "[layout]") {
  constexpr auto most = std::numeric_limits<std::int32_t>::max();
  const auto sizes = {config_of(1 << 10, most, most, 1 << 5, 1 << 10), config_of(most, 1, 1, most, 8),
                      config_of(1, most, most, 1, 1)};
  for (const auto& config : sizes) {
    const auto plan = plan_storage<nhd_layer_major>(config, {4, 0});
    REQUIRE_FALSE(plan);
    CHECK(plan.error().code == error_code::size_overflow);
    CHECK(plan.error().value == config.num_blocks);
  }
}

TEST_CASE("more static scales than an int32 counts are refused", "[layout][messages]") {
  const auto group = group_config{.num_layers = 1 << 20, .num_kv_heads = 1024, .key_dim = 1, .value_dim = 1};
  const auto of_heads = element_size{.bytes = 1, .static_scales = true, .scale_per_head = true};
  CHECK(test::said(plan_storage<nhd_layer_major>(group, 1, 1, of_heads)) ==
        "size overflow: number of static scales in all layers is 2147483648, limit 2147483647");
}

TEST_CASE("static scales are those of a layer's K and V, or of each KV head, in the engine's memory", "[layout]") {
  const auto scales = std::vector<float>(24, 0.5f);
  auto config = config_of(16, 4, 3, 4, 8);
  config.scales = scales.data();
  const auto of_heads = plan_storage<nhd_layer_major>(config, size_of_element<basic_float8_e4m3<head_scale>>).value();
  CHECK(of_heads.view.static_key_scale(2, 3) == scales.data() + (2 * 2 + 0) * 4 + 3);
  CHECK(of_heads.view.static_value_scale(2, 3) == scales.data() + (2 * 2 + 1) * 4 + 3);
  CHECK(of_heads.view.values_alone().static_key_scale(1, 2) == of_heads.view.static_value_scale(1, 2));
  CHECK(of_heads.view.keys_alone().static_value_scale(1, 2) == of_heads.view.static_key_scale(1, 2));
  const auto of_tensors = plan_storage<shuffled_block_major>(config, size_of_element<float8_e5m2>);
  REQUIRE_FALSE(of_tensors);  // 8 numbers are half a piece
  config.head_dim = 16;
  const auto in_pieces = plan_storage<shuffled_block_major>(config, size_of_element<float8_e5m2>).value();
  CHECK(in_pieces.view.static_key_scale(2, 3) == scales.data() + 4);
  CHECK(in_pieces.view.static_value_scale(2, 1) == scales.data() + 5);
  // They take nothing in the blocks.
  config.scales = nullptr;
  const auto without = plan_storage<shuffled_block_major>(config, size_of_element<float8_e5m2>).value();
  CHECK(without.bytes == in_pieces.bytes);
  CHECK(without.view.static_value_scale(2, 1) == nullptr);
  CHECK(without.view.values_alone().static_key_scale(2, 1) == nullptr);

  auto latent = group_config{};
  latent.kind = group_kind::latent;
  latent.num_layers = 3;
  latent.scales = scales.data();
  const auto one = plan_storage<nhd_layer_major>(latent, 16, 4, size_of_element<float8_e4m3>).value();
  CHECK(one.view.static_key_scale(2, 0) == scales.data() + 2);
  CHECK(one.view.static_value_scale(2, 0) == scales.data() + 2);
}

TEST_CASE("scales that the element does not read are refused", "[layout]") {
  const auto scales = std::vector<float>(2, 0.5f);
  auto config = config_of(16, 4, 1, 1, 8);
  config.scales = scales.data();
  for (const auto element :
       {size_of_element<float16>, size_of_element<int8>, size_of_element<basic_float8_e4m3<token_scale>>}) {
    const auto refused = plan_storage<nhd_layer_major>(config, element);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().message() ==
          "invalid argument: scales in the configuration, which this element does not read, is 1, limit 0");
  }
  config.num_layers = std::numeric_limits<std::int32_t>::max();
  CHECK(plan_storage<nhd_block_major>(config, size_of_element<float8_e4m3>).error().code == error_code::size_overflow);
}

TEST_CASE("rows are made of arrays that stay, and of temporary spans of them", "[layout]") {
  auto numbers = std::vector<float>(24);
  const auto rows = contiguous_rows(std::span(numbers).first(16), 2, 4);
  CHECK(rows.data == numbers.data());
  CHECK(rows.num_tokens == 2);
  const auto constant = contiguous_rows(std::as_const(numbers), 2, 4);
  static_assert(std::is_same_v<decltype(constant), const token_rows<const float>>);
  static_assert(std::is_same_v<decltype(rows), const token_rows<float>>);
  CHECK(constant.num_tokens == 3);
  const auto makes_rows = []<class Numbers>(std::type_identity<Numbers>) {
    return requires(Numbers all) { contiguous_rows(std::forward<Numbers>(all), 2, 4); };
  };
  CHECK(makes_rows(std::type_identity<std::vector<float>&>{}));
  CHECK_FALSE(makes_rows(std::type_identity<std::vector<float>&&>{}));
}
