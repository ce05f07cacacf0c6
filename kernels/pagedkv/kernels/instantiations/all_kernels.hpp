#pragma once

// Names every kernel that the library instantiates for one element, so that compiling one file per element emits them
// all.

#include <pagedkv/kernels/append.hpp>
#include <pagedkv/kernels/convert_blocks.hpp>
#include <pagedkv/kernels/gather.hpp>
#include <pagedkv/kernels/rope_append.hpp>

#include <tuple>

namespace pagedkv::kernels {

/// Functions that launch `Element`'s kernels over rows of each of `Rows`.
template <class Element, class... Rows>
[[nodiscard]] auto row_launchers() {
  return std::tuple(&append<Element, Rows>..., &gather<Element, Rows>...,
                    &rope_append<Element, Rows, rope_pairing::halves>...,
                    &rope_append<Element, Rows, rope_pairing::neighbours>...);
}

/// Functions that launch the conversion from each of `Others`.
template <class Element, class... Others>
[[nodiscard]] auto convert_launchers() {
  return std::tuple(&convert_blocks<Element, Others>...);
}

}  // namespace pagedkv::kernels
