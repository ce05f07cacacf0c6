#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/priority.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

using namespace pagedkv;

namespace group_priority_test {

namespace {

/// An order that remembers what it was told.
class listening_priority : public priority {
 public:
  static constexpr std::string_view name = "listening_priority";
  inline static std::vector<block_release> told;

  explicit listening_priority(std::int32_t num_blocks) : priority(num_blocks) {
    told.clear();
    told.reserve(4000);
  }

  void insert(block_id block, const block_release& release) noexcept {
    told.push_back(release);
    priority::insert(block, release);
  }
};

using listening_cache = group_cache<float32, listening_priority>;

constexpr auto full = group_config{.num_layers = 4, .key_dim = 2, .value_dim = 2};
constexpr auto window =
    group_config{.kind = group_kind::window, .num_layers = 1, .key_dim = 2, .value_dim = 2, .window = 8};
constexpr auto state = group_config{.kind = group_kind::state, .num_layers = 1, .state_bytes = 256};

cache_config config_of(const group_config& second, std::int32_t num_blocks) {
  auto config = cache_config{.block_size = 4, .num_blocks = num_blocks, .max_sequences = 8, .groups = {full, second}};
  config.hash_seed = 1;
  return config;
}

/// Blocks of four tokens in the first group, and of sixteen behind a window.
cache_config with_small_blocks() {
  auto config = config_of(window, 80);
  auto first = full;
  auto second = window;
  first.key_dim = first.value_dim = second.key_dim = second.value_dim = 8;
  config.groups = {first, second};
  return config;
}

std::vector<token> text_from(token first, std::size_t size) {
  auto text = std::vector<token>(size);
  std::iota(text.begin(), text.end(), first);
  return text;
}

/// Returns how much of the prompt was cached.
std::int64_t serve(listening_cache& cache, const std::vector<token>& text, const sequence_options& options) {
  const auto end = static_cast<std::int64_t>(text.size());
  const auto made = cache.create_sequence(text, options).value();
  for (auto done = made.num_cached_tokens; done < end;) {
    const auto next = cache.next_saved_length(made.id).value();
    done = next > done ? std::min(next, end) : end;
    cache.commit(made.id, done).value();
  }
  cache.release(made.id).value();
  return made.num_cached_tokens;
}

std::vector<block_id> blocks_of(listening_cache& cache, sequence_id id, std::size_t group) {
  auto blocks = std::vector<block_id>(static_cast<std::size_t>(cache.num_blocks()));
  blocks.resize(static_cast<std::size_t>(cache.block_table(id, blocks, 0, group).value()));
  return blocks;
}

void evict_others(listening_cache& cache) {
  for (auto i = token{1}; i <= 20; ++i) {
    serve(cache, text_from(1000 * i, 21), {.priority = 50});
  }
  REQUIRE(cache.statistics().evictions > 0);
}

}  // namespace

TEST_CASE("a pin that has ended leaves the blocks of every group their priority", "[group_cache][pins]") {
  const auto& second = GENERATE(window, state);
  CAPTURE(second.kind);
  auto cache = listening_cache{config_of(second, 40)};
  const auto valued = text_from(0, 21);
  serve(cache, valued, {.priority = 90});
  const auto length = cache.find_prefix(valued);
  REQUIRE(length > 0);
  cache.unpin(cache.pin(valued).value().id).value();
  evict_others(cache);
  CHECK(cache.find_prefix(valued) == length);
  CHECK(cache.check_invariants().empty());
}

TEST_CASE("a hit leaves what it copies the priority of the sequence that hits", "[group_cache]") {
  const auto& second = GENERATE(window, state);
  const auto given = GENERATE(90, 20);
  CAPTURE(second.kind, given);
  auto cache = listening_cache{config_of(second, 40)};
  const auto valued = text_from(0, 21);
  serve(cache, valued, {.priority = static_cast<std::uint8_t>(110 - given)});
  const auto length = cache.find_prefix(valued);
  CHECK(serve(cache, valued, {.priority = static_cast<std::uint8_t>(given), .publish = false}) == length);
  evict_others(cache);
  CHECK(cache.find_prefix(valued) == (given == 90 ? length : 0));
  CHECK(cache.check_invariants().empty());
}

TEST_CASE("groups tell a policy when a block was released", "[group_cache]") {
  auto cache = listening_cache{config_of(state, 40)};
  cache.advance_time(timestamp{70});
  serve(cache, text_from(0, 21), {});
  REQUIRE(!listening_priority::told.empty());
  CHECK(
      std::ranges::all_of(listening_priority::told, [](const auto& how) { return how.released_at == timestamp{70}; }));
}

TEST_CASE("a policy hears of blocks that a hit copies as of blocks that were found", "[group_cache]") {
  const auto& second = GENERATE(window, state);
  CAPTURE(second.kind);
  auto cache = listening_cache{config_of(second, 40)};
  const auto text = text_from(0, 21);
  serve(cache, text, {.expected_return = 9});
  listening_priority::told.clear();
  const auto made = cache.create_sequence(text, {.expected_return = 9}).value();
  REQUIRE(made.num_cached_tokens > 0);
  REQUIRE(!listening_priority::told.empty());  // before the sequence ends: what it copied
  CHECK(
      std::ranges::all_of(listening_priority::told, [](const auto& how) { return how.depth < how.num_cached_blocks; }));
  cache.release(made.id).value();
}

TEST_CASE("a policy hears the hint of a release also for the newest state of an answer", "[group_cache]") {
  auto cache = listening_cache{config_of(state, 40)};
  const auto text = text_from(0, 17);
  auto options = sequence_options{.num_prompt_tokens = 5};
  options.saving = {.at_branches = false, .at_prompt_end = false, .at_end = true};
  const auto id = cache.create_sequence(text, options).value().id;
  for (auto end = std::int64_t{1}; end <= 17; ++end) {
    cache.commit(id, end).value();
  }
  listening_priority::told.clear();
  cache.release(id, {.session_ended = true, .expected_return = 9}).value();
  REQUIRE(listening_priority::told.size() > 1);
  CHECK(std::ranges::all_of(listening_priority::told,
                            [](const auto& how) { return how.ended && how.expected_return == 9; }));
}

TEST_CASE("a policy hears what a block continues that a hit has copied", "[group_cache]") {
  auto cache = listening_cache{with_small_blocks()};
  REQUIRE(cache.plan().groups[1].block_size == 16);
  const auto text = text_from(0, 21);
  serve(cache, text, {});
  listening_priority::told.clear();
  const auto made = cache.create_sequence(text).value();
  REQUIRE(made.num_cached_tokens == 20);
  REQUIRE(listening_priority::told.size() == 1);  // of the window
  CHECK(listening_priority::told[0].depth == 1);
  CHECK(listening_priority::told[0].parent == blocks_of(cache, made.id, 1).at(0));
  CHECK(listening_priority::told[0].num_cached_blocks == 2);
  cache.release(made.id).value();
}

TEST_CASE("a policy hears what a block continues that an append has replaced", "[group_cache]") {
  auto cache = listening_cache{with_small_blocks()};
  REQUIRE(cache.plan().groups[1].block_size == 16);
  struct cut {
    std::size_t length;
    std::int64_t kept;
    std::int64_t num_dropped;  // blocks of the window
  };
  for (const auto& [length, kept, num_dropped] : {cut{16, 2, 0}, cut{8, 6, 0}, cut{32, 30, 1}, cut{36, 34, 1}}) {
    CAPTURE(length);
    const auto id = cache.create_sequence(text_from(static_cast<token>(1000 * length), length)).value().id;
    cache.commit(id, static_cast<std::int64_t>(length)).value();
    cache.truncate(id, kept).value();
    const auto tables = std::array{blocks_of(cache, id, 0), blocks_of(cache, id, 1)};
    const auto first = std::array{std::int64_t{0}, num_dropped};
    listening_priority::told.clear();
    cache.append(id, token{7}).value();  // a hit may find the slot where it is written
    REQUIRE(listening_priority::told.size() == 2);
    for (std::size_t g = 0; g < 2; ++g) {
      CAPTURE(g);
      const auto& heard = listening_priority::told[g];
      const auto place = kept / cache.plan().groups[g].block_size;
      REQUIRE(std::ssize(tables[g]) == place + 1 - first[g]);
      CHECK(heard.depth == static_cast<std::uint32_t>(place));
      CHECK(heard.parent == (place == first[g] ? no_block : tables[g].end()[-2]));
    }
    cache.release(id).value();
  }
}

TEST_CASE("a policy hears the places of blocks that a window leaves, and what they continue", "[group_cache]") {
  auto cache = listening_cache{with_small_blocks()};
  REQUIRE(cache.plan().groups[1].block_size == 16);
  const auto id = cache.create_sequence(text_from(0, 64)).value().id;
  const auto blocks = blocks_of(cache, id, 1);
  listening_priority::told.clear();
  cache.commit(id, 64).value();
  REQUIRE(listening_priority::told.size() == 3);
  for (auto i = std::uint32_t{0}; i < 3; ++i) {
    CHECK(listening_priority::told[i].depth == 2 - i);
    CHECK(listening_priority::told[i].parent == (i == 2 ? no_block : blocks.at(1 - i)));
    CHECK(listening_priority::told[i].num_chain_blocks == 4);
  }
  cache.release(id).value();
}

TEST_CASE("a policy hears of a prompt and a hit that were cut what is left of them", "[group_cache]") {
  auto cache = listening_cache{with_small_blocks()};
  REQUIRE(cache.plan().groups[0].block_size == 4);
  const auto text = text_from(0, 16);
  serve(cache, text, {});
  const auto made = cache.create_sequence(text).value();
  REQUIRE(made.num_cached_tokens == 12);
  cache.truncate(made.id, 8).value();
  cache.append(made.id, text_from(100, 8)).value();
  cache.commit(made.id, 16).value();
  listening_priority::told.clear();
  cache.release(made.id).value();
  REQUIRE(listening_priority::told.size() > 4);
  for (auto i = std::uint32_t{0}; i < 4; ++i) {  // of full attention
    const auto& heard = listening_priority::told[i];
    CHECK(heard.depth == 3 - i);
    CHECK(heard.num_prompt_tokens == 8);
    CHECK(heard.num_output_tokens == 8);
    CHECK(heard.num_cached_blocks == 2);
    CHECK(heard.last_cached == listening_priority::told[1].parent);
  }
}

TEST_CASE("a policy hears which block a hit ended with, though one token follows", "[group_cache]") {
  auto cache = listening_cache{with_small_blocks()};
  const auto text = text_from(0, 5);
  serve(cache, text, {});
  const auto made = cache.create_sequence(text).value();
  REQUIRE(made.num_cached_tokens == 4);
  cache.commit(made.id, 5).value();
  const auto cached = blocks_of(cache, made.id, 0).at(0);
  listening_priority::told.clear();
  cache.release(made.id).value();
  REQUIRE(!listening_priority::told.empty());
  CHECK(listening_priority::told[0].num_cached_blocks == 1);
  CHECK(listening_priority::told[0].last_cached == cached);
}

}  // namespace group_priority_test
