// Tiers behind a device's memory: blocks leave for pinned host memory and files and come back, sequences go to another process, and
// every number is that of its prompt. On the host executor the same in small.

#include "../tier/temporary_folder.hpp"
#include "reference.hpp"
#include "target.hpp"

#include <pagedkv/device/allocators.hpp>
#include <pagedkv/device/device.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/tier/hand_over.hpp>
#include <pagedkv/tier/session_file.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <spawn.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern char** environ;

namespace tiers_test {

using namespace pagedkv;
using namespace pagedkv::test;

using device = hip_target<0>;
using by_layer = tiered_cache<float32, hip_backend, host_tier<hip::pinned_allocator>>;
using by_block = tiered_cache<float32, hip_backend, nhd_block_major, host_tier<hip::pinned_allocator>>;

#if defined(__HIPCC__) || defined(__CUDACC__)
constexpr auto on_device = true;
#else
constexpr auto on_device = false;
#endif

/// How much happens.
constexpr auto num_prompts = on_device ? 96 : 8;
constexpr auto num_requests = on_device ? 400 : 60;
constexpr auto blocks_of_prompt = on_device ? 40 : 4;
constexpr auto num_blocks = on_device ? 512 : 14;  // of the device: fewer than the prompts have
constexpr auto num_alive = on_device ? 8 : 2;
constexpr auto num_records = std::int32_t{num_prompts * blocks_of_prompt * 2 / 3};  // fewer than that, too

constexpr auto row_numbers = on_device ? 2 * 64 : 2 * 8;

[[nodiscard]] cache_config config_of_device() { return make_config(16, num_blocks, 2, 2, row_numbers / 2); }

/// The tokens of a prompt. All of them start with the same block.
[[nodiscard]] std::vector<token> prompt_of(int prompt, std::size_t count) {
  auto tokens = std::vector<token>(count);
  std::iota(tokens.begin(), tokens.end(), token{1});
  for (auto i = std::size_t{16}; i < count; ++i) {
    tokens[i] += static_cast<token>(100'000 * (prompt + 1));
  }
  return tokens;
}

/// The rows of some tokens in one layer: whole numbers that follow from token, layer and place.
[[nodiscard]] std::vector<float> pattern(std::span<const token> tokens, std::int32_t layer, bool of_values) {
  auto numbers = std::vector<float>{};
  numbers.reserve(tokens.size() * row_numbers);
  for (const auto each : tokens) {
    const auto word =
        (static_cast<std::uint32_t>(each) * 4U + static_cast<std::uint32_t>(layer) * 2U + (of_values ? 1U : 0U)) *
        2654435761U;
    for (auto i = 0U; i < row_numbers; ++i) {
      numbers.push_back(static_cast<float>((word + i * 40503U) >> 9));
    }
  }
  return numbers;
}

/// Reads and writes the rows of sequences on one stream.
template <class Cache>
class rows_of_sequences {
 public:
  rows_of_sequences(const device& target, Cache& cache) : target_(target), cache_(cache) {}

  void write(sequence_id id, std::span<const token> tokens, std::size_t first) {
    const auto own = tokens.subspan(first);
    const auto slots = target_array<slot, device>(target_, mapping(id, first, own.size()));
    for (auto layer = 0; layer < cache_.config().num_layers; ++layer) {
      const auto keys = target_array<float, device>(target_, pattern(own, layer, false));
      const auto values = target_array<float, device>(target_, pattern(own, layer, true));
      REQUIRE(cache_.write(layer, {slots.data(), slots.size()}, view<const float>(keys.data(), own.size()),
                           view<const float>(values.data(), own.size()), target_.stream()));
      REQUIRE(runtime::synchronize_stream(target_.stream()) == runtime::success);
    }
  }

  [[nodiscard]] bool holds(sequence_id id, std::span<const token> tokens) {
    const auto blank = std::vector<float>(tokens.size() * row_numbers, -1.0F);
    const auto slots = target_array<slot, device>(target_, mapping(id, 0, tokens.size()));
    for (auto layer = 0; layer < cache_.config().num_layers; ++layer) {
      const auto keys = target_array<float, device>(target_, blank);
      const auto values = target_array<float, device>(target_, blank);
      REQUIRE(cache_.read(layer, {slots.data(), slots.size()}, view<float>(keys.data(), tokens.size()),
                          view<float>(values.data(), tokens.size()), target_.stream()));
      REQUIRE(runtime::synchronize_stream(target_.stream()) == runtime::success);
      if (keys.values() != pattern(tokens, layer, false) || values.values() != pattern(tokens, layer, true)) {
        return false;
      }
    }
    return true;
  }

 private:
  template <class Number>
  [[nodiscard]] static token_rows<Number> view(Number* data, std::size_t count) {
    return {data, row_numbers, row_numbers / 2, static_cast<std::int64_t>(count), 2, row_numbers / 2};
  }

  [[nodiscard]] std::vector<slot> mapping(sequence_id id, std::size_t first, std::size_t count) const {
    auto slots = std::vector<slot>(count);
    REQUIRE(cache_.slot_mapping(id, static_cast<std::int64_t>(first), slots));
    return slots;
  }

  const device& target_;
  Cache& cache_;
};

/// Creates the sequence of a prompt, compares what was cached, and writes and commits the rest. Returns the number of cached
/// tokens.
template <class Cache>
std::int64_t serve(const device& target, Cache& cache, std::span<const token> tokens, sequence_id& id) {
  auto rows = rows_of_sequences(target, cache);
  const auto made = cache.create_sequence(tokens, {}, target.stream());
  REQUIRE(made);
  id = made->id;
  const auto num_cached = static_cast<std::size_t>(made->num_cached_tokens);
  REQUIRE(rows.holds(id, tokens.first(num_cached)));
  rows.write(id, tokens, num_cached);
  REQUIRE(cache.commit(id, std::ssize(tokens), target.stream()));
  return made->num_cached_tokens;
}

template <class Cache>
void serve_many(const device& target, const tier_config& tiers, std::mt19937& random) {
  auto cache = Cache{config_of_device(), tiers, {num_records}};
  struct living {
    sequence_id id;
    std::vector<token> tokens;
  };
  auto alive = std::deque<living>{};
  auto num_cached = std::int64_t{0};
  const auto end_oldest = [&] {
    REQUIRE(rows_of_sequences(target, cache).holds(alive.front().id, alive.front().tokens));
    REQUIRE(cache.release(alive.front().id));
    alive.pop_front();
  };
  for (auto request = 0; request < num_requests; ++request) {
    if (std::ssize(alive) == num_alive) {
      end_oldest();
    }
    const auto most = static_cast<std::uint32_t>(16 * blocks_of_prompt);
    auto tokens = prompt_of(static_cast<int>(random() % num_prompts), 17 + random() % (most - 17));
    auto id = sequence_id{};
    num_cached += serve(target, cache, tokens, id);
    alive.push_back({id, std::move(tokens)});
  }
  while (!alive.empty()) {
    end_oldest();
  }
  REQUIRE(cache.wait_idle());
  CHECK(num_cached > 0);
  CHECK(cache.tier(0).written > 0);
  CHECK(cache.check_invariants().empty());
}

TEMPLATE_TEST_CASE("Blocks leave a device and come back unchanged", "[tiers][random]", by_layer, by_block) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937(seed);
  const auto target = require_target<device>();
  auto tiers = tier_config{};
  serve_many<TestType>(target, tiers, random);
  tiers.exclusive = true;
  serve_many<TestType>(target, tiers, random);
  tiers.exclusive = false;
  tiers.write = write_policy::through;
  serve_many<TestType>(target, tiers, random);
}

TEST_CASE("Sessions of blocks that were in host memory are restored on a device", "[tiers]") {
  const auto target = require_target<device>();
  const auto folder = pagedkv::testing::temporary_folder{};
  const auto options = session_options<hip::pinned_allocator>{};
  const auto size = std::size_t{16 * blocks_of_prompt - 5};
  constexpr auto num_sessions = num_blocks / blocks_of_prompt + 2;  // more than the device has room for
  const auto path_of = [&](int prompt) { return folder.file("session" + std::to_string(prompt)); };
  {
    auto cache = by_layer{config_of_device(), {}, {num_records}};
    for (const auto saves : {false, true}) {
      for (auto prompt = 0; prompt < num_sessions; ++prompt) {
        auto id = sequence_id{};
        const auto num_cached = serve(target, cache, prompt_of(prompt, size), id);
        CHECK(num_cached >= (saves ? 16 * (blocks_of_prompt - 1) : 0));
        if (saves) {
          REQUIRE(save_sequence(cache, id, path_of(prompt), options, target.stream()));
        }
        REQUIRE(cache.release(id));
      }
    }
  }
  auto cache = by_layer{config_of_device(), {}, {num_records}};
  for (auto prompt = 0; prompt < num_sessions; ++prompt) {
    const auto restored = restore_sequence(cache, path_of(prompt), options, target.stream());
    REQUIRE(restored);
    CHECK(rows_of_sequences(target, cache).holds(restored->id, prompt_of(prompt, size)));
    REQUIRE(cache.release(restored->id));
  }
  CHECK(cache.check_invariants().empty());
}

/// The memory of a cache, as another process opens it.
struct offered_memory {
  hip::memory_handle handle;
  block_storage_view view;
};

constexpr auto offer_variable = "PAGEDKV_TEST_OFFER";
constexpr auto offered_prompt = 7;
constexpr auto offered_tokens = std::size_t{16 * blocks_of_prompt - 3};

void receive(const device& target, const std::string& path) {
  auto file = std::ifstream(path, std::ios::binary);
  auto text = std::string(std::istreambuf_iterator<char>(file), {});
  REQUIRE(text.size() > sizeof(offered_memory));
  auto offered = offered_memory{};
  std::memcpy(&offered, text.data(), sizeof(offered));
  const auto offer = decode_offer(std::as_bytes(std::span(text).subspan(sizeof(offered))));
  REQUIRE(offer);
  const auto memory = hip::shared_memory::open(offered.handle);
  REQUIRE(memory);
  offered.view.base = memory->data();
  auto cache = by_layer{config_of_device(), {}, {num_records}};
  const auto taken = accept_sequence(cache, *offer, offered.view, {}, target.stream());
  REQUIRE(taken);
  CHECK(rows_of_sequences(target, cache).holds(taken->id, prompt_of(offered_prompt, offered_tokens)));
  CHECK(cache.check_invariants().empty());
}

TEST_CASE("another process receives a sequence", "[.]") {
  const auto* const path = std::getenv(offer_variable);
  if (path == nullptr) {
    SKIP("only for the test that starts this process");
  }
  receive(require_target<device>(), path);
}

/// Runs the test above in another process; its exit status.
[[nodiscard]] int receive_elsewhere(const std::string& path) {
  REQUIRE(setenv(offer_variable, path.c_str(), 1) == 0);
  auto program = std::string("/proc/self/exe");
  auto test = std::string("another process receives a sequence");
  char* arguments[] = {program.data(), test.data(), nullptr};
  auto child = pid_t{};
  REQUIRE(posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environ) == 0);
  auto status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(unsetenv(offer_variable) == 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_CASE("A sequence goes on in another process by a handle of its memory", "[tiers]") {
  const auto target = require_target<device>();
  const auto folder = pagedkv::testing::temporary_folder{};
  auto cache = by_layer{config_of_device(), {}, {num_records}};
  auto id = sequence_id{};
  serve(target, cache, prompt_of(offered_prompt, offered_tokens), id);
  const auto view = cache.blocks();
  const auto handle = hip::share_memory(view.base);
  REQUIRE(handle);
  const auto offered = offered_memory{*handle, view};
  const auto offer = encode_offer(offer_sequence(cache, id).value()).value();
  const auto path = folder.file("offer");
  {
    auto file = std::ofstream(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&offered), sizeof(offered));
    file.write(reinterpret_cast<const char*>(offer.data()), std::ssize(offer));
  }
  if (on_device) {
    CHECK(receive_elsewhere(path) == 0);
  } else {  // handles of the executor are those of one process
    receive(target, path);
  }
  CHECK(rows_of_sequences(target, cache).holds(id, prompt_of(offered_prompt, offered_tokens)));
}

}  // namespace tiers_test
