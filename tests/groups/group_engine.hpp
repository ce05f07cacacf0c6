#pragma once

#include <pagedkv/pagedkv.hpp>

#include "../support/first_difference.hpp"
#include "../support/printing.hpp"
#include "../support/uninstrumented.hpp"

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pagedkv::test {

using tokens = std::vector<token>;
/// `check_invariants` returns this for a sound cache.
inline const auto sound = std::vector<std::string>{};
inline constexpr auto whole_length = std::numeric_limits<std::int64_t>::max();

/// A number that stands for all tokens up to each position.
inline std::uint64_t extend(std::uint64_t history, token next) {
  return (history ^ static_cast<std::uint64_t>(next + 1)) * 0x9e3779b97f4a7c15;
}
inline std::uint64_t history_of(const tokens& text, std::int64_t length, salt tag = {}) {
  auto history = std::uint64_t{1} + 2 * static_cast<std::uint64_t>(tag);
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
  static constexpr bool has_tiers = requires(Cache& one, sequence_id id) { one.settle(id); };

  struct live {
    tokens text;
    std::int64_t computed = 0;
    salt tag{};
  };

  template <class... More>
  explicit engine(const cache_config& config, More&&... more) : cache(config, std::forward<More>(more)...) {}

  std::optional<sequence_id> create(const tokens& prompt, const sequence_options& options = {}) {
    const auto expected = cache.find_prefix(prompt, options.salt);
    const auto fit = cache.would_fit(prompt, options);
    const auto made = cache.create_sequence(prompt, options);
    if constexpr (!has_tiers) {
      check_forecast(fit, made);
    }
    if (!made) {
      return std::nullopt;
    }
    auto num_cached = made->num_cached_tokens;
    if constexpr (has_tiers) {
      cache.wait(made->id);
      num_cached = cache.settle(made->id).value();
      CHECK(num_cached >= made->num_cached_tokens);
    } else if (options.max_cached_tokens == whole_length) {
      // Where memory is short, a sequence goes without a hit that it would have to copy.
      CHECK((made->num_cached_tokens == expected || made->num_cached_tokens == 0));
    }
    auto& s = sequences[made->id];
    s.text.assign(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(made->num_tokens));
    s.computed = num_cached;
    s.tag = options.salt;
    if constexpr (!has_tiers) {
      auto num_blocks = std::int64_t{0};
      for (std::size_t g = 0; g < cache.config().groups.size(); ++g) {
        num_blocks += std::ssize(table(g, made->id));
      }
      CHECK(made->num_blocks == num_blocks);
    }
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
        REQUIRE(cache.slot_mapping(id, 0, slots, g));
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

  /// Computes a prompt, of which the cache may have a part, and keeps it.
  sequence_id hold(const tokens& prompt, const sequence_options& options = {}) {
    const auto made = create(prompt, options);
    REQUIRE(made);
    compute(*made);
    return *made;
  }
  /// Runs a prompt from start to end; returns how many of its tokens were not computed.
  std::int64_t serve(const tokens& prompt, const sequence_options& options = {}) {
    const auto made = create(prompt, options);
    REQUIRE(made);
    const auto num_cached = sequences.at(*made).computed;
    compute(*made);
    check(*made);
    release(*made);
    return num_cached;
  }
  void check_invariants() {
    const auto broken = cache.check_invariants();
    CAPTURE(broken);
    REQUIRE(broken.empty());
  }

  /// Statistics of the sequences are those of their tokens and tables.
  void check_statistics() {
    auto num_tokens = std::int64_t{0};
    auto num_unfilled = std::int64_t{0};
    for (const auto& [id, s] : sequences) {
      const auto length = std::ssize(s.text);
      num_tokens += length;
      for (std::size_t g = 0; g < cache.config().groups.size(); ++g) {
        if (cache.config().groups[g].holds_tokens()) {
          const auto num_slots = std::ssize(table(g, id)) * cache.plan().groups[g].block_size;
          num_unfilled += std::max(num_slots + cache.num_skipped_tokens(id, g).value() - length, std::int64_t{0});
        }
      }
    }
    const auto taken = cache.statistics();
    REQUIRE(taken.num_sequences == std::ssize(sequences));
    REQUIRE(taken.num_tokens == num_tokens);
    REQUIRE(taken.unfilled_slots == num_unfilled);
    REQUIRE(taken.blocks.free + taken.blocks.in_use + taken.blocks.evictable + taken.blocks.retiring ==
            cache.num_blocks());
  }

  std::vector<block_id> table(std::size_t group, sequence_id id) {
    auto blocks = std::vector<block_id>(static_cast<std::size_t>(cache.config().capacity()));
    blocks.resize(cache.block_table(id, blocks, 0, group).value());
    return blocks;
  }

  /// Reads everything that the next token of a sequence needs, through slots and through the group's table.
  void check(sequence_id id) {
    const auto& s = sequences.at(id);
    auto text = tokens(s.text.size());
    REQUIRE(cache.tokens(id, 0, text));
    REQUIRE(text == s.text);
    for (std::size_t g = 0; g < cache.config().groups.size(); ++g) {
      const auto& group = cache.config().groups[g];
      if (!group.holds_tokens()) {
        check_state(g, id, history_of(s.text, s.computed, s.tag));
        continue;
      }
      const auto first = group.first_needed(s.computed);
      auto slots = std::vector<slot>(s.text.size());
      REQUIRE(cache.slot_mapping(id, 0, slots, g));
      const auto blocks = table(g, id);
      const auto block_size = cache.plan().groups[g].block_size;
      const auto skipped = cache.num_skipped_tokens(id, g).value();
      auto history = history_of(s.text, 0, s.tag);
      auto needed = std::vector<slot>{};
      auto histories = std::vector<std::uint64_t>{};
      for (std::int64_t i = 0; i < s.computed; ++i) {
        history = extend(history, s.text[static_cast<std::size_t>(i)]);
        if (i < first && i >= group.num_sinks) {
          continue;
        }
        const auto at = slots[static_cast<std::size_t>(i)];
        // Sinks keep their place in front; other tokens stand as many places earlier as were skipped.
        const auto entry = i >= first ? i - skipped : i;
        const auto by_table =
            make_slot(blocks[static_cast<std::size_t>(entry / block_size)], block_size, entry % block_size);
        if (at == skip_slot || by_table != at) {  // an assertion for each token would take most of the time
          FAIL("group " << g << ", token " << i << ": no slot, or not that of the block table");
        }
        needed.push_back(at);
        histories.push_back(history);
      }
      check_rows(g, needed, histories);
    }
  }

  /// A forecast is what creation then does.
  static void check_forecast(const result<prompt_fit>& fit, const result<admission>& made) {
    REQUIRE(fit.has_value() == made.has_value());
    if (made) {
      REQUIRE(fit->num_cached_tokens == made->num_cached_tokens);
      REQUIRE(fit->num_new_blocks == made->num_new_blocks);
    } else {
      REQUIRE(fit.error().message() == made.error().message());
      REQUIRE(fit.error().step == made.error().step);
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
        write_state(g, id, history_of(s.text, end, s.tag));
        continue;
      }
      auto slots = std::vector<slot>(static_cast<std::size_t>(end - s.computed));
      REQUIRE(cache.slot_mapping(id, s.computed, slots, g));
      auto history = history_of(s.text, s.computed, s.tag);
      auto histories = std::vector<std::uint64_t>{};
      for (std::size_t i = 0; i < slots.size(); ++i) {
        history = extend(history, s.text[static_cast<std::size_t>(s.computed) + i]);
        histories.push_back(history);
        if (slots[i] == skip_slot) {
          FAIL("group " << g << ", token " << s.computed + static_cast<std::int64_t>(i) << ": no slot");
        }
        check_writable(id, slots[i], cache.plan().groups[g].block_size);
      }
      write_rows(g, slots, histories);
    }
  }

  Cache cache;
  std::map<sequence_id, live> sequences;
  std::map<step_id, std::map<position_in_pool, sequence_id>> open_steps;

 private:
  PAGEDKV_UNINSTRUMENTED static float number(std::uint64_t history, std::size_t g, std::int32_t layer, bool is_value,
                                             std::size_t i) {
    const auto mixed =
        (history + 31 * g + 7 * static_cast<std::size_t>(layer) + (is_value ? 3 : 0) + i) * 0xff51afd7ed558ccd;
    if constexpr (packs_tokens<typename Cache::element_type>) {
      return i % 128 == 0 ? 448.0f : static_cast<float>(mixed >> 60);  // stored as they are, with scales of 1
    }
    return static_cast<float>(mixed >> 44);
  }

  /// Keys and values of tokens in one layer.
  struct rows {
    rows(const group_config& group, std::size_t num_tokens)
        : keys(num_tokens * static_cast<std::size_t>(group.num_kv_heads * group.key_dim)),
          values(num_tokens * static_cast<std::size_t>(group.num_kv_heads * group.value_dim)) {}

    std::vector<float> keys;
    std::vector<float> values;
  };

  void write_rows(std::size_t g, std::span<const slot> slots, std::span<const std::uint64_t> histories) {
    const auto& group = cache.config().groups[g];
    auto written = rows(group, slots.size());
    for (auto layer = 0; layer < group.num_layers; ++layer) {
      fill(written, histories, g, layer);
      const auto key_rows = contiguous_rows(written.keys, group.num_kv_heads, group.key_dim);
      const auto value_rows = contiguous_rows(written.values, group.num_kv_heads, group.value_dim);
      REQUIRE(cache.write(layer, slots, key_rows, value_rows, {}, g));
    }
  }

  PAGEDKV_UNINSTRUMENTED void fill(rows& to, std::span<const std::uint64_t> histories, std::size_t g,
                                   std::int32_t layer) {
    if (histories.empty()) {
      return;
    }
    const auto keys_per_token = to.keys.size() / histories.size();
    const auto values_per_token = to.values.size() / histories.size();
    const bool latent = cache.config().groups[g].kind == group_kind::latent;
    for (std::size_t token = 0; token < histories.size(); ++token) {
      const auto history = histories.data()[token];
      auto* const keys = to.keys.data() + token * keys_per_token;
      auto* const values = to.values.data() + token * values_per_token;
      for (std::size_t i = 0; i < keys_per_token; ++i) {
        keys[i] = number(history, g, layer, false, i);
      }
      for (std::size_t i = 0; i < values_per_token; ++i) {
        values[i] = latent ? keys[i] : number(history, g, layer, true, i);
      }
    }
  }

  void check_rows(std::size_t g, std::span<const slot> slots, std::span<const std::uint64_t> histories) {
    const auto& group = cache.config().groups[g];
    auto expected = rows(group, slots.size());
    auto found = expected;
    for (auto layer = 0; layer < group.num_layers; ++layer) {
      fill(expected, histories, g, layer);
      const auto key_rows = contiguous_rows(found.keys, group.num_kv_heads, group.key_dim);
      const auto value_rows = contiguous_rows(found.values, group.num_kv_heads, group.value_dim);
      REQUIRE(cache.read(layer, slots, key_rows, value_rows, {}, g));
      REQUIRE(first_difference(found.keys, expected.keys) == no_difference);
      REQUIRE(first_difference(found.values, expected.values) == no_difference);
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

inline constexpr auto full = group_config{.num_layers = 2, .key_dim = 6, .value_dim = 6};
inline constexpr auto window =
    group_config{.kind = group_kind::window, .num_layers = 5, .key_dim = 6, .value_dim = 6, .window = 7};
inline constexpr auto with_sinks = group_config{
    .kind = group_kind::window, .num_layers = 4, .key_dim = 5, .value_dim = 8, .window = 12, .num_sinks = 5};
inline constexpr auto chunked =
    group_config{.kind = group_kind::chunked, .num_kv_heads = 3, .key_dim = 4, .value_dim = 4, .window = 20};
inline constexpr auto latent =
    group_config{.kind = group_kind::latent, .num_layers = 3, .key_dim = 18, .value_dim = 13};
inline constexpr auto state =
    group_config{.kind = group_kind::state, .num_layers = 2, .num_kv_heads = 3, .state_bytes = 300};

inline cache_config config_of(group_list groups, std::int32_t num_blocks = 400, std::int32_t granularity = 4) {
  auto config = cache_config{.block_size = granularity, .num_blocks = num_blocks, .max_sequences = 12, .hash_seed = 7};
  config.groups = groups;
  return config;
}

inline const std::vector<std::pair<std::string, group_list>> kinds = {
    {"full", {full}},
    {"latent", {latent}},
    {"full and window", {full, window}},
    {"full and window with sinks", {full, with_sinks}},
    {"full and chunked", {full, chunked}},
    {"full and state", {full, state}},
    {"latent, two windows, chunked and state", {window, latent, with_sinks, chunked, state}},
    {"window", {window}},
    {"chunked and window with sinks", {chunked, with_sinks}},
    {"window and state", {window, state}},
};

inline tokens counted(int length, int first = 0) {
  auto text = tokens{};
  for (auto i = 0; i < length; ++i) {
    text.push_back(first + i);
  }
  return text;
}

}  // namespace pagedkv::test
