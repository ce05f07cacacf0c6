#pragma once

// Attention over latent vectors with Hopper's products of warpgroups. Other compilers see no such code.

#include <pagedkv/kernels/attention/launcher.hpp>
#include <pagedkv/kernels/attention/warpgroup_latent_buffers.hpp>
#include <pagedkv/kernels/attention/warpgroup_latent_consumer.hpp>
#include <pagedkv/kernels/attention/warpgroup_latent_expander.hpp>
#include <pagedkv/kernels/attention/warpgroup_latent_producer.hpp>

#include <cstddef>

#if defined(__CUDACC__) && !defined(__HIPCC__)

namespace pagedkv::kernels {

  #if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

/// Registers of a lane that copies, expands or multiplies. The warpgroups share what they are launched with; a lane that
/// asks for more waits without end.
template <class Element>
struct latent_registers {
  static constexpr int launched = packs_tokens<Element> ? 4 * 128 : 3 * 168;
  static constexpr int of_copies = packs_tokens<Element> ? 80 : 88;
  static constexpr int of_expansion = packs_tokens<Element> ? 48 : 0;
  static constexpr int of_products = (launched - of_copies - of_expansion) / 2;
  static_assert(of_products % 8 == 0);
};

/// The pieces of a share.
template <class Element, class Numbers>
PAGEDKV_DEVICE void attend_latent_in_warpgroups(const attention_call& call, const divider<std::int32_t>& block_size) {
  using shape = warpgroup_latent_shape<Element>;
  using lane_registers = latent_registers<Element>;
  const auto index = static_cast<int>(local_index().x);
  if (index == 0) {
    latent_buffers<Element>().begin();
  }
  barrier();
  const auto each_piece = [&](auto use) {
    for (auto walk = attention_walk(call, static_cast<std::int32_t>(workgroup_index().x)); !walk.done;
         walk.next_piece()) {
      use(walk);
    }
  };
  const auto of_products = index - shape::producers * warpgroup_lanes;
  if (of_products >= 0) {
    take_registers<lane_registers::of_products>();
    auto consumer = latent_consumer<Element, Numbers>(call, of_products);
    each_piece([&](const attention_walk& walk) { consumer.attend(walk); });
  } else if (index < warpgroup_lanes) {
    give_registers<lane_registers::of_copies>();
    auto producer = latent_producer<Element, Numbers>(call, block_size, index);
    each_piece([&](const attention_walk& walk) { producer.copy(walk); });
    producer.end();
  } else if constexpr (packs_tokens<Element>) {
    give_registers<lane_registers::of_expansion>();
    latent_expander<Element, Numbers>(index - warpgroup_lanes).expand();
  }
}

  #endif

template <auto Kernel, class Element>
[[nodiscard]] std::size_t latent_shared_bytes() {
  return warpgroup_shared_bytes<Kernel>(warpgroup_latent_shape<Element>::bytes);
}

/// Lanes of a workgroup of the kernel that needs this much dynamic shared memory.
template <class Element>
[[nodiscard]] int latent_lanes(std::size_t shared_bytes) {
  return shared_bytes > 0 ? warpgroup_latent_shape<Element>::lanes : group_lanes;
}

}  // namespace pagedkv::kernels

#else

namespace pagedkv::kernels {

template <auto Kernel, class Element>
[[nodiscard]] std::size_t latent_shared_bytes() {
  return 0;
}

template <class Element>
[[nodiscard]] int latent_lanes(std::size_t /*shared_bytes*/) {
  return group_lanes;
}

}  // namespace pagedkv::kernels

#endif
