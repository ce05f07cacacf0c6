#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/lru.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

using namespace pagedkv;

namespace {

/// An order that remembers what it was told.
class listening_lru : public lru {
 public:
  static constexpr std::string_view name = "listening_lru";
  inline static std::vector<block_release> told;

  explicit listening_lru(std::int32_t num_blocks) : lru(num_blocks) {
    told.clear();
    told.reserve(100);
  }

  void insert(block_id block, const block_release& release) noexcept {
    told.push_back(release);
    lru::insert(block, release);
  }
};

using listening_cache = kv_cache<float32, listening_lru>;

constexpr auto small_pool = cache_config{.block_size = 4, .num_blocks = 16, .head_dim = 1};

std::vector<token> tokens_below(token end) {
  auto tokens = std::vector<token>{};
  for (auto t = token{0}; t < end; ++t) {
    tokens.push_back(t);
  }
  return tokens;
}

sequence_id serve(listening_cache& cache, std::span<const token> tokens, const sequence_options& options = {}) {
  const auto id = cache.create_sequence(tokens, options).value().id;
  cache.commit(id, static_cast<std::int64_t>(tokens.size())).value();
  return id;
}

/// By depth, of the blocks released since the last call.
std::vector<bool> ended_blocks() {
  auto ended = std::vector<bool>(listening_lru::told.size());
  for (const auto& release : listening_lru::told) {
    ended.at(release.depth) = release.ended;
  }
  listening_lru::told.clear();
  return ended;
}

}  // namespace

TEST_CASE("a hint says of which blocks nothing is to come", "[cache]") {
  auto cache = listening_cache{small_pool};
  const auto prompt = tokens_below(16);
  cache.release(serve(cache, std::span{prompt}.first(9))).value();
  CHECK(ended_blocks() == std::vector{false, false});
  cache.release(serve(cache, prompt), {.branch_complete = true}).value();
  CHECK(ended_blocks() == std::vector{false, false, true, true});
  cache.release(serve(cache, prompt), {.session_ended = true}).value();
  CHECK(ended_blocks() == std::vector{true, true, true, true});
}

TEST_CASE("a complete branch ends after the block where it was forked", "[cache]") {
  auto cache = listening_cache{small_pool};
  const auto trunk = serve(cache, tokens_below(8));
  const auto branch = cache.fork(trunk).value();
  cache.append(branch, tokens_below(4)).value();
  cache.commit(branch, 12).value();
  cache.release(trunk).value();
  CHECK(listening_lru::told.empty());
  cache.release(branch, {.branch_complete = true}).value();
  CHECK(ended_blocks() == std::vector{false, false, true});
}

TEST_CASE("an expected return and the last cached block reach the policy", "[cache]") {
  auto cache = listening_cache{small_pool};
  const auto prompt = tokens_below(16);
  cache.release(serve(cache, std::span{prompt}.first(9), {.expected_return = 5})).value();
  CHECK(listening_lru::told.back().expected_return == 5);
  CHECK(listening_lru::told.back().last_cached == no_block);
  const auto id = serve(cache, prompt, {.expected_return = 5});
  cache.release(id, {.expected_return = 7}).value();
  CHECK(listening_lru::told.back().expected_return == 7);
  const auto& first_child = listening_lru::told[listening_lru::told.size() - 3];
  CHECK(first_child.depth == 2);
  CHECK(first_child.last_cached == first_child.parent);
  CHECK(!cache.create_sequence(prompt, {.expected_return = -1}));
}
