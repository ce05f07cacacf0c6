#pragma once

#include "engine.hpp"
#include "options.hpp"
#include "policies.hpp"

#include <pagedkv/pagedkv.hpp>

namespace pagedkv::replay {

template <class Cache>
class engine_of final : public engine {
 public:
  explicit engine_of(const cache_config& config) : cache_(config), tracker_(cache_) {}

  void advance_time(timestamp now) override { cache_.advance_time(now); }
  result<submission> submit(std::span<const token> tokens) override { return tracker_.submit(tokens); }
  result<void> append(request_id id, token next) override { return tracker_.append(id, {&next, 1}); }
  result<void> finish(request_id id) override { return tracker_.finish(id); }
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

  cache_statistics statistics() override { return cache_.statistics(); }
  memory_profile memory() override { return cache_.memory(); }
  std::vector<std::string> check_invariants() override { return cache_.check_invariants(); }
  bool can_check_any_time() const override { return !Cache::locking_type::family::concurrent; }

 private:
  Cache cache_;
  request_tracker<Cache> tracker_;
};

template <locking Locking, eviction Eviction>
void check_combination(const options& chosen) {
  constexpr bool one_thread =
      !Locking::family::concurrent && std::is_same_v<typename Locking::cache_mutex, no_mutex>;
  if (one_thread && chosen.num_threads > 1) {
    throw option_error("--threads " + std::to_string(chosen.num_threads) + ": --locking " + chosen.locking +
                       " is for one thread; use --locking rw_lock");
  }
  if (Locking::family::concurrent && !Eviction::concurrent) {
    throw option_error("--eviction " + chosen.eviction + " keeps a strict order, which --locking " + chosen.locking +
                       " cannot; use --eviction clock or none");
  }
}

/// Every locking and eviction policy with one element. Instantiated in a file for each element, to be compiled side by side.
template <element Element>
std::unique_ptr<engine> make_engine_with(const options& chosen, const cache_config& config) {
  return with_policy(all_lockings{}, chosen.locking, [&]<class Locking>(std::type_identity<Locking>) {
    return with_policy(all_evictions{}, chosen.eviction, [&]<class Eviction>(std::type_identity<Eviction>) {
      check_combination<Locking, Eviction>(chosen);
      if constexpr (Eviction::concurrent || !Locking::family::concurrent) {
        return std::unique_ptr<engine>(std::make_unique<engine_of<kv_cache<Element, Locking, Eviction>>>(config));
      } else {
        return std::unique_ptr<engine>();
      }
    });
  });
}

extern template std::unique_ptr<engine> make_engine_with<float16>(const options&, const cache_config&);
extern template std::unique_ptr<engine> make_engine_with<bfloat16>(const options&, const cache_config&);
extern template std::unique_ptr<engine> make_engine_with<float32>(const options&, const cache_config&);
extern template std::unique_ptr<engine> make_engine_with<int8>(const options&, const cache_config&);

}  // namespace pagedkv::replay
