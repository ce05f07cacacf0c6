#pragma once

#include "engine.hpp"

#include <cstddef>

namespace pagedkv::replay {

/// Engines are compiled in parts, side by side, each with some of the locking policies: part `i` in engine_<i>.cpp.
inline constexpr auto num_engine_parts = std::size_t{4};

/// An engine whose cache has the chosen tiers.
std::unique_ptr<engine> make_engine_with_tiers(const options& chosen, const cache_config& config,
                                               const replay_events& reported);

/// An engine whose free list prefers runs.
std::unique_ptr<engine> make_engine_with_runs(const options& chosen, const cache_config& config,
                                              const replay_events& reported);

/// See `make_engine`; null where the chosen locking policy is in another part.
template <std::size_t Part>
std::unique_ptr<engine> make_engine_in(const options& chosen, const cache_config& config,
                                       const replay_events& reported);

template <>
std::unique_ptr<engine> make_engine_in<0>(const options&, const cache_config&, const replay_events&);
template <>
std::unique_ptr<engine> make_engine_in<1>(const options&, const cache_config&, const replay_events&);
template <>
std::unique_ptr<engine> make_engine_in<2>(const options&, const cache_config&, const replay_events&);
template <>
std::unique_ptr<engine> make_engine_in<3>(const options&, const cache_config&, const replay_events&);

}  // namespace pagedkv::replay
