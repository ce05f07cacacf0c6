#pragma once

#include <pagedkv/attention/shared_prefixes.hpp>
#include <pagedkv/host/attention/call.hpp>

#include <limits>
#include <vector>

namespace pagedkv::host::attention {

/// Queries of one row of the batch that are processed together. Their keys are split into chunks, each with a partial
/// result; partial results are merged in order. Units and chunks depend on the row alone, so the bits of the result do
/// not depend on the rest of the batch or on the number of threads.
///
/// A unit for a shared prefix has queries of several rows, and only partial results. Each of these rows merges its part
/// of them with those of its own tokens.
struct unit {
  static constexpr auto none = std::size_t(-1);

  std::size_t row = 0;           // of a shared prefix: one of the rows that share it
  std::int32_t first_query = 0;  // of the row; of a shared prefix: an index among the plan's queries of prefixes
  std::int32_t num_queries = 0;
  std::int32_t first_head = 0;  // KV heads
  std::int32_t num_heads = 0;
  token_range seen;  // tokens that any of the queries sees; with a list, counted in its order
  std::int64_t chunk_tokens = 0;
  std::int32_t num_chunks = 0;
  std::int64_t first_partial = -1;  // offset of the chunks' partial results, in numbers, if any
  bool is_prefix = false;
  std::size_t prefix = none;         // the unit of the prefix that the row shares
  std::int32_t query_of_prefix = 0;  // the row's first query among those of that unit
};

/// A query of the batch.
struct query_place {
  std::size_t row = 0;
  std::int32_t query = 0;  // of the row
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
struct work_plan {
  std::vector<unit> units;
  std::vector<piece> pieces;
  std::vector<query_place> prefix_queries;
  int num_threads = 1;
  std::int64_t num_partials = 0;
  std::int64_t scratch = 0;  // per thread

  /// The `i`-th query of a unit.
  [[nodiscard]] query_place query_of(const unit& u, std::int32_t i) const noexcept {
    return u.is_prefix ? prefix_queries[static_cast<std::size_t>(u.first_query + i)]
                       : query_place{u.row, u.first_query + i};
  }
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

/// Size of the partial results of all chunks and KV heads.
[[nodiscard]] inline std::int64_t partials_size(const attention_call& call, const unit& u) noexcept {
  return partial_size(call, u) * u.num_chunks * u.num_heads;
}

/// Numbers that the partial results of all units have at most: 64 MiB.
inline constexpr auto most_partials = std::int64_t{16} << 20;

/// Offset of the partial result of one chunk and KV head, if any.
[[nodiscard]] inline std::int64_t offset_of_partial(const attention_call& call, const unit& u, std::int64_t chunk,
                                                    std::int32_t head) noexcept {
  return u.first_partial + (chunk * u.num_heads + head - u.first_head) * partial_size(call, u);
}

/// Whether the matrix unit multiplies the rows of a unit in panels.
[[nodiscard]] inline bool is_in_panels(const attention_call& call, const unit& u) noexcept {
  return call.has_panels && rows_of(call, u) >= rows_to_decode_for;
}

/// Numbers that a panel has besides queries and sums.
inline constexpr auto panel_state_size = 5 * row_padding;

/// Numbers per KV head of rows in panels: queries, sums and states of whole panels, and merged sums.
[[nodiscard]] inline std::int64_t scratch_of_panels(const attention_call& call, const unit& u) noexcept {
  const auto num_panels = divide_up(rows_of(call, u), panel_rows);
  return num_panels * (panel_rows * (call.panel_dim() + call.padded_value_dim()) + panel_state_size) +
         whole_vectors(rows_of(call, u) * (call.padded_value_dim() + 2));
}

/// Numbers per KV head: queries, perhaps a second time in another form, sums, merged sums and scores, each with a row
/// of padding, and states of 8 rows and merged ones. Each thread has the decoded tile once in addition.
[[nodiscard]] inline std::int64_t scratch_of_head(const attention_call& call, const unit& u) noexcept {
  if (is_in_panels(call, u)) {
    return scratch_of_panels(call, u);
  }
  const auto copies_of_queries = call.copies_queries() ? 2 : 1;
  return whole_vectors((rows_of(call, u) + 1) * (copies_of_queries * call.padded_dim() + 2 * call.padded_value_dim() +
                                                 2 * row_padding + 2 + tile_tokens));
}

/// A decoded tile, and perhaps the scores and weights of two panels.
[[nodiscard]] inline std::int64_t scratch_of_tile(const attention_call& call) noexcept {
  return std::int64_t{tile_tokens} * (call.panel_dim() + call.padded_value_dim()) +
         (call.has_panels ? 4 * panel_rows * tile_tokens : 0);
}

/// Short chunks spread a sequence over many threads; a small number of chunks keeps the merge short. The results of a
/// chunk of panels take longer to merge, and prompts have many units.
[[nodiscard]] inline std::int64_t tokens_of_chunk(std::int64_t tokens, bool in_panels) noexcept {
  const auto shortest = std::int64_t{in_panels ? 2048 : 512};
  constexpr auto most_chunks = std::int64_t{64};
  return std::max(shortest, divide_up(divide_up(tokens, most_chunks), tile_tokens) * tile_tokens);
}

/// The number of rows that units have at most, or those of one query. Panels share what is done once for each tile.
[[nodiscard]] inline std::int32_t most_unit_rows(const attention_call& call) noexcept {
  return call.has_panels ? 256 : 64;
}

/// The tokens that a unit's queries see, or those of its list.
[[nodiscard]] inline token_range tokens_of(const attention_call& call, const unit& u) noexcept {
  if (call.batch.lists.kind != listed_blocks::none) {
    const auto num_entries = static_cast<std::int64_t>(call.list(u.row, u.first_head).size());
    return {0, call.position(u.row, u.first_query + u.num_queries - 1) < 0 ? 0 : num_entries * call.view.block_size};
  }
  return {visible_from(call.position(u.row, u.first_query), call.options.window).begin,
          visible_from(call.position(u.row, u.first_query + u.num_queries - 1), call.options.window).end};
}

inline void add_units(const attention_call& call, std::size_t row, std::vector<unit>& units) {
  const auto num_queries = call.num_queries(row);
  const auto step = std::max(1, most_unit_rows(call) / call.group_size);
  for (auto first = 0; first < num_queries; first += step) {
    auto u = unit{};
    u.row = row;
    u.first_query = first;
    u.num_queries = std::min(step, num_queries - first);
    // Lists of KV heads are read apart.
    u.num_heads = call.batch.lists.kind == listed_blocks::of_heads ? 1 : call.view.num_kv_heads;
    for (; u.first_head < call.view.num_kv_heads; u.first_head += u.num_heads) {
      u.seen = tokens_of(call, u);
      u.chunk_tokens = tokens_of_chunk(u.seen.size(), is_in_panels(call, u));
      u.num_chunks = static_cast<std::int32_t>(divide_up(u.seen.size(), u.chunk_tokens));
      units.push_back(u);
    }
  }
}

/// The shape by which shared prefixes are chosen. Costs are relative to the read of a tile for one row's queries.
[[nodiscard]] inline attention_shape shape_of_prefixes(const attention_call& call) noexcept {
  auto shape = attention_shape{};
  shape.block_size = call.view.block_size;
  shape.num_kv_heads = call.view.num_kv_heads;
  shape.group_size = call.group_size;
  shape.window = call.options.window;
  shape.max_rows = static_cast<std::int32_t>(call.batch.num_rows());
  shape.prefix_columns = call.has_panels ? most_unit_rows(call) : rows_to_decode_for - 1;
  shape.prefix_shares = 1;
  shape.prefix_costs = {call.has_panels ? 1 : 3, 16};
  return shape;
}

/// A row of the batch for the choice of shared prefixes.
[[nodiscard]] inline attention_row describe_row(const attention_call& call, std::size_t row) noexcept {
  auto described = attention_row{};
  described.first_index = call.batch.indptr[row];
  described.num_tokens = static_cast<std::int32_t>(
      std::min<std::int64_t>(call.num_tokens(row), std::numeric_limits<std::int32_t>::max()));
  described.num_queries = call.num_queries(row);
  described.num_column_tiles = 1;
  return described;
}

/// Removes the tokens of a prefix from the unit of one of its rows.
inline void shorten(unit& own, const unit& prefix) noexcept {
  own.seen.begin = prefix.seen.end;
  own.num_chunks = static_cast<std::int32_t>(divide_up(own.seen.size(), own.chunk_tokens));
}

/// Reserves memory for the partial results of all chunks of a unit.
inline void reserve_partials(const attention_call& call, work_plan& plan, unit& u) noexcept {
  u.first_partial = plan.num_partials;
  plan.num_partials += partials_size(call, u);
}

/// Divides a prefix into chunks whose partial results have so many numbers at most, but into one chunk at least. Every
/// row merges every chunk, so there are fewer chunks than of one row.
inline void divide_prefix(const attention_call& call, unit& prefix, std::int64_t most_numbers) noexcept {
  constexpr auto fewest_chunks = 8;
  const auto most_chunks = most_numbers / (partial_size(call, prefix) * prefix.num_heads);
  const auto wanted = std::max(fewest_chunks, 64 / call.view.num_kv_heads);
  const auto num_chunks = std::clamp<std::int64_t>(most_chunks, 1, wanted);
  prefix.chunk_tokens = std::max(tokens_of_chunk(prefix.seen.size(), false),
                                 divide_up(divide_up(prefix.seen.size(), num_chunks), tile_tokens) * tile_tokens);
  prefix.num_chunks = static_cast<std::int32_t>(divide_up(prefix.seen.size(), prefix.chunk_tokens));
}

/// Adds the unit of a shared prefix, and removes its tokens from the units of its rows. Each row has one unit. Without
/// memory for the partial results, the rows read the prefix themselves. `most_numbers`: the group's part of the memory.
inline void add_prefix(const attention_call& call, work_plan& plan, const attention_prefix_finder& finder,
                       const attention_prefix_group& group, std::span<const std::size_t> unit_of_row,
                       std::int64_t most_numbers) {
  const auto unit_of = [&](std::size_t i) { return unit_of_row[static_cast<std::size_t>(finder.row_of(group, i))]; };
  auto prefix = unit{};
  prefix.row = static_cast<std::size_t>(finder.row_of(group, 0));
  prefix.is_prefix = true;
  prefix.num_heads = call.view.num_kv_heads;
  prefix.first_query = static_cast<std::int32_t>(plan.prefix_queries.size());
  prefix.seen = {0, std::int64_t{group.num_tiles} * attention_tile};
  auto numbers = std::int64_t{0};  // of the rows' own results
  for (auto i = std::size_t{0}; i < group.num_members; ++i) {
    auto own = plan.units[unit_of(i)];
    shorten(own, prefix);
    numbers += partials_size(call, own);
    prefix.num_queries += own.num_queries;
  }
  divide_prefix(call, prefix, most_numbers - numbers);
  if (plan.num_partials + numbers + partials_size(call, prefix) > most_partials) {
    return;
  }
  auto query_of_prefix = std::int32_t{0};
  for (auto i = std::size_t{0}; i < group.num_members; ++i) {
    auto& own = plan.units[unit_of(i)];
    own.prefix = plan.units.size();
    own.query_of_prefix = query_of_prefix;
    query_of_prefix += own.num_queries;
    shorten(own, prefix);
    reserve_partials(call, plan, own);
    for (auto query = 0; query < own.num_queries; ++query) {
      plan.prefix_queries.push_back({own.row, query});
    }
  }
  reserve_partials(call, plan, prefix);
  plan.units.push_back(prefix);
}

/// Throws `std::bad_alloc`.
inline void share_prefixes(const attention_call& call, work_plan& plan) {
  const auto shape = shape_of_prefixes(call);
  if (!call.batch.shares_prefixes || call.batch.lists.kind != listed_blocks::none || call.batch.num_rows() < 2 ||
      !shape.may_share_prefixes()) {
    return;
  }
  auto rows = std::vector<attention_row>(call.batch.num_rows());
  auto unit_of_row = std::vector<std::size_t>(rows.size());
  for (auto row = std::size_t{0}; row < rows.size(); ++row) {
    rows[row] = describe_row(call, row);
  }
  for (auto i = std::size_t{0}; i < plan.units.size(); ++i) {
    unit_of_row[plan.units[i].row] = i;
  }
  auto finder = attention_prefix_finder(shape);
  finder.find(rows, call.batch.indices);
  const auto groups = finder.groups();
  for (auto i = std::size_t{0}; i < groups.size(); ++i) {
    const auto groups_left = static_cast<std::int64_t>(groups.size() - i);
    add_prefix(call, plan, finder, groups[i], unit_of_row, (most_partials - plan.num_partials) / groups_left);
  }
}

/// Estimated cost of a unit: bytes read plus, with a smaller weight, rows computed.
[[nodiscard]] inline std::int64_t cost_of(const attention_call& call, const unit& u) noexcept {
  return (u.seen.size() + tile_tokens) * u.num_heads * call.padded_dim() * (4 + rows_of(call, u));
}

/// Divides a unit into pieces of about `target` cost: by chunks first, then by heads. A single thread takes whole
/// units, but no more heads than fit its cache. Prompts have units enough for all threads, so results of chunks stay
/// few.
inline void add_pieces(const attention_call& call, work_plan& plan, std::size_t index, std::int64_t target) {
  constexpr auto most_scratch = std::int64_t{64} << 10;
  auto& u = plan.units[index];
  const auto num_heads = std::int64_t{u.num_heads};
  const auto heads_that_fit = std::clamp(most_scratch / scratch_of_head(call, u), std::int64_t{1}, num_heads);
  const auto wanted = target == 0 ? 1 : divide_up(cost_of(call, u), target);
  const auto is_reserved = u.first_partial >= 0;
  const auto has_room = is_reserved || plan.num_partials + partials_size(call, u) <= most_partials;
  const auto most_by_chunks = has_room ? std::max(1, u.num_chunks) : 1;
  const auto by_chunks = std::clamp<std::int64_t>(divide_up(wanted, divide_up(num_heads, heads_that_fit)), 1,
                                                  most_by_chunks);
  const auto by_heads = std::clamp(divide_up(wanted, by_chunks), divide_up(num_heads, heads_that_fit), num_heads);
  const auto heads = divide_up(num_heads, by_heads);
  const auto chunks = std::max<std::int64_t>(1, divide_up(u.num_chunks, by_chunks));
  if (chunks < u.num_chunks && !is_reserved) {
    reserve_partials(call, plan, u);
  }
  for (auto chunk = std::int64_t{0}; chunk < std::max(1, u.num_chunks); chunk += chunks) {
    for (auto head = std::int64_t{0}; head < num_heads; head += heads) {
      plan.pieces.push_back({index, u.first_head + static_cast<std::int32_t>(head),
                             static_cast<std::int32_t>(std::min(heads, num_heads - head)),
                             static_cast<std::int32_t>(chunk),
                             static_cast<std::int32_t>(std::min<std::int64_t>(chunks, u.num_chunks - chunk))});
    }
  }
  plan.scratch = std::max(plan.scratch, heads * scratch_of_head(call, u));
}

/// Divides the work among up to `most_threads`, evenly whatever the lengths are. Small work takes fewer threads,
/// because it takes time to wake one. Throws `std::bad_alloc`.
[[nodiscard]] inline work_plan make_plan(const attention_call& call, int most_threads) {
  constexpr auto pieces_per_thread = 16;
  constexpr auto smallest_cost = std::int64_t{1} << 18;       // of a piece
  constexpr auto smallest_share = std::int64_t{1} << 20;  // of a thread: 20 us
  auto plan = work_plan{};
  auto total = std::int64_t{0};
  for (auto row = std::size_t{0}; row < call.batch.num_rows(); ++row) {
    add_units(call, row, plan.units);
  }
  share_prefixes(call, plan);
  for (const auto& u : plan.units) {
    total += cost_of(call, u);
  }
  plan.num_threads = static_cast<int>(std::clamp<std::int64_t>(total / smallest_share, 1, std::max(1, most_threads)));
  const auto share = std::max(total / (std::int64_t{plan.num_threads} * pieces_per_thread), smallest_cost);
  for (auto i = std::size_t{0}; i < plan.units.size(); ++i) {
    add_pieces(call, plan, i, plan.num_threads == 1 ? 0 : share);
  }
  plan.scratch += scratch_of_tile(call);
  return plan;
}

}  // namespace pagedkv::host::attention
