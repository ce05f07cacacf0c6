#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/router/concept.hpp>
#include <pagedkv/router/worker_index.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace pagedkv {

/// Applies the events of one worker to an index. It remembers under which key each of the worker's own hashes is
/// indexed, and how often: a worker may hold a block twice, and then loses it twice.
///
/// For one thread. Refers to the index, which outlives it.
template <block_keys Keys, class Index = worker_index>
class worker_feed {
 public:
  worker_feed(Index& index, worker_id worker, Keys keys)
      : index_(&index), worker_(worker), keys_(std::move(keys)) {}

  worker_feed(const worker_feed&) = delete;
  worker_feed& operator=(const worker_feed&) = delete;
  ~worker_feed() { clear(); }

  /// A block entered the worker's cache. `parent` is the worker's hash of the block before it; none for a first block.
  /// A block whose parent is unknown, because its event was lost, is counted and left out. May throw `std::bad_alloc`.
  void stored(std::uint64_t hash, std::optional<std::uint64_t> parent, std::span<const token> tokens) {
    if (const auto known = blocks_.find(hash); known != blocks_.end()) {
      ++known->second.count;
      return;
    }
    const auto key = key_behind(parent, tokens);
    if (!key) {
      ++num_orphans_;
      return;
    }
    blocks_.emplace(hash, block{*key, 1});
    num_refused_ += !index_->add(worker_, *key);
  }

  /// A block left the worker's cache.
  void removed(std::uint64_t hash) noexcept {
    const auto known = blocks_.find(hash);
    if (known != blocks_.end() && --known->second.count == 0) {
      index_->remove(worker_, known->second.key);
      blocks_.erase(known);
    }
  }

  /// The worker's cache is empty, or events of it were lost.
  void clear() noexcept {
    for (const auto& [hash, known] : blocks_) {
      index_->remove(worker_, known.key);
    }
    blocks_.clear();
  }

  [[nodiscard]] worker_id worker() const noexcept { return worker_; }
  [[nodiscard]] const Keys& keys() const noexcept { return keys_; }

  [[nodiscard]] std::size_t num_blocks() const noexcept { return blocks_.size(); }
  /// Blocks left out because the one before them was unknown.
  [[nodiscard]] std::int64_t num_orphans() const noexcept { return num_orphans_; }
  /// Blocks for which the index had no room.
  [[nodiscard]] std::int64_t num_refused() const noexcept { return num_refused_; }

 private:
  struct block {
    std::uint64_t key;
    std::int64_t count;
  };

  /// None when the parent is unknown.
  [[nodiscard]] std::optional<std::uint64_t> key_behind(std::optional<std::uint64_t> parent,
                                                        std::span<const token> tokens) const noexcept {
    if (!parent) {
      return keys_.first(tokens);
    }
    const auto before = blocks_.find(parent.value());
    return before == blocks_.end() ? std::nullopt : std::optional{keys_.next(before->second.key, tokens)};
  }

  Index* index_;
  worker_id worker_;
  Keys keys_;
  boost::unordered_flat_map<std::uint64_t, block> blocks_;  // by the worker's own hash
  std::int64_t num_orphans_ = 0;
  std::int64_t num_refused_ = 0;
};

}  // namespace pagedkv
