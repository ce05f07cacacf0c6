#include "engine.hpp"

#include "engine_of.hpp"

namespace pagedkv::replay {

std::unique_ptr<engine> make_engine(const options& chosen, const cache_config& config) {
  return with_policy(all_elements{}, chosen.element, [&]<class Element>(std::type_identity<Element>) {
    return make_engine_with<Element>(chosen, config);
  });
}

}  // namespace pagedkv::replay
