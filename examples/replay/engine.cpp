#include "engine_parts.hpp"
#include "options.hpp"

#include <pagedkv/policy/free_list/all.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>

namespace pagedkv::replay {

std::unique_ptr<engine> make_engine(const options& chosen, const cache_config& config, const replay_events& reported) {
  if (chosen.free_list == contiguous_runs::name) {
    return make_engine_with_runs(chosen, config, reported);
  }
  if (chosen.host_blocks != 0) {
    return make_engine_with_tiers(chosen, config, reported);
  }
  return chosen.locking == single_thread::name ? make_engine_for_one_thread(chosen, config, reported)
                                               : make_engine_for_threads(chosen, config, reported);
}

}  // namespace pagedkv::replay
