#include "../support/messages.hpp"
#include "../support/printing.hpp"
#include "reference.hpp"
#include "target.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <cmath>

namespace rope_append_test {

using namespace pagedkv;
using namespace pagedkv::test;
using kernels::rope_pairing;

constexpr auto num_positions = std::int64_t{600};

/// Angles as RoFormer defines them, base 10000.
double angle(std::int64_t position, std::int32_t pair, std::int32_t rotary_dim) {
  return static_cast<double>(position) * std::pow(10000.0, -2.0 * pair / rotary_dim);
}

std::vector<float> make_table(std::int32_t rotary_dim) {
  auto table = std::vector<float>();
  for (auto position = std::int64_t{0}; position < num_positions; ++position) {
    for (auto pair = 0; pair < rotary_dim / 2; ++pair) {
      table.push_back(static_cast<float>(std::cos(angle(position, pair, rotary_dim))));
    }
    for (auto pair = 0; pair < rotary_dim / 2; ++pair) {
      table.push_back(static_cast<float>(std::sin(angle(position, pair, rotary_dim))));
    }
  }
  return table;
}

/// Rotation in float64, pair by pair.
std::vector<double> rotate(const std::vector<float>& row, std::int64_t position, std::int32_t rotary_dim,
                           rope_pairing pairing) {
  auto rotated = std::vector<double>(row.begin(), row.end());
  for (auto pair = 0; pair < rotary_dim / 2; ++pair) {
    const auto halves = pairing == rope_pairing::halves;
    const auto first = static_cast<std::size_t>(halves ? pair : 2 * pair);
    const auto second = static_cast<std::size_t>(halves ? pair + rotary_dim / 2 : 2 * pair + 1);
    const auto cosine = std::cos(angle(position, pair, rotary_dim));
    const auto sine = std::sin(angle(position, pair, rotary_dim));
    rotated[first] = row[first] * cosine - row[second] * sine;
    rotated[second] = row[first] * sine + row[second] * cosine;
  }
  return rotated;
}

/// The error that storing a row as `Element` may add to float32's own rounding.
template <class Element>
double tolerance(const std::vector<double>& row, double number) {
  const auto largest = std::abs(*std::ranges::max_element(row, {}, [](double x) { return std::abs(x); }));
  const auto arithmetic = largest * 1e-6;
  if constexpr (is_float8<Element>) {
    return std::max(std::abs(number) * 0x1p-4, 0x1p-10) * (1 + 1e-4) + arithmetic;  // the scale is not above 1.3
  }
  if (Element::scaled) {
    return largest / 127 / 2 * (1 + 1e-4) + arithmetic;
  }
  const auto step = sizeof(typename Element::storage) == 4 ? 0x1p-23 : Element::name == "float16" ? 0x1p-11 : 0x1p-8;
  return std::abs(number) * step + arithmetic;
}

template <class Target, class Element, class Input, rope_pairing Pairing>
struct combination {
  using target = Target;
  using element = Element;
  using input = Input;
  static constexpr auto pairing = Pairing;
};

TEMPLATE_TEST_CASE("Keys are rotated to their position and values are not", "[rope][random]",
                   (combination<hip_target<0>, float32, float32, rope_pairing::halves>),
                   (combination<hip_target<1>, float32, float32, rope_pairing::neighbours>),
                   (combination<hip_target<0>, float16, float16, rope_pairing::halves>),
                   (combination<hip_target<1>, float16, bfloat16, rope_pairing::neighbours>),
                   (combination<hip_target<0>, bfloat16, float32, rope_pairing::neighbours>),
                   (combination<hip_target<1>, bfloat16, bfloat16, rope_pairing::halves>),
                   (combination<hip_target<0>, int8, float16, rope_pairing::neighbours>),
                   (combination<hip_target<1>, int8, float32, rope_pairing::halves>),
                   (combination<hip_target<0>, float8_e4m3, bfloat16, rope_pairing::halves>)) {
  using element = typename TestType::element;
  using input = typename TestType::input;
  using target_type = typename TestType::target;
  auto target = require_target<target_type>();
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937(seed);
  // Whole and partial rotation; dimensions that are multiples of vectors, and others.
  for (const auto& dims : {std::pair{128, 128}, {64, 32}, {80, 20}, {96, 96}, {10, 6}, {64, 0}}) {
    const auto head_dim = dims.first;
    const auto rotary_dim = dims.second;
    CAPTURE(head_dim, rotary_dim);
    const auto config = make_config(16, 3, 2, 2, head_dim);
    const auto slots = random_slots(config, 30, random);
    auto keys = rows_of<input>(30, 2, head_dim, 0);
    auto values = rows_of<input>(30, 2, head_dim, 0);
    keys.fill(30, 2, random, 5.0F);
    values.fill(30, 2, random, 5.0F);
    auto positions = std::vector<std::int64_t>(30);
    std::generate(positions.begin(), positions.end(),
                  [&] { return static_cast<std::int64_t>(random() % num_positions); });
    positions[0] = num_positions - 1;
    for (auto i = std::size_t{0}; i < slots.size(); ++i) {
      if (static_cast<std::int64_t>(slots[i]) < 0) {
        positions[i] = i % 2 == 0 ? -1 : num_positions;
      }
    }

    const auto bytes = random_bytes(static_cast<std::size_t>(plan<element, nhd_by_layer>(config).bytes), random);
    const auto storage = target_array<std::byte, target_type>(target, bytes);
    const auto mapping = target_array<slot, target_type>(target, slots);
    const auto key_array = target_array<typename input::storage, target_type>(target, keys.numbers);
    const auto value_array = target_array<typename input::storage, target_type>(target, values.numbers);
    const auto position_array = target_array<std::int64_t, target_type>(target, positions);
    const auto table = target_array<float, target_type>(target, make_table(rotary_dim));
    const typename input::storage* const key_data = key_array.data();
    const typename input::storage* const value_data = value_array.data();
    const auto scales = target_scales<element, target_type>(target, config);
    REQUIRE(hip::rope_append<element, input, TestType::pairing>(
        scales.in(at(plan<element, nhd_by_layer>(config).view, storage.data())), 1, {mapping.data(), mapping.size()},
        keys.view(key_data), values.view(value_data), {position_array.data(), position_array.size()},
        {table.data(), num_positions, rotary_dim}, {}, target.stream()));
    REQUIRE(target.backend.synchronize(target.stream()));

    auto got = storage.values();
    const auto result = reference_storage<element, nhd_by_layer>{config, got.data()};
    auto expected = got;
    const auto reference = reference_storage<element, nhd_by_layer>{config, expected.data()};
    for_each_mapped(config, slots, [&](auto token, auto block, auto offset, auto head) {
      const auto rotated =
          rotate(keys.decoded(token, head), positions[static_cast<std::size_t>(token)], rotary_dim, TestType::pairing);
      const auto key = result.read_row(false, 1, block, offset, head);
      for (auto i = std::size_t{0}; i < rotated.size(); ++i) {
        if (std::abs(double{key[i]} - rotated[i]) > tolerance<element>(rotated, rotated[i])) {
          CAPTURE(token, head, i, key[i], rotated[i]);
          FAIL("rotated wrongly");
        }
      }
      reference.write_row(true, 1, block, offset, head, values.decoded(token, head));
    });
    CHECK(got == expected);
    for_each_mapped(config, slots, [&](auto, auto block, auto offset, auto head) {
      const auto restore = [&](bool value) {
        const auto original = reference_storage<element, nhd_by_layer>{config, const_cast<std::byte*>(bytes.data())};
        const auto row_bytes = static_cast<std::size_t>(result.row_bytes());
        std::memcpy(result.row(value, 1, block, offset, head), original.row(value, 1, block, offset, head), row_bytes);
        if (element::scaled) {
          *result.scale(value, 1, block, offset, head) = *original.scale(value, 1, block, offset, head);
        }
      };
      restore(false);
      restore(true);
    });
    CHECK(got == bytes);
  }
}

TEMPLATE_TEST_CASE("Queries are rotated along, also in place and where no key is stored", "[rope][random]",
                   (combination<hip_target<0>, float32, float32, rope_pairing::halves>),
                   (combination<hip_target<1>, int8, float16, rope_pairing::neighbours>),
                   (combination<hip_target<0>, float16, bfloat16, rope_pairing::halves>)) {
  using element = typename TestType::element;
  using input = typename TestType::input;
  using target_type = typename TestType::target;
  auto target = require_target<target_type>();
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937(seed);
  constexpr auto num_tokens = std::int64_t{30};
  // More heads than a workgroup processes at once; fewer than keys have; none.
  for (const auto num_heads : {40, 1, 0}) {
    for (const auto& dims : {std::pair{128, 64}, {10, 6}}) {
      for (const auto in_place : {false, true}) {
        const auto head_dim = dims.first;
        const auto rotary_dim = dims.second;
        CAPTURE(num_heads, head_dim, in_place);
        const auto config = make_config(16, 3, 1, 2, head_dim);
        const auto slots = random_slots(config, num_tokens, random);
        auto keys = rows_of<input>(num_tokens, 2, head_dim, 0);
        keys.fill(num_tokens, 2, random, 5.0F);
        auto queries = rows_of<input>(num_tokens, num_heads, head_dim, 4);
        queries.fill(num_tokens, num_heads, random, 5.0F);
        auto positions = std::vector<std::int64_t>(num_tokens);
        std::generate(positions.begin(), positions.end(),
                      [&] { return static_cast<std::int64_t>(random() % num_positions); });

        const auto plan_of = plan<element, nhd_by_layer>(config);
        const auto storage = target_array<std::byte, target_type>(
            target, std::vector<std::byte>(static_cast<std::size_t>(plan_of.bytes)));
        const auto mapping = target_array<slot, target_type>(target, slots);
        const auto key_array = target_array<typename input::storage, target_type>(target, keys.numbers);
        const auto from = target_array<typename input::storage, target_type>(target, queries.numbers);
        auto blank = rows_of<input>(num_tokens, num_heads, head_dim, 4);
        const auto to = target_array<typename input::storage, target_type>(target, blank.numbers);
        const auto& written = in_place ? from : to;
        const auto position_array = target_array<std::int64_t, target_type>(target, positions);
        const auto table = target_array<float, target_type>(target, make_table(rotary_dim));
        const typename input::storage* const key_data = key_array.data();
        const typename input::storage* const query_data = from.data();
        REQUIRE(hip::rope_append<element, input, TestType::pairing>(
            at(plan_of.view, storage.data()), 0, {mapping.data(), mapping.size()}, keys.view(key_data),
            keys.view(key_data), {position_array.data(), position_array.size()},
            {table.data(), num_positions, rotary_dim},
            {queries.view(query_data), queries.view(written.data()), num_heads}, target.stream()));
        REQUIRE(target.backend.synchronize(target.stream()));

        auto result = blank;
        result.numbers = written.values();
        for (auto token = std::int64_t{0}; token < num_tokens; ++token) {
          for (auto head = 0; head < num_heads; ++head) {
            const auto rotated = rotate(queries.decoded(token, head), positions[static_cast<std::size_t>(token)],
                                        rotary_dim, TestType::pairing);
            const auto got = result.decoded(token, head);
            for (auto i = std::size_t{0}; i < rotated.size(); ++i) {
              if (std::abs(double{got[i]} - rotated[i]) > tolerance<input>(rotated, rotated[i])) {
                CAPTURE(token, head, i, got[i], rotated[i]);
                FAIL("rotated wrongly");
              }
            }
            std::copy_n(blank.row(token, head), head_dim, result.row(token, head));
          }
        }
        CHECK(result.numbers == blank.numbers);
      }
    }
  }
}

TEST_CASE("Rotations that do not fit are refused", "[rope]") {
  auto target = require_target<hip_target<0>>();
  const auto view = plan<float32, nhd_by_layer>(make_config(16, 2, 1, 1, 64)).view;
  const auto append = [&](std::int32_t rotary_dim, std::span<const std::int64_t> positions) {
    return hip::rope_append<float32, float32, rope_pairing::halves>(view, 0, {}, {}, {}, positions,
                                                                    {nullptr, 10, rotary_dim}, {}, target.stream());
  };
  CHECK(append(64, {}));
  const auto positions = std::vector<std::int64_t>(3);
  const auto of_view = [&](const block_storage_view& other) {
    return said(hip::rope_append<float32, float32, rope_pairing::halves>(other, 0, {}, {}, {}, {}, {nullptr, 10, 62},
                                                                         {}, target.stream()));
  };
  auto unlike = view;
  unlike.value_dim = 32;
  const auto all = token_rows<const float>{nullptr, 128, 64, 3, 2, 64};
  const auto of_queries = [&](const token_rows<const float>& from, const token_rows<float>& to) {
    const auto slots = std::vector<slot>(3);
    const auto keys = token_rows<const float>{nullptr, 64, 64, 3, 1, 64};
    return said(hip::rope_append<float32, float32, rope_pairing::halves>(
        view, 0, slots, keys, keys, positions, {nullptr, 10, 64}, {from, to, 2}, target.stream()));
  };
  check_messages({
      {said(append(66, {})), invalid("rope_table.rotary_dim, which has to be even, is 66, limit 64")},
      {said(append(7, {})), invalid("rope_table.rotary_dim, which has to be even, is 7, limit 6")},
      {said(append(-2, {})), invalid("rope_table.rotary_dim, which has to be even, is -2, limit 0")},
      {said(append(64, positions)), invalid("number of positions is 3, limit 0")},
      {of_view(plan<float32, nhd_by_layer>(make_config(16, 2, 1, 1, 63)).view),
       invalid("head_dim, odd where numbers rotate in pairs, is 63")},
      {of_view(unlike), invalid("value_dim, unlike keys, of storage for rope_append, is 32, limit 64")},
      {of_queries({nullptr, 128, 64, 2, 2, 64}, {}), invalid("num_tokens of rope_queries.from is 2, limit 3")},
      {of_queries({nullptr, 128, 64, 3, 1, 64}, {}), invalid("num_heads of rope_queries.from is 1, limit 2")},
      {of_queries({nullptr, 128, 64, 3, 2, 8}, {}), invalid("head_dim of rope_queries.from is 8, limit 64")},
      {of_queries(all, {nullptr, 128, 64, 2, 2, 64}), invalid("num_tokens of rope_queries.to is 2, limit 3")},
      {of_queries(all, {nullptr, 128, 64, 3, 4, 64}), invalid("num_heads of rope_queries.to is 4, limit 2")},
      {of_queries(all, {nullptr, 128, 64, 3, 2, 8}), invalid("head_dim of rope_queries.to is 8, limit 64")},
  });
}

}  // namespace rope_append_test
