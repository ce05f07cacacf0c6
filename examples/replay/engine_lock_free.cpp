#include "engine_of.hpp"

namespace pagedkv::replay {

template std::unique_ptr<engine> make_engine_with<lock_free>(const options&, const cache_config&, const event_log&);

}  // namespace pagedkv::replay
