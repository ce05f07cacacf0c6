#include "engine_of.hpp"

#include <pagedkv/policy/eviction/lru.hpp>
#include <pagedkv/policy/free_list/all.hpp>

namespace pagedkv::replay {

std::unique_ptr<engine> make_engine_with_runs(const options& chosen, const cache_config& config,
                                              const replay_events& reported) {
  if (chosen.locking != "single_thread" || chosen.num_threads != 1 || chosen.element != "float16" ||
      chosen.host_blocks != 0) {
    throw option_error("--free-list " + chosen.free_list +
                       " goes with --locking single_thread, --threads 1 and --element float16, without tiers");
  }
  const auto make = [&]<class Eviction>(std::type_identity<Eviction>) {
    return std::unique_ptr<engine>(
        std::make_unique<engine_of<kv_cache<float16, Eviction, contiguous_runs, replay_events>>>(config, reported));
  };
  if (chosen.eviction == lru::name) {  // by its own type, because only that tells that it orders by age
    return make(std::type_identity<lru>{});
  }
  using eviction_type = support::chosen_eviction<false>;
  return with_policy(all_evictions{}, chosen.eviction, [&]<class Eviction>(std::type_identity<Eviction>) {
    eviction_type::factory = support::any_eviction_of<Eviction>::make;
    return make(std::type_identity<eviction_type>{});
  });
}

}  // namespace pagedkv::replay
