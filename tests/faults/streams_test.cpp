#include "cache_world.hpp"

#include <pagedkv/events/event_log.hpp>
#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/router/keys.hpp>
#include <pagedkv/router/worker_feed.hpp>
#include <pagedkv/router/worker_index.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

void count_line(void* lines, std::string_view) noexcept { ++*static_cast<std::int64_t*>(lines); }

/// A cache whose events go to queues and a log.
struct told_cache {
  using stream_type = event_tee<event_queues, event_log>;
  using cache_type = kv_cache<float32, failing_allocator<>, failing_backend, stream_type>;
  static constexpr auto num_groups = std::size_t{1};
  static constexpr auto row_size = row_size_of_one_group;

  explicit told_cache(fault_plan& plan)
      : cache(config_of_one_group(), failing_allocator<>{plan.memory}, failing_backend{plan.backend},
              stream_type{queues, event_log{count_line, lines.get()}}) {}

  std::unique_ptr<std::int64_t> lines = std::make_unique<std::int64_t>(0);
  event_queues queues{4, {.capacity = 256, .num_producers = 2}};
  cache_type cache;
};

/// Events, too, are facts that a failed operation leaves as they are.
struct told_world : cache_world<told_cache> {
  using cache_world::cache_world;

  [[nodiscard]] std::vector<std::int64_t> observe() {
    auto facts = cache_world::observe();
    num_events += static_cast<std::int64_t>(queues.drain([](const cache_event&) {}));
    facts.insert(facts.end(), {num_events, *lines});
    return facts;
  }

  std::int64_t num_events = 0;
};

template <class Call>
[[nodiscard]] std::optional<error> error_without_memory(const Call& call) noexcept {
  const auto run = [&]() -> result<bool> {
    call();
    return true;
  };
  return error_of(detail::with_memory(run, error{error_code::out_of_memory, "a stream", 0}));
}

/// A feed of a worker that holds a chain of two blocks.
struct fed_world {
  explicit fed_world(fault_plan&) {
    store(1, std::nullopt, 0);
    store(2, 1, 10);
  }

  void store(std::uint64_t hash, std::optional<std::uint64_t> parent, token first) {
    feed.stored(hash, parent, std::array{first, first + 1, first + 2, first + 3});
  }

  [[nodiscard]] std::vector<std::int64_t> observe() const {
    auto facts = std::vector<std::int64_t>{std::int64_t(feed.num_blocks()), feed.num_orphans(), feed.num_refused()};
    auto keys = std::array<std::uint64_t, 2>{};
    for (const auto first : {0, 10, 20}) {
      keys[0] = feed.keys().first(std::array{first, first + 1, first + 2, first + 3});
      for (const auto next : {10, 20}) {
        keys[1] = feed.keys().next(keys[0], std::array{next, next + 1, next + 2, next + 3});
        auto held = std::array<std::int64_t, 3>{};
        index.num_held(keys, held);
        facts.insert(facts.end(), held.begin(), held.end());
      }
    }
    return facts;
  }
  [[nodiscard]] std::vector<std::string> check_invariants() const {
    const auto first = feed.keys().first(std::array{0, 1, 2, 3});
    const auto next = feed.keys().next(first, std::array{10, 11, 12, 13});
    const auto is_found = index.holds(worker_id{1}, first) && index.holds(worker_id{1}, next);
    return is_found ? std::vector<std::string>{} : std::vector<std::string>{"a block is not found"};
  }

  /// Adds blocks until the next one needs memory.
  void fill_table() {
    auto others = worker_feed<cache_keys>{index, worker_id{2}, cache_keys{7}};
    const auto add = [](auto& to, std::uint64_t hash) { to.stored(hash, std::nullopt, std::array{token(hash)}); };
    for (auto hash = std::uint64_t{100}, num = std::uint64_t{0}; num < 2; ++hash) {
      const auto before = allocation_count();
      add(others, hash);
      num += allocation_count() != before ? 1U : 0U;  // the first block needs it, too
    }
    while (feed.num_blocks() + 1 < others.num_blocks()) {
      add(feed, 100 + feed.num_blocks());
    }
  }

  worker_index index{{.num_blocks = 100, .num_workers = 3}};
  worker_feed<cache_keys> feed{index, worker_id{1}, cache_keys{7}};
};

}  // namespace

TEST_CASE("a failed operation of a cache tells no event", "[faults]") {
  CHECK(inject_faults(operations_of_caches<told_world>()) > 10);
}

TEST_CASE("streams, and a router's index, are made whole or not at all", "[faults]") {
  constexpr auto makings = std::array{
      faulty_operation<fed_world>{"event queues",
                                  [](fed_world&) {
                                    return error_without_memory([] { event_queues{4, {.num_producers = 3}}; });
                                  }},
      faulty_operation<fed_world>{"a worker index", [](fed_world&) {
                                    return error_without_memory(
                                        [] { worker_index{{.num_blocks = 10, .num_workers = 70}}; });
                                  }}};
  CHECK(inject_faults(makings) > 5);
}

TEST_CASE("each change of a router's index survives each fault", "[faults]") {
  using operation = faulty_operation<fed_world>;
  constexpr auto changes = std::array{
      operation{"stored, where the table grows",
                [](fed_world& w) { return error_without_memory([&] { w.store(3, 2, 20); }); },
                [](fed_world& w) { w.fill_table(); }},
      operation{"stored under another hash",
                [](fed_world& w) { return error_without_memory([&] { w.store(3, 1, 10); }); }},
      without_faults(
          operation{"stored again", [](fed_world& w) { return error_without_memory([&] { w.store(2, 1, 10); }); }}),
  };
  CHECK(inject_faults(changes) == 1);  // the second is counted as refused
}
