// The cache on a device: its backend operations run on the caller's stream.

#include "../support/printing.hpp"
#include "../support/tokens.hpp"
#include "../tier/temporary_folder.hpp"
#include "reference.hpp"
#include "target.hpp"

#include <pagedkv/device/allocators.hpp>
#include <pagedkv/device/mapping_allocator.hpp>
#include <pagedkv/device/stream.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/tier/session_file.hpp>

#include <catch2/catch_test_macros.hpp>

namespace cache_test {

using namespace pagedkv;
using namespace pagedkv::test;

using device_cache = kv_cache<hip_backend>;

/// Writes rows whose numbers are `first`, `first` + 1, … to tokens [from, to) of a sequence, in every layer.
template <class Cache>
class row_writer {
 public:
  row_writer(const hip_target<0>& target, Cache& cache) : target_(target), cache_(cache) {}

  void write(sequence_id id, std::int64_t from, std::int64_t to, float first) {
    auto rows = make_rows(to - from);
    std::iota(rows.numbers.begin(), rows.numbers.end(), first);
    const auto data = target_array<float, hip_target<0>>(target_, rows.numbers);
    const auto slots = target_array<slot, hip_target<0>>(target_, mapping(id, from, to));
    const float* const numbers = data.data();
    for (auto layer = 0; layer < cache_.config().num_layers; ++layer) {
      REQUIRE(
          cache_.write(layer, {slots.data(), slots.size()}, rows.view(numbers), rows.view(numbers), target_.stream()));
    }
    REQUIRE(runtime::synchronize_stream(target_.stream()) == runtime::success);
  }

  [[nodiscard]] std::vector<float> read(sequence_id id, std::int64_t from, std::int64_t to) {
    auto rows = make_rows(to - from);
    const auto keys = target_array<float, hip_target<0>>(target_, rows.numbers);
    const auto values = target_array<float, hip_target<0>>(target_, rows.numbers);
    const auto slots = target_array<slot, hip_target<0>>(target_, mapping(id, from, to));
    REQUIRE(cache_.read(cache_.config().num_layers - 1, {slots.data(), slots.size()}, rows.view(keys.data()),
                        rows.view(values.data()), target_.stream()));
    REQUIRE(runtime::synchronize_stream(target_.stream()) == runtime::success);
    REQUIRE(keys.values() == values.values());
    return keys.values();
  }

 private:
  [[nodiscard]] rows_of<float32> make_rows(std::int64_t count) const {
    return {count, cache_.config().num_kv_heads, cache_.config().head_dim, 0};
  }

  [[nodiscard]] std::vector<slot> mapping(sequence_id id, std::int64_t from, std::int64_t to) {
    auto slots = std::vector<slot>(static_cast<std::size_t>(to - from));
    REQUIRE(cache_.slot_mapping(id, from, slots));
    return slots;
  }

  const hip_target<0>& target_;
  Cache& cache_;
};

std::vector<float> counted(float first, std::size_t count) {
  auto numbers = std::vector<float>(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

TEST_CASE("A fork copies its block on the caller's stream, and the other sequence keeps its bits", "[cache]") {
  auto target = require_target<hip_target<0>>();
  auto cache = device_cache(make_config(4, 16, 2, 1, 8));
  auto rows = row_writer(target, cache);
  const auto first = cache.create_sequence(text(0, 6)).value().id;
  rows.write(first, 0, 6, 0.0F);
  REQUIRE(cache.commit(first, 6));
  const auto second = cache.fork(first).value();
  REQUIRE(cache.append(second, 77, target.stream()));
  rows.write(second, 6, 7, 500.0F);
  CHECK(rows.read(first, 0, 6) == counted(0.0F, 48));
  CHECK(rows.read(second, 0, 6) == counted(0.0F, 48));
  CHECK(rows.read(second, 6, 7) == counted(500.0F, 8));
  CHECK(cache.check_invariants().empty());
}

TEST_CASE("Compaction moves blocks on the caller's stream", "[cache]") {
  auto target = require_target<hip_target<0>>();
  auto cache = device_cache(make_config(4, 16, 2, 1, 8));
  auto rows = row_writer(target, cache);
  const auto first = cache.create_sequence(text(0, 20)).value().id;
  const auto second = cache.create_sequence(text(100, 20)).value().id;
  rows.write(second, 0, 20, 9.0F);
  REQUIRE(cache.release(first));
  const auto moves = cache.compact(target.stream());
  REQUIRE(moves);
  CHECK_FALSE(moves->empty());
  CHECK(rows.read(second, 0, 20) == counted(9.0F, 160));
  CHECK(cache.check_invariants().empty());
}

TEST_CASE("A session is saved from a device, and restored on one", "[cache]") {
  auto target = require_target<hip_target<0>>();
  const auto folder = pagedkv::testing::temporary_folder{};
  const auto path = folder.file("session");
  const auto options = session_options<hip::pinned_allocator>{};
  const auto config = make_config(4, 12, 2, 1, 8);
  {
    auto cache = device_cache(config);
    const auto id = cache.create_sequence(text(0, 11)).value().id;
    row_writer(target, cache).write(id, 0, 11, 100.0F);
    REQUIRE(cache.commit(id, 11));
    REQUIRE(save_sequence(cache, id, path, options, target.stream()));
  }
  auto cache = device_cache(config);
  auto rows = row_writer(target, cache);
  const auto other = cache.create_sequence(text(50, 6)).value().id;
  rows.write(other, 0, 6, 500.0F);
  const auto restored = restore_sequence(cache, path, options, target.stream()).value();
  CHECK(rows.read(restored.id, 0, 11) == counted(100.0F, 88));
  CHECK(rows.read(other, 0, 6) == counted(500.0F, 48));
  CHECK(cache.find_prefix(text(0, 11)) == 8);
}

TEST_CASE("A device's pool grows and shrinks behind one address", "[cache]") {
  auto target = require_target<hip_target<0>>();
  auto config = make_config(16, 40, 2, 8, 128);
  config.max_blocks = 256;
  auto cache = kv_cache<float32, hip_backend, hip::mapping_allocator>(config);
  auto rows = row_writer(target, cache);
  const auto view = cache.view();  // as a captured kernel keeps it
  const auto first = cache.create_sequence(text(0, 40 * 16)).value().id;
  const auto at_first = cache.memory().payload;
  REQUIRE(cache.resize(256, target.stream()));
  CHECK(cache.memory().payload > at_first);
  const auto second = cache.create_sequence(text(5000, 200 * 16)).value().id;
  rows.write(second, 199 * 16, 200 * 16, 9.0F);
  REQUIRE(cache.truncate(second, 0));
  REQUIRE(cache.release(first));
  const auto third = cache.create_sequence(text(0, 20)).value().id;
  rows.write(third, 0, 20, 3.0F);
  REQUIRE(cache.resize(2, target.stream()));
  CHECK(cache.memory().payload < at_first);
  CHECK(rows.read(third, 0, 20) == counted(3.0F, 20 * 1024));
  REQUIRE(cache.resize(100, target.stream()));
  REQUIRE(cache.append(third, text(20, 90 * 16), target.stream()));
  rows.write(third, 89 * 16, 90 * 16, 5.0F);
  CHECK(rows.read(third, 89 * 16, 90 * 16) == counted(5.0F, 16 * 1024));
  CHECK(cache.view().base == view.base);
  CHECK(cache.view().layer_stride == view.layer_stride);
  CHECK(cache.check_invariants().empty());
}

#if defined(__CUDACC__) && !defined(__HIPCC__)
/// A captured graph, launched on the stream that it was captured on.
class captured_graph {
 public:
  template <class Operations>
  captured_graph(cudaStream_t stream, Operations operations) : stream_(stream) {
    auto* graph = cudaGraph_t{};
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    operations();
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&launched_, graph, 0) == cudaSuccess);
    REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  }
  captured_graph(const captured_graph&) = delete;
  captured_graph& operator=(const captured_graph&) = delete;
  ~captured_graph() { static_cast<void>(cudaGraphExecDestroy(launched_)); }

  void launch() const {
    REQUIRE(cudaGraphLaunch(launched_, stream_) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream_) == cudaSuccess);
  }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t launched_ = nullptr;
};

TEST_CASE("A captured graph goes on working while the pool grows by 1 GiB and shrinks", "[cache]") {
  auto target = require_target<hip_target<0>>();
  auto config = make_config(16, 40, 2, 8, 128);
  config.max_blocks = 40 + (1 << 12);
  auto cache = kv_cache<float32, hip_backend, hip::mapping_allocator>(config);
  const auto other = cache.create_sequence(text(5000, 35 * 16)).value().id;
  const auto id = cache.create_sequence(text(0, 20)).value().id;
  const auto slots_now = [&] {
    auto slots = std::vector<slot>(20);
    REQUIRE(cache.slot_mapping(id, 0, slots));
    return slots;
  };
  auto rows = rows_of<float32>{20, 8, 128, 0};
  const auto from = target_array<float, hip_target<0>>(target, rows.numbers);
  const auto keys = target_array<float, hip_target<0>>(target, rows.numbers);
  const auto values = target_array<float, hip_target<0>>(target, rows.numbers);
  const auto slots = target_array<slot, hip_target<0>>(target, slots_now());
  const float* const numbers = from.data();
  const auto graph = captured_graph(target.stream(), [&] {
    const auto span = std::span<const slot>(slots.data(), slots.size());
    for (const auto layer : {0, 1}) {
      REQUIRE(cache.write(layer, span, rows.view(numbers), rows.view(numbers), target.stream()));
    }
    REQUIRE(cache.read(1, span, rows.view(keys.data()), rows.view(values.data()), target.stream()));
  });
  const auto check_replay = [&](float first) {
    const auto written = counted(first, rows.numbers.size());
    target.upload(from.data(), written.data(), written.size() * sizeof(float));
    const auto mapped = slots_now();
    target.upload(slots.data(), mapped.data(), mapped.size() * sizeof(slot));
    graph.launch();
    CHECK(keys.values() == written);
    CHECK(values.values() == written);
  };
  check_replay(1.0F);
  REQUIRE(cache.resize(config.max_blocks, target.stream()));
  check_replay(2.0F);
  REQUIRE(cache.release(other));
  REQUIRE(cache.resize(2, target.stream()));
  check_replay(3.0F);
  REQUIRE(cache.resize(config.max_blocks, target.stream()));
  check_replay(4.0F);
  CHECK(cache.check_invariants().empty());
}
#endif

TEST_CASE("A step retires when its event is reached, and its blocks are reused only then", "[cache]") {
  auto target = require_target<hip_target<0>>();
  auto cache = device_cache(make_config(4, 4, 1, 1, 8));
  auto done = hip::event();
  const auto id = cache.create_sequence(text(0, 16)).value().id;
  const auto step = cache.begin_step().value();
  REQUIRE(done.record(target.stream()));
  REQUIRE(cache.release(id));
  CHECK(cache.create_sequence(text(50, 16)).error().code == error_code::capacity_exhausted);
  REQUIRE(done.synchronize());
  REQUIRE(cache.retire_step(step));
  CHECK(cache.create_sequence(text(50, 16)));
  CHECK(cache.check_invariants().empty());
}

}  // namespace cache_test
