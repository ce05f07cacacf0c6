#pragma once

// Work that is recorded once and launched as a whole, under one name for each platform.

#include <pagedkv/device/device.hpp>
#include <pagedkv/device/stream.hpp>

#include <functional>
#include <utility>

namespace llama::device {

#if defined(__HIPCC__) || defined(__CUDACC__)

namespace graphs {

  #if defined(__HIPCC__)
using graph = hipGraph_t;
using executable = hipGraphExec_t;
inline auto begin(pagedkv::runtime::stream stream) {
  return hipStreamBeginCapture(stream, hipStreamCaptureModeThreadLocal);
}
inline auto end(pagedkv::runtime::stream stream, graph* recorded) { return hipStreamEndCapture(stream, recorded); }
inline auto instantiate(executable* made, graph from) { return hipGraphInstantiate(made, from, nullptr, nullptr, 0); }
inline auto launch(executable of, pagedkv::runtime::stream stream) { return hipGraphLaunch(of, stream); }
inline auto destroy(graph of) { return hipGraphDestroy(of); }
inline auto destroy(executable of) { return hipGraphExecDestroy(of); }
  #else
using graph = cudaGraph_t;
using executable = cudaGraphExec_t;
inline auto begin(pagedkv::runtime::stream stream) {
  return cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
}
inline auto end(pagedkv::runtime::stream stream, graph* recorded) { return cudaStreamEndCapture(stream, recorded); }
inline auto instantiate(executable* made, graph from) { return cudaGraphInstantiate(made, from, 0); }
inline auto launch(executable of, pagedkv::runtime::stream stream) { return cudaGraphLaunch(of, stream); }
inline auto destroy(graph of) { return cudaGraphDestroy(of); }
inline auto destroy(executable of) { return cudaGraphExecDestroy(of); }
  #endif

/// A capture that ends with the object at the latest, and its graph.
class recording {
 public:
  explicit recording(pagedkv::runtime::stream stream) : stream_(stream) {
    pagedkv::hip::require(begin(stream), "the begin of a graph");
  }
  recording(const recording&) = delete;
  recording& operator=(const recording&) = delete;
  ~recording() {
    if (!has_ended_) {
      static_cast<void>(graphs::end(stream_, &recorded_));
    }
    if (recorded_ != nullptr) {
      static_cast<void>(destroy(recorded_));
    }
  }

  [[nodiscard]] graph end() {
    has_ended_ = true;
    pagedkv::hip::require(graphs::end(stream_, &recorded_), "the end of a graph");
    return recorded_;
  }

 private:
  pagedkv::runtime::stream stream_;
  graph recorded_ = nullptr;
  bool has_ended_ = false;
};

}  // namespace graphs

/// The work that a call enqueues in a stream, for later launches. Throws `pagedkv::exception`.
class recorded_work {
 public:
  template <class Enqueue>
  explicit recorded_work(const Enqueue& enqueue) {
    const auto stream = pagedkv::hip::stream();  // of its own: other threads may use the launching one meanwhile
    auto recorded = graphs::recording(stream.get());
    enqueue(stream.get());
    pagedkv::hip::require(graphs::instantiate(&executable_, recorded.end()), "the instantiation of a graph");
  }
  recorded_work(recorded_work&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}
  recorded_work& operator=(recorded_work&&) = delete;
  ~recorded_work() {
    if (executable_ != nullptr) {
      static_cast<void>(graphs::destroy(executable_));
    }
  }

  void launch(pagedkv::runtime::stream stream) const {
    pagedkv::hip::require(graphs::launch(executable_, stream), "the launch of a graph");
  }

 private:
  graphs::executable executable_ = nullptr;
};

#else

/// On the host executor, the call itself.
class recorded_work {
 public:
  template <class Enqueue>
  explicit recorded_work(Enqueue enqueue) : enqueue_(std::move(enqueue)) {}

  void launch(pagedkv::runtime::stream stream) const { enqueue_(stream); }

 private:
  std::function<void(pagedkv::runtime::stream)> enqueue_;
};

#endif

}  // namespace llama::device
