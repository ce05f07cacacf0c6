// Attention of up to 8 rows at a time over one tile of tokens with sums of products of pairs of 16-bit numbers; see
// vectors.inl. Keys and values of int8 become integers (AVX-512 VNNI). They are finite, so a weight of zero cancels
// those of a token that a row does not see. Those of bfloat16 are multiplied as they are (AVX-512 BF16), where every
// row sees all tokens.
#if defined(PAGEDKV_ISA)

namespace pagedkv::host::attention::PAGEDKV_ISA {

/// Elements that are multiplied in pairs.
template <class Element>
inline constexpr bool fits_pairs = fits_matrices<Element>;

/// With fewer rows, products of float32 are as fast.
template <class Element>
inline constexpr auto rows_for_pairs = std::same_as<Element, int8> ? 1 : 3;

#if PAGEDKV_LANES == 16

inline constexpr auto numbers_of_line = 2 * lanes;  // of 16 bits, in a vector
inline constexpr auto most_lines = 2;               // of a value, multiplied together
inline constexpr auto tokens_of_pass = 4;           // in one pass over values

/// Numbers of each row in a line of queries.
template <int Rows>
inline constexpr auto numbers_of_run = numbers_of_line / Rows;

/// A vector of sums: integers, or numbers of float32.
template <class Element>
using pair_sums = std::conditional_t<std::same_as<Element, int8>, ints, floats>;

/// Adds the products of 16-bit numbers, in pairs, to sums.
template <class Element>
PAGEDKV_PAIRS_INLINE pair_sums<Element> add_pair_products(pair_sums<Element> sums, ints a, ints b) {
  if constexpr (std::same_as<Element, int8>) {
    return reinterpret_cast<ints>(_mm512_dpwssd_epi32(reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(a),
                                                      reinterpret_cast<__m512i>(b)));
  } else {
  #if defined(__clang__)
    asm("" : "+v"(b));  // clang 16 crashes where it makes a copied word part of this instruction
  #endif
    return reinterpret_cast<floats>(_mm512_dpbf16_ps(reinterpret_cast<__m512>(sums), reinterpret_cast<__m512bh>(a),
                                                     reinterpret_cast<__m512bh>(b)));
  }
}

/// A line of keys or values as 16-bit numbers.
template <class Element>
PAGEDKV_INLINE __m512i read_line(const std::byte* from) {
  if constexpr (std::same_as<Element, int8>) {
    return _mm512_maskz_cvtepi8_epi16(0xffffffff, read<__m256i>(from));
  } else {
    return read<__m512i>(from);
  }
}

/// Numbers in steps, rounded to 16-bit integers.
PAGEDKV_INLINE __m256i round_to_steps(floats numbers, floats steps_of_one) {
  const auto whole = _mm512_maskz_cvtps_epi32(0xffff, reinterpret_cast<__m512>(numbers * steps_of_one));
  return _mm512_maskz_cvtepi32_epi16(0xffff, whole);
}

/// Numbers rounded to bfloat16.
PAGEDKV_PAIRS_INLINE __m256i round_to_bfloat16(floats numbers) {
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(reinterpret_cast<__m512>(numbers)));
}

PAGEDKV_INLINE floats widen_bfloat16(__m256i numbers) {
  return reinterpret_cast<floats>(widen(reinterpret_cast<shorts>(numbers)) << 16);
}

/// Writes numbers `d` to `d + 15` of a row's query to their places in the lines of a set.
template <int Rows>
PAGEDKV_INLINE void write_run(std::byte* lines, int r, std::int32_t d, __m256i numbers) {
  constexpr auto run = numbers_of_run<Rows>;
  constexpr auto each = std::min(run, lanes);
  std::int16_t parts[lanes];
  __builtin_memcpy(parts, &numbers, sizeof numbers);
  for (auto i = 0; i < lanes; i += each) {
    auto* const line = lines + (d + i) / run * matrix_row;
    __builtin_memcpy(line + (r * run + (d + i) % run) * 2, parts + i, each * sizeof(std::int16_t));
  }
}

/// Bytes of the lines of a set's queries.
template <int Rows>
PAGEDKV_INLINE std::int64_t bytes_of_lines(std::int32_t dim) {
  return std::int64_t{Rows} * dim * 2;
}

/// Lays out the queries of a set as lines: [line][row][number]. Those of int8 are rounded to 15 bits, in steps that
/// depend on the largest one of a row; the steps times `factor` follow as a vector. Those of bfloat16 have two parts,
/// one behind the other, whose sum they are to 16 bits. Returns whether the first part suffices.
template <class Element, int Rows>
PAGEDKV_PAIRS_NOINLINE bool lay_out_query_pairs(const row_set& set, std::int32_t dim, float factor) {
  auto* const lines = reinterpret_cast<std::byte*>(set.query_matrices);
  float steps[most_rows] = {};
  auto rest = ints{};
  for (auto r = 0; r < Rows; ++r) {
    const auto* const query = set.queries + r * set.stride;
    if constexpr (std::same_as<Element, int8>) {
      steps[r] = size_of_step(query, dim);
    }
    for (auto d = 0; d < dim; d += lanes) {
      const auto numbers = read_floats(query + d);
      if constexpr (std::same_as<Element, int8>) {
        write_run<Rows>(lines, r, d, round_to_steps(numbers, all(1 / steps[r])));
      } else {
        const auto high = round_to_bfloat16(numbers);
        const auto low = numbers - widen_bfloat16(high);
        rest |= low != 0;
        write_run<Rows>(lines, r, d, high);
        write_run<Rows>(lines + bytes_of_lines<Rows>(dim), r, d, round_to_bfloat16(low));
      }
    }
  }
  if constexpr (std::same_as<Element, int8>) {
    write_floats(set.query_matrices + steps_of_queries<Rows>(dim), per_row<Rows>(steps) * factor);
  }
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(rest), reinterpret_cast<__m512i>(rest)) == 0;
}

/// Finds keys of 16 tokens as 16-bit numbers at even distances; int8 is widened to `copies`, but stays as it is for a
/// single row of queries.
template <class Element>
PAGEDKV_NOINLINE key_matrix find_key_pairs(const tile& t, std::int64_t first, std::byte* copies, bool is_single) {
  if (std::same_as<Element, int8> && !is_single) {
    constexpr auto together = 2;  // lines; there are whole rows of a matrix
    const auto row_bytes = std::int64_t{t.dim} * 2;
    for (auto i = 0; i < lanes; ++i) {
      const auto* const key = t.keys + t.offsets[first + i];
      for (auto d = 0; d < t.dim; d += together * numbers_of_line) {
        PAGEDKV_UNROLL for (auto c = 0; c < together * numbers_of_line; c += numbers_of_line) {
          const auto line = read_line<int8>(key + d + c);
          __builtin_memcpy(copies + i * row_bytes + (d + c) * 2, &line, sizeof line);
        }
      }
    }
    return {copies, row_bytes};
  } else {
    return keys_of<Element>(t, first, copies);
  }
}

/// Scores of the keys of 16 tokens, with so many parts of the queries. Prefetches a line for each line of keys.
template <class Element, int Rows, int Parts>
PAGEDKV_PAIRS_NOINLINE void multiply_key_pairs(const row_set& set, const tile& t, std::int64_t first, key_matrix keys,
                                               float factor) {
  constexpr auto run = numbers_of_run<Rows>;
  constexpr auto tokens = lanes / Rows;
  constexpr auto run_bytes = lanes * run * size_of<Element>;  // of all keys
  constexpr auto tokens_of_fetch = lanes * cache_line / run_bytes;
  constexpr auto widens = Rows == 1 && std::same_as<Element, int8>;  // a line of keys has one of the queries
  const auto* query = reinterpret_cast<const std::byte*>(set.query_matrices);
  const auto* lower = keys.rows;
  const auto* upper = keys.rows + lanes / 2 * keys.stride;
  pair_sums<Element> sums[lanes];
  PAGEDKV_UNROLL for (auto i = 0; i < lanes; ++i) { sums[i] = pair_sums<Element>{}; }
  for (auto d = 0; d < t.dim; d += run) {
    const auto* const due = t.ahead == nullptr ? nullptr : t.ahead->take(run_bytes);
    ints line[static_cast<std::size_t>(Parts)];
    PAGEDKV_UNROLL for (auto part = 0; part < Parts; ++part) {
      line[part] = read<ints>(query + part * bytes_of_lines<Rows>(t.dim));
    }
    PAGEDKV_UNROLL for (auto token = 0; token < lanes; ++token) {
      const auto* const from = (token < lanes / 2 ? lower : upper) + token % (lanes / 2) * keys.stride;
      ints key;
      if constexpr (widens) {
        key = reinterpret_cast<ints>(read_line<int8>(from));
      } else {
        key = repeat<run / 2>(from);
      }
      PAGEDKV_UNROLL for (auto part = 0; part < Parts; ++part) {
        sums[token] = add_pair_products<Element>(sums[token], line[part], key);
      }
      if (token % tokens_of_fetch == 0) {
        fetch_lines<cache_line>(due == nullptr ? nullptr : due + token / tokens_of_fetch * cache_line);
      }
    }
    query += matrix_row;
    lower += run * (widens ? 1 : 2);
    upper += run * (widens ? 1 : 2);
  }
  auto factors = all(factor);
  if constexpr (std::same_as<Element, int8>) {
    factors = read_floats(set.query_matrices + steps_of_queries<Rows>(t.dim));
  }
  PAGEDKV_UNROLL for (auto i = 0; i < lanes; i += tokens) {
    const auto products = add_up<tokens / 2>(sums + i);
    write_floats(set.scores + (first + i) * Rows, __builtin_convertvector(products, floats) * factors);
  }
}

/// Rounds the weights of a tile, which stay in their order: to bfloat16, or to 15 bits in steps that depend on the
/// largest one of a row.
template <class Element, int Rows>
PAGEDKV_PAIRS_NOINLINE void round_weights(const row_set& set, const tile& t, matrix_buffer& buffer) {
  constexpr auto tokens = lanes / Rows;
  const auto num_vectors = divide_up(t.num_tokens, tokens);
  auto steps = all(1.0f);
  if constexpr (std::same_as<Element, int8>) {
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
    steps = infinite > 0.0f ? all(std::numeric_limits<float>::quiet_NaN()) : finite_steps;
  }
  const auto steps_of_one = 1.0f / steps;
  for (auto i = std::int64_t{0}; i < num_vectors; ++i) {
    const auto weights = read_floats(set.scores + i * lanes);
    const auto rounded =
        std::same_as<Element, int8> ? round_to_steps(weights, steps_of_one) : round_to_bfloat16(weights);
    __builtin_memcpy(buffer.weights + i * lanes * 2, &rounded, sizeof rounded);
  }
  std::fill_n(buffer.weights + num_vectors * lanes * 2, lanes * 2, std::byte{});  // up to whole passes
  PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) { buffer.steps[r] = steps[r * tokens]; }
}

/// The number of a line whose sum is at a place of a row's sums, which are in order, or as `sort_pairs` sorts them.
template <bool Sorted>
constexpr int number_at(int place) {
  return Sorted ? place % lanes * 2 + place / lanes : place;
}

/// From the sums of interleaved lines: the first or second 16 of a row's sums.
template <bool Sorted, int Second, class Sums, int... Lane>
PAGEDKV_INLINE floats take_sums(Sums low, Sums high, std::integer_sequence<int, Lane...>) {
  constexpr auto source = [](int number) { return number / 8 * 4 + number % 4 + number / 4 % 2 * lanes; };
  const auto sums = __builtin_shufflevector(low, high, source(number_at<Sorted>(Second * lanes + Lane))...);
  return __builtin_convertvector(sums, floats);
}

/// Adds the weighted values of a tile to `Count` lines of the sums of each row. Prefetches a line for each line of
/// values.
template <class Element, int Rows, int Count>
PAGEDKV_PAIRS_INLINE void add_value_lines(const row_set& set, const tile& t, const matrix_buffer& buffer, bool sorted,
                                          std::int32_t d) {
  constexpr auto tokens = lanes / Rows;
  constexpr auto lane = std::make_integer_sequence<int, lanes>{};
  constexpr auto line_bytes = numbers_of_line * size_of<Element>;
  constexpr auto fetched = tokens_of_pass * Count * line_bytes;
  const auto* const values = t.values + d * size_of<Element>;
  const auto* const offsets = t.value_offsets;
  const auto order = weight_order{tokens};
  pair_sums<Element> low[most_sums / 2];
  pair_sums<Element> high[most_sums / 2];
  PAGEDKV_UNROLL for (auto i = 0; i < Rows * Count; ++i) { low[i] = high[i] = pair_sums<Element>{}; }
  for (auto token = std::int64_t{0}; token < t.num_tokens; token += tokens_of_pass) {
    const auto* const due = t.ahead == nullptr ? nullptr : t.ahead->take(fetched);
    const auto* const weights = buffer.weights + order.at(token) * 2;
    PAGEDKV_UNROLL for (auto i = 0; i < tokens_of_pass; i += 2) {
      ints lower[most_lines];
      ints upper[most_lines];
      PAGEDKV_UNROLL for (auto c = 0; c < Count; ++c) {
        const auto a = read_line<Element>(values + offsets[token + i] + c * line_bytes);
        const auto b = read_line<Element>(values + offsets[token + i + 1] + c * line_bytes);
        lower[c] = reinterpret_cast<ints>(_mm512_unpacklo_epi16(a, b));
        upper[c] = reinterpret_cast<ints>(_mm512_unpackhi_epi16(a, b));
      }
      fetch_lines<fetched / 2>(due == nullptr ? nullptr : due + i / 2 * (fetched / 2));
      PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) {
        const auto weight = repeat<1>(weights + (order.at(i) + r * tokens) * 2);
        PAGEDKV_UNROLL for (auto c = 0; c < Count; ++c) {
          low[r * Count + c] = add_pair_products<Element>(low[r * Count + c], lower[c], weight);
          high[r * Count + c] = add_pair_products<Element>(high[r * Count + c], upper[c], weight);
        }
      }
    }
  }
  PAGEDKV_UNROLL for (auto i = 0; i < Rows * Count; ++i) {
    auto* const sums = set.sums + i / Count * set.sum_stride + d + i % Count * numbers_of_line;
    const auto steps = buffer.steps[i / Count];
    const auto first = sorted ? take_sums<true, 0>(low[i], high[i], lane) : take_sums<false, 0>(low[i], high[i], lane);
    const auto second = sorted ? take_sums<true, 1>(low[i], high[i], lane) : take_sums<false, 1>(low[i], high[i], lane);
    write_floats(sums, read_floats(sums) + first * steps);
    write_floats(sums + lanes, read_floats(sums + lanes) + second * steps);
  }
}

/// Adds the weighted values of a tile to the sums.
template <class Element, int Rows>
PAGEDKV_PAIRS_NOINLINE void add_value_pairs(const row_set& set, const tile& t, const matrix_buffer& buffer,
                                            bool sorted) {
  constexpr auto together = std::min(most_lines, most_sums / 2 / Rows);
  auto d = 0;
  for (; d + together * numbers_of_line <= t.value_dim; d += together * numbers_of_line) {
    add_value_lines<Element, Rows, together>(set, t, buffer, sorted, d);
  }
  for (; d < t.value_dim; d += numbers_of_line) {
    add_value_lines<Element, Rows, 1>(set, t, buffer, sorted, d);
  }
}

#else

struct key_matrix {};

#endif

}  // namespace pagedkv::host::attention::PAGEDKV_ISA

#endif
