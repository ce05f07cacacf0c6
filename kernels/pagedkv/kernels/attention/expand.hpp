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

/// Lanes of a workgroup that expands, those that have a part of a block together, and the chunks of such a part that
/// each of these has. A chunk is the numbers that one store holds.
inline constexpr int expanding_lanes = 256;
inline constexpr int lanes_of_part = 32;
inline constexpr int chunks_of_lane = 4;
inline constexpr int expanding_teams = expanding_lanes / lanes_of_part;

/// Workgroups that expand keys, and as many values, for each share of a plan, which is a workgroup that attends.
inline constexpr int expanding_workgroups = 2;

/// The keys, or the values, of blocks. Expanded rows of a block are contiguous: `[KV head][token][dim]`.
struct expanded_half {
  block_storage_view from;      // its keys are these
  std::byte* to = nullptr;      // in the first expanded block
  std::int32_t num_chunks = 0;  // of a block
  divider<std::int32_t> chunks_of_row;
  divider<std::int32_t> parts;       // of a block
  std::int32_t entries_at_once = 0;  // of which some lanes have each part

  [[nodiscard]] std::int32_t workgroups() const {
    return (entries_at_once * parts.divisor() + expanding_teams - 1) / expanding_teams;
  }
};

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
/// unspecified numbers. The grid's z is 0 for keys, 1 for values. A lane has the same places in all its blocks, so that
/// it computes their addresses once.
template <class Element, class To>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(expanding_lanes) expand_blocks_kernel(expansion_call call) {
  using storage = typename Element::storage;
  using to_storage = typename To::storage;
  constexpr auto numbers = numbers_per_lane<To>;
  const auto of_values = workgroup_index().z != 0;
  const auto& half = of_values ? call.values : call.keys;
  const auto index = static_cast<std::int32_t>(local_index().x);
  const auto lane = index % lanes_of_part;
  const auto team = static_cast<std::int32_t>(workgroup_index().x) * expanding_teams + index / lanes_of_part;
  const auto [first_entry, part] = half.parts.split(team);
  const auto num_entries = first_entry < half.entries_at_once ? load(&call.counts->num_entries) : 0;
  const auto block_of = [&](std::int32_t entry) {
    return entry < num_entries ? static_cast<std::int32_t>(load(call.indices + entry)) : -1;
  };
  auto next_block = block_of(first_entry);
  const auto first = part * (lanes_of_part * chunks_of_lane) + lane;
  stored_row_pair<Element> rows[chunks_of_lane];  // in the first block
  PAGEDKV_UNROLL_LOOP
  for (auto i = 0; i < chunks_of_lane; ++i) {
    const auto chunk = first + i * lanes_of_part;
    const auto [row, of_row] = half.chunks_of_row.split(chunk < half.num_chunks ? chunk : 0);
    const auto [head, token] = call.block_size.split(row);
    rows[i] = rows_in_block<Element>(half.from, call.layer, 0, token, head);
    rows[i].key += of_row * numbers;
  }
  auto* const to = reinterpret_cast<to_storage*>(half.to) + first * numbers;
  PAGEDKV_KEEP_LOOP
  for (auto entry = first_entry; entry < num_entries; entry += half.entries_at_once) {
    const auto block = next_block;
    next_block = block_of(entry + half.entries_at_once);
    if (!of_values && part == 0 && lane == 0) {
      store(call.ids + entry, block < 0 ? no_block : block_id{entry});
    }
    if (block < 0) {
      continue;
    }
    check(block < half.from.num_blocks, "block within the storage");
    const auto moved = stride_over(block, half.from.block_stride);
    vector<storage, numbers> stored[chunks_of_lane];
    float scales[chunks_of_lane];
    PAGEDKV_UNROLL_LOOP
    for (auto i = 0; i < chunks_of_lane; ++i) {
      stored[i] = load_vector<numbers>(rows[i].key + moved);
      if constexpr (Element::scaled) {
        scales[i] = load(rows[i].key_scale + moved / static_cast<std::int64_t>(sizeof(float)));
      } else {
        scales[i] = load_scale<Element>(rows[i].key_scale);
      }
    }
    auto* const to_block = to + stride_over(entry, call.block_stride) / static_cast<std::int64_t>(sizeof(to_storage));
    PAGEDKV_UNROLL_LOOP
    for (auto i = 0; i < chunks_of_lane; ++i) {
      if (first + i * lanes_of_part < half.num_chunks) {
        store_numbers(to_block + i * lanes_of_part * numbers, recode<To, Element, numbers>(stored[i], scales[i], 1.0F));
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
      auto half = expanded_half{};
      half.from = from;
      half.to = to.base;
      half.chunks_of_row = divider<std::int32_t>(to.head_dim / numbers);
      half.num_chunks = to.num_kv_heads * to.block_size * half.chunks_of_row.divisor();
      const auto parts = (half.num_chunks + chunks_of_part - 1) / chunks_of_part;
      half.parts = divider<std::int32_t>(parts);
      half.entries_at_once = std::clamp(plan.shape.num_shares * expanding_workgroups * expanding_teams / parts, 1,
                                        plan.shape.expanded_blocks);
      return half;
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
    const auto workgroups = static_cast<std::uint32_t>(std::max(call.keys.workgroups(), call.values.workgroups()));
    const auto shape = launch_shape{{workgroups, 1, 2}, {expanding_lanes}};
    // Attention that waits beside this kernel would take longer than one that starts after it.
    return launch<expand_blocks_kernel<Element, To>>(shape, stream, call);
  }
  return runtime::error_invalid_value;
}

}  // namespace pagedkv::kernels
