// Products of the example's model.

#include "../../examples/llama/numbers.hpp"

#include <pagedkv/host/thread_pool.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

TEST_CASE("products in parts are whole, with threads and without", "[llama]") {
  constexpr auto num_in = std::int64_t{300};
  const auto num_out = GENERATE(std::int64_t{1}, std::int64_t{700}, std::int64_t{1'001});  // the last two with threads
  const auto num_rows = GENERATE(std::size_t{1}, std::size_t{2}, std::size_t{32}, std::size_t{33});
  CAPTURE(num_out, num_rows);
  const auto numbers = [](std::size_t count, std::size_t stride) {
    auto made = std::vector<float>(count);
    for (auto i = std::size_t{0}; i < count; ++i) {
      made[i] = static_cast<float>(i * stride % 17) - 8;
    }
    return made;
  };
  const auto in = numbers(num_rows * num_in, 5);
  const auto weights = numbers(static_cast<std::size_t>(num_out * num_in), 3);
  auto expected = std::vector<float>();  // sums of whole numbers, which are exact
  for (auto row = std::size_t{0}; row < num_rows; ++row) {
    for (auto o = std::int64_t{0}; o < num_out; ++o) {
      auto sum = 0.F;
      for (auto i = std::int64_t{0}; i < num_in; ++i) {
        sum += in[row * num_in + static_cast<std::size_t>(i)] * weights[static_cast<std::size_t>(o * num_in + i)];
      }
      expected.push_back(sum);
    }
  }
  auto pool = pagedkv::host::thread_pool(3);
  for (const auto lent : {pagedkv::host::workers(), pagedkv::host::workers(pool)}) {
    auto out = std::vector<float>(expected.size(), std::nanf(""));
    llama::multiply(in.data(), num_rows, num_in, weights.data(), num_out, out.data(), lent);
    CHECK(std::ranges::equal(out, expected));
  }
}
