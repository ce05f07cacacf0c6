#include "object.hpp"

#include <array>
#include <random>
#include <span>
#include <vector>

namespace {

using namespace pagedkv;
using testing::shared_cache;

shared_cache* make_cache() {
  auto config = cache_config{};
  config.block_size = 4;
  config.num_blocks = 256;
  config.max_sequences = 64;
  config.hash_seed = 1;
  return new shared_cache{config, event_queues{config.block_size}};
}

int use_cache(shared_cache& cache, std::uint64_t seed, int num_rounds) {
  auto random = std::mt19937_64{seed};
  auto num_wrong = 0;
  const auto expected = [](const auto& done) { return done || done.error().code == error_code::capacity_exhausted; };
  auto own = std::vector<sequence_id>{};
  for (auto i = 0; i < num_rounds; ++i) {
    auto prompt = std::array<token, 24>{};
    for (auto& t : prompt) {
      t = static_cast<token>(random() % 2);
    }
    const auto num_tokens = 1 + random() % prompt.size();
    if (const auto made = cache.create_sequence(std::span{prompt}.first(num_tokens))) {
      own.push_back(made->id);
      num_wrong += !cache.commit(made->id, static_cast<std::int64_t>(num_tokens)).has_value();
      num_wrong += !expected(cache.append(made->id, token{1}));
    }
    while (own.size() > random() % 8) {
      num_wrong += !cache.release(own.back()).has_value();
      own.pop_back();
    }
  }
  for (const auto id : own) {
    num_wrong += !cache.release(id).has_value();
  }
  return num_wrong;
}

bool is_sound(shared_cache& cache) {
  return cache.check_invariants().empty() && cache.statistics().blocks.in_use == 0;
}

}  // namespace

extern "C" [[gnu::visibility("default")]] const testing::object_entry entry;

const testing::object_entry entry{
    make_cache,
    [](shared_cache* cache) { delete cache; },
    use_cache,
    is_sound,
    [] { return this_thread_index{}; },
    [](const this_thread_index& index) { return index.current(); },
};
