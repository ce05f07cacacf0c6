#include <pagedkv/core/result.hpp>
#include <pagedkv/detail/function_ref.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <cstddef>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

using pagedkv::detail::function_ref;

TEST_CASE("a reference to a function calls that object, also through copies", "[function_ref]") {
  auto sum = 0;
  const auto add = [&](std::span<const int> numbers) { return sum = std::accumulate(numbers.begin(), numbers.end(), sum); };
  const auto first = function_ref<int(std::span<const int>)>{add};
  CHECK(first(std::array{1, 2}) == 3);
  auto second = first;
  CHECK(second(std::vector{3, 4}) == 10);
  CHECK(sum == 10);
}

TEST_CASE("a reference to a function converts what that returns", "[function_ref]") {
  using refused = pagedkv::result<void>;
  const auto fails = [] { return pagedkv::error{pagedkv::error_code::in_use, "a test", 1, 0}; };
  const auto called = function_ref<refused()>{fails};
  CHECK(called().error().code == pagedkv::error_code::in_use);

  auto num_calls = 0;
  const auto count = [&] { return ++num_calls; };
  function_ref<void()>{count}();
  CHECK(num_calls == 1);
}

TEST_CASE("a reference to a function takes what can be called so", "[function_ref]") {
  const auto length = [](std::span<const int> numbers) { return numbers.size(); };
  STATIC_CHECK(std::is_constructible_v<function_ref<std::size_t(std::span<const int>)>, decltype(length)>);
  STATIC_CHECK_FALSE(std::is_constructible_v<function_ref<std::size_t()>, decltype(length)>);
  STATIC_CHECK_FALSE(std::is_constructible_v<function_ref<int*(std::span<const int>)>, decltype(length)>);
}
