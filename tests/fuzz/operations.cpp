// Operations on small caches, with and without groups, tiers and locks, chosen by the bytes: none fails but with an
// error, the cache's invariants hold after each, and nothing is in use when all sequences have ended.

#include "operations.hpp"
#include "target.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>
#include <pagedkv/policy/locking/rw_lock.hpp>
#include <pagedkv/policy/locking/sharded_mutex.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pagedkv::fuzz {

namespace {

template <class Cache>
class driver {
 public:
  driver(Cache& cache, input bytes) : cache_(cache), bytes_(bytes) {}

  void run() {
    while (!bytes_.at_end()) {
      const auto number = bytes_.below(21);
      operate(number);
      check_invariants(cache_, std::to_string(number));
    }
    for (const auto step : steps_) {
      require(cache_.retire_step(step).has_value(), "an open step is not retired");
    }
    for (const auto id : ids_) {
      require(cache_.release(id).has_value(), "a sequence is not released");
    }
    cache_.unpin_all();
    check_invariants(cache_, "the end");
    require(cache_.statistics().blocks.in_use == 0, "blocks are in use at the end");
  }

 private:
  sequence_id any() {
    return ids_.empty() ? sequence_id{} : ids_[static_cast<std::size_t>(bytes_.take()) % ids_.size()];
  }
  std::int64_t length(sequence_id id) {
    const auto found = cache_.describe(id);
    return found ? found->num_tokens : 0;
  }

  void operate(int number) {
    switch (number) {
      case 0:
      case 1:
      case 2: return create();
      case 3:
      case 4: return static_cast<void>(cache_.append(any(), token_run{tokens_of(bytes_, 9)}));
      case 5:
      case 6: return commit();
      case 7: {
        const auto id = any();
        if (const auto made = cache_.fork(id)) {
          ids_.push_back(*made);
        }
        return;
      }
      case 8: {
        const auto id = any();
        return static_cast<void>(cache_.truncate(id, bytes_.below(static_cast<int>(length(id)) + 2)));
      }
      case 9:
      case 10: return release();
      case 11: return static_cast<void>(cache_.reserve_slots(any(), bytes_.below(6)));
      case 12: return static_cast<void>(cache_.pin(token_run{tokens_of(bytes_, 12)}));
      case 13: return static_cast<void>(cache_.unpin_all());
      case 14: return static_cast<void>(cache_.invalidate_prefix(token_run{tokens_of(bytes_, 12)}));
      case 15: return step();
      case 16: return batch();
      case 17: return static_cast<void>(cache_.resize(5 + bytes_.below(8)));
      case 18: return drop_before();
      case 19: return evict();
      default: return compact();
    }
  }

  void create() {
    const auto prompt = tokens_of(bytes_, 24);
    auto options = sequence_options{};
    options.salt = salt{static_cast<std::uint64_t>(bytes_.below(2))};
    if (bytes_.below(3) == 0) {
      options.first_chunk = bytes_.below(8);
    }
    const auto made = cache_.create_sequence(token_run{prompt}, options);
    if (made) {
      require(made->num_cached_tokens <= std::max<std::int64_t>(std::ssize(prompt) - 1, 0),
              "all of a prompt is cached");
      ids_.push_back(made->id);
    }
  }
  void commit() {
    const auto id = any();
    const auto all = length(id);
    static_cast<void>(cache_.commit(id, bytes_.below(2) == 0 ? all : bytes_.below(static_cast<int>(all) + 2)));
  }
  void release() {
    const auto id = any();
    if (cache_.release(id)) {
      std::erase(ids_, id);
    }
    require(!cache_.describe(id).has_value(), "a sequence that was released is there");
  }
  void step() {
    if (!steps_.empty() && bytes_.below(2) == 0) {
      require(cache_.retire_step(steps_.back()).has_value(), "an open step is not retired");
      steps_.pop_back();
    } else if (const auto opened = cache_.begin_step(); opened) {
      steps_.push_back(*opened);
    }
  }
  void drop_before() {
    const auto id = any();
    const auto num_tokens = bytes_.below(static_cast<int>(length(id)) + 2);
    if constexpr (Cache::layers_differ) {
      if (cache_.drop_behind_windows(id, num_tokens)) {
        static_cast<void>(cache_.commit(id, num_tokens));
      }
    } else {
      static_cast<void>(cache_.drop_before(id, num_tokens));
    }
  }
  void evict() {
    auto blocks = std::array<block_id, 4>{};
    const auto most = static_cast<std::size_t>(bytes_.below(5));
    const auto step = steps_.empty() ? step_id{} : steps_[static_cast<std::size_t>(bytes_.take()) % steps_.size()];
    const auto num_evicted = cache_.evict(std::span{blocks}.first(most), step);
    require(num_evicted.has_value() == !steps_.empty(), "an eviction does not ask for an open step");
    require(!num_evicted || *num_evicted <= static_cast<std::int64_t>(most), "too many blocks are evicted");
  }
  void compact() {
    const auto moves = cache_.compact();
    require(moves.has_value() == steps_.empty(), "a compaction does not ask for open steps");
  }
  void batch() {
    const auto more = tokens_of(bytes_, 3);
    auto entries = std::vector<batch_entry>{};
    for (const auto id : ids_) {
      entries.push_back({.id = id, .run = token_run{more}, .num_computed_tokens = length(id), .num_ahead = 1});
    }
    auto slots = std::vector<slot>(entries.size() * 8);
    auto failures = std::vector<batch_failure>(entries.size());
    require(cache_.append_batch(entries, {.slots = slots, .failures = failures}).has_value(),
            "a batch is refused whole");
  }

  Cache& cache_;
  reader bytes_;
  std::vector<sequence_id> ids_;
  std::vector<step_id> steps_;
};

template <class Cache, class... Arguments>
void drive(input bytes, const Arguments&... arguments) {
  auto cache = Cache{arguments...};
  driver<Cache>{cache, bytes}.run();
}

cache_config grouped() {
  auto config = small();
  auto full = group_config{};
  full.num_kv_heads = 2;
  full.key_dim = full.value_dim = 8;
  auto window = full;
  window.kind = group_kind::window;
  window.window = 6;
  config.groups = {full, window};
  config.num_blocks = 20;
  return config;
}

}  // namespace

const target operations_of_caches{"operations_of_caches", random_bytes,
                                  [](input bytes) { drive<kv_cache<>>(bytes, small()); }};
const target operations_of_groups{"operations_of_groups", random_bytes,
                                  [](input bytes) { drive<group_cache<>>(bytes, grouped()); }};
const target operations_without_locks{"operations_without_locks", random_bytes,
                                      [](input bytes) { drive<kv_cache<lock_free, clock_sweep>>(bytes, small()); }};
/// The first byte chooses the lock.
const target operations_behind_locks{"operations_behind_locks", random_bytes, [](input bytes) {
                                       const auto rest = bytes.subspan(bytes.empty() ? 0 : 1);
                                       reader{bytes}.below(2) == 0 ? drive<kv_cache<rw_lock>>(rest, small())
                                                                   : drive<kv_cache<sharded_mutex>>(rest, small());
                                     }};
const target operations_of_tiers{"operations_of_tiers", random_bytes, [](input bytes) {
                                   drive<tiered_cache<>>(bytes, small(), tier_config{}, host_tier<>{6, {}});
                                 }};
const target operations_of_groups_in_tiers{
    "operations_of_groups_in_tiers", random_bytes, [](input bytes) {
      drive<tiered_cache<layer_groups>>(bytes, grouped(), tier_config{}, host_tier<>{12, {}});
    }};

}  // namespace pagedkv::fuzz
