#pragma once

#include <pagedkv/policy/element/parts/row.hpp>

#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace pagedkv::test {

/// A row after storing and reading it.
template <element Element>
std::vector<float> stored_and_read(const std::vector<float>& row) {
  auto stored = std::vector<typename Element::storage>(row.size());
  auto read = std::vector<float>(row.size());
  const auto scale = encode_row<Element>(row, stored);
  decode_row<Element>(stored, scale, read);
  return read;
}

template <class Random>
std::vector<float> random_row(Random& random, std::size_t size, float magnitude) {
  auto number = std::uniform_real_distribution<float>{-magnitude, magnitude};
  auto row = std::vector<float>(size);
  for (auto& x : row) {
    x = number(random);
  }
  return row;
}

/// The guarantees of every element. `largest_error(number, scale)` bounds the error of a finite number of a row with
/// that scale, up to float32's own rounding. `largest`: beyond it, numbers have other bounds.
template <element Element, class LargestError>
void check_element(LargestError largest_error, float largest = std::numeric_limits<float>::max()) {
  constexpr auto infinity = std::numeric_limits<float>::infinity();
  constexpr auto nan = std::numeric_limits<float>::quiet_NaN();
  auto random = std::mt19937{20260101};
  INFO(Element::name);

  {  // An all-zero row reads as zeros.
    for (const auto x : stored_and_read<Element>(std::vector<float>(67, 0.0f))) {
      CHECK(x == 0.0f);
    }
  }
  {  // A row equals its numbers converted one by one, whatever its size leaves for a vectorised loop's tail.
    for (auto size = std::size_t{0}; size < 70; ++size) {
      const auto row = random_row(random, size, 3.0f);
      auto stored = std::vector<typename Element::storage>(size + 1);
      std::memset(stored.data(), 0x5a, stored.size() * sizeof(stored[0]));
      const auto canary = stored.back();
      const auto scale = encode_row<Element>(row, {stored.data(), size});
      CHECK(scale == (Element::scaled ? Element::scale_for(absmax(row)) : 1.0f));
      CHECK(std::memcmp(&stored.back(), &canary, sizeof(canary)) == 0);
      auto read = std::vector<float>(size);
      decode_row<Element>({stored.data(), size}, scale, read);
      for (auto i = std::size_t{0}; i < size; ++i) {
        const auto one = Element::encode(row[i], scale);
        CHECK(std::memcmp(&one, &stored[i], sizeof(one)) == 0);
        CHECK(read[i] == Element::decode(one, scale));
      }
    }
  }
  {  // Errors stay within the bound, signs and order are kept, and a number that was read is stored again unchanged.
    for (const auto magnitude : {1e-30f, 1e-3f, 1.0f, 100.0f, 2e4f}) {
      if (magnitude > largest) {
        continue;
      }
      const auto row = random_row(random, 128, magnitude);
      const auto scale = Element::scale_for(absmax(row));
      const auto read = stored_and_read<Element>(row);
      for (auto i = std::size_t{0}; i < row.size(); ++i) {
        CAPTURE(magnitude, row[i], scale, read[i]);
        const auto rounding = std::abs(double{row[i]}) * std::ldexp(1.0, -22);
        CHECK(std::abs(double{read[i]} - double{row[i]}) <= double{largest_error(row[i], scale)} + rounding);
        CHECK(Element::decode(Element::encode(-row[i], scale), scale) == -read[i]);
        CHECK(Element::decode(Element::encode(read[i], scale), scale) == read[i]);
        const auto next = row[(i + 1) % row.size()];
        const auto next_read = read[(i + 1) % row.size()];
        CHECK((row[i] < next ? read[i] <= next_read : read[i] >= next_read));
      }
    }
  }
  {  // A NaN never becomes a number or an infinity, and an infinity never a number.
    for (const auto special : {nan, -nan, infinity, -infinity}) {
      auto row = random_row(random, 64, 1.0f);
      row[17] = special;
      const auto read = stored_and_read<Element>(row);
      CHECK_FALSE(std::isfinite(read[17]));
      if (std::isnan(special)) {
        CHECK(std::isnan(read[17]));
      }
    }
  }
  {  // The largest and smallest numbers of float32 cause no undefined behaviour and keep their sign.
    for (const auto extreme : {std::numeric_limits<float>::max(), std::numeric_limits<float>::min(),
                               std::numeric_limits<float>::denorm_min()}) {
      const auto read = stored_and_read<Element>({extreme, -extreme, 0.0f});
      CHECK(read[0] >= 0.0f);
      CHECK(read[1] == -read[0]);
      CHECK(read[2] == 0.0f);
    }
  }
}

}  // namespace pagedkv::test
