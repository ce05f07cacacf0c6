#pragma once

#include <pagedkv/policy/element/parts/row.hpp>
#include <pagedkv/storage/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

// Rows of piecewise layouts, of which no two numbers need to be neighbours.

namespace pagedkv::host {

/// One row of K or of V.
template <class Storage>
struct row_in_pieces {
  Storage* start = nullptr;  // of K, or of V, in one layer of one block
  const piece_order* order = nullptr;
  std::int32_t offset = 0;
  std::int32_t head = 0;

  /// Calls `visit(numbers, stride, first, count)` for runs of the dimensions from `first` to `end`, with the distance
  /// from a number to the next.
  template <class Visit>
  void for_each_run(std::int32_t first, std::int32_t end, Visit visit) const noexcept {
    for (auto dim = first; dim < end;) {
      const auto left = order->holds_tokens ? end - dim : std::min(end - dim, order->piece - dim % order->piece);
      visit(start + order->index(offset, head, dim), order->holds_tokens ? order->dim_stride : 1, dim - first, left);
      dim += left;
    }
  }

  void write(std::int32_t first, std::span<const Storage> numbers) const noexcept {
    const auto end = first + static_cast<std::int32_t>(numbers.size());
    for_each_run(first, end, [&](Storage* to, std::int64_t stride, std::int32_t from, std::int32_t count) {
      for (auto i = std::int32_t{0}; i < count; ++i) {
        to[i * stride] = numbers[static_cast<std::size_t>(from + i)];
      }
    });
  }

  void read(std::int32_t first, std::span<Storage> numbers) const noexcept {
    const auto end = first + static_cast<std::int32_t>(numbers.size());
    for_each_run(first, end, [&](const Storage* from, std::int64_t stride, std::int32_t to, std::int32_t count) {
      for (auto i = std::int32_t{0}; i < count; ++i) {
        numbers[static_cast<std::size_t>(to + i)] = from[i * stride];
      }
    });
  }
};

/// Calls `visit(first, part)` for parts of a row that fit the stack.
template <class Visit>
void in_parts(std::size_t size, Visit visit) noexcept {
  constexpr auto most = std::size_t{256};
  for (auto first = std::size_t{0}; first < size; first += most) {
    visit(first, std::min(most, size - first));
  }
}

/// The scale of a row whose numbers are stored as `Input`. `given`: as for `encode_row`.
template <element Element, element Input>
[[nodiscard]] float scale_of_row(std::span<const typename Input::storage> row, float given) noexcept {
  if constexpr (Element::scaled) {
    auto largest = 0.0f;
    in_parts(row.size(), [&](std::size_t first, std::size_t count) {
      float numbers[256];
      decode_row<Input>(row.subspan(first, count), 1, std::span{numbers}.first(count));
      largest = larger_magnitude(largest, absmax(std::span{numbers}.first(count)));
    });
    return Element::scale_for(largest);
  } else {
    return given;
  }
}

/// Encodes a row, and returns its scale. `given` as above.
template <element Element, element Input>
float write_row(const row_in_pieces<typename Element::storage>& to, std::span<const typename Input::storage> row,
                float given) noexcept {
  const auto scale = scale_of_row<Element, Input>(row, given);
  in_parts(row.size(), [&](std::size_t first, std::size_t count) {
    typename Element::storage stored[256];
    const auto part = row.subspan(first, count);
    if constexpr (Element::scaled) {
      float numbers[256];
      decode_row<Input>(part, 1, std::span{numbers}.first(count));
      encode_numbers<Element>(std::span{numbers}.first(count), scale, std::span{stored}.first(count));
    } else {
      recode_row<Element, Input>(part, 1, std::span{stored}.first(count), given);
    }
    to.write(static_cast<std::int32_t>(first), std::span{stored}.first(count));
  });
  return scale;
}

/// Decodes a row.
template <element Output, element Element>
void read_row(const row_in_pieces<typename Element::storage>& from, float scale,
              std::span<typename Output::storage> row) noexcept {
  in_parts(row.size(), [&](std::size_t first, std::size_t count) {
    typename Element::storage stored[256];
    from.read(static_cast<std::int32_t>(first), std::span{stored}.first(count));
    recode_row<Output, Element>(std::span{stored}.first(count), scale, row.subspan(first, count));
  });
}

/// The rows of one token and head.
template <class Storage>
[[nodiscard]] row_in_pieces<Storage> key_in_pieces(const block_storage_view& view, std::int32_t layer,
                                                   std::int64_t block, std::int32_t offset,
                                                   std::int32_t head) noexcept {
  return {reinterpret_cast<Storage*>(view.block(layer, block)), &view.key_pieces, offset, head};
}

template <class Storage>
[[nodiscard]] row_in_pieces<Storage> value_in_pieces(const block_storage_view& view, std::int32_t layer,
                                                     std::int64_t block, std::int32_t offset,
                                                     std::int32_t head) noexcept {
  return {reinterpret_cast<Storage*>(view.block(layer, block) + view.value_offset), &view.value_pieces, offset, head};
}

}  // namespace pagedkv::host
