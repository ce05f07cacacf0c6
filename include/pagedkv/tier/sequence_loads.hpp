#pragma once

#include <pagedkv/cache/operations/commit.hpp>
#include <pagedkv/cache/operations/share_published.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/with_memory.hpp>
#include <pagedkv/sequence/sequence.hpp>
#include <pagedkv/tier/record.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
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
/// | call                          | meaning                                                                         |
/// |-------------------------------|---------------------------------------------------------------------------------|
/// | `find(state, s, prompt, most)` | an offer: what continues a new sequence, up to so many nodes of its prompt      |
/// | `take(state, s, offer, on, copy)` | gives it what the device and host memory have, copied on `on`; how many tokens |
/// | `begin(state, s, id, offer)`  | begins to load the rest of an offer; how many tokens                            |
/// | `settle(state, s, id, on, copy)` | gives it what has arrived, and ends its load                                 |
/// | `progress_of(state, s, id)`   | how far its load has come                                                       |
template <class Store, class Load>
class sequence_loads {
 public:
  using stream = typename Store::stream;

  [[nodiscard]] bool empty() const noexcept { return loads_.empty(); }
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
  using stream = typename base::stream;

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

  template <class State, class Copy>
  [[nodiscard]] std::int64_t take(State& state, sequence& s, const offer& made, stream on, Copy&&) noexcept {
    return length_of(bring(state, s, made, 0, num_at_hand(made, num_usable(s, made)), on));
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
  template <class State, class Copy>
  void settle(State& state, sequence& s, sequence_id id, stream on, Copy&&) noexcept {
    auto ending = loads_.extract(id);
    if (!ending) {
      return;
    }
    auto& load = ending.mapped();
    const auto usable = num_usable(s, load);
    if (s.num_computed_tokens == length_of(load.first) && usable != 0) {
      const auto shared = store_.transfers().order(on) ? share_published(state, s, id, usable) : 0;
      bring(state, s, load, shared, std::min(num_ready(load, shared), usable - shared), on);
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

  /// As far as there is room; returns how many records stay held.
  [[nodiscard]] std::size_t begin_load(sequence_id id, std::size_t first, std::span<const record_id> records) {
    auto& load = loads_[id];
    load = {};
    load.held.reserve(records.size());
    load.sources.reserve(records.size());
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
                    stream on) noexcept {
    const auto first = load.first + begin;
    if (count == 0 || s.blocks.size() < first + count) {
      return 0;
    }
    const auto records = std::span{load.held}.subspan(begin, count);
    if (!store_.transfers().copy_to_device(records, s.blocks.all().subspan(first, count), on) ||
        !commit(state, s, length_of(first + count))) {
      return 0;
    }
    for (auto i = begin; i < begin + count; ++i) {
      store_.index().count_taken(load.sources.empty() ? std::int8_t{0} : load.sources[i], 1, block_size_);
    }
    return count;
  }

  std::int64_t block_size_;
};

}  // namespace detail

}  // namespace pagedkv
