#pragma once

#include <pagedkv/attention/plan_layout.hpp>
#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/kernels/attention/launcher.hpp>
#include <pagedkv/kernels/divider.hpp>
#include <pagedkv/kernels/platform.hpp>
#include <pagedkv/kernels/row.hpp>
#include <pagedkv/kernels/transfer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pagedkv::kernels {

/// Lanes of a workgroup that expands; those that take parts of a block together; chunks of such a part that each of
/// these has. A chunk is the numbers that one store holds.
inline constexpr int expanding_lanes = 256;
inline constexpr int lanes_of_part = 32;
inline constexpr int chunks_of_lane = 4;

/// Workgroups for each share of a plan, which is a workgroup that attends. On NVIDIA they fill a processor.
inline constexpr int expanding_workgroups = 4;

/// The keys, or the values, of blocks. Expanded rows of a block are contiguous: `[KV head][token][dim]`.
struct expanded_half {
  block_storage_view from;      // whose keys they are
  std::byte* to = nullptr;      // in the first expanded block
  std::int32_t num_chunks = 0;  // of a block
  divider<std::int32_t> chunks_of_row;
  divider<std::int32_t> parts;  // of a block
};

/// The first argument, as `tile_call` is.
struct expansion_call {
  expanded_half keys;
  expanded_half values;
  divider<std::int32_t> block_size;
  std::int32_t layer = 0;
  std::int64_t block_stride = 0;  // of expanded blocks
  const attention_counts* counts = nullptr;
  const block_id* indices = nullptr;
  block_id* ids = nullptr;
};

/// Writes the block of each entry of the block tables as numbers of `To`, scales applied, and the entry's own number as
/// the block's id; the absent blocks before windows stay absent. Slots that were never written are converted, too, to
/// unspecified numbers. The grid's z is 0 for keys, 1 for values.
template <class Element, class To>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(expanding_lanes) expand_blocks_kernel(expansion_call call) {
  using to_storage = typename To::storage;
  constexpr auto numbers = numbers_per_lane<To>;
  constexpr auto teams = expanding_lanes / lanes_of_part;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const auto of_values = workgroup_index().z != 0;
  const auto& half = of_values ? call.values : call.keys;
  const auto index = static_cast<std::int32_t>(local_index().x);
  const auto lane = index % lanes_of_part;
  const auto step = static_cast<std::int32_t>(grid_extent().x) * teams;
  const auto num_parts = load(&call.counts->num_entries) * half.parts.divisor();
  for (auto at = static_cast<std::int32_t>(workgroup_index().x) * teams + index / lanes_of_part; at < num_parts;
       at += step) {
    const auto [entry, part] = half.parts.split(at);
    const auto block = static_cast<std::int32_t>(load(call.indices + entry));
    if (!of_values && part == 0 && lane == 0) {
      store(call.ids + entry, block < 0 ? no_block : block_id{entry});
    }
    if (block < 0) {
      continue;
    }
    const auto first = part * (lanes_of_part * chunks_of_lane) + lane;
    vector<typename Element::storage, numbers> stored[chunks_of_lane];
    float scales[chunks_of_lane];
    PAGEDKV_UNROLL_LOOP
    for (auto i = 0; i < chunks_of_lane; ++i) {
      const auto chunk = first + i * lanes_of_part;
      if (chunk < half.num_chunks) {
        const auto [row, of_row] = half.chunks_of_row.split(chunk);
        const auto [head, token] = call.block_size.split(row);
        const auto rows = rows_in_block<Element>(half.from, call.layer, block, token, head);
        stored[i] = load_vector<numbers>(rows.key + of_row * numbers);
        scales[i] = load_scale<Element>(rows.key_scale);
      }
    }
    auto* const to = reinterpret_cast<to_storage*>(half.to + stride_over(entry, call.block_stride));
    PAGEDKV_UNROLL_LOOP
    for (auto i = 0; i < chunks_of_lane; ++i) {
      const auto chunk = first + i * lanes_of_part;
      if (chunk < half.num_chunks) {
        store_numbers(to + chunk * numbers, recode<To, Element, numbers>(stored[i], scales[i], 1.0F));
      }
    }
  }
}

template <class Element, class To>
[[nodiscard]] runtime::status expand_blocks(const block_expansion& expansion, const attention_plan& plan,
                                            runtime::stream stream) {
  if constexpr (is_expandable<Element>) {
    constexpr auto numbers = numbers_per_lane<To>;
    constexpr auto chunks_of_part = lanes_of_part * chunks_of_lane;
    const auto describe = [&](const block_storage_view& from, const block_storage_view& to) {
      const auto chunks_of_row = to.head_dim / numbers;
      const auto num_chunks = to.num_kv_heads * to.block_size * chunks_of_row;
      return expanded_half{from, to.base, num_chunks, divider<std::int32_t>(chunks_of_row),
                           divider<std::int32_t>((num_chunks + chunks_of_part - 1) / chunks_of_part)};
    };
    auto call = expansion_call{};
    call.keys = describe(expansion.from.keys_alone(), expansion.to.keys_alone());
    call.values = describe(expansion.from.values_alone(), expansion.to.values_alone());
    call.block_size = divider<std::int32_t>(expansion.to.block_size);
    call.layer = expansion.layer;
    call.block_stride = expansion.to.block_stride;
    call.counts = reinterpret_cast<const attention_counts*>(plan.words);
    call.indices = expansion.indices;
    call.ids = expansion.ids;
    const auto most_parts =
        std::int64_t{plan.shape.expanded_blocks} * std::max(call.keys.parts.divisor(), call.values.parts.divisor());
    constexpr auto teams = std::int64_t{expanding_lanes / lanes_of_part};
    const auto workgroups =
        std::min((most_parts + teams - 1) / teams, std::int64_t{plan.shape.num_shares} * expanding_workgroups);
    const auto shape = launch_shape{{static_cast<std::uint32_t>(workgroups), 1, 2}, {expanding_lanes}};
    return launch_following<expand_blocks_kernel<Element, To>>(shape, stream, call);
  }
  return runtime::error_invalid_value;
}

}  // namespace pagedkv::kernels
