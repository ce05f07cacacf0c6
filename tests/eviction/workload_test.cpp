#include <pagedkv/policy/eviction/hit_density.hpp>
#include <pagedkv/policy/eviction/lru.hpp>
#include <pagedkv/policy/eviction/parts/chain_lists.hpp>
#include <pagedkv/policy/eviction/priority.hpp>

#include "../../examples/support/foresight.hpp"
#include "../../examples/support/known_pauses.hpp"
#include "../../examples/support/simulate.hpp"
#include "../../examples/support/workloads.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

using namespace pagedkv;
using support::request_writer;

namespace {

constexpr auto seed = std::uint64_t{7};
constexpr auto num_seeds = 4U;

struct comparison {
  double of_lru = 0.0;
  double of_hit_density = 0.0;
};

comparison compare(const support::prefix_trace& trace, std::int32_t num_blocks) {
  return {support::simulate<lru>(trace, num_blocks).hit_ratio(),
          support::simulate<hit_density>(trace, num_blocks).hit_ratio()};
}

/// Is given the one feature on which reuse depends: evicts the blocks that have it first, the least recently released
/// within each kind.
template <class Feature>
class given_feature {
 public:
  static constexpr std::string_view name = "given_feature";
  static constexpr bool concurrent = false;

  explicit given_feature(std::int32_t num_blocks) : lists_(num_blocks, 2) {}

  void insert(block_id block, const block_release& release) noexcept {
    lists_.insert(block, release.parent, Feature::of(release) ? 0 : 1);
  }
  void remove(block_id block) noexcept { lists_.hold(block); }
  void erase(block_id block) noexcept { lists_.erase(block); }
  void rename(block_id from, block_id to) noexcept { lists_.rename(from, to); }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp) noexcept {
    auto block = lists_.take_due(offer);
    for (auto list = chain_lists::list_index{0}; list < 2 && block == no_block; ++list) {
      block = lists_.take_oldest(list, offer);
    }
    return block != no_block ? block : lists_.take_any(offer);
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return lists_.bytes(); }

 private:
  chain_lists lists_;
};

/// Says at random of every fourth request that its session has ended, and of others when it returns.
template <class Policy>
class with_random_hints : public Policy {
 public:
  using Policy::Policy;

  void insert(block_id block, block_release release) noexcept {
    if (release.depth + 1 == release.num_chain_blocks) {
      kind_ = random_() % 4;
    }
    release.ended = kind_ == 1;
    release.expected_return = kind_ == 2 ? 5'000'000'000 : kind_ == 3 ? 60'000'000'000 : 0;
    Policy::insert(block, release);
  }

 private:
  std::mt19937_64 random_{seed};
  std::uint64_t kind_ = 0;
};

struct long_answers {
  static bool of(const block_release& release) noexcept { return release.num_output_tokens >= 256; }
};

struct deep_blocks {
  static bool of(const block_release& release) noexcept { return release.depth >= 8; }
};

/// The length of an answer is even in sessions that are known to be slow; both lengths are in one class.
struct slow_sessions {
  static bool of(const block_release& release) noexcept { return release.num_output_tokens % 2 == 0; }
};

/// Of the second half of the requests, after the policy has seen the first.
template <class Policy>
double late_hit_ratio(const support::prefix_trace& trace, std::int32_t num_blocks) {
  auto simulator = support::chain_simulator<Policy>{trace, num_blocks};
  const auto half = trace.requests().size() / 2;
  std::ranges::for_each(trace.requests().first(half), [&](const auto& request) { simulator.run(request); });
  const auto before = simulator.result();
  std::ranges::for_each(trace.requests().subspan(half), [&](const auto& request) { simulator.run(request); });
  const auto& after = simulator.result();
  return static_cast<double>(after.hits - before.hits) / static_cast<double>(after.references - before.references);
}

template <class Feature>
void check_one_feature(const std::vector<support::trace_request>& requests, std::int32_t num_blocks) {
  const auto trace = support::prefix_trace{requests};
  const auto of_lru = late_hit_ratio<lru>(trace, num_blocks);
  const auto given = late_hit_ratio<given_feature<Feature>>(trace, num_blocks);
  CAPTURE(of_lru, given);
  CHECK(given > of_lru + .01);
  CHECK(late_hit_ratio<hit_density>(trace, num_blocks) >= given - .005);
}

/// Half of the requests get a short answer: of these nine in ten are continued, of the others one in ten.
std::vector<support::trace_request> sessions_by_answer() {
  auto writer = request_writer{};
  auto waiting = std::vector<std::vector<std::uint64_t>>{};
  while (writer.requests().size() < 12'000) {
    auto blocks = std::vector<std::uint64_t>{};
    if (waiting.size() > 60) {
      const auto chosen = waiting.begin() + static_cast<std::ptrdiff_t>(writer.below(waiting.size()));
      blocks = *chosen;
      waiting.erase(chosen);
    }
    writer.extend(blocks, 1 + writer.below(10));
    const auto is_short = writer.below(2) == 0;
    writer.add(blocks, is_short ? writer.below(200) : 300 + writer.below(700));
    if (writer.below(10) < (is_short ? 9U : 1U)) {
      waiting.push_back(blocks);
    }
  }
  return writer.requests();
}

/// 60 agents take turns after pauses of much the same length, until their tasks are done and others take over.
std::vector<support::trace_request> agents_in_turn() {
  struct agent {
    std::vector<std::uint64_t> blocks;
    std::size_t turns_left = 0;
  };
  constexpr auto num_agents = std::size_t{60};
  auto writer = request_writer{};
  auto due = std::multimap<std::size_t, agent>{};
  for (auto i = std::size_t{0}; i < num_agents; ++i) {
    due.emplace(i, agent{});
  }
  while (writer.requests().size() < 6000) {
    auto next = due.extract(due.begin());
    auto& turn = next.mapped();
    if (turn.turns_left == 0) {
      turn.blocks.clear();
      writer.extend(turn.blocks, 10 + writer.below(20));
      turn.turns_left = 5 + writer.below(30);
    }
    --turn.turns_left;
    writer.extend(turn.blocks, 1 + writer.below(2));
    writer.add(turn.blocks, 10 + writer.below(100));
    next.key() += num_agents - 5 + writer.below(11);
    due.insert(std::move(next));
  }
  return writer.requests();
}

/// Every request has one of 150 heads of 8 blocks; the rest of it never returns.
std::vector<support::trace_request> requests_with_shared_heads() {
  auto writer = request_writer{};
  auto heads = std::vector<std::vector<std::uint64_t>>(150);
  for (auto& head : heads) {
    writer.extend(head, 8);
  }
  while (writer.requests().size() < 12'000) {
    auto blocks = heads[writer.below(heads.size())];
    writer.extend(blocks, 4 + writer.below(12));
    writer.add(blocks, 100);
  }
  return writer.requests();
}

/// Some sessions return after 8 to 24 requests, nine times in ten; the others after 200 to 400, and end most often
/// then.
std::vector<support::trace_request> sessions_by_pace() {
  struct session {
    bool is_slow = false;
    std::vector<std::uint64_t> blocks;
  };
  auto writer = request_writer{};
  auto due = std::multimap<std::size_t, session>{};
  for (auto now = std::size_t{0}; now < 12'000; ++now) {
    auto turn = session{writer.below(2) == 0, {}};
    const auto is_first = due.empty() || due.begin()->first > now;
    if (!is_first) {
      turn = std::move(due.extract(due.begin()).mapped());
    }
    writer.extend(turn.blocks, 2 + writer.below(6));
    writer.add(turn.blocks, turn.is_slow && !is_first ? 100 : 101);
    const auto pause = turn.is_slow ? 200 + writer.below(200) : 8 + writer.below(16);
    if (is_first || writer.below(10) < (turn.is_slow ? 2U : 9U)) {
      due.emplace(now + pause, std::move(turn));
    }
  }
  return writer.requests();
}

}  // namespace

TEST_CASE("hit_density beats or equals lru on traffic of every kind", "[eviction]") {
  const auto kind = GENERATE(Catch::Generators::range(std::size_t{0}, support::workloads.size()));
  const auto& workload = support::workloads.at(kind);
  auto generator = support::workload_generator{seed};
  const auto trace = support::prefix_trace{(generator.*workload.generate)(12'000)};
  auto total_gain = 0.0;
  for (const auto num_blocks : {300, 1000, 3000, 8000}) {
    const auto ratios = compare(trace, num_blocks);
    CAPTURE(workload.name, num_blocks, ratios.of_lru);
    CHECK(ratios.of_hit_density >= ratios.of_lru - .005);
    total_gain += ratios.of_hit_density - ratios.of_lru;
  }
  CAPTURE(workload.name);
  CHECK(total_gain > -.01);
}

TEST_CASE("hit_density keeps shared prompts and survives scans far better than lru", "[eviction]") {
  auto generator = support::workload_generator{seed};
  const auto shared = support::prefix_trace{generator.shared_system_prompt(12'000)};
  const auto on_shared = compare(shared, 1000);
  CHECK(on_shared.of_hit_density > on_shared.of_lru + .08);
  const auto scans = support::prefix_trace{generator.scans(12'000)};
  const auto on_scans = compare(scans, 3000);
  CHECK(on_scans.of_hit_density > on_scans.of_lru + .01);
}

TEST_CASE("hit_density reaches what a policy reaches that is given the one feature that tells", "[eviction]") {
  check_one_feature<long_answers>(sessions_by_answer(), 1000);
  check_one_feature<deep_blocks>(requests_with_shared_heads(), 1000);
  check_one_feature<slow_sessions>(sessions_by_pace(), 600);
}

TEMPLATE_TEST_CASE("random hints cost next to nothing", "[eviction]", hit_density, priority) {
  for (const auto& workload : support::workloads) {
    for (const auto num_blocks : {1000, 3000}) {
      auto lost = 0.0;
      for (auto i = 0U; i < num_seeds; ++i) {
        auto generator = support::workload_generator{seed + i};
        const auto trace = support::prefix_trace{(generator.*workload.generate)(6000)};
        lost += (support::simulate<TestType>(trace, num_blocks).hit_ratio() -
                 support::simulate<with_random_hints<TestType>>(trace, num_blocks).hit_ratio()) /
                num_seeds;
      }
      CAPTURE(workload.name, num_blocks);
      CHECK(lost < .003);
    }
  }
}

TEST_CASE("true hints bring priority near the oracle, and help hit_density", "[eviction]") {
  const auto trace = support::prefix_trace{support::sessions_with_known_pauses()};
  for (const auto num_blocks : {500, 1000, 2000}) {
    const auto without = compare(trace, num_blocks);
    const auto oracle = support::oracle_of(trace, num_blocks).hit_ratio();
    CAPTURE(num_blocks, without.of_lru, without.of_hit_density, oracle);
    CHECK(oracle > without.of_lru + .05);
    CHECK(support::simulate<support::with_true_hints<priority>>(trace, num_blocks).hit_ratio() > oracle - .01);
    CHECK(support::simulate<support::with_true_hints<hit_density>>(trace, num_blocks).hit_ratio() >
          without.of_lru + .03);
  }
}

TEST_CASE("hit_density keeps some sessions whole when all cannot stay", "[eviction]") {
  const auto trace = support::prefix_trace{agents_in_turn()};
  for (const auto num_blocks : {600, 1200, 1800}) {
    const auto ratios = compare(trace, num_blocks);
    const auto oracle = support::oracle_of(trace, num_blocks).hit_ratio();
    CAPTURE(num_blocks, ratios.of_lru, oracle);
    CHECK(ratios.of_lru < .1 * oracle);
    CHECK(ratios.of_hit_density > .8 * oracle);
  }
}

TEST_CASE("hit_density is not clearly worse than lru from a cold start", "[eviction]") {
  for (const auto& workload : support::workloads) {
    for (const auto num_blocks : {300, 1000, 3000}) {
      auto gain = 0.0;
      for (auto i = 0U; i < num_seeds; ++i) {
        auto generator = support::workload_generator{seed + i};
        const auto ratios = compare(support::prefix_trace{(generator.*workload.generate)(1500)}, num_blocks);
        gain += (ratios.of_hit_density - ratios.of_lru) / num_seeds;
      }
      CAPTURE(workload.name, num_blocks);
      CHECK(gain > -.005);
    }
  }
}
