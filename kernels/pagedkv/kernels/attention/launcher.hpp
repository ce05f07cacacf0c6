#pragma once

// The host's interface to attention; see launchers.hpp.

#include <pagedkv/attention/plan.hpp>
#include <pagedkv/kernels/attention/call.hpp>
#include <pagedkv/kernels/runtime.hpp>

#include <algorithm>

namespace pagedkv::kernels {

/// The largest head dimension of a kernel; a head dimension between two kernels uses the larger one.
inline constexpr std::int32_t largest_attention_dim = 256;

/// Waves, buffers and occupancy for one element and head dimension.
struct attention_geometry {
  int waves = 4;      // of a workgroup; each works independently
  int stages = 1;     // tiles per wave in shared memory, if any
  int residency = 2;  // workgroups that a processor runs at once

  /// `row_bytes`: bytes of a key or value. At least three tiles per wave fit the shared memory of every device of
  /// compute capability 8.0 and later.
  [[nodiscard]] static constexpr attention_geometry of(int row_bytes, bool scaled) noexcept {
    constexpr auto shared_bytes = 99 << 10;
    const auto tile_bytes = 2 * attention_tile * (row_bytes + (scaled ? 4 : 0));
    auto geometry = attention_geometry{};
    geometry.waves = 3 * 4 * tile_bytes <= shared_bytes ? 4 : 2;
    geometry.stages = std::min(8, shared_bytes / (geometry.waves * tile_bytes));
    return geometry;
  }
};

/// For kernels with plain arithmetic.
inline constexpr auto plain_attention_geometry = attention_geometry{4, 1, 4};

/// Whether the device's matrix instructions support the element and the head dimension. Longer rows need more registers
/// than lanes have where 32 of them share a row.
template <class Element>
[[nodiscard]] bool has_matrix_attention(const runtime::device_properties& device, std::int32_t head_dim) noexcept {
  using enum runtime::matrix_instructions;
  return sizeof(typename Element::storage) < 4 && device.matrices != none && (device.matrices != wmma || head_dim <= 128);
}

/// Enqueues attention by the plan; `columns` of its shape selects the kernel. All pointers are device-accessible
/// memory. `Numbers` names the types of queries and outputs. Unless `columns` is 1, keys and values are aligned.
template <class Element, class Numbers>
[[nodiscard]] runtime::status decode_attention(const attention_call& call, const attention_plan& plan,
                                               std::int32_t max_columns, runtime::stream stream);

}  // namespace pagedkv::kernels
