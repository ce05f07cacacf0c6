// Vectors of float32 and functions that attention needs, for one instruction set. `kernels.hpp` includes `pieces.inl`
// once per instruction set, with PAGEDKV_ISA as its name, PAGEDKV_LANES as its width, and PAGEDKV_INLINE as the
// attributes of its functions: compilers lower vectors function by function, so each function must name its instruction
// set. Functions that run once a tile, a row or a piece have those of PAGEDKV_NOINLINE: inlined wherever they are
// called, they make up more than half of the time to compile.
#if defined(PAGEDKV_ISA)

namespace pagedkv::host::attention::PAGEDKV_ISA {

inline constexpr auto lanes = PAGEDKV_LANES;

using floats = float __attribute__((vector_size(4 * PAGEDKV_LANES)));
using ints = std::int32_t __attribute__((vector_size(4 * PAGEDKV_LANES)));
using shorts = std::uint16_t __attribute__((vector_size(2 * PAGEDKV_LANES)));
using bytes = std::int8_t __attribute__((vector_size(PAGEDKV_LANES)));

/// Reads a vector from any address.
template <class Vector>
PAGEDKV_INLINE Vector read(const void* from) {
  Vector v;
  __builtin_memcpy(&v, from, sizeof v);
  return v;
}

PAGEDKV_INLINE floats read_floats(const float* from) { return read<floats>(from); }

PAGEDKV_INLINE void write_floats(float* to, floats v) { __builtin_memcpy(to, &v, sizeof v); }

PAGEDKV_INLINE floats all(float number) { return number - floats{}; }

PAGEDKV_INLINE floats larger(floats a, floats b) { return a > b ? a : b; }

/// Multiplies a row, padded to whole vectors.
PAGEDKV_INLINE void scale_row(float* numbers, std::int64_t dim, float factor) {
  for (auto d = std::int64_t{0}; d < dim; d += lanes) {
    write_floats(numbers + d, read_floats(numbers + d) * factor);
  }
}

template <int... Lane>
PAGEDKV_INLINE ints count_lanes(std::integer_sequence<int, Lane...>) {
  return ints{Lane...};
}

/// 0, 1, 2, …
PAGEDKV_INLINE ints lane_numbers() { return count_lanes(std::make_integer_sequence<int, lanes>{}); }

// GCC 12 converts numbers one by one although one instruction converts all. With an all-ones mask, no lane is
// undefined.
#if PAGEDKV_LANES == 16
PAGEDKV_INLINE ints widen(shorts v) {
  return reinterpret_cast<ints>(_mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(v)));
}
PAGEDKV_INLINE floats to_floats(bytes v) {
  const auto wide = _mm512_maskz_cvtepi8_epi32(0xffff, reinterpret_cast<__m128i>(v));
  return reinterpret_cast<floats>(_mm512_maskz_cvtepi32_ps(0xffff, wide));
}
PAGEDKV_INLINE shorts widen(bytes v) {
  return reinterpret_cast<shorts>(_mm256_maskz_cvtepu8_epi16(0xffff, reinterpret_cast<__m128i>(v)));
}
PAGEDKV_INLINE floats decode_half(shorts bits) {
  return reinterpret_cast<floats>(_mm512_maskz_cvtph_ps(0xffff, reinterpret_cast<__m256i>(bits)));
}
#elif PAGEDKV_LANES == 8
PAGEDKV_INLINE ints widen(shorts v) {
  return reinterpret_cast<ints>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(v)));
}
PAGEDKV_INLINE floats to_floats(bytes v) {
  const auto wide = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(__builtin_bit_cast(long long, v)));
  return reinterpret_cast<floats>(_mm256_cvtepi32_ps(wide));
}
PAGEDKV_INLINE shorts widen(bytes v) {
  return reinterpret_cast<shorts>(_mm_cvtepu8_epi16(_mm_cvtsi64_si128(__builtin_bit_cast(long long, v))));
}
PAGEDKV_INLINE floats decode_half(shorts bits) {
  return reinterpret_cast<floats>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(bits)));
}
#else
PAGEDKV_INLINE ints widen(shorts v) { return __builtin_convertvector(v, ints); }
PAGEDKV_INLINE floats to_floats(bytes v) { return __builtin_convertvector(v, floats); }
PAGEDKV_INLINE shorts widen(bytes v) { return __builtin_convertvector(v, shorts) & 0xff; }
PAGEDKV_INLINE floats decode_half(shorts bits) {
  #if defined(__aarch64__)
  using halves = __fp16 __attribute__((vector_size(2 * PAGEDKV_LANES)));
  return __builtin_convertvector(reinterpret_cast<halves>(bits), floats);
  #else
  const auto wide = widen(bits);
  const auto magnitude = wide & 0x7fff;
  // A product adjusts the exponent, also of subnormals. Infinity and NaN keep the largest exponent.
  const auto scaled = reinterpret_cast<ints>(reinterpret_cast<floats>(magnitude << 13) * 0x1p112f);
  const auto special = (magnitude >= 0x7c00) & 0x7f800000;
  return reinterpret_cast<floats>(scaled | special | (wide & 0x8000) << 16);
  #endif
}
#endif

/// Fills a vector with copies of `Words` words of 32 bits.
template <int Words>
PAGEDKV_INLINE ints repeat(const void* from) {
#if PAGEDKV_LANES == 16
  // Compilers take these apart into copies of single words.
  if constexpr (Words == 8) {
    return reinterpret_cast<ints>(_mm512_maskz_broadcast_i32x8(0xffff, read<__m256i>(from)));
  } else if constexpr (Words == 4) {
    return reinterpret_cast<ints>(_mm512_maskz_broadcast_i32x4(0xffff, read<__m128i>(from)));
  } else if constexpr (Words == 2) {
    return reinterpret_cast<ints>(_mm512_set1_epi64(read<long long>(from)));
  }
#endif
  if constexpr (Words == 1) {
    return read<std::int32_t>(from) + ints{};
  }
  std::int32_t words[lanes];
  for (auto i = 0; i < lanes; i += Words) {
    __builtin_memcpy(words + i, from, Words * sizeof(std::int32_t));
  }
  return read<ints>(words);
}

/// Numbers of an 8-bit floating-point format, by way of binary16.
template <class Format>
PAGEDKV_INLINE floats decode_float8(bytes bits) {
  const auto upper = widen(bits) << 8;
  const auto magnitude = upper & 0x7f00;
  const auto sign = upper & 0x8000;
  auto halves = upper;
  auto adjustment = 1.0f;  // of the exponent
  if constexpr (Format::mantissa_bits == 3) {
    halves = magnitude >> 1 | sign;
    adjustment = static_cast<float>(1 << (15 - Format::bias));
  } else if constexpr (!Format::has_infinity) {
    // The largest exponent would be an infinity, so it is adjusted here. Two of them are subnormal numbers then.
    halves = (magnitude < 0x0800 ? magnitude >> 1 : magnitude - 0x0400) | sign;
  }
  if constexpr (!Format::has_infinity) {
    const auto is_nan = Format::signed_zero ? magnitude == 0x7f00 : upper == 0x8000;
    halves = is_nan ? shorts{} + std::uint16_t{0x7e00} : halves;
  }
  return decode_half(halves) * adjustment;
}

template <class Element>
inline constexpr auto size_of = static_cast<std::int64_t>(sizeof(typename Element::storage));

/// Decodes numbers of a row, without their scale.
template <class Element>
PAGEDKV_INLINE floats decode(const std::byte* from) {
  if constexpr (std::same_as<Element, float32>) {
    return read<floats>(from);
  } else if constexpr (std::same_as<Element, float16>) {
    return decode_half(read<shorts>(from));
  } else if constexpr (std::same_as<Element, bfloat16>) {
    return reinterpret_cast<floats>(widen(read<shorts>(from)) << 16);
  } else if constexpr (is_float8<Element>) {
    return decode_float8<typename Element::format>(read<bytes>(from));
  } else {
    return to_floats(read<bytes>(from));
  }
}

/// Vectors of float32 that are decoded together, from one load where the element allows. Loads of less than a cache
/// line keep fewer lines in flight; four vectors of int8 would leave too few registers for sums.
template <class Element>
inline constexpr auto vectors_of_load = lanes >= 16 && size_of<Element> == 2 ? 2 : 1;

/// Whether `decode_load` sorts numbers as `sort_pairs` does, which saves instructions.
template <class Element>
inline constexpr auto sorts_numbers = std::same_as<Element, bfloat16> && vectors_of_load<Element> == 2;

/// Decodes `vectors_of_load` vectors.
template <class Element>
PAGEDKV_INLINE void decode_load(const std::byte* from, floats* numbers) {
  if constexpr (vectors_of_load<Element> == 1) {
    numbers[0] = decode<Element>(from);
  } else if constexpr (sorts_numbers<Element>) {
    const auto pairs = read<ints>(from);
    numbers[0] = reinterpret_cast<floats>(pairs << 16);
    numbers[1] = reinterpret_cast<floats>(pairs & static_cast<std::int32_t>(0xffff0000));
  } else {
    // Each conversion reads its half of the line: GCC 12 takes a loaded line apart through the stack.
    numbers[0] = decode<Element>(from);
    numbers[1] = decode<Element>(from + lanes * size_of<Element>);
  }
}

template <int... Lane>
PAGEDKV_INLINE void sort_pairs(float* numbers, std::int32_t dim, std::integer_sequence<int, Lane...>) {
  for (auto d = 0; d + 2 * lanes <= dim; d += 2 * lanes) {
    const auto a = read_floats(numbers + d);
    const auto b = read_floats(numbers + d + lanes);
    write_floats(numbers + d, __builtin_shufflevector(a, b, (2 * Lane)...));
    write_floats(numbers + d + lanes, __builtin_shufflevector(a, b, (2 * Lane + 1)...));
  }
}

/// Sorts each two vectors of a row: first the numbers at even places, then those at odd ones.
PAGEDKV_INLINE void sort_pairs(float* numbers, std::int32_t dim) {
  sort_pairs(numbers, dim, std::make_integer_sequence<int, lanes>{});
}

template <int... Lane>
PAGEDKV_INLINE void restore_pairs(float* numbers, std::int32_t dim, std::integer_sequence<int, Lane...>) {
  for (auto d = 0; d + 2 * lanes <= dim; d += 2 * lanes) {
    const auto even = read_floats(numbers + d);
    const auto odd = read_floats(numbers + d + lanes);
    write_floats(numbers + d, __builtin_shufflevector(even, odd, (Lane / 2 + Lane % 2 * lanes)...));
    write_floats(numbers + d + lanes,
                 __builtin_shufflevector(even, odd, ((lanes + Lane) / 2 + Lane % 2 * lanes)...));
  }
}

/// Restores the order of a row that `sort_pairs` has sorted.
PAGEDKV_INLINE void restore_pairs(float* numbers, std::int32_t dim) {
  restore_pairs(numbers, dim, std::make_integer_sequence<int, lanes>{});
}

/// Adds the halves of each run of two vectors that consist of runs of `2 * Half` lanes, and puts the sums of `a`
/// before those of `b`. Each sum takes one lane of a blend of both and one of a shuffle, because blends are faster.
template <int Half, class Vector, int... Lane>
PAGEDKV_INLINE Vector add_halves(Vector a, Vector b, std::integer_sequence<int, Lane...>) {
  return __builtin_shufflevector(a, b, ((Lane & Half) != 0 ? lanes + Lane : Lane)...) +
         __builtin_shufflevector(a, b, ((Lane & Half) != 0 ? lanes + (Lane ^ Half) : (Lane ^ Half))...);
}

/// Adds up the lanes of as many vectors as a vector has lanes: lane i gets the sum of `v[i]`. Each round halves the
/// number of vectors. Of `2 * Half` vectors, adds up runs of as many lanes: lane i of a run gets the sum of the run's
/// lanes in `v[i]`.
template <int Half = lanes / 2, class Vector>
PAGEDKV_INLINE Vector add_up(Vector* v) {
  PAGEDKV_UNROLL for (auto i = 0; i < Half; ++i) {
    v[i] = add_halves<Half>(v[i], v[i + Half], std::make_integer_sequence<int, lanes>{});
  }
  if constexpr (Half > 1) {
    return add_up<Half / 2>(v);
  } else {
    return v[0];
  }
}

template <int Distance, int... Lane>
PAGEDKV_INLINE floats exchange(floats v, std::integer_sequence<int, Lane...>) {
  return __builtin_shufflevector(v, v, (Lane ^ Distance)...);
}

/// Sets all lanes of each run of `Run` lanes to the largest of them.
template <int Run>
PAGEDKV_INLINE floats largest_of_run(floats v) {
  if constexpr (Run > 1) {
    const auto halved = largest_of_run<Run / 2>(v);
    return larger(halved, exchange<Run / 2>(halved, std::make_integer_sequence<int, lanes>{}));
  } else {
    return v;
  }
}

/// 2 to the power of a number up to 0; 0 below -126. A polynomial for the fraction, near the best of its degree.
PAGEDKV_INLINE floats exp2(floats x) {
  constexpr auto integers = 0x1.8p23f;  // neighbouring numbers there are 1 apart, so adding it rounds
  const auto y = x < -126.0f ? all(-126.0f) : x;
  const auto rounded = y + integers;
  const auto f = y - (rounded - integers);
  auto p = all(1.5345812e-4f);
  p = p * f + 1.339993121e-3f;
  p = p * f + 9.618488957e-3f;
  p = p * f + 5.550328777e-2f;
  p = p * f + 0.2402264689f;
  p = p * f + 0.6931472057f;
  p = p * f + 1.0f;
  const auto exponent = reinterpret_cast<ints>(rounded) - __builtin_bit_cast(std::int32_t, integers) + 127;
  return x < -126.0f ? floats{} : p * reinterpret_cast<floats>(exponent << 23);
}

/// Uses a polynomial near 0, where 1 - 2 / (e^2x + 1) would cancel.
PAGEDKV_INLINE floats tanh(floats x) {
  constexpr auto two_log2_e = 2.885390082f;
  const auto magnitude = x < 0.0f ? -x : x;
  const auto square = x * x;
  auto p = all(-5.648316565e-3f);
  p = p * square + 2.058982656e-2f;
  p = p * square - 5.372512663e-2f;
  p = p * square + 0.1333127443f;
  p = p * square - 0.3333327606f;
  const auto inverse = exp2(magnitude * -two_log2_e);  // e^-2|x|
  const auto far = (1.0f - inverse) / (1.0f + inverse);
  return magnitude < 0.625f ? x + x * square * p : (x < 0.0f ? -far : far);
}

}  // namespace pagedkv::host::attention::PAGEDKV_ISA

#endif
