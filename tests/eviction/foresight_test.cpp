#include <pagedkv/policy/eviction/arc.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/eviction/concept.hpp>
#include <pagedkv/policy/eviction/fifo.hpp>
#include <pagedkv/policy/eviction/hit_density.hpp>
#include <pagedkv/policy/eviction/lfu.hpp>
#include <pagedkv/policy/eviction/lru.hpp>
#include <pagedkv/policy/eviction/priority.hpp>
#include <pagedkv/policy/eviction/s3_fifo.hpp>
#include <pagedkv/policy/eviction/sieve.hpp>
#include <pagedkv/policy/eviction/slru.hpp>
#include <pagedkv/policy/eviction/tiny_lfu.hpp>

#include "../../examples/support/foresight.hpp"
#include "../../examples/support/prefix_trace.hpp"
#include "../../examples/support/simulate.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

using namespace pagedkv;

namespace {

/// Prompts over few ids, so that they share prefixes of every length. Some are longer than small pools.
std::vector<support::trace_request> random_requests(std::uint64_t seed, std::size_t num_requests, std::size_t longest,
                                                    std::uint64_t num_ids) {
  auto random = std::mt19937_64{seed};
  auto requests = std::vector<support::trace_request>(num_requests);
  for (auto& request : requests) {
    request.blocks.resize(1 + random() % longest);
    for (auto& id : request.blocks) {
      id = random() % num_ids;
    }
    request.num_prompt_tokens = static_cast<std::uint32_t>(512 * request.blocks.size());
  }
  return requests;
}

/// Tries every way to serve a trace of few blocks: sets of resident blocks are masks.
class exhaustive_search {
 public:
  using mask = std::uint32_t;

  exhaustive_search(const support::prefix_trace& trace, std::size_t num_blocks)
      : trace_(trace), num_blocks_(num_blocks) {}

  /// Most hits when every request that fits is admitted whole, or, if chosen, refused instead.
  std::int64_t most_hits(bool may_refuse) {
    known_.clear();
    may_refuse_ = may_refuse;
    return from(0, 0);
  }

 private:
  static std::size_t size(mask m) { return static_cast<std::size_t>(std::popcount(m)); }

  std::int64_t from(std::size_t request, mask resident) {
    if (request == trace_.requests().size()) {
      return 0;
    }
    if (const auto found = known_.find({request, resident}); found != known_.end()) {
      return found->second;
    }
    const auto nodes = trace_.requests()[request].nodes;
    const auto needed = nodes.size() + support::replay_private_blocks;
    auto most = std::int64_t{0};
    if (may_refuse_ || needed > num_blocks_) {
      most = from(request + 1, resident);
    }
    if (needed <= num_blocks_) {
      most = std::max(most, serve(request, resident));
    }
    return known_[{request, resident}] = most;
  }

  std::int64_t serve(std::size_t request, mask resident) {
    auto own = mask{0};
    auto hits = std::int64_t{0};
    for (const auto node : trace_.requests()[request].nodes) {
      const auto bit = mask{1} << node;
      hits += (resident & bit) != 0 && hits == std::popcount(own) ? 1 : 0;
      own |= bit;
    }
    const auto others = resident & ~own;
    const auto room = num_blocks_ - support::replay_private_blocks - size(own);
    auto most = std::int64_t{0};
    for (auto kept = others;; kept = (kept - 1) & others) {
      if (size(kept) <= room) {
        most = std::max(most, from(request + 1, kept | own));
      }
      if (kept == 0) {
        return hits + most;
      }
    }
  }

  const support::prefix_trace& trace_;
  std::size_t num_blocks_;
  bool may_refuse_ = false;
  std::map<std::pair<std::size_t, mask>, std::int64_t> known_;
};

template <eviction_policy Policy>
void check_within(const support::prefix_trace& trace, std::int32_t num_blocks,
                  const support::simulation_options& options) {
  const auto found = support::simulate<Policy>(trace, num_blocks, options);
  const auto oracle = support::oracle_of(trace, num_blocks, options);
  const auto bound = support::bound_of(trace, num_blocks, options);
  CAPTURE(Policy::name, num_blocks, options.leaves_first, options.num_private);
  CHECK(found.references == bound.references);
  CHECK(found.refused_requests >= bound.refused_requests);
  CHECK(found.hits <= bound.hits);
  CHECK(oracle.hits <= bound.hits);
  if (found.refused_requests == oracle.refused_requests) {
    CHECK(found.hits <= oracle.hits);
  }
}

}  // namespace

TEST_CASE("no way to serve a tiny trace hits more than the oracle and the bound say", "[eviction]") {
  const auto seed = GENERATE(Catch::Generators::range(std::uint64_t{1}, std::uint64_t{200}));
  const auto trace = support::prefix_trace{random_requests(seed, 8, 3, 2 + seed % 2)};
  for (auto num_blocks = 1; num_blocks <= 8; ++num_blocks) {
    CAPTURE(seed, num_blocks);
    auto search = exhaustive_search{trace, static_cast<std::size_t>(num_blocks)};
    CHECK(support::oracle_of(trace, num_blocks).hits == search.most_hits(false));
    CHECK(support::bound_of(trace, num_blocks).hits >= search.most_hits(true));
  }
}

TEMPLATE_TEST_CASE("no policy passes the bound, nor the oracle unless it refuses requests", "[eviction]", lru, fifo,
                   basic_clock_sweep<1>, clock_sweep, sieve, slru, arc, lfu, s3_fifo, tiny_lfu, priority, hit_density,
                   no_eviction) {
  const auto seed = GENERATE(Catch::Generators::range(std::uint64_t{1}, std::uint64_t{25}));
  CAPTURE(seed);
  const auto trace = support::prefix_trace{random_requests(seed, 60, 3 + seed % 10, 2 + seed % 4)};
  for (auto num_blocks = 1; num_blocks <= static_cast<int>(trace.num_nodes()) + 2; num_blocks += 1 + num_blocks / 8) {
    for (const auto leaves_first : {true, false}) {
      check_within<TestType>(trace, num_blocks, {.num_private = seed % 3, .leaves_first = leaves_first});
    }
  }
}

TEST_CASE("requests that are refused do not count as uses to come", "[eviction]") {
  // The long prompt never fits. To keep its blocks for it would cost those of the short one.
  auto requests = std::vector<support::trace_request>{};
  for (auto i = 0; i < 10; ++i) {
    requests.push_back({0, 1024, 1, {1, 2}});
    requests.push_back({0, 1536, 1, {3, 4, 5}});
    requests.push_back({0, 4096, 1, {3, 4, 5, 6, 7, 8, 9, 10}});
  }
  const auto trace = support::prefix_trace{requests};
  const auto oracle = support::oracle_of(trace, 6);
  CHECK(oracle.refused_requests == 10);
  CHECK(oracle.hits == 45);
  CHECK(support::simulate<lru>(trace, 6).hits <= oracle.hits);
}
