// Attention of a few rows over one tile of tokens, for one instruction set; see vectors.inl.
#if defined(PAGEDKV_ISA)

namespace pagedkv::host::attention::PAGEDKV_ISA {

inline constexpr auto most_rows = 8;                    // rows in a set
inline constexpr auto most_sums = lanes >= 16 ? 16 : 8;  // vectors kept in registers

inline constexpr auto cache_line = 64;  // in bytes; an upper bound

/// A tile: the addresses of the tokens' keys and values, for one KV head. Tokens are padded to a multiple of 16 with
/// copies of the last one.
struct tile {
  const std::byte* keys = nullptr;    // plus the offset of a token
  const std::byte* values = nullptr;  // plus the value offset of a token
  const std::int64_t* offsets = nullptr;
  const std::int64_t* value_offsets = nullptr;
  // The next tile, to be prefetched.
  const std::byte* next_keys = nullptr;
  const std::byte* next_values = nullptr;
  const std::int64_t* next_offsets = nullptr;
  const std::int64_t* next_value_offsets = nullptr;
  const float* key_scales = nullptr;  // null: none
  const float* value_scales = nullptr;
  std::int64_t first_token = 0;
  std::int32_t num_tokens = 0;
  std::int32_t dim = 0;  // of keys; a multiple of the lanes
  std::int32_t value_dim = 0;
};

/// Prefetches into the second-level cache: the first-level cache cannot hold two tiles.
PAGEDKV_INLINE void fetch(const std::byte* line) { __builtin_prefetch(line, 0, 2); }

/// The state of up to 8 rows. A row is a query head of a query token. A vector of scores holds `lanes / Rows`
/// neighbouring tokens of each row, one row after the other.
struct row_set {
  const float* queries = nullptr;  // [row][padded dim], scaled
  float* sums = nullptr;           // [row][padded value dim]: values, weighted
  float* highest = nullptr;        // [lane]: highest score of the lane's row
  float* totals = nullptr;         // [lane]: sum of the weights in this lane
  std::int32_t stride = 0;         // from a row's queries to the next
  std::int32_t sum_stride = 0;     // from a row's sums to the next
  token_range seen[most_rows];             // by each row, in tokens of the tile
  std::int32_t positions[most_rows];       // of each row's query, relative to the tile's first token
  float slopes[most_rows];                 // of each row, times log2(e)
  std::uint64_t hidden[most_rows];         // by a tree mask: a bit for each token of the tile
  bool biased = false;
  bool in_tree = false;
  float cap = 0;  // times log2(e); the scores are divided by the cap beforehand
};

/// Products of queries and keys, for as many tokens of each row as a vector of scores holds. Prefetches the same part
/// of the next tile.
template <class Element, int Rows>
PAGEDKV_INLINE floats multiply_keys(const row_set& set, const tile& t, std::int32_t token) {
  constexpr auto tokens = lanes / Rows;
  constexpr auto numbers_of_line = static_cast<std::int32_t>(cache_line / size_of<Element>);
  const std::byte* keys[lanes];
  PAGEDKV_UNROLL for (auto i = 0; i < tokens; ++i) { keys[i] = t.keys + t.offsets[token + i]; }
  floats products[lanes];
  PAGEDKV_UNROLL for (auto i = 0; i < lanes; ++i) { products[i] = floats{}; }
  for (auto line = 0; line < t.dim; line += numbers_of_line) {
    PAGEDKV_UNROLL for (auto i = 0; i < tokens; ++i) {
      fetch(t.next_keys + t.next_offsets[token + i] + line * size_of<Element>);
    }
    const auto end = std::min(t.dim, line + numbers_of_line);
    for (auto d = line; d < end; d += lanes) {
      floats queries[most_rows];
      PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) { queries[r] = read_floats(set.queries + r * set.stride + d); }
      PAGEDKV_UNROLL for (auto i = 0; i < tokens; ++i) {
        const auto key = decode<Element>(keys[i] + d * size_of<Element>);
        PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) { products[r * tokens + i] += queries[r] * key; }
      }
    }
  }
  return add_up(products);
}

template <class Element, int Rows>
PAGEDKV_INLINE void compute_scores(const row_set& set, const tile& t, floats* scores) {
  constexpr auto tokens = lanes / Rows;
  for (auto token = 0; token < t.num_tokens; token += tokens) {
    scores[token / tokens] = multiply_keys<Element, Rows>(set, t, token);
  }
}

/// Broadcasts number `i` of each row to the row's lanes.
template <int Rows, class Number>
PAGEDKV_INLINE floats per_row(const Number* numbers) {
  constexpr auto tokens = lanes / Rows;
  float spread[lanes];
  for (auto lane = 0; lane < lanes; ++lane) {
    spread[lane] = static_cast<float>(numbers[lane / tokens]);
  }
  return read_floats(spread);
}

/// Scales of the tokens of score vector `i`, for every row.
template <int Rows>
PAGEDKV_INLINE floats scales_of(const float* scales, std::int32_t i) {
  constexpr auto tokens = lanes / Rows;
  if constexpr (Rows == 1) {
    return read_floats(scales + i * tokens);
  } else {
    float spread[lanes];
    for (auto row = 0; row < Rows; ++row) {
      __builtin_memcpy(spread + row * tokens, scales + i * tokens, sizeof(float) * tokens);
    }
    return read_floats(spread);
  }
}

/// Sets the scores of tokens that a tree mask hides to minus infinity.
template <int Rows>
PAGEDKV_NOINLINE void hide_branches(const row_set& set, const tile& t, floats* scores) {
  constexpr auto tokens = lanes / Rows;
  for (auto r = 0; r < Rows; ++r) {
    for (auto token = 0; token < t.num_tokens; ++token) {
      if ((set.hidden[r] >> token & 1) != 0) {
        scores[token / tokens][r * tokens + token % tokens] = -std::numeric_limits<float>::infinity();
      }
    }
  }
}

/// Converts products to scores: scale, cap, bias, and minus infinity where a row does not see the token.
template <int Rows>
PAGEDKV_INLINE void finish_scores(const row_set& set, const tile& t, floats* scores, bool all_seen) {
  constexpr auto tokens = lanes / Rows;
  const auto num_vectors = (t.num_tokens + tokens - 1) / tokens;
  if (t.key_scales != nullptr) {
    for (auto i = 0; i < num_vectors; ++i) {
      scores[i] *= scales_of<Rows>(t.key_scales, i);
    }
  }
  if (set.cap != 0) {
    for (auto i = 0; i < num_vectors; ++i) {
      scores[i] = set.cap * tanh(scores[i]);
    }
  }
  const auto own_token = __builtin_convertvector(lane_numbers() & (tokens - 1), floats);
  if (set.biased) {
    const auto slopes = per_row<Rows>(set.slopes);
    const auto distance = own_token - per_row<Rows>(set.positions);
    for (auto i = 0; i < num_vectors; ++i) {
      scores[i] += slopes * (distance + static_cast<float>(i * tokens));
    }
  }
  if (!all_seen || t.num_tokens % tokens != 0) {
    std::int32_t begins[most_rows];
    std::int32_t ends[most_rows];
    for (auto r = 0; r < Rows; ++r) {
      begins[r] = static_cast<std::int32_t>(set.seen[r].begin);
      ends[r] = static_cast<std::int32_t>(set.seen[r].end);
    }
    const auto begin = per_row<Rows>(begins);
    const auto end = per_row<Rows>(ends);
    for (auto i = 0; i < num_vectors; ++i) {
      const auto token = own_token + static_cast<float>(i * tokens);
      scores[i] = token < begin || token >= end ? all(-std::numeric_limits<float>::infinity()) : scores[i];
    }
  }
}

/// Converts scores to weights relative to the highest score so far. `decay` is the factor of the earlier sums.
template <int Rows>
PAGEDKV_INLINE void weigh(const row_set& set, const tile& t, floats* scores, float* decay) {
  constexpr auto tokens = lanes / Rows;
  const auto num_vectors = (t.num_tokens + tokens - 1) / tokens;
  auto tile_highest = all(-std::numeric_limits<float>::infinity());
  for (auto i = 0; i < num_vectors; ++i) {
    tile_highest = larger(tile_highest, scores[i]);
  }
  const auto before = read_floats(set.highest);
  const auto highest = larger(before, largest_of_run<tokens>(tile_highest));
  // While a row's highest score is minus infinity, the difference would be NaN.
  const auto base = highest == -std::numeric_limits<float>::infinity() ? floats{} : highest;
  const auto factor = exp2(before - base);
  auto total = read_floats(set.totals) * factor;
  for (auto i = 0; i < num_vectors; ++i) {
    scores[i] = exp2(scores[i] - base);
    total += scores[i];
  }
  write_floats(set.highest, highest);
  write_floats(set.totals, total);
  write_floats(decay, factor);
  if (t.value_scales != nullptr) {
    for (auto i = 0; i < num_vectors; ++i) {
      scores[i] *= scales_of<Rows>(t.value_scales, i);
    }
  }
}

/// Adds weighted values to `Chunk` vectors of the sums of `Rows` rows, whose weights and decays lie `Tokens` apart.
template <class Element, int Rows, int Tokens, int Chunk>
PAGEDKV_INLINE void add_chunk(const tile& t, token_range range, const float* weights, const float* decay, float* sums,
                              std::int32_t stride, std::int32_t d) {
  constexpr auto lines = divide_up(Chunk * lanes * size_of<Element>, cache_line);
  floats partial[most_sums];
  PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) {
    PAGEDKV_UNROLL for (auto c = 0; c < Chunk; ++c) {
      partial[r * Chunk + c] = read_floats(sums + r * stride + d + c * lanes) * decay[r * Tokens];
    }
  }
  const auto* const values = t.values + d * size_of<Element>;
  const auto* const next_values = t.next_values + d * size_of<Element>;
  for (auto token = range.begin; token < range.end; ++token) {
    const auto* const next = next_values + t.next_value_offsets[token];
    PAGEDKV_UNROLL for (auto line = 0; line < lines; ++line) { fetch(next + line * cache_line); }
    const auto* const row = values + t.value_offsets[token];
    const auto* const own = weights + token / Tokens * lanes + token % Tokens;
    floats value[most_sums];
    PAGEDKV_UNROLL for (auto c = 0; c < Chunk; ++c) { value[c] = decode<Element>(row + c * lanes * size_of<Element>); }
    PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) {
      const auto weight = all(own[r * Tokens]);
      PAGEDKV_UNROLL for (auto c = 0; c < Chunk; ++c) { partial[r * Chunk + c] += weight * value[c]; }
    }
  }
  PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) {
    PAGEDKV_UNROLL for (auto c = 0; c < Chunk; ++c) {
      write_floats(sums + r * stride + d + c * lanes, partial[r * Chunk + c]);
    }
  }
}

/// The same for all of their sums, in groups that fit the registers.
template <class Element, int Rows, int Tokens, int Chunk>
PAGEDKV_INLINE void add_values(const tile& t, token_range range, const float* weights, const float* decay, float* sums,
                               std::int32_t stride, std::int32_t d = 0) {
  for (; d + Chunk * lanes <= t.value_dim; d += Chunk * lanes) {
    add_chunk<Element, Rows, Tokens, Chunk>(t, range, weights, decay, sums, stride, d);
  }
  if constexpr (Chunk > 1) {
    add_values<Element, Rows, Tokens, Chunk / 2>(t, range, weights, decay, sums, stride, d);
  }
}

/// Processes a set of rows over one tile.
template <class Element, int Rows>
PAGEDKV_NOINLINE void attend_rows(const row_set& set, const tile& t) {
  constexpr auto tokens = lanes / Rows;
  auto all_seen = true;
  for (auto r = 0; r < Rows; ++r) {
    all_seen = all_seen && set.seen[r].begin == 0 && set.seen[r].end == t.num_tokens;
  }
  floats scores[tile_tokens * most_rows / lanes];
  float decay[lanes];
  compute_scores<Element, Rows>(set, t, scores);
  finish_scores<Rows>(set, t, scores, all_seen);
  if (set.in_tree) {
    hide_branches<Rows>(set, t, scores);
  }
  weigh<Rows>(set, t, scores, decay);
  float weights[tile_tokens * most_rows];
  __builtin_memcpy(weights, scores, sizeof(float) * tile_tokens * Rows);
  if (all_seen) {
    constexpr auto chunk = Rows == 1 ? 8 : most_sums / Rows;
    add_values<Element, Rows, tokens, chunk>(t, {0, t.num_tokens}, weights, decay, set.sums, set.sum_stride);
    return;
  }
  // A weight of zero does not cancel a NaN among values that a row does not see.
  for (auto r = 0; r < Rows; ++r) {
    add_values<Element, 1, tokens, 8>(t, set.seen[r], weights + r * tokens, decay + r * tokens,
                                      set.sums + r * set.sum_stride, set.sum_stride);
  }
}

}  // namespace pagedkv::host::attention::PAGEDKV_ISA

#endif
