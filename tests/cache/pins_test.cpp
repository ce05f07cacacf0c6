#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/priority.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

using namespace pagedkv;

namespace pins_test {

namespace {

constexpr auto small_pool = cache_config{.block_size = 4, .num_blocks = 16, .head_dim = 1};

std::vector<token> text_from(token first, std::size_t size) {
  auto text = std::vector<token>(size);
  std::iota(text.begin(), text.end(), first);
  return text;
}

template <class Cache>
sequence_id compute(Cache& cache, const std::vector<token>& text, const sequence_options& options) {
  const auto id = cache.create_sequence(text, options).value().id;
  cache.commit(id, static_cast<std::int64_t>(text.size())).value();
  return id;
}
template <class Cache>
void serve(Cache& cache, const std::vector<token>& text, const sequence_options& options) {
  cache.release(compute(cache, text, options)).value();
}

const auto valued = text_from(0, 16);
const auto other = text_from(100, 16);

/// Evicts half of the eight blocks of `valued` and `other`.
template <class Cache>
void evict_four(Cache& cache) {
  serve(cache, text_from(200, 48), {.priority = 50});
}

/// Offers no block, though the pool counts those that it holds as available. Remembers what it was told.
class silent_priority : public priority {
 public:
  static constexpr std::string_view name = "silent_priority";
  inline static std::vector<block_release> told;

  explicit silent_priority(std::int32_t num_blocks) : priority(num_blocks) {
    told.clear();
    told.reserve(100);
  }

  void insert(block_id block, const block_release& release) noexcept {
    told.push_back(release);
    priority::insert(block, release);
  }
  template <class Offer>
  [[nodiscard]] block_id victim(Offer&&, timestamp) noexcept {
    return no_block;
  }
};

}  // namespace

TEMPLATE_TEST_CASE("a pin that has ended leaves blocks their priority", "[cache][pins]", (kv_cache<priority>),
                   (kv_cache<priority, sharded_mutex>)) {
  auto cache = TestType{small_pool};
  serve(cache, valued, {.priority = 90});
  serve(cache, other, {.priority = 50});
  for (auto i = 0; i < 2; ++i) {
    const auto pinned = cache.pin(valued).value();
    REQUIRE(pinned.num_tokens == 16);
    cache.unpin(pinned.id).value();
  }
  evict_four(cache);
  CHECK(cache.find_prefix(valued) == 12);
  CHECK(cache.find_prefix(other) == 0);
  CHECK(cache.check_invariants().empty());
}

TEST_CASE("a pin that has ended raises no priority either, and blocks count as just released", "[cache][pins]") {
  auto cache = kv_cache<priority>{small_pool};
  serve(cache, other, {.priority = 10});
  serve(cache, valued, {.priority = 10});
  cache.unpin(cache.pin(other).value().id).value();
  evict_four(cache);
  CHECK(cache.find_prefix(valued) == 0);
  CHECK(cache.find_prefix(other) == 12);
}

TEMPLATE_TEST_CASE("blocks whose sequence ends while they are pinned keep its priority", "[cache][pins]",
                   (kv_cache<priority>), (kv_cache<priority, sharded_mutex>)) {
  auto cache = TestType{small_pool};
  serve(cache, other, {.priority = 50});
  const auto id = compute(cache, valued, {.priority = 90});
  const auto pinned = cache.pin(valued).value();
  cache.release(id).value();
  cache.unpin(pinned.id).value();
  evict_four(cache);
  CHECK(cache.find_prefix(valued) == 12);
  CHECK(cache.find_prefix(other) == 0);
}

TEST_CASE("of sequences that end while their blocks are pinned, the last one's priority counts", "[cache][pins]") {
  auto cache = kv_cache<priority>{small_pool};
  serve(cache, valued, {.priority = 90});
  const auto pinned = cache.pin(valued).value();
  serve(cache, text_from(0, 17), {.priority = 20});  // on all pinned blocks
  serve(cache, other, {.priority = 50});
  cache.unpin(pinned.id).value();
  evict_four(cache);
  CHECK(cache.find_prefix(valued) == 0);
  CHECK(cache.find_prefix(other) == 12);
}

TEST_CASE("a pin prolongs no retention", "[cache][pins]") {
  const auto ends = GENERATE(true, false);
  auto cache = kv_cache<priority>{small_pool};
  serve(cache, valued, {.priority = 90, .retention = 1000});
  serve(cache, other, {.priority = 50});
  cache.advance_time(timestamp{500});
  const auto pinned = cache.pin(valued).value();
  cache.advance_time(timestamp{ends ? 1100 : 900});
  cache.unpin(pinned.id).value();
  evict_four(cache);
  CHECK(cache.find_prefix(valued) == (ends ? 0 : 12));
}

TEST_CASE("pinned blocks keep their priority when they move", "[cache][pins]") {
  auto cache = kv_cache<priority>{small_pool};
  const auto filler = compute(cache, text_from(300, 16), {.publish = false});
  const auto id = compute(cache, valued, {.priority = 90});
  const auto pinned = cache.pin(valued).value();
  cache.release(id).value();
  cache.release(filler).value();
  REQUIRE(cache.compact().value().size() == 4);
  cache.unpin(pinned.id).value();
  serve(cache, other, {.priority = 50});
  evict_four(cache);
  CHECK(cache.find_prefix(valued) == 12);
}

TEST_CASE("a creation that is refused leaves the blocks that it has hit their priority", "[cache]") {
  auto cache = kv_cache<silent_priority, sharded_mutex>{small_pool};
  serve(cache, valued, {.priority = 90});
  const auto filler = compute(cache, text_from(300, 48), {});
  auto longer = valued;
  longer.insert(longer.end(), {7, 7, 7, 7, 7});
  cache.release(filler).value();
  silent_priority::told.clear();
  REQUIRE(cache.create_sequence(longer, {.priority = 10}).has_error());
  REQUIRE(silent_priority::told.size() == 4);
  for (auto i = std::size_t{0}; i < 4; ++i) {
    const auto& how = silent_priority::told[i];
    CHECK(how.as_before);
    CHECK(how.depth == 3 - i);
    CHECK((how.parent == no_block) == (i == 3));
  }
  CHECK(cache.check_invariants().empty());
}

}  // namespace pins_test
