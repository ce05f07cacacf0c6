#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/pagedkv.hpp>

#include "group_engine.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

/// The prefixes that events tell of, as a router would keep them.
class followed_cache {
 public:
  void take(const cache_event& event) {
    if (event.kind == event_kind::reset) {
      known_.clear();
      return;
    }
    if (event.kind == event_kind::evicted) {
      REQUIRE(known_.contains(event.hash));
      known_.erase(event.hash);
      return;
    }
    REQUIRE(event.kind == event_kind::stored);
    REQUIRE_FALSE(known_.contains(event.hash));
    REQUIRE((event.origin == no_block || known_.contains(event.parent_hash)));
    CHECK(event.group >= 0);
    known_[event.hash] = {event.parent_hash, tokens(event.tokens.begin(), event.tokens.end())};
    root_ = event.origin == no_block ? event.parent_hash : root_;
  }

  /// Tokens of the longest known prefix.
  [[nodiscard]] std::int64_t find(std::span<const token> text) const {
    auto at = root_;
    auto length = std::size_t{0};
    while (true) {
      const auto next = std::ranges::find_if(known_, [&](const auto& entry) {
        const auto& [parent, run] = entry.second;
        return parent == at && run.size() <= text.size() - length &&
               std::equal(run.begin(), run.end(), text.begin() + static_cast<std::ptrdiff_t>(length));
      });
      if (next == known_.end()) {
        return static_cast<std::int64_t>(length);
      }
      at = next->first;
      length += next->second.second.size();
    }
  }

 private:
  std::map<std::uint64_t, std::pair<std::uint64_t, tokens>> known_;
  std::uint64_t root_ = 0;
};

}  // namespace

TEST_CASE("events tell a router which prefixes a cache with groups holds", "[group_cache][random]") {
  const auto seed = Catch::getSeed();
  auto random = std::mt19937_64{seed};
  const auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  for (const auto& [name, groups] : kinds) {
    INFO(name << ", seed " << seed);
    auto config = config_of(groups, 1);
    const auto plan = plan_memory(groups, size_of_element<float32>, config.block_size).value();
    for (std::size_t g = 0; g < groups.size(); ++g) {
      config.num_blocks += plan.groups[g].blocks_per_state * 4 +
                           (groups[g].holds_tokens() ? 120 / plan.groups[g].block_size + 6 : 0);
    }
    auto queues = event_queues{config.block_size};
    auto e = engine<group_cache<float32, event_queues>>{config, queues};
    auto router = followed_cache{};
    auto running = std::vector<sequence_id>{};
    const bool hits_are_prefixes = name == "full" || name == "latent";  // no window or state makes a hit shorter
    auto num_found = std::int64_t{0};
    for (auto round = 0; round < 200; ++round) {
      auto prompt = counted(static_cast<int>(below(40)), static_cast<int>(1000 * below(3)));
      const auto more = counted(static_cast<int>(below(30)), static_cast<int>(9000 + 100 * below(4)));
      prompt.insert(prompt.end(), more.begin(), more.end());
      if (running.size() < 3) {
        if (const auto made = e.create(prompt, {.publish = below(5) != 0})) {
          running.push_back(*made);
        }
      }
      if (!running.empty()) {
        const auto at = below(running.size());
        const auto id = running[at];
        switch (below(4)) {
          case 0:
            e.release(id);
            running.erase(running.begin() + static_cast<std::ptrdiff_t>(at));
            break;
          case 1:
            if (const auto length = e.sequences.at(id).text.size(); length > 6) {
              e.truncate(id, static_cast<std::int64_t>(length - below(6)));
            }
            break;
          default:
            e.append(id, counted(static_cast<int>(below(9)), static_cast<int>(below(3))));
            e.compute(id);
        }
      }
      if (e.cache.num_free_blocks() > 0 && below(10) == 0) {
        REQUIRE(e.cache.compact());
      }
      queues.drain([&](const cache_event& event) { router.take(event); });
      prompt.push_back(-1);
      const auto found = e.cache.find_prefix(prompt);
      num_found += found;
      CHECK(router.find(prompt) >= found);
      if (hits_are_prefixes) {
        CHECK(router.find(prompt) == found);
      }
      REQUIRE(e.cache.check_invariants() == std::vector<std::string>{});
    }
    CHECK(queues.num_dropped() == 0);
    CHECK(num_found > 100);
    CHECK(e.cache.statistics().evictions > 20);
  }
}
