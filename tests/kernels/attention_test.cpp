// Decode attention on devices, and on the host executor with waves of 64 and 32 lanes, against float64.

#include "../support/messages.hpp"
#include "attention_target.hpp"

#include <limits>

namespace attention_tests {

using namespace pagedkv;
using namespace pagedkv::test;

constexpr auto seed = std::uint32_t{20261122};

template <class Element, class Input, int Device>
void check_where_present(const attention_case& asked) {
  if (Device == 0 || hip_target<Device>::why_absent().empty()) {
    check_attention<Element, hnd_by_block, Input, Device>(asked, seed);
  }
}

template <class Element, class Input>
void check_elements_case(std::int32_t head_dim, std::int32_t group_size) {
  auto asked = attention_case{};
  asked.lengths = {0, 1, 15, 16, 17, 97};
  asked.head_dim = head_dim;
  asked.group_size = group_size;
  check_on_every_device<Element, Input>(asked, seed);
}

TEST_CASE("attention over ragged sequences, for every element, head dimension and group size", "[attention]") {
  for (const auto head_dim : {64, 80, 96, 112, 128, 192, 256}) {
    check_elements_case<bfloat16, bfloat16>(head_dim, head_dim == 128 ? 4 : 1);
    check_elements_case<float16, float32>(head_dim, 3);
    check_elements_case<int8, float16>(head_dim, 2);
    check_elements_case<float8_e4m3, bfloat16>(head_dim, 2);
    check_elements_case<float32, float32>(head_dim, 1);
  }
  for (const auto group_size : {2, 5, 6, 7, 8, 12, 16, 64}) {
    check_elements_case<bfloat16, float32>(64, group_size);
    check_elements_case<int8, bfloat16>(64, group_size);
    check_elements_case<float8_e4m3, float16>(64, group_size);
  }
  check_elements_case<float32, bfloat16>(64, 8);
  check_elements_case<float16, float16>(128, 8);
  check_elements_case<float16, float16>(192, 12);
  check_elements_case<bfloat16, bfloat16>(256, 16);
  check_elements_case<int8, bfloat16>(256, 16);
  check_elements_case<int8, float32>(192, 12);
  check_elements_case<float8_e4m3, bfloat16>(256, 16);
  check_elements_case<float8_e4m3, float16>(208, 9);
  // The last task has eight columns.
  check_elements_case<bfloat16, bfloat16>(256, 24);
  check_elements_case<int8, bfloat16>(256, 24);
  check_elements_case<float8_e4m3, bfloat16>(256, 24);
}

TEST_CASE("sixteen columns of the largest dimension in pieces, with and without options", "[attention]") {
  auto asked = attention_case{};
  asked.lengths = {700, 33, 0, 16, 1207};
  asked.num_kv_heads = 1;
  asked.head_dim = 256;
  asked.group_size = 16;
  for (const auto num_shares : {2, 61, 0}) {
    asked.num_shares = num_shares;
    check_on_every_device<bfloat16, bfloat16>(asked, seed);
    check_on_every_device<int8, bfloat16>(asked, seed);
    check_on_every_device<float8_e4m3, bfloat16>(asked, seed);
  }
  asked.soft_cap = 5;
  asked.window = 100;
  check_on_every_device<int8, float16>(asked, seed);
  check_on_every_device<float8_e4m3, float32>(asked, seed);
  asked.lengths = {700, 33};  // so few KV heads that 8-bit columns are two tasks
  check_on_every_device<int8, bfloat16>(asked, seed);
  check_on_every_device<float8_e4m3, bfloat16>(asked, seed);
}

TEST_CASE("sixteen columns of the largest dimension over blocks of any size, with splits and older plans",
          "[attention]") {
  auto asked = attention_case{};
  asked.lengths = {150, 33, 0, 16, 270};
  asked.num_kv_heads = 1;
  asked.head_dim = 256;
  asked.group_size = 16;
  const auto check = [](const attention_case& each) {
    check_on_every_device<bfloat16, bfloat16>(each, seed);
    check_on_every_device<int8, bfloat16>(each, seed);
    check_on_every_device<float8_e4m3, bfloat16>(each, seed);
  };
  for (const auto block_size : {5, 24}) {
    asked.block_size = block_size;
    check(asked);
  }
  asked.block_size = 16;
  asked.split_tokens = 64;
  check(asked);
  asked.split_tokens = 0;
  asked.lengths = {150, 33, 20, 16, 270};
  asked.grown = 1;
  check(asked);
  asked.grown = 0;
  asked.group_size = 8;
  asked.queries = {1, 2, 1, 2, 1};  // some tasks have eight columns
  check(asked);
}

namespace {

/// Columns of a task and shares that join, of plans for rows of one query, where matrix instructions are NVIDIA's.
template <class Element>
void check_columns(const attention_case& asked, std::int32_t max_rows, std::int32_t columns,
                   std::int32_t joined_shares) {
  auto batch = attention_batch_under_test<Element, nhd_by_layer, bfloat16>(asked, seed);
  const auto absent = std::array{hip_target<0>::why_absent(), hip_target<1>::why_absent(), hip_target<2>::why_absent()};
  for (std::size_t i = 0; i < absent.size() && absent[i].empty(); ++i) {
    const auto device = static_cast<int>(i);
    auto properties = runtime::device_properties{};
    REQUIRE(runtime::get_device_properties(&properties, device) == runtime::success);
    if (properties.matrices == runtime::matrix_instructions::mma) {
      const auto shape = hip::attention_shape_on<Element>(device, batch.view(), asked.group_size, max_rows).value();
      CAPTURE(Element::name, max_rows, asked.num_kv_heads, asked.head_dim, asked.group_size);
      CHECK(shape.columns == columns);
      CHECK(shape.joined_shares == joined_shares);
    }
  }
}

}  // namespace

TEST_CASE("sixteen columns of 8 bits and the largest dimension need more than four KV heads of all rows",
          "[attention]") {
  static_cast<void>(require_target<hip_target<0>>());
  auto asked = attention_case{};
  asked.lengths = {1};
  asked.num_kv_heads = 1;
  asked.head_dim = 256;
  asked.group_size = 16;
  check_columns<bfloat16>(asked, 1, 16, 2);
  check_columns<int8>(asked, 4, 8, 4);
  check_columns<int8>(asked, 5, 16, 2);
  check_columns<float8_e4m3>(asked, 5, 16, 2);
  asked.num_kv_heads = 5;
  check_columns<int8>(asked, 1, 16, 2);
  asked.num_kv_heads = 1;
  asked.group_size = 8;
  check_columns<int8>(asked, 64, 8, 4);
  asked.head_dim = 128;
  asked.group_size = 16;
  check_columns<int8>(asked, 1, 16, 4);
}

TEST_CASE("attention over blocks of any size", "[attention]") {
  for (const auto block_size : {1, 5, 8, 16, 32, 256}) {
    auto asked = attention_case{};
    asked.lengths = {block_size, 3 * block_size, 33, 2};
    asked.block_size = block_size;
    asked.group_size = 4;
    check_on_every_device<bfloat16, bfloat16>(asked, seed);
    check_on_every_device<int8, float32>(asked, seed);
    check_on_every_device<float8_e4m3, float32>(asked, seed);
    check_on_every_device<float32, float32>(asked, seed);
  }
}

TEST_CASE("scale, soft cap, window, ALiBi and sinks", "[attention]") {
  const auto check_options = [](attention_case asked) {
    asked.lengths = {1, 40, 130, 0};
    asked.group_size = 4;
    asked.magnitude = 2;
    check_on_every_device<float16, float16>(asked, seed);
    check_on_every_device<float8_e4m3, float16>(asked, seed);
    check_on_every_device<float32, float32>(asked, seed);
  };
  auto asked = attention_case{};
  asked.scale = 0.3F;
  check_options(asked);
  asked.soft_cap = 3;
  check_options(asked);
  asked = {};
  asked.window = 24;
  check_options(asked);
  asked.alibi = true;
  asked.sinks = true;
  asked.soft_cap = 20;
  asked.window = 1;
  check_options(asked);
  asked.window = 0;
  asked.queries = std::vector<std::int32_t>{1, 3, 5, 2};
  check_options(asked);
  asked.window = 7;
  check_options(asked);
}

TEST_CASE("the longest window hides no token", "[attention]") {
  auto asked = attention_case{};
  asked.window = std::numeric_limits<std::int32_t>::max();
  asked.lengths = {100, 33, 3, 0};
  asked.queries = std::vector<std::int32_t>{4, 5, 9, 3};  // the last rows have more than tokens
  check_on_every_device<bfloat16, bfloat16>(asked, seed);
  check_on_every_device<float32, float32>(asked, seed);
  asked.value_dim = 32;
  check_on_every_device<bfloat16, bfloat16>(asked, seed);
  asked = latent_case();
  asked.window = std::numeric_limits<std::int32_t>::max();
  asked.lengths = {33, 3};
  asked.queries = std::vector<std::int32_t>{5, 9};
  check_on_every_device<bfloat16, bfloat16>(asked, seed);
}

TEST_CASE("several queries of a sequence see no later token", "[attention]") {
  auto asked = attention_case{};
  asked.lengths = {5, 16, 49};
  asked.queries = std::vector<std::int32_t>{5, 1, 16};
  for (const auto group_size : {1, 3}) {
    asked.group_size = group_size;
    check_on_every_device<bfloat16, bfloat16>(asked, seed);
    check_on_every_device<float32, float32>(asked, seed);
  }
}

TEST_CASE("a call that was captured for one query a row serves rows of several", "[attention]") {
  auto asked = attention_case{};
  asked.lengths = {300, 16, 490};
  asked.queries = std::vector<std::int32_t>{5, 1, 16};
  asked.group_size = 3;
  asked.num_shares = 23;
  asked.captured_for_one = true;
  check_on_every_device<bfloat16, bfloat16>(asked, seed);
  asked.shared = {{}, {}, {0, 272}};
  check_on_every_device<float16, bfloat16>(asked, seed);
}

TEST_CASE("queries and outputs with strides of their own", "[attention]") {
  auto asked = attention_case{};
  asked.lengths = {40, 3};
  asked.group_size = 2;
  for (const auto gap : {3, 8}) {
    asked.gap = gap;
    check_on_every_device<bfloat16, float16>(asked, seed);
    check_on_every_device<float32, bfloat16>(asked, seed);
  }
}

TEST_CASE("head dimensions that no vector divides", "[attention]") {
  auto asked = attention_case{};
  asked.lengths = {33, 1};
  for (const auto head_dim : {1, 35, 100}) {
    asked.head_dim = head_dim;
    check_on_every_device<bfloat16, float32>(asked, seed);
    check_on_every_device<int8, bfloat16>(asked, seed);
    check_on_every_device<float32, float32>(asked, seed);
  }
}

TEST_CASE("values shorter or longer than keys, or the first part of them", "[attention]") {
  auto asked = attention_case{};
  asked.lengths = {0, 33, 5};
  asked.group_size = 3;
  const auto check_all = [&] {
    check_on_every_device<bfloat16, bfloat16>(asked, seed);
    check_on_every_device<float16, float32>(asked, seed);
    check_on_every_device<int8, float32>(asked, seed);
    check_on_every_device<float8_e4m3, float32>(asked, seed);
    check_on_every_device<float32, float32>(asked, seed);
  };
  asked.head_dim = 192;
  asked.value_dim = 128;
  check_all();
  asked.head_dim = 35;
  asked.value_dim = 70;
  check_all();
  asked.num_kv_heads = 1;
  asked.latent = true;
  asked.head_dim = 576;
  asked.value_dim = 512;
  asked.sinks = true;
  check_all();
}

TEST_CASE("a tree mask hides branches from queries", "[attention]") {
  auto asked = attention_case{};
  asked.lengths = {5, 16, 49, 40};
  asked.queries = std::vector<std::int32_t>{5, 1, 16, 32};
  asked.tree = true;
  asked.group_size = 2;
  check_on_every_device<bfloat16, bfloat16>(asked, seed);
  check_on_every_device<int8, float32>(asked, seed);
  check_on_every_device<float8_e4m3, float32>(asked, seed);
  asked.window = 20;
  asked.soft_cap = 5;
  asked.num_shares = 7;
  check_on_every_device<float32, float32>(asked, seed);
}

TEST_CASE("latent vectors with all options", "[attention]") {
  auto asked = latent_case();
  asked.lengths = {33, 5, 100};
  asked.group_size = 20;
  asked.num_shares = 3;
  asked.queries = std::vector<std::int32_t>{3, 2, 2};
  asked.soft_cap = 5;
  asked.alibi = true;
  asked.sinks = true;
  check_on_every_device<float16, float32>(asked, seed);
  asked.tree = true;
  asked.window = 20;
  asked.block_size = 5;
  check_on_every_device<bfloat16, bfloat16>(asked, seed);
}

TEST_CASE("latent vectors of many stages, whole and in pieces", "[attention]") {
  auto asked = latent_case();
  asked.lengths = {450, 130, 64};
  asked.group_size = 7;
  for (const auto num_shares : {1, 2, 5}) {
    asked.num_shares = num_shares;
    check_on_every_device<bfloat16, bfloat16>(asked, seed);
  }
}

TEST_CASE("latent vectors of more columns than one workgroup has", "[attention]") {
  auto asked = latent_case();
  asked.lengths = {90, 0, 17};
  for (const auto group_size : {70, 130}) {
    asked.group_size = group_size;
    for (const auto num_shares : {1, 4}) {
      asked.num_shares = num_shares;
      check_on_every_device<bfloat16, bfloat16>(asked, seed);
    }
  }
  asked.group_size = 72;
  asked.queries = std::vector<std::int32_t>{3, 1, 2};
  asked.split_tokens = 32;
  check_on_every_device<bfloat16, float32>(asked, seed);
}

TEST_CASE("chunks of prompts over what is cached", "[attention]") {
  auto asked = attention_case{};
  asked.prefill = true;
  asked.num_kv_heads = 1;
  asked.lengths = {5, 16, 0, 72};
  asked.queries = std::vector<std::int32_t>{5, 1, 0, 50};
  asked.group_size = 3;
  check_on_every_device<bfloat16, bfloat16>(asked, seed);
  check_attention<float32, nhd_by_layer, float32, 0>(asked, seed);
  asked.block_size = 5;
  asked.num_shares = 3;
  asked.window = 20;
  asked.soft_cap = 5;
  asked.alibi = true;
  asked.sinks = true;
  check_on_every_device<float16, float32>(asked, seed);
  check_where_present<int8, bfloat16, 1>(asked);
  check_where_present<float8_e4m3, bfloat16, 2>(asked);
  asked = {};
  asked.prefill = true;
  asked.num_kv_heads = 1;
  asked.lengths = {16, 90};
  asked.queries = std::vector<std::int32_t>{1, 71};
  for (const auto head_dim : {112, 256}) {
    asked.head_dim = head_dim;
    asked.split_tokens = head_dim < 256 ? 64 : 0;
    check_where_present<bfloat16, bfloat16, 1>(asked);
    check_where_present<bfloat16, bfloat16, 2>(asked);
  }
  asked.head_dim = 192;
  asked.value_dim = 128;
  check_attention<float16, nhd_by_layer, float16, 0>(asked, seed);
}

TEST_CASE("prompts over many tiles", "[attention]") {
  auto asked = attention_case{};
  asked.prefill = true;
  asked.num_kv_heads = 1;
  asked.group_size = 2;
  asked.lengths = {300, 33, 0, 129, 256};
  asked.queries = std::vector<std::int32_t>{70, 20, 0, 129, 1};
  check_attention<bfloat16, nhd_by_layer, bfloat16, 0>(asked, seed);
  asked.head_dim = 128;
  asked.block_size = 5;
  asked.num_shares = 5;
  asked.sinks = true;
  check_attention<float16, hnd_by_block, float32, 0>(asked, seed);
  asked.head_dim = 192;
  asked.value_dim = 80;
  asked.window = 140;
  check_attention<bfloat16, nhd_by_layer, float16, 0>(asked, seed);
}

TEST_CASE("prompts whose tasks are dealt", "[attention]") {
  auto asked = attention_case{};
  asked.prefill = true;
  asked.num_kv_heads = 2;
  asked.group_size = 2;
  asked.lengths = {200, 20, 70};
  asked.queries = std::vector<std::int32_t>{200, 20, 70};
  asked.num_shares = 2;
  check_on_every_device<bfloat16, bfloat16>(asked, seed);
  asked.head_dim = 128;
  asked.window = 90;
  asked.sinks = true;
  check_on_every_device<float16, float32>(asked, seed);
  check_attention<bfloat16, nhd_by_layer, float16, 0>(asked, seed);
}

TEST_CASE("attention in any number of pieces", "[attention]") {
  auto asked = attention_case{};
  asked.lengths = {700, 33, 999, 0, 16};
  asked.group_size = 2;
  asked.sinks = true;
  for (const auto num_shares : {1, 2, 7, 61, 400}) {
    asked.num_shares = num_shares;
    check_on_every_device<bfloat16, float32>(asked, seed);
    check_on_every_device<float8_e4m3, float32>(asked, seed);
    check_on_every_device<float32, float32>(asked, seed);
  }
  asked.num_shares = 0;
  for (const auto split : {16, 64, 256}) {
    asked.split_tokens = split;
    check_on_every_device<bfloat16, float32>(asked, seed);
    check_on_every_device<float32, float32>(asked, seed);
  }
}

TEST_CASE("logits of ten thousand", "[attention]") {
  auto asked = attention_case{};
  asked.lengths = {100, 37};
  asked.magnitude = 50;
  asked.scale = 1;
  check_on_every_device<bfloat16, bfloat16>(asked, seed);
  check_on_every_device<float32, float32>(asked, seed);
}

TEST_CASE("a long sequence", "[attention]") {
  auto asked = attention_case{};
  asked.lengths = {32789, 5};
  asked.num_kv_heads = 1;
  asked.group_size = 4;
  check_attention<bfloat16, nhd_by_layer, bfloat16, 0>(asked, seed);
}

/// Rows of a batch have the same bits as alone.
template <class Element, int Device>
void check_bits_alone(const attention_case& asked) {
  if (Device > 0 && !hip_target<Device>::why_absent().empty()) {
    return;
  }
  const auto target = require_target<hip_target<Device>>();
  auto batch = attention_batch_under_test<Element, hnd_by_block, bfloat16>(asked, seed);
  const auto together = batch.run(target, Device);
  for (auto row = std::size_t{0}; row < asked.lengths.size(); ++row) {
    INFO("row " << row << ", " << Element::name << ", device " << Device);
    const auto alone = batch.run(target, Device, row);
    CHECK(batch.numbers_of_row(alone, row) == batch.numbers_of_row(together, row));
  }
}

TEST_CASE("a fixed split gives the same bits in every batch", "[attention]") {
  auto asked = attention_case{};
  asked.lengths = {300, 3, 1100, 0, 128, 129};
  asked.queries = std::vector<std::int32_t>{1, 1, 3, 1, 2, 1};
  asked.split_tokens = 64;
  asked.num_shares = 13;
  asked.group_size = 3;
  asked.sinks = true;
  check_bits_alone<float32, 0>(asked);
  check_bits_alone<float16, 0>(asked);
  check_bits_alone<bfloat16, 1>(asked);
  check_bits_alone<int8, 2>(asked);
  // Sequences would share the read of a prefix.
  asked.shared = {{}, {}, {0, 272}, {}, {0, 112}, {0, 112}};
  asked.prefill = true;
  check_bits_alone<bfloat16, 1>(asked);
  asked.prefill = false;
  asked.window = 200;
  check_bits_alone<bfloat16, 2>(asked);
}

TEST_CASE("attention by a plan that was made some tokens earlier", "[attention]") {
  auto asked = attention_case{};
  asked.lengths = {250, 33, 700, 0, 48};
  asked.num_shares = 23;
  asked.group_size = 2;
  for (const auto grown : {1, 16, 33, -1, -16, -45}) {
    asked.grown = grown;
    asked.lengths[3] = std::max(0, grown);
    asked.window = 0;
    check_on_every_device<bfloat16, float32>(asked, seed);
    check_on_every_device<float32, float32>(asked, seed);
    asked.window = 40;
    check_on_every_device<bfloat16, float32>(asked, seed);
    check_on_every_device<float32, float32>(asked, seed);
  }
  asked.tree = true;
  asked.queries = std::vector<std::int32_t>{4, 16, 9, 1, 2};
  check_on_every_device<bfloat16, float32>(asked, seed);
}

TEST_CASE("blocks with ids beyond 65,535, further apart than 32 bits", "[attention]") {
  auto asked = attention_case{};
  asked.lengths = {40, 3};
  asked.far = true;
  check_on_every_device<bfloat16, bfloat16>(asked, seed);
  check_on_every_device<int8, float32>(asked, seed);
  check_on_every_device<float32, float32>(asked, seed);
  asked.prefill = true;
  check_on_every_device<float16, float32>(asked, seed);
}

TEST_CASE("a batch that fits no plan is refused before anything is enqueued", "[attention]") {
  const auto target = require_target<hip_target<0>>();
  auto asked = attention_case{};
  asked.lengths = {20};
  auto batch = attention_batch_under_test<bfloat16, nhd_by_layer, bfloat16>(asked, seed);
  const auto queries = token_rows<const std::uint16_t>{.num_heads = batch.num_heads()};
  const auto refused = [&](const block_storage_view& view, std::int32_t layer, const attention_batch& asked_batch,
                           const attention_options& options = {}) {
    return said(hip::attend<bfloat16, bfloat16>(view, layer, asked_batch, queries, {}, options, target.stream()));
  };
  auto planned = batch.host_batch();
  auto words = std::vector<std::byte>(64);
  planned.plan = {hip::attention_shape_on<bfloat16>(0, batch.view(), 1, 1).value(), words.data(), words.data()};
  const auto with_shape = [&](auto&& change) {
    auto other = planned;
    change(other.plan.shape);
    return other;
  };
  const auto with_view = [&](auto&& change) {
    auto other = batch.view();
    change(other);
    return other;
  };
  const auto for_lists = with_shape([](auto& shape) { shape.lists = listed_blocks::of_heads; });
  auto with_lists = with_shape([](auto& shape) {
    shape.kernel = kernel_kind::waves;
    shape.lists = listed_blocks::of_rows;
    shape.block_size = 24;
  });
  with_lists.lists.kind = listed_blocks::of_rows;
  const auto for_latent = with_shape([](auto& shape) { shape.kernel = kernel_kind::latent; });
  const auto for_plain = with_shape([](auto& shape) { shape.kernel = kernel_kind::plain; });
  const auto for_waves = with_shape([](auto& shape) { shape.kernel = kernel_kind::waves; });
  const auto masks = std::vector<std::uint32_t>(1);
  auto with_trees = for_waves;
  with_trees.tree_masks = masks;
  const auto with_short_values = with_view([](auto& view) {  // of latent vectors
    view.head_dim = kernels::largest_plain_dim;
    view.value_dim = 256;
    view.value_offset = 0;
  });
  const auto number = [](auto value) { return std::to_string(value); };
  check_messages({
      {refused(batch.view(), 0, batch.host_batch()),
       invalid("attention_batch.plan.words or .workspace, which is null, is 0")},
      {refused(batch.view(), 2, planned), invalid("layer is 2, limit " + number(batch.view().num_layers - 1))},
      {refused(batch.view(), 0, planned, {.window = 5}),
       invalid("window of attention_batch.plan, which is not that of the options, is 0, limit 5")},
      {refused(batch.view(), 0, with_shape([](auto& shape) { shape.window = -1; }), {.window = -1}),
       invalid("attention_options.window is -1, limit 0")},
      {refused(batch.view(), 0, planned, {.soft_cap = -5}),
       invalid("attention_options.soft_cap, rounded down, is -5, limit 0")},
      {refused(batch.view(), 0, with_shape([](auto& shape) { shape.block_size = 5; })),
       invalid("block_size of attention_batch.plan, which is not the storage's, is 5, limit " +
               number(batch.view().block_size))},
      {refused(batch.view(), 0, with_shape([](auto& shape) { shape.num_kv_heads = 7; })),
       invalid("num_kv_heads of attention_batch.plan, which is not the storage's, is 7, limit " +
               number(batch.view().num_kv_heads))},
      {refused(batch.view(), 0, with_shape([](auto& shape) { shape.group_size = 3; })),
       invalid("num_heads of the queries, which are not those of attention_batch.plan, is " +
               number(batch.num_heads()) + ", limit " + number(3 * batch.view().num_kv_heads))},
      {refused(batch.view(), 0, for_lists),
       invalid("kind of the lists of attention_batch.plan, which is not the batch's, is 2, limit 0")},
      {refused(with_view([](auto& view) { view.block_size = 24; }), 0, with_lists),
       invalid("kernel of attention_batch.plan, which reads no lists of blocks whose size no tile divides, is 1, "
               "limit 0")},
      {refused(with_view([](auto& view) { view.head_dim = kernels::largest_plain_dim; }), 0, for_latent),
       invalid("latent vectors in the storage, for which attention_batch.plan was made, is 0, limit 1")},
      {refused(with_short_values, 0, for_latent),
       invalid("latent vectors in the storage, for which attention_batch.plan was made, is 0, limit 1")},
      {refused(with_view([](auto& view) { view.head_dim = 600; }), 0, for_plain),
       invalid("head_dim of the storage, for attention, is 600, limit " + number(kernels::largest_plain_dim))},
      {refused(with_view([](auto& view) { view.value_dim = 600; }), 0, for_plain),
       invalid("value_dim of the storage, for attention, is 600, limit " + number(kernels::largest_value_dim))},
      {refused(with_view([](auto& view) { view.base += 2; }), 0, for_waves),
       invalid("kernel of attention_batch.plan, which reads no keys and values that are not aligned, is 1, limit 0")},
      {refused(batch.view(), 0, with_trees),
       invalid("kernel of attention_batch.plan, which takes no tree masks, nor values unlike keys, is 1, limit 2")},
      {refused(batch.view(), 0, planned), invalid("num_tokens of the queries is 0, limit 1")},
  });
}

}  // namespace attention_tests
