#pragma once

// Work that is recorded once and launched as a whole, under one name for each platform.

#include <pagedkv/device/status.hpp>
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

}  // namespace graphs

/// The work that a call enqueues in a stream, for later launches. Throws `pagedkv::exception`.
class recorded_work {
 public:
  template <class Enqueue>
  explicit recorded_work(const Enqueue& enqueue) {
    const auto stream = pagedkv::hip::stream();  // of its own: other threads may use the launching one meanwhile
    auto recorded = graphs::graph{};
    pagedkv::hip::require(graphs::begin(stream.get()), "the begin of a graph");
    enqueue(stream.get());
    pagedkv::hip::require(graphs::end(stream.get(), &recorded), "the end of a graph");
    const auto made = graphs::instantiate(&executable_, recorded);
    static_cast<void>(graphs::destroy(recorded));
    pagedkv::hip::require(made, "the instantiation of a graph");
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
