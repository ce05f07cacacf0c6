#pragma once

#include <pagedkv/backend/concept.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/storage/view.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_index.hpp>
#include <pagedkv/tier/record_transfers.hpp>
#include <pagedkv/tier/slower_tier.hpp>
#include <pagedkv/tier/tier_config.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pagedkv {

/// Everything that a cache with tiers knows beyond its device: an index of the records that contents have in tiers, and
/// the transfers under way. One of two models hears of the blocks that the device's cache gets and loses:
/// `block_records` behind one group, or `group_records`. One thread at a time; a failed transfer is a lost write or a
/// miss.
template <swaps_blocks Backend, class Directory, allocator Allocator, class Queues>
class record_store {
 public:
  using index_type = record_index<Directory, Queues>;
  using transfers_type = record_transfers<Backend, Allocator, index_type>;
  using stream_type = typename Backend::stream_type;

  record_store(const record_store&) = delete;
  record_store& operator=(const record_store&) = delete;

  [[nodiscard]] index_type& index() noexcept { return index_; }
  [[nodiscard]] const index_type& index() const noexcept { return index_; }
  [[nodiscard]] transfers_type& transfers() noexcept { return transfers_; }
  [[nodiscard]] const transfers_type& transfers() const noexcept { return transfers_; }

  /// Whether a look-up could find anything.
  [[nodiscard]] bool may_know() const noexcept {
    return index_.has_records() || transfers_.num_loading() != 0 || config_.ask_ahead != 0;
  }

  /// A sentence for each broken invariant. For tests; may throw `std::bad_alloc`. `num_held`: records that loads of the
  /// caller hold, each once for each load.
  [[nodiscard]] std::vector<std::string> check_invariants(std::size_t num_held) const {
    auto broken = std::vector<std::string>{};
    if (transfers_.has_pending()) {
      broken.emplace_back("tiers: blocks wait to be copied after an operation");
    }
    index_.check_invariants(num_held + transfers_.num_held(), transfers_.num_loading(),
                            [&](const char* sentence) { broken.emplace_back(sentence); });
    return broken;
  }

 protected:
  /// Takes the slower tiers out of the list. Throws `exception`, `std::bad_alloc`, `std::system_error`.
  template <class... OfDirectory>
  record_store(const tier_config& config, std::int32_t num_blocks, Backend& backend, const block_storage_view& device,
               const record_format& format, Allocator memory, tier_list& tiers, OfDirectory&&... of_directory)
      : config_(config),
        queues_(tiers, format, static_cast<std::size_t>(config.queue_records), config.threads),
        index_(config, tiers.shapes, queues_, std::forward<OfDirectory>(of_directory)...),
        transfers_(config, num_blocks, backend, device, format, std::move(memory),
                   static_cast<std::int32_t>(tiers.shapes.front().num_places), index_, queues_) {}
  /// Waits for batches under way; they use memory of all parts. Records that were invalidated while they were written
  /// are erased.
  ~record_store() {
    queues_.stop();
    transfers_.end_executed();
    queues_.stop();
  }

  tier_config config_;
  Queues queues_;
  index_type index_;
  transfers_type transfers_;
};

namespace detail {

/// The events policy of a cache with tiers: tells the store what it has to know, and passes on what the user's own
/// stream takes. Where layers differ, the store also hears which nodes and blocks there are.
template <events Events, class Store>
class tier_tap {
 public:
  static constexpr auto kinds = Store::heard | Events::kinds;

  explicit tier_tap(Events user) : user_(std::move(user)) {}

  void attach(Store& store) noexcept { store_ = &store; }
  [[nodiscard]] Events& user() noexcept { return user_; }

  /// Whether an event is of use to anyone now. A store need not be told of new contents that continue none of its own.
  [[nodiscard]] bool hears(event_kind kind, block_id origin) const noexcept
    requires requires(const Store& store) { store.hears_stored(origin); }
  {
    return kind != event_kind::stored || Events::kinds.contains(kind) || store_->hears_stored(origin);
  }
  void emit(const cache_event& event) noexcept {
    store_->hear(event);
    if (Events::kinds.contains(event.kind)) {
      user_.emit(event);
    }
  }

  void make_room_for_nodes() noexcept { store_->index().make_room_for_nodes(); }
  void node_added(node_id node, const block_contents& contents, salt salt) noexcept {
    store_->node_added(node, contents, salt);
  }
  void block_attached(node_id node, std::size_t group) noexcept { store_->block_attached(node, group); }
  void block_leaves(block_id block, bool is_launched) noexcept { store_->block_leaves(block, is_launched); }

 private:
  [[no_unique_address]] Events user_;
  Store* store_ = nullptr;
};

/// The backend of a cache with tiers: victims are copied out before the cache itself writes to their blocks, or gives
/// back their memory.
template <backend Backend, class Store>
class saving_backend : public Backend {
 public:
  using stream_type = typename Backend::stream_type;

  explicit saving_backend(Backend backend) : Backend(std::move(backend)) {}

  void attach(Store& store) noexcept { store_ = &store; }

  [[nodiscard]] result<void> synchronize(stream_type stream) noexcept {
    store_->transfers().flush(stream);
    return Backend::synchronize(stream);
  }
  [[nodiscard]] result<void> copy_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream_type stream) noexcept {
    store_->transfers().flush(stream);
    return Backend::copy_blocks(view, pairs, stream);
  }
  [[nodiscard]] result<void> move_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream_type stream) noexcept {
    store_->transfers().flush(stream);
    return Backend::move_blocks(view, pairs, stream);
  }

 private:
  Store* store_ = nullptr;
};

}  // namespace detail

}  // namespace pagedkv
