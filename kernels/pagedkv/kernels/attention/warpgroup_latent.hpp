#pragma once

// Attention over latent vectors with Hopper's products of warpgroups. Other compilers see no such code.

#include <pagedkv/kernels/attention/warpgroup_latent_buffers.hpp>
#include <pagedkv/kernels/attention/warpgroup_latent_consumer.hpp>
#include <pagedkv/kernels/attention/warpgroup_latent_producer.hpp>

#include <cstddef>

#if defined(__CUDACC__) && !defined(__HIPCC__)

namespace pagedkv::kernels {

  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

/// Registers of the lanes that copy and of those that multiply. Three warpgroups share what they are launched with, 168 a
/// lane; a lane that asks for more waits without end.
template <class Element>
inline constexpr int producer_registers = packs_tokens<Element> ? 104 : 88;
template <class Element>
inline constexpr int consumer_registers = (3 * 168 - producer_registers<Element>) / 2;

/// The pieces of a share.
template <class Element, class Numbers>
PAGEDKV_DEVICE void attend_latent_in_warpgroups(const attention_call& call, const divider<std::int32_t>& block_size) {
  const auto index = static_cast<int>(local_index().x);
  if (index == 0) {
    latent_buffers().begin();
  }
  barrier();
  const auto share = static_cast<std::int32_t>(workgroup_index().x);
  if (index < warpgroup_lanes) {
    give_registers<producer_registers<Element>>();
    auto producer = latent_producer<Element, Numbers>(call, block_size, index);
    for (auto walk = attention_walk(call, share); !walk.done; walk.next_piece()) {
      producer.copy(walk);
    }
  } else {
    take_registers<consumer_registers<Element>>();
    auto consumer = latent_consumer<typename expanded<Element>::element, Numbers>(call, index - warpgroup_lanes);
    for (auto walk = attention_walk(call, share); !walk.done; walk.next_piece()) {
      consumer.attend(walk);
    }
  }
}

  #endif

template <auto Kernel>
[[nodiscard]] std::size_t latent_shared_bytes() {
  return warpgroup_shared_bytes<Kernel>(warpgroup_latent_shape::bytes);
}

}  // namespace pagedkv::kernels

#else

namespace pagedkv::kernels {

template <auto Kernel>
[[nodiscard]] std::size_t latent_shared_bytes() {
  return 0;
}

}  // namespace pagedkv::kernels

#endif
