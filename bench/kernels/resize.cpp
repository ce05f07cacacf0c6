// How long a device's pool takes to grow and to shrink, and how much of that is the cache's own time, beyond the
// device's calls to map and unmap memory. scripts/device-test builds it for a device. Built for the host, it only
// checks that it runs, and reports in TAP.
//
//   kernel_resize [FILE]
//
// writes the same as JSON to FILE.

#include "records.hpp"

#include "../support/timed_allocator.hpp"

#include <pagedkv/device/backend.hpp>
#include <pagedkv/device/mapping_allocator.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/layout/all.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace {

using namespace pagedkv;

#if defined(__HIPCC__) || defined(__CUDACC__)
constexpr auto num_changed = 512;  // blocks of 2 MiB
#else
constexpr auto num_changed = 4;
#endif

using memory = bench::timed_allocator<hip::mapping_allocator>;

/// Prints the fastest of several changes from one size to another and back.
void measure(device_bench::records& records) {
  auto in_system = 0.0;
  const auto config = cache_config{.num_blocks = num_changed,
                                   .max_blocks = 4 * num_changed,
                                   .num_layers = 32,
                                   .num_kv_heads = 8,
                                   .head_dim = 128};
  auto cache = kv_cache<hip_backend, memory, nhd_block_major>(config, memory(in_system));
  for (const auto num_blocks : {2 * num_changed, num_changed}) {
    auto whole = 1e9;
    auto own = 1e9;
    for (auto i = 0; i < 5; ++i) {
      cache.resize(3 * num_changed - num_blocks).value();
      in_system = 0.0;
      const auto start = std::chrono::steady_clock::now();
      cache.resize(num_blocks).value();
      const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      whole = std::min(whole, seconds);
      own = std::min(own, seconds - in_system);
    }
    const auto* const change = num_blocks > num_changed ? "grow" : "shrink";
    std::printf("# %s by %d blocks of 2 MiB: %.1f us, of which %.1f us are the cache's own\n", change, num_changed,
                whole * 1e6, own * 1e6);
    char line[256];
    std::snprintf(line, sizeof(line),
                  R"({"change": "%s", "blocks": %d, "microseconds": %.2f, "own_microseconds": %.3f})", change,
                  num_changed, whole * 1e6, own * 1e6);
    records.add(line);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::puts("1..1");
  if (const auto found = hip::check_device(0); !found) {
    std::printf("ok 1 # SKIP %s\n", found.error().message().c_str());
    return 0;
  }
  auto records = device_bench::records{};
  measure(records);
  if (argc > 1) {
    device_bench::write_file(argv[1], records.list() + "\n");
  }
  std::puts("ok 1");
}
