#pragma once

#include "draw_number.hpp"

#include <pagedkv/backend/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pagedkv::test {

/// Keys or values of consecutive tokens with space around every head, where `canary` reveals a stray write.
class strided_rows {
 public:
  static constexpr auto canary = -12345.0f;

  /// `heads_outside` puts the heads further apart than the tokens.
  strided_rows(std::int64_t tokens, std::int64_t heads, std::int64_t dim, bool heads_outside = false)
      : tokens_(tokens),
        heads_(static_cast<std::int32_t>(heads)),
        dim_(static_cast<std::int32_t>(dim)),
        token_stride_(heads_outside ? dim + 3 : heads * (dim + 2) + 5),
        head_stride_(heads_outside ? tokens * (dim + 3) + 1 : dim + 2),
        numbers_(static_cast<std::size_t>(tokens * token_stride_ + heads * head_stride_), canary) {
    for (auto token = std::int64_t{0}; token < tokens; ++token) {
      for (auto head = std::int64_t{0}; head < heads; ++head) {
        rows_.push_back(token * token_stride_ + head * head_stride_);
      }
    }
  }

  template <class Random>
  void fill(Random& random, float magnitude) {
    for (const auto start : rows_) {
      draw_numbers(std::span(numbers_).subspan(static_cast<std::size_t>(start), static_cast<std::size_t>(dim_)),
                   magnitude, random);
    }
  }

  [[nodiscard]] token_rows<const float> input() const {
    return {numbers_.data(), token_stride_, head_stride_, tokens_, heads_, dim_};
  }
  [[nodiscard]] token_rows<float> output() {
    return {numbers_.data(), token_stride_, head_stride_, tokens_, heads_, dim_};
  }

  [[nodiscard]] std::span<const float> row(std::int64_t token, std::int64_t head) const {
    return {numbers_.data() + token * token_stride_ + head * head_stride_, static_cast<std::size_t>(dim_)};
  }

  /// Whether everything outside the rows still holds the canary.
  [[nodiscard]] bool intact_around_rows() const {
    auto outside = numbers_;
    for (const auto start : rows_) {
      std::fill_n(outside.begin() + start, dim_, canary);
    }
    return std::all_of(outside.begin(), outside.end(), [](float x) { return x == canary; });
  }

 private:
  std::int64_t tokens_;
  std::int32_t heads_;
  std::int32_t dim_;
  std::int64_t token_stride_;
  std::int64_t head_stride_;
  std::vector<float> numbers_;
  std::vector<std::int64_t> rows_;
};

}  // namespace pagedkv::test
