#pragma once

#include <xxhash.h>
#include <pagedkv/core/config.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/policy/tiers/concept.hpp>
#include <pagedkv/storage/memory_plan.hpp>
#include <pagedkv/storage/view.hpp>
#include <pagedkv/tier/sealed_header.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace pagedkv {

/// One of the records that the nodes of a tree can have: those of a node have consecutive numbers.
enum class record_id : std::int32_t {};
inline constexpr auto no_record = record_id{-1};
[[nodiscard]] constexpr std::size_t to_index(record_id record) noexcept { return static_cast<std::size_t>(record); }

namespace detail {

[[nodiscard]] inline record_key to_record_key(XXH128_hash_t hash) noexcept { return {hash.low64, hash.high64}; }

}  // namespace detail

/// The key before the first block of chains with this salt.
[[nodiscard]] inline record_key root_key(salt salt) noexcept {
  return detail::to_record_key(XXH3_128bits(&salt, sizeof(salt)));
}

/// The key of the block with these contents after `parent`: 128 bits of XXH3 over salt, tokens and keys. A reader
/// compares a record's salt, tokens and keys exactly; its ancestors are records that were compared in the same way, so
/// only a collision of two ancestors' 128 bits could confuse chains.
[[nodiscard]] inline record_key chained_key(const record_key& parent, const block_contents& contents) noexcept {
  const auto keys = XXH3_128bits(contents.keys.data(), contents.keys.size_bytes());
  const auto tokens = XXH3_128bits(contents.tokens.data(), contents.tokens.size_bytes());
  const auto words = std::to_array({parent.low, parent.high, keys.low64, keys.high64, tokens.low64, tokens.high64});
  return detail::to_record_key(XXH3_128bits(words.data(), sizeof(words)));
}

/// Calls `visit(contents)` on each run of so many of a record's tokens, which begin at this position of the sequence.
template <class Visit>
constexpr void for_each_run(const block_contents& contents, std::int64_t position, std::size_t size, Visit&& visit) {
  for (auto first = std::size_t{0}; first + size <= contents.tokens.size(); first += size) {
    const auto from = position + static_cast<std::int64_t>(first);
    const auto keys = keys_between(contents.keys, from, from + static_cast<std::int64_t>(size));
    visit(block_contents{contents.tokens.subspan(first, size), keys});
  }
}

/// Records begin at multiples of this many bytes, in memory and in files, and are whole multiples of it long.
inline constexpr auto record_alignment = std::size_t{4096};

/// The shape of one cache's records: one block each, a header and then its bytes, one layer after the other. Records of
/// different formats are never exchanged: `text` says everything about the bytes that writer and reader must agree on,
/// and each record carries it.
struct record_format {
  std::string text;
  std::int64_t layer_bytes = 0;
  std::int32_t num_layers = 0;
  std::int32_t block_size = 0;       // tokens of the largest block
  std::int32_t hit_granularity = 0;  // every block holds a multiple of so many tokens; 0: as many as the largest

  /// Bytes of the header, with room for a key at every second token at least.
  [[nodiscard]] std::size_t header_bytes() const noexcept {
    const auto filled = fixed_bytes + text.size() + static_cast<std::size_t>(block_size) * bytes_per_token;
    return (filled + record_alignment - 1) / record_alignment * record_alignment;
  }
  [[nodiscard]] std::size_t payload_bytes() const noexcept {
    return static_cast<std::size_t>(layer_bytes) * static_cast<std::size_t>(num_layers);
  }
  [[nodiscard]] std::size_t record_bytes() const noexcept {
    return header_bytes() + (payload_bytes() + record_alignment - 1) / record_alignment * record_alignment;
  }

  /// Whether a block may hold so many tokens.
  [[nodiscard]] bool may_hold(std::size_t num_tokens) const noexcept {
    const auto most = static_cast<std::size_t>(block_size);
    return hit_granularity == 0 ? num_tokens == most
                                : num_tokens <= most && num_tokens % static_cast<std::size_t>(hit_granularity) == 0;
  }

  /// The device's storage, with as many blocks' bytes, `stride` apart, from `first` on.
  [[nodiscard]] block_storage_view payloads(const block_storage_view& device, std::byte* first, std::size_t stride,
                                            std::int32_t num_blocks) const noexcept {
    auto view = device;
    view.base = first;
    view.block_stride = static_cast<std::int64_t>(stride);
    view.layer_stride = layer_bytes;
    view.num_blocks = num_blocks;
    return view;
  }

 private:
  static constexpr auto fixed_bytes = std::size_t{256};
  static constexpr auto bytes_per_token = std::size_t{16};  // 4 of the token, 12 of half a key
};

/// The format of the records of one storage, whose element has this name. Throws `std::bad_alloc`. `model`: the
/// engine's name for the weights that computed the K/V; caches of different weights, or static scales, must differ in
/// it.
[[nodiscard]] inline record_format make_record_format(const block_storage_view& of, std::string_view element,
                                                      std::string_view model) {
  auto text = std::string{"pagedkv record 3"};
  const auto add = [&](std::string_view name, std::int64_t value) {
    text.append(" ").append(name).append("=").append(std::to_string(value));
  };
  const auto add_pieces = [&](const piece_order& order) {
    for (const auto number : {std::int64_t{order.piece}, std::int64_t{order.holds_tokens}, order.head_stride,
                              order.token_stride, order.dim_stride}) {
      text.append(",").append(std::to_string(number));
    }
  };
  add("block_size", of.block_size);
  add("layers", of.num_layers);
  add("heads", of.num_kv_heads);
  add("head_dim", of.head_dim);
  add("value_dim", of.dim_of_values());
  add("layer_bytes", of.layer_bytes());
  add("value", of.value_offset);
  add("key_scales", of.key_scale_offset);
  add("value_scales", of.value_scale_offset);
  add("token", of.token_stride);
  add("head", of.head_stride);
  add("value_token", of.value_token_stride);
  add("value_head", of.value_head_stride);
  add("scale_token", of.scale_token_stride);
  add("scale_head", of.scale_head_stride);
  text.append(" pieces");
  add_pieces(of.key_pieces);
  add_pieces(of.value_pieces);
  text.append(" element=").append(element).append(" model=").append(model);
  return {std::move(text), of.layer_bytes(), of.num_layers, of.block_size};
}

/// The format of the records of a cache with groups, whose blocks are all of one size. `view_of(g)`: the storage of a
/// group that holds tokens.
template <class ViewOf>
[[nodiscard]] record_format make_record_format(const group_list& groups, const memory_plan& plan, ViewOf&& view_of,
                                               std::string_view element, std::string_view model) {
  auto text = std::string{"pagedkv groups 2"};
  const auto add = [&](std::int64_t number) { text.append(" ").append(std::to_string(number)); };
  add(plan.block_bytes);
  add(plan.hit_granularity);
  auto largest = plan.hit_granularity;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& [block_size, parts_per_block, blocks_per_state, part_bytes] = plan.groups[g];
    const auto& group = groups[g];
    largest = std::max(largest, block_size);
    text.append(" group");
    for (const auto number :
         {static_cast<std::int64_t>(group.kind), std::int64_t{group.num_layers}, std::int64_t{group.num_kv_heads},
          group.window, std::int64_t{group.num_sinks}, group.state_bytes, std::int64_t{block_size},
          std::int64_t{parts_per_block}, std::int64_t{blocks_per_state}, part_bytes}) {
      add(number);
    }
    if (group.holds_tokens()) {
      text.append(": ").append(make_record_format(view_of(g), element, "").text);
    }
  }
  text.append(" element=").append(element).append(" model=").append(model);
  return {std::move(text), plan.block_bytes, 1, largest, plan.hit_granularity};
}

/// The format of the records of a cache.
template <class Cache>
[[nodiscard]] record_format make_record_format(const Cache& cache, std::string_view model) {
  constexpr auto element = Cache::element_type::name;
  if constexpr (Cache::layers_differ) {
    const auto view_of = [&](std::size_t g) -> const block_storage_view& { return cache.view(g); };
    return make_record_format(cache.config().groups, cache.plan(), view_of, element, model);
  } else {
    return make_record_format(cache.view(), element, model);
  }
}

/// The contents that a record claims to hold: those of one block, after given ancestors.
struct record_identity {
  record_key key;     // of the chain up to the block's end
  record_key parent;  // of the chain before the block, or the root's
  pagedkv::salt salt{};
  std::int64_t position = 0;  // tokens before the block
  block_contents contents{std::span<const token>{}};
  std::int64_t index = 0;  // which of the records of the chain's end: of which group, and of which part of a state
};

/// The key of a record in tiers. A chain's records have different ones.
[[nodiscard]] inline record_key key_in_tier(const record_identity& identity) noexcept {
  const auto words = std::to_array({identity.key.low, identity.key.high, static_cast<std::uint64_t>(identity.index)});
  return identity.index == 0 ? identity.key : detail::to_record_key(XXH3_128bits(words.data(), sizeof(words)));
}

enum class record_fault : std::uint8_t {
  none,
  damaged,         // torn, truncated, flipped, of another version, or never a record
  other_format,    // of another model, element or layout
  other_contents,  // whole, and not the one that was asked for
};

namespace detail {

struct record_numbers {
  static constexpr auto kind = 'r';
  static constexpr auto num_parts = std::size_t{3};  // the format's text, keys, tokens

  std::uint64_t rest_checksum = 0;  // of all bytes behind the header
  record_key key;
  record_key parent;
  std::uint64_t salt = 0;
  std::int64_t position = 0;
  std::int64_t index = 0;
};
using record_header = sealed_header<record_numbers>;

[[nodiscard]] inline std::uint64_t rest_checksum(const record_format& format,
                                                 std::span<const std::byte> record) noexcept {
  const auto rest = record.subspan(format.header_bytes());
  return XXH3_64bits(rest.data(), rest.size());
}

}  // namespace detail

/// Writes the header of a record whose payload is in place, and fills what follows the payload with zeros. False if the
/// keys do not fit into the header: such a block is not recorded. Linear in the record.
[[nodiscard]] inline bool seal_record(const record_format& format, const record_identity& identity,
                                      std::span<std::byte> record) noexcept {
  if (record.size() != format.record_bytes()) {
    return false;
  }
  const auto padding = record.subspan(format.header_bytes() + format.payload_bytes());
  std::memset(padding.data(), 0, padding.size());
  const auto numbers =
      detail::record_numbers{detail::rest_checksum(format, record),     identity.key,      identity.parent,
                             static_cast<std::uint64_t>(identity.salt), identity.position, identity.index};
  return detail::record_header::seal(numbers,
                                     {std::as_bytes(std::span{format.text}), std::as_bytes(identity.contents.keys),
                                      std::as_bytes(identity.contents.tokens)},
                                     record.first(format.header_bytes()));
}

struct record_reading {
  record_fault fault = record_fault::damaged;
  record_identity identity;  // if there is no fault
};

namespace detail {

[[nodiscard]] inline record_reading read_record_header(const record_format& format,
                                                       const std::optional<record_header>& header) noexcept {
  if (!header) {
    return {};
  }
  const auto& numbers = header->first.numbers;
  constexpr auto largest = std::numeric_limits<std::int64_t>::max();
  if (numbers.position < 0 || numbers.position > largest - format.block_size) {
    return {};  // no sequence has tokens there
  }
  const auto& [text, keys, tokens] = header->parts;
  const auto contents = block_contents{values_in<token>(tokens), values_in<prefix_key>(keys)};
  if (!std::ranges::equal(text, std::as_bytes(std::span{format.text})) || header->first.size != format.header_bytes() ||
      !format.may_hold(contents.tokens.size())) {
    return {record_fault::other_format, {}};
  }
  return {record_fault::none,
          {numbers.key, numbers.parent, static_cast<salt>(numbers.salt), numbers.position, contents, numbers.index}};
}

}  // namespace detail

/// The identity that a record claims. `bytes`: of the header at least, aligned to 8; the identity's contents lie in
/// them. Does not look at the payload.
[[nodiscard]] inline record_reading read_record_header(const record_format& format,
                                                       std::span<const std::byte> bytes) noexcept {
  return detail::read_record_header(format, detail::record_header::open(bytes));
}

/// Whether a record is whole and holds these contents: compared exactly, its checksums included. Linear in the record.
[[nodiscard]] inline record_fault verify_record(const record_format& format, const record_identity& wanted,
                                                std::span<const std::byte> record) noexcept {
  if (record.size() != format.record_bytes()) {
    return record_fault::damaged;
  }
  const auto header = detail::record_header::open(record);
  const auto [fault, found] = detail::read_record_header(format, header);
  if (fault != record_fault::none) {
    return fault;
  }
  if (found.key != wanted.key || found.parent != wanted.parent || found.salt != wanted.salt ||
      found.position != wanted.position || found.index != wanted.index ||
      !std::ranges::equal(found.contents.tokens, wanted.contents.tokens) ||
      !std::ranges::equal(found.contents.keys, wanted.contents.keys)) {
    return record_fault::other_contents;
  }
  return detail::rest_checksum(format, record) == header->first.numbers.rest_checksum ? record_fault::none
                                                                                      : record_fault::damaged;
}

namespace detail {

struct record_visitor {
  void operator()(std::int64_t place, const record_identity& identity) const;
};

}  // namespace detail

/// A tier with places that finds its records again when it is constructed anew, for a directory to adopt.
///
/// | requirement                | meaning                                                                          |
/// |----------------------------|----------------------------------------------------------------------------------|
/// | `t.for_each_record(visit)` | calls `visit(place, identity)` for each place with the whole header of a record   |
/// |                            | of this format, ascending by place; returns how many places could not be read     |
///
/// The identity's contents are valid during the call, which may throw and must not use the tier. A payload is not
/// looked at: its reader verifies it, as always. One key may lie in several places, each of which is right. Ancestors
/// may come after their descendants, or be gone: a directory finds records by key, and a prompt's keys follow from the
/// root's.
template <class T>
concept persistent_tier = tier_with_places<T> && requires(T t, detail::record_visitor visit) {
  { t.for_each_record(visit) } -> std::same_as<std::int64_t>;
};

}  // namespace pagedkv
