#include "conformance.hpp"

#include <pagedkv/tier/record.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

using namespace pagedkv;

namespace {

/// Records by place or by key, in memory: the smallest tier, which shows that the conformance suite can be met.
template <bool HasPlaces>
struct map_tier {
  static constexpr std::string_view name = "map_tier";

  std::map<std::uint64_t, std::vector<std::byte>> records{};

  static std::uint64_t index(const record_transfer& transfer) {
    return HasPlaces ? static_cast<std::uint64_t>(transfer.place) : transfer.key.low;
  }
  void write(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    for (const auto& transfer : batch) {
      records[index(transfer)].assign(transfer.bytes.begin(), transfer.bytes.end());
    }
    std::ranges::fill(outcomes, transfer_outcome::done);
  }
  void read(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const auto found = records.find(index(batch[i]));
      outcomes[i] = found == records.end() ? transfer_outcome::missing : transfer_outcome::done;
      if (found != records.end()) {
        std::ranges::copy(found->second, batch[i].bytes.begin());
      }
    }
  }
  void erase(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    for (const auto& transfer : batch) {
      records.erase(index(transfer));
    }
    std::ranges::fill(outcomes, transfer_outcome::done);
  }
  [[nodiscard]] std::int64_t num_places() const noexcept
    requires HasPlaces
  {
    return 400;
  }
};

static_assert(tier_with_places<map_tier<true>> && !tier_with_places<map_tier<false>>);

}  // namespace

TEST_CASE("a map with places conforms", "[tier][random]") {
  testing::check_conformance(testing::known_records{testing::small_record_format()}, [] { return map_tier<true>{}; });
}

TEST_CASE("a map without places conforms", "[tier][random]") {
  testing::check_conformance(testing::known_records{testing::small_record_format()}, [] { return map_tier<false>{}; });
}
