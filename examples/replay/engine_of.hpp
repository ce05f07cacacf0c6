#pragma once

#include "../support/chosen_eviction.hpp"
#include "engine.hpp"
#include "engine_parts.hpp"
#include "options.hpp"
#include "policies.hpp"

#include <pagedkv/pagedkv.hpp>

#include <utility>

namespace pagedkv::replay {

template <class Cache>
class engine_of : public engine {
 public:
  template <class... Arguments>
  explicit engine_of(Arguments&&... of_cache) : cache_(std::forward<Arguments>(of_cache)...), tracker_(cache_) {}

  void advance_time(timestamp now) override { cache_.advance_time(now); }
  result<submission> submit(std::span<const token> tokens) override { return tracker_.submit(tokens).outcome(); }
  result<void> append(request_id id, token next) override { return tracker_.append(id, next).outcome(); }
  result<void> finish(request_id id, std::uint32_t num_answer_tokens) override {
    support::stated_answer = num_answer_tokens;
    const auto finished = tracker_.finish(id);
    support::stated_answer = 0;
    return finished;
  }
  result<void> fail(request_id id, const error& reason) override { return tracker_.fail(id, reason); }

  result<void> commit(sequence_id id, std::int64_t num_tokens) override { return cache_.commit(id, num_tokens); }
  result<sequence_info> describe(sequence_id id) override { return cache_.describe(id); }
  result<void> slot_mapping(sequence_id id, std::int64_t first_token, std::span<slot> slots) override {
    return cache_.slot_mapping(id, first_token, slots);
  }
  result<void> write(std::span<const slot> slots, token_rows<const float> keys,
                     token_rows<const float> values) override {
    return cache_.write(0, slots, keys, values);
  }
  result<void> read(std::span<const slot> slots, token_rows<float> keys, token_rows<float> values) override {
    return cache_.read(0, slots, keys, values);
  }

  key_value stored_and_read(const key_value& rows) const override {
    return replay::stored_and_read<typename Cache::element_type>(rows);
  }

  cache_statistics statistics() override { return cache_.statistics(); }
  memory_profile memory() override { return cache_.memory(); }
  std::vector<std::string> check_invariants() override { return cache_.check_invariants(); }
  bool can_check_any_time() const override {
    return !std::is_same_v<typename Cache::locking_type::cache_mutex, no_mutex>;
  }

 protected:
  [[nodiscard]] Cache& cache() { return cache_; }

 private:
  Cache cache_;
  request_tracker<Cache> tracker_;
};

/// One locking policy and element with every eviction policy.
template <locking Locking, element Element>
std::unique_ptr<engine> make_engine_with(const options& chosen, const cache_config& config,
                                         const replay_events& reported) {
  const auto make = [&]<class Chosen>(std::type_identity<Chosen>, support::eviction_factory factory) {
    Chosen::factory = factory;
    return std::unique_ptr<engine>(
        std::make_unique<engine_of<kv_cache<Element, Locking, Chosen, replay_events>>>(config, reported));
  };
  return with_policy(all_evictions{}, chosen.eviction, [&]<class Eviction>(std::type_identity<Eviction>) {
    const auto factory = support::eviction_factory{support::any_eviction_of<Eviction>::make};
    using family = typename Locking::family;
    if constexpr (orders_blocks_for<family, Eviction>) {
      return make(std::type_identity<support::chosen_eviction<family::concurrent && Eviction::concurrent>>{}, factory);
    } else {
      throw option_error("--eviction " + chosen.eviction + " keeps a strict order, which --locking " + chosen.locking +
                         " cannot; use --eviction clock_sweep or none, or --locking sharded_mutex");
      return std::unique_ptr<engine>{};
    }
  });
}

}  // namespace pagedkv::replay
