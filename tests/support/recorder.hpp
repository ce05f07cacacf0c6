#pragma once

#include "history.hpp"

#include <pagedkv/pagedkv.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace pagedkv::testing {

/// Few blocks, so that threads meet, and the orders of a history can be searched.
inline constexpr auto block_size = std::size_t{2};
inline constexpr auto num_blocks = std::size_t{5};

[[nodiscard]] inline cache_config small() {
  auto config = cache_config{};
  config.block_size = block_size;
  config.num_blocks = num_blocks;
  config.max_sequences = 16;
  config.hash_seed = 1;
  return config;
}

/// The operations of one thread on a cache, and their record. Other threads never use its sequences, only its blocks.
/// `tell_time()` returns a number greater than all that it returned before, to any thread.
template <class Cache>
class recorded_thread {
 public:
  recorded_thread(Cache& cache, std::function<std::uint64_t()> tell_time)
      : cache_(&cache),
        tell_time_(std::move(tell_time)),
        block_size_(static_cast<std::size_t>(cache.config().block_size)) {}

  [[nodiscard]] const std::vector<operation>& history() const { return history_; }

  /// The error of an operation that should not have failed; no operation follows it.
  [[nodiscard]] const std::string& failure() const { return failure_; }

  /// One operation, as the generator says.
  void act(std::mt19937_64& random) {
    if (!failure_.empty()) {
      return;
    }
    if (sequences_.empty() || (sequences_.size() < 2 && random() % 3 == 0)) {
      return random() % 4 == 0 ? look_up(prompt(random)) : create(prompt(random));
    }
    auto& s = sequences_[random() % sequences_.size()];
    switch (random() % 8) {
      case 0:
      case 1: return append(s, {static_cast<token>(random() % 2)});
      case 2: return append(s, {1, 0, 1});
      case 3:
      case 4: return commit(s);
      case 5: return s.num_committed == s.tokens.size() ? fork(s) : commit(s);
      case 6: return truncate(s, s.tokens.size() - std::min<std::size_t>(s.tokens.size(), random() % 4));
      default: return release(s);
    }
  }

  void create(std::vector<token> tokens) {
    auto o = start(action::create, std::move(tokens));
    const auto made = cache_->create_sequence(o.tokens);
    finish(o);
    o.num_touched = blocks_for(o.tokens.size());
    o.refused = !made;
    if (made) {
      o.num_tokens = static_cast<std::size_t>(made->num_cached_tokens);
      sequences_.push_back({made->id, o.tokens, o.num_tokens});
      read_table(o, sequences_.back());
    }
    history_.push_back(std::move(o));
  }

  void look_up(std::vector<token> tokens) {
    auto o = start(action::look_up, std::move(tokens));
    o.num_tokens = static_cast<std::size_t>(cache_->find_prefix(o.tokens));
    finish(o);
    o.num_touched = o.tokens.size() / block_size_;
    history_.push_back(std::move(o));
  }

  /// Commits all tokens, looks them up, and ends.
  void wind_up() {
    while (!sequences_.empty() && failure_.empty()) {
      commit(sequences_.back());
      auto longer = sequences_.back().tokens;
      longer.push_back(0);
      look_up(std::move(longer));
      release(sequences_.back());
    }
  }

 private:
  struct owned {
    sequence_id id;
    std::vector<token> tokens;
    std::size_t num_committed;
  };

  // The number of texts is small, so that threads meet.
  [[nodiscard]] static std::vector<token> prompt(std::mt19937_64& random) {
    auto tokens = std::vector<token>(1 + random() % 7);
    std::ranges::generate(tokens, [next = static_cast<token>(10 * (random() % 2))]() mutable { return next++; });
    return tokens;
  }

  [[nodiscard]] std::size_t blocks_for(std::size_t num_tokens) const {
    return (num_tokens + block_size_ - 1) / block_size_;
  }

  [[nodiscard]] operation start(action kind, std::vector<token> tokens = {}) {
    auto o = operation{};
    o.kind = kind;
    o.tokens = std::move(tokens);
    o.called = tell_time_();
    return o;
  }
  template <class Result>
  [[nodiscard]] bool succeeded(const Result& outcome) {
    if (!outcome && failure_.empty()) {
      failure_ = outcome.error().message();
    }
    return outcome.has_value();
  }

  void finish(operation& o) { o.returned = tell_time_(); }

  void read_table(operation& o, const owned& s) {
    o.sequence = static_cast<std::uint64_t>(s.id);
    o.table.resize(64);
    const auto size = cache_->block_table(s.id, o.table);
    o.table.resize(succeeded(size) ? *size : 0);
  }

  void append(owned& s, std::vector<token> tokens) {
    auto o = start(action::append, std::move(tokens));
    const auto done = cache_->append(s.id, o.tokens);
    finish(o);
    o.num_touched = blocks_for(o.tokens.size()) + 1;
    o.refused = !done;
    if (done) {
      s.tokens.insert(s.tokens.end(), o.tokens.begin(), o.tokens.end());
    }
    read_table(o, s);
    history_.push_back(std::move(o));
  }

  void commit(owned& s) {
    auto o = start(action::commit);
    const auto done = cache_->commit(s.id, static_cast<std::int64_t>(s.tokens.size()));
    finish(o);
    if (!succeeded(done)) {
      return;
    }
    o.num_tokens = s.num_committed = s.tokens.size();
    o.num_touched = s.tokens.size() / block_size_;
    read_table(o, s);
    history_.push_back(std::move(o));
  }

  void fork(const owned& s) {
    auto o = start(action::fork);
    o.source = static_cast<std::uint64_t>(s.id);
    const auto made = cache_->fork(s.id);
    finish(o);
    if (!succeeded(made)) {
      return;
    }
    auto copy = owned{*made, s.tokens, s.num_committed};
    read_table(o, copy);
    sequences_.push_back(std::move(copy));
    history_.push_back(std::move(o));
  }

  void truncate(owned& s, std::size_t num_tokens) {
    auto o = start(action::truncate);
    const auto done = cache_->truncate(s.id, static_cast<std::int64_t>(num_tokens));
    finish(o);
    if (!succeeded(done)) {
      return;
    }
    o.num_tokens = num_tokens;
    o.num_touched = blocks_for(s.tokens.size());
    s.tokens.resize(num_tokens);
    s.num_committed = std::min(s.num_committed, num_tokens);
    read_table(o, s);
    history_.push_back(std::move(o));
  }

  void release(owned& s) {
    auto o = start(action::release);
    const auto done = cache_->release(s.id);
    finish(o);
    if (!succeeded(done)) {
      return;
    }
    o.sequence = static_cast<std::uint64_t>(s.id);
    o.num_touched = blocks_for(s.tokens.size());
    std::swap(s, sequences_.back());
    sequences_.pop_back();
    history_.push_back(std::move(o));
  }

  Cache* cache_;
  std::function<std::uint64_t()> tell_time_;
  std::size_t block_size_;
  std::vector<owned> sequences_;
  std::vector<operation> history_;
  std::string failure_;
};

template <class Cache>
[[nodiscard]] std::vector<operation> all_of(const std::vector<recorded_thread<Cache>>& threads) {
  auto all = std::vector<operation>{};
  for (const auto& thread : threads) {
    all.insert(all.end(), thread.history().begin(), thread.history().end());
  }
  return all;
}

}  // namespace pagedkv::testing
