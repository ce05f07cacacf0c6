#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace pagedkv::detail {

/// XXH3 of 64 bits with a seed, after its specification (Collet, "XXH3", doc/xxhash_spec.md of xxHash), for inputs of 4
/// bytes and more. Equal to the reference, bit by bit, on little-endian machines.
class xxh3 {
 public:
  [[nodiscard]] static std::uint64_t hash(const std::byte* input, std::size_t size, std::uint64_t seed) noexcept {
    if (size > 240) {
      return hash_long(input, size, seed);
    }
    if (size > 128) {
      return hash_medium(input, size, seed);
    }
    if (size > 16) {
      return hash_short(input, size, seed);
    }
    return size > 8 ? hash_9_to_16(input, size, seed) : hash_4_to_8(input, size, seed);
  }

 private:
  static constexpr auto prime32_1 = std::uint64_t{0x9e37'79b1};
  static constexpr auto prime32_2 = std::uint64_t{0x85eb'ca77};
  static constexpr auto prime32_3 = std::uint64_t{0xc2b2'ae3d};
  static constexpr auto prime64_1 = std::uint64_t{0x9e37'79b1'85eb'ca87};
  static constexpr auto prime64_2 = std::uint64_t{0xc2b2'ae3d'27d4'eb4f};
  static constexpr auto prime64_3 = std::uint64_t{0x1656'67b1'9e37'79f9};
  static constexpr auto prime64_4 = std::uint64_t{0x85eb'ca77'c2b2'ae63};
  static constexpr auto prime64_5 = std::uint64_t{0x27d4'eb2f'1656'67c5};

  static constexpr auto secret_size = std::size_t{192};
  static constexpr auto stripe_size = std::size_t{64};
  static constexpr auto stripes_per_round = (secret_size - stripe_size) / 8;

  using secret_keys = std::array<std::uint8_t, secret_size>;
  static constexpr auto secret = secret_keys{
      0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
      0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
      0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
      0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
      0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
      0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
      0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
      0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
      0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
      0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
      0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
      0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};

  // As many lanes as one register holds.
#if defined(__AVX2__)
  using vector [[gnu::vector_size(32)]] = std::uint64_t;
#else
  using vector [[gnu::vector_size(16)]] = std::uint64_t;
#endif
  static constexpr auto num_vectors = stripe_size / sizeof(vector);
  using lanes = std::array<vector, num_vectors>;

  template <class Word = std::uint64_t, class Byte>
  [[nodiscard]] static Word load(const Byte* from) noexcept {
    auto word = Word{};
    std::memcpy(&word, from, sizeof(word));
    return word;
  }
  [[nodiscard]] static std::uint64_t key(std::size_t at) noexcept { return load(secret.data() + at); }

  [[nodiscard]] static std::uint64_t rotate(std::uint64_t x, int bits) noexcept { return x << bits | x >> (64 - bits); }

  /// The halves of the product of 128 bits, one folded over the other.
  [[nodiscard]] static std::uint64_t fold(std::uint64_t a, std::uint64_t b) noexcept {
    __extension__ using wide = unsigned __int128;
    const auto product = static_cast<wide>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }

  [[nodiscard]] static std::uint64_t avalanche(std::uint64_t x) noexcept {
    x = (x ^ x >> 37) * 0x1656'6791'9e37'79f9;
    return x ^ x >> 32;
  }

  [[nodiscard]] static std::uint64_t hash_4_to_8(const std::byte* input, std::size_t size,
                                                 std::uint64_t seed) noexcept {
    seed ^= std::uint64_t{__builtin_bswap32(static_cast<std::uint32_t>(seed))} << 32;
    auto x = load<std::uint32_t>(input + size - 4) + (std::uint64_t{load<std::uint32_t>(input)} << 32);
    x ^= (key(8) ^ key(16)) - seed;
    x ^= rotate(x, 49) ^ rotate(x, 24);
    x *= 0x9fb2'1c65'1e98'df25;
    x = (x ^ ((x >> 35) + size)) * 0x9fb2'1c65'1e98'df25;
    return x ^ x >> 28;
  }

  [[nodiscard]] static std::uint64_t hash_9_to_16(const std::byte* input, std::size_t size,
                                                  std::uint64_t seed) noexcept {
    const auto low = load(input) ^ ((key(24) ^ key(32)) + seed);
    const auto high = load(input + size - 8) ^ ((key(40) ^ key(48)) - seed);
    return avalanche(size + __builtin_bswap64(low) + high + fold(low, high));
  }

  [[nodiscard]] static std::uint64_t mix(const std::byte* input, std::size_t at, std::uint64_t seed) noexcept {
    return fold(load(input) ^ (key(at) + seed), load(input + 8) ^ (key(at + 8) - seed));
  }

  /// 17 to 128 bytes, in pairs of 16 from both ends.
  [[nodiscard]] static std::uint64_t hash_short(const std::byte* input, std::size_t size, std::uint64_t seed) noexcept {
    const auto* const end = input + size;
    auto sum = size * prime64_1 + mix(input, 0, seed) + mix(end - 16, 16, seed);
    if (size > 32) {
      sum += mix(input + 16, 32, seed) + mix(end - 32, 48, seed);
    }
    if (size > 64) {
      sum += mix(input + 32, 64, seed) + mix(end - 48, 80, seed);
    }
    if (size > 96) {
      sum += mix(input + 48, 96, seed) + mix(end - 64, 112, seed);
    }
    return avalanche(sum);
  }

  /// 129 to 240 bytes, 16 at a time.
  [[nodiscard]] static std::uint64_t hash_medium(const std::byte* input, std::size_t size,
                                                 std::uint64_t seed) noexcept {
    auto sum = size * prime64_1;
    for (auto i = std::size_t{0}; i < 128; i += 16) {
      sum += mix(input + i, i, seed);
    }
    sum = avalanche(sum);
    for (auto i = std::size_t{128}; i + 16 <= size; i += 16) {
      sum += mix(input + i, i - 128 + 3, seed);
    }
    return avalanche(sum + mix(input + size - 16, 119, seed));
  }

  /// The products of the lower halves of all lanes with the upper ones. gcc does not see by itself that each is one
  /// instruction.
  [[nodiscard]] static vector multiply_halves(vector x) noexcept {
#if defined(__AVX2__) && !defined(__clang__)
    using halves [[gnu::vector_size(32)]] = int;
    return reinterpret_cast<vector>(
        __builtin_ia32_pmuludq256(reinterpret_cast<halves>(x), reinterpret_cast<halves>(x >> 32)));
#elif defined(__SSE2__) && !defined(__clang__)
    using halves [[gnu::vector_size(16)]] = int;
    return reinterpret_cast<vector>(
        __builtin_ia32_pmuludq128(reinterpret_cast<halves>(x), reinterpret_cast<halves>(x >> 32)));
#else
    return (x & 0xffff'ffff) * (x >> 32);
#endif
  }

  [[nodiscard]] static vector swap_neighbours(vector x) noexcept {
#if defined(__AVX2__)
    return __builtin_shufflevector(x, x, 1, 0, 3, 2);
#else
    return __builtin_shufflevector(x, x, 1, 0);
#endif
  }

  /// Each lane adds its neighbour's input, and the product of the halves of its own under the secret.
  static void accumulate(lanes& sums, const std::byte* input, const std::uint8_t* keys) noexcept {
    for (auto i = std::size_t{0}; i < num_vectors; ++i) {
      const auto words = load<vector>(input + sizeof(vector) * i);
      const auto mixed = words ^ load<vector>(keys + sizeof(vector) * i);
      sums[i] += swap_neighbours(words) + multiply_halves(mixed);
    }
  }
  /// At most as many stripes as the secret serves before `scramble`.
  static void accumulate(lanes& sums, const std::byte* input, const secret_keys& keys,
                         std::size_t num_stripes) noexcept {
    for (auto i = std::size_t{0}; i < num_stripes; ++i) {
      accumulate(sums, input + i * stripe_size, keys.data() + 8 * i);
    }
  }
  static void scramble(lanes& sums, const std::uint8_t* keys) noexcept {
    for (auto i = std::size_t{0}; i < num_vectors; ++i) {
      sums[i] = (sums[i] ^ sums[i] >> 47 ^ load<vector>(keys + sizeof(vector) * i)) * prime32_1;
    }
  }

  static void seed_secret(secret_keys& keys, std::uint64_t seed) noexcept {
    auto seeds = vector{};
    for (auto i = std::size_t{0}; i < sizeof(vector) / sizeof(seed); i += 2) {
      seeds[i] = seed;
      seeds[i + 1] = 0 - seed;
    }
    for (auto i = std::size_t{0}; i < secret_size; i += sizeof(vector)) {
      const auto words = load<vector>(secret.data() + i) + seeds;
      std::memcpy(keys.data() + i, &words, sizeof(words));
    }
  }

  [[nodiscard, gnu::noinline]] static std::uint64_t hash_long(const std::byte* input, std::size_t size,
                                                              std::uint64_t seed) noexcept {
    alignas(64) secret_keys keys;
    seed_secret(keys, seed);
    const auto start =
        std::array{prime32_3, prime64_1, prime64_2, prime64_3, prime64_4, prime32_2, prime64_5, prime32_1};
    auto sums = std::bit_cast<lanes>(start);
    const auto* const last_stripe = input + size - stripe_size;
    auto num_left = (size - 1) / stripe_size;
    for (; num_left >= stripes_per_round; num_left -= stripes_per_round) {
      accumulate(sums, input, keys, stripes_per_round);
      scramble(sums, keys.data() + secret_size - stripe_size);
      input += stripes_per_round * stripe_size;
    }
    accumulate(sums, input, keys, num_left);
    accumulate(sums, last_stripe, keys.data() + secret_size - stripe_size - 7);

    const auto words = std::bit_cast<std::array<std::uint64_t, 8>>(sums);
    auto sum = size * prime64_1;
    for (auto i = std::size_t{0}; i < words.size(); i += 2) {
      sum += fold(words[i] ^ load(keys.data() + 11 + 8 * i), words[i + 1] ^ load(keys.data() + 11 + 8 * (i + 1)));
    }
    return avalanche(sum);
  }
};

}  // namespace pagedkv::detail
