// Tiles of a sequence in its blocks, for one instruction set; see vectors.inl.
#if defined(PAGEDKV_ISA)

namespace pagedkv::host::attention::PAGEDKV_ISA {

/// A tile of a sequence, in every KV head.
template <class Element>
struct tile_of_blocks {
  alignas(64) std::int64_t offsets[tile_tokens];        // of keys, in bytes, of KV head 0
  std::int64_t own_value_offsets[tile_tokens];          // if values have rows of their own
  std::int64_t scale_offsets[Element::scaled ? tile_tokens : 1];
  std::int64_t first_token;
  std::int32_t num_tokens;
  std::int32_t num_blocks;
  std::int32_t first_of_block[tile_tokens + 1];  // tokens of the tile; and the end

  /// Locates the tokens from `first` up to `end`.
  PAGEDKV_NOINLINE void locate(const attention_call& call, std::size_t row, std::int64_t first, std::int64_t end) {
    begin(first);
    end = std::min(end, first + tile_tokens);
    while (first < end) {
      const auto count = std::min(end - first, call.view.block_size - first % call.view.block_size);
      add(call, row, first, count);
      first += count;
    }
    pad();
  }

  /// Locates tokens of a unit's list from `first` up to `end`, in the order of the list, that a query may see; the
  /// token after them. Blocks from anywhere share a tile if every query sees all of it and positions do not matter.
  PAGEDKV_NOINLINE std::int64_t locate_listed(const attention_call& call, const unit& u, std::int64_t first,
                                            std::int64_t end) {
    const auto block_size = std::int64_t{call.view.block_size};
    const auto of_first = visible_from(call.position(u.row, u.first_query), call.options.window);
    const auto of_last = visible_from(call.position(u.row, u.first_query + u.num_queries - 1), call.options.window);
    const auto list = call.list(u.row, u.first_head);
    const auto seen_by_all = call.batch.tree_masks.empty() ? of_first.end : call.position(u.row, 0);
    const auto seen_anywhere = call.options.window == 0 && call.options.alibi_slopes == nullptr ? seen_by_all : 0;
    auto most = std::int64_t{tile_tokens};
    auto gaps = false;
    begin(0);
    while (first < end && num_tokens < most) {
      const auto entry = std::int64_t{list[static_cast<std::size_t>(first / block_size)]};
      const auto rest = std::min(block_size - first % block_size, end - first);
      const auto token = entry * block_size + first % block_size;
      const auto from = std::max(token, of_first.begin);
      const auto to = std::min(token + rest, of_last.end);
      if (entry < 0 || from >= to) {
        first += rest;
        continue;
      }
      if (num_tokens == 0) {
        gaps = to <= seen_anywhere;
        first_token = gaps ? 0 : from;
        most = gaps ? std::min(most, seen_anywhere) : most;
      } else if (gaps ? to > seen_anywhere : from != first_token + num_tokens) {
        break;
      }
      const auto count = std::min(to - from, most - num_tokens);
      add(call, u.row, from, count);
      first += from + count == to ? rest : from + count - token;
    }
    pad();
    return first;
  }

  [[nodiscard]] PAGEDKV_INLINE const std::int64_t* value_offsets(const attention_call& call) const {
    return call.view.has_own_values() ? own_value_offsets : offsets;
  }

  /// The address that offsets of a KV head's keys count from.
  [[nodiscard]] PAGEDKV_INLINE static const std::byte* keys_of(const attention_call& call, std::int32_t head) {
    return call.view.base + head * call.view.head_stride * size_of<Element>;
  }

  /// Where the values of the head start.
  [[nodiscard]] PAGEDKV_INLINE static const std::byte* values_of(const attention_call& call, std::int32_t head) {
    const auto& view = call.view;
    const auto stride = view.has_own_values() ? view.value_head_stride : view.head_stride;
    return view.base + view.value_offset + head * stride * size_of<Element>;
  }

  /// The tile, but for its KV head.
  [[nodiscard]] PAGEDKV_INLINE tile describe(const attention_call& call) const {
    auto t = tile{};
    t.offsets = offsets;
    t.value_offsets = value_offsets(call);
    t.first_token = first_token;
    t.num_tokens = num_tokens;
    t.dim = call.view.head_dim;
    t.value_dim = call.view.dim_of_values();
    return t;
  }

  /// The scales of the tokens in one KV head, in memory of the caller.
  PAGEDKV_NOINLINE void read_scales(const attention_call& call, std::int32_t head, tile& t, float* key_scales,
                                  float* value_scales) const {
    if constexpr (Element::scaled) {
      read_scales(call, call.view.key_scale_offset, head, key_scales);
      read_scales(call, call.view.value_scale_offset, head, value_scales);
      t.key_scales = key_scales;
      t.value_scales = value_scales;
    }
  }

  /// Prefetches the scales of a KV head. They are contiguous in a block, whatever their order is.
  PAGEDKV_INLINE void fetch_scales(const attention_call& call, std::int32_t head) const {
    if constexpr (Element::scaled) {
      constexpr auto part_bytes = strip_tokens * static_cast<std::int64_t>(sizeof(float));
      for (auto first = 0; first < num_tokens; first += strip_tokens) {
        const auto* const scales = call.view.base + scale_offsets[first] + head * part_bytes;
        __builtin_prefetch(scales + call.view.key_scale_offset, 0, 2);
        __builtin_prefetch(scales + call.view.value_scale_offset, 0, 2);
      }
    }
  }

  /// Lists the keys and values of neighbouring KV heads, block by block. The rows of a token are contiguous if there
  /// are several heads.
  PAGEDKV_NOINLINE void list(const attention_call& call, std::int32_t head, std::int32_t num_heads,
                           fetch_queue& queue) const {
    const auto& view = call.view;
    const auto value_stride = view.has_own_values() ? view.value_token_stride : view.token_stride;
    queue.clear();
    for (auto block = 0; block < num_blocks; ++block) {
      const auto first = first_of_block[block];
      const auto count = first_of_block[block + 1] - first;
      queue.append({keys_of(call, head) + offsets[first], num_heads * view.head_dim * size_of<Element>,
                    view.token_stride * size_of<Element>, count});
      if (!view.is_latent()) {
        queue.append({values_of(call, head) + value_offsets(call)[first],
                      num_heads * view.dim_of_values() * size_of<Element>, value_stride * size_of<Element>, count});
      }
    }
    queue.start();
  }

  /// Number of strips in one KV head: first those of keys, then those of values.
  [[nodiscard]] PAGEDKV_INLINE std::int32_t num_strips() const {
    return static_cast<std::int32_t>(2 * divide_up(num_tokens, strip_tokens));
  }

  [[nodiscard]] PAGEDKV_INLINE strip strip_of(const attention_call& call, std::int32_t head, std::int32_t index) const {
    const auto of_keys = num_strips() / 2;
    const auto keys = index < of_keys;
    const auto first = (keys ? index : index - of_keys) * strip_tokens;
    const auto num_rows = std::min<std::int64_t>(strip_tokens, num_tokens - first);
    const auto dim = keys ? call.view.head_dim : call.view.dim_of_values();
    const auto* const own_offsets = keys ? offsets : value_offsets(call);
    return {keys ? keys_of(call, head) : values_of(call, head), own_offsets + first, dim * size_of<Element>, num_rows};
  }

 private:
  PAGEDKV_INLINE void begin(std::int64_t first) {
    first_token = first;
    num_tokens = 0;
    num_blocks = 0;
  }

  /// Adds tokens of one block.
  PAGEDKV_INLINE void add(const attention_call& call, std::size_t row, std::int64_t token, std::int64_t count) {
    const auto& view = call.view;
    const auto block = call.blocks(row)[static_cast<std::size_t>(token / view.block_size)];
    const auto block_offset = view.block(call.layer, static_cast<std::int64_t>(block)) - view.base;
    const auto first = token % view.block_size;
    first_of_block[num_blocks++] = num_tokens;
    for (auto offset = first; offset < first + count; ++offset, ++num_tokens) {
      offsets[num_tokens] = block_offset + offset * view.token_stride * size_of<Element>;
      if constexpr (Element::scaled) {
        scale_offsets[num_tokens] =
            block_offset + offset * view.scale_token_stride * static_cast<std::int64_t>(sizeof(float));
      }
      if (view.has_own_values()) {
        own_value_offsets[num_tokens] = block_offset + offset * view.value_token_stride * size_of<Element>;
      }
    }
    first_of_block[num_blocks] = num_tokens;
  }

  /// Repeats the last token.
  PAGEDKV_INLINE void pad() {
    for (auto i = num_tokens; i % row_padding != 0; ++i) {
      offsets[i] = offsets[num_tokens - 1];
      own_value_offsets[i] = own_value_offsets[num_tokens - 1];
    }
  }

  /// Scales of one kind.
  PAGEDKV_INLINE void read_scales(const attention_call& call, std::int64_t offset, std::int32_t head,
                                  float* scales) const {
    const auto* const base = call.view.base + offset +
                             head * call.view.scale_head_stride * static_cast<std::int64_t>(sizeof(float));
    const auto contiguous = call.view.scale_token_stride == 1;
    for (auto block = 0; block < num_blocks; ++block) {
      const auto end = first_of_block[block + 1];
      auto i = first_of_block[block];
      for (; contiguous && i + strip_tokens <= end; i += strip_tokens) {
        __builtin_memcpy(scales + i, base + scale_offsets[i], strip_tokens * sizeof(float));
      }
      for (; i < end; ++i) {
        __builtin_memcpy(scales + i, base + scale_offsets[i], sizeof(float));
      }
    }
  }
};

/// The strip of an index that may be in the piece's next KV head, or in its first one of the next tile.
template <class Element>
PAGEDKV_INLINE strip strip_ahead(const attention_call& call, const piece& p, const tile_of_blocks<Element>& where,
                                 const tile_of_blocks<Element>& next, std::int32_t head, std::int32_t index) {
  if (index < where.num_strips()) {
    return where.strip_of(call, p.first_head + head, index);
  }
  const auto is_last = head + 1 == p.num_heads;
  return (is_last ? next : where).strip_of(call, p.first_head + (is_last ? 0 : head + 1), index - where.num_strips());
}

/// The number of KV heads that are prefetched together: more than one if that makes contiguous memory longer.
template <class Element>
PAGEDKV_INLINE std::int32_t heads_together(const attention_call& call, const piece& p) {
  constexpr auto enough_bytes = std::int64_t{1024};  // of a token
  const auto& view = call.view;
  const auto contiguous = view.head_stride == view.head_dim && view.head_stride < view.token_stride &&
                          (!view.has_own_values() || view.value_head_stride == view.value_dim);
  const auto enough = std::clamp<std::int64_t>(enough_bytes / (view.head_dim * size_of<Element>), 1, p.num_heads);
  return contiguous ? static_cast<std::int32_t>(enough) : 1;
}

/// Lists what a piece processes after `count` heads of a tile.
template <class Element>
PAGEDKV_INLINE void list_ahead(const attention_call& call, const piece& p, const tile_of_blocks<Element>& where,
                               const tile_of_blocks<Element>& next, std::int32_t head, std::int32_t count,
                               fetch_queue& queue) {
  const auto is_last = head + count >= p.num_heads;
  const auto first = is_last ? 0 : head + count;
  (is_last ? next : where).list(call, p.first_head + first, std::min(count, p.num_heads - first), queue);
}

/// Elements that score and sum functions read directly; tiles of other elements are decoded first.
template <class Element>
inline constexpr bool is_native = std::same_as<Element, float32> || std::same_as<Element, float16> ||
                                  std::same_as<Element, bfloat16> || std::same_as<Element, int8> || is_float8<Element>;

/// Decodes neighbouring numbers, as many as whole vectors hold.
template <class Element>
PAGEDKV_INLINE void decode_numbers(const std::byte* from, std::int32_t count, float scale, float* to) {
  for (auto d = 0; d < count; d += lanes) {
    write_floats(to + d, decode<Element>(from + d * size_of<Element>) * all(scale));
  }
}

/// Decodes packed tokens of a tile into rows of float32. `dim`: all their numbers, or the quantised ones alone.
template <class Element>
  requires packs_tokens<Element>
PAGEDKV_NOINLINE void decode_tile(const std::byte* rows, const tile& t, const std::int64_t* offsets,
                                  const float* /*scales*/, std::int32_t dim, std::int32_t padded_dim, float* numbers) {
  constexpr auto& packed = Element::packed;
  static_assert(packed.part_dim % lanes == 0 && packed.rotated_dim % lanes == 0);
  for (auto i = 0; i < t.num_tokens; ++i) {
    const auto* const from = rows + offsets[i];
    auto* const to = numbers + std::int64_t{i} * padded_dim;
    for (auto part = 0; part < packed.num_parts(); ++part) {
      const auto first = part * packed.part_dim;
      const auto scale = read<float>(from + packed.scale_offset + part * static_cast<std::int64_t>(sizeof(float)));
      decode_numbers<typename Element::latent>(from + first, packed.part_dim, scale, to + first);
    }
    decode_numbers<typename Element::rotated>(from + packed.rotated_offset, dim - packed.latent_dim, 1.0f,
                                              to + packed.latent_dim);
    std::fill(to + dim, to + padded_dim, 0.0f);
  }
}

/// Decodes rows of a tile into rows of float32, padded with zeros.
template <class Element>
PAGEDKV_NOINLINE void decode_tile(const std::byte* rows, const tile& t, const std::int64_t* offsets,
                                  const float* scales, std::int32_t dim, std::int32_t padded_dim, float* numbers) {
  using storage = typename Element::storage;
  const auto whole = is_native<Element> ? dim / lanes * lanes : 0;
  for (auto token = 0; token < t.num_tokens; ++token) {
    const auto* const from = rows + offsets[token];
    auto* const to = numbers + std::int64_t{token} * padded_dim;
    auto d = whole;
    if constexpr (is_native<Element>) {
      const auto scale = all(scales == nullptr ? 1.0f : scales[token]);
      for (auto i = 0; i < whole; i += lanes) {
        write_floats(to + i, decode<Element>(from + i * size_of<Element>) * scale);
      }
      // To convert these one by one takes longer than to copy them to a whole vector.
      if (std::same_as<Element, float16> && whole < dim) {
        std::byte rest[lanes * size_of<Element>] = {};
        std::copy(from + whole * size_of<Element>, from + dim * size_of<Element>, rest);
        write_floats(to + whole, decode<Element>(rest) * scale);
        d = dim;
      }
    }
    for (; d < dim; ++d) {
      const auto stored = read<storage>(from + d * size_of<Element>);
      to[d] = Element::decode(stored, scales == nullptr ? 1.0f : scales[token]);
    }
    std::fill(to + dim, to + padded_dim, 0.0f);
  }
}

}  // namespace pagedkv::host::attention::PAGEDKV_ISA

#endif
