// Blocks from one device to another: the move of scattered blocks in one launch as a share of the runtime's own copy
// between the devices, in the same run. Needs two connected devices; with fewer it says so and skips.
//
//   kernel_peer [FILE]
//
// prints the table; writes the same as JSON to FILE.

#include "records.hpp"

#include <pagedkv/device/allocators.hpp>
#include <pagedkv/device/backend.hpp>
#include <pagedkv/device/device.hpp>
#include <pagedkv/device/stream.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/storage/block_storage.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

namespace {

using namespace pagedkv;

/// Best bytes per second of several runs, each until the stream is empty.
template <class Operation>
double rate(double bytes, hip_backend& backend, hip_backend::stream_type stream, Operation operation) {
  auto best = 0.0;
  for (auto run = 0; run < 8; ++run) {
    backend.synchronize(stream).value();
    const auto start = std::chrono::steady_clock::now();
    for (auto i = 0; i < 4; ++i) {
      operation().value();
    }
    backend.synchronize(stream).value();
    const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, 4 * bytes / seconds);
  }
  return best;
}

template <class Layout>
void report(const char* layout, std::int32_t num_layers, std::int32_t num_blocks, device_bench::records& records) {
  auto config = cache_config{};
  config.num_blocks = num_blocks;
  config.num_layers = num_layers;
  config.num_kv_heads = 2;
  config.head_dim = 128;
  using storage = block_storage<bfloat16, Layout, hip::device_allocator>;
  const auto from = storage::create(config, hip::device_allocator{0}).value();
  const auto to = storage::create(config, hip::device_allocator{1}).value();
  auto pairs = std::vector<block_pair>(static_cast<std::size_t>(num_blocks));
  auto targets = std::vector<std::int32_t>(pairs.size());
  std::iota(targets.begin(), targets.end(), 0);
  std::shuffle(targets.begin(), targets.end(), std::mt19937{1});
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    pairs[i] = {static_cast<std::int32_t>(i), targets[i]};
  }
  auto backend = hip_backend{1};
  const auto scope = hip::device_scope{1};
  const auto owned = hip::stream{1};
  const auto stream = owned.get();
  const auto bytes = from.bytes();
  const auto copied = rate(static_cast<double>(bytes), backend, stream, [&] {
    return hip::to_result(runtime::copy_async(to.view().base, from.view().base, static_cast<std::size_t>(bytes),
                                              runtime::device_to_device, stream),
                          "the copy of memory");
  });
  const auto moved = rate(static_cast<double>(bytes), backend, stream, [&] {
    return backend.swap_blocks(from.view(), to.view(), pairs, swap_direction::from_peer, stream);
  });
  const auto bytes_of_block = static_cast<long long>(from.view().layer_bytes() * num_layers);
  std::printf("| %-11s | %8lld | %8.1f | %8.1f | %8.1f | %5.3f |\n", layout, bytes_of_block,
              static_cast<double>(bytes) / 0x1p20, copied / 1e9, moved / 1e9, moved / copied);
  char line[256];
  std::snprintf(line, sizeof(line),
                R"({"layout": "%s", "block_bytes": %lld, "copied_bytes_per_second": %.4g, "bytes_per_second": %.4g})",
                layout, bytes_of_block, copied, moved);
  records.add(line);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto connected = hip::connect_peer(1, 0); !connected) {
    std::printf("skipped: %s\n", connected.error().message().c_str());
    return 77;
  }
  auto records = device_bench::records{};
  std::printf("| layout      |  B/block |      MiB | copy GB/s | move GB/s | share |\n|---|---|---|---|---|---|\n");
  for (const auto num_layers : {1, 4, 32}) {
    const auto num_blocks = (1 << 16) / num_layers;  // 1 GiB
    report<nhd_layer_major>("layer major", num_layers, num_blocks, records);
    report<nhd_block_major>("block major", num_layers, num_blocks, records);
  }
  if (argc > 1) {
    device_bench::write_file(argv[1], records.list() + "\n");
  }
  return 0;
}
