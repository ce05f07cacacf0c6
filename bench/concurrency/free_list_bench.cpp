#include <pagedkv/pool/boost_free_list.hpp>
#include <pagedkv/pool/lock_free_free_list.hpp>
#include <pagedkv/pool/stack_free_list.hpp>

#include <benchmark/benchmark.h>
#include <boost/lockfree/queue.hpp>
#include <boost/lockfree/stack.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

// Each thread pops some ids and pushes them back, over and over. `scaling` is items per second over those of one thread
// of the same benchmark, which runs first.

namespace {

using namespace pagedkv;

// As many as Boost.Lockfree holds, less the one with which its queue begins.
constexpr auto num_blocks = std::int32_t{65'534};

class mutex_free_list {
 public:
  explicit mutex_free_list(std::int32_t blocks) : list_(blocks) {}

  block_id pop() noexcept {
    const auto lock = std::lock_guard{mutex_};
    return list_.pop();
  }

  void push(block_id block) noexcept {
    const auto lock = std::lock_guard{mutex_};
    list_.push(block);
  }

 private:
  std::mutex mutex_;
  stack_free_list list_;
};

// What Boost.Lockfree does by itself, without the count that `boost_free_list` keeps.
template <class Container>
class bare {
 public:
  explicit bare(std::int32_t blocks) : ids_(static_cast<std::size_t>(blocks)) {
    for (auto id = blocks; id-- > 0;) {
      ids_.bounded_push(id);
    }
  }

  block_id pop() noexcept {
    auto id = static_cast<std::int32_t>(no_block);
    ids_.pop(id);
    return block_id{id};
  }

  void push(block_id block) noexcept { ids_.bounded_push(static_cast<std::int32_t>(block)); }

 private:
  Container ids_;
};

using boost_stack = bare<boost::lockfree::stack<std::int32_t, boost::lockfree::fixed_sized<true>>>;
using boost_queue = bare<boost::lockfree::queue<std::int32_t, boost::lockfree::fixed_sized<true>>>;

template <class List, std::size_t Depth>
void pop_and_push(benchmark::State& state) {
  using clock = std::chrono::steady_clock;
  static auto list = std::unique_ptr<List>{};
  static auto rate_of_one_thread = 0.0;
  if (state.thread_index() == 0) {
    list = std::make_unique<List>(num_blocks);
  }
  auto held = std::array<block_id, Depth>{};
  auto begin = clock::time_point{};
  for (auto _ : state) {
    if (begin == clock::time_point{}) {
      begin = clock::now();
    }
    for (auto& block : held) {
      block = list->pop();
      benchmark::DoNotOptimize(block);
    }
    for (const auto block : held) {
      list->push(block);
    }
  }
  const auto seconds = std::chrono::duration<double>(clock::now() - begin).count();
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(Depth));
  if (state.thread_index() == 0) {
    const auto rate = static_cast<double>(state.iterations()) * state.threads() / seconds;
    rate_of_one_thread = state.threads() == 1 ? rate : rate_of_one_thread;
    state.counters["scaling"] = rate / rate_of_one_thread;
  }
}

void one_to_sixteen_threads(benchmark::internal::Benchmark* benchmark) { benchmark->ThreadRange(1, 16)->UseRealTime(); }

}  // namespace

BENCHMARK(pop_and_push<lock_free_free_list<>, 1>)->Apply(one_to_sixteen_threads);
BENCHMARK(pop_and_push<boost_stack, 1>)->Apply(one_to_sixteen_threads);
BENCHMARK(pop_and_push<boost_queue, 1>)->Apply(one_to_sixteen_threads);
BENCHMARK(pop_and_push<boost_free_list, 1>)->Apply(one_to_sixteen_threads);
BENCHMARK(pop_and_push<mutex_free_list, 1>)->Apply(one_to_sixteen_threads);
BENCHMARK(pop_and_push<stack_free_list, 1>)->UseRealTime();

// As many as an allocation takes at once; and more than two magazines hold.
BENCHMARK(pop_and_push<lock_free_free_list<>, 32>)->Apply(one_to_sixteen_threads);
BENCHMARK(pop_and_push<boost_stack, 32>)->Apply(one_to_sixteen_threads);
BENCHMARK(pop_and_push<mutex_free_list, 32>)->Apply(one_to_sixteen_threads);
BENCHMARK(pop_and_push<lock_free_free_list<>, 500>)->Apply(one_to_sixteen_threads);
BENCHMARK(pop_and_push<boost_stack, 500>)->Apply(one_to_sixteen_threads);
BENCHMARK(pop_and_push<mutex_free_list, 500>)->Apply(one_to_sixteen_threads);
