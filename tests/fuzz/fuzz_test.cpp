#include "../support/full_numbers.hpp"
#include "target.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

using namespace pagedkv;

namespace {

/// Changes bits and bytes, inserts and removes some, or cuts.
void mutate(std::vector<std::uint8_t>& bytes, std::mt19937& random) {
  const auto at = static_cast<std::ptrdiff_t>(random() % std::max<std::size_t>(bytes.size(), 1));
  if (bytes.empty() || random() % 5 == 0) {
    bytes.insert(bytes.begin() + (bytes.empty() ? 0 : at), static_cast<std::uint8_t>(random()));
    return;
  }
  auto& chosen = bytes[static_cast<std::size_t>(at)];
  switch (random() % 5) {
    case 0: chosen ^= static_cast<std::uint8_t>(1 << random() % 8); break;
    case 1: chosen = static_cast<std::uint8_t>(random()); break;
    case 2: chosen = random() % 2 == 0 ? 0xff : 0; break;
    case 3:
      bytes.erase(bytes.begin() + at,
                  bytes.begin() +
                      std::min<std::ptrdiff_t>(at + 1 + static_cast<std::ptrdiff_t>(random() % 8), std::ssize(bytes)));
      break;
    default: bytes.resize(static_cast<std::size_t>(at));
  }
}

}  // namespace

TEST_CASE("each target takes its seeds, and refuses or takes what becomes of them", "[fuzz][random]") {
  for (const auto* const target : fuzz::all_targets()) {
    INFO(target->name);
    auto random = std::mt19937{Catch::getSeed()};
    const auto seeds = target->seeds();
    REQUIRE(!seeds.empty());
    for (const auto& seed : seeds) {
      REQUIRE_NOTHROW(target->run(seed));
    }
    for (auto i = testing::scaled(500, 100'000); i > 0; --i) {
      auto bytes = seeds[random() % seeds.size()];
      for (auto count = 1 + random() % 4; count > 0; --count) {
        mutate(bytes, random);
      }
      CAPTURE(bytes);
      REQUIRE_NOTHROW(target->run(bytes));
    }
  }
}
