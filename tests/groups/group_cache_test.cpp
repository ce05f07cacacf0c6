#include <pagedkv/cache/group_cache.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/layout/hnd_block_major.hpp>
#include <pagedkv/storage/presets.hpp>

#include "../support/failing_allocator.hpp"
#include "../support/printing.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using tokens = std::vector<token>;
constexpr auto whole_length = std::numeric_limits<std::int64_t>::max();

/// A number that stands for all tokens up to each position.
std::uint64_t extend(std::uint64_t history, token next) {
  return (history ^ static_cast<std::uint64_t>(next + 1)) * 0x9e3779b97f4a7c15;
}
std::uint64_t history_of(const tokens& text, std::int64_t length) {
  auto history = std::uint64_t{1};
  for (std::int64_t i = 0; i < length; ++i) {
    history = extend(history, text[static_cast<std::size_t>(i)]);
  }
  return history;
}

/// An engine without a model: writes known values of every token, group and layer, reads them back, and knows which
/// blocks open steps may read.
template <class Cache>
class engine {
 public:
  struct live {
    tokens text;
    std::int64_t computed = 0;
  };

  explicit engine(const cache_config& config) : cache(config) {}

  std::optional<sequence_id> create(const tokens& prompt, const sequence_options& options = {},
                                    const state_saving& saving = {}) {
    const auto expected = cache.find_prefix(prompt, options.salt).value();
    const auto made = cache.create_sequence(prompt, options, saving);
    if (!made) {
      return std::nullopt;
    }
    if (options.max_cached_tokens == whole_length) {
      // Where memory is short, a sequence goes without a hit that it would have to copy.
      CHECK((made->num_cached_tokens == expected || made->num_cached_tokens == 0));
    }
    auto& s = sequences[made->id];
    s.text.assign(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(made->num_tokens));
    s.computed = made->num_cached_tokens;
    check(made->id);
    return made->id;
  }

  bool append(sequence_id id, const tokens& more) {
    if (!cache.append(id, more)) {
      return false;
    }
    auto& text = sequences.at(id).text;
    text.insert(text.end(), more.begin(), more.end());
    return true;
  }

  /// Computes tokens up to a length, in chunks that end where the cache saves a state.
  void compute(sequence_id id, std::int64_t end) {
    auto& s = sequences.at(id);
    while (s.computed < end) {
      const auto next = std::min(end, cache.next_saved_length(id).value());
      write(id, next);
      REQUIRE(cache.commit(id, next));
      s.computed = next;
    }
  }
  void compute(sequence_id id) { compute(id, static_cast<std::int64_t>(sequences.at(id).text.size())); }

  std::optional<sequence_id> fork(sequence_id id) {
    const auto made = cache.fork(id);
    if (!made) {
      return std::nullopt;
    }
    sequences[*made] = sequences.at(id);
    check(*made);
    return *made;
  }

  bool truncate(sequence_id id, std::int64_t length) {
    if (!cache.truncate(id, length)) {
      return false;
    }
    auto& s = sequences.at(id);
    s.text.resize(static_cast<std::size_t>(length));
    s.computed = std::min(s.computed, length);
    return true;
  }

  void release(sequence_id id) {
    REQUIRE(cache.release(id));
    sequences.erase(id);
  }

  void begin_step(const std::vector<sequence_id>& ids) {
    const auto step = cache.begin_step(ids).value();
    auto& used = open_steps[step];
    for (const auto id : ids) {
      for (std::size_t g = 0; g < cache.config().groups.size(); ++g) {
        const auto block_size = cache.plan().groups[g].block_size;
        auto slots = std::vector<slot>(sequences.at(id).text.size());
        if (block_size == 0) {
          for (const auto block : table(g, id)) {
            used[{block, 0}] = id;
          }
          continue;
        }
        REQUIRE(cache.slot_mapping(g, id, 0, slots));
        for (const auto at : slots) {
          used[place_of(at, block_size)] = id;
        }
      }
    }
  }
  void retire_step(step_id step) {
    REQUIRE(cache.retire_step(step));
    open_steps.erase(step);
  }

  std::vector<block_id> table(std::size_t group, sequence_id id) {
    auto blocks = std::vector<block_id>(static_cast<std::size_t>(cache.config().num_blocks));
    blocks.resize(cache.block_table(group, id, blocks).value());
    return blocks;
  }

  /// Reads everything that the next token of a sequence needs, through slots and through the group's table.
  void check(sequence_id id) {
    const auto& s = sequences.at(id);
    for (std::size_t g = 0; g < cache.config().groups.size(); ++g) {
      const auto& group = cache.config().groups[g];
      if (!group.holds_tokens()) {
        check_state(g, id, history_of(s.text, s.computed));
        continue;
      }
      const auto first = group.first_needed(s.computed);
      auto slots = std::vector<slot>(s.text.size());
      REQUIRE(cache.slot_mapping(g, id, 0, slots));
      const auto blocks = table(g, id);
      const auto block_size = cache.plan().groups[g].block_size;
      const auto skipped = cache.num_skipped_tokens(g, id).value();
      auto history = std::uint64_t{1};
      for (std::int64_t i = 0; i < s.computed; ++i) {
        history = extend(history, s.text[static_cast<std::size_t>(i)]);
        if (i < first && i >= group.num_sinks) {
          continue;
        }
        const auto at = slots[static_cast<std::size_t>(i)];
        REQUIRE(at != skip_slot);
        // Sinks keep their place in front; other tokens stand as many places earlier as were skipped.
        const auto entry = i >= first ? i - skipped : i;
        REQUIRE(make_slot(blocks[static_cast<std::size_t>(entry / block_size)], block_size, entry % block_size) == at);
        check_row(g, at, history);
      }
    }
  }

  /// A block and an offset in it.
  using position_in_pool = std::pair<block_id, std::int64_t>;
  static position_in_pool place_of(slot at, std::int32_t block_size) {
    const auto number = static_cast<std::int64_t>(at);
    return at == skip_slot
               ? position_in_pool{no_block, 0}
               : position_in_pool{to_block(static_cast<std::size_t>(number / block_size)), number % block_size};
  }

  /// No open step of another sequence reads a slot that this one writes.
  void check_writable(sequence_id id, slot at, std::int32_t block_size) {
    for (const auto& [step, used] : open_steps) {
      const auto found = used.find(place_of(at, block_size));
      if (found != used.end()) {
        REQUIRE(found->second == id);
      }
    }
  }

  void write(sequence_id id, std::int64_t end) {
    const auto& s = sequences.at(id);
    for (std::size_t g = 0; g < cache.config().groups.size(); ++g) {
      const auto& group = cache.config().groups[g];
      if (!group.holds_tokens()) {
        write_state(g, id, history_of(s.text, end));
        continue;
      }
      auto slots = std::vector<slot>(static_cast<std::size_t>(end - s.computed));
      REQUIRE(cache.slot_mapping(g, id, s.computed, slots));
      auto history = history_of(s.text, s.computed);
      for (std::size_t i = 0; i < slots.size(); ++i) {
        history = extend(history, s.text[static_cast<std::size_t>(s.computed) + i]);
        REQUIRE(slots[i] != skip_slot);
        check_writable(id, slots[i], cache.plan().groups[g].block_size);
        write_row(g, slots[i], history);
      }
    }
  }

  Cache cache;
  std::map<sequence_id, live> sequences;
  std::map<step_id, std::map<position_in_pool, sequence_id>> open_steps;

 private:
  static float number(std::uint64_t history, std::size_t g, std::int32_t layer, bool is_value, std::size_t i) {
    const auto mixed =
        (history + 31 * g + 7 * static_cast<std::size_t>(layer) + (is_value ? 3 : 0) + i) * 0xff51afd7ed558ccd;
    return static_cast<float>(mixed >> 44);
  }

  void write_row(std::size_t g, slot at, std::uint64_t history) {
    const auto& group = cache.config().groups[g];
    const auto heads = static_cast<std::size_t>(group.num_kv_heads);
    auto keys = std::vector<float>(heads * static_cast<std::size_t>(group.key_dim));
    auto values = std::vector<float>(heads * static_cast<std::size_t>(group.value_dim));
    for (auto layer = 0; layer < group.num_layers; ++layer) {
      fill(keys, values, history, g, layer);
      const auto key_rows = token_rows<const float>{keys.data(), 0, group.key_dim, 1};
      const auto value_rows = token_rows<const float>{values.data(), 0, group.value_dim, 1};
      REQUIRE(cache.write(g, layer, {&at, 1}, key_rows, value_rows));
    }
  }

  void fill(std::vector<float>& keys, std::vector<float>& values, std::uint64_t history, std::size_t g,
            std::int32_t layer) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      keys[i] = number(history, g, layer, false, i);
    }
    const bool latent = cache.config().groups[g].kind == group_kind::latent;
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = latent ? keys[i] : number(history, g, layer, true, i);
    }
  }

  void check_row(std::size_t g, slot at, std::uint64_t history) {
    const auto& group = cache.config().groups[g];
    const auto heads = static_cast<std::size_t>(group.num_kv_heads);
    auto keys = std::vector<float>(heads * static_cast<std::size_t>(group.key_dim));
    auto values = std::vector<float>(heads * static_cast<std::size_t>(group.value_dim));
    auto found_keys = keys;
    auto found_values = values;
    for (auto layer = 0; layer < group.num_layers; ++layer) {
      fill(keys, values, history, g, layer);
      const auto key_rows = token_rows<float>{found_keys.data(), 0, group.key_dim, 1};
      const auto value_rows = token_rows<float>{found_values.data(), 0, group.value_dim, 1};
      REQUIRE(cache.read(g, layer, {&at, 1}, key_rows, value_rows));
      REQUIRE(found_keys == keys);
      REQUIRE(found_values == values);
    }
  }

  template <class Visit>
  void for_each_part(std::size_t g, sequence_id id, Visit&& visit) {
    const auto& group = cache.config().groups[g];
    const auto blocks = table(g, id);
    const auto num_parts = group.num_layers * group.num_kv_heads;
    const auto per_block = cache.plan().groups[g].parts_per_block;
    for (auto part = 0; part < num_parts; ++part) {
      const auto block = blocks[static_cast<std::size_t>(part / per_block)];
      visit(block, part, cache.state_part(g, block, part % per_block));
    }
  }
  void write_state(std::size_t g, sequence_id id, std::uint64_t history) {
    for_each_part(g, id, [&](block_id block, std::int32_t part, std::byte* bytes) {
      check_writable(id, make_slot(block, 1, 0), 1);
      const auto size = static_cast<std::size_t>(cache.config().groups[g].state_bytes);
      std::memset(bytes, static_cast<int>((history + static_cast<std::uint64_t>(part) * 5) % 251), size);
    });
  }
  void check_state(std::size_t g, sequence_id id, std::uint64_t history) {
    if (sequences.at(id).computed == 0) {
      return;
    }
    for_each_part(g, id, [&](block_id, std::int32_t part, const std::byte* bytes) {
      const auto expected = static_cast<std::byte>((history + static_cast<std::uint64_t>(part) * 5) % 251);
      const auto size = static_cast<std::size_t>(cache.config().groups[g].state_bytes);
      REQUIRE(std::all_of(bytes, bytes + size, [&](std::byte each) { return each == expected; }));
    });
  }
};

constexpr auto full = group_config{.num_layers = 2, .key_dim = 6, .value_dim = 6};
constexpr auto window =
    group_config{.kind = group_kind::window, .num_layers = 5, .key_dim = 6, .value_dim = 6, .window = 7};
constexpr auto with_sinks = group_config{
    .kind = group_kind::window, .num_layers = 4, .key_dim = 5, .value_dim = 8, .window = 12, .num_sinks = 5};
constexpr auto chunked =
    group_config{.kind = group_kind::chunked, .num_kv_heads = 3, .key_dim = 4, .value_dim = 4, .window = 20};
constexpr auto latent = group_config{.kind = group_kind::latent, .num_layers = 3, .key_dim = 18, .value_dim = 13};
constexpr auto state = group_config{.kind = group_kind::state, .num_layers = 2, .num_kv_heads = 3, .state_bytes = 300};

cache_config config_of(group_list groups, std::int32_t num_blocks = 400, std::int32_t granularity = 4) {
  auto config = cache_config{.block_size = granularity, .num_blocks = num_blocks, .max_sequences = 12, .hash_seed = 7};
  config.groups = groups;
  return config;
}

const std::vector<std::pair<std::string, group_list>> kinds = {
    {"full", {full}},
    {"latent", {latent}},
    {"full and window", {full, window}},
    {"full and window with sinks", {full, with_sinks}},
    {"full and chunked", {full, chunked}},
    {"full and state", {full, state}},
    {"latent, two windows, chunked and state", {window, latent, with_sinks, chunked, state}},
};

tokens counted(int length, int first = 0) {
  auto text = tokens{};
  for (auto i = 0; i < length; ++i) {
    text.push_back(first + i);
  }
  return text;
}

using plain = engine<group_cache<float32>>;

}  // namespace

TEST_CASE("a resent prompt shares what every group can continue from", "[group_cache]") {
  for (const auto& [name, groups] : kinds) {
    INFO(name);
    auto e = plain{config_of(groups)};
    const auto first = e.create(counted(50)).value();
    e.compute(first);
    e.check(first);
    e.release(first);
    const auto again = e.create(counted(50)).value();
    CHECK(e.sequences.at(again).computed == 48);  // the last token is left to compute
    e.compute(again);
    e.check(again);
    CHECK(e.cache.check_invariants() == std::vector<std::string>{});
  }
}

TEST_CASE("a hit may end inside a block of a group, which is then copied", "[group_cache]") {
  auto e = plain{config_of({full, window})};
  REQUIRE(e.cache.plan().groups[0].block_size > 4);
  const auto first = e.create(counted(30)).value();
  e.compute(first);
  auto other = counted(21);
  other.push_back(-1);
  const auto branch = e.create(other).value();
  CHECK(e.sequences.at(branch).computed == 20);
  e.compute(branch);
  CHECK(e.append(first, counted(9, 100)));
  e.compute(first);
  e.check(first);
  e.check(branch);
}

TEST_CASE("a slot mapping outside of the sequence is refused", "[group_cache]") {
  auto e = plain{config_of({full, window})};
  const auto id = e.create(counted(30)).value();
  auto slots = std::array<slot, 2>{};
  for (const auto first : {std::int64_t{-1}, std::int64_t{29}, whole_length}) {
    CAPTURE(first);
    CHECK(e.cache.slot_mapping(0, id, first, slots).error().code == error_code::invalid_argument);
  }
  CHECK(e.cache.slot_mapping(0, id, 28, slots));
}

TEST_CASE("slots that a hit can find are not written again", "[group_cache]") {
  auto wide = window;
  wide.window = 100;
  auto e = plain{config_of({full, wide})};
  const auto first = e.create(counted(24)).value();
  e.compute(first);
  REQUIRE(e.truncate(first, 21));
  REQUIRE(e.append(first, counted(9, 500)));
  e.compute(first);
  const auto again = e.create(counted(25)).value();
  CHECK(e.sequences.at(again).computed == 24);
  e.check(first);
}

TEST_CASE("a table of a window does not grow, and only committed tokens move the window", "[group_cache]") {
  auto e = plain{config_of({full, window, with_sinks})};
  const auto id = e.create(counted(3)).value();
  for (auto i = 0; i < 300; ++i) {
    REQUIRE(e.append(id, counted(1, i)));
    if (i % 10 == 9) {
      const auto held = e.table(1, id);
      REQUIRE(e.append(id, counted(4, 7 * i)));  // a draft
      for (const auto block : held) {
        REQUIRE(std::ranges::count(e.table(1, id), block) == 1);
      }
      e.compute(id, static_cast<std::int64_t>(e.sequences.at(id).text.size()) - 4);
      REQUIRE(e.truncate(id, static_cast<std::int64_t>(e.sequences.at(id).text.size()) - 4));
      e.check(id);
    }
  }
  const auto& plan = e.cache.plan();
  CHECK(e.table(1, id).size() <= static_cast<std::size_t>(7 / plan.groups[1].block_size + 2 + 14));
  CHECK(e.table(0, id).size() ==
        static_cast<std::size_t>((303 + plan.groups[0].block_size - 1) / plan.groups[0].block_size));
  CHECK(e.cache.check_invariants() == std::vector<std::string>{});
}

TEST_CASE("states are saved where a prompt branches and before its end, or where the caller asks", "[group_cache]") {
  auto e = plain{config_of({full, state})};
  const auto first = e.create(counted(50)).value();
  CHECK(e.cache.next_saved_length(first).value() == 48);
  e.compute(first);
  CHECK(e.cache.next_saved_length(first).value() == whole_length);
  e.release(first);

  auto other = counted(31);
  other.resize(60, -1);
  const auto branch = e.create(other).value();
  CHECK(e.sequences.at(branch).computed == 0);  // no state was saved at the branch
  CHECK(e.cache.next_saved_length(branch).value() == 28);
  e.compute(branch);
  e.release(branch);

  auto third = counted(31);
  third.resize(60, -2);
  const auto hit = e.create(third).value();
  CHECK(e.sequences.at(hit).computed == 28);
  e.compute(hit);
  e.check(hit);
  e.release(hit);

  const auto often = e.create(counted(40, 500), {}, {.at_branches = false, .at_prompt_end = false, .every = 8}).value();
  CHECK(e.cache.next_saved_length(often).value() == 8);
  e.compute(often);
  const auto resent = e.create(counted(40, 500)).value();
  CHECK(e.sequences.at(resent).computed == 32);
}

TEST_CASE("the state before the end of a prompt is saved when its answer is there already", "[group_cache]") {
  auto e = plain{config_of({full, state})};
  auto options = sequence_options{};
  options.num_prompt_tokens = 22;
  const auto again = e.create(counted(40), options).value();
  CHECK(e.cache.describe(again)->num_prompt_tokens == 22);
  CHECK(e.cache.next_saved_length(again).value() == 20);
  e.compute(again);
  const auto other = e.create(counted(22)).value();
  CHECK(e.sequences.at(other).computed == 20);
}

TEST_CASE("the next length whose commit saves a state is a multiple of both numbers, if there is one", "[group_cache]") {
  auto e = plain{config_of({full, state})};
  const auto next_of = [&](std::int64_t every) {
    const auto id = e.create(counted(40), {}, {.at_branches = false, .at_prompt_end = false, .every = every}).value();
    const auto next = e.cache.next_saved_length(id).value();
    e.release(id);
    return next;
  };
  CHECK(next_of(0) == whole_length);
  CHECK(next_of(6) == 12);
  CHECK(next_of(whole_length) == whole_length);
  CHECK(next_of(whole_length / 4) == whole_length / 4 * 4);
  CHECK(next_of(whole_length / 2) == whole_length);

  auto without = plain{config_of({full, window})};
  const auto id = without.create(counted(40), {}, {.every = 8}).value();
  CHECK(without.cache.next_saved_length(id).value() == whole_length);
}

TEST_CASE("a forked sequence has a state of its own", "[group_cache]") {
  auto e = plain{config_of({full, window, state})};
  const auto first = e.create(counted(22)).value();
  e.compute(first);
  const auto second = e.fork(first).value();
  REQUIRE(e.append(first, counted(9, 50)));
  e.compute(first);
  REQUIRE(e.append(second, counted(9, 80)));
  e.compute(second);
  e.check(first);
  e.check(second);
  REQUIRE(e.append(first, counted(1)));
  CHECK_FALSE(e.cache.fork(first));  // not computed
}

TEST_CASE("evicting a block of full attention takes along what it makes useless", "[group_cache]") {
  auto e = plain{config_of({full, window, state}, 60)};
  const auto long_ago = e.create(counted(40)).value();
  e.compute(long_ago);
  e.release(long_ago);
  const auto before = e.cache.statistics().blocks.evictable;
  REQUIRE(before > 8);
  const auto held = e.create(counted(24, 1000), {.publish = false}).value();
  e.compute(held);
  while (e.cache.num_free_blocks() > 0) {
    REQUIRE(e.append(held, counted(1)));
    e.compute(held);
  }
  while (e.cache.statistics().evictions == 0) {
    REQUIRE(e.append(held, counted(1)));
    e.compute(held);
  }
  CHECK(e.cache.check_invariants() == std::vector<std::string>{});
  CHECK(e.cache.find_prefix(counted(40)).value() < 36);
}

TEST_CASE("losing one of two equal blocks keeps the other findable", "[group_cache]") {
  auto e = plain{config_of({full, window, state}, 80)};
  const auto first = e.create(counted(40)).value();
  const auto second = e.create(counted(40)).value();
  e.compute(first);
  e.compute(second);
  e.release(first);
  const auto other = e.create(counted(20, 1000), {.publish = false}).value();
  while (e.cache.find_prefix(counted(40)).value() != 0) {
    REQUIRE(e.append(other, counted(1)));
    e.compute(other);
  }
  e.release(other);
  e.release(second);
  auto text = counted(41);
  REQUIRE(e.cache.pin(text));
  CHECK(e.cache.check_invariants() == std::vector<std::string>{});
  auto without_state = plain{config_of({full, window}, 40)};
  const auto a = without_state.create(counted(40)).value();
  const auto b = without_state.create(counted(40)).value();
  without_state.compute(a);
  without_state.compute(b);
  without_state.release(a);
  const auto c = without_state.create(counted(20, 1000), {.publish = false}).value();
  while (without_state.cache.find_prefix(counted(40)).value() != 0) {
    REQUIRE(without_state.append(c, counted(1)));
    without_state.compute(c);
  }
  without_state.release(b);
  const auto found = without_state.create(counted(41)).value();
  CHECK(without_state.sequences.at(found).computed == 40);
}

TEST_CASE("a window group's batch has the rows and lengths that kernels take", "[group_cache]") {
  auto e = plain{config_of({full, window})};
  const auto a = e.create(counted(45)).value();
  const auto b = e.create(counted(3, 900)).value();
  e.compute(a);
  e.compute(b);
  const auto ids = std::vector{a, b};
  const auto block_size = e.cache.plan().groups[1].block_size;
  auto padded = padded_batch{2, 40};
  auto compressed = compressed_batch{2, 80};
  for (auto round = 0; round < 20; ++round) {
    REQUIRE(e.cache.update(1, padded, ids));
    REQUIRE(e.cache.update(1, compressed, ids));
    for (std::size_t i = 0; i < 2; ++i) {
      const auto blocks = e.table(1, ids[i]);
      const auto length =
          static_cast<std::int64_t>(e.sequences.at(ids[i]).text.size()) - e.cache.num_skipped_tokens(1, ids[i]).value();
      CHECK(padded.lengths()[i] == length);
      CHECK(std::ranges::equal(blocks, padded.block_tables().subspan(i * 40, blocks.size())));
      const auto begin = static_cast<std::size_t>(compressed.indptr()[i]);
      CHECK(std::ranges::equal(blocks, compressed.indices().subspan(begin, blocks.size())));
      CHECK(compressed.last_block_len()[i] == (length - 1) % block_size + 1);
    }
    REQUIRE(e.append(a, counted(2)));
    REQUIRE(e.append(b, counted(1)));
    e.compute(a);
    e.compute(b);
  }
  CHECK(e.cache.update(7, padded, ids).error().subject == std::string{"index of a group"});
}

/// Notes the kinds of all events.
struct noted_kinds {
  static constexpr auto kinds = all_event_kinds;

  std::vector<event_kind>* seen;

  void emit(const cache_event& event) noexcept { seen->push_back(event.kind); }
};

TEST_CASE("a cache with groups reports sequences and steps", "[group_cache]") {
  auto seen = std::vector<event_kind>{};
  auto cache = group_cache<noted_kinds>{config_of({full, window}), noted_kinds{&seen}};
  const auto made = cache.create_sequence(counted(20)).value();
  const auto step = cache.begin_step(std::array{made.id}).value();
  REQUIRE(cache.commit(made.id, 20).has_value());
  REQUIRE(cache.fork(made.id).has_value());
  REQUIRE(cache.release(made.id).has_value());
  REQUIRE(cache.retire_step(step).has_value());
  REQUIRE(cache.begin_step().has_value());
  using enum event_kind;
  CHECK(seen == std::vector{admitted, step_begun, forked, released, step_retired, step_begun});
}

TEST_CASE("pinned blocks count among those that were in use at once", "[group_cache]") {
  auto cache = group_cache<float32>{config_of({full, window})};
  const auto serve = [&](token first) {
    const auto made = cache.create_sequence(counted(20, first)).value();
    REQUIRE(cache.commit(made.id, 20).has_value());
    REQUIRE(cache.release(made.id).has_value());
  };
  serve(0);
  serve(100);
  const auto one = cache.pin(counted(20)).value();
  const auto other = cache.pin(counted(20, 100)).value();
  const auto in_use = cache.statistics().blocks.in_use;
  REQUIRE(cache.unpin(one.id).has_value());
  REQUIRE(cache.unpin(other.id).has_value());
  CHECK(cache.statistics().peak_in_use >= in_use);
}

TEST_CASE("configurations that no cache with groups supports are refused", "[group_cache]") {
  const auto refusal = [](group_list groups) {
    const auto made = group_cache<float32>::create(config_of(groups));
    REQUIRE_FALSE(made);
    return std::string{made.error().subject};
  };
  CHECK(refusal({}) == "number of cache_config.groups");
  CHECK(refusal({window}) == "number of groups that attend to all tokens");
  CHECK(refusal({full, state, state}) == "number of groups with a state");
  CHECK(refusal({full, group_config{.num_layers = 0}}) == "group_config.num_layers");
  auto c = group_cache<float32>{config_of({full})};
  CHECK_FALSE(c.create_sequence(counted(4), {.priority = 101}));
  CHECK_FALSE(c.create_sequence(counted(4), {.answer = block_retention{}}));
  const auto key = prefix_key{};
  CHECK_FALSE(c.create_sequence(token_run{counted(4), {&key, 1}}));
  CHECK(c.statistics().num_sequences == 0);
}

namespace {

/// Blocks of a sequence of so many tokens, none of them released.
std::size_t blocks_for(const cache_config& config, std::int64_t num_tokens) {
  const auto plan = plan_memory(config.groups, size_of_element<float32>, config.block_size).value();
  auto num = std::int64_t{0};
  for (std::size_t g = 0; g < config.groups.size(); ++g) {
    const auto& own = plan.groups[g];
    num += own.blocks_per_state != 0 ? own.blocks_per_state : (num_tokens + own.block_size - 1) / own.block_size;
  }
  return static_cast<std::size_t>(num);
}

struct coverage {
  std::int64_t hit_tokens = 0;
  std::int64_t copies = 0;
  std::int64_t evictions = 0;
  std::int64_t refusals = 0;
};

/// Random operations on a cache whose every byte is known.
template <class Cache>
coverage run_random(const group_list& groups, std::uint64_t seed, int num_operations) {
  auto random = std::mt19937_64{seed};
  const auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  const auto granularity = std::array{1, 4, 8}[below(3)];
  auto config = config_of(groups, 1, granularity);
  config.num_blocks = static_cast<std::int32_t>(blocks_for(config, 40) * (10 + below(30)) / 10);
  auto e = engine<Cache>{config};
  auto texts = std::vector<tokens>{{}};
  auto pins = std::vector<pin_id>{};
  const auto any = [&] {
    auto found = e.sequences.begin();
    std::advance(found, static_cast<std::ptrdiff_t>(below(e.sequences.size())));
    return found->first;
  };
  const auto draw = [&](std::size_t most) {
    auto text = tokens(below(most) + 1);
    std::ranges::generate(text, [&] { return static_cast<token>(below(2)); });
    return text;
  };
  for (auto i = 0; i < num_operations; ++i) {
    const auto action = below(20);
    INFO("operation " << i << ", action " << action);
    if (action < 4 || e.sequences.empty()) {
      auto prompt = texts[texts.size() - 1 - below(std::min(texts.size(), below(4) + 1))];
      prompt.resize(below(2) == 0 ? prompt.size() : below(prompt.size() + 1));
      const auto more = draw(30);
      prompt.insert(prompt.end(), more.begin(), more.end());
      auto options = sequence_options{};
      options.publish = below(8) != 0;
      options.max_cached_tokens = below(8) == 0 ? static_cast<std::int64_t>(below(20)) : whole_length;
      options.first_chunk = below(4) == 0 ? static_cast<std::int64_t>(below(20)) : whole_length;
      const auto saving = state_saving{below(2) == 0, below(2) == 0, below(3) == 0 ? 8 : 0};
      const auto before = e.cache.statistics();
      if (!e.create(prompt, options, saving)) {
        CHECK(e.cache.statistics().blocks.in_use == before.blocks.in_use);
      }
    } else if (action < 8) {
      e.append(any(), draw(6));
    } else if (action < 12) {
      const auto id = any();
      const auto& s = e.sequences.at(id);
      e.compute(
          id, s.computed + static_cast<std::int64_t>(below(s.text.size() - static_cast<std::size_t>(s.computed) + 1)));
      texts.push_back(s.text);
      texts.back().resize(static_cast<std::size_t>(s.computed));
    } else if (action < 13) {
      e.fork(any());
    } else if (action < 14) {
      const auto id = any();
      const auto& s = e.sequences.at(id);
      texts.push_back(s.text);
      texts.back().resize(static_cast<std::size_t>(s.computed));
      const auto length = s.text.size();
      const auto cut = below(2) == 0 ? below(length + 1) : below(std::min(length, std::size_t{8}) + 1);
      e.truncate(id, static_cast<std::int64_t>(length - cut));
    } else if (action < 16) {
      e.release(any());
    } else if (action < 17) {
      if (pins.empty() || below(2) == 0) {
        if (const auto pinned = e.cache.pin(texts[below(texts.size())])) {
          pins.push_back(pinned->id);
        }
      } else {
        REQUIRE(e.cache.unpin(pins.back()));
        pins.pop_back();
      }
    } else if (action < 18) {
      if (e.open_steps.size() < 3) {
        e.begin_step({any()});
      }
    } else if (action < 19) {
      if (!e.open_steps.empty()) {
        e.retire_step(e.open_steps.begin()->first);
      }
    } else if (e.open_steps.empty()) {
      REQUIRE(e.cache.compact());
    }
    if (texts.size() > 20) {
      texts.erase(texts.begin() + 1);
    }
    REQUIRE(e.cache.check_invariants() == std::vector<std::string>{});
    for (const auto& [id, s] : e.sequences) {
      e.check(id);
    }
  }
  while (!e.open_steps.empty()) {
    e.retire_step(e.open_steps.begin()->first);
  }
  for (const auto pinned : pins) {
    REQUIRE(e.cache.unpin(pinned));
  }
  while (!e.sequences.empty()) {
    e.release(e.sequences.begin()->first);
  }
  const auto taken = e.cache.statistics();
  CHECK(taken.blocks.in_use == 0);
  CHECK(e.cache.check_invariants() == std::vector<std::string>{});
  return {taken.hit_tokens, taken.copies, taken.evictions, taken.refusals};
}

}  // namespace

TEMPLATE_TEST_CASE("no byte is ever wrong, whatever the operations", "[group_cache]", group_cache<float32>,
                   (group_cache<float32, rw_lock, clock_sweep, hnd_block_major>), (group_cache<float32, fifo>)) {
  const auto seed = Catch::getSeed();
  auto covered = coverage{};
  for (const auto& [name, groups] : kinds) {
    for (auto round = std::uint64_t{0}; round < 8; ++round) {
      INFO(name << ", seed " << seed << ", round " << round);
      const auto [hit_tokens, copies, evictions, refusals] = run_random<TestType>(groups, seed * 1000 + round, 120);
      covered.hit_tokens += hit_tokens;
      covered.copies += copies;
      covered.evictions += evictions;
      covered.refusals += refusals;
    }
  }
  CHECK(covered.hit_tokens > 100);
  CHECK(covered.copies > 10);
  CHECK(covered.evictions > 10);
  CHECK(covered.refusals > 10);
}
