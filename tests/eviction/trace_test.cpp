#include <pagedkv/policy/eviction/arc.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/eviction/fifo.hpp>
#include <pagedkv/policy/eviction/hit_density.hpp>
#include <pagedkv/policy/eviction/lfu.hpp>
#include <pagedkv/policy/eviction/lru.hpp>
#include <pagedkv/policy/eviction/priority.hpp>
#include <pagedkv/policy/eviction/s3_fifo.hpp>
#include <pagedkv/policy/eviction/sieve.hpp>
#include <pagedkv/policy/eviction/slru.hpp>
#include <pagedkv/policy/eviction/tiny_lfu.hpp>

#include "../../examples/replay/replayed_trace.hpp"
#include "../../examples/support/foresight.hpp"
#include "../../examples/support/simulate.hpp"
#include "../../examples/support/trace.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

using namespace pagedkv;
using Catch::Matchers::WithinAbs;

namespace {

/// Mooncake's conversation trace (Apache-2.0), which is not part of the tree: PAGEDKV_CONVERSATION_TRACE names it.
std::string trace_path() {
  if (const auto* path = std::getenv("PAGEDKV_CONVERSATION_TRACE")) {
    return path;
  }
  return (std::filesystem::path{__FILE__}.parent_path() / "../../../shared/traces/conversation_trace.jsonl").string();
}

/// 60 sessions of coding agents, likewise: PAGEDKV_AGENTS_TRACE names it.
std::string agents_path() {
  if (const auto* path = std::getenv("PAGEDKV_AGENTS_TRACE")) {
    return path;
  }
  return (std::filesystem::path{__FILE__}.parent_path() / "../../../shared/traces/coding_agents.jsonl").string();
}

/// First in every test case here: inside an assertion, a skip would count as a failure.
void require_trace() {
  if (!std::filesystem::exists(trace_path())) {
    SKIP("no conversation trace: set PAGEDKV_CONVERSATION_TRACE");
  }
}

/// As a cache sees them in a replay.
support::prefix_trace replayed(const std::vector<support::trace_request>& requests) {
  return replay::replayed_trace(requests, 512, 1);
}

const support::prefix_trace& conversation() {
  static const auto trace = replayed(support::read_trace(trace_path()));
  return trace;
}

const support::prefix_trace& conversation_as_blocks() {
  static const auto trace = support::flatten(conversation());
  return trace;
}

template <eviction_policy Policy>
double hit_ratio(std::int32_t num_blocks) {
  return support::simulate<Policy>(conversation(), num_blocks).hit_ratio();
}

template <eviction_policy Policy>
std::int64_t misses(std::int32_t num_blocks) {
  const auto result = support::simulate<Policy>(conversation_as_blocks(), num_blocks, {.num_private = 0});
  return result.references - result.hits;
}

using counts = std::map<std::int32_t, std::int64_t>;

template <eviction_policy Policy>
counts misses_at(const counts& capacities) {
  auto found = counts{};
  for (const auto& [num_blocks, expected] : capacities) {
    found[num_blocks] = misses<Policy>(num_blocks);
  }
  return found;
}

}  // namespace

TEST_CASE("policies miss exactly what their textbooks say on a flat stream of blocks", "[eviction][trace]") {
  require_trace();
  const auto lru_misses = counts{{1000, 275'669}, {5000, 256'660}, {20'000, 205'561}, {50'000, 186'210}};
  const auto fifo_misses = counts{{1000, 275'941}, {5000, 257'720}, {20'000, 211'782}, {50'000, 190'404}};
  const auto clock_misses = counts{{1000, 275'616}, {5000, 255'996}, {20'000, 204'131}, {50'000, 186'310}};
  const auto sieve_misses = counts{{1000, 274'629}, {5000, 261'874}, {20'000, 227'947}, {50'000, 189'311}};
  CHECK(misses_at<lru>(lru_misses) == lru_misses);
  CHECK(misses_at<priority>(lru_misses) == lru_misses);
  CHECK(misses_at<fifo>(fifo_misses) == fifo_misses);
  CHECK(misses_at<basic_clock_sweep<1>>(clock_misses) == clock_misses);
  CHECK(misses_at<sieve>(sieve_misses) == sieve_misses);
}

TEST_CASE("the oracle misses exactly as often as Belady's optimum on a flat stream of blocks", "[eviction][trace]") {
  require_trace();
  for (const auto& [num_blocks, expected] : counts{{1000, 233'506}, {5000, 190'056}, {20'000, 182'790}}) {
    const auto found = support::oracle_of(conversation_as_blocks(), num_blocks, {.num_private = 0});
    CHECK(found.references - found.hits == expected);
  }
}

TEST_CASE("lfu with ageing misses less than lru on a flat stream of blocks", "[eviction][trace]") {
  require_trace();
  for (const auto num_blocks : {1000, 5000, 20'000, 50'000}) {
    CHECK(misses<lfu>(num_blocks) < misses<lru>(num_blocks));
  }
}

TEST_CASE("policies hit the published share of prefix blocks", "[eviction][trace]") {
  require_trace();
  CHECK_THAT(hit_ratio<lru>(9139), WithinAbs(.1958, .0005));
  CHECK_THAT(hit_ratio<lru>(18'279), WithinAbs(.2789, .0005));
  CHECK_THAT(hit_ratio<lru>(50'000), WithinAbs(.3546, .0005));
  CHECK_THAT(hit_ratio<clock_sweep>(9139), WithinAbs(.203, .003));
  CHECK_THAT(hit_ratio<clock_sweep>(18'279), WithinAbs(.287, .003));
  CHECK_THAT(hit_ratio<arc>(9139), WithinAbs(.210, .003));
  CHECK_THAT(hit_ratio<arc>(18'279), WithinAbs(.284, .003));
  CHECK_THAT(hit_ratio<lfu>(9139), WithinAbs(.207, .003));
  CHECK_THAT(hit_ratio<lfu>(18'279), WithinAbs(.288, .003));
  CHECK_THAT(hit_ratio<sieve>(9139), WithinAbs(.127, .003));
  CHECK_THAT(hit_ratio<sieve>(18'279), WithinAbs(.195, .003));
  CHECK_THAT(support::oracle_of(conversation(), 9139).hit_ratio(), WithinAbs(.366, .0005));
  CHECK_THAT(support::oracle_of(conversation(), 18'279).hit_ratio(), WithinAbs(.366, .0005));
}

TEST_CASE("taking leaves first makes up for what fifo and s3_fifo lose on chains", "[eviction][trace]") {
  require_trace();
  // The published figures are of caches without that rule. Ancestors go there before the blocks that continue them, and
  // those are of no use until the ancestors return.
  const auto ignoring_chains = support::simulation_options{.leaves_first = false};
  const auto published = [&]<class Policy>(std::type_identity<Policy>, std::int32_t num_blocks) {
    return support::simulate<Policy>(conversation(), num_blocks, ignoring_chains).hit_ratio();
  };
  CHECK_THAT(published(std::type_identity<fifo>{}, 9139), WithinAbs(.175, .001));
  CHECK_THAT(published(std::type_identity<fifo>{}, 18'279), WithinAbs(.248, .001));
  CHECK_THAT(published(std::type_identity<s3_fifo>{}, 9139), WithinAbs(.186, .001));
  CHECK_THAT(published(std::type_identity<s3_fifo>{}, 18'279), WithinAbs(.245, .001));
  CHECK(hit_ratio<fifo>(9139) > .19);
  CHECK(hit_ratio<fifo>(18'279) > .27);
  CHECK(hit_ratio<s3_fifo>(9139) > .186);
  CHECK(hit_ratio<s3_fifo>(18'279) > .245);
}

TEST_CASE("hit_density hits more than lru at every size", "[eviction][trace]") {
  require_trace();
  CHECK_THAT(hit_ratio<hit_density>(1000), WithinAbs(.078, .003));
  CHECK_THAT(hit_ratio<hit_density>(5000), WithinAbs(.174, .003));
  CHECK_THAT(hit_ratio<hit_density>(9139), WithinAbs(.225, .003));
  CHECK_THAT(hit_ratio<hit_density>(18'279), WithinAbs(.297, .003));
  CHECK_THAT(hit_ratio<hit_density>(31'774), WithinAbs(.337, .003));
  CHECK(hit_ratio<hit_density>(50'000) > hit_ratio<lru>(50'000) + .004);
}

TEST_CASE("hit_density is nowhere clearly below a simple policy on coding agents", "[eviction][trace]") {
  if (!std::filesystem::exists(agents_path())) {
    SKIP("no trace of coding agents: set PAGEDKV_AGENTS_TRACE");
  }
  const auto agents = replayed(support::read_trace(agents_path()));
  for (const auto num_blocks : {400, 600, 800, 1500, 2500, 4000}) {
    const auto found = support::simulate<hit_density>(agents, num_blocks).hit_ratio();
    const auto best = std::max({support::simulate<lru>(agents, num_blocks).hit_ratio(),
                                support::simulate<arc>(agents, num_blocks).hit_ratio(),
                                support::simulate<s3_fifo>(agents, num_blocks).hit_ratio(),
                                support::simulate<slru>(agents, num_blocks).hit_ratio()});
    CAPTURE(num_blocks, best);
    CHECK(found >= best - .005);
  }
}

TEST_CASE("hit_density is lru while it has nothing to learn from", "[eviction][trace]") {
  require_trace();
  const auto beginning = replayed(support::read_trace(trace_path(), 1000));
  const auto of_lru = support::simulate<lru>(beginning, 5000).hit_ratio();
  CHECK(support::simulate<hit_density>(beginning, 5000).hit_ratio() > of_lru - .005);
}

TEMPLATE_TEST_CASE("no policy beats the oracle, or refuses a request that fits", "[eviction][trace]", lru, fifo,
                   clock_sweep, sieve, slru, arc, lfu, s3_fifo, tiny_lfu, priority, hit_density) {
  require_trace();
  for (const auto num_blocks : {1000, 9139}) {
    const auto result = support::simulate<TestType>(conversation(), num_blocks);
    const auto best = support::oracle_of(conversation(), num_blocks);
    CHECK(result.hits > 0);
    CHECK(result.hits <= best.hits);
    CHECK(result.refused_requests == best.refused_requests);
  }
}
