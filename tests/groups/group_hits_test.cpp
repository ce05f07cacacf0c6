#include <pagedkv/pagedkv.hpp>
#include <pagedkv/storage/sizing.hpp>

#include "../support/everyday_seed.hpp"
#include "../support/printing.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <iomanip>
#include <iostream>
#include <random>
#include <string>
#include <vector>

using namespace pagedkv;

namespace {

using run_of_tokens = std::vector<token>;

/// A model's kinds of layers, windows and proportions, with few bytes: 256 in one layer of 16 tokens.
group_list made_small(const group_list& groups) {
  auto small = std::vector<group_config>(groups.begin(), groups.end());
  for (auto& group : small) {
    group.num_kv_heads = group.holds_tokens() ? 1 : group.num_kv_heads;
    group.key_dim = group.value_dim = group.kind == group_kind::latent ? 8 : 4;
    if (!group.holds_tokens()) {
      group.num_layers = (group.num_layers + 3) / 4;
      group.state_bytes = 256;
    }
  }
  return group_list{small};
}

/// Sessions of several turns with a shared start; some turns are sent again, some answers are drawn again, and some
/// sessions go back to an earlier question, change its end, and go on from there.
class conversations {
 public:
  explicit conversations(std::uint64_t seed) : random_(seed) {
    for (auto i = 0; i < 3; ++i) {
      starts_.push_back(draw(between(300, 900)));
    }
  }

  /// The prompt of the next request.
  [[nodiscard]] run_of_tokens prompt() {
    if (sessions_.empty() || (sessions_.size() < 25 && between(0, 5) == 0)) {
      sessions_.push_back({starts_[index(starts_.size())]});
      current_ = sessions_.size() - 1;
      question(sessions_.back());
      return sessions_.back().back();
    }
    current_ = index(sessions_.size());
    auto& turns = sessions_[current_];
    const auto choice = between(0, 9);
    if (choice == 0) {
      return turns.back();  // sent again
    }
    if (choice == 1 && turns.size() > 2) {
      turns.resize(1 + index(turns.size() - 1));  // goes back, and changes the question in its middle
      auto& changed = turns.back();
      changed.resize(changed.size() - static_cast<std::size_t>(between(1, 30)));
    }
    question(turns);
    return turns.back();
  }

  /// The answer to the last prompt.
  [[nodiscard]] run_of_tokens answer() { return draw(between(50, 300)); }
  /// The session goes on from the prompt with its answer.
  void accept(const run_of_tokens& text) { sessions_[current_].push_back(text); }

 private:
  [[nodiscard]] int between(int low, int high) { return std::uniform_int_distribution{low, high}(random_); }
  [[nodiscard]] std::size_t index(std::size_t size) {
    return static_cast<std::size_t>(between(0, static_cast<int>(size) - 1));
  }
  [[nodiscard]] run_of_tokens draw(int length) {
    auto text = run_of_tokens(static_cast<std::size_t>(length));
    std::ranges::generate(text, [&] { return between(0, 30'000); });
    return text;
  }
  void question(std::vector<run_of_tokens>& turns) {
    const auto asked = draw(between(20, 200));
    auto text = turns.back();
    text.insert(text.end(), asked.begin(), asked.end());
    turns.push_back(std::move(text));
  }

  std::mt19937_64 random_;
  std::vector<run_of_tokens> starts_;
  std::vector<std::vector<run_of_tokens>> sessions_;
  std::size_t current_ = 0;
};

std::int64_t common_prefix(const run_of_tokens& a, const run_of_tokens& b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

struct totals {
  std::int64_t hits = 0;
  std::int64_t best = 0;    // tokens that earlier requests had computed, up to a saved state if there are states
  std::int64_t common = 0;  // tokens that earlier requests had computed
};

/// Plays conversations, and compares each request's hit with the best of all earlier ones, token by token.
totals play(const group_list& groups, std::uint64_t seed, int num_requests, const state_saving& saving = {}) {
  auto config = cache_config{.block_size = 16, .num_blocks = 60'000, .max_sequences = 8};
  config.hash_seed = seed + 1;  // 0 would draw one
  config.groups = groups;
  auto cache = group_cache<float32>{config};
  const bool has_state = std::ranges::any_of(groups, [](const auto& group) { return !group.holds_tokens(); });
  auto work = conversations{seed};
  auto computed = std::vector<run_of_tokens>{};
  auto saved = std::vector<std::vector<std::int64_t>>{};
  auto sum = totals{};
  for (auto request = 0; request < num_requests; ++request) {
    auto text = work.prompt();
    auto common = std::int64_t{0};
    auto best = std::int64_t{0};
    const auto most = static_cast<std::int64_t>(text.size()) - 1;
    for (std::size_t i = 0; i < computed.size(); ++i) {
      const auto shared = std::min(common_prefix(computed[i], text), most);
      common = std::max(common, shared);
      for (const auto length : saved[i]) {
        best = length <= shared ? std::max(best, length) : best;
      }
    }
    best = has_state ? best : common;
    const auto made = cache.create_sequence(text, {.saving = saving}).value();
    CHECK(made.num_cached_tokens <= (saving.at_end ? common : best));
    sum.hits += made.num_cached_tokens;
    sum.best += best;
    sum.common += common;

    auto lengths = std::vector<std::int64_t>{};
    const auto compute = [&] {
      const auto end = static_cast<std::int64_t>(text.size());
      for (auto done = std::int64_t{0}; done < end;) {
        const auto next = cache.next_saved_length(made.id).value();
        done = std::min(end, next);
        REQUIRE(cache.commit(made.id, done));
        if (done == next) {
          lengths.push_back(done);
        }
      }
    };
    compute();
    for (const auto each : work.answer()) {
      REQUIRE(cache.append(made.id, each));
      text.push_back(each);
    }
    compute();
    REQUIRE(cache.release(made.id));
    computed.push_back(text);
    saved.push_back(std::move(lengths));
    work.accept(text);
  }
  REQUIRE(cache.statistics().evictions == 0);
  CHECK(cache.check_invariants() == std::vector<std::string>{});
  return sum;
}

}  // namespace

TEST_CASE("conversations hit nearly all of what could be reused, token by token", "[group_cache][random]") {
  struct preset {
    const char* name;
    const group_list& groups;
  };
  const preset all[] = {
      {"Llama 3.1 8B", presets::llama_3_1_8b},     {"Gemma 3 27B", presets::gemma_3_27b},
      {"gpt-oss 120B", presets::gpt_oss_120b},     {"DeepSeek V3", presets::deepseek_v3},
      {"Qwen3-Next 80B", presets::qwen3_next_80b}, {"Jamba 1.5 Large", presets::jamba_1_5_large},
      {"Llama 4 Scout", presets::llama_4_scout},
  };
  std::cout << "hit tokens in % of those that could be reused; in brackets, of all that were computed before;\n"
               "behind them, the same with a state at the end of the answer, and at each 512 or 128 tokens\n";
  for (const auto& [name, groups] : all) {
    INFO(name << ", seed " << Catch::getSeed());
    const auto [hits, best, common] = play(made_small(groups), Catch::getSeed(), 150);
    const auto percent = [&](std::int64_t of) { return 100.0 * static_cast<double>(hits) / static_cast<double>(of); };
    std::cout << std::left << std::setw(16) << name << std::right << std::fixed << std::setprecision(2) << std::setw(9)
              << percent(best) << " (" << percent(common) << ")";
    CHECK(percent(best) >= 99.0);
    const bool has_state = std::ranges::any_of(groups, [](const auto& group) { return !group.holds_tokens(); });
    for (const auto every : {0, 512, 128}) {
      if (has_state) {
        const auto more = play(made_small(groups), Catch::getSeed(), 150, {.every = every, .at_end = true});
        const auto reached = 100.0 * static_cast<double>(more.hits) / static_cast<double>(more.common);
        std::cout << std::setw(8) << reached;
        CHECK(reached >= (every != 128 ? 95.0 : test::has_everyday_seed() ? 99.0 : 98.0));
      }
    }
    std::cout << '\n';
  }
}
