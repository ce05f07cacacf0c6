#pragma once

#include <pagedkv/kernels/attention/lane_word.hpp>
#include <pagedkv/kernels/platform.hpp>

namespace pagedkv::kernels {

/// A lane's words of the queries of `Tiles` matrices, in groups of four. In shared memory where registers do not suffice;
/// each lane reads only what it wrote.
template <int Tiles, int Words, int Lanes, bool Shared>
class lane_queries {
 public:
  static constexpr int wave_bytes = 0;  // of shared memory

  PAGEDKV_DEVICE lane_queries(std::size_t /*first_byte*/, int /*lane*/) {}

  PAGEDKV_DEVICE void put(int tile, int group, const registers<lane_word, 4>& words) {
    PAGEDKV_UNROLL
    for (auto i = 0; i < 4; ++i) {
      words_[tile][group * 4 + i] = words[i];
    }
  }

  PAGEDKV_DEVICE void take(int tile, int group, registers<lane_word, 4>& words) const {
    PAGEDKV_UNROLL
    for (auto i = 0; i < 4; ++i) {
      words[i] = words_[tile][group * 4 + i];
    }
  }

 private:
  registers<lane_word, Tiles, Words> words_;
};

template <int Tiles, int Words, int Lanes>
class lane_queries<Tiles, Words, Lanes, true> {
 public:
  static constexpr int wave_bytes = Tiles * Words * Lanes * static_cast<int>(sizeof(lane_word));

  PAGEDKV_DEVICE lane_queries(std::size_t first_byte, int lane)
      : words_(dynamic_shared<lane_word>(first_byte, static_cast<std::size_t>(Tiles * Words * Lanes))), lane_(lane) {}

  PAGEDKV_DEVICE void put(int tile, int group, const registers<lane_word, 4>& words) {
    store_shared_vector(words_, place(tile, group), vector<lane_word, 4>{{words[0], words[1], words[2], words[3]}});
  }

  PAGEDKV_DEVICE void take(int tile, int group, registers<lane_word, 4>& words) const {
    const auto read = load_shared_vector<4>(words_, place(tile, group));
    PAGEDKV_UNROLL
    for (auto i = 0; i < 4; ++i) {
      words[i] = read.values[i];
    }
  }

 private:
  [[nodiscard]] PAGEDKV_DEVICE std::size_t place(int tile, int group) const {
    return static_cast<std::size_t>(((tile * Words / 4 + group) * Lanes + lane_) * 4);
  }

  shared_span<lane_word> words_;
  int lane_;
};

}  // namespace pagedkv::kernels
