#include <pagedkv/tier/file_descriptor.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstddef>
#include <string>

using pagedkv::detail::lasting_text;

TEST_CASE("texts of errors last, equal ones once, and take a bounded amount of memory", "[error]") {
  const auto* const first = lasting_text("/disk0/kv", "no room");
  CHECK(std::string{first} == "/disk0/kv");
  auto num_kept = std::size_t{0};
  for (auto i = 0; i < 1'000; ++i) {
    num_kept += std::string{lasting_text(std::string(1'000, 'x') + std::to_string(i), "no room")} != "no room";
  }
  CHECK(num_kept > 50);
  CHECK(num_kept < 70);
  CHECK(lasting_text("/disk0/kv", "no room") == first);
  CHECK(std::string{first} == "/disk0/kv");
}
