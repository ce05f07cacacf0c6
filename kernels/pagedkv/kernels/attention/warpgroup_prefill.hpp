#pragma once

// Attention of tasks with many columns with Hopper's products of warpgroups. Other compilers see no such code.

#include <pagedkv/kernels/attention/launcher.hpp>
#include <pagedkv/kernels/attention/warpgroup_buffers.hpp>
#include <pagedkv/kernels/attention/warpgroup_consumer.hpp>
#include <pagedkv/kernels/attention/warpgroup_producer.hpp>

#include <cstddef>

#if defined(__CUDACC__) && !defined(__HIPCC__)

namespace pagedkv::kernels {

/// Whether the kernel for these has a version with products of warpgroups.
template <class Element, int ValueDim>
inline constexpr bool has_warpgroup_prefill = sizeof(typename Element::storage) == 2 && ValueDim <= 128;

  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

/// The pieces of a share.
template <class Element, class Numbers, int KeyDim, int ValueDim>
PAGEDKV_DEVICE void attend_in_warpgroups(const attention_call& call, const divider<std::int32_t>& block_size) {
  const auto index = static_cast<int>(local_index().x);
  if (index == 0) {
    prefill_buffers<warpgroup_prefill_shape<KeyDim, ValueDim>>().begin();
  }
  barrier();
  const auto share = static_cast<std::int32_t>(workgroup_index().x);
  if (index < warpgroup_lanes) {
    give_registers<88>();
    auto producer = prefill_producer<Element, Numbers, KeyDim, ValueDim>(call, block_size, index);
    for (auto walk = attention_task_walk(call, share); !walk.done; walk.next_piece()) {
      producer.copy(walk);
    }
    producer.end();
  } else {
    take_registers<208>();
    auto consumer = prefill_consumer<Element, Numbers, KeyDim, ValueDim>(call, index - warpgroup_lanes);
    while (consumer.attend_next()) {
    }
  }
}

  #endif

template <auto Kernel, class Element, int KeyDim, int ValueDim>
[[nodiscard]] std::size_t prefill_shared_bytes() {
  return has_warpgroup_prefill<Element, ValueDim>
             ? warpgroup_shared_bytes<Kernel>(warpgroup_prefill_shape<KeyDim, ValueDim>::bytes)
             : 0;
}

/// Lanes of a workgroup of the kernel that needs this much dynamic shared memory.
[[nodiscard]] inline int lanes_with_shared_bytes(std::size_t shared_bytes) {
  return shared_bytes > 0 ? 3 * warpgroup_lanes : group_lanes;
}

}  // namespace pagedkv::kernels

#else

namespace pagedkv::kernels {

template <auto Kernel, class Element, int KeyDim, int ValueDim>
[[nodiscard]] std::size_t prefill_shared_bytes() {
  return 0;
}

[[nodiscard]] inline int lanes_with_shared_bytes(std::size_t) { return group_lanes; }

}  // namespace pagedkv::kernels

#endif
