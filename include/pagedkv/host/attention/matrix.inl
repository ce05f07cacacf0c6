// Attention of a few rows over one tile of tokens with the processor's matrix unit (AMX); see vectors.inl. Queries and
// weights are split into two numbers of bfloat16, or two of int8, so that products keep 15 bits or more of them.
// Infinite keys and values may give NaN.
#if defined(PAGEDKV_ISA)

namespace pagedkv::host::attention::PAGEDKV_ISA {

inline constexpr auto matrix_row = 64;  // bytes in a row of a matrix register

/// Elements that the matrix unit multiplies.
template <class Element>
inline constexpr bool fits_matrices = lanes >= 16 && (std::same_as<Element, bfloat16> || std::same_as<Element, int8>);

/// With fewer rows, other instructions are as fast.
template <class Element>
inline constexpr auto rows_for_matrices = std::same_as<Element, int8> ? 3 : 7;

/// Products of longer keys could overflow the integers of their sums.
template <class Element>
inline constexpr auto most_dim_for_matrices =
    std::same_as<Element, int8> ? 1024 : std::numeric_limits<std::int32_t>::max();

/// Numbers of queries and keys that a row of a matrix register holds.
template <class Element>
inline constexpr auto numbers_of_row = matrix_row / static_cast<int>(size_of<Element>);

// Rows that the functions prefetch for each 16 tokens, so that memory is read evenly.
inline constexpr auto rows_ahead = 10;

#if PAGEDKV_LANES == 16

using words = std::uint32_t __attribute__((vector_size(4 * PAGEDKV_LANES)));

inline constexpr auto upper_half = std::uint32_t{0xffff0000};

PAGEDKV_INLINE void write_words(void* to, words v) { __builtin_memcpy(to, &v, sizeof v); }

/// Shapes of the matrix registers, as the processor reads them.
struct alignas(64) matrix_shapes {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t num_rows[16] = {};
};

// The registers. Queries and weights have two parts, which are rows or columns of one matrix or two matrices.
inline constexpr auto product_register = 0;  // [token][part and row]
inline constexpr auto wide_register = 1;     // keys: [token][numbers]; or values: [tokens][numbers]
inline constexpr auto query_register = 2;    // [numbers][part and row]
inline constexpr auto sum_register = 3;      // and those after it: [row][numbers]
inline constexpr auto second_sum_register = 4;
inline constexpr auto weight_register = 5;   // two of bfloat16: [row][tokens]
inline constexpr auto byte_weight_register = 7;

template <int Register>
PAGEDKV_INLINE void load_matrix(const void* from, std::int64_t stride) {
  asm volatile("{tileloadd (%0,%1,1), %%tmm%c2|tileloadd tmm%c2, [%0+%1*1]}"
               :
               : "r"(from), "r"(stride), "i"(Register)
               : "memory");
}

template <int Register>
PAGEDKV_INLINE void store_matrix(void* to, std::int64_t stride) {
  asm volatile("{tilestored %%tmm%c2, (%0,%1,1)|tilestored [%0+%1*1], tmm%c2}"
               :
               : "r"(to), "r"(stride), "i"(Register)
               : "memory");
}

template <int Register>
PAGEDKV_INLINE void clear_matrix() {
  asm volatile("{tilezero %%tmm%c0|tilezero tmm%c0}" : : "i"(Register));
}

/// Adds the product of two matrices to a third.
template <class Element, int Left, int Right, int Sum>
PAGEDKV_INLINE void multiply_matrices() {
  if constexpr (std::same_as<Element, int8>) {
    asm volatile("{tdpbssd %%tmm%c1, %%tmm%c0, %%tmm%c2|tdpbssd tmm%c2, tmm%c0, tmm%c1}"
                 :
                 : "i"(Left), "i"(Right), "i"(Sum));
  } else {
    asm volatile("{tdpbf16ps %%tmm%c1, %%tmm%c0, %%tmm%c2|tdpbf16ps tmm%c2, tmm%c0, tmm%c1}"
                 :
                 : "i"(Left), "i"(Right), "i"(Sum));
  }
}

/// Prepares the calling thread's matrix registers for sets of so many rows, until `release_matrices`.
template <class Element>
PAGEDKV_NOINLINE void shape_matrices(int rows) {
  auto shapes = matrix_shapes{};
  for (auto i = 0; i < 8; ++i) {
    const auto narrow = i == product_register || i == query_register;
    const auto long_rows = i < sum_register;
    const auto sum_rows = std::same_as<Element, int8> ? 2 * rows : rows;
    shapes.row_bytes[i] = static_cast<std::uint16_t>(narrow ? 2 * rows * 4 : matrix_row);
    shapes.num_rows[i] = static_cast<std::uint8_t>(long_rows ? 16 : sum_rows);
  }
  asm volatile("ldtilecfg %0" : : "m"(shapes));
}

PAGEDKV_INLINE void release_matrices() { asm volatile("tilerelease"); }

/// Pairs of numbers of bfloat16 whose sums are pairs of given numbers, to 15 bits or more.
struct split_pairs {
  words high;
  words low;
};

PAGEDKV_INLINE split_pairs split_into_pairs(floats first, floats second) {
  const auto high_first = reinterpret_cast<words>(first) & upper_half;
  const auto high_second = reinterpret_cast<words>(second) & upper_half;
  const auto low_first = reinterpret_cast<words>(first - reinterpret_cast<floats>(high_first));
  const auto low_second = reinterpret_cast<words>(second - reinterpret_cast<floats>(high_second));
  return {high_first >> 16 | high_second, low_first >> 16 | (low_second & upper_half)};
}

/// Numbers of int8: `128 * high + low` is a given number times `steps`.
struct split_bytes {
  __m128i high;
  __m128i low;
};

inline constexpr auto most_steps = 127.0f * 128;
static_assert(most_steps * 128 * most_dim_for_matrices<int8> < 0x1p31f, "sums of products have 32 bits");

/// Where the steps of queries are among their matrices, in numbers of float32.
template <int Rows>
PAGEDKV_INLINE std::int64_t steps_of_queries(std::int32_t dim) {
  return Rows * dim / 2;
}

PAGEDKV_INLINE split_bytes split_into_bytes(floats numbers, float steps) {
  const auto integers = 0x1.8p23f;  // neighbouring numbers there are 1 apart, so adding it rounds
  const auto whole = reinterpret_cast<ints>(numbers * steps + integers) - __builtin_bit_cast(std::int32_t, integers);
  const auto high = (whole + 64) >> 7;
  return {_mm512_maskz_cvtepi32_epi8(0xffff, reinterpret_cast<__m512i>(high)),
          _mm512_maskz_cvtepi32_epi8(0xffff, reinterpret_cast<__m512i>(whole - (high << 7)))};
}

/// The size of a step for numbers up to the largest of `largest`. `zeros`: the sum of each of them minus itself. NaN if
/// one of the numbers is not finite, because integers cannot say so.
PAGEDKV_INLINE float size_of_step(floats largest, floats zeros) {
  if (_mm512_cmp_ps_mask(reinterpret_cast<__m512>(zeros), reinterpret_cast<__m512>(zeros), _CMP_UNORD_Q) != 0) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  const auto most = largest_of_run<lanes>(largest)[0];
  return most > 0 ? most / most_steps : 1.0f;
}

/// The size of a step for the numbers of a query.
PAGEDKV_INLINE float size_of_step(const float* query, std::int32_t dim) {
  auto largest = floats{};
  auto zeros = floats{};
  for (auto d = 0; d < dim; d += lanes) {
    const auto numbers = read_floats(query + d);
    largest = larger(largest, larger(numbers, -numbers));
    zeros += numbers - numbers;
  }
  return size_of_step(largest, zeros);
}

/// Writes the words of a vector to a column of a matrix whose lines have `Columns` words.
template <int Columns, class Vector>
PAGEDKV_INLINE void write_column(std::uint32_t* matrix, Vector v) {
  constexpr auto count = static_cast<int>(sizeof v / sizeof(std::uint32_t));
  std::uint32_t numbers[lanes];
  __builtin_memcpy(numbers, &v, sizeof v);
  for (auto i = 0; i < count; ++i) {
    matrix[i * Columns] = numbers[i];
  }
}

/// Lays out the queries of a set as right-hand matrices: [numbers][part and row]. Their steps, if any, follow as a
/// vector.
template <class Element, int Rows>
PAGEDKV_NOINLINE void lay_out_queries(const row_set& set, std::int32_t dim) {
  constexpr auto columns = 2 * Rows;
  auto* const matrices = reinterpret_cast<std::uint32_t*>(set.query_matrices);
  float steps[most_rows] = {};
  for (auto r = 0; r < Rows; ++r) {
    const auto* const query = set.queries + r * set.stride;
    if constexpr (std::same_as<Element, int8>) {
      steps[r] = size_of_step(query, dim);
      for (auto d = 0; d < dim; d += lanes) {
        const auto parts = split_into_bytes(read_floats(query + d), 1 / steps[r]);
        write_column<columns>(matrices + d / 4 * columns + r, parts.high);
        write_column<columns>(matrices + d / 4 * columns + Rows + r, parts.low);
      }
    } else {
      for (auto d = 0; d < dim; d += 2 * lanes) {
        const auto parts = split_into_pairs(read_floats(query + d), read_floats(query + d + lanes));
        write_column<columns>(matrices + d / 2 * columns + r, parts.high);
        write_column<columns>(matrices + d / 2 * columns + Rows + r, parts.low);
      }
    }
  }
  if constexpr (std::same_as<Element, int8>) {
    write_floats(set.query_matrices + steps_of_queries<Rows>(dim), per_row<Rows>(steps));
  }
}

/// From products `[token][part and row]` in two vectors: a part as in a vector of scores.
template <int Rows, int Part, class Vector, int... Lane>
PAGEDKV_INLINE Vector part_of_products(Vector a, Vector b, std::integer_sequence<int, Lane...>) {
  constexpr auto tokens = lanes / Rows;
  return __builtin_shufflevector(a, b, (Lane % tokens * 2 * Rows + Part * Rows + Lane / tokens)...);
}

/// Matrices of a set for one tile. The processor waits for a matrix that it has just written before it reads vectors of
/// it, and for vectors before it reads a matrix of them, so neither is read at once.
struct alignas(matrix_row) matrix_buffer {
  float products[tile_tokens * 2 * most_rows];        // [token][part and row], perhaps integers
  std::byte weights[2 * 2 * most_rows * matrix_row];  // [product][part][row][token]
  float steps[most_rows];                             // of weights
};

/// Where a matrix of 16 keys is.
struct key_matrix {
  const std::byte* rows;
  std::int64_t stride;
};

/// Finds keys at even distances, copies others to `copies`.
template <class Element>
PAGEDKV_INLINE key_matrix keys_of(const tile& t, std::int64_t first, std::byte* copies) {
  const auto* const offsets = t.offsets + first;
  const auto stride = offsets[1] - offsets[0];
  auto even = true;
  for (auto i = 2; i < lanes; ++i) {
    even &= offsets[i] - offsets[i - 1] == stride;
  }
  if (even) {
    return {t.keys + offsets[0], stride};
  }
  const auto row_bytes = t.dim * size_of<Element>;
  for (auto i = 0; i < lanes; ++i) {
    __builtin_memcpy(copies + i * row_bytes, t.keys + offsets[i], static_cast<std::size_t>(row_bytes));
  }
  return {copies, row_bytes};
}

/// Converts the products of a tile to vectors of scores.
template <class Element, int Rows>
PAGEDKV_NOINLINE void add_parts(const row_set& set, const tile& t, const matrix_buffer& buffer) {
  using numbers = std::conditional_t<std::same_as<Element, int8>, ints, floats>;
  constexpr auto lane = std::make_integer_sequence<int, lanes>{};
  const auto num_vectors = divide_up(t.num_tokens, lanes) * Rows;
  for (auto i = std::int64_t{0}; i < num_vectors; ++i) {
    const auto* const products = buffer.products + i * 2 * lanes;
    const auto a = read<numbers>(products);
    const auto b = read<numbers>(products + lanes);
    const auto high = part_of_products<Rows, 0>(a, b, lane);
    const auto low = part_of_products<Rows, 1>(a, b, lane);
    if constexpr (std::same_as<Element, int8>) {
      const auto steps = read_floats(set.query_matrices + steps_of_queries<Rows>(t.dim));
      write_floats(set.scores + i * lanes, __builtin_convertvector((high << 7) + low, floats) * steps);
    } else {
      write_floats(set.scores + i * lanes, high + low);
    }
  }
}

/// Products of queries and the keys of 16 tokens.
template <class Element, int Rows>
PAGEDKV_NOINLINE void multiply_key_matrices(const row_set& set, const tile& t, token_range range, std::byte* copies,
                                            matrix_buffer& buffer) {
  constexpr auto query_row = 2 * Rows * 4;  // in bytes
  const auto num_matrices = t.dim / numbers_of_row<Element>;
  const auto rows_each = (rows_ahead + num_matrices - 1) / num_matrices;
  const auto* const queries = reinterpret_cast<const std::byte*>(set.query_matrices);
  const auto keys = keys_of<Element>(t, range.begin, copies);
  clear_matrix<product_register>();
  for (auto i = 0; i < num_matrices; ++i) {
    fetch_next(t, t.dim * size_of<Element>, rows_each);
    load_matrix<query_register>(queries + i * lanes * query_row, query_row);
    load_matrix<wide_register>(keys.rows + i * matrix_row, keys.stride);
    multiply_matrices<Element, wide_register, query_register, product_register>();
  }
  store_matrix<product_register>(buffer.products + range.begin * 2 * Rows, query_row);
}

/// Tokens whose values share a line of a right-hand matrix.
template <class Element>
inline constexpr auto tokens_of_line = 4 / static_cast<int>(size_of<Element>);

/// Tokens of one product of weights and values.
template <class Element>
inline constexpr auto tokens_of_product = lanes * tokens_of_line<Element>;

template <int... Lane>
PAGEDKV_INLINE __m512i transpose_words(words v, std::integer_sequence<int, Lane...>) {
  return reinterpret_cast<__m512i>(__builtin_shufflevector(v, v, (Lane % 4 * 4 + Lane / 4)...));
}

/// Interleaves the bytes of four rows. The words of each are transposed first, as a matrix of 4 by 4, because the
/// processor interleaves within quarters of vectors.
PAGEDKV_INLINE void interleave_bytes(const std::byte* const* rows, std::int64_t d, std::byte* to) {
  __m512i row[4];
  PAGEDKV_UNROLL for (auto i = 0; i < 4; ++i) {
    row[i] = transpose_words(read<words>(rows[i] + d), std::make_integer_sequence<int, lanes>{});
  }
  const __m512i first[2] = {_mm512_unpacklo_epi8(row[0], row[1]), _mm512_unpackhi_epi8(row[0], row[1])};
  const __m512i second[2] = {_mm512_unpacklo_epi8(row[2], row[3]), _mm512_unpackhi_epi8(row[2], row[3])};
  PAGEDKV_UNROLL for (auto i = 0; i < 2; ++i) {
    write_words(to + 2 * i * matrix_row, reinterpret_cast<words>(_mm512_unpacklo_epi16(first[i], second[i])));
    write_words(to + (2 * i + 1) * matrix_row, reinterpret_cast<words>(_mm512_unpackhi_epi16(first[i], second[i])));
  }
}

/// Interleaves numbers from `d` on, as many as a matrix row has, of the rows of a line.
template <class Element>
PAGEDKV_INLINE void interleave(const std::byte* const* rows, std::int64_t d, std::byte* to) {
  if constexpr (std::same_as<Element, int8>) {
    interleave_bytes(rows, d, to);
  } else {
    const auto first = read<words>(rows[0] + d * 2);
    const auto second = read<words>(rows[1] + d * 2);
    write_words(to, (first & ~upper_half) | second << 16);
    write_words(to + matrix_row, first >> 16 | (second & upper_half));
  }
}

/// Lays out the values of 16 tokens as lines of right-hand matrices: [tokens of a line][number]. `matrices` is for the
/// whole tile.
template <class Element>
PAGEDKV_NOINLINE void lay_out_values(const tile& t, token_range range, std::byte* matrices) {
  constexpr auto together = tokens_of_line<Element>;
  fetch_next(t, t.dim * size_of<Element>, rows_ahead - lanes / 2);
  for (auto token = range.begin; token < range.begin + lanes; token += together) {
    fetch_next(t, t.dim * size_of<Element>, together / 2);
    const std::byte* rows[together];
    for (auto i = 0; i < together; ++i) {
      rows[i] = t.values + t.value_offsets[token + i];
    }
    auto* const line = matrices + token / together * t.value_dim * 4;
    for (auto d = 0; d < t.value_dim; d += numbers_of_row<Element>) {
      interleave<Element>(rows, d, line + d * 4);
    }
  }
}

template <int Width, int... Lane>
PAGEDKV_INLINE floats lower_runs(floats a, floats b, std::integer_sequence<int, Lane...>) {
  return __builtin_shufflevector(a, b, ((Lane & Width) != 0 ? lanes + Lane - Width : Lane)...);
}

template <int Width, int... Lane>
PAGEDKV_INLINE floats upper_runs(floats a, floats b, std::integer_sequence<int, Lane...>) {
  return __builtin_shufflevector(a, b, ((Lane & Width) != 0 ? lanes + Lane : Lane + Width)...);
}

/// Exchanges, in vectors of `Rows` runs of lanes, the number of a vector and that of a run.
template <int Rows, int Distance = 1>
PAGEDKV_INLINE void exchange_rows(floats* v) {
  if constexpr (Distance < Rows) {
    PAGEDKV_UNROLL for (auto i = 0; i < Rows; ++i) {
      if ((i & Distance) == 0) {
        constexpr auto lane = std::make_integer_sequence<int, lanes>{};
        const auto a = v[i];
        const auto b = v[i + Distance];
        v[i] = lower_runs<Distance * lanes / Rows>(a, b, lane);
        v[i + Distance] = upper_runs<Distance * lanes / Rows>(a, b, lane);
      }
    }
    exchange_rows<Rows, 2 * Distance>(v);
  }
}

template <int Odd, int... Lane>
PAGEDKV_INLINE floats every_second(floats a, floats b, std::integer_sequence<int, Lane...>) {
  return __builtin_shufflevector(a, b, (2 * Lane + Odd)...);
}

PAGEDKV_INLINE words join(const __m128i* quarters) {
  auto whole = _mm512_castsi128_si512(quarters[0]);
  whole = _mm512_inserti32x4(whole, quarters[1], 1);
  whole = _mm512_inserti32x4(whole, quarters[2], 2);
  return reinterpret_cast<words>(_mm512_inserti32x4(whole, quarters[3], 3));
}

/// Lays out the weights of the tokens of one product as left-hand matrices: [part][row][token]. Returns the steps of
/// each row in `steps`, if any.
template <class Element, int Rows>
PAGEDKV_INLINE void lay_out_weights(const float* weights, std::byte* matrices, float* steps) {
  constexpr auto vectors = tokens_of_product<Element> / lanes;  // of each row
  constexpr auto lane = std::make_integer_sequence<int, lanes>{};
  floats own[4][most_rows];
  for (auto i = 0; i < vectors; ++i) {
    PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) { own[i][r] = read_floats(weights + (i * Rows + r) * lanes); }
    exchange_rows<Rows>(own[i]);
  }
  PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) {
    auto* const high = matrices + r * matrix_row;
    auto* const low = high + Rows * matrix_row;
    if constexpr (std::same_as<Element, int8>) {
      auto largest = floats{};
      auto zeros = floats{};
      PAGEDKV_UNROLL for (auto i = 0; i < vectors; ++i) {
        largest = larger(largest, own[i][r]);
        zeros += own[i][r] - own[i][r];
      }
      steps[r] = size_of_step(largest, zeros);
      __m128i parts[2][4];
      PAGEDKV_UNROLL for (auto i = 0; i < vectors; ++i) {
        const auto split = split_into_bytes(own[i][r], 1 / steps[r]);
        parts[0][i] = split.high;
        parts[1][i] = split.low;
      }
      write_words(high, join(parts[0]));
      write_words(low, join(parts[1]));
    } else {
      const auto parts = split_into_pairs(every_second<0>(own[0][r], own[1][r], lane),
                                          every_second<1>(own[0][r], own[1][r], lane));
      write_words(high, parts.high);
      write_words(low, parts.low);
    }
  }
}

/// Lays out the weights of a tile.
template <class Element, int Rows>
PAGEDKV_NOINLINE void lay_out_weights(const row_set& set, const tile& t, matrix_buffer& buffer) {
  constexpr auto tokens = lanes / Rows;
  constexpr auto each = tokens_of_product<Element>;
  const auto end = divide_up(t.num_tokens, each) * each;
  for (auto token = divide_up(t.num_tokens, tokens) * tokens; token < end; token += tokens) {
    write_floats(set.scores + token * Rows, floats{});
  }
  for (auto token = std::int64_t{0}; token < end; token += each) {
    lay_out_weights<Element, Rows>(set.scores + token * Rows, buffer.weights + token / each * 2 * Rows * matrix_row,
                                   buffer.steps);
  }
}

/// Clears the values of tokens after the last one, up to whole products.
template <class Element>
PAGEDKV_INLINE void clear_values(const tile& t, std::byte* values) {
  constexpr auto each = tokens_of_product<Element>;
  const auto first = divide_up(t.num_tokens, lanes) * lanes;
  const auto end = divide_up(t.num_tokens, each) * each;
  std::fill(values + first / tokens_of_line<Element> * t.value_dim * 4,
            values + end / tokens_of_line<Element> * t.value_dim * 4, std::byte{});
}

/// Products of weights and values of int8 for some vectors of each row, each in its register.
template <int... Sum>
PAGEDKV_INLINE void multiply_bytes(const std::byte* values, std::int64_t line, ints (*products)[2 * most_rows],
                                   std::integer_sequence<int, Sum...>) {
  (clear_matrix<sum_register + Sum>(), ...);
  auto i = 0;
  ((load_matrix<wide_register>(values + i++ * matrix_row, line),
    multiply_matrices<int8, byte_weight_register, wide_register, sum_register + Sum>()),
   ...);
  i = 0;
  (store_matrix<sum_register + Sum>(products[i++], matrix_row), ...);
}

/// Adds weighted values of int8 to `Count` vectors of the sums of each row.
template <int Rows, int Count>
PAGEDKV_INLINE void add_bytes(const row_set& set, const tile& t, const std::byte* values, const float* steps,
                              std::int32_t d) {
  ints products[4][2 * most_rows];
  multiply_bytes(values + d * 4, std::int64_t{t.value_dim} * 4, products, std::make_integer_sequence<int, Count>{});
  PAGEDKV_UNROLL for (auto i = 0; i < Count; ++i) {
    fetch_next(t, t.dim * size_of<int8>, rows_ahead / 2);
    PAGEDKV_UNROLL for (auto r = 0; r < Rows; ++r) {
      auto* const sums = set.sums + r * set.sum_stride + d + i * lanes;
      const auto product = __builtin_convertvector((products[i][r] << 7) + products[i][Rows + r], floats);
      write_floats(sums, read_floats(sums) + product * steps[r]);
    }
  }
}

/// Adds the weighted values of a tile of int8 to the sums.
template <int Rows>
PAGEDKV_INLINE void add_bytes(const row_set& set, const tile& t, const std::byte* values, const float* steps) {
  constexpr auto together = 4;
  for (auto d = 0; d < t.value_dim; d += together * lanes) {
    add_bytes<Rows, together>(set, t, values, steps, d);
  }
}

/// Adds the product of the weights in two registers and values to two vectors of sums in their registers.
PAGEDKV_INLINE void add_product(const std::byte* values, std::int64_t line) {
  load_matrix<wide_register>(values, line);
  multiply_matrices<bfloat16, weight_register, wide_register, sum_register>();
  multiply_matrices<bfloat16, weight_register + 1, wide_register, sum_register>();
  load_matrix<wide_register>(values + matrix_row, line);
  multiply_matrices<bfloat16, weight_register, wide_register, second_sum_register>();
  multiply_matrices<bfloat16, weight_register + 1, wide_register, second_sum_register>();
}

/// Adds the weighted values of a tile of bfloat16 to the sums, two vectors of each row at a time.
template <int Rows>
PAGEDKV_INLINE void add_pairs(const row_set& set, const tile& t, const std::byte* values, const std::byte* weights) {
  const auto stride = std::int64_t{set.sum_stride} * 4;
  const auto line = std::int64_t{t.value_dim} * 4;
  const auto num_products = divide_up(t.num_tokens, tokens_of_product<bfloat16>);
  for (auto d = 0; d < t.value_dim; d += 2 * lanes) {
    fetch_next(t, t.dim * size_of<bfloat16>, rows_ahead);
    load_matrix<sum_register>(set.sums + d, stride);
    load_matrix<second_sum_register>(set.sums + d + lanes, stride);
    for (auto i = std::int64_t{0}; i < num_products; ++i) {
      const auto* const own = weights + i * 2 * Rows * matrix_row;
      load_matrix<weight_register>(own, matrix_row);
      load_matrix<weight_register + 1>(own + Rows * matrix_row, matrix_row);
      add_product(values + i * lanes * line + d * 4, line);
    }
    store_matrix<sum_register>(set.sums + d, stride);
    store_matrix<second_sum_register>(set.sums + d + lanes, stride);
  }
}

/// Adds the weighted values of a tile to the sums.
template <class Element, int Rows>
PAGEDKV_NOINLINE void add_value_matrices(const row_set& set, const tile& t, std::byte* values,
                                         const matrix_buffer& buffer) {
  clear_values<Element>(t, values);
  if constexpr (std::same_as<Element, int8>) {
    load_matrix<byte_weight_register>(buffer.weights, matrix_row);
    add_bytes<Rows>(set, t, values, buffer.steps);
  } else {
    add_pairs<Rows>(set, t, values, buffer.weights);
  }
}

#else

struct matrix_buffer {};

PAGEDKV_INLINE void release_matrices() {}

#endif

}  // namespace pagedkv::host::attention::PAGEDKV_ISA

#endif
