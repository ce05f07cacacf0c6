#include "engine_of.hpp"

template <>
std::unique_ptr<pagedkv::replay::engine> pagedkv::replay::make_engine_in<0>(const options& chosen,
                                                                            const cache_config& config,
                                                                            const replay_events& reported) {
  return make_engine_of_part<0>(chosen, config, reported);
}
