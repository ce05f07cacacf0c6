#pragma once

#include "timer.hpp"

#include <pagedkv/device/device.hpp>
#include <pagedkv/kernels/runtime.hpp>

namespace device_bench {

#if defined(__HIPCC__)
using graph = hipGraph_t;
using graph_launch = hipGraphExec_t;
inline constexpr auto begin_capture = [](hipStream_t stream) {
  return hipStreamBeginCapture(stream, hipStreamCaptureModeThreadLocal);
};
inline constexpr auto end_capture = hipStreamEndCapture;
inline constexpr auto instantiate = [](graph_launch* made, graph from) {
  return hipGraphInstantiateWithFlags(made, from, 0);
};
inline constexpr auto launch_graph = hipGraphLaunch;
inline constexpr auto destroy_graph = hipGraphDestroy;
inline constexpr auto destroy_launch = hipGraphExecDestroy;
#elif defined(__CUDACC__)
using graph = cudaGraph_t;
using graph_launch = cudaGraphExec_t;
inline constexpr auto begin_capture = [](cudaStream_t stream) {
  return cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
};
inline constexpr auto end_capture = cudaStreamEndCapture;
inline constexpr auto instantiate = [](graph_launch* made, graph from) { return cudaGraphInstantiate(made, from, 0); };
inline constexpr auto launch_graph = cudaGraphLaunch;
inline constexpr auto destroy_graph = cudaGraphDestroy;
inline constexpr auto destroy_launch = cudaGraphExecDestroy;
#endif

#if defined(__HIPCC__) || defined(__CUDACC__)
/// Operations that were captured once, to be launched again and again.
class captured_graph {
 public:
  template <class Operations>
  captured_graph(runtime::stream stream, const Operations& operations) : stream_(stream) {
    auto captured = graph{};
    hip::require(begin_capture(stream), "the capture of a graph");
    operations();
    hip::require(end_capture(stream, &captured), "the capture of a graph");
    hip::require(instantiate(&launch_, captured), "the instantiation of a graph");
    static_cast<void>(destroy_graph(captured));
  }
  captured_graph(const captured_graph&) = delete;
  captured_graph& operator=(const captured_graph&) = delete;
  ~captured_graph() { static_cast<void>(destroy_launch(launch_)); }

  void launch() const { hip::require(launch_graph(launch_, stream_), "the launch of a graph"); }

 private:
  runtime::stream stream_;
  graph_launch launch_ = nullptr;
};
#endif

/// Median seconds of one of several equal operations in a captured graph. On the host, which has no graphs, 0.
template <class Operation>
[[nodiscard]] double measure_in_graph([[maybe_unused]] const timer& clock, [[maybe_unused]] runtime::stream stream,
                                      [[maybe_unused]] const Operation& operation) {
#if defined(__HIPCC__) || defined(__CUDACC__)
  constexpr auto operations = 4;
  const auto captured = captured_graph(stream, [&] {
    for (auto i = 0; i < operations; ++i) {
      operation();
    }
  });
  return clock.measure(stream, [&] { captured.launch(); }) / operations;
#else
  return 0;
#endif
}

}  // namespace device_bench
