// The pieces of a plan, for one instruction set; see vectors.inl.
#if defined(PAGEDKV_ISA)

namespace pagedkv::host::attention::PAGEDKV_ISA {

/// Number of rows that are computed together, for so many remaining rows; the last row may be padding.
PAGEDKV_INLINE std::int32_t rows_in_set(std::int64_t left) {
  if (left >= 7 && lanes >= 8) {
    return most_rows;
  }
  return left >= 3 ? 4 : (left == 2 ? 2 : 1);
}

/// A tile of a sequence, in every KV head.
template <class Element>
struct tile_of_blocks {
  alignas(64) std::int64_t offsets[tile_tokens];        // of keys, in bytes, of KV head 0
  std::int64_t own_value_offsets[tile_tokens];          // if values have rows of their own
  std::int64_t scale_offsets[Element::scaled ? tile_tokens : 1];
  std::int64_t first_token;
  std::int32_t num_tokens;

  /// Locates the tokens from `first` up to `end`.
  PAGEDKV_INLINE void locate(const attention_call& call, std::size_t row, std::int64_t first, std::int64_t end) {
    const auto& view = call.view;
    const auto blocks = call.blocks(row);
    first_token = first;
    num_tokens = static_cast<std::int32_t>(std::min<std::int64_t>(tile_tokens, end - first));
    auto block = first / view.block_size;
    auto offset = first % view.block_size;
    const auto* start = view.block(call.layer, static_cast<std::int64_t>(blocks[static_cast<std::size_t>(block)]));
    for (auto i = 0; i < num_tokens; ++i) {
      if (offset == view.block_size) {
        offset = 0;
        ++block;
        start = view.block(call.layer, static_cast<std::int64_t>(blocks[static_cast<std::size_t>(block)]));
      }
      const auto block_offset = start - view.base;
      offsets[i] = block_offset + offset * view.token_stride * size_of<Element>;
      if constexpr (Element::scaled) {
        scale_offsets[i] = block_offset + offset * view.scale_token_stride * static_cast<std::int64_t>(sizeof(float));
      }
      if (view.has_own_values()) {
        own_value_offsets[i] = block_offset + offset * view.value_token_stride * size_of<Element>;
      }
      ++offset;
    }
    for (auto i = num_tokens; i % row_padding != 0; ++i) {
      offsets[i] = offsets[num_tokens - 1];
      own_value_offsets[i] = own_value_offsets[num_tokens - 1];
    }
  }

  [[nodiscard]] PAGEDKV_INLINE const std::int64_t* value_offsets(const attention_call& call) const {
    return call.view.has_own_values() ? own_value_offsets : offsets;
  }

  /// Scales of the tokens in one KV head.
  PAGEDKV_INLINE void read_scales(const attention_call& call, std::int64_t offset, std::int32_t head,
                                  float* scales) const {
    const auto* const base = call.view.base + offset +
                             head * call.view.scale_head_stride * static_cast<std::int64_t>(sizeof(float));
    for (auto i = 0; i < num_tokens; ++i) {
      __builtin_memcpy(scales + i, base + scale_offsets[i], sizeof(float));
    }
  }
};

/// Elements that score and sum functions read directly; tiles of other elements are decoded first.
template <class Element>
inline constexpr bool is_native = std::same_as<Element, float32> || std::same_as<Element, float16> ||
                                  std::same_as<Element, bfloat16> || std::same_as<Element, int8>;

/// Decodes rows of a tile into rows of float32, padded with zeros.
template <class Element>
PAGEDKV_NOINLINE void decode_tile(const std::byte* rows, const tile& t, const std::int64_t* offsets,
                                  const float* scales, std::int32_t dim, std::int32_t padded_dim, float* numbers) {
  using storage = typename Element::storage;
  const auto whole = is_native<Element> ? dim / lanes * lanes : 0;
  for (auto token = 0; token < t.num_tokens; ++token) {
    const auto* const from = rows + offsets[token];
    auto* const to = numbers + std::int64_t{token} * padded_dim;
    if constexpr (is_native<Element>) {
      const auto scale = all(scales == nullptr ? 1.0f : scales[token]);
      for (auto d = 0; d < whole; d += lanes) {
        write_floats(to + d, decode<Element>(from + d * size_of<Element>) * scale);
      }
    }
    for (auto d = whole; d < dim; ++d) {
      const auto stored = read<storage>(from + d * size_of<Element>);
      to[d] = Element::decode(stored, scales == nullptr ? 1.0f : scales[token]);
    }
    std::fill(to + dim, to + padded_dim, 0.0f);
  }
}

template <class Element>
PAGEDKV_INLINE void attend_set(const row_set& set, const tile& t, std::int32_t num_rows) {
  if constexpr (lanes >= 8) {
    if (num_rows == most_rows) {
      return attend_rows<Element, most_rows>(set, t);
    }
  }
  switch (num_rows) {
    case 4: return attend_rows<Element, 4>(set, t);
    case 2: return attend_rows<Element, 2>(set, t);
    default: return attend_rows<Element, 1>(set, t);
  }
}

/// The computation of one piece, in memory of its thread.
template <class Element>
class worker {
 public:
  PAGEDKV_INLINE worker(const attention_call& call, const attention_plan& plan, const piece& p, float* scratch)
      : call_(call),
        unit_(plan.units[p.unit]),
        piece_(p),
        num_rows_(rows_of(call, unit_)),
        dim_(call.padded_dim()),
        value_dim_(call.padded_value_dim()),
        tile_(scratch),
        heads_(scratch + scratch_of_tile(call)) {}

  PAGEDKV_INLINE void run(float* partials) {
    for (auto head = 0; head < piece_.num_heads; ++head) {
      load_queries(head);
      clear(merged(head), num_rows_, value_dim_);
    }
    attend_chunks(partials);
    for (auto head = 0; head < piece_.num_heads && unit_.first_partial < 0; ++head) {
      store(call_, unit_, piece_.first_head + head, merged(head));
    }
  }

 private:
  // Working memory of a KV head.
  [[nodiscard]] PAGEDKV_INLINE float* queries(std::int32_t head) const {
    return heads_ + head * scratch_of_head(call_, unit_);
  }
  [[nodiscard]] PAGEDKV_INLINE float* sums(std::int32_t head) const { return queries(head) + (num_rows_ + 1) * dim_; }
  [[nodiscard]] PAGEDKV_INLINE float* states(std::int32_t head) const {
    return sums(head) + (num_rows_ + 1) * value_dim_;
  }
  [[nodiscard]] PAGEDKV_INLINE partial merged(std::int32_t head) const {
    return partial_at(states(head) + (num_rows_ + 1) * 2 * row_padding, num_rows_, value_dim_);
  }

  PAGEDKV_INLINE void load_queries(std::int32_t head) {
    constexpr auto log2_e = 1.442695041f;
    const auto& options = call_.options;
    const auto scale = options.scale == 0 ? 1 / std::sqrt(static_cast<float>(call_.view.head_dim)) : options.scale;
    const auto factor = options.soft_cap == 0 ? scale * log2_e : scale / options.soft_cap;
    for (auto row = std::int64_t{0}; row <= num_rows_; ++row) {
      const auto own = std::min(row, num_rows_ - 1);
      auto* const numbers = queries(head) + row * dim_;
      const auto token = call_.first_query(unit_.row) + unit_.first_query + own / call_.group_size;
      const auto query_head =
          (piece_.first_head + head) * call_.group_size + static_cast<std::int32_t>(own % call_.group_size);
      call_.load_query(call_, token, query_head, numbers);
      std::fill(numbers + call_.view.head_dim, numbers + dim_, 0.0f);
      scale_row(numbers, dim_, factor);
    }
  }

  PAGEDKV_INLINE void attend_chunks(float* partials) {
    const auto begin = unit_.seen.begin + piece_.first_chunk * unit_.chunk_tokens;
    const auto end = std::min(unit_.seen.end, begin + piece_.num_chunks * unit_.chunk_tokens);
    auto next = tile_of_blocks<Element>{};
    if (begin < end) {
      next.locate(call_, unit_.row, begin, end);
    }
    for (auto chunk = piece_.first_chunk; chunk < piece_.first_chunk + piece_.num_chunks; ++chunk) {
      begin_chunk();
      const auto chunk_end = std::min(end, unit_.seen.begin + (chunk + 1) * unit_.chunk_tokens);
      for (auto first = unit_.seen.begin + chunk * unit_.chunk_tokens; first < chunk_end; first += tile_tokens) {
        const auto where = next;
        if (first + tile_tokens < end) {
          next.locate(call_, unit_.row, first + tile_tokens, end);
        }
        for (auto head = 0; head < piece_.num_heads; ++head) {
          const auto is_last = head + 1 == piece_.num_heads;
          attend_tile(where, head, is_last ? next : where, is_last ? 0 : head + 1);
        }
      }
      for (auto head = 0; head < piece_.num_heads; ++head) {
        finish_chunk(chunk, head, partials);
      }
    }
  }

  PAGEDKV_INLINE void begin_chunk() {
    for (auto head = 0; head < piece_.num_heads; ++head) {
      std::fill_n(sums(head), (num_rows_ + 1) * value_dim_, 0.0f);
      for (auto row = std::int64_t{0}; row <= num_rows_; ++row) {
        std::fill_n(states(head) + row * 2 * lanes, lanes, -std::numeric_limits<float>::infinity());
        std::fill_n(states(head) + row * 2 * lanes + lanes, lanes, 0.0f);
      }
    }
  }

  [[nodiscard]] PAGEDKV_INLINE const std::byte* keys_of_head(std::int32_t head) const {
    return call_.view.base + (piece_.first_head + head) * call_.view.head_stride * size_of<Element>;
  }

  [[nodiscard]] PAGEDKV_INLINE const std::byte* values_of_head(std::int32_t head) const {
    const auto& view = call_.view;
    const auto stride = view.has_own_values() ? view.value_head_stride : view.head_stride;
    return view.base + view.value_offset + (piece_.first_head + head) * stride * size_of<Element>;
  }

  /// While one tile and head is computed, the next tile is prefetched.
  PAGEDKV_INLINE void attend_tile(const tile_of_blocks<Element>& where, std::int32_t head,
                                  const tile_of_blocks<Element>& next, std::int32_t next_head) {
    const auto& view = call_.view;
    auto t = tile{};
    t.keys = keys_of_head(head);
    t.values = values_of_head(head);
    t.offsets = where.offsets;
    t.value_offsets = where.value_offsets(call_);
    t.next_keys = keys_of_head(next_head);
    t.next_values = values_of_head(next_head);
    t.next_offsets = next.offsets;
    t.next_value_offsets = next.value_offsets(call_);
    t.first_token = where.first_token;
    t.num_tokens = where.num_tokens;
    t.dim = view.head_dim;
    t.value_dim = view.dim_of_values();
    float key_scales[tile_tokens];
    float value_scales[tile_tokens];
    if constexpr (Element::scaled) {
      where.read_scales(call_, view.key_scale_offset, piece_.first_head + head, key_scales);
      where.read_scales(call_, view.value_scale_offset, piece_.first_head + head, value_scales);
      t.key_scales = key_scales;
      t.value_scales = value_scales;
    }
    const auto decoded = num_rows_ >= rows_to_decode_for && !std::same_as<Element, float32>;
    if (!is_native<Element> || decoded || view.head_dim % lanes != 0 || t.value_dim % lanes != 0) {
      attend_decoded(t, head);
      return;
    }
    if constexpr (is_native<Element>) {
      attend_sets<Element>(t, head);
    }
  }

  /// Applies the scales.
  PAGEDKV_INLINE void attend_decoded(tile t, std::int32_t head) {
    auto* const values = tile_ + tile_tokens * dim_;
    const auto& view = call_.view;
    decode_tile<Element>(t.keys, t, t.offsets, t.key_scales, view.head_dim, dim_, tile_);
    // The values of latent storage are decoded with its keys.
    const auto latent = view.is_latent() && t.value_dim % lanes == 0;
    if (!latent) {
      decode_tile<Element>(t.values, t, t.value_offsets, t.value_scales, t.value_dim, value_dim_, values);
    }
    std::int64_t offsets[tile_tokens];
    std::int64_t value_offsets[tile_tokens];
    for (auto i = 0; i < tile_tokens; ++i) {
      const auto number = std::min(i, t.num_tokens - 1) * static_cast<std::int64_t>(sizeof(float));
      offsets[i] = number * dim_;
      value_offsets[i] = number * value_dim_;
    }
    t.keys = reinterpret_cast<const std::byte*>(tile_);
    t.values = reinterpret_cast<const std::byte*>(latent ? tile_ : values);
    t.offsets = t.next_offsets = offsets;
    t.value_offsets = t.next_value_offsets = latent ? offsets : value_offsets;
    t.next_keys = t.keys;
    t.next_values = t.values;
    t.key_scales = t.value_scales = nullptr;
    t.dim = dim_;
    t.value_dim = latent ? t.value_dim : value_dim_;
    attend_sets<float32>(t, head);
  }

  template <class Stored>
  PAGEDKV_INLINE void attend_sets(const tile& t, std::int32_t head) {
    auto set = row_set{};
    auto* state = states(head);
    set.stride = dim_;
    set.sum_stride = value_dim_;
    set.in_tree = !call_.batch.tree_masks.empty();
    set.biased = call_.options.alibi_slopes != nullptr;
    set.cap = call_.options.soft_cap * 1.442695041f;
    for (auto row = std::int64_t{0}; row < num_rows_;) {
      const auto rows = rows_in_set(num_rows_ - row);
      set.queries = queries(head) + row * dim_;
      set.sums = sums(head) + row * value_dim_;
      set.highest = state;
      set.totals = state + lanes;
      if (describe(set, t, head, row, rows)) {
        attend_set<Stored>(set, t, rows);
      }
      state += 2 * lanes;
      row += rows;
    }
  }

  /// The tokens of a tile that the tree mask of a query hides, one bit each.
  [[nodiscard]] PAGEDKV_INLINE std::uint64_t hidden_branches(std::int32_t query, const tile& t) const {
    const auto num_queries = call_.num_queries(unit_.row);
    const auto hidden = static_cast<std::uint64_t>(~call_.tree_mask(unit_.row, query)) &
                        ((std::uint64_t{1} << num_queries) - 1);
    const auto first = call_.position(unit_.row, 0) - t.first_token;  // of the tree, in tokens of the tile
    if (first >= tile_tokens || first <= -tile_tokens) {
      return 0;
    }
    return first >= 0 ? hidden << first : hidden >> -first;
  }

  /// Sets the tokens that each row sees; false if no row sees any.
  PAGEDKV_INLINE bool describe(row_set& set, const tile& t, std::int32_t head, std::int64_t row, std::int32_t rows) {
    auto any = false;
    for (auto r = 0; r < rows; ++r) {
      const auto own = std::min(row + r, num_rows_ - 1);
      const auto query = unit_.first_query + static_cast<std::int32_t>(own / call_.group_size);
      const auto position = call_.position(unit_.row, query);
      const auto visible = visible_from(position, call_.options.window);
      const auto begin = std::clamp<std::int64_t>(visible.begin - t.first_token, 0, t.num_tokens);
      const auto end = std::clamp<std::int64_t>(visible.end - t.first_token, begin, t.num_tokens);
      set.seen[r] = {begin, end};
      any = any || begin < end;
      if (set.in_tree) {
        set.hidden[r] = hidden_branches(query, t);
      }
      if (set.biased) {
        const auto query_head = (piece_.first_head + head) * call_.group_size + own % call_.group_size;
        set.positions[r] = static_cast<std::int32_t>(position - t.first_token);
        set.slopes[r] = call_.options.alibi_slopes[query_head] * 1.442695041f;
      }
    }
    return any;
  }

  /// Gathers the sums of the lanes of each row, and merges them or leaves them to the merging function.
  PAGEDKV_INLINE void finish_chunk(std::int32_t chunk, std::int32_t head, float* partials) {
    const auto* state = states(head);
    float highest[most_rows];
    float totals[most_rows];
    for (auto row = std::int64_t{0}; row < num_rows_;) {
      const auto rows = rows_in_set(num_rows_ - row);
      const auto tokens = lanes / rows;
      for (auto r = 0; r < rows; ++r) {
        highest[r] = state[r * tokens];
        totals[r] = std::accumulate(state + lanes + r * tokens, state + lanes + (r + 1) * tokens, 0.0f);
      }
      const auto own = std::min<std::int64_t>(rows, num_rows_ - row);
      const auto done = partial{sums(head) + row * value_dim_, highest, totals};
      auto into = unit_.first_partial < 0 ? merged(head) : partial_of(chunk, head, partials);
      into = {into.sums + row * value_dim_, into.highest + row, into.totals + row};
      if (unit_.first_partial >= 0) {
        clear(into, own, value_dim_);
      }
      merge(into, done, own, value_dim_);
      state += 2 * lanes;
      row += rows;
    }
  }

  [[nodiscard]] PAGEDKV_INLINE partial partial_of(std::int32_t chunk, std::int32_t head, float* partials) const {
    return partial_at(partials + offset_of_partial(call_, unit_, chunk, piece_.first_head + head), num_rows_,
                      value_dim_);
  }

  const attention_call& call_;
  const unit& unit_;
  const piece& piece_;
  std::int64_t num_rows_;
  std::int32_t dim_;
  std::int32_t value_dim_;
  float* tile_;
  float* heads_;
};

template <class Element>
PAGEDKV_NOINLINE void run_piece(const attention_call& call, const attention_plan& plan, const piece& p, float* scratch,
                                float* partials) {
  worker<Element>(call, plan, p, scratch).run(partials);
}

}  // namespace pagedkv::host::attention::PAGEDKV_ISA

#endif
