#include "routing.hpp"

#include "../replay/contents.hpp"

#include <pagedkv/backend/copy_list.hpp>
#include <pagedkv/events/event_queues.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/router/keys.hpp>
#include <pagedkv/router/llm_d_keys.hpp>
#include <pagedkv/router/worker_feed.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv::router {

namespace {

/// Every hash of every worker begins with it, so that routers can compute them.
constexpr auto hash_seed = std::uint64_t{1};

/// Tokens do not matter to the hit ratio; the workload's blocks do. So a block has the fewest tokens that tell it
/// apart.
constexpr auto block_size = std::size_t{4};

cache_config config_of(const setting& chosen) {
  auto config = cache_config{};
  config.block_size = static_cast<std::int32_t>(block_size);
  config.num_blocks = chosen.num_blocks;
  config.hash_seed = hash_seed;
  return config;
}

/// The tokens of a request's full blocks, and one more, which is always computed.
std::vector<token> prompt_of(const support::trace_request& request) {
  auto tokens = std::vector<token>(request.blocks.size() * block_size + 1);
  for (std::size_t i = 0; i < request.blocks.size(); ++i) {
    replay::fill_tokens(request.blocks[i], std::span(tokens).subspan(i * block_size, block_size));
  }
  return tokens;
}

/// An engine, as far as its prefix cache goes.
struct worker {
  event_queues queues;
  kv_cache<copy_list, event_queues> cache;
  std::int64_t num_computed = 0;  // blocks

  explicit worker(const setting& chosen)
      : queues(static_cast<std::int32_t>(block_size), {.capacity = 4 * chosen.num_blocks, .num_producers = 1}),
        cache(config_of(chosen), queues) {}

  /// Blocks of the prompt that were cached; none when it does not fit.
  std::optional<std::int64_t> serve(std::span<const token> prompt) {
    const auto made = cache.create_sequence(prompt);
    if (!made) {
      return std::nullopt;
    }
    cache.commit(made->id, made->num_tokens).value();
    cache.release(made->id).value();
    const auto num_hits = made->num_cached_tokens / static_cast<std::int64_t>(block_size);
    num_computed += static_cast<std::int64_t>(prompt.size() / block_size) - num_hits;
    return num_hits;
  }
};

/// Sends every request to the worker that `choose(request number, prompt)` names, and tells `served(worker)`
/// afterwards.
template <class Choose, class Served>
outcome route(const replay::workload& work, std::vector<std::unique_ptr<worker>>& workers, Choose choose,
              Served served) {
  auto sum = outcome{};
  for (std::size_t i = 0; i < work.requests.size(); ++i) {
    const auto prompt = prompt_of(work.requests[i]);
    const auto chosen = choose(i, prompt);
    const auto num_hits = workers[chosen]->serve(prompt);
    sum.num_references += std::ssize(work.requests[i].blocks);
    sum.num_hits += num_hits.value_or(0);
    sum.num_refused += !num_hits;
    served(chosen);
  }
  auto total = std::int64_t{0};
  auto most = std::int64_t{0};
  for (const auto& each : workers) {
    total += each->num_computed;
    most = std::max(most, each->num_computed);
  }
  sum.imbalance =
      total == 0 ? 1 : static_cast<double>(most) * static_cast<double>(workers.size()) / static_cast<double>(total);
  return sum;
}

std::vector<std::unique_ptr<worker>> make_workers(const setting& chosen) {
  auto workers = std::vector<std::unique_ptr<worker>>{};
  for (auto i = 0; i < chosen.num_workers; ++i) {
    workers.push_back(std::make_unique<worker>(chosen));
  }
  return workers;
}

template <class Keys>
outcome route_with(const replay::workload& work, const setting& chosen, const Keys& scheme) {
  auto workers = make_workers(chosen);
  auto index = worker_index{{.num_blocks = std::int64_t{chosen.num_blocks} * chosen.num_workers,
                             .num_workers = chosen.num_workers}};
  auto feeds = std::vector<std::unique_ptr<worker_feed<Keys>>>{};
  for (auto i = 0; i < chosen.num_workers; ++i) {
    feeds.push_back(std::make_unique<worker_feed<Keys>>(index, worker_id{i}, scheme));
  }
  auto keys = std::vector<std::uint64_t>(work.longest_prompt);
  auto held = std::vector<std::int64_t>(workers.size());
  const auto choose = [&](std::size_t, std::span<const token> prompt) {
    const auto num_keys = prompt_keys(scheme, prompt, block_size, keys);
    index.num_held(std::span(keys).first(num_keys), held);
    const auto cost = [&](std::size_t i) {
      return static_cast<std::int64_t>(num_keys) - held[i] + workers[i]->num_computed - workers[0]->num_computed;
    };
    // Blocks to compute, those of earlier requests included: the queue that a busy worker has.
    auto best = std::size_t{0};
    for (std::size_t i = 1; i < workers.size(); ++i) {
      best = cost(i) < cost(best) ? i : best;
    }
    return best;
  };
  const auto served = [&](std::size_t i) {
    workers[i]->queues.drain([&](const cache_event& event) { feeds[i]->apply(event); });
  };
  return route(work, workers, choose, served);
}

}  // namespace

outcome route_in_turn(const replay::workload& work, const setting& chosen) {
  auto workers = make_workers(chosen);
  return route(
      work, workers, [&](std::size_t i, const auto&) { return i % workers.size(); },
      [&](std::size_t i) { workers[i]->queues.drain([](const cache_event&) {}); });
}

outcome route_by_index(const replay::workload& work, const setting& chosen) {
  if (chosen.keys == "dynamo") {
    return route_with(work, chosen, dynamo_keys{});
  }
  if (chosen.keys == "llm-d") {
    return route_with(work, chosen, llm_d_keys{"model"});
  }
  return route_with(work, chosen, cache_keys{hash_seed});
}

}  // namespace pagedkv::router
