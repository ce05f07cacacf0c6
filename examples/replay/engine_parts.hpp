#pragma once

#include "engine.hpp"

#include <memory>

namespace pagedkv::replay {

// Engines are compiled in parts, side by side. Every element goes with one locking policy, every locking policy with
// one element: each cache takes seconds to compile.

/// An engine for one thread.
std::unique_ptr<engine> make_engine_for_one_thread(const options& chosen, const cache_config& config,
                                                   const replay_events& reported);

/// An engine with one of the other locking policies.
std::unique_ptr<engine> make_engine_for_threads(const options& chosen, const cache_config& config,
                                                const replay_events& reported);

/// An engine whose cache has the chosen tiers.
std::unique_ptr<engine> make_engine_with_tiers(const options& chosen, const cache_config& config,
                                               const replay_events& reported);

/// An engine whose free list prefers runs.
std::unique_ptr<engine> make_engine_with_runs(const options& chosen, const cache_config& config,
                                              const replay_events& reported);

}  // namespace pagedkv::replay
