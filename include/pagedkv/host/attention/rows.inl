// Attention of a few rows over one tile of tokens, for one instruction set; see vectors.inl.
#if defined(PAGEDKV_ISA)

namespace pagedkv::host::attention::PAGEDKV_ISA {

inline constexpr auto most_rows = 8;                    // rows in a set
inline constexpr auto most_sums = lanes >= 16 ? 16 : 8;  // vectors kept in registers
inline constexpr auto most_queue_rows = 2;              // with more, strips are prefetched, except on AMD's processors
inline constexpr auto most_together = 4;                // tokens whose keys are multiplied at once

/// A tile: the addresses of the tokens' keys and values, for one KV head. Tokens are padded to a multiple of 16 with
/// copies of the last one.
struct tile {
  const std::byte* keys = nullptr;    // plus the offset of a token
  const std::byte* values = nullptr;  // plus the value offset of a token
  const std::int64_t* offsets = nullptr;
  const std::int64_t* value_offsets = nullptr;
  fetch_queue* ahead = nullptr;  // prefetched meanwhile, if any
  strip next;   // without it: prefetched whole while a strip is processed
  strip later;  // of which only the start is
  const float* key_scales = nullptr;  // null: none
  const float* value_scales = nullptr;
  std::int64_t first_token = 0;
  std::int32_t num_tokens = 0;
  std::int32_t dim = 0;  // of keys; a multiple of the lanes
  std::int32_t value_dim = 0;
};

/// Prefetches as much as so many keys have.
PAGEDKV_INLINE void fetch_next(const tile& t, std::int64_t key_bytes, std::int32_t num_keys) {
  if (t.ahead != nullptr) {
    t.ahead->fetch(key_bytes * num_keys);
  }
}

/// The state of up to 8 rows. A row is a query head of a query token. A vector of scores holds `lanes / Rows`
/// neighbouring tokens of each row, one row after the other.
struct row_set {
  const float* queries = nullptr;  // [row][padded dim], scaled
  float* query_matrices = nullptr; // the same for products of matrices or pairs
  float* sums = nullptr;           // [row][padded value dim]: values, weighted
  float* scores = nullptr;         // vectors of scores of a tile, then of weights
  float* highest = nullptr;        // [lane]: highest score of the lane's row
  float* totals = nullptr;         // [lane]: sum of the weights in this lane
  std::int32_t num_rows = 0;
  std::int64_t first_row = 0;      // of the unit's rows
  std::int64_t index = 0;          // among the unit's sets
  std::int32_t stride = 0;         // from a row's queries to the next
  std::int32_t sum_stride = 0;     // from a row's sums to the next
  token_range seen[most_rows];             // by each row, in tokens of the tile
  std::int32_t positions[most_rows];       // of each row's query, relative to the tile's first token
  float slopes[most_rows];                 // of each row, times log2(e)
  std::uint64_t hidden[most_rows];         // by a tree mask: a bit for each token of the tile
  bool all_seen = false;  // every row sees every token of the tile
  bool biased = false;
  bool in_tree = false;
  float cap = 0;  // times log2(e); the scores are divided by the cap beforehand
};

/// Decodes `Vectors` vectors of a row: as many as a load reads, or one.
template <class Element, int Vectors>
PAGEDKV_INLINE void decode_vectors(const std::byte* from, floats* numbers) {
  if constexpr (Vectors % vectors_of_load<Element> == 0) {
    PAGEDKV_UNROLL for (auto i = 0; i < Vectors; i += vectors_of_load<Element>) {
      decode_load<Element>(from + i * lanes * size_of<Element>, numbers + i);
    }
  } else {
    PAGEDKV_UNROLL for (auto i = 0; i < Vectors; ++i) {
      numbers[i] = decode<Element>(from + i * lanes * size_of<Element>);
    }
  }
}

/// Adds the products of queries and keys over `Vectors` vectors of each row.
template <class Element, int Rows, int Count, int Vectors>
PAGEDKV_INLINE void multiply_vectors(const row_set& set, const std::byte* const* keys, std::int32_t d, floats* sums) {
  floats key[most_together * 4];  // a load has at most 4 vectors
  PAGEDKV_UNROLL for (auto i = 0; i < Count; ++i) {
    decode_vectors<Element, Vectors>(keys[i] + d * size_of<Element>, key + i * Vectors);
  }
  PAGEDKV_UNROLL for (auto v = 0; v < Vectors; ++v) {
    PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) {
      const auto query = read_floats(set.queries + r * set.stride + d + v * lanes);
      PAGEDKV_UNROLL for (auto i = 0; i < Count; ++i) { sums[r * Count + i] += query * key[i * Vectors + v]; }
    }
  }
}

/// Products of queries and the keys of `Count` tokens, which lie in `products` as in a vector of scores.
template <class Element, int Rows, int Count>
PAGEDKV_INLINE void multiply_tokens(const row_set& set, const tile& t, std::int32_t token, floats* products) {
  constexpr auto tokens = lanes / Rows;
  constexpr auto vectors = vectors_of_load<Element>;
  constexpr auto each = Count * vectors * lanes * size_of<Element>;
  constexpr auto loads = each < cache_line / 2 ? static_cast<int>(cache_line / each) : 1;  // between two prefetches
  const std::byte* keys[most_together];
  floats sums[lanes];
  PAGEDKV_UNROLL for (auto i = 0; i < Count; ++i) { keys[i] = t.keys + t.offsets[token + i]; }
  PAGEDKV_UNROLL for (auto i = 0; i < Rows * Count; ++i) { sums[i] = floats{}; }
  auto d = 0;
  const auto* due = t.ahead == nullptr ? nullptr : t.ahead->take(Count * t.dim * size_of<Element>);
  for (; d + loads * vectors * lanes <= t.dim; d += loads * vectors * lanes) {
    PAGEDKV_UNROLL for (auto i = 0; i < loads; ++i) {
      multiply_vectors<Element, Rows, Count, vectors>(set, keys, d + i * vectors * lanes, sums);
    }
    due = fetch_lines<loads * each>(due);
  }
  if (d < t.dim) {
    fetch_row_end(due, Count * (t.dim - d) * size_of<Element>);
  }
  for (; d < t.dim; d += lanes) {
    multiply_vectors<Element, Rows, Count, 1>(set, keys, d, sums);
  }
  PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) {
    PAGEDKV_UNROLL for (auto i = 0; i < Count; ++i) { products[r * tokens + i] = sums[r * Count + i]; }
  }
}

/// Products of queries and keys, of whole vectors of scores. Few tokens at a time, so that memory is read nearly in
/// order.
template <class Element, int Rows>
PAGEDKV_NOINLINE void multiply_keys(const row_set& set, const tile& t, token_range range) {
  constexpr auto tokens = lanes / Rows;
  constexpr auto together = std::min(most_together, tokens);
  for (auto token = static_cast<std::int32_t>(range.begin); token < range.end; token += tokens) {
    floats products[lanes];
    PAGEDKV_UNROLL for (auto i = 0; i < tokens; i += together) {
      const auto done = token + i - range.begin;
      fetch_ahead(t.next, t.later, done, done + together);
      multiply_tokens<Element, Rows, together>(set, t, token + i, products + i);
    }
    write_floats(set.scores + token * Rows, add_up(products));
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
  return reinterpret_cast<floats>(repeat<tokens>(scales + i * tokens));
}

/// Sets the scores of tokens that a tree mask hides to minus infinity.
template <int Rows>
PAGEDKV_NOINLINE void hide_branches(const row_set& set, const tile& t) {
  constexpr auto tokens = lanes / Rows;
  for (auto r = 0; r < Rows; ++r) {
    for (auto token = 0; token < t.num_tokens; ++token) {
      if ((set.hidden[r] >> token & 1) != 0) {
        set.scores[token / tokens * lanes + r * tokens + token % tokens] = -std::numeric_limits<float>::infinity();
      }
    }
  }
}

/// Converts products to scores: scale, cap, bias, and minus infinity where a row does not see the token.
template <int Rows>
PAGEDKV_INLINE void finish_scores(const row_set& set, const tile& t) {
  constexpr auto tokens = lanes / Rows;
  auto* const scores = set.scores;
  const auto num_vectors = (t.num_tokens + tokens - 1) / tokens;
  if (t.key_scales != nullptr) {
    for (auto i = 0; i < num_vectors; ++i) {
      write_floats(scores + i * lanes, read_floats(scores + i * lanes) * scales_of<Rows>(t.key_scales, i));
    }
  }
  if (set.cap != 0) {
    for (auto i = 0; i < num_vectors; ++i) {
      write_floats(scores + i * lanes, set.cap * tanh(read_floats(scores + i * lanes)));
    }
  }
  const auto own_token = __builtin_convertvector(lane_numbers() & (tokens - 1), floats);
  if (set.biased) {
    const auto slopes = per_row<Rows>(set.slopes);
    const auto distance = own_token - per_row<Rows>(set.positions);
    for (auto i = 0; i < num_vectors; ++i) {
      const auto bias = slopes * (distance + static_cast<float>(i * tokens));
      write_floats(scores + i * lanes, read_floats(scores + i * lanes) + bias);
    }
  }
  if (!set.all_seen || t.num_tokens % tokens != 0) {
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
      const auto score = read_floats(scores + i * lanes);
      write_floats(scores + i * lanes,
                   token < begin || token >= end ? all(-std::numeric_limits<float>::infinity()) : score);
    }
  }
}

/// Converts scores to weights relative to the highest score so far. `decay` is the factor of the earlier sums.
template <int Rows>
PAGEDKV_INLINE void exponentiate(const row_set& set, const tile& t, float* decay) {
  constexpr auto tokens = lanes / Rows;
  auto* const scores = set.scores;
  const auto num_vectors = (t.num_tokens + tokens - 1) / tokens;
  auto tile_highest = all(-std::numeric_limits<float>::infinity());
  for (auto i = 0; i < num_vectors; ++i) {
    tile_highest = larger(tile_highest, read_floats(scores + i * lanes));
  }
  const auto before = read_floats(set.highest);
  const auto highest = larger(before, largest_of_run<tokens>(tile_highest));
  // While a row's highest score is minus infinity, the difference would be NaN.
  const auto base = highest == -std::numeric_limits<float>::infinity() ? floats{} : highest;
  const auto factor = exp2(before - base);
  auto total = read_floats(set.totals) * factor;
  for (auto i = 0; i < num_vectors; ++i) {
    auto weight = exp2(read_floats(scores + i * lanes) - base);
    total += weight;
    if (t.value_scales != nullptr) {
      // The scale of a token that no row sees, or behind the last one, may be NaN.
      weight = weight == 0 ? floats{} : weight * scales_of<Rows>(t.value_scales, i);
    }
    write_floats(scores + i * lanes, weight);
  }
  write_floats(set.highest, highest);
  write_floats(set.totals, total);
  write_floats(decay, factor);
}

/// Converts the products of a tile to weights, and multiplies the earlier sums by their decay.
template <int Rows>
PAGEDKV_NOINLINE void weigh_scores(const row_set& set, const tile& t) {
  constexpr auto tokens = lanes / Rows;
  float decay[lanes];
  finish_scores<Rows>(set, t);
  if (set.in_tree) {
    hide_branches<Rows>(set, t);
  }
  exponentiate<Rows>(set, t, decay);
  for (auto r = 0; r < Rows; ++r) {
    if (decay[r * tokens] != 1.0f) {
      scale_row(set.sums + r * set.sum_stride, t.value_dim, decay[r * tokens]);
    }
  }
}

/// Where the weights of a row are: in vectors that hold a power of two of its neighbouring tokens.
struct weight_order {
  std::int32_t tokens;  // of a row in a vector

  [[nodiscard]] PAGEDKV_INLINE std::int64_t at(std::int64_t token) const {
    return (token >> std::countr_zero(static_cast<std::uint32_t>(tokens))) * lanes + (token & (tokens - 1));
  }
};

/// Adds a token's weighted values to `Chunk` vectors of the sums of `Rows` rows.
template <class Element, int Rows, int Chunk>
PAGEDKV_INLINE void add_token(const std::byte* row, const float* weights, std::int32_t distance, floats* sums) {
  floats value[most_sums];
  decode_vectors<Element, Chunk>(row, value);
  PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) {
    const auto weight = all(weights[r * distance]);
    PAGEDKV_UNROLL for (auto c = 0; c < Chunk; ++c) { sums[r * Chunk + c] += weight * value[c]; }
  }
}

/// Adds weighted values to `Chunk` vectors of the sums of `Rows` rows. As many tokens as have a cache line in these
/// columns take turns with a prefetch of one.
template <class Element, int Rows, int Chunk>
PAGEDKV_INLINE void add_chunk(const tile& t, token_range range, const float* weights, weight_order order, float* sums,
                              std::int32_t stride, std::int32_t d) {
  floats partial[most_sums];
  PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) {
    PAGEDKV_UNROLL for (auto c = 0; c < Chunk; ++c) {
      partial[r * Chunk + c] = read_floats(sums + r * stride + d + c * lanes);
    }
  }
  const auto* const values = t.values + d * size_of<Element>;
  constexpr auto each = Chunk * lanes * size_of<Element>;
  constexpr auto together = static_cast<int>(std::max<std::int64_t>(1, cache_line / each));
  // Each pass prefetches its part of the rows, at even distances.
  const auto num_passes = std::max(1, t.value_dim / (Chunk * lanes));
  auto due = t.ahead != nullptr ? 0 : range.size() * (d / (Chunk * lanes)) / num_passes;
  auto wait = 0;
  auto token = range.begin;
  for (; token + together <= range.end; token += together) {
    if (t.ahead != nullptr) {
      fetch_lines<together * each>(t.ahead->take(together * each));
    } else if (wait <= 0) {
      fetch_ahead(t.next, t.later, due, due + 1);
      ++due;
      wait += num_passes;
    }
    wait -= together;
    PAGEDKV_UNROLL for (auto i = 0; i < together; ++i) {
      add_token<Element, Rows, Chunk>(values + t.value_offsets[token + i], weights + order.at(token + i), order.tokens,
                                      partial);
    }
  }
  for (; token < range.end; ++token) {
    add_token<Element, Rows, Chunk>(values + t.value_offsets[token], weights + order.at(token), order.tokens, partial);
  }
  PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) {
    PAGEDKV_UNROLL for (auto c = 0; c < Chunk; ++c) {
      write_floats(sums + r * stride + d + c * lanes, partial[r * Chunk + c]);
    }
  }
}

/// Adds the columns of all of their sums, in groups that fit the registers.
template <class Element, int Rows, int Chunk>
PAGEDKV_INLINE void add_columns(const tile& t, token_range range, const float* weights, weight_order order, float* sums,
                                std::int32_t stride, std::int32_t d = 0) {
  for (; d + Chunk * lanes <= t.value_dim; d += Chunk * lanes) {
    add_chunk<Element, Rows, Chunk>(t, range, weights, order, sums, stride, d);
  }
  if constexpr (Chunk > 1) {
    add_columns<Element, Rows, Chunk / 2>(t, range, weights, order, sums, stride, d);
  }
}

/// Adds the weighted values of the tokens that each row sees: a weight of zero does not cancel a NaN among others.
template <class Element>
PAGEDKV_NOINLINE void add_seen_values(const row_set& set, const tile& t, token_range range) {
  const auto order = weight_order{lanes / set.num_rows};
  for (auto r = 0; r < set.num_rows; ++r) {
    const auto own = token_range{std::max(range.begin, set.seen[r].begin), std::min(range.end, set.seen[r].end)};
    const auto hidden = set.in_tree ? set.hidden[r] : 0;
    for (auto first = own.begin; first < own.end;) {
      if ((hidden >> first & 1) != 0) {
        ++first;
        continue;
      }
      const auto end = std::min<std::int64_t>(own.end, first + std::countr_zero(hidden >> first));
      add_columns<Element, 1, 8>(t, {first, end}, set.scores + r * order.tokens, order, set.sums + r * set.sum_stride,
                                 set.sum_stride);
      first = end;
    }
  }
}

/// Adds the weighted values of some tokens, which all rows see, to the sums.
template <class Element, int Rows>
PAGEDKV_NOINLINE void add_values(const row_set& set, const tile& t, token_range range) {
  add_columns<Element, Rows, most_sums / Rows>(t, range, set.scores, {lanes / Rows}, set.sums, set.sum_stride);
}

}  // namespace pagedkv::host::attention::PAGEDKV_ISA

#endif
