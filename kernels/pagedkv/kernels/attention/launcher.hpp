#pragma once

// The host's interface to attention; see launchers.hpp.

#include <pagedkv/attention/plan_layout.hpp>
#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/kernels/attention/call.hpp>
#include <pagedkv/kernels/runtime.hpp>

#include <algorithm>

namespace pagedkv::kernels {

/// The largest head dimension of the kernels that are made for one, in numbers; a head dimension between two uses the
/// larger one.
inline constexpr std::int32_t largest_attention_dim = 256;

/// The longest keys and values of the general kernel with plain arithmetic, in numbers: a latent vector of 512 with a
/// rotated part of 64, and without.
inline constexpr std::int32_t largest_plain_dim = 576;
inline constexpr std::int32_t largest_value_dim = 512;

/// Waves that have a share of tasks with `tiles` matrices of columns. For the largest dimension, registers of a wave do
/// not suffice for more than one matrix: several waves use the same tiles, which they copy together.
[[nodiscard]] constexpr int waves_of_share(int head_dim, int tiles) noexcept { return head_dim > 128 ? tiles : 1; }

/// Whether tasks may have two matrices of columns; else, more columns are another task, which reads the tokens again.
/// Where two waves have a share, fewer shares of a workgroup join their results. For few KV heads of 8 bits, merging
/// results takes longer than a second read of the tokens. `num_kv_heads`: of all rows of a plan.
template <class Element>
[[nodiscard]] constexpr bool has_wide_tasks(int head_dim, std::int64_t num_kv_heads) noexcept {
  return head_dim <= 128 || sizeof(typename Element::storage) == 2 || num_kv_heads > 4;
}

/// Shares, buffers and occupancy for one element and head dimension.
struct attention_geometry {
  int shares = 4;     // of a workgroup; the waves of each work independently of others
  int stages = 1;     // tiles per share in shared memory, if any
  int residency = 2;  // workgroups that a processor runs at once

  /// `head_dim`: of the kernel; `tiles`: matrices of columns. At least three tiles per share fit the shared memory of
  /// every device of compute capability 8.0 and later. Tiles take all of it: another workgroup would start early on
  /// some processors, and others would wait for these.
  template <class Element>
  [[nodiscard]] static constexpr attention_geometry of(int head_dim, int tiles) noexcept {
    constexpr auto shared_bytes = 99 << 10;
    constexpr auto most_stages = 12;
    const auto row_bytes = head_dim * static_cast<int>(sizeof(typename Element::storage));
    const auto tile_bytes = 2 * attention_tile * (row_bytes + (Element::scaled ? 4 : 0));
    const auto waves = waves_of_share(head_dim, tiles);
    auto geometry = attention_geometry{};
    geometry.shares = waves == 1 && 3 * 4 * tile_bytes <= shared_bytes ? 4 : 2;
    geometry.stages = std::min(
        most_stages, (shared_bytes / geometry.shares - room_beside_tiles(head_dim, waves, tile_bytes)) / tile_bytes);
    return geometry;
  }

  /// Bytes of shared memory for the outputs of the waves of a share, of eight columns each, beyond those of a tile.
  [[nodiscard]] static constexpr int room_beside_tiles(int head_dim, int waves, int tile_bytes) noexcept {
    const auto wave_bytes = 8 * head_dim * 4;
    return waves * wave_bytes <= tile_bytes ? 0 : (waves - 1) * wave_bytes;
  }
};

/// Lanes of a workgroup, and its workgroups per processor, of kernels whose workgroups share a task. On NVIDIA one
/// takes all registers.
inline constexpr int group_lanes = 256;
[[nodiscard]] constexpr int group_residency(runtime::matrix_instructions matrices) noexcept {
  return matrices == runtime::matrix_instructions::mma ? 1 : 2;
}

/// Columns of a workgroup over latent vectors, and workgroups per processor.
inline constexpr std::int32_t latent_columns = 64;
inline constexpr int latent_residency = 1;

/// Workgroups that have a share together, each with columns of its own of every task: two where the heads of a query
/// fill an even number of workgroups. They read the same tokens at about the same time, so that the second-level cache
/// holds these for the second.
[[nodiscard]] constexpr std::int32_t latent_workgroups(std::int32_t group_size) noexcept {
  const auto column_tiles = (group_size + latent_columns - 1) / latent_columns;
  return column_tiles % 2 == 0 ? 2 : 1;
}

/// The dimensions of keys and values, in numbers, that a kernel whose workgroups share tasks is made for.
struct group_dims {
  int keys;
  int values;
};

/// The smallest kernel for keys and values of these lengths; zeros if there is none.
template <class Element>
[[nodiscard]] constexpr group_dims group_dims_for(std::int32_t key_dim, std::int32_t value_dim) noexcept {
  constexpr auto bytes = sizeof(typename Element::storage);
  const auto longest = std::max(key_dim, value_dim);
  if (bytes == 1 || longest <= 128) {
    return longest > 128 ? group_dims{0, 0} : (bytes == 2 && longest <= 64 ? group_dims{64, 64} : group_dims{128, 128});
  }
  return key_dim <= 192 && value_dim <= 128 ? group_dims{192, 128} : group_dims{256, 256};
}

/// Columns of a workgroup without products of warpgroups. Every wave has 16, but 8 where longer rows leave no registers
/// for more.
[[nodiscard]] constexpr std::int32_t columns_of_group(runtime::matrix_instructions matrices, group_dims dims) noexcept {
  const auto waves = matrices == runtime::matrix_instructions::mfma ? group_lanes / 64 : group_lanes / 32;
  return waves * (matrices == runtime::matrix_instructions::mma && dims.values > 128 ? 8 : 16);
}

/// Columns of a workgroup with products of warpgroups.
inline constexpr std::int32_t warpgroup_group_columns = 128;

/// Columns of a task. On a device with products of warpgroups, code that is not compiled for them has two workgroups
/// for each share where one has fewer columns.
[[nodiscard]] inline std::int32_t group_columns(const runtime::device_properties& device, group_dims dims) noexcept {
  return device.warpgroup_products ? warpgroup_group_columns : columns_of_group(device.matrices, dims);
}

/// Whether the kernel whose workgroups share tasks reads blocks of lists. It would need more scalar registers than CDNA
/// has. `wide_waves`: of 64 lanes, as on CDNA.
[[nodiscard]] constexpr bool group_takes_lists(bool wide_waves) noexcept { return !wide_waves; }

/// Whether that kernel takes tasks that are dealt. Elsewhere it would need more scalar registers.
[[nodiscard]] constexpr bool group_takes_dealt_tasks(runtime::matrix_instructions matrices) noexcept {
  return matrices == runtime::matrix_instructions::mma;
}

/// The costs of shared prefixes of 8-bit numbers. A tile is read in half of the time, but its products take as long as
/// those of 16 bits, and products of warpgroups need it expanded.
[[nodiscard]] constexpr attention_prefix_costs prefix_costs_of_bytes(
    const runtime::device_properties& device) noexcept {
  return device.warpgroup_products ? attention_prefix_costs{.tile = 4, .launch = 58}
                                   : attention_prefix_costs{.tile = 10, .launch = 100};
}

/// The geometry of kernels with plain arithmetic.
inline constexpr auto plain_attention_geometry = attention_geometry{4, 1, 4};

/// Whether the device's matrix instructions support the element and the head dimension. Longer rows need more registers
/// than lanes have where 32 of them share a row.
template <class Element>
[[nodiscard]] bool has_matrix_attention(const runtime::device_properties& device, std::int32_t head_dim) noexcept {
  using enum runtime::matrix_instructions;
  return sizeof(typename Element::storage) < 4 && device.matrices != none &&
         (device.matrices != wmma || head_dim <= 128);
}

/// Whether the kernel for latent vectors reads the element.
template <class Element>
inline constexpr bool is_latent_element = sizeof(typename Element::storage) == 2 || packs_tokens<Element>;

/// Whether the kernel for latent vectors supports the device and lengths. On CDNA it would need more scalar registers
/// than there are.
template <class Element>
[[nodiscard]] bool has_latent_attention(const runtime::device_properties& device, std::int32_t key_dim,
                                        std::int32_t value_dim) noexcept {
  return is_latent_element<Element> && device.matrices == runtime::matrix_instructions::mma &&
         key_dim == largest_plain_dim && value_dim == largest_value_dim;
}

/// Enqueues attention by the plan; its shape names the kernel. All pointers are device-accessible memory. `Numbers`
/// names the types of queries and outputs. Unless the kernel is the plain one, keys and values are aligned.
template <class Element, class Numbers>
[[nodiscard]] runtime::status decode_attention(const attention_call& call, const attention_plan& plan,
                                               std::int32_t max_columns, runtime::stream stream);

/// Enqueues attention by a plan for `kernel_kind::groups` that shares no prefixes, as `decode_attention` does: fewer
/// kernels to compile where only this one is needed.
template <class Element, class Numbers>
[[nodiscard]] runtime::status attend_in_groups(const attention_call& call, const attention_plan& plan,
                                               std::int32_t max_columns, runtime::stream stream);

/// Blocks that become numbers of another element before attention reads them.
struct block_expansion {
  block_storage_view from;
  std::int32_t layer = 0;
  const block_id* indices = nullptr;  // of the batch
  block_storage_view to;              // one layer, whose rows lie without gaps, heads before tokens; a block per entry
  block_id* ids = nullptr;            // written: the table of the same batch in these blocks
};

/// Whether blocks of the element may be expanded.
template <class Element>
inline constexpr bool is_expandable = sizeof(typename Element::storage) == 1 && !packs_tokens<Element>;

/// Enqueues the expansion of the blocks of a batch's tables, of which the plan has the number. All pointers are
/// device-accessible memory. Rows of both sides start at multiples of the bytes of 8 numbers, and have a multiple of 8
/// numbers.
template <class Element, class To>
[[nodiscard]] runtime::status expand_blocks(const block_expansion& expansion, const attention_plan& plan,
                                            runtime::stream stream);

}  // namespace pagedkv::kernels
