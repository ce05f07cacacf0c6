#pragma once

#include <pagedkv/pagedkv.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pagedkv::test {

/// The operations that caches with and without groups have in common behind one virtual interface, so that whatever
/// drives caches is compiled once, not once for each combination of policies.
class operations_under_test {
 public:
  virtual ~operations_under_test() = default;

  virtual result<void> append(sequence_id id, const token_run& run) = 0;
  virtual result<void> reserve_slots(sequence_id id, std::int64_t num_ahead) = 0;
  virtual std::size_t hash_blocks(const token_run& prompt, std::span<std::uint64_t> hashes, salt tag) const = 0;
  virtual result<void> commit(sequence_id id, std::int64_t num_tokens) = 0;
  virtual result<sequence_id> fork(sequence_id id) = 0;
  virtual result<void> truncate(sequence_id id, std::int64_t num_tokens) = 0;
  virtual result<void> release(sequence_id id, bool ended) = 0;
  virtual result<pinning> pin(const token_run& run, salt tag) = 0;
  virtual result<void> unpin(pin_id id) = 0;
  virtual std::int64_t unpin_all() = 0;
  virtual std::int64_t invalidate_prefix(const token_run& run, salt tag) = 0;
  virtual std::int64_t invalidate_salt(salt tag) = 0;
  virtual result<std::int64_t> invalidate_blocks(std::span<const block_id> blocks) = 0;
  virtual std::int64_t find_prefix(const token_run& run, salt tag) const = 0;
  virtual result<prompt_fit> would_fit(const token_run& prompt, const sequence_options& options) const = 0;
  virtual std::int64_t num_free_blocks() const = 0;
  virtual std::int64_t num_available_blocks() const = 0;
  virtual result<step_id> begin_step() = 0;
  virtual result<step_id> begin_step(std::span<const sequence_id> ids) = 0;
  virtual result<void> retire_step(step_id step) = 0;
  virtual result<std::int64_t> evict(std::span<block_id> blocks, step_id step) = 0;
  virtual void advance_time(timestamp now) = 0;
  virtual result<sequence_info> describe(sequence_id id) const = 0;
  virtual result<std::vector<block_pair>> compact() = 0;
  virtual result<std::vector<block_pair>> resize(std::int32_t num_blocks) = 0;
  virtual std::int32_t num_blocks() const = 0;
  virtual result<std::int64_t> reset_prefix_cache() = 0;
  virtual cache_statistics statistics() const = 0;
  virtual std::vector<std::string> check_invariants() const = 0;
};

/// Implements them for a cache. `Interface` adds those that the kinds of caches have apart.
template <class Interface, class Cache>
class adapted_operations : public Interface {
 public:
  using Interface::append;

  result<void> append(sequence_id id, const token_run& run) override { return cache_.append(id, run); }
  result<void> reserve_slots(sequence_id id, std::int64_t num_ahead) override {
    return cache_.reserve_slots(id, num_ahead);
  }
  std::size_t hash_blocks(const token_run& prompt, std::span<std::uint64_t> hashes, salt tag) const override {
    return cache_.hash_blocks(prompt, hashes, tag);
  }
  result<void> commit(sequence_id id, std::int64_t num_tokens) override { return cache_.commit(id, num_tokens); }
  result<sequence_id> fork(sequence_id id) override { return cache_.fork(id); }
  result<void> truncate(sequence_id id, std::int64_t num_tokens) override { return cache_.truncate(id, num_tokens); }
  result<void> release(sequence_id id, bool ended) override { return cache_.release(id, {.session_ended = ended}); }
  result<pinning> pin(const token_run& run, salt tag) override { return cache_.pin(run, tag); }
  result<void> unpin(pin_id id) override { return cache_.unpin(id); }
  std::int64_t unpin_all() override { return cache_.unpin_all(); }
  std::int64_t invalidate_prefix(const token_run& run, salt tag) override { return cache_.invalidate_prefix(run, tag); }
  std::int64_t invalidate_salt(salt tag) override { return cache_.invalidate_salt(tag); }
  result<std::int64_t> invalidate_blocks(std::span<const block_id> blocks) override {
    return cache_.invalidate_blocks(blocks);
  }
  std::int64_t find_prefix(const token_run& run, salt tag) const override {
    const result<std::int64_t> found = cache_.find_prefix(run, tag);
    return found.value();
  }
  result<prompt_fit> would_fit(const token_run& prompt, const sequence_options& options) const override {
    return cache_.would_fit(prompt, options);
  }
  std::int64_t num_free_blocks() const override { return cache_.num_free_blocks(); }
  std::int64_t num_available_blocks() const override { return cache_.num_available_blocks(); }
  result<step_id> begin_step() override { return cache_.begin_step(); }
  result<step_id> begin_step(std::span<const sequence_id> ids) override { return cache_.begin_step(ids); }
  result<void> retire_step(step_id step) override { return cache_.retire_step(step); }
  result<std::int64_t> evict(std::span<block_id> blocks, step_id step) override { return cache_.evict(blocks, step); }
  void advance_time(timestamp now) override { cache_.advance_time(now); }
  result<sequence_info> describe(sequence_id id) const override { return cache_.describe(id); }
  result<std::vector<block_pair>> compact() override { return cache_.compact(); }
  result<std::vector<block_pair>> resize(std::int32_t num_blocks) override { return cache_.resize(num_blocks); }
  std::int32_t num_blocks() const override { return cache_.num_blocks(); }
  result<std::int64_t> reset_prefix_cache() override { return cache_.reset_prefix_cache(); }
  cache_statistics statistics() const override { return cache_.statistics(); }
  std::vector<std::string> check_invariants() const override { return cache_.check_invariants(); }

 protected:
  /// `make(interface)` makes the cache.
  template <class Make>
  explicit adapted_operations(const Make& make) : cache_(make(static_cast<Interface&>(*this))) {}

  Cache cache_;
};

}  // namespace pagedkv::test
