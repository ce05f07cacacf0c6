#include <pagedkv/pagedkv.hpp>

std::int64_t count_free(const pagedkv::cache_config& config) {
  return pagedkv::kv_cache<>(config).statistics().blocks.free;
}
