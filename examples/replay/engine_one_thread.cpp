#include "engine_of.hpp"

#include <pagedkv/policy/locking/single_thread.hpp>

#include <string>

namespace pagedkv::replay {

std::unique_ptr<engine> make_engine_for_one_thread(const options& chosen, const cache_config& config,
                                                   const replay_events& reported) {
  if (chosen.num_threads > 1) {
    throw option_error("--threads " + std::to_string(chosen.num_threads) + ": --locking " + chosen.locking +
                       " is for one thread; use rw_lock, sharded_mutex or lock_free");
  }
  return with_policy(all_elements{}, chosen.element, [&]<class Element>(std::type_identity<Element>) {
    return make_engine_with<single_thread, Element>(chosen, config, reported);
  });
}

}  // namespace pagedkv::replay
