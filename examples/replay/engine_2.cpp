#include "engine_of.hpp"

template <>
std::unique_ptr<pagedkv::replay::engine> pagedkv::replay::make_engine_in<2>(const options& chosen,
                                                                            const cache_config& config,
                                                                            const replay_events& reported) {
  return make_engine_of_part<2>(chosen, config, reported);
}
