#include "policies.hpp"
#include "scoreboard.hpp"

#include <pagedkv/policy/locking/all.hpp>
#include <pagedkv/policy/locking/parts/guards.hpp>
#include <pagedkv/pool/boost_free_list.hpp>
#include <pagedkv/pool/free_list.hpp>
#include <pagedkv/pool/lock_free_free_list.hpp>
#include <pagedkv/pool/sharded_free_list.hpp>

#include <benchmark/benchmark.h>
#include <boost/lockfree/queue.hpp>
#include <boost/lockfree/stack.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace {

using namespace pagedkv;
using namespace pagedkv::bench;

// The capacity of Boost.Lockfree, less the node with which its queue begins.
constexpr auto num_listed = std::int32_t{65'534};

/// The free list of a locking policy, with the mutex that the policy's cache would hold.
template <locking Locking>
class list_under {
 public:
  static constexpr std::string_view name = Locking::name;

  explicit list_under(std::int32_t blocks) : list_(blocks) {}

  block_id pop() {
    const auto guard = exclusive_guard{mutex_};
    return list_.pop();
  }

  void push(block_id block) {
    const auto guard = exclusive_guard{mutex_};
    list_.push(block);
  }

 private:
  [[no_unique_address]] typename Locking::cache_mutex mutex_;
  free_list_for<Locking> list_;
};

class mutex_and_vector {
 public:
  static constexpr std::string_view name = "mutex_and_vector";

  explicit mutex_and_vector(std::int32_t blocks) : list_(blocks) {}

  block_id pop() {
    const auto lock = std::lock_guard{mutex_};
    return list_.pop();
  }

  void push(block_id block) {
    const auto lock = std::lock_guard{mutex_};
    list_.push(block);
  }

 private:
  std::mutex mutex_;
  stack_free_list list_;
};

/// Boost.Lockfree's container itself, without the count that `boost_free_list` keeps.
template <class Container>
class bare {
 public:
  explicit bare(std::int32_t blocks) : ids_(static_cast<std::size_t>(blocks)) {
    for (auto id = blocks; id-- > 0;) {
      ids_.bounded_push(id);
    }
  }

  block_id pop() {
    auto id = static_cast<std::int32_t>(no_block);
    ids_.pop(id);
    return block_id{id};
  }

  void push(block_id block) { ids_.bounded_push(static_cast<std::int32_t>(block)); }

 private:
  Container ids_;
};

struct boost_stack : bare<boost::lockfree::stack<std::int32_t, boost::lockfree::fixed_sized<true>>> {
  static constexpr std::string_view name = "boost_stack";
  using bare::bare;
};

struct boost_queue : bare<boost::lockfree::queue<std::int32_t, boost::lockfree::fixed_sized<true>>> {
  static constexpr std::string_view name = "boost_queue";
  using bare::bare;
};

struct boost_as_free_list : boost_free_list {
  static constexpr std::string_view name = "boost_free_list";
  using boost_free_list::boost_free_list;
};

/// Each thread repeatedly pops some ids and pushes them back. An item is an id.
template <class List, std::size_t Depth>
void pop_and_push(benchmark::State& state) {
  static auto list = std::unique_ptr<List>{};
  if (state.thread_index() == 0) {
    list = std::make_unique<List>(num_listed);
  }
  auto held = std::array<block_id, Depth>{};
  auto score = scoreboard{state, "pop and push " + std::to_string(Depth), List::name};
  for (auto _ : state) {
    for (auto& block : held) {
      block = list->pop();
      benchmark::DoNotOptimize(block);
    }
    for (const auto block : held) {
      list->push(block);
    }
  }
  score.finish(Depth);
}

}  // namespace

// Peers come first, so that the policies' lists are compared with them.
#define PAGEDKV_FOR_ALL_LISTS(depth)                                                 \
  BENCHMARK(pop_and_push<mutex_and_vector, depth>)->Apply(one_to_sixteen_threads);   \
  BENCHMARK(pop_and_push<boost_stack, depth>)->Apply(one_to_sixteen_threads);        \
  BENCHMARK(pop_and_push<boost_queue, depth>)->Apply(one_to_sixteen_threads);        \
  BENCHMARK(pop_and_push<boost_as_free_list, depth>)->Apply(one_to_sixteen_threads); \
  [[maybe_unused]] static const bool lists_##depth##_are_registered = register_over( \
      all_lockings{}, "pop_and_push",                                                \
      []<class Locking>(std::type_identity<Locking>, benchmark::State& state) {      \
        pop_and_push<list_under<Locking>, depth>(state);                             \
      },                                                                             \
      all_threads, ", " #depth)

PAGEDKV_FOR_ALL_LISTS(1);
PAGEDKV_FOR_ALL_LISTS(32);   // the largest number that an allocation takes at once
PAGEDKV_FOR_ALL_LISTS(500);  // more than the magazines of a thread hold
