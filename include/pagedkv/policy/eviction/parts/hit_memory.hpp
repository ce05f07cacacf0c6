#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagedkv {

/// Remembers how often the contents released last were hit, up to 7 times, also after they are evicted. Each hash has
/// one place, and the next hash of that place takes it. One in 8,192 is mistaken for another. 2 to 4 bytes per block,
/// 32 KB at least.
class hit_memory {
 public:
  static constexpr auto most_hits = std::uint32_t{7};

  explicit hit_memory(std::int32_t num_blocks)
      : notes_(std::bit_ceil(std::max(min_notes, static_cast<std::size_t>(num_blocks)))) {}

  void note(std::uint64_t hash, std::uint32_t num_hits) noexcept {
    notes_[place(hash)] = static_cast<std::uint16_t>(mark(hash) << 3 | (std::min(num_hits, most_hits - 1) + 1));
  }

  /// Hits of the contents when they were released last, and one for the present hit; 0 when they are not remembered.
  [[nodiscard]] std::uint32_t hits_with_this(std::uint64_t hash) const noexcept {
    const auto note = notes_[place(hash)];
    return note >> 3 == mark(hash) ? note & 7U : 0;
  }

  [[nodiscard]] std::size_t bytes() const noexcept { return notes_.capacity() * sizeof(notes_[0]); }

 private:
  static constexpr auto min_notes = std::size_t{16384};

  [[nodiscard]] std::size_t place(std::uint64_t hash) const noexcept {
    return static_cast<std::size_t>(hash * 0x9e3779b97f4a7c15U >> 20) & (notes_.size() - 1);
  }
  [[nodiscard]] static std::uint32_t mark(std::uint64_t hash) noexcept {
    return static_cast<std::uint32_t>(hash >> 51 ^ hash >> 7) & 0x1fffU;
  }

  std::vector<std::uint16_t> notes_;
};

}  // namespace pagedkv
