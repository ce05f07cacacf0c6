#include <pagedkv/device/backend.hpp>
#include <pagedkv/pagedkv.hpp>

#include <span>

using cache_type = pagedkv::kv_cache<pagedkv::hip_backend>;

/// Launches kernels of `pagedkv::kernels`.
bool write(cache_type& cache, std::span<const pagedkv::slot> slots, const pagedkv::token_rows<const float>& rows) {
  return cache.write(0, slots, rows, rows).has_value();
}
