#pragma once

// Attention of tasks with many columns with Hopper's products of warpgroups. Other compilers see no such code.

#include <pagedkv/kernels/attention/launcher.hpp>
#include <pagedkv/kernels/attention/warpgroup_buffers.hpp>
#include <pagedkv/kernels/attention/warpgroup_consumer.hpp>
#include <pagedkv/kernels/attention/warpgroup_expander.hpp>
#include <pagedkv/kernels/attention/warpgroup_producer.hpp>

#include <cstddef>

#if defined(__CUDACC__) && !defined(__HIPCC__)

namespace pagedkv::kernels {

/// Whether the kernel for these values has a version with products of warpgroups.
template <int ValueDim>
inline constexpr bool has_warpgroup_prefill = ValueDim <= 128;

  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

/// Registers of a lane that copies, expands or multiplies. The warpgroups share what they are launched with; a lane
/// that asks for more waits without end.
template <class Shape>
struct prefill_registers {
  static constexpr int launched = Shape::expands ? 4 * 128 : 3 * 168;
  static constexpr int of_copies = Shape::expands ? 72 : 88;
  static constexpr int of_expansion = Shape::expands ? 40 : 0;
  static constexpr int of_products = (launched - of_copies - of_expansion) / 2;
  static_assert(of_products % 8 == 0);
};

/// The pieces of a share.
template <class Element, class Numbers, int KeyDim, int ValueDim>
PAGEDKV_DEVICE void attend_in_warpgroups(const attention_call& call, const divider<std::int32_t>& block_size) {
  using shape = warpgroup_prefill_shape<Element, KeyDim, ValueDim>;
  using lane_registers = prefill_registers<shape>;
  static_assert(shape::bytes <= 227 * 1024);
  const auto index = static_cast<int>(local_index().x);
  if (index == 0) {
    prefill_buffers<shape>().begin();
  }
  barrier();
  const auto share = static_cast<std::int32_t>(workgroup_index().x);
  const auto of_products = index - shape::producers * warpgroup_lanes;
  if (index < warpgroup_lanes) {
    give_registers<lane_registers::of_copies>();
    auto producer = prefill_producer<Element, Numbers, KeyDim, ValueDim>(call, block_size, index);
    for (auto walk = attention_task_walk(call, share); !walk.done; walk.next_piece()) {
      producer.copy(walk);
    }
    producer.end();
  } else if (of_products >= 0) {
    take_registers<lane_registers::of_products>();
    auto consumer = prefill_consumer<Element, Numbers, KeyDim, ValueDim>(call, of_products);
    while (consumer.attend_next()) {
    }
  } else if constexpr (shape::expands) {
    give_registers<lane_registers::of_expansion>();
    prefill_expander<Element, Numbers, KeyDim, ValueDim>(index - warpgroup_lanes).expand();
  }
}

  #endif

template <auto Kernel, class Element, int KeyDim, int ValueDim>
[[nodiscard]] std::size_t prefill_shared_bytes() {
  return has_warpgroup_prefill<ValueDim>
             ? warpgroup_shared_bytes<Kernel>(warpgroup_prefill_shape<Element, KeyDim, ValueDim>::bytes)
             : 0;
}

/// Lanes of a workgroup of the kernel that needs this much dynamic shared memory.
template <class Element, int KeyDim, int ValueDim>
[[nodiscard]] int prefill_lanes(std::size_t shared_bytes) {
  return shared_bytes > 0 ? warpgroup_prefill_shape<Element, KeyDim, ValueDim>::lanes : group_lanes;
}

}  // namespace pagedkv::kernels

#else

namespace pagedkv::kernels {

template <auto Kernel, class Element, int KeyDim, int ValueDim>
[[nodiscard]] std::size_t prefill_shared_bytes() {
  return 0;
}

template <class Element, int KeyDim, int ValueDim>
[[nodiscard]] int prefill_lanes(std::size_t /*shared_bytes*/) {
  return group_lanes;
}

}  // namespace pagedkv::kernels

#endif
