// Attention of a few rows over one tile of tokens of int8 with products of 16-bit integers (AVX-512 VNNI); see
// vectors.inl. Queries and weights are rounded to 15 bits, in steps that depend on the largest one of a row. Keys and
// values are finite, so a weight of zero cancels those of a token that a row does not see.
#if defined(PAGEDKV_ISA)

namespace pagedkv::host::attention::PAGEDKV_ISA {

/// Elements that are multiplied as integers.
template <class Element>
inline constexpr bool fits_integers = lanes >= 16 && std::same_as<Element, int8>;

#if PAGEDKV_LANES == 16

inline constexpr auto numbers_of_line = 2 * lanes;  // 16-bit integers in a vector
inline constexpr auto most_lines = 2;               // of a value, multiplied together
inline constexpr auto tokens_of_pass = 4;           // in one pass over values

/// Numbers of each row in a line of queries.
template <int Rows>
inline constexpr auto numbers_of_run = numbers_of_line / Rows;

/// Adds the products of 16-bit integers, in pairs, to sums.
PAGEDKV_VNNI_INLINE ints add_pair_products(ints sums, ints a, ints b) {
  return reinterpret_cast<ints>(_mm512_dpwssd_epi32(reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(a),
                                                    reinterpret_cast<__m512i>(b)));
}

PAGEDKV_INLINE __m512i widen_line(const std::byte* from) {
  return _mm512_maskz_cvtepi8_epi16(0xffffffff, read<__m256i>(from));
}

/// Numbers in steps, rounded to 16-bit integers.
PAGEDKV_INLINE __m256i round_to_steps(floats numbers, floats steps_of_one) {
  const auto whole = _mm512_maskz_cvtps_epi32(0xffff, reinterpret_cast<__m512>(numbers * steps_of_one));
  return _mm512_maskz_cvtepi32_epi16(0xffff, whole);
}

/// Lays out the queries of a set as lines: [line][row][number]. Their steps follow as a vector.
template <class Element, int Rows>
PAGEDKV_NOINLINE void lay_out_integer_queries(const row_set& set, std::int32_t dim) {
  constexpr auto run = numbers_of_run<Rows>;
  constexpr auto each = std::min(run, lanes);
  auto* const lines = reinterpret_cast<std::byte*>(set.query_matrices);
  float steps[most_rows] = {};
  for (auto r = 0; r < Rows; ++r) {
    const auto* const query = set.queries + r * set.stride;
    steps[r] = size_of_step(query, dim);
    for (auto d = 0; d < dim; d += lanes) {
      const auto numbers = round_to_steps(read_floats(query + d), all(1 / steps[r]));
      std::int16_t parts[lanes];
      __builtin_memcpy(parts, &numbers, sizeof numbers);
      for (auto i = 0; i < lanes; i += each) {
        auto* const line = lines + (d + i) / run * matrix_row;
        __builtin_memcpy(line + (r * run + (d + i) % run) * 2, parts + i, each * sizeof(std::int16_t));
      }
    }
  }
  write_floats(set.query_matrices + steps_of_queries<Rows>(dim), per_row<Rows>(steps));
}

/// Widens the keys of 16 tokens to 16 bits: [line of numbers][token][number].
template <class Element>
PAGEDKV_NOINLINE void widen_keys(const tile& t, std::int64_t first, std::int16_t* to) {
  const auto* const offsets = t.offsets + first;
  const auto* const end = t.keys + t.dim;
  for (const auto* keys = t.keys; keys != end; keys += numbers_of_line) {
    PAGEDKV_UNROLL for (auto i = 0; i < lanes; ++i) {
      const auto line = widen_line(keys + offsets[i]);
      __builtin_memcpy(to + i * numbers_of_line, &line, sizeof line);
    }
    to += lanes * numbers_of_line;
  }
}

/// Scores of the keys of 16 tokens, which are widened.
template <class Element, int Rows>
PAGEDKV_VNNI_NOINLINE void multiply_integer_keys(const row_set& set, const tile& t, std::int64_t first,
                                                 const std::int16_t* keys) {
  constexpr auto run = numbers_of_run<Rows>;
  constexpr auto tokens = lanes / Rows;
  constexpr auto fetched = 6 * cache_line;  // for each line of numbers
  const auto* query = reinterpret_cast<const std::byte*>(set.query_matrices);
  ints sums[lanes];
  PAGEDKV_UNROLL for (auto i = 0; i < lanes; ++i) { sums[i] = ints{}; }
  for (auto d = 0; d < t.dim; d += numbers_of_line) {
    fetch_lines<fetched>(t.ahead == nullptr ? nullptr : t.ahead->take(fetched));
    for (auto i = 0; i < numbers_of_line; i += run) {
      const auto line = read<ints>(query);
      PAGEDKV_UNROLL for (auto token = 0; token < lanes; ++token) {
        sums[token] = add_pair_products(sums[token], line, repeat<run / 2>(keys + token * numbers_of_line + i));
      }
      query += matrix_row;
    }
    keys += lanes * numbers_of_line;
  }
  const auto steps = read_floats(set.query_matrices + steps_of_queries<Rows>(t.dim));
  PAGEDKV_UNROLL for (auto i = 0; i < lanes; i += tokens) {
    const auto products = add_up<tokens / 2>(sums + i);
    write_floats(set.scores + (first + i) * Rows, __builtin_convertvector(products, floats) * steps);
  }
}

/// Rounds the weights of a tile, which stay in their order.
template <class Element, int Rows>
PAGEDKV_NOINLINE void round_weights(const row_set& set, const tile& t, matrix_buffer& buffer) {
  constexpr auto tokens = lanes / Rows;
  const auto num_vectors = divide_up(t.num_tokens, tokens);
  auto largest = floats{};
  auto zeros = floats{};
  for (auto i = std::int64_t{0}; i < num_vectors; ++i) {
    const auto weights = read_floats(set.scores + i * lanes);
    largest = larger(largest, larger(weights, -weights));
    zeros += weights - weights;
  }
  // Integers cannot say that a weight is not finite.
  const auto infinite = largest_of_run<tokens>(zeros == zeros ? floats{} : all(1.0f));
  const auto most = largest_of_run<tokens>(largest);
  const auto finite_steps = most > 0.0f ? most / most_steps : all(1.0f);
  const auto steps = infinite > 0.0f ? all(std::numeric_limits<float>::quiet_NaN()) : finite_steps;
  const auto steps_of_one = 1.0f / steps;
  for (auto i = std::int64_t{0}; i < num_vectors; ++i) {
    const auto weights = round_to_steps(read_floats(set.scores + i * lanes), steps_of_one);
    __builtin_memcpy(buffer.weights + i * lanes * 2, &weights, sizeof weights);
  }
  std::fill_n(buffer.weights + num_vectors * lanes * 2, lanes * 2, std::byte{});  // up to whole passes
  PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) { buffer.steps[r] = steps[r * tokens]; }
}

/// From the sums of interleaved lines: those of the first or second 16 numbers.
template <int Second, int... Lane>
PAGEDKV_INLINE ints in_order(ints low, ints high, std::integer_sequence<int, Lane...>) {
  return __builtin_shufflevector(low, high, (Lane / 8 * 4 + Second * 8 + Lane / 4 % 2 * lanes + Lane % 4)...);
}

/// Adds the weighted values of a tile to `Count` lines of the sums of each row.
template <int Rows, int Count>
PAGEDKV_VNNI_INLINE void add_integer_lines(const row_set& set, const tile& t, const matrix_buffer& buffer,
                                           std::int32_t d) {
  constexpr auto tokens = lanes / Rows;
  constexpr auto lane = std::make_integer_sequence<int, lanes>{};
  constexpr auto fetched = tokens_of_pass * Count * numbers_of_line;
  const auto* const values = t.values + d;
  ints low[most_sums / 2];
  ints high[most_sums / 2];
  PAGEDKV_UNROLL for (auto i = 0; i < Rows * Count; ++i) { low[i] = high[i] = ints{}; }
  const auto order = weight_order{tokens};
  const auto* const offsets = t.value_offsets;
  for (auto token = std::int64_t{0}; token < t.num_tokens; token += tokens_of_pass) {
    fetch_lines<fetched>(t.ahead == nullptr ? nullptr : t.ahead->take(fetched));
    const auto* const weights = buffer.weights + order.at(token) * 2;
    PAGEDKV_UNROLL for (auto i = 0; i < tokens_of_pass; i += 2) {
      ints lower[most_lines];
      ints upper[most_lines];
      PAGEDKV_UNROLL for (auto c = 0; c < Count; ++c) {
        const auto a = widen_line(values + offsets[token + i] + c * numbers_of_line);
        const auto b = widen_line(values + offsets[token + i + 1] + c * numbers_of_line);
        lower[c] = reinterpret_cast<ints>(_mm512_unpacklo_epi16(a, b));
        upper[c] = reinterpret_cast<ints>(_mm512_unpackhi_epi16(a, b));
      }
      PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) {
        const auto weight = repeat<1>(weights + (order.at(i) + r * tokens) * 2);
        PAGEDKV_UNROLL for (auto c = 0; c < Count; ++c) {
          low[r * Count + c] = add_pair_products(low[r * Count + c], lower[c], weight);
          high[r * Count + c] = add_pair_products(high[r * Count + c], upper[c], weight);
        }
      }
    }
  }
  PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) {
    PAGEDKV_UNROLL for (auto i = 0; i < Count; ++i) {
      auto* const sums = set.sums + r * set.sum_stride + d + i * numbers_of_line;
      const auto a = in_order<0>(low[r * Count + i], high[r * Count + i], lane);
      const auto b = in_order<1>(low[r * Count + i], high[r * Count + i], lane);
      write_floats(sums, read_floats(sums) + __builtin_convertvector(a, floats) * buffer.steps[r]);
      write_floats(sums + lanes, read_floats(sums + lanes) + __builtin_convertvector(b, floats) * buffer.steps[r]);
    }
  }
}

/// Adds the weighted values of a tile to the sums.
template <class Element, int Rows>
PAGEDKV_VNNI_NOINLINE void add_integers(const row_set& set, const tile& t, const matrix_buffer& buffer) {
  constexpr auto together = std::min(most_lines, most_sums / 2 / Rows);
  for (auto d = 0; d < t.value_dim; d += together * numbers_of_line) {
    add_integer_lines<Rows, together>(set, t, buffer, d);
  }
}

#endif

}  // namespace pagedkv::host::attention::PAGEDKV_ISA

#endif
