// Tiers behind the memory of one device and of two: blocks leave for pinned host memory and files and come back,
// sequences go to another device and another process, and every number is that of its prompt. On the host executor the
// same in small.

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
#include <utility>
#include <vector>

extern char** environ;

namespace tiers_test {

using namespace pagedkv;
using namespace pagedkv::test;

using device = hip_target<0>;
using other_device = hip_target<1>;
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

/// Reads and writes the rows of sequences on one stream of the cache's device.
template <class Target, class Cache>
class rows_of_sequences {
 public:
  rows_of_sequences(const Target& target, Cache& cache) : target_(target), cache_(cache) {}

  void write(sequence_id id, std::span<const token> tokens, std::size_t first) {
    const auto own = tokens.subspan(first);
    const auto slots = target_array<slot, Target>(target_, mapping(id, first, own.size()));
    for (auto layer = 0; layer < cache_.config().num_layers; ++layer) {
      const auto keys = target_array<float, Target>(target_, pattern(own, layer, false));
      const auto values = target_array<float, Target>(target_, pattern(own, layer, true));
      REQUIRE(cache_.write(layer, {slots.data(), slots.size()}, view<const float>(keys.data(), own.size()),
                           view<const float>(values.data(), own.size()), target_.stream()));
      REQUIRE(runtime::synchronize_stream(target_.stream()) == runtime::success);
    }
  }

  [[nodiscard]] bool holds(sequence_id id, std::span<const token> tokens) {
    const auto blank = std::vector<float>(tokens.size() * row_numbers, -1.0F);
    const auto slots = target_array<slot, Target>(target_, mapping(id, 0, tokens.size()));
    for (auto layer = 0; layer < cache_.config().num_layers; ++layer) {
      const auto keys = target_array<float, Target>(target_, blank);
      const auto values = target_array<float, Target>(target_, blank);
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

  const Target& target_;
  Cache& cache_;
};

/// Creates the sequence of a prompt, compares what was cached, and writes and commits the rest. Returns the number of
/// cached tokens.
template <class Target, class Cache>
std::int64_t serve(const Target& target, Cache& cache, std::span<const token> tokens, sequence_id& id) {
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

/// The second device, and access from each of both to the other's memory; or a visible skip.
[[nodiscard]] other_device require_other_device() {
  for (const auto& [reader, peer] : {std::pair{1, 0}, std::pair{0, 1}}) {
    if (const auto connected = hip::connect_peer(reader, peer); !connected) {
      SKIP(connected.error().message());
    }
  }
  return {};
}

template <class Cache>
[[nodiscard]] Cache make_on_other_device(const tier_config& tiers) {
  return Cache{config_of_device(), tiers, {num_records}, {}, hip::device_allocator{1}, hip_backend{1}};
}

/// Serves a prompt in one cache, hands its sequence over to the other one, compares it there and releases both. Returns
/// the number of tokens that the first cache had.
template <class FromTarget, class From, class ToTarget, class To>
std::int64_t move_over(const FromTarget& from_target, From& from, const ToTarget& to_target, To& to,
                       std::span<const token> tokens) {
  auto id = sequence_id{};
  const auto num_cached = serve(from_target, from, tokens, id);
  REQUIRE(runtime::synchronize_stream(from_target.stream()) == runtime::success);
  const auto taken = hand_over(from, id, to, {}, to_target.stream());
  REQUIRE(taken);
  REQUIRE(rows_of_sequences(to_target, to).holds(taken->id, tokens));
  REQUIRE(from.release(id));
  REQUIRE(to.release(taken->id));
  return num_cached;
}

TEMPLATE_TEST_CASE("Sequences go from device to device and come back from tiers of both", "[tiers][peer][random]",
                   by_layer, by_block) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937(seed);
  const auto target = require_target<device>();
  const auto other = require_other_device();
  const auto folder = pagedkv::testing::temporary_folder{};
  auto first = TestType{config_of_device(), {}, {num_records}};
  auto second = make_on_other_device<TestType>({});
  auto num_cached = std::int64_t{0};
  for (auto request = 0; request < num_requests / 2; ++request) {
    const auto most = static_cast<std::uint32_t>(16 * blocks_of_prompt);
    const auto tokens = prompt_of(static_cast<int>(random() % num_prompts), 17 + random() % (most - 17));
    num_cached += request % 2 == 0 ? move_over(target, first, other, second, tokens)
                                   : move_over(other, second, target, first, tokens);
  }
  CHECK(num_cached > 0);

  const auto session = folder.file("session");
  const auto options = session_options<hip::pinned_allocator>{};
  const auto tokens = prompt_of(num_prompts, 16 * blocks_of_prompt - 5);  // of no request
  auto id = sequence_id{};
  serve(other, second, tokens, id);
  REQUIRE(save_sequence(second, id, session, options, other.stream()));
  const auto restored = restore_sequence(first, session, options, target.stream());
  REQUIRE(restored);
  CHECK(rows_of_sequences(target, first).holds(restored->id, tokens));
  CHECK(rows_of_sequences(other, second).holds(id, tokens));
  REQUIRE(second.release(id));
  REQUIRE(first.release(restored->id));

  REQUIRE(first.wait_idle());
  REQUIRE(second.wait_idle());
  CHECK(first.tier(0).written > 0);
  CHECK(second.tier(0).written > 0);
  CHECK(first.check_invariants().empty());
  CHECK(second.check_invariants().empty());
}

/// The memory of a cache, as another process opens it.
struct offered_memory {
  hip::memory_handle handle;
  block_storage_view view;
};

constexpr auto offer_variable = "PAGEDKV_TEST_OFFER";
constexpr auto offered_prompt = 7;
constexpr auto offered_tokens = std::size_t{16 * blocks_of_prompt - 3};

/// Where the process that receives a sequence leaves it.
[[nodiscard]] std::string session_behind(const std::string& offer) { return offer + ".session"; }

/// Accepts the sequence that a file offers into a cache of a device, compares it, and saves it.
template <class Target>
void receive(const Target& target, int device_number, const std::string& path) {
  auto file = std::ifstream(path, std::ios::binary);
  auto text = std::string(std::istreambuf_iterator<char>(file), {});
  REQUIRE(text.size() > sizeof(offered_memory));
  auto offered = offered_memory{};
  std::memcpy(&offered, text.data(), sizeof(offered));
  const auto offer = decode_offer(std::as_bytes(std::span(text).subspan(sizeof(offered))));
  REQUIRE(offer);
  const auto memory = hip::shared_memory::open(offered.handle, device_number);
  REQUIRE(memory);
  offered.view.base = memory->data();
  auto cache = by_layer{config_of_device(),        {}, {num_records}, {}, hip::device_allocator{device_number},
                        hip_backend{device_number}};
  const auto taken = accept_sequence(cache, *offer, offered.view, {}, target.stream());
  REQUIRE(taken);
  CHECK(rows_of_sequences(target, cache).holds(taken->id, prompt_of(offered_prompt, offered_tokens)));
  REQUIRE(
      save_sequence(cache, taken->id, session_behind(path), session_options<hip::pinned_allocator>{}, target.stream()));
  CHECK(cache.check_invariants().empty());
}

void receive_on(int device_number, const std::string& path) {
  if (device_number == 0) {
    receive(require_target<device>(), 0, path);
  } else {
    receive(require_target<other_device>(), 1, path);
  }
}

TEST_CASE("another process receives a sequence", "[.]") {
  const auto* const offered = std::getenv(offer_variable);
  if (offered == nullptr) {
    SKIP("only for the test that starts this process");
  }
  const auto text = std::string(offered);  // the device's digit, then the path
  receive_on(text.front() - '0', text.substr(1));
}

/// Runs the test above in another process; its exit status.
[[nodiscard]] int receive_elsewhere(int device_number, const std::string& path) {
  REQUIRE(setenv(offer_variable, (std::to_string(device_number) + path).c_str(), 1) == 0);
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

/// A sequence of device 0 goes to another process, which reads it on a device, and comes back from there as a session.
void send_to_process_on(int device_number) {
  const auto target = require_target<device>();
  const auto folder = pagedkv::testing::temporary_folder{};
  const auto tokens = prompt_of(offered_prompt, offered_tokens);
  auto cache = by_layer{config_of_device(), {}, {num_records}};
  auto id = sequence_id{};
  serve(target, cache, tokens, id);
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
    CHECK(receive_elsewhere(device_number, path) == 0);
  } else {  // handles of the executor are those of one process
    receive_on(device_number, path);
  }
  CHECK(rows_of_sequences(target, cache).holds(id, tokens));
  auto later = by_layer{config_of_device(), {}, {num_records}};
  const auto restored =
      restore_sequence(later, session_behind(path), session_options<hip::pinned_allocator>{}, target.stream());
  REQUIRE(restored);
  CHECK(rows_of_sequences(target, later).holds(restored->id, tokens));
}

TEST_CASE("A sequence goes on in another process by a handle of its memory", "[tiers]") { send_to_process_on(0); }

TEST_CASE("A sequence goes on in another process on another device", "[tiers][peer]") {
  const auto other = require_other_device();
  send_to_process_on(1);
}

}  // namespace tiers_test
