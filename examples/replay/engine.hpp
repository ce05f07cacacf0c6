#pragma once

#include "contents.hpp"
#include "replay_events.hpp"

#include <pagedkv/backend/concept.hpp>
#include <pagedkv/cache/operations/statistics.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/core/config.hpp>
#include <pagedkv/requests/request.hpp>
#include <pagedkv/tier/tier_statistics.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace pagedkv::replay {

struct options;

struct named_tier {
  std::string name;
  tier_statistics counts;
};

/// A cache with a request tracker over it, their policies hidden: an engine fixes them at compile time, this program
/// lets its user choose. Operations are those of the same name there.
class engine {
 public:
  virtual ~engine() = default;

  virtual void advance_time(timestamp now) = 0;
  [[nodiscard]] virtual result<submission> submit(std::span<const token> tokens) = 0;
  virtual result<void> append(request_id id, token next) = 0;
  /// `num_answer_tokens`: as the trace states them, where the request did not append them; else 0.
  virtual result<void> finish(request_id id, std::uint32_t num_answer_tokens) = 0;
  virtual result<void> fail(request_id id, const error& reason) = 0;

  virtual result<void> commit(sequence_id id, std::int64_t num_tokens) = 0;
  [[nodiscard]] virtual result<sequence_info> describe(sequence_id id) = 0;
  virtual result<void> slot_mapping(sequence_id id, std::int64_t first_token, std::span<slot> slots) = 0;
  virtual result<void> write(std::span<const slot> slots, token_rows<const float> keys,
                             token_rows<const float> values) = 0;
  virtual result<void> read(std::span<const slot> slots, token_rows<float> keys, token_rows<float> values) = 0;

  /// Rows as they are read after they were written.
  [[nodiscard]] virtual key_value stored_and_read(const key_value& rows) const = 0;

  [[nodiscard]] virtual cache_statistics statistics() = 0;
  [[nodiscard]] virtual memory_profile memory() = 0;
  [[nodiscard]] virtual std::vector<std::string> check_invariants() = 0;

  /// Behind the device, the fastest first, after all their transfers have ended.
  [[nodiscard]] virtual std::vector<named_tier> tiers() { return {}; }

  /// Whether `check_invariants` may be called while other threads are at work.
  [[nodiscard]] virtual bool can_check_any_time() const = 0;
};

/// Throws `option_error` when the chosen policies do not go together, `exception` or `std::bad_alloc` as the cache
/// does.
[[nodiscard]] std::unique_ptr<engine> make_engine(const options& chosen, const cache_config& config,
                                                  const replay_events& reported);

}  // namespace pagedkv::replay
