#pragma once

// The host's interface to kernels over rows: declarations, so that a host compiler can call functions that a device
// compiler instantiates in another file (see instantiations/). Where kernels are compiled, the headers of the same
// names define them.

#include <pagedkv/core/ids.hpp>
#include <pagedkv/kernels/runtime.hpp>
#include <pagedkv/storage/view.hpp>

#include <cstdint>
#include <span>

namespace pagedkv::kernels {

/// Every kernel over rows runs in workgroups of this many lanes.
inline constexpr auto row_workgroup_size = 256;

/// The limit of one launch: HIP counts a grid's lanes with 32 bits.
inline constexpr auto max_tokens_per_launch = std::int64_t{0xffffffff} / row_workgroup_size;

/// Enqueues the append. `slots` and the rows are device-readable memory. Negative slots are skipped, but their rows may
/// still be read; slots past the storage are misuse, detected in debug builds; with equal slots, the stored token is
/// unspecified. `Input` is an unscaled element.
template <class Element, class Input>
[[nodiscard]] runtime::status append(const block_storage_view& view, std::int32_t layer, const slot* slots,
                                     std::int64_t num_tokens, const token_rows<const typename Input::storage>& keys,
                                     const token_rows<const typename Input::storage>& values, runtime::stream stream);

/// Enqueues the gather. `slots` and the rows are device-accessible memory. A negative slot leaves its token unchanged;
/// slots past the storage are misuse, detected in debug builds. `Output` is an unscaled element.
template <class Element, class Output>
[[nodiscard]] runtime::status gather(const block_storage_view& view, std::int32_t layer, const slot* slots,
                                     std::int64_t num_tokens, const token_rows<typename Output::storage>& keys,
                                     const token_rows<typename Output::storage>& values, runtime::stream stream);

/// The pairs of numbers of a key that rotate together.
enum class rope_pairing : std::uint8_t {
  halves,      // i and i + rotary_dim / 2
  neighbours,  // 2 i and 2 i + 1
};

/// Cosines and sines of the rotary position embedding (Su et al., "RoFormer", 2021), computed by the caller: row p
/// holds `rotary_dim / 2` cosines and then as many sines for position p. With a table, the device needs no range
/// reduction.
struct rope_table {
  const float* angles = nullptr;
  std::int64_t num_positions = 0;
  std::int32_t rotary_dim = 0;  // even, at most head_dim; the numbers past it are not rotated
};

/// Queries to rotate together with the keys. Input and output may be the same rows.
template <class Storage>
struct rope_queries {
  token_rows<const Storage> from;
  token_rows<Storage> to;
  std::int32_t num_heads = 0;
};

/// Enqueues the append; see `append`. `positions`, the table and the queries are device-accessible memory. Every
/// token's queries are rotated, also those of a negative slot; `num_heads` may be zero. Positions lie in the table,
/// except those of skipped tokens, which may have any value: their queries then rotate to position 0. `head_dim` is
/// even.
template <class Element, class Input, rope_pairing Pairing>
[[nodiscard]] runtime::status rope_append(const block_storage_view& view, std::int32_t layer, const slot* slots,
                                          std::int64_t num_tokens,
                                          const token_rows<const typename Input::storage>& keys,
                                          const token_rows<const typename Input::storage>& values,
                                          const std::int64_t* positions, const rope_table& table,
                                          const rope_queries<typename Input::storage>& queries, runtime::stream stream);

/// Enqueues the conversion of blocks of `from`, stored as `From`, into blocks of `to`, stored as `To`. The two share no
/// memory and agree in layers, block size, heads and head dimension; their layouts may differ. Equal elements keep
/// every bit, scales included; their static scales are equal. Slots that were never written are converted, too, to
/// unspecified numbers. The pairs are not used after the call returns.
template <class To, class From>
[[nodiscard]] runtime::status convert_blocks(const block_storage_view& from, const block_storage_view& to,
                                             std::span<const block_pair> pairs, runtime::stream stream);

}  // namespace pagedkv::kernels
