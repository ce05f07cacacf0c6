#pragma once

#include <pagedkv/core/config.hpp>
#include <pagedkv/policy/events/concept.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>
#include <pagedkv/requests/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace pagedkv::test {

/// As little of a cache as a request tracker needs: counts blocks and shares none.
class minimal_cache {
 public:
  using stream_type = int;
  using locking_type = single_thread;
  using events_type = no_events;

  explicit minimal_cache(const cache_config& config) : config_(config) {}

  [[nodiscard]] const cache_config& config() const noexcept { return config_; }
  [[nodiscard]] no_events& events() noexcept { return events_; }
  [[nodiscard]] timestamp time() const noexcept { return now_; }

  [[nodiscard]] result<admission> create_sequence(const token_run& prompt, const sequence_options&, stream_type) noexcept {
    const auto id = static_cast<sequence_id>(++last_id_);
    if (const auto grown = grow(id, prompt.tokens.size()); !grown) {
      return grown.error();
    }
    return admission{id, 0};
  }
  [[nodiscard]] result<void> append(sequence_id id, const token_run& run, stream_type) noexcept {
    return num_tokens_.contains(id) ? grow(id, run.tokens.size()) : unknown();
  }
  [[nodiscard]] result<sequence_id> fork(sequence_id id, stream_type) noexcept {
    const auto forked = static_cast<sequence_id>(++last_id_);
    const auto grown = num_tokens_.contains(id) ? grow(forked, num_tokens_[id]) : unknown();
    return grown ? result<sequence_id>{forked} : grown.error();
  }
  [[nodiscard]] result<void> release(sequence_id id, const release_hint&) noexcept {
    return num_tokens_.erase(id) != 0 ? result<void>{} : unknown();
  }
  [[nodiscard]] result<std::vector<std::size_t>> fewest_to_release(std::span<const sequence_id> ids,
                                                                   std::int64_t num_blocks, const token_run&, salt) noexcept {
    auto chosen = std::vector<std::size_t>{};
    for (std::size_t i = 0; i < ids.size() && num_blocks > 0; ++i) {
      num_blocks -= blocks_for(num_tokens_[ids[i]]);
      chosen.push_back(i);
    }
    return num_blocks > 0 ? std::vector<std::size_t>{} : chosen;
  }

  [[nodiscard]] std::int64_t in_use() const {
    auto sum = std::int64_t{0};
    for (const auto& [id, num_tokens] : num_tokens_) {
      sum += blocks_for(num_tokens);
    }
    return sum;
  }

 private:
  [[nodiscard]] static result<void> unknown() { return error{error_code::unknown_sequence, "sequence id"}; }
  [[nodiscard]] std::int64_t blocks_for(std::size_t num_tokens) const {
    return (static_cast<std::int64_t>(num_tokens) + config_.block_size - 1) / config_.block_size;
  }
  [[nodiscard]] result<void> grow(sequence_id id, std::size_t num_more) {
    const auto held = num_tokens_.contains(id) ? num_tokens_[id] : 0;
    const auto needed = blocks_for(held + num_more) - blocks_for(held);
    if (blocks_for(held + num_more) > config_.num_blocks) {
      return error{error_code::never_fits, "number of blocks needed", blocks_for(held + num_more), config_.num_blocks};
    }
    if (const auto available = config_.num_blocks - in_use(); needed > available) {
      return error{error_code::capacity_exhausted, "number of blocks needed", needed, available};
    }
    num_tokens_[id] = held + num_more;
    return {};
  }

  cache_config config_;
  no_events events_;
  timestamp now_{};
  std::uint64_t last_id_ = 0;
  std::map<sequence_id, std::size_t> num_tokens_;
};

static_assert(cache_for_requests<minimal_cache>);

}  // namespace pagedkv::test
