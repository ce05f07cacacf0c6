#include "../support/messages.hpp"
#include "check_storage.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <numeric>

namespace append_gather_test {

using namespace pagedkv;
using namespace pagedkv::test;

// Block sizes, head dimensions (some odd, some beyond 32 lanes of vectors), lengths around a block's end, strides that
// keep and that break alignment, more heads than a workgroup processes per token.
constexpr row_shape shapes[] = {
    {1, 40, 2, 64, 15, 0}, {5, 9, 3, 80, 16, 16},  {8, 8, 1, 96, 17, 0},    {16, 8, 5, 112, 97, 8},
    {16, 4, 2, 128, 1, 3}, {32, 4, 8, 192, 33, 0}, {256, 1, 2, 256, 97, 0}, {16, 3, 1, 640, 20, 0},
    {16, 4, 2, 5, 40, 1},  {5, 30, 7, 33, 97, 0},  {16, 4, 2, 64, 0, 0},    {4, 3, 70, 64, 5, 0},
};

/// The objects of one test in a target's own memory.
template <class Target, class Element, class Layout, class Rows>
struct arrays {
  arrays(const Target& target, const cache_config& config, const std::vector<std::byte>& bytes,
         const std::vector<slot>& slots, const rows_of<Rows>& key_rows, const rows_of<Rows>& value_rows)
      : storage(target, bytes),
        mapping(target, slots),
        keys(target, key_rows.numbers),
        values(target, value_rows.numbers),
        scales(target, config),
        view(scales.in(at(plan<Element, Layout>(config).view, storage.data()))) {}

  [[nodiscard]] std::span<const slot> slots() const { return {mapping.data(), mapping.size()}; }

  target_array<std::byte, Target> storage;
  target_array<slot, Target> mapping;
  target_array<typename Rows::storage, Target> keys;
  target_array<typename Rows::storage, Target> values;
  target_scales<Element, Target> scales;
  block_storage_view view;
};

TEMPLATE_PRODUCT_TEST_CASE("Appended rows lie where the layout says, and nothing else is touched", "[append][random]",
                           (rows_on_host, rows_on_waves_of_64, rows_on_waves_of_32),
                           ((float32, nhd_by_layer), (float16, nhd_by_block), (bfloat16, hnd_by_layer),
                            (int8, hnd_by_block), (int8, nhd_by_layer), (float32, hnd_by_block),
                            (float8_e4m3, hnd_by_layer))) {
  using target_type = typename TestType::target;
  using element = typename TestType::element;
  using layout_type = typename TestType::layout_type;
  auto target = require_target<target_type>();
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937(seed);
  for (const auto& each : shapes) {
    CAPTURE(each.block_size, each.num_kv_heads, each.head_dim, each.num_tokens, each.gap);
    const auto config = make_config(each.block_size, each.num_blocks, 2, each.num_kv_heads, each.head_dim);
    append_and_gather<float32>(target, *lay_out<element, layout_type>(config),
                               random_slots(config, each.num_tokens, random), each.gap, random);
  }
}

TEMPLATE_PRODUCT_TEST_CASE("Values with rows of their own, and latent vectors, are appended and gathered", "[append]",
                           (rows_on_host, rows_on_waves_of_64, rows_on_waves_of_32),
                           ((float32, nhd_by_layer), (bfloat16, hnd_by_block), (int8, hnd_by_layer),
                            (float8_e4m3, nhd_by_layer))) {
  using target_type = typename TestType::target;
  using element = typename TestType::element;
  using storage = typename element::storage;
  auto target = require_target<target_type>();
  auto random = std::mt19937(5);
  for (const auto latent : {false, true}) {
    auto group = group_config{};
    group.kind = latent ? group_kind::latent : group_kind::full;
    group.num_kv_heads = latent ? 1 : 3;
    group.num_layers = 2;
    group.key_dim = 48;
    group.value_dim = latent ? 33 : 72;
    const auto plan =
        plan_storage<typename TestType::layout_type>(group, 8, 5, size_of_element<element>).value();
    const auto memory = target_array<std::byte, target_type>(
        target, random_bytes(static_cast<std::size_t>(plan.bytes), random));
    const auto scales = target_scales<element, target_type>(target, group);
    const auto given = static_scales<element>(group);
    const auto view = scales.in(at(plan.view, memory.data()));
    const auto slots = std::vector{slot{3}, slot{39}, skip_slot, slot{16}};
    const auto mapping = target_array<slot, target_type>(target, slots);
    auto keys = rows_of<float32>(4, group.num_kv_heads, group.key_dim, 3);
    auto values = rows_of<float32>(4, group.num_kv_heads, group.value_dim, 1);
    keys.fill(4, group.num_kv_heads, random, 3.0F);
    values.fill(4, group.num_kv_heads, random, 300.0F);
    const auto key_in = target_array<float, target_type>(target, keys.numbers);
    const auto value_in = target_array<float, target_type>(target, values.numbers);
    const auto key_out = target_array<float, target_type>(target, keys.numbers);
    const auto value_out = target_array<float, target_type>(target, values.numbers);
    const float* const key_data = key_in.data();
    const float* const value_data = value_in.data();
    const auto mapped = std::span<const slot>(mapping.data(), slots.size());
    REQUIRE(target.backend.template append<element>(view, 1, mapped, keys.view(key_data), values.view(value_data),
                                                    target.stream()));
    REQUIRE(target.backend.template gather<element>(view, 1, mapped, keys.view(key_out.data()),
                                                    values.view(value_out.data()), target.stream()));
    REQUIRE(target.backend.synchronize(target.stream()));
    auto stored = memory.values();
    const auto host_view = at(plan.view, stored.data());
    const auto check_row = [&](const storage* row, float scale, const float* written, const float* gathered,
                               std::int32_t dim) {
      for (auto i = 0; i < dim; ++i) {
        const auto number = element::decode(row[i], scale);
        CHECK(gathered[i] == number);
        const auto relative = std::abs(written[i]) / (has_static_scales<element> ? 15.9F : 128);
        const auto smallest = has_static_scales<element> ? scale * 0x1p-10F : 0.0F;
        CHECK(std::abs(number - written[i]) <= (element::scaled ? scale * 0.501F : std::max(relative, smallest)));
      }
    };
    auto got_keys = keys;
    auto got_values = values;
    got_keys.numbers = key_out.values();
    got_values.numbers = value_out.values();
    for (const auto token : {0, 1, 3}) {
      const auto at_slot = static_cast<std::int32_t>(slots[static_cast<std::size_t>(token)]);
      for (auto head = 0; head < group.num_kv_heads; ++head) {
        const auto block = at_slot / 8;
        const auto offset = at_slot % 8;
        check_row(host_view.template key<storage>(1, block, offset, head),
                  element::scaled ? *host_view.key_scale(1, block, offset, head) : given.of(false, 1, head),
                  keys.row(token, head), got_keys.row(token, head), group.key_dim);
        // A latent value is the first part of its key.
        check_row(host_view.template value<storage>(1, block, offset, head),
                  element::scaled ? *host_view.value_scale(1, block, offset, head) : given.of(true, 1, head),
                  latent ? keys.row(token, head) : values.row(token, head), got_values.row(token, head),
                  group.value_dim);
      }
    }
  }
}

constexpr auto nan = std::numeric_limits<float>::quiet_NaN();
constexpr auto infinity = std::numeric_limits<float>::infinity();

/// Rows of 64 with special inputs for quantisers and converters.
std::vector<std::vector<float>> special_rows() {
  auto rows = std::vector<std::vector<float>>(9, std::vector<float>(64, 0.0F));
  rows[1][3] = 254.0F;
  rows[1][9] = -254.0F;
  for (auto i = std::size_t{0}; i < 64; ++i) {
    rows[2][i] = static_cast<float>(i) - 0.5F;
    rows[3][i] = std::numeric_limits<float>::denorm_min() * static_cast<float>(i);
    rows[4][i] = 1e-3F * static_cast<float>(i % 7);
    rows[5][i] = rows[6][i] = rows[7][i] = static_cast<float>(i) / 8;
    rows[8][i] = i % 2 == 0 ? std::numeric_limits<float>::max() : std::numeric_limits<float>::min();
  }
  rows[2][63] = 127.0F;
  rows[4][40] = 1e4F;
  rows[5][20] = nan;
  rows[6][21] = infinity;
  rows[7][22] = -infinity;
  return rows;
}

TEMPLATE_PRODUCT_TEST_CASE("Special numbers survive as their element promises", "[append]",
                           (rows_on_host, rows_on_waves_of_64, rows_on_waves_of_32),
                           ((float32, nhd_by_layer), (float16, nhd_by_layer), (bfloat16, nhd_by_layer),
                            (int8, nhd_by_layer))) {
  using target_type = typename TestType::target;
  using element = typename TestType::element;
  auto target = require_target<target_type>();
  const auto special = special_rows();
  const auto tokens = static_cast<std::int64_t>(special.size());
  const auto config = make_config(16, 1, 1, 1, 64);
  auto keys = rows_of<float32>(tokens, 1, 64, 0);
  auto values = rows_of<float32>(tokens, 1, 64, 0);
  for (auto token = std::int64_t{0}; token < tokens; ++token) {
    std::ranges::copy(special[static_cast<std::size_t>(token)], keys.row(token, 0));
    std::ranges::copy(special[static_cast<std::size_t>(tokens - 1 - token)], values.row(token, 0));
  }
  auto slots = std::vector<slot>(special.size());
  std::generate(slots.begin(), slots.end(), [next = std::int64_t{0}]() mutable { return slot{next++}; });
  const auto bytes = std::vector<std::byte>(static_cast<std::size_t>(plan<element, nhd_by_layer>(config).bytes));
  auto on = arrays<target_type, element, nhd_by_layer, float32>(target, config, bytes, slots, keys, values);
  const float* const key_data = on.keys.data();
  const float* const value_data = on.values.data();
  REQUIRE(target.backend.template append<element>(on.view, 0, on.slots(), keys.view(key_data), values.view(value_data),
                                                  target.stream()));
  REQUIRE(target.backend.synchronize(target.stream()));
  auto stored = on.storage.values();
  const auto storage = reference_storage<element, nhd_by_layer>{config, stored.data()};
  for (auto token = std::int64_t{0}; token < tokens; ++token) {
    CAPTURE(token);
    const auto& row = special[static_cast<std::size_t>(token)];
    const auto key = storage.read_row(false, 0, 0, token, 0);
    CHECK(same_bits(storage.read_row(true, 0, 0, tokens - 1 - token, 0), key));
    const auto finite = std::ranges::all_of(row, [](float x) { return std::isfinite(x); });
    if (element::scaled && !finite) {
      CHECK(std::ranges::all_of(key, [](float x) { return std::isnan(x); }));
      continue;
    }
    const auto scale = storage.read_scale(false, 0, 0, token, 0);
    for (auto i = std::size_t{0}; i < row.size(); ++i) {
      CAPTURE(i, row[i], key[i]);
      if (element::scaled) {
        CHECK(std::abs(double{key[i]} - double{row[i]}) <= double{scale} / 2 * (1 + 0x1p-14));
      } else {
        const auto right = element::decode(element::encode(row[i], 1.0F), 1.0F);
        CHECK((std::isnan(row[i]) ? std::isnan(key[i]) : key[i] == right));
      }
    }
  }
  if constexpr (element::scaled) {
    CHECK(storage.row(false, 0, 0, 1, 0)[3] == 127);
    CHECK(storage.row(false, 0, 0, 1, 0)[9] == -127);
    CHECK(storage.row(false, 0, 0, 0, 0)[0] == 0);
  }
}

TEMPLATE_TEST_CASE("Slots that are all negative, or none, change nothing", "[append]", host_target, hip_target<0>,
                   hip_target<1>) {
  auto target = require_target<TestType>();
  auto random = std::mt19937(3);
  const auto config = make_config(16, 2, 1, 2, 64);
  const auto bytes = random_bytes(static_cast<std::size_t>(plan<int8, nhd_by_layer>(config).bytes), random);
  for (const auto count : {std::size_t{0}, std::size_t{9}}) {
    const auto slots = std::vector<slot>(count, skip_slot);
    const auto tokens = static_cast<std::int64_t>(count);
    auto rows = rows_of<float32>(tokens, 2, 64, 0);
    auto on = arrays<TestType, int8, nhd_by_layer, float32>(target, config, bytes, slots, rows, rows);
    const float* const data = on.keys.data();
    REQUIRE(target.backend.template append<int8>(on.view, 0, on.slots(), rows.view(data), rows.view(data),
                                                 target.stream()));
    REQUIRE(target.backend.template gather<int8>(on.view, 0, on.slots(), rows.view(on.keys.data()),
                                                 rows.view(on.values.data()), target.stream()));
    REQUIRE(target.backend.synchronize(target.stream()));
    CHECK(on.storage.values() == bytes);
    CHECK(on.keys.values() == rows.numbers);
    CHECK(on.values.values() == rows.numbers);
  }
}

TEMPLATE_TEST_CASE("Long ragged runs are appended and gathered whole", "[append]", hip_target<0>, hip_target<1>) {
  auto target = require_target<TestType>();
  auto random = std::mt19937(4);
  const auto config = make_config(16, 2160, 1, 1, 8);
  for (const auto count : {std::size_t{999}, std::size_t{32789}}) {
    auto slots = std::vector<slot>(count);
    std::generate(slots.begin(), slots.end(), [next = std::int64_t{0}]() mutable { return slot{next++}; });
    std::shuffle(slots.begin(), slots.end(), random);
    const auto tokens = static_cast<std::int64_t>(count);
    auto keys = rows_of<float32>(tokens, 1, 8, 0);
    auto values = rows_of<float32>(tokens, 1, 8, 0);
    keys.fill(tokens, 1, random, 1.0F);
    values.fill(tokens, 1, random, 1.0F);
    auto expected = random_bytes(static_cast<std::size_t>(plan<float16, nhd_by_layer>(config).bytes), random);
    auto on = arrays<TestType, float16, nhd_by_layer, float32>(target, config, expected, slots, keys, values);
    const float* const key_data = on.keys.data();
    const float* const value_data = on.values.data();
    REQUIRE(target.backend.template append<float16>(on.view, 0, on.slots(), keys.view(key_data),
                                                    values.view(value_data), target.stream()));
    REQUIRE(target.backend.synchronize(target.stream()));
    reference_append(reference_storage<float16, nhd_by_layer>{config, expected.data()}, 0, slots, keys, values);
    CHECK(on.storage.values() == expected);
  }
}

template <class Element, class Rows>
struct element_and_rows {
  using element = Element;
  using rows = Rows;
};

/// Appends rows to one storage and gathers them again, on one target.
template <class Target, class Element, class Rows>
void append_and_gather_rows() {
  if (const auto why = Target::why_absent(); !why.empty()) {
    WARN(Target::name << " is absent: " << why);
    return;
  }
  INFO(Target::name);
  auto target = Target();
  auto random = std::mt19937(5);
  for (const auto head_dim : {64, 80, 36, 7, 520}) {
    const auto config = make_config(16, 4, 2, 3, head_dim);
    append_and_gather<Rows>(target, *lay_out<Element, hnd_by_layer>(config), random_slots(config, 40, random), 0,
                            random);
  }
}

TEMPLATE_TEST_CASE("Rows of every element are appended to every element and gathered as any", "[append]",
                   (element_and_rows<float32, float16>), (element_and_rows<float32, bfloat16>),
                   (element_and_rows<float16, float16>), (element_and_rows<float16, bfloat16>),
                   (element_and_rows<bfloat16, float16>), (element_and_rows<bfloat16, bfloat16>),
                   (element_and_rows<int8, float16>), (element_and_rows<int8, bfloat16>),
                   (element_and_rows<float8_e4m3, float16>), (element_and_rows<float8_e4m3, bfloat16>)) {
  using element = typename TestType::element;
  using rows = typename TestType::rows;
  append_and_gather_rows<host_target, element, rows>();
  append_and_gather_rows<hip_target<0>, element, rows>();
  append_and_gather_rows<hip_target<1>, element, rows>();
}

TEMPLATE_TEST_CASE("Equal elements are appended and gathered bit for bit, signalling NaN included", "[append]",
                   host_target, hip_target<0>, hip_target<1>) {
  auto target = require_target<TestType>();
  const auto config = make_config(16, 4096, 1, 1, 1);
  auto keys = rows_of<float16>(65536, 1, 1, 0);
  std::iota(keys.numbers.begin(), keys.numbers.end(), std::uint16_t{0});
  auto slots = std::vector<slot>(65536);
  std::generate(slots.begin(), slots.end(), [next = std::int64_t{0}]() mutable { return slot{next++}; });
  const auto bytes = std::vector<std::byte>(static_cast<std::size_t>(plan<float16, nhd_by_layer>(config).bytes));
  auto on = arrays<TestType, float16, nhd_by_layer, float16>(target, config, bytes, slots, keys, keys);
  const std::uint16_t* const data = on.keys.data();
  REQUIRE(target.backend.template append<float16, float16>(on.view, 0, on.slots(), keys.view(data), keys.view(data),
                                                           target.stream()));
  const auto out = target_array<std::uint16_t, TestType>(target, std::vector<std::uint16_t>(65536));
  REQUIRE(target.backend.template gather<float16, float16>(on.view, 0, on.slots(), keys.view(out.data()),
                                                           keys.view(on.values.data()), target.stream()));
  REQUIRE(target.backend.synchronize(target.stream()));
  CHECK(out.values() == keys.numbers);
  CHECK(on.values.values() == keys.numbers);
}

TEMPLATE_TEST_CASE("A layer outside the storage is refused", "[append]", host_target, hip_target<0>) {
  auto target = require_target<TestType>();
  const auto config = make_config(16, 2, 3, 2, 64);
  const auto view = plan<float32, nhd_by_layer>(config).view;
  for (const auto layer : {-1, 3}) {
    const auto refused = target.backend.template append<float32>(view, layer, {}, {}, {}, target.stream());
    REQUIRE(refused.has_error());
    CHECK(refused.error().code == error_code::invalid_argument);
    CHECK(refused.error().value == layer);
    CHECK(target.backend.template gather<float32>(view, layer, {}, {}, {}, target.stream()).has_error());
  }
}

TEMPLATE_TEST_CASE("Rows of another shape than the storage's are refused", "[append]", host_target, hip_target<0>) {
  auto target = require_target<TestType>();
  const auto view = plan<float32, nhd_by_layer>(make_config(16, 2, 1, 2, 24)).view;
  auto numbers = std::vector<float>(2 * 2 * 24);
  const auto slots = std::array<slot, 2>{slot{0}, slot{1}};
  const auto messages_of = [&](std::int32_t num_heads, std::int32_t head_dim, std::int64_t num_tokens) {
    const auto right = contiguous_rows(numbers, 2, 24);
    auto wrong = right;
    wrong.num_heads = num_heads;
    wrong.head_dim = head_dim;
    wrong.num_tokens = num_tokens;
    auto messages = std::vector<std::string>();
    for (const auto& [keys, values] : {std::pair(wrong, right), std::pair(right, wrong)}) {
      const auto appended = target.backend.template append<float32>(view, 0, slots, keys, values, target.stream());
      const auto gathered = target.backend.template gather<float32>(view, 0, slots, keys, values, target.stream());
      REQUIRE(appended.has_error());
      REQUIRE(gathered.has_error());
      CHECK(gathered.error().message() == appended.error().message());
      messages.push_back(appended.error().message());
    }
    return messages;
  };
  const auto said = [](const std::string& what) { return "invalid argument: " + what; };
  CHECK(messages_of(3, 24, 2) ==
        std::vector{said("heads of keys in token_rows, which are not the storage's, is 3, limit 2"),
                    said("heads of values in token_rows, which are not the storage's, is 3, limit 2")});
  CHECK(messages_of(2, 64, 2) ==
        std::vector{said("numbers of a key in token_rows, which are not the storage's, is 64, limit 24"),
                    said("numbers of a value in token_rows, which are not the storage's, is 64, limit 24")});
  CHECK(messages_of(2, 24, 1) == std::vector(2, said("number of slots, more than rows, is 2, limit 1")));
}

TEST_CASE("Strides that kernels cannot count are refused", "[append]") {
  const auto target = require_target<hip_target<0>>();
  auto view = plan<float32, nhd_by_layer>(make_config(16, 2, 1, 2, 64)).view;
  view.head_stride = std::int64_t{1} << 32;
  const auto refused = hip::append<float32, float32>(view, 0, {}, {}, {}, target.stream());
  CHECK(test::said(refused) == test::invalid("stride within a block is 4294967296, limit 536870911"));
}

TEST_CASE("More tokens than a launch takes are refused", "[append]") {
  const auto target = require_target<hip_target<0>>();
  const auto view = plan<float32, nhd_by_layer>(make_config(16, 2, 1, 1, 64)).view;
  const auto most = static_cast<std::size_t>(kernels::max_tokens_per_launch);
  const auto slots = std::span<const slot>(static_cast<const slot*>(nullptr), most + 1);
  const auto refused = hip::append<float32, float32>(view, 0, slots, {}, {}, target.stream());
  const auto limit = std::to_string(kernels::max_tokens_per_launch);
  CHECK(test::said(refused) ==
        test::invalid("number of tokens in one call is " + std::to_string(most + 1) + ", limit " + limit));
  CHECK(hip::gather<float32, float32>(view, 0, slots, {}, {}, target.stream()).has_error());
}

}  // namespace append_gather_test
