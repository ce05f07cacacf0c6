#include "engine_of.hpp"

namespace pagedkv::replay {

template std::unique_ptr<engine> make_engine_with<int8>(const options&, const cache_config&);

}  // namespace pagedkv::replay
