// Rows go in and out of a cache as an engine stores them.

#include "../support/cache_fixture.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <numeric>
#include <type_traits>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

template <class Element, class Rows>
struct element_and_rows {
  using element = Element;
  using rows = Rows;
};

/// Relative error of a number that an element stores, with room.
template <class Element>
constexpr float error_of = std::is_same_v<Element, float32>   ? 1e-5f
                           : std::is_same_v<Element, float16> ? 2e-3f
                           : has_static_scales<Element>       ? 6.5e-2f
                                                              : 1.6e-2f;

}  // namespace

TEMPLATE_TEST_CASE("rows of an engine's type are written and read", "[cache]",
                   (element_and_rows<float32, float32>), (element_and_rows<float32, float16>),
                   (element_and_rows<float16, float16>), (element_and_rows<float16, bfloat16>),
                   (element_and_rows<bfloat16, bfloat16>), (element_and_rows<bfloat16, float16>),
                   (element_and_rows<int8, float16>), (element_and_rows<int8, bfloat16>),
                   (element_and_rows<float8_e4m3, float16>), (element_and_rows<float8_e4m3, float32>)) {
  using element = typename TestType::element;
  using rows = typename TestType::rows;
  auto config = small_cache(8);
  config.num_kv_heads = 2;
  config.head_dim = 40;
  auto cache = kv_cache<element>{config};
  const auto id = cache.create_sequence(text(0, 11)).value().id;
  auto slots = std::vector<slot>(11);
  REQUIRE(cache.slot_mapping(id, 0, slots));
  auto keys = std::vector<typename rows::storage>(11 * 2 * 40);
  auto values = keys;
  for (auto i = std::size_t{0}; i < keys.size(); ++i) {
    keys[i] = rows::encode(std::sin(static_cast<float>(i)), 1);
    values[i] = rows::encode(40 * std::cos(static_cast<float>(i)), 1);
  }
  const auto in = contiguous_rows(keys, 2, 40);
  REQUIRE(cache.template write<rows>(0, slots, in, contiguous_rows(values, 2, 40)));
  auto read_keys = std::vector<typename rows::storage>(keys.size());
  auto read_values = read_keys;
  REQUIRE(cache.template read<rows>(0, slots, contiguous_rows(read_keys, 2, 40), contiguous_rows(read_values, 2, 40)));
  if constexpr (std::is_same_v<element, rows>) {
    CHECK(read_keys == keys);
    CHECK(read_values == values);
  }
  const auto close = [](const auto& written, const auto& read, float magnitude) {
    return std::equal(written.begin(), written.end(), read.begin(), [&](auto a, auto b) {
      const auto allowed = element::scaled ? magnitude / 127 / 2 + error_of<rows> * magnitude
                                           : (error_of<element> + error_of<rows>)*magnitude;
      return std::abs(rows::decode(a, 1) - rows::decode(b, 1)) <= allowed;
    });
  };
  CHECK(close(keys, read_keys, 1));
  CHECK(close(values, read_values, 40));
  CHECK_FALSE(cache.template write<rows>(0, slots, {keys.data(), 80, 40, 0, 2, 40}, in));
  CHECK(cache.release(id));
}

TEST_CASE("a cache stores rows with the scales that the engine gives", "[cache]") {
  const auto scales = std::vector{0.5f, 4.0f, 0.25f, 8.0f};  // of K and V, layer by layer
  auto config = small_cache(8);
  config.num_layers = 2;
  config.num_kv_heads = 2;
  config.head_dim = 3;
  config.scales = scales.data();
  auto cache = kv_cache<float8_e4m3>{config};
  const auto id = cache.create_sequence(text(0, 1)).value().id;
  auto slots = std::vector<slot>(1);
  REQUIRE(cache.slot_mapping(id, 0, slots));
  const auto keys = std::vector{1.0f, -300.0f, 0.4f, 7.0f, 1e5f, 0.0f};
  const auto values = std::vector{1.0f, -3000.0f, 2.5f, 64.0f, 1e5f, 0.0f};
  for (const auto layer : {0, 1}) {
    REQUIRE(cache.write(layer, slots, contiguous_rows(keys, 2, 3), contiguous_rows(values, 2, 3)));
    auto read_keys = keys;
    auto read_values = values;
    REQUIRE(cache.read(layer, slots, contiguous_rows(read_keys, 2, 3), contiguous_rows(read_values, 2, 3)));
    for (auto i = std::size_t{0}; i < keys.size(); ++i) {
      const auto as_stored = [&](float number, float scale) {
        return float8_e4m3::decode(float8_e4m3::encode(number, scale), scale);
      };
      const auto first = static_cast<std::size_t>(2 * layer);
      CHECK(read_keys[i] == as_stored(keys[i], scales[first]));
      CHECK(read_values[i] == as_stored(values[i], scales[first + 1]));
    }
    CHECK(read_keys[4] == 448 * scales[static_cast<std::size_t>(2 * layer)]);
  }
  CHECK(kv_cache<float16>::create(config).error().code == error_code::invalid_argument);
  CHECK(cache.release(id));
}
