#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/detail/with_memory.hpp>
#include <pagedkv/tier/record_table.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
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

/// Records that a sequence waits for, each held.
struct sequence_load {
  std::size_t first = 0;  // block of the sequence
  std::vector<record_id> records;
  std::vector<std::int8_t> sources;  // tiers
};

/// The loads that sequences wait for, at most one each.
template <class Store>
class sequence_loads {
 public:
  explicit sequence_loads(Store& store)
      : store_(store), block_size_(static_cast<std::int64_t>(store.directory().tokens_per_node())) {}

  [[nodiscard]] bool empty() const noexcept { return loads_.empty(); }

  /// Begins to load these records, of which each is held, as far as there is room; returns how many stay held.
  [[nodiscard]] std::size_t begin(sequence_id id, std::size_t first, std::span<const record_id> records) noexcept {
    if (records.empty() || !store_.transfers().worth_loading(records, std::ssize(records) * block_size_)) {
      return 0;
    }
    const auto begin = [&] {
      auto& load = loads_[id];
      load.first = first;
      load.records.reserve(records.size());
      load.sources.reserve(records.size());
      for (const auto record : records) {
        const auto there = store_.in_host_memory(record);
        if (!there && !store_.is_loading(record) && !store_.transfers().load(record)) {
          break;
        }
        load.records.push_back(record);
        load.sources.push_back(there ? std::int8_t{0} : store_.source(record));
      }
      const auto count = load.records.size();
      if (count == 0) {
        loads_.erase(id);
      }
      return count;
    };
    return with_memory(begin, std::size_t{0});
  }

  /// Takes a load out. Its records stay held until `end`.
  [[nodiscard]] std::optional<sequence_load> take(sequence_id id) noexcept {
    if (auto ending = loads_.extract(id)) {
      return std::move(ending.mapped());
    }
    return std::nullopt;
  }
  void end(const sequence_load& load) noexcept {
    std::ranges::for_each(load.records, [&](record_id record) { store_.let_go(record); });
  }
  /// Ends the sequence's load, if there is one and it reaches beyond so many full blocks.
  void end_beyond(sequence_id id, std::size_t num_full) noexcept {
    if (const auto found = loads_.find(id); found != loads_.end()) {
      if (found->second.first + found->second.records.size() > num_full) {
        end(found->second);
        loads_.erase(found);
      }
    }
  }

  /// Records from number `first` on that have arrived without a gap.
  [[nodiscard]] std::size_t num_ready(const sequence_load& load, std::size_t first) const noexcept {
    const auto records = std::span{load.records}.subspan(first);
    const auto end = std::ranges::find_if_not(records, [&](record_id record) { return store_.is_ready(record); });
    return static_cast<std::size_t>(end - records.begin());
  }
  /// Zeros when nothing is loaded for the sequence.
  [[nodiscard]] load_progress progress_of(sequence_id id) const noexcept {
    const auto found = loads_.find(id);
    if (found == loads_.end()) {
      return {};
    }
    const auto& records = found->second.records;
    const auto ready = static_cast<std::ptrdiff_t>(num_ready(found->second, 0));
    const auto end = std::find_if_not(records.begin() + ready, records.end(), [&](record_id record) {
      return store_.is_awaited(record) || store_.is_ready(record);
    });
    return {ready * block_size_, (end - records.begin() - ready) * block_size_};
  }

  /// Records, each once for each load that holds it.
  [[nodiscard]] std::size_t num_held() const noexcept {
    auto sum = std::size_t{0};
    for (const auto& [id, load] : loads_) {
      sum += load.records.size();
    }
    return sum;
  }

 private:
  Store& store_;
  std::int64_t block_size_;
  std::unordered_map<sequence_id, sequence_load> loads_;
};

}  // namespace detail

}  // namespace pagedkv
