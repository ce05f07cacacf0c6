#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/wire/event_publisher.hpp>

#include <benchmark/benchmark.h>

#include <cstdint>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

using namespace pagedkv;

namespace {

constexpr auto block_size = std::int32_t{16};

std::vector<token> tokens_of_a_block() {
  auto tokens = std::vector<token>(block_size);
  std::iota(tokens.begin(), tokens.end(), 50'000);
  return tokens;
}

/// Prompts of 64 blocks are stored, and evicted afterwards.
class traffic {
 public:
  cache_event next() {
    auto event = cache_event{};
    const auto at = count_++ % 128;
    event.kind = at < 64 ? event_kind::stored : event_kind::evicted;
    event.hash = (count_ - 1 - at + (at < 64 ? at : 127 - at) + 1) * 0x9e37'79b9'7f4a'7c15U;
    event.parent_hash = std::exchange(last_hash_, event.hash);
    event.origin = at == 0 ? no_block : block_id{0};
    event.tokens = tokens_;
    return event;
  }

 private:
  std::vector<token> tokens_ = tokens_of_a_block();
  std::uint64_t count_ = 0;
  std::uint64_t last_hash_ = 0;
};

wire_encoding encoding_of(const benchmark::State& state) {
  return state.range(0) == 0 ? wire_encoding::arrays : wire_encoding::maps;
}

/// Writing batches of 1,024 events, on one core.
void write(benchmark::State& state) {
  auto writer = batch_writer{encoding_of(state)};
  auto events = traffic{};
  for (auto _ : state) {
    for (auto i = 0; i < 1'024; ++i) {
      writer.add(events.next());
    }
    benchmark::DoNotOptimize(writer.finish(0));
    writer.clear();
  }
  state.SetItemsProcessed(1'024 * state.iterations());
}

/// The caller's part: an event goes into its thread's queue. Emptied outside of the time.
void emit(benchmark::State& state) {
  auto queues = event_queues{block_size, {.capacity = 1 << 16}};
  auto events = traffic{};
  auto room = 0;
  for (auto _ : state) {
    if (room-- == 0) {
      state.PauseTiming();
      queues.drain([](const cache_event&) {});
      room = (1 << 16) - 1;
      state.ResumeTiming();
    }
    queues.emit(events.next());
  }
  state.counters["dropped"] = static_cast<double>(queues.num_dropped());
}

/// From the caller's thread to the socket, with the publisher's thread and one that emits.
void publish(benchmark::State& state) {
  constexpr auto capacity = std::int32_t{1} << 16;
  constexpr auto num_events = std::uint64_t{1} << 18;
  auto queues = event_queues{block_size, {.capacity = capacity}};
  auto config = publisher_config{};
  config.endpoint = "tcp://127.0.0.1:*";
  config.encoding = encoding_of(state);
  const auto publisher = event_publisher{queues, config};
  auto events = traffic{};
  auto emitted = std::uint64_t{0};
  for (auto _ : state) {
    for (auto i = std::uint64_t{0}; i < num_events; ++i) {
      while (emitted - publisher.num_events() >= capacity) {
        std::this_thread::yield();
      }
      queues.emit(events.next());
      ++emitted;
    }
    while (publisher.num_events() != emitted) {
      std::this_thread::yield();
    }
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(num_events) * state.iterations());
  state.counters["dropped"] = static_cast<double>(queues.num_dropped());
}

BENCHMARK(write)->ArgName("maps")->Arg(0)->Arg(1);
BENCHMARK(emit);
BENCHMARK(publish)->ArgName("maps")->Arg(0)->Arg(1)->UseRealTime();

}  // namespace
