#include "engine.hpp"

#include "engine_of.hpp"

namespace pagedkv::replay {

std::unique_ptr<engine> make_engine(const options& chosen, const cache_config& config, const event_log& log) {
  return with_policy(all_lockings{}, chosen.locking, [&]<class Locking>(std::type_identity<Locking>) {
    return make_engine_with<Locking>(chosen, config, log);
  });
}

}  // namespace pagedkv::replay
