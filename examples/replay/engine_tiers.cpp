#include "engine_of.hpp"

#include <pagedkv/tier/tiered_cache.hpp>

#if defined(REPLAY_FILES)
  #include <pagedkv/tier/file_tier.hpp>
#endif
#if defined(REPLAY_REMOTE)
  #include <pagedkv/tier/redis_client.hpp>
  #include <pagedkv/tier/remote_tier.hpp>
#endif

#include <charconv>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace pagedkv::replay {

namespace {

using eviction_type = support::chosen_eviction<false>;
using host_type = host_tier<host_allocator, eviction_type>;
template <class... Slower>
using cache_with = tiered_cache<float16, eviction_type, replay_events, host_type, Slower...>;

constexpr auto model = std::string_view{"replay"};

/// Waits for what tiers load as long as the user chose.
template <class Cache>
class tiered_engine final : public engine_of<Cache> {
 public:
  template <class... Arguments>
  explicit tiered_engine(const options& chosen, Arguments&&... of_cache)
      : engine_of<Cache>(std::forward<Arguments>(of_cache)...) {
    if (chosen.prefetch == "best_effort") {
      patience_ = std::chrono::milliseconds{0};
    } else if (chosen.prefetch != "complete") {
      patience_ = std::chrono::milliseconds{std::stol(chosen.prefetch)};
    }
  }

  result<submission> submit(std::span<const token> tokens) override {
    auto submitted = engine_of<Cache>::submit(tokens);
    if (!submitted) {
      return submitted;
    }
    auto& cache = this->cache();
    using clock = typename Cache::clock;
    cache.wait(submitted->sequence, patience_ ? clock::now() + *patience_ : clock::time_point::max());
    const auto num_tokens = cache.settle(submitted->sequence);
    if (!num_tokens) {
      return num_tokens.error();
    }
    submitted->num_cached_tokens = *num_tokens;
    return submitted;
  }

  std::vector<named_tier> tiers() override {
    this->cache().wait_idle();
    auto all = std::vector<named_tier>{};
    for (std::size_t i = 0; i < Cache::num_tiers; ++i) {
      all.push_back({std::string{Cache::tier_names[i]}, this->cache().tier(i)});
    }
    return all;
  }

 private:
  std::optional<std::chrono::milliseconds> patience_;  // none: to the end
};

[[nodiscard]] tier_config config_of(const options& chosen) {
  auto tiers = tier_config{};
  tiers.model = model;
  tiers.exclusive = chosen.exclusive;
  if (chosen.write_policy != "on_eviction") {
    tiers.write = chosen.write_policy == "through" ? write_policy::through : write_policy::through_hits;
  }
  return tiers;
}

template <class... Slower>
[[nodiscard]] std::unique_ptr<engine> make_with(const options& chosen, const cache_config& config,
                                                const replay_events& reported, Slower... slower) {
  using cache_type = cache_with<Slower...>;
  return std::make_unique<tiered_engine<cache_type>>(
      chosen, config, config_of(chosen), host_type{chosen.host_blocks, {}}, std::tuple<Slower...>{std::move(slower)...},
      typename cache_type::allocator_type{}, host_backend{}, reported);
}

/// Calls `make` with the chosen store, if any, behind the tiers before it.
template <class Make>
[[nodiscard]] std::unique_ptr<engine> with_remote(const options& chosen, [[maybe_unused]] const record_format& format,
                                                  Make&& make) {
  if (chosen.remote.empty()) {
    return make();
  }
#if defined(REPLAY_REMOTE)
  const auto store = parse_redis_url(chosen.remote);
  if (!store) {
    throw option_error("--remote " + chosen.remote + ": " + store.error().message());
  }
  return make(remote_tier<redis_client>{redis_client{*store}, format});
#else
  throw option_error("--remote: this program was built without hiredis");
#endif
}

#if defined(REPLAY_FILES)
[[nodiscard]] file_tier open_file(const options& chosen, const record_format& format) {
  const auto colon = chosen.file.rfind(':');
  auto bytes = std::int64_t{0};
  if (colon != std::string::npos) {
    const auto size = std::string_view{chosen.file}.substr(colon + 1);
    const auto [end, failed] = std::from_chars(size.data(), size.data() + size.size(), bytes);
    const auto unit = size.substr(static_cast<std::size_t>(end - size.data()));
    bytes = failed != std::errc{} ? 0
            : unit == "G"         ? bytes << 30
            : unit == "M"         ? bytes << 20
            : unit.empty()        ? bytes
                                  : 0;
  }
  if (bytes <= 0) {
    throw option_error("--file " + chosen.file + ": write PATH:SIZE, with a size such as 512M or 64G");
  }
  auto opened = file_tier::create({chosen.file.substr(0, colon)}, bytes, format);
  if (!opened) {
    throw option_error("--file " + chosen.file + ": " + opened.error().message());
  }
  return std::move(*opened);
}
#endif

}  // namespace

std::unique_ptr<engine> make_engine_with_tiers(const options& chosen, const cache_config& config,
                                               const replay_events& reported) {
  if (chosen.locking != "single_thread" || chosen.num_threads != 1 || chosen.element != "float16") {
    throw option_error("--host-blocks goes with --locking single_thread, --threads 1 and --element float16");
  }
  return with_policy(all_evictions{}, chosen.eviction, [&]<class Eviction>(std::type_identity<Eviction>) {
    eviction_type::factory = support::any_eviction_of<Eviction>::make;
    const auto format = cache_with<>::format_of(config, model);
    return with_remote(chosen, format, [&](auto... remote) -> std::unique_ptr<engine> {
      if (chosen.file.empty()) {
        return make_with(chosen, config, reported, std::move(remote)...);
      }
#if defined(REPLAY_FILES)
      return make_with(chosen, config, reported, open_file(chosen, format), std::move(remote)...);
#else
      throw option_error("--file: this program was built without liburing");
#endif
    });
  });
}

}  // namespace pagedkv::replay
