#pragma once

#include <pagedkv/core/block_pair.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/policy/backend/concept.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/storage/view.hpp>

#include <cstddef>
#include <span>
#include <utility>

namespace pagedkv::detail {

/// The events policy of a cache with tiers: tells the store what it has to know, and passes on what the user's own
/// stream takes.
template <events Events, class Store>
class tier_tap {
 public:
  static constexpr auto kinds = prefix_event_kinds | event_kinds{event_kind::hit} | Events::kinds;

  explicit tier_tap(Events user) : user_(std::move(user)) {}

  void attach(Store& store) noexcept { store_ = &store; }
  [[nodiscard]] Events& user() noexcept { return user_; }

  /// Whether an event is of use to anyone now. A store that knows no contents need not be told of new ones.
  [[nodiscard]] bool hears(event_kind kind) const noexcept {
    return kind != event_kind::stored || Events::kinds.contains(kind) || store_->hears_stored();
  }

  void emit(const cache_event& event) noexcept {
    switch (event.kind) {
      case event_kind::stored: store_->stored(event); break;
      case event_kind::evicted: store_->evicted(event.block); break;
      case event_kind::reset: store_->reset(); break;
      case event_kind::hit: store_->shared(event.block); break;
      default: break;
    }
    if (Events::kinds.contains(event.kind)) {
      user_.emit(event);
    }
  }

 private:
  [[no_unique_address]] Events user_;
  Store* store_ = nullptr;
};

/// The events policy of a cache with groups and tiers: it also hears which nodes and blocks there are.
template <events Events, class Store>
class group_tier_tap {
 public:
  static constexpr auto kinds = event_kinds{event_kind::reset} | Events::kinds;

  explicit group_tier_tap(Events user) : user_(std::move(user)) {}

  void attach(Store& store) noexcept { store_ = &store; }
  [[nodiscard]] Events& user() noexcept { return user_; }

  void make_room_for_nodes() noexcept { store_->make_room_for_nodes(); }
  void node_added(node_id node, const block_contents& contents, salt tag) noexcept {
    store_->node_added(node, contents, tag);
  }
  void block_attached(node_id node, std::size_t group) noexcept { store_->block_attached(node, group); }
  void block_leaves(block_id block) noexcept { store_->block_leaves(block); }

  void emit(const cache_event& event) noexcept {
    if (event.kind == event_kind::reset) {
      store_->reset();
    }
    if (Events::kinds.contains(event.kind)) {
      user_.emit(event);
    }
  }

 private:
  [[no_unique_address]] Events user_;
  Store* store_ = nullptr;
};

/// The backend of a cache with tiers: victims are copied out before the cache itself writes to their blocks, or gives
/// back their memory.
template <backend Backend, class Store>
class saving_backend : public Backend {
 public:
  using stream = typename Backend::stream;

  explicit saving_backend(Backend backend) : Backend(std::move(backend)) {}

  void attach(Store& store) noexcept { store_ = &store; }

  [[nodiscard]] result<void> synchronize(stream on) noexcept {
    store_->flush(on);
    return Backend::synchronize(on);
  }
  [[nodiscard]] result<void> copy_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream on) noexcept {
    store_->flush(on);
    return Backend::copy_blocks(view, pairs, on);
  }
  [[nodiscard]] result<void> move_blocks(const block_storage_view& view, std::span<const block_pair> pairs,
                                         stream on) noexcept {
    store_->flush(on);
    return Backend::move_blocks(view, pairs, on);
  }

 private:
  Store* store_ = nullptr;
};

}  // namespace pagedkv::detail
