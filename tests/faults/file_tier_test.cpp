#include "../tier/temporary_folder.hpp"
#include "../tier/tiered_driver.hpp"
#include "files_in_folder.hpp"
#include "injection.hpp"

#include <pagedkv/tier/basic_file_tier.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

/// Executes a request when it is asked for its completion, so that the n-th file operation is the same in each run.
class files_in_turn {
 public:
  static result<std::unique_ptr<files_in_turn>> create(std::int32_t depth) noexcept {
    const auto make = [&]() -> result<std::unique_ptr<files_in_turn>> {
      auto engine = std::make_unique<files_in_turn>();
      engine->waiting_.reserve(static_cast<std::size_t>(depth));
      return engine;
    };
    return detail::with_memory(make, error{error_code::out_of_memory, "requests", depth});
  }
  static std::string_view name() noexcept { return "in turn"; }
  void start(const file_request& request) noexcept { waiting_.push_back(request); }
  void cancel(std::size_t) noexcept {}
  std::optional<file_completion> next(file_deadline) noexcept {
    if (waiting_.empty()) {
      return std::nullopt;
    }
    const auto [slot, descriptor, offset, bytes, is_write] = waiting_.back();
    waiting_.pop_back();
    const auto size = is_write ? ::pwrite(descriptor, bytes.data(), bytes.size(), offset)
                               : ::pread(descriptor, bytes.data(), bytes.size(), offset);
    return file_completion{slot, size < 0 ? -errno : size};
  }

 private:
  std::vector<file_request> waiting_;
};

using tier_type = basic_file_tier<files_in_turn>;
using filed_cache = tiered_cache<float32, tier_type, failing_allocator<>, failing_backend>;

constexpr auto num_prompts = 7;
constexpr auto prompt_size = std::size_t{13};

[[nodiscard]] cache_config device() {
  auto config = small_device(8);
  config.hash_seed = 1;
  return config;
}

[[nodiscard]] result<tier_type> open_tier(const std::vector<std::string>& paths, const record_format& format) {
  return tier_type::create(paths, 1 << 20, format, {.queue_depth = 2});
}

/// A prompt and the K/V of its tokens.
struct known_prompt {
  explicit known_prompt(int number) : tokens(numbered(prompt_size, number / 2 * 1'000)) {
    std::ranges::transform(std::span{tokens}.subspan(8), tokens.begin() + 8,
                           [&](token each) { return each + 100 * (number % 2); });  // two prompts share eight tokens
    const auto hashes = rows_of(tokens, {});
    for (std::size_t layer = 0; layer < 2; ++layer) {
      for (std::size_t i = 0; i < prompt_size; ++i) {
        const auto [key, value] = row_at(hashes[i], static_cast<std::int32_t>(layer));
        std::ranges::copy(key, keys[layer].begin() + static_cast<std::ptrdiff_t>(i * row_dim));
        std::ranges::copy(value, values[layer].begin() + static_cast<std::ptrdiff_t>(i * row_dim));
      }
    }
  }

  using numbers = std::array<float, prompt_size * row_dim>;

  std::vector<token> tokens;
  std::array<numbers, 2> keys{};
  std::array<numbers, 2> values{};
};

/// A cache with a small host tier and a file, and prompts that are served through it. Operations that fail are
/// repeated.
struct served_files {
  served_files(fault_plan& plan, const testing::temporary_folder& folder)
      : cache(device(), config(), host_tier<>{6, {}},
              std::tuple{open_tier({folder.file("blocks")}, filed_cache::format_of(device(), "")).value()},
              failing_allocator<>{plan.memory}, failing_backend{plan.backend}) {}

  [[nodiscard]] static tier_config config() {
    auto made = tier_config{};
    made.threads = false;
    made.write = write_policy::through;
    return made;
  }

  /// Takes no memory of its own.
  void serve(const known_prompt& prompt) noexcept {
    const auto made = persistently([&] { return cache.create_sequence(prompt.tokens); });
    if (!made) {
      return;
    }
    auto num_cached = made->num_cached_tokens;
    if (made->num_loading_tokens != 0) {
      cache.wait(made->id);
      const auto settled = persistently([&] { return cache.settle(made->id); });
      num_cached = settled ? *settled : 0;
    }
    num_hits += num_cached;
    compare(made->id, prompt, static_cast<std::size_t>(num_cached));
    write(made->id, prompt, static_cast<std::size_t>(num_cached));
    insist([&] { return cache.commit(made->id, std::ssize(prompt.tokens)); });
    insist([&] { return cache.release(made->id); });
    cache.run_transfers();
  }

  /// All prompts twice, the second time from the tiers, and some that become invalid.
  void serve_all() noexcept {
    for (const auto& prompt : prompts) {
      serve(prompt);
    }
    for (const auto& prompt : prompts) {
      serve(prompt);
    }
    cache.invalidate_prefix(prompts[2].tokens);
    cache.run_transfers();
    serve(prompts[2]);
    serve(prompts[3]);
    cache.wait_idle();
  }

  void check() {
    cache.wait_idle();
    CHECK(cache.check_invariants() == std::vector<std::string>{});
    CHECK(cache.statistics().blocks.in_use == 0);
    CHECK_FALSE(has_wrong_numbers);
    CHECK_FALSE(has_other_error);
  }

  filed_cache cache;
  std::vector<known_prompt> prompts = [] {
    auto made = std::vector<known_prompt>{};
    for (auto i = 0; i < num_prompts; ++i) {
      made.emplace_back(i);
    }
    return made;
  }();
  std::int64_t num_hits = 0;
  bool has_wrong_numbers = false;
  bool has_other_error = false;  // than that of a fault, or one that stays

 private:
  template <class Operation>
  void insist(const Operation& operation) noexcept {
    static_cast<void>(persistently(operation));
  }
  template <class Operation>
  [[nodiscard]] auto persistently(const Operation& operation) noexcept -> decltype(operation()) {
    auto done = operation();
    if (!done) {
      has_other_error = has_other_error || !tells_of_a_fault(done.error());
      done = operation();
      has_other_error = has_other_error || !done;
    }
    return done;
  }

  [[nodiscard]] static token_rows<float> leading(known_prompt::numbers& numbers, std::size_t num_tokens) noexcept {
    const auto some = std::span{numbers}.first(num_tokens * row_dim);
    return contiguous_rows(some, 1, row_dim);
  }

  void compare(sequence_id id, const known_prompt& prompt, std::size_t num_tokens) noexcept {
    for (std::size_t layer = 0; layer < 2; ++layer) {
      auto keys = known_prompt::numbers{};
      auto values = keys;
      const auto of_tokens = std::span{slots}.first(num_tokens);
      insist([&] { return cache.slot_mapping(id, 0, of_tokens); });
      insist([&] {
        return cache.read(static_cast<std::int32_t>(layer), of_tokens, leading(keys, num_tokens),
                          leading(values, num_tokens));
      });
      const auto are_equal = [&](const auto& a, const auto& b) {
        return std::ranges::equal(std::span{a}.first(num_tokens * row_dim), std::span{b}.first(num_tokens * row_dim));
      };
      has_wrong_numbers =
          has_wrong_numbers || !are_equal(keys, prompt.keys[layer]) || !are_equal(values, prompt.values[layer]);
    }
  }

  void write(sequence_id id, const known_prompt& prompt, std::size_t first) noexcept {
    const auto of_tokens = std::span{slots}.first(prompt_size - first);
    insist([&] { return cache.slot_mapping(id, static_cast<std::int64_t>(first), of_tokens); });
    for (std::size_t layer = 0; layer < 2; ++layer) {
      const auto keys = std::span{prompt.keys[layer]}.subspan(first * row_dim);
      const auto values = std::span{prompt.values[layer]}.subspan(first * row_dim);
      insist([&] {
        return cache.write(static_cast<std::int32_t>(layer), of_tokens, contiguous_rows(keys, 1, row_dim),
                           contiguous_rows(values, 1, row_dim));
      });
    }
  }

  std::array<slot, prompt_size> slots{};
};

/// Calls `run` with the n-th use of a site failing, for each n until none fails.
template <class Run>
void for_each_fault(fault_site site, const Run& run) {
  auto happened = true;
  for (auto n = std::int64_t{1}; happened; ++n) {
    CAPTURE(static_cast<int>(site), n);
    auto plan = fault_plan{};
    happened = run(plan, [&] { plan.arm(site, n); });
    CHECK(plan.memory.live == 0);
  }
}

}  // namespace

TEST_CASE("a cache with a file behind it survives each fault", "[faults]") {
  for (const auto site : fault_sites) {
    for_each_fault(site, [](fault_plan& plan, const auto& arm) {
      const auto folder = testing::temporary_folder{};
      auto happened = false;
      {
        auto served = served_files{plan, folder};
        arm();
        served.serve_all();
        happened = plan.disarm();
        served.check();
        served.serve_all();
        served.check();
        CHECK(served.num_hits > 100);
      }
      auto restarted = served_files{plan, folder};
      restarted.serve_all();
      restarted.check();
      return happened;
    });
  }
}

TEST_CASE("a restart from a file survives each fault", "[faults]") {
  for (const auto site : {fault_site::operator_new, fault_site::files}) {
    for_each_fault(site, [](fault_plan& plan, const auto& arm) {
      const auto folder = testing::temporary_folder{};
      served_files{plan, folder}.serve_all();
      const auto format = filed_cache::format_of(device(), "");
      const auto paths = std::vector{folder.file("blocks")};
      const auto config = device();  // allocates for its seed
      arm();
      auto made = result<std::unique_ptr<filed_cache>>{error{error_code::out_of_memory, "no cache"}};
      if (auto tier = open_tier(paths, format)) {
        made = filed_cache::create(config, served_files::config(), host_tier<>{6, {}}, std::tuple{std::move(*tier)},
                                   failing_allocator<>{plan.memory}, failing_backend{plan.backend});
      }
      const auto happened = plan.disarm();
      CHECK((made || happened));
      made = error{error_code::out_of_memory, "no cache"};  // and its lock ends
      auto restarted = served_files{plan, folder};
      restarted.serve_all();
      restarted.check();
      return happened;
    });
  }
}

TEST_CASE("files of a tier stay as they were when it cannot be made", "[faults]") {
  const auto format = filed_cache::format_of(device(), "");
  for (const auto site : {fault_site::operator_new, fault_site::files}) {
    for_each_fault(site, [&](fault_plan& plan, const auto& arm) {
      const auto folder = testing::temporary_folder{};
      const auto paths = std::vector{folder.file("new"), folder.file("old"), folder.file("newer")};
      REQUIRE(tier_type::create({paths[1]}, 1 << 18, format));
      const auto before = files_in(folder);
      arm();
      const auto refusal = [&]() -> std::optional<error> {
        const auto made = open_tier(paths, format);
        return made ? std::nullopt : std::optional{made.error()};
      }();
      const auto happened = plan.disarm();
      if (refusal) {
        CAPTURE(refusal->message());
        CHECK(tells_of_a_fault(*refusal));
        CHECK(files_in(folder) == before);
      }
      CHECK(open_tier(paths, format));
      return happened;
    });
  }
}
