#include "engine_of.hpp"

#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>

#include <concepts>
#include <memory>
#include <string>

namespace pagedkv::replay {

std::unique_ptr<engine> make_engine_for_threads(const options& chosen, const cache_config& config,
                                                const replay_events& reported) {
  if (chosen.element != float16::name) {
    throw option_error("--element " + chosen.element + " goes with --locking single_thread; with --locking " +
                       chosen.locking + " use float16");
  }
  return with_policy(all_lockings{}, chosen.locking, [&]<class Locking>(std::type_identity<Locking>) {
    if constexpr (std::same_as<Locking, single_thread>) {
      return std::unique_ptr<engine>{};
    } else {
      return make_engine_with<Locking, float16>(chosen, config, reported);
    }
  });
}

}  // namespace pagedkv::replay
