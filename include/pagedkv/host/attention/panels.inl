// Attention of many rows over one tile of tokens with the processor's matrix unit (AMX); see vectors.inl. 16 rows are a
// panel, and the columns of matrices: products are [token][row] and sums [number][row]. So the lanes of a vector are
// rows, no vector is added up across its lanes, and weights leave one product as they enter the next.
#if defined(PAGEDKV_ISA)

namespace pagedkv::host::attention::PAGEDKV_ISA {

/// Elements that panels multiply.
template <class Element>
inline constexpr bool fits_panels = lanes >= 16 && has_panels_for<Element>;

#if PAGEDKV_LANES == 16

/// Numbers of bfloat16 whose sum is a key's or value's number. One part of queries and weights suffices for the
/// precision of bfloat16 and int8; queries have the second part if they are not numbers of bfloat16.
template <class Element>
inline constexpr auto parts_of = std::same_as<Element, float16> ? 2 : 1;

// Matrix registers, all of 16 rows of 16 words. Sums are [left][right].
inline constexpr auto left_register = 4;
inline constexpr auto right_register = 6;

inline constexpr auto pair_columns = 2 * panel_rows;  // two panels are multiplied together

PAGEDKV_NOINLINE void shape_panels() {
  auto shapes = matrix_shapes{};
  std::fill_n(shapes.row_bytes, 8, std::uint16_t{matrix_row});
  std::fill_n(shapes.num_rows, 8, std::uint8_t{16});
  asm volatile("ldtilecfg %0" : : "m"(shapes));
}

/// 2 to the power of a number, to 3e-6. 0 for minus infinity.
PAGEDKV_INLINE floats fast_exp2(floats x) {
  constexpr auto downward = 1;  // so that the fraction is not negative
  const auto number = reinterpret_cast<__m512>(x);
  const auto f = reinterpret_cast<floats>(_mm512_maskz_reduce_ps(0xffff, number, downward));
  auto p = all(0.01353416791f);
  p = p * f + 0.05201146062f;
  p = p * f + 0.2414427569f;
  p = p * f + 0.6930038345f;
  p = p * f + 1.000002593f;
  return reinterpret_cast<floats>(_mm512_maskz_scalef_ps(0xffff, reinterpret_cast<__m512>(p), number));
}

/// The state of a panel of one KV head, from tile to tile.
struct panel_state {
  float origins[panel_rows];  // scores that weights are relative to
  float totals[panel_rows];
  std::int32_t positions[panel_rows];  // of the rows' queries
  float slopes[panel_rows];            // times log2(e)
  std::int32_t has_low_part;           // whether one part of the queries is not all
};

static_assert(sizeof(panel_state) <= sizeof(float) * panel_state_size);

/// A panel, or two neighbouring ones, in one KV head.
struct panels {
  const float* queries;  // [panel][part][pair of numbers][row]
  float* sums;           // [panel][number][row]
  panel_state* states[2];
  std::int32_t count;
  std::int32_t dim;        // of keys, in whole matrix rows
  std::int32_t value_dim;  // padded

  [[nodiscard]] PAGEDKV_INLINE std::int64_t queries_size() const { return std::int64_t{dim} * panel_rows; }
  [[nodiscard]] PAGEDKV_INLINE std::int64_t sums_size() const { return std::int64_t{value_dim} * panel_rows; }
};

/// Factors of a tile's tokens: those that make scores of products, and ones for scores.
struct score_factors {
  float of_products[tile_tokens];
  float of_scores[tile_tokens];
};

/// How scores come from products.
struct score_rule {
  const score_factors* factors;
  float cap;  // times log2(e)
  std::int32_t window;
  bool biased;
};

/// The first `count` numbers of a row, and zeros up to a whole vector.
template <class Element>
PAGEDKV_INLINE floats decode_some(const std::byte* from, std::int32_t count) {
  if (count >= lanes) {
    return decode<Element>(from);
  }
  alignas(64) std::byte numbers[lanes * 4] = {};
  if (count > 0) {
    __builtin_memcpy(numbers, from, static_cast<std::size_t>(count * size_of<Element>));
  }
  return decode<Element>(numbers);
}

/// Lays out the queries of a panel, rows of `dim` numbers. Returns whether they have low parts.
PAGEDKV_NOINLINE bool lay_out_panel(const float* rows, std::int32_t dim, float* panel) {
  auto all_low = words{};
  for (auto d = 0; d < dim; d += pair_columns) {
    floats high[panel_rows];
    floats low[panel_rows];
    PAGEDKV_UNROLL for (auto r = 0; r < panel_rows; ++r) {
      const auto* const numbers = rows + r * dim + d;
      const auto parts = split_into_pairs(read_floats(numbers), read_floats(numbers + lanes));
      high[r] = reinterpret_cast<floats>(parts.high);
      low[r] = reinterpret_cast<floats>(parts.low);
      all_low |= parts.low;
    }
    exchange_rows<panel_rows>(high);
    exchange_rows<panel_rows>(low);
    auto* const to = panel + d / 2 * lanes;
    PAGEDKV_UNROLL for (auto i = 0; i < lanes; ++i) {
      write_floats(to + i * lanes, high[i]);
      write_floats(to + (dim / 2 + i) * lanes, low[i]);
    }
  }
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(all_low), reinterpret_cast<__m512i>(all_low)) != 0;
}

/// Lays out the keys of a tile: [part][token][number], with zeros up to whole matrices.
template <class Element>
PAGEDKV_NOINLINE void lay_out_panel_keys(const tile& t, std::int32_t dim, float* matrices) {
  const auto part = std::int64_t{tile_tokens} * dim / 2;
  for (auto token = std::int64_t{0}; token < t.num_tokens; ++token) {
    const auto* const from = t.keys + t.offsets[token];
    auto* const to = matrices + token * dim / 2;
    for (auto d = 0; d < dim; d += pair_columns) {
      if constexpr (std::same_as<Element, bfloat16>) {
        if (d + pair_columns <= t.dim) {
          write_words(reinterpret_cast<std::byte*>(to + d / 2), read<words>(from + d * 2));
        } else {
          std::fill_n(to + d / 2, lanes, 0.0f);
          __builtin_memcpy(to + d / 2, from + d * 2, static_cast<std::size_t>(t.dim - d) * 2);
        }
      } else {
        const auto first = decode_some<Element>(from + d * size_of<Element>, t.dim - d);
        const auto second = decode_some<Element>(from + (d + lanes) * size_of<Element>, t.dim - d - lanes);
        const auto parts = split_into_pairs(first, second);
        write_words(reinterpret_cast<std::byte*>(to + d / 2), parts.high);
        if constexpr (parts_of<Element> == 2) {
          write_words(reinterpret_cast<std::byte*>(to + part + d / 2), parts.low);
        }
      }
    }
  }
  const auto end = divide_up(t.num_tokens, pair_columns) * pair_columns;
  for (auto i = 0; i < parts_of<Element>; ++i) {
    std::fill(matrices + i * part + std::int64_t{t.num_tokens} * dim / 2, matrices + i * part + end * dim / 2, 0.0f);
  }
}

/// Transposes lines of 16 pairs of numbers into the rows `to`, so many words apart.
PAGEDKV_INLINE void write_transposed(floats* lines, float* to, std::int64_t distance) {
  exchange_rows<lanes>(lines);
  PAGEDKV_UNROLL for (auto i = 0; i < lanes; ++i) { write_floats(to + i * distance, lines[i]); }
}

/// Lays out 32 numbers of the values of 32 tokens, which all have values. `row`: words of a row of the matrices.
PAGEDKV_INLINE void lay_out_whole_values(const tile& t, std::int32_t first, std::int32_t d, std::int64_t row,
                                         float* to) {
  floats even[lanes];
  floats odd[lanes];
  PAGEDKV_UNROLL for (auto i = 0; i < lanes; ++i) {
    const auto a = read<words>(t.values + t.value_offsets[first + 2 * i] + d * 2);
    const auto b = read<words>(t.values + t.value_offsets[first + 2 * i + 1] + d * 2);
    even[i] = reinterpret_cast<floats>((a & ~upper_half) | b << 16);
    odd[i] = reinterpret_cast<floats>(a >> 16 | (b & upper_half));
  }
  write_transposed(even, to, 2 * row);
  write_transposed(odd, to + row, 2 * row);
}

/// Lays out 16 numbers of any element, without those of `skipped` tokens and of tokens after the last one.
template <class Element>
PAGEDKV_INLINE void lay_out_some_values(const tile& t, std::int32_t first, std::int32_t d, std::uint64_t skipped,
                                        std::int64_t row, std::int64_t part, float* to) {
  floats high[lanes];
  floats low[lanes];
  PAGEDKV_UNROLL for (auto i = 0; i < lanes; ++i) {
    floats numbers[2];
    PAGEDKV_UNROLL for (auto j = 0; j < 2; ++j) {
      const auto token = first + 2 * i + j;
      const auto is_empty = token >= t.num_tokens || (skipped >> token & 1) != 0;
      numbers[j] = is_empty ? floats{}
                            : decode_some<Element>(t.values + t.value_offsets[token] + d * size_of<Element>,
                                                   t.value_dim - d);
    }
    const auto parts = split_into_pairs(numbers[0], numbers[1]);
    high[i] = reinterpret_cast<floats>(parts.high);
    low[i] = reinterpret_cast<floats>(parts.low);
  }
  write_transposed(high, to, row);
  if constexpr (parts_of<Element> == 2) {
    write_transposed(low, to + part, row);
  }
}

/// Lays out the values of a tile: [part][number][token], without those of `skipped` tokens and with zeros up to whole
/// matrices.
template <class Element>
PAGEDKV_NOINLINE void lay_out_panel_values(const tile& t, std::int32_t padded_dim, std::uint64_t skipped,
                                           float* matrices) {
  constexpr auto row = std::int64_t{tile_tokens} / 2;  // in words
  for (auto first = 0; first < t.num_tokens; first += pair_columns) {
    const auto whole = std::same_as<Element, bfloat16> && first + pair_columns <= t.num_tokens && skipped == 0;
    for (auto d = 0; d < padded_dim;) {
      fetch_next(t, t.dim * size_of<Element>, 2);
      auto* const to = matrices + d * row + first / 2;
      if (whole && d + pair_columns <= t.value_dim) {
        lay_out_whole_values(t, first, d, row, to);
        d += pair_columns;
      } else {
        lay_out_some_values<Element>(t, first, d, skipped, row, padded_dim * row, to);
        d += lanes;
      }
    }
  }
}

/// The tokens of a tile that have a value that is not finite, one bit each. Integers are finite; of a row whose scale
/// is NaN, all numbers are.
template <class Element>
PAGEDKV_NOINLINE std::uint64_t find_non_finite(const tile& t) {
  auto found = std::uint64_t{0};
  for (auto token = 0; token < t.num_tokens && !std::same_as<Element, int8>; ++token) {
    auto zeros = floats{};
    for (auto d = 0; d < t.value_dim; d += lanes) {
      const auto numbers =
          decode_some<Element>(t.values + t.value_offsets[token] + d * size_of<Element>, t.value_dim - d);
      zeros += numbers - numbers;
    }
    const auto number = reinterpret_cast<__m512>(zeros);
    found |= std::uint64_t{_mm512_cmp_ps_mask(number, number, _CMP_UNORD_Q) != 0} << token;
  }
  return found;
}

template <int Rights>
PAGEDKV_INLINE void load_rights(const float* rights, std::int64_t right_distance) {
  load_matrix<right_register>(rights, matrix_row);
  if constexpr (Rights == 2) {
    load_matrix<right_register + 1>(rights + right_distance, matrix_row);
  }
}

template <int Lefts>
PAGEDKV_INLINE void load_lefts(const float* lefts, std::int64_t left_distance, std::int64_t left_row) {
  load_matrix<left_register>(lefts, left_row * 4);
  if constexpr (Lefts == 2) {
    load_matrix<left_register + 1>(lefts + left_distance, left_row * 4);
  }
}

/// Adds the products of the loaded matrices to the sums.
template <int Lefts, int Rights>
PAGEDKV_INLINE void multiply_loaded() {
  multiply_matrices<bfloat16, left_register, right_register, 0>();
  if constexpr (Rights == 2) {
    multiply_matrices<bfloat16, left_register, right_register + 1, 1>();
  }
  if constexpr (Lefts == 2) {
    multiply_matrices<bfloat16, left_register + 1, right_register, 2>();
    if constexpr (Rights == 2) {
      multiply_matrices<bfloat16, left_register + 1, right_register + 1, 3>();
    }
  }
}

/// Products of the tile's keys and the queries of one or two panels.
template <class Element, int Count>
PAGEDKV_NOINLINE void multiply_panel_keys(const panels& p, const tile& t, const float* keys, float* scores) {
  const auto key_row = p.dim / 2;  // in words
  const auto key_part = std::int64_t{tile_tokens} * key_row;
  const auto query_part = p.queries_size() / 2;
  const auto has_low_part = p.states[0]->has_low_part != 0 || p.states[Count - 1]->has_low_part != 0;
  constexpr auto line = pair_columns * 4;
  for (auto first = 0; first < t.num_tokens; first += pair_columns) {
    clear_matrix<0>();
    clear_matrix<1>();
    clear_matrix<2>();
    clear_matrix<3>();
    for (auto d = 0; d < key_row; d += lanes) {
      fetch_next(t, t.dim * size_of<Element>, 1);
      const auto* const own_keys = keys + first * key_row + d;
      const auto* const queries = p.queries + d * panel_rows;
      load_lefts<2>(own_keys, std::int64_t{lanes} * key_row, key_row);
      if (has_low_part) {
        load_rights<Count>(queries + query_part, p.queries_size());
        multiply_loaded<2, Count>();
      }
      load_rights<Count>(queries, p.queries_size());
      multiply_loaded<2, Count>();
      if constexpr (parts_of<Element> == 2) {
        load_lefts<2>(own_keys + key_part, std::int64_t{lanes} * key_row, key_row);
        multiply_loaded<2, Count>();
      }
    }
    auto* const to = scores + first * pair_columns;
    store_matrix<0>(to, line);
    store_matrix<2>(to + lanes * pair_columns, line);
    if constexpr (Count == 2) {
      store_matrix<1>(to + panel_rows, line);
      store_matrix<3>(to + lanes * pair_columns + panel_rows, line);
    }
  }
}

/// Adds the weighted values of a tile to some numbers of the sums of one or two panels.
template <class Element, int Lefts, int Count>
PAGEDKV_INLINE void add_panel_numbers(const panels& p, const tile& t, const float* values, const float* weights,
                                      std::int32_t d) {
  constexpr auto row = tile_tokens / 2;  // in words
  constexpr auto weight_part = row * panel_rows;
  auto* const sums = p.sums + d * panel_rows;
  load_matrix<0>(sums, matrix_row);
  if constexpr (Count == 2) {
    load_matrix<1>(sums + p.sums_size(), matrix_row);
  }
  if constexpr (Lefts == 2) {
    load_matrix<2>(sums + panel_rows * lanes, matrix_row);
    if constexpr (Count == 2) {
      load_matrix<3>(sums + p.sums_size() + panel_rows * lanes, matrix_row);
    }
  }
  for (auto first = 0; first < t.num_tokens; first += pair_columns) {
    fetch_next(t, t.dim * size_of<Element>, 1);
    const auto* const own_values = values + d * row + first / 2;
    const auto* const own_weights = weights + first / 2 * panel_rows;
    load_lefts<Lefts>(own_values, lanes * row, row);
    if constexpr (parts_of<Element> == 2) {
      load_rights<Count>(own_weights + weight_part, 2 * weight_part);
      multiply_loaded<Lefts, Count>();
    }
    load_rights<Count>(own_weights, 2 * weight_part);
    multiply_loaded<Lefts, Count>();
    if constexpr (parts_of<Element> == 2) {
      load_lefts<Lefts>(own_values + std::int64_t{p.value_dim} * row, lanes * row, row);
      multiply_loaded<Lefts, Count>();
    }
  }
  store_matrix<0>(sums, matrix_row);
  if constexpr (Count == 2) {
    store_matrix<1>(sums + p.sums_size(), matrix_row);
  }
  if constexpr (Lefts == 2) {
    store_matrix<2>(sums + panel_rows * lanes, matrix_row);
    if constexpr (Count == 2) {
      store_matrix<3>(sums + p.sums_size() + panel_rows * lanes, matrix_row);
    }
  }
}

template <class Element, int Count>
PAGEDKV_NOINLINE void add_panel_values(const panels& p, const tile& t, const float* values, const float* weights) {
  auto d = 0;
  for (; d + 2 * lanes <= p.value_dim; d += 2 * lanes) {
    add_panel_numbers<Element, 2, Count>(p, t, values, weights, d);
  }
  if (d < p.value_dim) {
    add_panel_numbers<Element, 1, Count>(p, t, values, weights, d);
  }
}

/// A bit for each lane.
PAGEDKV_INLINE std::uint32_t is_less(floats a, floats b) {
  return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), _CMP_LT_OQ);
}

PAGEDKV_NOINLINE void set_factors(const tile& t, float factor, score_factors& factors) {
  for (auto token = 0; token < tile_tokens; ++token) {
    const auto is_scaled = t.key_scales != nullptr && token < t.num_tokens;
    factors.of_products[token] = is_scaled ? factor * t.key_scales[token] : factor;
    factors.of_scores[token] = 1.0f;
  }
}

/// Which tokens of a tile the rows of a panel see.
struct panel_sight {
  floats begin;
  floats end;
  bool any_seen;
  bool all_seen;
};

PAGEDKV_INLINE panel_sight sight_of(const panel_state& state, const tile& t, std::int32_t window) {
  const auto seen = read<ints>(state.positions) - static_cast<std::int32_t>(t.first_token) + 1;
  const auto end = __builtin_convertvector(seen, floats);
  const auto begin = window == 0 ? floats{} : __builtin_convertvector(seen - window, floats);
  const auto tokens = all(static_cast<float>(t.num_tokens));
  const auto any_seen = (is_less(floats{}, end) & is_less(begin, tokens)) != 0;
  const auto all_seen = (is_less(floats{}, begin) | is_less(end, tokens)) == 0;
  return {begin, end < tokens ? end : tokens, any_seen, all_seen};
}

/// Converts the products of a panel to scores, with minus infinity where a row does not see a token.
PAGEDKV_NOINLINE void finish_panel_scores(const score_rule& rule, const tile& t, const panel_state& state,
                                          const panel_sight& sight, float* scores) {
  const auto slopes = read_floats(state.slopes);
  const auto distance =
      __builtin_convertvector(static_cast<std::int32_t>(t.first_token) - read<ints>(state.positions), floats);
  const auto end = divide_up(t.num_tokens, pair_columns) * pair_columns;
  for (auto token = std::int64_t{0}; token < end; ++token) {
    const auto number = all(static_cast<float>(token));
    auto score = read_floats(scores + token * pair_columns) * rule.factors->of_products[token];
    if (rule.cap != 0) {
      score = rule.cap * tanh(score);
    }
    if (rule.biased) {
      score += slopes * (distance + number);
    }
    score = number < sight.begin || number >= sight.end ? all(-std::numeric_limits<float>::infinity()) : score;
    write_floats(scores + token * pair_columns, score);
  }
}

/// The highest scores of the rows of a panel.
PAGEDKV_INLINE floats highest_of(const float* scores, std::int64_t num_tokens, const float* factors) {
  floats highest[4];
  PAGEDKV_UNROLL for (auto i = 0; i < 4; ++i) { highest[i] = all(-std::numeric_limits<float>::infinity()); }
  for (auto token = std::int64_t{0}; token < num_tokens; token += 4) {
    PAGEDKV_UNROLL for (auto i = 0; i < 4; ++i) {
      highest[i] = larger(highest[i], read_floats(scores + (token + i) * pair_columns) * factors[token + i]);
    }
  }
  return larger(larger(highest[0], highest[1]), larger(highest[2], highest[3]));
}

/// Selects what the weights are relative to, and multiplies the earlier sums of rows for which that changes. It is a
/// score that the highest one exceeds by a limited amount, so that it seldom changes.
PAGEDKV_INLINE floats follow_highest(panel_state& state, floats highest, float* sums, std::int32_t value_dim) {
  constexpr auto most = 8.0f;  // so weights are up to 2^8
  const auto before = read_floats(state.origins);
  if (is_less(before + most, highest) != 0) {
    const auto origins = before + most < highest ? highest : before;
    const auto decay = before == origins ? all(1.0f) : fast_exp2(before - origins);
    write_floats(state.origins, origins);
    write_floats(state.totals, read_floats(state.totals) * decay);
    for (auto d = 0; d < value_dim; ++d) {
      write_floats(sums + d * panel_rows, read_floats(sums + d * panel_rows) * decay);
    }
  }
  const auto origins = read_floats(state.origins);
  // While a row's is minus infinity, the difference to a score would be NaN.
  return origins == -std::numeric_limits<float>::infinity() ? floats{} : origins;
}

/// The nearest numbers of bfloat16, away from zero if there are two. NaN stays NaN, which the addition could make zero.
PAGEDKV_INLINE words round_weights(floats weights) {
  const auto rounded = reinterpret_cast<floats>((reinterpret_cast<words>(weights) + 0x8000U) & upper_half);
  return reinterpret_cast<words>(weights == weights ? rounded : all(std::numeric_limits<float>::quiet_NaN()));
}

/// Converts scores of a panel, each times its token's factor, to weights, of pairs of tokens, for the product with
/// values.
template <class Element>
PAGEDKV_NOINLINE void weigh_panel(const tile& t, const float* scores, const float* factors, panel_state& state,
                                  float* sums, std::int32_t value_dim, float* weights) {
  constexpr auto part = tile_tokens / 2 * panel_rows;
  const auto end = divide_up(t.num_tokens, pair_columns) * pair_columns;
  const auto origins = follow_highest(state, highest_of(scores, end, factors), sums, value_dim);
  floats totals[2] = {};
  for (auto token = std::int64_t{0}; token < end; token += 2) {
    floats own[2];
    PAGEDKV_UNROLL for (auto i = 0; i < 2; ++i) {
      own[i] = fast_exp2(read_floats(scores + (token + i) * pair_columns) * factors[token + i] - origins);
      if constexpr (Element::scaled) {
        totals[i] += own[i];
        const auto scale = t.value_scales[std::min<std::int64_t>(token + i, t.num_tokens - 1)];
        own[i] = own[i] == 0 ? floats{} : own[i] * scale;
      }
    }
    auto* const to = reinterpret_cast<std::byte*>(weights + token / 2 * panel_rows);
    if constexpr (parts_of<Element> == 2) {
      totals[0] += own[0];
      totals[1] += own[1];
      const auto parts = split_into_pairs(own[0], own[1]);
      write_words(to, parts.high);
      write_words(to + part * 4, parts.low);
    } else {
      const auto first = round_weights(own[0]);
      const auto second = round_weights(own[1]);
      if constexpr (!Element::scaled) {
        totals[0] += reinterpret_cast<floats>(first);
        totals[1] += reinterpret_cast<floats>(second);
      }
      write_words(to, first >> 16 | second);
    }
  }
  write_floats(state.totals, read_floats(state.totals) + totals[0] + totals[1]);
}

/// Adds the weighted values of a token to the sums of the rows of a panel that see it.
template <class Element>
PAGEDKV_NOINLINE void add_panel_token(const tile& t, std::int32_t token, floats score, const panel_state& state,
                                      float* sums) {
  const auto seen = score != -std::numeric_limits<float>::infinity();
  auto weight = fast_exp2(score - read_floats(state.origins));
  if constexpr (Element::scaled) {
    weight *= t.value_scales[token];
  }
  for (auto d = 0; d < t.value_dim; ++d) {
    float numbers[lanes];
    write_floats(numbers, decode_some<Element>(t.values + t.value_offsets[token] + d * size_of<Element>, 1));
    const auto sum = read_floats(sums + d * panel_rows);
    write_floats(sums + d * panel_rows, seen ? sum + weight * numbers[0] : sum);
  }
}

/// Writes the sums of a panel as rows.
PAGEDKV_NOINLINE void transpose_sums(const float* sums, std::int32_t value_dim, float* rows) {
  for (auto d = 0; d < value_dim; d += lanes) {
    floats numbers[panel_rows];
    PAGEDKV_UNROLL for (auto i = 0; i < panel_rows; ++i) { numbers[i] = read_floats(sums + (d + i) * panel_rows); }
    exchange_rows<panel_rows>(numbers);
    PAGEDKV_UNROLL for (auto i = 0; i < panel_rows; ++i) { write_floats(rows + i * value_dim + d, numbers[i]); }
  }
}

#endif

}  // namespace pagedkv::host::attention::PAGEDKV_ISA

#endif
