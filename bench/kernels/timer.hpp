#pragma once

#include "../../examples/llama/device/graph.hpp"

#include <pagedkv/device/device.hpp>
#include <pagedkv/kernels/runtime.hpp>

#include <algorithm>
#include <vector>

namespace device_bench {

using namespace pagedkv;

#if defined(__HIPCC__) || defined(__CUDACC__)
inline constexpr auto on_device = true;
#else
inline constexpr auto on_device = false;
#endif

/// Measures with a device's own clock.
class timer {
 public:
  timer() {
    hip::require(runtime::create_timed_event(&start_), "the creation of an event");
    hip::require(runtime::create_timed_event(&stop_), "the creation of an event");
  }
  timer(const timer&) = delete;
  timer& operator=(const timer&) = delete;
  ~timer() {
    static_cast<void>(runtime::destroy_event(start_));
    static_cast<void>(runtime::destroy_event(stop_));
  }

  /// Median seconds over samples of `PerSample` operations each. On the host, one run that checks the result only.
  template <int PerSample = 4, class Operation>
  [[nodiscard]] double measure(runtime::stream stream, const Operation& operation) const {
    constexpr auto num_samples = on_device ? 15 : 1;
    constexpr auto per_sample = on_device ? PerSample : 1;
    operation();
    auto seconds = std::vector<double>();
    for (auto sample = 0; sample < num_samples; ++sample) {
      hip::require(runtime::record_event(start_, stream), "the recording of an event");
      for (auto i = 0; i < per_sample; ++i) {
        operation();
      }
      hip::require(runtime::record_event(stop_, stream), "the recording of an event");
      hip::require(runtime::synchronize_event(stop_), "the wait for an event");
      auto milliseconds = 0.0F;
      hip::require(runtime::elapsed_milliseconds(&milliseconds, start_, stop_), "the time between events");
      seconds.push_back(double{milliseconds} / 1e3 / per_sample);
    }
    std::nth_element(seconds.begin(), seconds.begin() + num_samples / 2, seconds.end());
    return seconds[num_samples / 2];
  }

  /// The same for an operation of four in a captured graph, of which a sample is one launch. `operation(stream)`
  /// enqueues one. On the host, which has no graphs, 0.
  template <class Operation>
  [[nodiscard]] double measure_in_graph([[maybe_unused]] runtime::stream stream,
                                        [[maybe_unused]] const Operation& operation) const {
    if constexpr (on_device) {
      constexpr auto operations = 4;
      const auto graph = llama::device::recorded_work([&](runtime::stream recorded) {
        for (auto i = 0; i < operations; ++i) {
          operation(recorded);
        }
      });
      return measure<1>(stream, [&] { graph.launch(stream); }) / operations;
    }
    return 0;
  }

 private:
  runtime::event start_ = nullptr;
  runtime::event stop_ = nullptr;
};

}  // namespace device_bench
