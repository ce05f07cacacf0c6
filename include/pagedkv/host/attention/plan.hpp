#pragma once

#include <pagedkv/host/attention/call.hpp>

#include <vector>

namespace pagedkv::host::attention {

/// Queries of one row of the batch that are processed together. Their keys are split into chunks, each with a partial
/// result; partial results are merged in order. Units and chunks depend on the row alone, so the bits of the result do
/// not depend on the rest of the batch or on the number of threads.
struct unit {
  std::size_t row = 0;
  std::int32_t first_query = 0;
  std::int32_t num_queries = 0;
  token_range seen;  // tokens that any of the queries sees
  std::int64_t chunk_tokens = 0;
  std::int32_t num_chunks = 0;
  std::int64_t first_partial = -1;  // offset of the chunks' partial results, in numbers, if pieces share the unit
};

/// The part of a unit that one thread processes at a time: some KV heads, some chunks.
struct piece {
  std::size_t unit = 0;
  std::int32_t first_head = 0;
  std::int32_t num_heads = 0;
  std::int32_t first_chunk = 0;
  std::int32_t num_chunks = 0;
};

/// The division of the work into pieces, and the size of the memory that it takes, in numbers of float32.
struct attention_plan {
  std::vector<unit> units;
  std::vector<piece> pieces;
  std::int64_t num_partials = 0;
  std::int64_t scratch = 0;  // per thread
};

/// Rows of a unit: query tokens times the query heads of one KV head.
[[nodiscard]] inline std::int64_t rows_of(const attention_call& call, const unit& u) noexcept {
  return std::int64_t{u.num_queries} * call.group_size;
}

[[nodiscard]] constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }

/// Vectors that cross a cache line take twice the time.
[[nodiscard]] constexpr std::int64_t whole_vectors(std::int64_t numbers) noexcept {
  return divide_up(numbers, row_padding) * row_padding;
}

/// Size of the partial result of one KV head: per row, sums of values, the highest score and the sum of weights.
[[nodiscard]] inline std::int64_t partial_size(const attention_call& call, const unit& u) noexcept {
  return whole_vectors(rows_of(call, u) * (call.padded_value_dim() + 2));
}

/// Offset of the partial result of one chunk and KV head, if pieces share the unit.
[[nodiscard]] inline std::int64_t offset_of_partial(const attention_call& call, const unit& u, std::int64_t chunk,
                                                    std::int32_t head) noexcept {
  return u.first_partial + (chunk * call.view.num_kv_heads + head) * partial_size(call, u);
}

/// Numbers per KV head: queries, perhaps a second time as matrices, sums, merged sums and scores, each with a row of
/// padding, and states of 8 rows and merged ones. Each thread has the decoded tile once in addition.
[[nodiscard]] inline std::int64_t scratch_of_head(const attention_call& call, const unit& u) noexcept {
  const auto copies_of_queries = call.has_matrix_unit ? 2 : 1;
  return whole_vectors((rows_of(call, u) + 1) * (copies_of_queries * call.padded_dim() + 2 * call.padded_value_dim() +
                                                 2 * row_padding + 2 + tile_tokens));
}

[[nodiscard]] inline std::int64_t scratch_of_tile(const attention_call& call) noexcept {
  return std::int64_t{tile_tokens} * (call.padded_dim() + call.padded_value_dim());
}

/// Short chunks spread a sequence over many threads; a small number of chunks keeps the merge short.
[[nodiscard]] inline std::int64_t tokens_of_chunk(std::int64_t tokens) noexcept {
  constexpr auto shortest = std::int64_t{512};
  constexpr auto most_chunks = std::int64_t{64};
  return std::max(shortest, divide_up(divide_up(tokens, most_chunks), tile_tokens) * tile_tokens);
}

inline void add_units(const attention_call& call, std::size_t row, std::vector<unit>& units) {
  constexpr auto most_rows = 64;
  const auto num_queries = call.num_queries(row);
  const auto step = std::max(1, most_rows / call.group_size);
  for (auto first = 0; first < num_queries; first += step) {
    auto u = unit{row, first, std::min(step, num_queries - first), {}, 0, 0, -1};
    u.seen = {visible_from(call.position(row, first), call.options.window).begin,
              visible_from(call.position(row, first + u.num_queries - 1), call.options.window).end};
    u.chunk_tokens = tokens_of_chunk(u.seen.size());
    u.num_chunks = static_cast<std::int32_t>(divide_up(u.seen.size(), u.chunk_tokens));
    units.push_back(u);
  }
}

/// Estimated cost of a unit: bytes read plus, with a smaller weight, rows computed.
[[nodiscard]] inline std::int64_t cost_of(const attention_call& call, const unit& u) noexcept {
  return (u.seen.size() + tile_tokens) * call.view.num_kv_heads * call.padded_dim() * (4 + rows_of(call, u));
}

/// Divides a unit into pieces of about `target` cost: by chunks first, then by heads. A single thread takes whole
/// units, but no more heads than fit its cache.
inline void add_pieces(const attention_call& call, attention_plan& plan, std::size_t index, std::int64_t target) {
  constexpr auto most_scratch = std::int64_t{64} << 10;
  auto& u = plan.units[index];
  const auto num_heads = std::int64_t{call.view.num_kv_heads};
  const auto heads_that_fit = std::clamp(most_scratch / scratch_of_head(call, u), std::int64_t{1}, num_heads);
  const auto wanted = target == 0 ? 1 : divide_up(cost_of(call, u), target);
  const auto by_chunks = std::clamp(divide_up(wanted, divide_up(num_heads, heads_that_fit)), std::int64_t{1},
                                    std::max<std::int64_t>(1, u.num_chunks));
  const auto by_heads = std::clamp(divide_up(wanted, by_chunks), divide_up(num_heads, heads_that_fit), num_heads);
  const auto heads = divide_up(num_heads, by_heads);
  const auto chunks = std::max<std::int64_t>(1, divide_up(u.num_chunks, by_chunks));
  if (chunks < u.num_chunks) {
    u.first_partial = plan.num_partials;
    plan.num_partials += partial_size(call, u) * u.num_chunks * num_heads;
  }
  for (auto chunk = std::int64_t{0}; chunk < std::max(1, u.num_chunks); chunk += chunks) {
    for (auto head = std::int64_t{0}; head < num_heads; head += heads) {
      plan.pieces.push_back({index, static_cast<std::int32_t>(head),
                             static_cast<std::int32_t>(std::min(heads, num_heads - head)),
                             static_cast<std::int32_t>(chunk),
                             static_cast<std::int32_t>(std::min<std::int64_t>(chunks, u.num_chunks - chunk))});
    }
  }
  plan.scratch = std::max(plan.scratch, heads * scratch_of_head(call, u));
}

/// Divides the work among `num_threads`, evenly whatever the lengths are. Throws `std::bad_alloc`.
[[nodiscard]] inline attention_plan make_plan(const attention_call& call, int num_threads) {
  constexpr auto pieces_per_thread = 16;
  constexpr auto smallest_cost = std::int64_t{1} << 18;
  auto plan = attention_plan{};
  auto total = std::int64_t{0};
  for (auto row = std::size_t{0}; row < call.batch.num_rows(); ++row) {
    add_units(call, row, plan.units);
  }
  for (const auto& u : plan.units) {
    total += cost_of(call, u);
  }
  const auto share = std::max(total / (std::int64_t{num_threads} * pieces_per_thread), smallest_cost);
  for (auto i = std::size_t{0}; i < plan.units.size(); ++i) {
    add_pieces(call, plan, i, num_threads == 1 ? 0 : share);
  }
  plan.scratch += scratch_of_tile(call);
  return plan;
}

}  // namespace pagedkv::host::attention
