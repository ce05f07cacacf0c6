#pragma once

#include <pagedkv/cache/block_copier.hpp>
#include <pagedkv/cache/groups/continue_sequence.hpp>
#include <pagedkv/cache/operations/commit.hpp>
#include <pagedkv/cache/operations/share_published.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/metrics/counters.hpp>
#include <pagedkv/sequence/sequence.hpp>
#include <pagedkv/tier/group_records.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_index.hpp>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pagedkv {

/// How far a sequence's load has come.
struct load_progress {
  std::int64_t num_loaded_tokens = 0;   // `settle` would add at least these now, unless a copy fails
  std::int64_t num_loading_tokens = 0;  // still on their way, behind these
  [[nodiscard]] bool done() const noexcept { return num_loading_tokens == 0; }
};

namespace detail {

/// Nodes of a sequence whose K/V tiers have, or bring. The records that it needs are held, until `let_go`.
struct sequence_load {
  std::size_t first = 0;
  std::size_t end = 0;
  std::vector<record_id> held;
};

/// The loads that sequences wait for, at most one each. There are two models, which give a sequence K/V from tiers, at
/// once or when it has been loaded: `block_loads`, and `group_loads` where layers differ.
///
/// | call                                        | meaning                                                           |
/// |---------------------------------------------|-------------------------------------------------------------------|
/// | `find(state, s, prompt, most)`              | an offer: what continues a new sequence, in so many nodes at most |
/// | `take(state, s, offer, stream, copy)`       | gives it what device and host memory have; how many tokens        |
/// | `begin(state, s, id, offer)`                | begins to load the rest of an offer; how many tokens              |
/// | `measure(state, prompt, salt, most, reach)` | how much of a prompt there is, without an effect                  |
/// | `settle(state, s, id, stream, copy)`        | gives it what has arrived, and ends its load                      |
/// | `progress_of(state, s, id)`                 | how far its load has come                                         |
template <class Store, class Load>
class sequence_loads {
 public:
  using stream_type = typename Store::stream_type;

  /// Records, each once for each load that holds it.
  [[nodiscard]] std::size_t num_held() const noexcept {
    auto sum = std::size_t{0};
    for (const auto& [id, load] : loads_) {
      sum += load.held.size();
    }
    return sum;
  }
  void let_go(sequence_load& load) noexcept {
    std::ranges::for_each(load.held, [&](record_id record) { store_.index().let_go(record); });
    load.held.clear();
  }
  /// Ends the sequence's load, if there is one and it reaches beyond so many nodes.
  void end_beyond(sequence_id id, std::size_t num_nodes) noexcept {
    if (const auto found = loads_.find(id); found != loads_.end() && found->second.end > num_nodes) {
      let_go(found->second);
      loads_.erase(found);
    }
  }

 protected:
  explicit sequence_loads(Store& store) : store_(store) {}

  Store& store_;
  std::unordered_map<sequence_id, Load> loads_;
};

/// A load of a sequence of blocks: a record for each of them.
struct block_load : sequence_load {
  std::vector<std::int8_t> sources;  // the tiers of the records; none if all are in host memory
};

/// Loads of a cache with one group.
template <class Store>
class block_loads : public sequence_loads<Store, block_load> {
  using base = sequence_loads<Store, block_load>;
  using base::loads_;
  using base::store_;

 public:
  using offer = block_load;
  using stream_type = typename base::stream_type;

  explicit block_loads(Store& store)
      : base(store), block_size_(static_cast<std::int64_t>(store.index().tokens_per_node())) {}

  template <class State>
  [[nodiscard]] offer find(const State&, const sequence& s, const token_run& prompt, std::size_t most) noexcept {
    const auto first = num_blocks(s.num_computed_tokens);
    const auto chain = store_.match(prompt, s.options.salt, first, most);
    auto made = offer{{first, first + chain.size(), {}}, {}};
    if (!with_memory([&] { return made.held.assign(chain.begin(), chain.end()), true; }, false)) {
      std::ranges::for_each(chain, [&](record_id record) { store_.index().let_go(record); });
      made.end = first;
    }
    return made;
  }

  /// Fills the places behind the first one, in blocks.
  template <class State>
  void measure(const State&, const token_run& prompt, salt salt, std::size_t most,
               std::array<std::size_t, 3>& reach) const noexcept {
    store_.measure(prompt, salt, most, reach);
  }

  template <class State>
  [[nodiscard]] std::int64_t take(State& state, sequence& s, const offer& made, stream_type stream,
                                  block_copier) noexcept {
    return length_of(bring(state, s, made, 0, num_at_hand(made, num_usable(s, made)), stream));
  }

  template <class State>
  [[nodiscard]] std::int64_t begin(const State&, const sequence& s, sequence_id id, offer& made) noexcept {
    const auto usable = num_usable(s, made);
    const auto taken = num_blocks(s.num_computed_tokens) - made.first;
    if (taken >= usable || taken != num_at_hand(made, usable)) {
      return 0;
    }
    const auto wanted = std::span{made.held}.subspan(taken, usable - taken);
    if (!store_.transfers().worth_loading(wanted, length_of(wanted.size()))) {
      return 0;
    }
    const auto count = with_memory([&] { return begin_load(id, made.first + taken, wanted); }, std::size_t{0});
    const auto begin = made.held.begin() + static_cast<std::ptrdiff_t>(taken);
    made.held.erase(begin, begin + static_cast<std::ptrdiff_t>(count));
    return length_of(count);
  }

  /// Takes the blocks that other sequences have published by now, too. Their K/V may still be on its way, on another
  /// stream.
  template <class State>
  void settle(State& state, sequence& s, sequence_id id, stream_type stream, block_copier) noexcept {
    auto ending = loads_.extract(id);
    if (!ending) {
      return;
    }
    auto& load = ending.mapped();
    assert(num_usable(s, load) == load.held.size() && "to cut a sequence short of a load ends it");
    if (s.num_computed_tokens == length_of(load.first)) {
      const auto shares = !continues_withdrawn(load) && store_.transfers().order(stream);
      const auto shared = shares ? share_published(state, s, id, load.held.size()) : 0;
      bring(state, s, load, shared, num_ready(load, shared), stream);
    }
    base::let_go(load);
  }

  template <class State>
  [[nodiscard]] load_progress progress_of(const State&, const sequence&, sequence_id id) const noexcept {
    const auto found = loads_.find(id);
    if (found == loads_.end()) {
      return {};
    }
    const auto& records = found->second.held;
    const auto ready = num_ready(found->second, 0);
    const auto end = std::find_if_not(
        records.begin() + static_cast<std::ptrdiff_t>(ready), records.end(),
        [&](record_id record) { return store_.index().is_awaited(record) || store_.index().is_ready(record); });
    return {length_of(ready), length_of(static_cast<std::size_t>(end - records.begin()) - ready)};
  }

 private:
  [[nodiscard]] std::int64_t length_of(std::size_t num_blocks) const noexcept {
    return static_cast<std::int64_t>(num_blocks) * block_size_;
  }
  [[nodiscard]] std::size_t num_blocks(std::int64_t num_tokens) const noexcept {
    return static_cast<std::size_t>(num_tokens / block_size_);
  }
  /// Records for full blocks of the sequence.
  [[nodiscard]] std::size_t num_usable(const sequence& s, const sequence_load& load) const noexcept {
    const auto num_full = num_blocks(s.num_tokens);
    return std::min(num_full - std::min(num_full, load.first), load.held.size());
  }
  /// Records at the beginning that are in host memory, at most so many.
  [[nodiscard]] std::size_t num_at_hand(const sequence_load& load, std::size_t most) const noexcept {
    const auto records = std::span{load.held}.first(most);
    const auto end =
        std::ranges::find_if_not(records, [&](record_id record) { return store_.index().in_host_memory(record); });
    return static_cast<std::size_t>(end - records.begin());
  }
  /// Records from number `first` on that have arrived without a gap.
  [[nodiscard]] std::size_t num_ready(const sequence_load& load, std::size_t first) const noexcept {
    const auto records = std::span{load.held}.subspan(first);
    const auto end =
        std::ranges::find_if_not(records, [&](record_id record) { return store_.index().is_ready(record); });
    return static_cast<std::size_t>(end - records.begin());
  }

  /// Whether contents before those of a load were invalidated, so that nothing that continues them is served.
  [[nodiscard]] bool continues_withdrawn(const sequence_load& load) const noexcept {
    const auto& tree = store_.index().tree();
    const auto above = tree.parent(store_.index().node_of(load.held.front()));
    return above != no_node && tree.is_withdrawn(above);
  }

  /// Loads records as far as there is room; returns how many stay held.
  [[nodiscard]] std::size_t begin_load(sequence_id id, std::size_t first, std::span<const record_id> records) {
    auto room = block_load{};
    room.held.reserve(records.size());
    room.sources.reserve(records.size());
    auto& load = loads_[id];  // last of what may throw: there is no load without records
    load = std::move(room);
    for (const auto record : records) {
      const auto there = store_.index().in_host_memory(record);
      if (!there && !store_.index().at(record).loading && !store_.transfers().load(record)) {
        break;
      }
      load.held.push_back(record);
      load.sources.push_back(there ? std::int8_t{0} : store_.index().at(record).source);
    }
    const auto count = load.held.size();
    load.first = first;
    load.end = first + count;
    if (count == 0) {
      loads_.erase(id);
    }
    return count;
  }

  /// Copies records from number `begin` on, which are in host memory, to the sequence's blocks, and commits these.
  /// Returns how many: all or none.
  template <class State>
  std::size_t bring(State& state, sequence& s, const block_load& load, std::size_t begin, std::size_t count,
                    stream_type stream) noexcept {
    const auto first = load.first + begin;
    if (count == 0 || s.blocks.size() < first + count) {
      return 0;
    }
    const auto records = std::span{load.held}.subspan(begin, count);
    if (!store_.transfers().copy_to_device(records, s.blocks.all().subspan(first, count), stream) ||
        !commit(state, s, length_of(first + count))) {
      return 0;
    }
    s.num_cached_tokens = s.num_computed_tokens;
    for (auto i = begin; i < begin + count; ++i) {
      store_.index().count_taken(load.sources.empty() ? std::int8_t{0} : load.sources[i], 1, block_size_);
    }
    return count;
  }

  std::int64_t block_size_;
};

/// Loads of a cache with groups. A sequence waits for a hit of one length; with less of it, the sequence takes a
/// shorter one where every group can continue.
template <class Store>
class group_loads : public sequence_loads<Store, sequence_load> {
  using base = sequence_loads<Store, sequence_load>;
  using base::loads_;
  using base::store_;

 public:
  struct offer : sequence_load {
    continuation found;
  };
  using stream_type = typename base::stream_type;

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

  /// Fills the places behind the first one, in nodes; leaves them as they are where memory is exhausted.
  template <class State>
  void measure(const State& state, const token_run& prompt, salt salt, std::size_t most,
               std::array<std::size_t, 3>& reach) const noexcept {
    const auto search = [&] {
      const auto guard = state.guard_nodes();
      auto found = continuation{0, std::vector<node_id>(most)};
      found.path.resize(
          state.nodes.match(state.nodes.root(salt), prompt, state.tokens_per_node(), std::span{found.path}));
      reach[1] = std::max(reach[0], longest(state, found, most, record_reach::host_memory));
      reach[2] = std::max(reach[1], longest(state, found, most, record_reach::anywhere));
      return true;
    };
    static_cast<void>(with_memory(search, false));
  }

  template <class State>
  std::int64_t take(State& state, group_sequence& s, const offer& made, stream_type stream,
                    block_copier copy) noexcept {
    const auto first = s.num_nodes;
    const auto num_nodes =
        longest(state, made.found, std::min(made.end, most_nodes(state, s)), record_reach::host_memory);
    if (num_nodes <= first || made.found.first != first || s.num_computed_tokens != length_of(state, first)) {
      return 0;
    }
    const auto takes = [&] { return take_nodes(state, s, made.found, num_nodes, stream, copy); };
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

  template <class State>
  void settle(State& state, group_sequence& s, sequence_id id, stream_type stream, block_copier copy) noexcept {
    auto ending = loads_.extract(id);
    if (!ending) {
      return;
    }
    auto& load = ending.mapped();
    auto made = offer{{load.first, load.end, {}}, {}};
    const auto find = [&] { return made.found = nodes_of(state, s, load), true; };
    if (s.num_nodes == load.first && with_memory(find, false)) {
      take(state, s, made, stream, copy);
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

  template <class State>
  [[nodiscard]] bool take_nodes(State& state, group_sequence& s, const continuation& found, std::size_t num_nodes,
                                stream_type stream, block_copier copy) {
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
    if (!store_.transfers().order(stream) || (!plan.copies.empty() && !copy(plan.copies)) ||
        (!records.empty() && !store_.transfers().copy_to_device(records, targets, stream))) {
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

}  // namespace detail

}  // namespace pagedkv
