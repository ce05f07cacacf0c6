// Requests on a stream of the engine's own, whose work starts late: whatever a cache copies for them waits for it.

#include "../support/printing.hpp"
#include "target.hpp"

#include <pagedkv/device/allocators.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <optional>
#include <random>
#include <vector>

namespace request_streams_test {

using namespace pagedkv;
using namespace pagedkv::test;

using tokens = std::vector<token>;

constexpr auto head_dim = std::int32_t{4};

/// A number that stands for all of the tokens, as exact in a float.
[[nodiscard]] float pattern_of(std::span<const token> chain) {
  auto hash = std::uint32_t{1};
  for (const auto next : chain) {
    hash = (hash ^ static_cast<std::uint32_t>(next + 1)) * 2654435761U;
  }
  return static_cast<float>(hash >> 9U);
}

/// Memory of the device that is given back only at the end, because giving it back waits for all streams.
class arena {
 public:
  explicit arena(const hip_target<0>& target) : target_(target) {}

  template <class T>
  [[nodiscard]] T* add(const std::vector<T>& values) {
    auto* const place = numbers_.data() + used_ / sizeof(float);
    used_ += (values.size() * sizeof(T) + 63) / 64 * 64;
    REQUIRE(used_ <= numbers_.size() * sizeof(float));
    target_.upload(place, values.data(), values.size() * sizeof(T));
    return reinterpret_cast<T*>(place);
  }

  void clear() noexcept { used_ = 0; }

 private:
  const hip_target<0>& target_;
  target_array<float, hip_target<0>> numbers_{target_, std::vector<float>(1 << 20)};
  std::size_t used_ = 0;
};

/// An engine without a model: each row that it writes tells all tokens before it. It reads back what the cache says is
/// cached, and only enqueues while its stream is held.
template <class Cache>
class late_engine {
 public:
  late_engine(const hip_target<0>& target, Cache& cache) : target_(target), cache_(cache), memory_(target) { hold(); }
  ~late_engine() { let_go(); }

  [[nodiscard]] bool submit(const tokens& prompt) {
    const auto made = tracker_.submit(prompt, {}, stream_.get());
    if (made) {
      live_.push_back({made->id, prompt});
      start(live_.back(), *made);
    }
    return made.has_value();
  }

  void append(std::size_t which, token next) {
    auto& request = live_.at(which);
    if (tracker_.append(request.id, next, stream_.get())) {
      request.text.push_back(next);
      compute(request.text, tracker_.describe(request.id)->sequence, std::ssize(request.text) - 1);
    }
  }

  void fork(std::size_t which) {
    if (const auto made = tracker_.fork(live_.at(which).id, stream_.get())) {
      live_.push_back({made->id, live_.at(which).text});
    }
  }

  void preempt_and_resume(std::size_t which) {
    auto& request = live_.at(which);
    REQUIRE(tracker_.preempt(request.id, stream_.get()));
    if (const auto made = tracker_.resume(request.id, request.text, stream_.get())) {
      start(request, *made);
    } else {
      finish(which);
    }
  }

  /// Reads all of a running request first.
  void finish(std::size_t which) {
    const auto& request = live_.at(which);
    if (const auto known = tracker_.describe(request.id); known->state == request_state::running) {
      read(request.text, known->sequence, std::ssize(request.text));
    }
    REQUIRE(tracker_.finish(request.id));
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  /// Lets the stream run, compares what was read, and holds it again.
  void look() {
    let_go();
    for (const auto& each : readings_) {
      auto keys = each.expected;
      auto values = each.expected;
      target_.download(keys.data(), each.keys, keys.size() * sizeof(float));
      target_.download(values.data(), each.values, values.size() * sizeof(float));
      num_read_ += std::ssize(keys) / head_dim;
      for (std::size_t i = 0; i < keys.size(); i += head_dim) {
        num_wrong_ += keys[i] != each.expected[i] || values[i] != each.expected[i];
      }
    }
    readings_.clear();
    memory_.clear();
    hold();
  }

  [[nodiscard]] std::size_t num_live() const { return live_.size(); }
  [[nodiscard]] std::int64_t num_read() const { return num_read_; }
  [[nodiscard]] std::int64_t num_wrong() const { return num_wrong_; }

 private:
  struct running {
    request_id id;
    tokens text;
  };
  struct reading {
    const float* keys;
    const float* values;
    std::vector<float> expected;
  };

  static constexpr bool has_groups = requires(const Cache& cache) { cache.plan(); };
  static constexpr bool has_tiers = requires(Cache& cache, sequence_id id) { cache.settle(id); };

  void hold() {
    gate_.emplace(1);
    const auto wait = [](runtime::stream, runtime::status, void* gate) { static_cast<std::latch*>(gate)->wait(); };
    REQUIRE(runtime::add_callback(stream_.get(), wait, &*gate_) == runtime::success);
  }

  void let_go() {
    gate_->count_down();
    CHECK(stream_.synchronize());
  }

  template <class Started>
  void start(const running& started, const Started& made) {
    auto num_cached = made.num_cached_tokens;
    if constexpr (has_tiers) {
      num_cached = made.num_loading_tokens == 0 ? num_cached : cache_.settle(made.sequence, stream_.get()).value();
    }
    read(started.text, made.sequence, num_cached);
    compute(started.text, made.sequence, num_cached);
  }

  /// Calls `visit(group, layer)`.
  template <class Visit>
  void for_each_layer(const Visit& visit) const {
    if constexpr (has_groups) {
      for (std::size_t g = 0; g < cache_.config().groups.size(); ++g) {
        for (auto layer = 0; layer < cache_.config().groups[g].num_layers; ++layer) {
          visit(g, layer);
        }
      }
    } else {
      for (auto layer = 0; layer < cache_.config().num_layers; ++layer) {
        visit(std::size_t{0}, layer);
      }
    }
  }

  /// Of the tokens [first, last) that the group still has.
  [[nodiscard]] std::vector<slot> slots_of(std::size_t group, sequence_id id, std::int64_t& first, std::int64_t last) {
    auto mapped = result<void>{};
    auto slots = std::vector<slot>{};
    if constexpr (has_groups) {
      first = std::min(last, std::max(first, cache_.num_skipped_tokens(id, group).value()));
      slots.resize(static_cast<std::size_t>(last - first));
      mapped = cache_.slot_mapping(id, first, slots, group);
    } else {
      slots.resize(static_cast<std::size_t>(last - first));
      mapped = cache_.slot_mapping(id, first, slots);
    }
    REQUIRE(mapped);
    return slots;
  }

  [[nodiscard]] static std::vector<float> rows_of(const tokens& text, std::int64_t first, std::int64_t last) {
    auto rows = std::vector<float>{};
    for (auto i = first; i < last; ++i) {
      rows.insert(rows.end(), head_dim, pattern_of(std::span{text}.first(static_cast<std::size_t>(i + 1))));
    }
    return rows;
  }

  void compute(const tokens& text, sequence_id id, std::int64_t from) {
    for_each_layer([&](std::size_t group, std::int32_t layer) {
      auto first = from;
      const auto slots = slots_of(group, id, first, std::ssize(text));
      const auto rows = rows_of(text, first, std::ssize(text));
      const auto input =
          token_rows<const float>{memory_.add(rows), head_dim, head_dim, std::ssize(text) - first, 1, head_dim};
      const auto to = std::span<const slot>{memory_.add(slots), slots.size()};
      if constexpr (has_groups) {
        REQUIRE(cache_.write(layer, to, input, input, stream_.get(), group));
      } else {
        REQUIRE(cache_.write(layer, to, input, input, stream_.get()));
      }
    });
    REQUIRE(cache_.commit(id, std::ssize(text), stream_.get()));
  }

  void read(const tokens& text, sequence_id id, std::int64_t last) {
    for_each_layer([&](std::size_t group, std::int32_t layer) {
      auto first = std::int64_t{0};
      const auto slots = slots_of(group, id, first, last);
      if (slots.empty()) {
        return;
      }
      const auto nothing = std::vector<float>(slots.size() * head_dim);
      auto* const keys = memory_.add(nothing);
      auto* const values = memory_.add(nothing);
      const auto rows = [&](float* numbers) {
        return token_rows<float>{numbers, head_dim, head_dim, last - first, 1, head_dim};
      };
      const auto from = std::span<const slot>{memory_.add(slots), slots.size()};
      if constexpr (has_groups) {
        REQUIRE(cache_.read(layer, from, rows(keys), rows(values), stream_.get(), group));
      } else {
        REQUIRE(cache_.read(layer, from, rows(keys), rows(values), stream_.get()));
      }
      readings_.push_back({keys, values, rows_of(text, first, last)});
    });
  }

  const hip_target<0>& target_;
  Cache& cache_;
  arena memory_;
  hip::stream stream_{0};
  std::optional<std::latch> gate_;
  request_tracker<Cache> tracker_{cache_};
  std::vector<running> live_;
  std::vector<reading> readings_;
  std::int64_t num_read_ = 0;
  std::int64_t num_wrong_ = 0;
};

/// Plays requests whose prompts share beginnings of any length.
template <class Cache>
void play(const hip_target<0>& target, Cache& cache, int num_operations) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  const auto below = [&](std::size_t end) { return std::uniform_int_distribution<std::size_t>{0, end - 1}(random); };
  auto texts = std::vector<tokens>(6);
  for (auto& text : texts) {
    text.resize(40);
    std::ranges::generate(text, [&] { return static_cast<token>(below(50)); });
  }
  auto engine = late_engine<Cache>{target, cache};
  for (auto i = 0; i < num_operations; ++i) {
    const auto action = engine.num_live() == 0 ? 0 : below(10);
    if (action < 4) {
      auto prompt = texts[below(texts.size())];
      prompt.resize(1 + below(prompt.size()));
      prompt.push_back(static_cast<token>(below(3)));
      if (!engine.submit(prompt) && engine.num_live() != 0) {
        engine.finish(below(engine.num_live()));
      }
    } else if (action < 6) {
      engine.append(below(engine.num_live()), static_cast<token>(below(3)));
    } else if (action < 7) {
      engine.fork(below(engine.num_live()));
    } else if (action < 8) {
      engine.preempt_and_resume(below(engine.num_live()));
    } else {
      engine.finish(below(engine.num_live()));
    }
    if (below(8) == 0) {
      engine.look();
    }
  }
  engine.look();
  CHECK(engine.num_read() > num_operations);
  CHECK(engine.num_wrong() == 0);
}

constexpr auto num_operations = 400;

[[nodiscard]] cache_config config_of(std::int32_t num_blocks) {
  auto config = cache_config{};
  config.hash_seed = 1;
  config.block_size = 4;
  config.num_blocks = num_blocks;
  config.num_layers = 2;
  config.head_dim = head_dim;
  config.max_sequences = 6;
  return config;
}

TEST_CASE("What a tracker's cache copies waits for the engine's stream", "[cache][requests][random]") {
  auto target = require_target<hip_target<0>>();
  auto cache = kv_cache<float32, hip_backend>{config_of(48)};
  play(target, cache, num_operations);
  CHECK(cache.statistics().copies > 0);
}

TEST_CASE("What a tracker's cache with groups copies waits for the engine's stream", "[cache][requests][random]") {
  auto target = require_target<hip_target<0>>();
  auto config = config_of(64);
  const auto full = group_config{.num_layers = 1, .num_kv_heads = 1, .key_dim = head_dim, .value_dim = head_dim};
  auto wide = full;
  wide.num_layers = 2;
  auto window = wide;
  window.kind = group_kind::window;
  window.window = 6;
  config.groups = {full, wide, window};
  auto cache = group_cache<float32, hip_backend>{config};
  play(target, cache, num_operations);
  CHECK(cache.statistics().copies > 0);
  CHECK(cache.statistics().hit_tokens > 0);
}

TEST_CASE("What a tracker's cache with tiers copies waits for the engine's stream", "[cache][requests][random]") {
  auto target = require_target<hip_target<0>>();
  using tiered = tiered_cache<float32, hip_backend, host_tier<hip::pinned_allocator>>;
  auto options = tier_config{};
  options.threads = false;
  auto cache = tiered{config_of(40), options, {200}};
  play(target, cache, num_operations);
  CHECK(cache.tier(0).hit_blocks > 0);
}

}  // namespace request_streams_test
