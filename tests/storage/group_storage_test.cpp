#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/int8.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/storage/block_storage.hpp>

#include "../support/failing_allocator.hpp"
#include "../support/printing.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <string>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

constexpr auto uneven = group_config{.num_layers = 3, .num_kv_heads = 2, .key_dim = 24, .value_dim = 40};
constexpr auto even = group_config{.num_layers = 2, .num_kv_heads = 3, .key_dim = 16, .value_dim = 16};
constexpr auto latent = group_config{.kind = group_kind::latent, .num_layers = 2, .key_dim = 72, .value_dim = 64};
constexpr auto state = group_config{.kind = group_kind::state, .num_layers = 2, .num_kv_heads = 5, .state_bytes = 700};

struct group_extent {
  std::int64_t begin;
  std::int64_t end;
};

/// Byte extents of the rows and scales of one block, from its start.
template <class Element>
std::vector<group_extent> extents_of(const group_config& group, const block_storage_view& view, std::int64_t block) {
  using storage = typename Element::storage;
  auto extents = std::vector<group_extent>{};
  const auto start = view.base + block * view.block_stride;
  const auto add = [&](const auto* address, std::int64_t count) {
    const auto begin = reinterpret_cast<const std::byte*>(address) - start;
    extents.push_back({begin, begin + count * static_cast<std::int64_t>(sizeof(*address))});
  };
  for (auto layer = 0; layer < group.num_layers; ++layer) {
    for (auto offset = 0; offset < view.block_size; ++offset) {
      for (auto head = 0; head < group.num_kv_heads; ++head) {
        add(view.template key<storage>(layer, block, offset, head), group.key_dim);
        if (group.kind != group_kind::latent) {
          add(view.template value<storage>(layer, block, offset, head), group.value_dim);
        } else {
          CHECK(view.template value<storage>(layer, block, offset, head) ==
                view.template key<storage>(layer, block, offset, head));
        }
        if (Element::scaled) {
          add(view.key_scale(layer, block, offset, head), 1);
        }
        if (Element::scaled && group.kind != group_kind::latent) {
          add(view.value_scale(layer, block, offset, head), 1);
        }
      }
    }
  }
  return extents;
}

cache_config four_groups() {
  auto config = cache_config{.num_blocks = 7};
  config.groups = {uneven, even, latent, state};
  return config;
}

template <class Element, class Layout>
void check_extents() {
  const auto storage = group_storage<Element, Layout, host_allocator>::create(four_groups()).value();
  const auto config = four_groups();
  for (std::size_t i = 0; i < 3; ++i) {
    CAPTURE(i, sizeof(typename Element::storage));
    const auto& group = config.groups[i];
    const auto& view = storage.view(i);
    CHECK(view.base == storage.blocks().base);
    auto extents = extents_of<Element>(group, view, 6);
    std::ranges::sort(extents, {}, &group_extent::begin);
    CHECK(extents.front().begin == 0);
    CHECK(extents.back().end <= storage.plan().block_bytes);
    const auto overlap = std::ranges::adjacent_find(
        extents, [](const group_extent& a, const group_extent& b) { return a.end > b.begin; });
    CHECK(overlap == extents.end());
    for (auto layer = 0; layer < group.num_layers; ++layer) {
      CHECK((view.block(layer, 6) - storage.blocks().base) % block_alignment == 0);
    }
  }
}

}  // namespace

TEMPLATE_TEST_CASE("rows of every group lie apart inside a block", "[group_storage]", nhd_layer_major, hnd_layer_major,
                   nhd_block_major, hnd_block_major) {
  check_extents<float16, TestType>();
  check_extents<int8, TestType>();
}

TEST_CASE("a group whose K and V have one size is laid out as storage without groups", "[group_storage]") {
  const auto config = cache_config{.num_blocks = 7, .num_layers = 2, .num_kv_heads = 3, .head_dim = 16, .groups = {}};
  auto grouped = config;
  grouped.groups = {even};
  const auto same = [](const block_storage_view& a, const block_storage_view& b) {
    return a.block_stride == b.block_stride && a.layer_stride == b.layer_stride && a.value_offset == b.value_offset &&
           a.key_scale_offset == b.key_scale_offset && a.value_scale_offset == b.value_scale_offset &&
           a.token_stride == b.token_stride && a.head_stride == b.head_stride &&
           a.scale_token_stride == b.scale_token_stride && a.scale_head_stride == b.scale_head_stride &&
           a.num_blocks == b.num_blocks && a.num_layers == b.num_layers && a.block_size == b.block_size &&
           a.num_kv_heads == b.num_kv_heads && a.head_dim == b.head_dim;
  };
  for (const auto element : {element_size{2, 0}, element_size{1, 4}}) {
    const auto plan = plan_memory(grouped.groups, element).value();
    const auto view = plan_view<hnd_block_major>(even, plan.groups[0], element, plan.block_bytes, 7).value();
    CHECK(same(view, plan_storage<hnd_block_major>(config, element)->view));
  }
}

TEST_CASE("parts of states lie apart inside their block", "[group_storage]") {
  const auto storage = group_storage<float16, nhd_block_major, host_allocator>::create(four_groups()).value();
  const auto& plan = storage.plan().groups[3];
  REQUIRE(plan.parts_per_block > 1);
  auto* const start = storage.blocks().block(0, 2);
  for (auto part = 0; part < plan.parts_per_block; ++part) {
    CHECK(storage.state_part(3, block_id{2}, part) - start == part * plan.part_bytes);
  }
  CHECK(plan.parts_per_block * plan.part_bytes <= storage.plan().block_bytes);
}

TEST_CASE("memory of groups is given back once, and errors allocate nothing", "[group_storage]") {
  using logged = group_storage<float16, nhd_block_major, failing_allocator<>>;
  auto log = allocation_log{};
  {
    auto first = logged::create(four_groups(), failing_allocator<>{log}).value();
    auto* const base = first.blocks().base;
    CHECK(log.live_bytes == first.bytes());
    const auto second = std::move(first);
    CHECK(second.view(1).base == base);
    CHECK(log.live == 1);
  }
  CHECK(log.live == 0);

  auto none = allocation_log{.fail_at = 1};
  CHECK(logged::create(four_groups(), failing_allocator<>{none}).error().code == error_code::out_of_memory);
  auto wrong = four_groups();
  wrong.groups = {group_config{.num_layers = 0}};
  auto untouched = allocation_log{};
  CHECK(logged::create(wrong, failing_allocator<>{untouched}).error().subject ==
        std::string{"group_config.num_layers"});
  CHECK(untouched.calls == 0);
}
