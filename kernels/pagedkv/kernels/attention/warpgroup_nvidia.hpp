#pragma once

// Products of warpgroups: Hopper's wgmma instructions, for code compiled for sm_90a. Empty for other compilers.
#if defined(__CUDACC__) && !defined(__HIPCC__)

  #include <pagedkv/kernels/attention/lane_word.hpp>
  #include <pagedkv/kernels/platform.hpp>
  #include <pagedkv/kernels/runtime.hpp>

  // Defined while code is compiled for a device with these instructions.
  #if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    #define PAGEDKV_HAS_WARPGROUP_PRODUCTS
  #endif

namespace pagedkv::kernels {

inline constexpr int warpgroup_lanes = 128;
inline constexpr int columns_of_warpgroup = 64;  // rows of the first factor

/// Dynamic shared memory for a kernel that has static shared memory unless it was compiled for products of warpgroups.
template <auto Kernel>
[[nodiscard]] std::size_t warpgroup_shared_bytes(std::size_t needed) {
  auto bytes = std::size_t{0};
  const auto known = runtime::get_static_shared(&bytes, reinterpret_cast<const void*>(Kernel)) == runtime::success;
  return known && bytes == 0 ? needed : 0;
}

/// A matrix of 16-bit numbers in shared memory: blocks of 64 neighbouring numbers of `Rows` rows. Each block has 128
/// bytes a row, in which chunks of 16 bytes are permuted.
template <int Rows>
struct warpgroup_rows {
  static constexpr unsigned block_bytes = Rows * 128;

  /// Offset of chunk `chunk` of 8 numbers in a row.
  [[nodiscard]] static PAGEDKV_DEVICE unsigned at(int row, int chunk) {
    return static_cast<unsigned>(chunk / 8) * block_bytes + static_cast<unsigned>(row * 128 + ((chunk ^ row) % 8) * 16);
  }

  /// Describes the matrix from an address on. Products along rows step from block to block by `block_bytes`.
  [[nodiscard]] static PAGEDKV_DEVICE std::uint64_t describe(unsigned address) {
    constexpr auto swizzled = std::uint64_t{1} << 62;
    constexpr auto eight_rows = std::uint64_t{1024 / 16} << 32;
    constexpr auto next_block = std::uint64_t{block_bytes / 16} << 16;
    return swizzled | eight_rows | next_block | (address & 0x3ffffU) / 16;
  }
};

/// A described matrix, some bytes later. Only the lower word changes, so that no carry is computed for each product.
[[nodiscard]] PAGEDKV_DEVICE inline std::uint64_t later(std::uint64_t matrix, unsigned bytes) {
  const auto upper = matrix >> 32 << 32;
  return upper | (static_cast<std::uint32_t>(matrix) + bytes / 16);
}

/// Bytes from one product to the next along 16 numbers of rows, and along 16 rows.
inline constexpr unsigned next_numbers = 32;
inline constexpr unsigned next_rows = 2048;

  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

  // The sums of a product as operands of its instruction: their names in its text, and the registers.
  #define PAGEDKV_NAMES_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
  #define PAGEDKV_NAMES_32 PAGEDKV_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
  #define PAGEDKV_NAMES_64 \
    PAGEDKV_NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
                     "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
  #define PAGEDKV_NAMES_128 \
    PAGEDKV_NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
                     "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
                     "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
                     "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
  #define PAGEDKV_SUMS_4(i) "+f"(into[i]), "+f"(into[(i) + 1]), "+f"(into[(i) + 2]), "+f"(into[(i) + 3])
  #define PAGEDKV_SUMS_16(i) \
    PAGEDKV_SUMS_4(i), PAGEDKV_SUMS_4((i) + 4), PAGEDKV_SUMS_4((i) + 8), PAGEDKV_SUMS_4((i) + 12)
  #define PAGEDKV_SUMS_32(i) PAGEDKV_SUMS_16(i), PAGEDKV_SUMS_16((i) + 16)
  #define PAGEDKV_SUMS_64(i) PAGEDKV_SUMS_32(i), PAGEDKV_SUMS_32((i) + 32)
  #define PAGEDKV_SUMS_128(i) PAGEDKV_SUMS_64(i), PAGEDKV_SUMS_64((i) + 64)

  // A product with `size` sums of each lane: `accumulate` and `factors` are the text's names of the other operands,
  // which follow the text.
  #define PAGEDKV_MULTIPLY_TYPE(type, shape, size, accumulate, factors, ...) \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " accumulate ", 0; wgmma.mma_async.sync.aligned." shape ".f32." type \
                 "." type " {" PAGEDKV_NAMES_##size "}, " factors ";}" \
                 : PAGEDKV_SUMS_##size(0) \
                 : __VA_ARGS__)
  #define PAGEDKV_MULTIPLY(...) \
    if constexpr (is_bfloat16<Number>) { \
      PAGEDKV_MULTIPLY_TYPE("bf16", __VA_ARGS__); \
    } else { \
      PAGEDKV_MULTIPLY_TYPE("f16", __VA_ARGS__); \
    }

/// Adds 64 x 16 by 16 x 32 numbers of shared memory, asynchronously; without `accumulate`, replaces the sums.
/// `Transposed`: rows of the second factor are its 16, not its 32.
template <class Number, bool Transposed>
PAGEDKV_DEVICE void multiply_64x32(float (&into)[16], std::uint64_t a, std::uint64_t b, int accumulate) {
  PAGEDKV_MULTIPLY("m64n32k16", 16, "%18", "%16, %17, p, 1, 1, 0, %19", "l"(a), "l"(b), "r"(accumulate),
                   "n"(Transposed ? 1 : 0))
}

/// Adds 64 x 16 numbers in registers by 16 x 32 of shared memory.
template <class Number, bool Transposed>
PAGEDKV_DEVICE void multiply_64x32(float (&into)[16], const lane_word (&a)[4], std::uint64_t b, int accumulate) {
  PAGEDKV_MULTIPLY("m64n32k16", 16, "%21", "{%16,%17,%18,%19}, %20, p, 1, 1, %22", "r"(a[0]), "r"(a[1]), "r"(a[2]),
                   "r"(a[3]), "l"(b), "r"(accumulate), "n"(Transposed ? 1 : 0))
}

/// Adds 64 x 16 by 16 x 64 or by 16 x 128 numbers of shared memory.
template <class Number, bool Transposed>
PAGEDKV_DEVICE void multiply_64x64(float (&into)[32], std::uint64_t a, std::uint64_t b, int accumulate) {
  PAGEDKV_MULTIPLY("m64n64k16", 32, "%34", "%32, %33, p, 1, 1, 0, %35", "l"(a), "l"(b), "r"(accumulate),
                   "n"(Transposed ? 1 : 0))
}

template <class Number, bool Transposed>
PAGEDKV_DEVICE void multiply_64x128(float (&into)[64], std::uint64_t a, std::uint64_t b, int accumulate) {
  PAGEDKV_MULTIPLY("m64n128k16", 64, "%66", "%64, %65, p, 1, 1, 0, %67", "l"(a), "l"(b), "r"(accumulate),
                   "n"(Transposed ? 1 : 0))
}

/// Adds 64 x 16 numbers in registers by 16 x 64, 16 x 128 or 16 x 256 of shared memory.
template <class Number, bool Transposed>
PAGEDKV_DEVICE void multiply_64x64(float (&into)[32], const lane_word (&a)[4], std::uint64_t b, int accumulate) {
  PAGEDKV_MULTIPLY("m64n64k16", 32, "%37", "{%32,%33,%34,%35}, %36, p, 1, 1, %38", "r"(a[0]), "r"(a[1]), "r"(a[2]),
                   "r"(a[3]), "l"(b), "r"(accumulate), "n"(Transposed ? 1 : 0))
}

template <class Number, bool Transposed>
PAGEDKV_DEVICE void multiply_64x128(float (&into)[64], const lane_word (&a)[4], std::uint64_t b, int accumulate) {
  PAGEDKV_MULTIPLY("m64n128k16", 64, "%69", "{%64,%65,%66,%67}, %68, p, 1, 1, %70", "r"(a[0]), "r"(a[1]), "r"(a[2]),
                   "r"(a[3]), "l"(b), "r"(accumulate), "n"(Transposed ? 1 : 0))
}

template <class Number, bool Transposed>
PAGEDKV_DEVICE void multiply_64x256(float (&into)[128], const lane_word (&a)[4], std::uint64_t b, int accumulate) {
  PAGEDKV_MULTIPLY("m64n256k16", 128, "%133", "{%128,%129,%130,%131}, %132, p, 1, 1, %134", "r"(a[0]), "r"(a[1]),
                   "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(Transposed ? 1 : 0))
}

  #undef PAGEDKV_MULTIPLY
  #undef PAGEDKV_MULTIPLY_TYPE
  #undef PAGEDKV_SUMS_128
  #undef PAGEDKV_SUMS_64
  #undef PAGEDKV_SUMS_32
  #undef PAGEDKV_SUMS_16
  #undef PAGEDKV_SUMS_4
  #undef PAGEDKV_NAMES_128
  #undef PAGEDKV_NAMES_64
  #undef PAGEDKV_NAMES_32
  #undef PAGEDKV_NAMES_16

/// Before products that use registers or shared memory which other instructions wrote.
PAGEDKV_DEVICE inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
PAGEDKV_DEVICE inline void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

/// Waits until at most `Remaining` of the ended groups of products are unfinished.
template <int Remaining>
PAGEDKV_DEVICE void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Remaining) : "memory");
}

/// Makes what this lane wrote to shared memory visible to products, after a barrier.
PAGEDKV_DEVICE inline void publish_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// The first aligned address of dynamic shared memory.
[[nodiscard]] PAGEDKV_DEVICE inline unsigned aligned_shared(unsigned alignment) {
  const auto start = static_cast<unsigned>(__cvta_generic_to_shared(dynamic_shared<lane_word>(0, 0).values));
  return (start + alignment - 1) / alignment * alignment;
}

PAGEDKV_DEVICE inline void copy_chunk(unsigned to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0));
}
PAGEDKV_DEVICE inline void copy_word(unsigned to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(exists ? 4 : 0));
}
PAGEDKV_DEVICE inline void put_chunk(unsigned to, const lane_word (&words)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}
/// Puts four 8 x 8 matrices of 16-bit numbers, of whose rows each lane has two numbers in each matrix. Lane i says
/// where row i % 8 of matrix i / 8 goes.
PAGEDKV_DEVICE inline void put_matrices(unsigned to, const lane_word (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}
PAGEDKV_DEVICE inline void take_chunk(unsigned from, lane_word (&words)[4]) {
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}
PAGEDKV_DEVICE inline void put_word(unsigned to, lane_word word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
[[nodiscard]] PAGEDKV_DEVICE inline lane_word take_word(unsigned from) {
  auto word = lane_word{0};
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
  return word;
}
PAGEDKV_DEVICE inline void put_float(unsigned to, float number) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(number) : "memory");
}
[[nodiscard]] PAGEDKV_DEVICE inline float take_float(unsigned from) {
  auto number = 0.0F;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(number) : "r"(from) : "memory");
  return number;
}

  #endif

}  // namespace pagedkv::kernels

#endif
