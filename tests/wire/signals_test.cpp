// Signals that arrive in calls into ZeroMQ. The calls go through functions of this program, which say that a signal
// interrupted them.

#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/wire/event_publisher.hpp>
#include <pagedkv/wire/event_subscriber.hpp>

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include <dlfcn.h>

namespace interruptions {

std::atomic<bool> enabled{false};
std::atomic<int> num_calls{0};  // that were interrupted
thread_local auto depth = 0;    // of calls

/// Fails each thread's first, third, … call of a function with EINTR. Not those that ZeroMQ makes within another.
template <class Result, class... Arguments>
Result pass_on(const char* name, Result failure, bool& interrupts_next, Arguments... arguments) {
  const auto real = reinterpret_cast<Result (*)(Arguments...)>(dlsym(RTLD_NEXT, name));
  if (enabled && depth == 0) {
    interrupts_next = !interrupts_next;
    if (interrupts_next) {
      ++num_calls;
      errno = EINTR;
      return failure;
    }
  }
  ++depth;
  const auto result = real(arguments...);
  --depth;
  return result;
}

}  // namespace interruptions

#define INTERRUPTED_AS(type, failure, name, parameters, ...)                           \
  extern "C" type name parameters {                                                    \
    thread_local auto interrupts_next = false;                                         \
    return interruptions::pass_on<type>(#name, failure, interrupts_next, __VA_ARGS__); \
  }
#define INTERRUPTED(name, parameters, ...) INTERRUPTED_AS(int, -1, name, parameters, __VA_ARGS__)

INTERRUPTED_AS(void*, nullptr, zmq_socket, (void* context, int kind), context, kind)
INTERRUPTED(zmq_setsockopt, (void* socket, int option, const void* value, std::size_t size), socket, option, value,
            size)
INTERRUPTED(zmq_getsockopt, (void* socket, int option, void* value, std::size_t* size), socket, option, value, size)
INTERRUPTED(zmq_bind, (void* socket, const char* endpoint), socket, endpoint)
INTERRUPTED(zmq_connect, (void* socket, const char* endpoint), socket, endpoint)
INTERRUPTED(zmq_send, (void* socket, const void* bytes, std::size_t size, int flags), socket, bytes, size, flags)
INTERRUPTED(zmq_msg_recv, (zmq_msg_t * part, void* socket, int flags), part, socket, flags)
INTERRUPTED(zmq_poll, (zmq_pollitem_t * items, int count, long timeout), items, count, timeout)
INTERRUPTED(zmq_ctx_term, (void* context), context)

namespace {

using namespace pagedkv;
using namespace std::chrono_literals;

struct size_counter {
  std::vector<std::size_t> sizes;
  int num_lost = 0;

  void batch(const wire_batch& batch) { sizes.push_back(batch.events.size()); }
  void lost() { ++num_lost; }
};

}  // namespace

TEST_CASE("each call into ZeroMQ that a signal interrupts is repeated", "[wire]") {
  interruptions::num_calls = 0;
  interruptions::enabled = true;
  {
    const auto queues = event_queues{4};
    auto config = publisher_config{};
    config.endpoint = "tcp://127.0.0.1:*";
    config.replay_endpoint = "tcp://127.0.0.1:*";
    config.heartbeat = 1ms;
    const auto publisher = event_publisher{queues, config};
    while (publisher.num_batches() == 0) {
      std::this_thread::yield();
    }
    auto subscriber = event_subscriber{
        {.endpoint = publisher.endpoint(), .replay_endpoint = publisher.replay_endpoint(), .topic = ""}};
    auto visitor = size_counter{};
    while (visitor.sizes.size() < 20) {
      subscriber.poll(10s, visitor);
    }
    CHECK(visitor.num_lost == 0);
    CHECK(subscriber.num_malformed() == 0);
    CHECK(subscriber.num_replayed() > 0);  // those that were published before it was connected
  }
  interruptions::enabled = false;
  CHECK(interruptions::num_calls > 100);
}
