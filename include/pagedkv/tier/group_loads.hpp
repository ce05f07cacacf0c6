#pragma once

#include <pagedkv/cache/groups/continue_sequence.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/with_memory.hpp>
#include <pagedkv/metrics/counters.hpp>
#include <pagedkv/tier/group_records.hpp>
#include <pagedkv/tier/record_index.hpp>
#include <pagedkv/tier/sequence_loads.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

namespace pagedkv::detail {

/// Loads of a cache with groups. A sequence waits for a hit of one length; with less of it, the sequence takes a shorter
/// one where every group can continue.
template <class Store>
class group_loads : public sequence_loads<Store, sequence_load> {
  using base = sequence_loads<Store, sequence_load>;
  using base::loads_;
  using base::store_;

 public:
  struct offer : sequence_load {
    continuation found;
  };
  using stream = typename base::stream;

  explicit group_loads(Store& store) : base(store) {}

  /// Offers the longest hit that the device and the tiers have together.
  template <class State>
  [[nodiscard]] offer find(const State& state, const group_sequence& s, const token_run& prompt,
                           std::size_t most) noexcept {
    const auto first = s.num_nodes;
    const auto rest = token_run{prompt.tokens.subspan(first * state.tokens_per_node()), prompt.keys,
                                prompt.hashes.subspan(std::min(first, prompt.hashes.size()))};
    auto made = offer{{first, first, {}}, {}};
    const auto search = [&] {
      const auto guard = state.guard_nodes();
      made.found = nodes_behind(state, s, rest, most - std::min(most, first));
      made.end = longest(state, made.found, made.found.end(), record_reach::anywhere);
      hold_records(state, made);
      return true;
    };
    if (!with_memory(search, false)) {
      base::let_go(made);
      made.end = first;
    }
    return made;
  }

  template <class State, class Copy>
  std::int64_t take(State& state, group_sequence& s, const offer& made, stream on, Copy&& copy) noexcept {
    const auto first = s.num_nodes;
    const auto num_nodes =
        longest(state, made.found, std::min(made.end, most_nodes(state, s)), record_reach::host_memory);
    if (num_nodes <= first || made.found.first != first || s.num_computed_tokens != length_of(state, first)) {
      return 0;
    }
    const auto takes = [&] { return take_nodes(state, s, made.found, num_nodes, on, copy); };
    return with_memory(takes, false) ? length_of(state, num_nodes - first) : 0;
  }

  template <class State>
  [[nodiscard]] std::int64_t begin(const State& state, const group_sequence& s, sequence_id id, offer& made) noexcept {
    auto& found = made.found;
    if (found.first > s.num_nodes || s.num_nodes >= std::min(made.end, most_nodes(state, s))) {
      return 0;
    }
    found.path.erase(found.path.begin(), found.path.begin() + static_cast<std::ptrdiff_t>(s.num_nodes - found.first));
    found.first = s.num_nodes;
    const auto begin = [&] { return begin_load(state, id, made, std::min(made.end, most_nodes(state, s))); };
    return with_memory(begin, std::int64_t{0});
  }

  template <class State, class Copy>
  void settle(State& state, group_sequence& s, sequence_id id, stream on, Copy&& copy) noexcept {
    auto ending = loads_.extract(id);
    if (!ending) {
      return;
    }
    auto& load = ending.mapped();
    auto made = offer{{load.first, load.end, {}}, {}};
    const auto find = [&] { return made.found = nodes_of(state, s, load), true; };
    if (s.num_nodes == load.first && with_memory(find, false)) {
      take(state, s, made, on, copy);
    }
    base::let_go(load);
  }

  template <class State>
  [[nodiscard]] load_progress progress_of(const State& state, const group_sequence& s, sequence_id id) const noexcept {
    const auto load = loads_.find(id);
    if (load == loads_.end() || load->second.first != s.num_nodes) {
      return {};
    }
    const auto measure = [&] {
      const auto found = nodes_of(state, s, load->second);
      const auto ready = longest(state, found, load->second.end, record_reach::host_memory);
      const auto coming = longest(state, found, load->second.end, record_reach::arriving);
      return load_progress{length_of(state, ready - s.num_nodes), length_of(state, coming - ready)};
    };
    return with_memory(measure, load_progress{});
  }

 private:
  template <class State>
  [[nodiscard]] static std::int64_t length_of(const State& state, std::size_t num_nodes) noexcept {
    return static_cast<std::int64_t>(num_nodes) * state.granularity();
  }
  /// The last token is left to compute.
  template <class State>
  [[nodiscard]] static std::size_t most_nodes(const State& state, const group_sequence& s) noexcept {
    return static_cast<std::size_t>(s.num_tokens / state.granularity());
  }
  template <class State>
  [[nodiscard]] static continuation nodes_of(const State& state, const group_sequence& s, const sequence_load& load) {
    const auto guard = state.guard_nodes();
    const auto rest = std::span{s.pending.from(0)}.first(state.num_pending(s));
    return nodes_behind(state, s, {rest, s.keys}, load.end - load.first);
  }

  template <class State>
  [[nodiscard]] std::size_t longest(const State& state, const continuation& found, std::size_t most,
                                    record_reach reach) const noexcept {
    const auto in_tiers = [&](node_id node, std::size_t g) { return store_.has(node, g, reach); };
    return continuing_blocks<State, decltype(in_tiers)>{state, found, in_tiers}.longest(most);
  }

  /// Calls `visit(record)` on the records of an offer that are needed, from the first place on.
  template <class State, class Visit>
  void for_each_record(const State& state, const continuation& found, std::size_t num_nodes, Visit&& visit) const {
    const auto in_tiers = [&](node_id node, std::size_t g) { return store_.has(node, g, record_reach::anywhere); };
    const auto blocks = continuing_blocks<State, decltype(in_tiers)>{state, found, in_tiers};
    blocks.for_each_missing(num_nodes, [&](std::size_t g, std::size_t, const place_source& from) {
      if (from.block == no_block) {
        store_.index().for_each_record(from.node, g, visit);
      }
    });
  }
  template <class State>
  void hold_records(const State& state, offer& made) {
    if (made.end <= made.found.first) {
      return;
    }
    const auto hold = [&](record_id record) {
      made.held.push_back(record);
      store_.index().hold(record);
    };
    hold(store_.index().record_of(made.found.path.back()));  // and so the nodes before it
    for_each_record(state, made.found, made.end, hold);
  }

  template <class State, class Copy>
  [[nodiscard]] bool take_nodes(State& state, group_sequence& s, const continuation& found, std::size_t num_nodes,
                                stream on, Copy& copy) {
    const auto in_tiers = [&](node_id node, std::size_t g) { return store_.has(node, g, record_reach::host_memory); };
    const auto blocks = continuing_blocks<State, decltype(in_tiers)>{state, found, in_tiers};
    const auto plan = plan_continuation(state, s, blocks, num_nodes);
    auto records = std::vector<record_id>{};
    auto targets = std::vector<block_id>{};
    auto sources = std::vector<std::int8_t>(num_nodes - found.first, -1);  // the slowest tier of each node's K/V
    for (const auto& filled : plan.filled) {
      store_.index().for_each_record(filled.node, filled.g, [&](record_id record) {
        records.push_back(record);
        note_source(state, found, num_nodes, filled, store_.index().at(record).source, sources);
      });
      targets.insert(targets.end(), filled.blocks.begin(), filled.blocks.end());
    }
    const auto from = sources_of(records);
    if (!store_.transfers().order(on) || (!plan.copies.empty() && !copy(std::span<const block_pair>{plan.copies})) ||
        (!records.empty() && !store_.transfers().copy_to_device(records, targets, on))) {
      return false;
    }
    take_continuation(state, s, plan, found.node(num_nodes - 1));
    std::ranges::for_each(from, [&](std::int8_t tier) { store_.index().count_taken(tier, 1, 0); });
    count_nodes(state, sources);
    return true;
  }
  [[nodiscard]] std::vector<std::int8_t> sources_of(std::span<const record_id> records) const {
    auto sources = std::vector<std::int8_t>{};
    std::ranges::transform(records, std::back_inserter(sources),
                           [&](record_id record) { return store_.index().at(record).source; });
    return sources;
  }
  template <class State>
  static void note_source(const State& state, const continuation& found, std::size_t num_nodes,
                          const continuation_plan::filled_place& filled, std::int8_t tier,
                          std::vector<std::int8_t>& sources) {
    const auto size = state.nodes_in_block(filled.g);
    const auto has_tokens = state.holds_tokens(filled.g);
    const auto begin = has_tokens ? std::max(filled.place * size, found.first) : num_nodes - 1;
    const auto end = has_tokens ? std::min((filled.place + 1) * size, num_nodes) : num_nodes;
    for (auto number = begin; number < end; ++number) {
      sources[number - found.first] = std::max(sources[number - found.first], tier);
    }
  }
  template <class State>
  void count_nodes(State& state, std::span<const std::int8_t> sources) noexcept {
    for (const auto tier : sources) {
      if (tier >= 0) {
        store_.index().count_taken(tier, 0, state.granularity());
      } else {
        count<&cache_statistics::hit_blocks>(state.counts, 1);
        count<&cache_statistics::hit_tokens>(state.counts, state.granularity());
      }
    }
  }

  template <class State>
  [[nodiscard]] std::int64_t begin_load(const State& state, sequence_id id, offer& made, std::size_t most) {
    const auto guard = state.guard_nodes();
    const auto& found = made.found;
    auto wanted = std::vector<record_id>{};
    const auto collect = [&](record_id record) {
      if (!store_.index().in_host_memory(record)) {
        wanted.push_back(record);
      }
    };
    const auto end = longest(state, found, most, record_reach::anywhere);
    if (end <= found.first) {
      return 0;
    }
    for_each_record(state, found, end, collect);
    if (!store_.transfers().worth_loading(wanted, length_of(state, end - found.first))) {
      return 0;
    }
    auto& load = loads_[id];
    load = {found.first, end, {}};
    for (const auto record : wanted) {
      if (!store_.index().at(record).loading && !store_.transfers().load(record)) {
        break;
      }
    }
    load.end = longest(state, found, end, record_reach::arriving);
    if (load.end <= found.first) {
      loads_.erase(id);
      return 0;
    }
    load.held.swap(made.held);
    return length_of(state, load.end - found.first);
  }
};

}  // namespace pagedkv::detail
