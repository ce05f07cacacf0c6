#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/router/keys.hpp>
#include <pagedkv/router/worker_index.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace pagedkv {

/// Applies the events of one worker to an index. It remembers under which key each of the worker's own hashes is
/// indexed, and how often: a worker may hold a block twice, and then loses it twice. Different hashes may have one key,
/// since keys leave out salts and images; the key is indexed until the last of them is removed.
///
/// One thread uses a feed. It refers to the index, which outlives it.
template <block_keys Keys, class Index = worker_index>
class worker_feed {
 public:
  worker_feed(Index& index, worker_id worker, Keys keys)
      : index_(&index), worker_(worker), keys_(std::move(keys)) {}

  worker_feed(const worker_feed&) = delete;
  worker_feed& operator=(const worker_feed&) = delete;
  ~worker_feed() { clear(); }

  /// A block of these tokens entered the worker's cache. `parent` is the worker's hash of the block before it; none for
  /// a first block. `adapter`: the name of the adapter that computed it; empty for the model itself. A block whose
  /// parent is unknown, because its event was lost, is counted and left out, as is one of an adapter where keys do not
  /// tell adapters apart. May throw `std::bad_alloc`.
  void stored(std::uint64_t hash, std::optional<std::uint64_t> parent, std::span<const token> tokens,
              std::string_view adapter = {}) {
    if (const auto known = blocks_.find(hash); known != blocks_.end() && known->second.has_key) {
      ++known->second.count;
      return;
    }
    if (!adapter_keys<Keys> && !adapter.empty()) {
      ++num_foreign_;
      return;
    }
    const auto key = key_behind(parent, tokens, keys_of(adapter));
    // Those that are left out count, too: they are removed as well, perhaps when a block of their hash has come in.
    auto& own = blocks_.try_emplace(hash).first->second;
    ++own.count;
    if (!key) {
      ++num_orphans_;
      return;
    }
    own.key = *key;
    own.has_key = own.is_indexed = true;
    if (const auto done = index_->try_add(worker_, *key); done != index_addition::added) [[unlikely]] {
      note_unusual(done, own);
    }
  }

  /// Blocks entered the worker's cache whose adapter has no name: they are counted and left out.
  void stored_without_name(std::int64_t num_blocks) noexcept { num_foreign_ += num_blocks; }

  /// A block left the worker's cache.
  void removed(std::uint64_t hash) noexcept {
    const auto known = blocks_.find(hash);
    if (known != blocks_.end() && --known->second.count == 0) {
      const auto& gone = known->second;
      if (gone.is_indexed && (num_twins_.empty() || !remove_twin(gone.key))) {
        index_->remove(worker_, gone.key);
      }
      blocks_.erase(known);
    }
  }

  /// The worker's cache is empty, or events of it were lost.
  void clear() noexcept {
    for (const auto& [hash, known] : blocks_) {
      if (known.is_indexed) {
        index_->remove(worker_, known.key);
      }
    }
    blocks_.clear();
    num_twins_.clear();
  }

  /// An event of a cache in this process; those of other kinds than `prefix_event_kinds` change nothing. May throw
  /// `std::bad_alloc`.
  void apply(const cache_event& event) {
    switch (event.kind) {
      case event_kind::stored:
        stored(event.hash, event.origin == no_block ? std::nullopt : std::optional{event.parent_hash}, event.tokens);
        break;
      case event_kind::evicted: removed(event.hash); break;
      case event_kind::reset: clear(); break;
      default: break;
    }
  }

  /// The worker that the constructor was given.
  [[nodiscard]] worker_id worker() const noexcept { return worker_; }
  [[nodiscard]] const Keys& keys() const noexcept { return keys_; }

  /// Blocks that the worker holds, as far as its events tell.
  [[nodiscard]] std::size_t num_blocks() const noexcept { return blocks_.size(); }
  /// Blocks left out because the one before them was unknown.
  [[nodiscard]] std::int64_t num_orphans() const noexcept { return num_orphans_; }
  /// Blocks left out because they are of an adapter that has no name, or that the keys do not know.
  [[nodiscard]] std::int64_t num_foreign() const noexcept { return num_foreign_; }
  /// Blocks for which the index had no room, or there was no memory to note that another hash has their key.
  [[nodiscard]] std::int64_t num_refused() const noexcept { return num_refused_; }

 private:
  struct block {
    std::uint64_t key = 0;
    std::int32_t count = 0;
    bool has_key = false;  // unlike one whose parent was unknown
    bool is_indexed = false;
  };

  /// A new block that added nothing to the index.
  void note_unusual(index_addition done, block& added) noexcept {
    const auto note_twin = [&] { return ++num_twins_[added.key] > 0; };
    added.is_indexed = done == index_addition::held && detail::with_memory(note_twin, false);
    num_refused_ += added.is_indexed ? 0 : 1;
  }

  /// Whether another hash with this key remains.
  [[nodiscard]] bool remove_twin(std::uint64_t key) noexcept {
    const auto twins = num_twins_.find(key);
    if (twins == num_twins_.end()) {
      return false;
    }
    if (--twins->second == 0) {
      num_twins_.erase(twins);
    }
    return true;
  }

  /// None when the parent is unknown.
  [[nodiscard]] std::optional<std::uint64_t> key_behind(std::optional<std::uint64_t> parent,
                                                        std::span<const token> tokens,
                                                        const Keys& keys) const noexcept {
    if (!parent) {
      return keys.first(tokens);
    }
    const auto before = blocks_.find(parent.value());
    if (before == blocks_.end() || !before->second.has_key) {
      return std::nullopt;
    }
    return keys.next(before->second.key, tokens);
  }

  /// Those of the latest adapter are kept, because blocks of one chain come together.
  [[nodiscard]] const Keys& keys_of(std::string_view adapter) {
    if constexpr (adapter_keys<Keys>) {
      if (!adapter.empty()) {
        if (!latest_ || latest_->first != adapter) {
          latest_.emplace(adapter, keys_.with_adapter(adapter));
        }
        return latest_->second;
      }
    }
    return keys_;
  }

  Index* index_;
  worker_id worker_;
  Keys keys_;
  std::optional<std::pair<std::string, Keys>> latest_;  // adapter
  boost::unordered_flat_map<std::uint64_t, block> blocks_;  // by the worker's own hash
  // Hashes of a key beyond the first; seldom any.
  boost::unordered_flat_map<std::uint64_t, std::int64_t> num_twins_;
  std::int64_t num_orphans_ = 0;
  std::int64_t num_foreign_ = 0;
  std::int64_t num_refused_ = 0;
};

}  // namespace pagedkv
