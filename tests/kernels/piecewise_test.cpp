#include "../support/messages.hpp"
#include "attention_kernels.hpp"
#include "check_storage.hpp"

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/allocator/host_allocator.hpp>
#include <pagedkv/storage/block_storage.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <vector>

namespace piecewise_test {

using namespace pagedkv;
using namespace pagedkv::test;

// Head dimensions that are no powers of two, one beyond 32 lanes of vectors, lengths around a block's end, strides that
// keep and that break alignment.
constexpr row_shape shapes[] = {
    {16, 8, 2, 64, 97, 0}, {32, 4, 3, 80, 70, 16}, {8, 9, 1, 96, 17, 0},   {16, 8, 5, 112, 40, 3},
    {16, 4, 1, 16, 1, 1},  {48, 2, 2, 240, 96, 0}, {16, 3, 1, 640, 20, 0}, {16, 4, 2, 64, 0, 0},
};

enum class slot_order { random, runs, aligned };

/// Slots with runs of neighbours, as prompts have: sequences that start and end anywhere in a block, tokens that are
/// skipped, and decoded tokens between.
std::vector<slot> slots_in_runs(const cache_config& config, std::size_t count, slot_order order, std::mt19937& random) {
  if (order == slot_order::random) {
    return random_slots(config, count, random);
  }
  auto blocks = std::vector<std::int64_t>(static_cast<std::size_t>(config.num_blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), random);
  auto slots = std::vector<slot>();
  for (const auto block : blocks) {
    const auto first = order == slot_order::aligned ? 0 : static_cast<std::int32_t>(random() % 3);
    for (auto offset = first; offset < config.block_size && slots.size() < count; ++offset) {
      const auto skipped = order == slot_order::runs && random() % 23 == 0;
      slots.push_back(skipped ? skip_slot : slot{block * config.block_size + offset});
    }
  }
  return slots;
}

template <class Element, class Layout>
laid_out<Element, Layout> lay_out_group(const cache_config& config, std::size_t g) {
  const auto storage = group_storage<Element, Layout, host_allocator>::create(config).value();
  const auto& group = config.groups[g];
  const auto alone = make_config(storage.plan().groups[g].block_size, config.num_blocks, group.num_layers,
                                 group.num_kv_heads, group.key_dim);
  return {alone, {storage.view(g), storage.bytes()}, storage.plan().block_bytes};
}

/// Groups whose blocks hold different numbers of tokens, in pieces of every element.
cache_config config_with_groups() {
  auto config = make_config(16, 6, 1, 1, 1);
  config.groups = {{.num_layers = 3, .num_kv_heads = 2, .key_dim = 80, .value_dim = 80},
                   {.kind = group_kind::window, .num_layers = 2, .num_kv_heads = 1, .key_dim = 48, .value_dim = 48,
                    .window = 100, .num_sinks = 4},
                   {.kind = group_kind::state, .num_layers = 2, .state_bytes = 5000}};
  return config;
}

template <class Element, class Layout, class Rows, class Target>
void append_and_gather(Target& target, const row_shape& each, slot_order order, std::mt19937& random) {
  CAPTURE(each.block_size, each.num_kv_heads, each.head_dim, each.num_tokens, each.gap, static_cast<int>(order));
  const auto config = make_config(each.block_size, each.num_blocks, 2, each.num_kv_heads, each.head_dim);
  if (const auto layers = lay_out<Element, Layout>(config)) {
    append_and_gather<Rows>(target, *layers, slots_in_runs(config, each.num_tokens, order, random), each.gap, random);
  }
}

TEMPLATE_PRODUCT_TEST_CASE("Rows lie where the published formulas say, and nothing else is touched",
                           "[piecewise][random]", (rows_on_host, rows_on_waves_of_64, rows_on_waves_of_32),
                           ((float32, transposed_layer_major), (float16, transposed_layer_major),
                            (bfloat16, transposed_block_major), (int8, transposed_layer_major),
                            (float32, shuffled_layer_major), (float16, shuffled_block_major),
                            (bfloat16, shuffled_layer_major), (int8, shuffled_layer_major),
                            (float8_e4m3, transposed_layer_major))) {
  using element = typename TestType::element;
  using layout = typename TestType::layout_type;
  auto target = require_target<typename TestType::target>();
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937(seed);
  for (const auto& each : shapes) {
    for (const auto order : {slot_order::random, slot_order::runs, slot_order::aligned}) {
      append_and_gather<element, layout, float32>(target, each, order, random);
    }
  }
  append_and_gather<element, layout, float16>(target, {16, 4, 2, 80, 50, 0}, slot_order::runs, random);
  append_and_gather<element, layout, bfloat16>(target, {32, 3, 2, 144, 50, 8}, slot_order::runs, random);

  const auto config = config_with_groups();
  for (auto g = std::size_t{0}; g < 2; ++g) {
    CAPTURE(g);
    const auto layers = lay_out_group<element, layout>(config, g);
    for (const auto order : {slot_order::random, slot_order::runs, slot_order::aligned}) {
      append_and_gather<float32>(target, layers, slots_in_runs(layers.config, 70, order, random), 3, random);
    }
  }
}

template <class To, class ToLayout, class From, class FromLayout>
struct conversion {
  static inline const auto pairs = std::vector<block_pair>{{5, 0}, {1, 3}, {0, 1}};

  template <class Target>
  static void run(Target& target, cache_config config, std::mt19937& random) {
    CAPTURE(config.block_size, config.num_kv_heads, config.head_dim);
    const auto from = lay_out<From, FromLayout>(config);
    config.num_blocks = 4;
    if (const auto to = lay_out<To, ToLayout>(config); from && to) {
      check_conversion(target, *from, *to, pairs, random);
    }
  }

  /// From each group to a cache of its own, and back.
  template <class Target>
  static void run_with_groups(Target& target, std::mt19937& random) {
    for (auto g = std::size_t{0}; g < 2; ++g) {
      CAPTURE(g);
      const auto from = lay_out_group<From, FromLayout>(config_with_groups(), g);
      check_conversion(target, from, *lay_out<To, ToLayout>(from.config), pairs, random);
      const auto to = lay_out_group<To, ToLayout>(config_with_groups(), g);
      check_conversion(target, *lay_out<From, FromLayout>(to.config), to, pairs, random);
    }
  }
};

TEMPLATE_TEST_CASE("Blocks are converted between layouts and elements", "[piecewise][random]",
                   (conversion<float16, transposed_layer_major, float16, nhd_layer_major>),
                   (conversion<float32, hnd_block_major, float32, shuffled_layer_major>),
                   (conversion<int8, shuffled_layer_major, int8, transposed_block_major>),
                   (conversion<bfloat16, hnd_layer_major, bfloat16, nhd_block_major>),
                   (conversion<int8, transposed_layer_major, bfloat16, nhd_layer_major>),
                   (conversion<int8, shuffled_block_major, float32, transposed_layer_major>),
                   (conversion<float16, nhd_layer_major, int8, shuffled_layer_major>),
                   (conversion<float32, shuffled_layer_major, float16, hnd_layer_major>),
                   (conversion<float8_e4m3, shuffled_layer_major, float8_e4m3, hnd_block_major>),
                   (conversion<float8_e4m3, transposed_block_major, float16, nhd_layer_major>),
                   (conversion<bfloat16, nhd_layer_major, float8_e4m3, shuffled_layer_major>)) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937(seed);
  auto on_64 = require_target<hip_target<0>>();
  auto on_32 = require_target<hip_target<1>>();
  for (const auto& [block_size, head_dim] :
       {std::pair{16, 64}, std::pair{32, 80}, std::pair{8, 96}, std::pair{48, 240}, std::pair{5, 112}, std::pair{16, 36}}) {
    const auto config = make_config(block_size, 6, 2, 3, head_dim);
    TestType::run(on_64, config, random);
    TestType::run(on_32, config, random);
  }
  TestType::run_with_groups(on_64, random);
  TestType::run_with_groups(on_32, random);
}

/// Copies, moves and swaps blocks of a view without memory, in storage of so many bytes.
void copy_move_and_swap(const block_storage_view& blocks, std::int64_t bytes, std::mt19937& random) {
  auto target = require_target<hip_target<0>>();
  auto expected = random_bytes(static_cast<std::size_t>(bytes), random);
  const auto storage = target_array<std::byte, hip_target<0>>(target, expected);
  const auto view = at(blocks, storage.data());
  const auto copies = std::vector<block_pair>{{3, 7}, {0, 5}};
  const auto moves = std::vector<block_pair>{{0, 1}, {1, 2}, {2, 0}, {7, 4}};
  REQUIRE(target.backend.copy_blocks(view, copies, target.stream()));
  REQUIRE(target.backend.move_blocks(view, moves, target.stream()));
  REQUIRE(target.backend.synchronize(target.stream()));
  reference_move(expected, expected, blocks, blocks, copies);
  reference_move(expected, expected, blocks, blocks, moves);
  CHECK(storage.values() == expected);

  auto other = random_bytes(expected.size(), random);
  const auto outside = target_array<std::byte, hip_target<0>>(target, other);
  const auto pairs = std::vector<block_pair>{{1, 6}, {4, 0}};
  REQUIRE(hip::swap_blocks(view, at(blocks, outside.data()), pairs, runtime::device_to_host, target.stream()));
  REQUIRE(target.backend.synchronize(target.stream()));
  reference_move(other, expected, blocks, blocks, pairs);
  CHECK(outside.values() == other);
}

TEMPLATE_TEST_CASE("Blocks of other engines' layouts are copied, moved and swapped whole", "[piecewise]",
                   transposed_layer_major, shuffled_block_major) {
  auto random = std::mt19937(21);
  const auto layout = plan<int8, TestType>(make_config(16, 8, 2, 2, 48));
  copy_move_and_swap(layout.view, layout.bytes, random);
  auto config = config_with_groups();
  config.num_blocks = 8;
  const auto storage = group_storage<int8, TestType, host_allocator>::create(config).value();
  copy_move_and_swap(storage.blocks(), storage.bytes(), random);

  auto target = require_target<hip_target<0>>();
  const auto rows = plan<int8, hnd_layer_major>(make_config(16, 8, 2, 2, 48)).view;
  const auto bytes = std::to_string(rows.layer_bytes());
  CHECK(said(hip::swap_blocks(layout.view, rows, {}, runtime::device_to_host, target.stream())) ==
        invalid("bytes of a block's layer, unlike the source's in number or order, is " + bytes + ", limit " + bytes));
}

TEST_CASE("Storages of other shapes exchange no blocks", "[piecewise]") {
  auto target = require_target<hip_target<0>>();
  auto from = plan<float16, nhd_layer_major>(make_config(16, 8, 2, 3, 48)).view;
  from.value_dim = 48;
  const auto refusal = [&](auto&& change) {
    auto to = from;
    change(to);
    return said(hip::swap_blocks(from, to, {}, runtime::device_to_host, target.stream()));
  };
  check_messages({
      {refusal([](auto& to) { to.num_layers = 1; }),
       invalid("num_layers of the destination, which is not the source's, is 1, limit 2")},
      {refusal([](auto& to) { to.block_size = 8; }),
       invalid("block_size of the destination, which is not the source's, is 8, limit 16")},
      {refusal([](auto& to) { to.num_kv_heads = 4; }),
       invalid("num_kv_heads of the destination, which is not the source's, is 4, limit 3")},
      {refusal([](auto& to) { to.head_dim = 64; }),
       invalid("head_dim of the destination, which is not the source's, is 64, limit 48")},
      {refusal([](auto& to) { to.value_dim = 32; }),
       invalid("value_dim of the destination, which is not the source's, is 32, limit 48")},
      {refusal([](auto& to) { to.value_offset = 0; }),
       invalid("latent vectors in the destination, unlike the source, is 1, limit 0")},
  });
}

TEST_CASE("Kernels that need rows refuse other engines' layouts with a sentence", "[piecewise]") {
  auto target = require_target<hip_target<0>>();
  const auto view = plan<float16, transposed_layer_major>(make_config(16, 4, 1, 2, 64)).view;
  const auto rotated = hip::rope_append<float16, float16, kernels::rope_pairing::halves>(
      view, 0, {}, {}, {}, {}, {}, {}, target.stream());
  REQUIRE(rotated.has_error());
  CHECK(rotated.error().message() ==
        "invalid argument: numbers in a piece of the layout, of which this kernel needs a strided one: nhd or hnd, is 8, "
        "limit 0");
  const auto queries = token_rows<const std::uint16_t>{.num_heads = 2};
  const auto attended =
      target.backend.attend<float16, float16>(view, 0, {}, queries, {}, attention_options{}, target.stream());
  REQUIRE(attended.has_error());
  CHECK(attended.error().message() ==
        "invalid argument: numbers in a piece of the layout, of which attention needs a strided one: nhd or hnd, is 8, "
        "limit 0");
}

}  // namespace piecewise_test
