#include "engine_parts.hpp"
#include "options.hpp"

#include <pagedkv/policy/free_list/contiguous_runs.hpp>

namespace pagedkv::replay {

std::unique_ptr<engine> make_engine(const options& chosen, const cache_config& config, const replay_events& reported) {
  if (chosen.free_list == contiguous_runs::name) {
    return make_engine_with_runs(chosen, config, reported);
  }
  if (chosen.host_blocks != 0) {
    return make_engine_with_tiers(chosen, config, reported);
  }
  for (const auto make : {make_engine_in<0>, make_engine_in<1>, make_engine_in<2>, make_engine_in<3>}) {
    if (auto made = make(chosen, config, reported)) {
      return made;
    }
  }
  return nullptr;  // the command line offers the policies of the parts only
}

}  // namespace pagedkv::replay
