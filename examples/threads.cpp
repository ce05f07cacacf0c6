// Four threads serve requests on one cache, and one thread asks how far they are. No thread waits for another: an
// operation on a sequence that another thread is in returns `sequence_busy`. See docs/concurrency.md.

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <numeric>
#include <thread>
#include <vector>

using namespace pagedkv;

namespace {

using cache_type = kv_cache<lock_free, clock_sweep>;

constexpr auto num_threads = 4;
constexpr auto num_requests = 200;  // of one thread
constexpr auto config = cache_config{.block_size = 4, .num_blocks = 24, .head_dim = 1, .max_sequences = 16};

/// Calls an operation until no other thread is in its sequence.
template <class Operation>
auto when_free(Operation&& operation) {
  auto outcome = operation();
  while (!outcome && outcome.error().code == error_code::sequence_busy) {
    std::this_thread::yield();
    outcome = operation();
  }
  return outcome;
}

/// One request: a prompt that starts as all others do, and an answer of eight tokens.
bool serve(cache_type& cache, std::atomic<sequence_id>& shown, token own) {
  auto prompt = std::vector<token>(10);
  std::iota(prompt.begin(), prompt.end(), token{0});
  prompt.back() = own;
  auto made = cache.create_sequence(prompt);
  while (!made && made.error().code == error_code::capacity_exhausted) {
    std::this_thread::yield();  // until another thread releases blocks
    made = cache.create_sequence(prompt);
  }
  const auto id = made.value().id;
  shown = id;
  when_free([&] { return cache.commit(id, std::ssize(prompt)); }).value();
  auto answered = true;
  for (auto next = token{100}; next < 108 && answered; ++next) {
    const auto appended = when_free([&] { return cache.append(id, next); });
    answered = appended.has_value();  // otherwise there is no block now: this request gives up
  }
  when_free([&] { return cache.release(id); }).value();
  return answered;
}

/// Looks at sequences that other threads append to and release.
std::array<std::int64_t, 3> watch(const cache_type& cache,
                                  const std::array<std::atomic<sequence_id>, num_threads>& shown,
                                  const std::atomic<int>& running) {
  auto seen = std::array<std::int64_t, 3>{};
  while (running != 0) {
    for (const auto& id : shown) {
      const auto info = cache.describe(id);
      if (info) {
        ++seen[0];
      } else {
        ++seen[info.error().code == error_code::sequence_busy ? 1 : 2];  // or it has ended: unknown_sequence
      }
    }
  }
  return seen;
}

}  // namespace

int main() {
  auto cache = cache_type{config};
  auto shown = std::array<std::atomic<sequence_id>, num_threads>{};
  auto running = std::atomic{num_threads};
  auto num_answered = std::atomic{0};
  auto threads = std::vector<std::thread>{};
  for (auto t = 0; t < num_threads; ++t) {
    threads.emplace_back([&, t] {
      for (auto i = 0; i < num_requests; ++i) {
        num_answered += serve(cache, shown[static_cast<std::size_t>(t)], token{1000 * t + i}) ? 1 : 0;
      }
      --running;
    });
  }
  const auto [described, busy, ended] = watch(cache, shown, running);
  for (auto& thread : threads) {
    thread.join();
  }
  std::printf("%d of %d requests were answered\n", num_answered.load(), num_threads * num_requests);
  std::printf("sequences were described %lld times, busy %lld times, and had ended %lld times\n",
              static_cast<long long>(described), static_cast<long long>(busy), static_cast<long long>(ended));
  return cache.statistics().blocks.in_use == 0 && cache.check_invariants().empty() ? 0 : 1;
}
