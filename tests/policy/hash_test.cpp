#include <pagedkv/policy/hash/all.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <set>
#include <span>
#include <vector>

using namespace pagedkv;

namespace {

/// Random blocks of `size` tokens.
std::vector<std::vector<token>> random_blocks(std::size_t count, std::size_t size, unsigned seed) {
  auto random = std::mt19937{seed};
  auto blocks = std::vector<std::vector<token>>(count, std::vector<token>(size));
  for (auto& block : blocks) {
    for (auto& next : block) {
      next = static_cast<token>(random() % 128'000);
    }
  }
  return blocks;
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("equal blocks behind equal ones have equal hashes", "[hash]", all_hashes) {
  for (const auto size : {std::size_t{1}, std::size_t{5}, std::size_t{16}, std::size_t{256}}) {
    for (const auto& block : random_blocks(50, size, 1)) {
      const auto copy = block;
      CHECK(TestType::hash(7, block) == TestType::hash(7, copy));
    }
  }
}

TEMPLATE_LIST_TEST_CASE("a hash depends on every token, on their order and on the block before", "[hash]",
                        all_hashes) {
  const auto block = random_blocks(1, 16, 2).front();
  auto seen = std::set{TestType::hash(7, block)};
  for (auto i = std::size_t{0}; i < block.size(); ++i) {
    auto changed = block;
    changed[i] ^= 1;
    CHECK(seen.insert(TestType::hash(7, changed)).second);
  }
  CHECK(seen.insert(TestType::hash(7, std::vector(block.rbegin(), block.rend()))).second);
  CHECK(seen.insert(TestType::hash(7, std::span{block}.first(15))).second);
  for (auto bit = 0; bit < 64; ++bit) {
    CHECK(seen.insert(TestType::hash(7 ^ std::uint64_t{1} << bit, block)).second);
  }
}

TEMPLATE_LIST_TEST_CASE("hashes spread over all bits", "[hash]", all_hashes) {
  constexpr auto count = 4'096;
  auto ones = std::array<int, 64>{};
  for (const auto& block : random_blocks(count, 16, 3)) {
    const auto hash = TestType::hash(0, block);
    for (auto bit = std::size_t{0}; bit < ones.size(); ++bit) {
      ones[bit] += static_cast<int>(hash >> bit & 1);
    }
  }
  for (const auto each : ones) {
    CHECK(std::abs(each - count / 2) < 6 * 32);  // six standard deviations
  }
}
