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

/// Calls `run` with the number of rows as a constant.
template <class Run>
PAGEDKV_INLINE void with_rows(std::int32_t num_rows, Run run) {
  if constexpr (lanes >= 8) {
    if (num_rows == most_rows) {
      return run(std::integral_constant<int, most_rows>{});
    }
  }
  switch (num_rows) {
    case 4: return run(std::integral_constant<int, 4>{});
    case 2: return run(std::integral_constant<int, 2>{});
    default: return run(std::integral_constant<int, 1>{});
  }
}

/// The computation of one piece, in memory of its thread.
template <class Element>
class worker {
 public:
  PAGEDKV_INLINE worker(const attention_call& call, const attention_plan& plan, const piece& p, float* scratch)
      : call_(call),
        plan_(plan),
        unit_(plan.units[p.unit]),
        piece_(p),
        num_rows_(rows_of(call, unit_)),
        dim_(call.padded_dim()),
        value_dim_(call.padded_value_dim()),
        in_panels_(fits_panels<Element> && is_in_panels(call, unit_)),
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
    if (shaped_for_ != 0) {
      release_matrices();
    }
  }

 private:
  static constexpr auto strip_tokens = 16;

  // Working memory of a KV head.
  [[nodiscard]] PAGEDKV_INLINE float* queries(std::int32_t head) const {
    return heads_ + head * scratch_of_head(call_, unit_);
  }
  [[nodiscard]] PAGEDKV_INLINE float* sums(std::int32_t head) const {
    return queries(head) + (in_panels_ ? num_panels() * panel_rows * call_.panel_dim() : (num_rows_ + 1) * dim_);
  }
  [[nodiscard]] PAGEDKV_INLINE float* states(std::int32_t head) const {
    return sums(head) + (in_panels_ ? num_panels() * panel_rows : num_rows_ + 1) * value_dim_;
  }
  [[nodiscard]] PAGEDKV_INLINE float* scores(std::int32_t head) const {
    return states(head) + (num_rows_ + 1) * 2 * row_padding;
  }
  [[nodiscard]] PAGEDKV_INLINE float* query_matrices(std::int32_t head) const {
    return scores(head) + (num_rows_ + 1) * tile_tokens;
  }
  [[nodiscard]] PAGEDKV_INLINE partial merged(std::int32_t head) const {
    if (in_panels_) {
      return partial_at(states(head) + num_panels() * panel_state_size, num_rows_, value_dim_);
    }
    return partial_at(query_matrices(head) + (call_.has_matrix_unit ? (num_rows_ + 1) * dim_ : 0), num_rows_,
                      value_dim_);
  }

  /// The query of one of the unit's rows.
  [[nodiscard]] PAGEDKV_INLINE query_place query_of(std::int64_t row) const {
    return plan_.query_of(unit_, static_cast<std::int32_t>(row / call_.group_size));
  }

  /// The factor of a query and a key's product.
  [[nodiscard]] PAGEDKV_INLINE float score_factor() const {
    constexpr auto log2_e = 1.442695041f;
    const auto& options = call_.options;
    const auto scale = options.scale == 0 ? 1 / std::sqrt(static_cast<float>(call_.view.head_dim)) : options.scale;
    return options.soft_cap == 0 ? scale * log2_e : scale / options.soft_cap;
  }

  /// Loads the queries of a row, and pads them with zeros.
  PAGEDKV_INLINE void load_query(std::int32_t head, std::int64_t row, std::int32_t dim, float* numbers) const {
    const auto place = query_of(row);
    const auto token = call_.first_query(place.row) + place.query;
    const auto query_head =
        (piece_.first_head + head) * call_.group_size + static_cast<std::int32_t>(row % call_.group_size);
    call_.load_query(call_, token, query_head, numbers);
    std::fill(numbers + call_.view.head_dim, numbers + dim, 0.0f);
  }

  PAGEDKV_INLINE void load_queries(std::int32_t head) {
    if constexpr (fits_panels<Element>) {
      if (in_panels_) {
        load_panels(head);
        return;
      }
    }
    const auto factor = score_factor();
    for (auto row = std::int64_t{0}; row <= num_rows_; ++row) {
      auto* const numbers = queries(head) + row * dim_;
      load_query(head, std::min(row, num_rows_ - 1), dim_, numbers);
      scale_row(numbers, dim_, factor);
      if (sorts_pairs()) {
        sort_pairs(numbers, call_.view.head_dim);
      }
    }
    if constexpr (fits_matrices<Element>) {
      for (auto row = std::int64_t{0}; row < num_rows_ && multiplies_matrices(); row += rows_in_set(num_rows_ - row)) {
        auto set = row_set{};
        set.num_rows = rows_in_set(num_rows_ - row);
        set.first_row = row;
        set.stride = dim_;
        place(set, head);
        with_rows(set.num_rows, [&](auto rows) {
          lay_out_queries<Element, decltype(rows)::value>(set, call_.view.head_dim);
        });
      }
    }
  }

  /// Whether the matrix unit processes tiles of which every row sees all tokens.
  [[nodiscard]] PAGEDKV_INLINE bool multiplies_matrices() const {
    constexpr auto multiple = matrix_row / size_of<Element>;
    return call_.has_matrix_unit && reads_directly() && num_rows_ >= rows_for_matrices<Element> &&
           num_rows_ < rows_to_decode_for && call_.view.head_dim <= most_dim_for_matrices<Element> &&
           call_.view.head_dim % multiple == 0 && call_.view.dim_of_values() % multiple == 0;
  }

  /// Whether tiles are not decoded first.
  [[nodiscard]] PAGEDKV_INLINE bool reads_directly() const {
    const auto whole_vectors = call_.view.head_dim % lanes == 0 && call_.view.dim_of_values() % lanes == 0;
    return is_native<Element> && whole_vectors && (num_rows_ < rows_to_decode_for || std::same_as<Element, float32>);
  }

  [[nodiscard]] PAGEDKV_INLINE bool sorts_pairs() const { return sorts_numbers<Element> && reads_directly(); }

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
        attend_tile(where, next);
      }
      for (auto head = 0; head < piece_.num_heads; ++head) {
        finish_chunk(chunk, head, partials);
      }
    }
  }

  PAGEDKV_INLINE void begin_chunk() {
    if constexpr (fits_panels<Element>) {
      if (in_panels_) {
        clear_panels();
        return;
      }
    }
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

  [[nodiscard]] PAGEDKV_INLINE tile describe_tile(const tile_of_blocks<Element>& where) const {
    auto t = tile{};
    t.offsets = where.offsets;
    t.value_offsets = where.value_offsets(call_);
    t.first_token = where.first_token;
    t.num_tokens = where.num_tokens;
    t.dim = call_.view.head_dim;
    t.value_dim = call_.view.dim_of_values();
    return t;
  }

  PAGEDKV_INLINE void attend_tile(const tile_of_blocks<Element>& where, const tile_of_blocks<Element>& next) {
    auto t = describe_tile(where);
    if constexpr (fits_panels<Element>) {
      for (auto head = 0; in_panels_ && head < piece_.num_heads; ++head) {
        attend_panels(where, t, next, head);
      }
      if (in_panels_) {
        return;
      }
    }
    if (!reads_directly()) {
      for (auto head = 0; head < piece_.num_heads; ++head) {
        attend_decoded(where, t, head);
      }
      return;
    }
    if constexpr (is_native<Element>) {
      if (num_rows_ < rows_to_decode_for) {
        attend_heads(where, t, next);
        return;
      }
      for (auto head = 0; head < piece_.num_heads; ++head) {
        t.keys = keys_of_head(head);
        t.values = values_of_head(head);
        attend_sets<Element>(t, head);
      }
    }
  }

  /// The scales of a tile in one KV head, in memory of the caller.
  PAGEDKV_INLINE void read_scales(const tile_of_blocks<Element>& where, std::int32_t head, tile& t, float* key_scales,
                                  float* value_scales) const {
    if constexpr (Element::scaled) {
      where.read_scales(call_, call_.view.key_scale_offset, piece_.first_head + head, key_scales);
      where.read_scales(call_, call_.view.value_scale_offset, piece_.first_head + head, value_scales);
      t.key_scales = key_scales;
      t.value_scales = value_scales;
    }
  }

  /// One of the strips of a tile in one KV head: first those of keys, then those of values.
  [[nodiscard]] PAGEDKV_INLINE strip strip_of(const tile_of_blocks<Element>& where, std::int32_t head,
                                              std::int32_t index) const {
    const auto of_keys = divide_up(where.num_tokens, strip_tokens);
    const auto keys = index < of_keys;
    const auto first = (keys ? index : index - of_keys) * strip_tokens;
    const auto num_rows = std::min<std::int64_t>(strip_tokens, where.num_tokens - first);
    const auto dim = keys ? call_.view.head_dim : call_.view.dim_of_values();
    const auto* const offsets = keys ? where.offsets : where.value_offsets(call_);
    return {keys ? keys_of_head(head) : values_of_head(head), offsets + first, dim * size_of<Element>, num_rows};
  }

  /// The same for an index that may be in the next KV head, or in the first one of the next tile.
  [[nodiscard]] PAGEDKV_INLINE strip strip_ahead(const tile_of_blocks<Element>& where,
                                                 const tile_of_blocks<Element>& next, std::int32_t head,
                                                 std::int32_t index) const {
    const auto num_strips = static_cast<std::int32_t>(2 * divide_up(where.num_tokens, strip_tokens));
    if (index < num_strips) {
      return strip_of(where, head, index);
    }
    const auto is_last = head + 1 == piece_.num_heads;
    return strip_of(is_last ? next : where, is_last ? 0 : head + 1, index - num_strips);
  }

  /// Processes a tile in one KV head after the other, and prefetches a strip or two ahead.
  PAGEDKV_INLINE void attend_heads(const tile_of_blocks<Element>& where, tile t, const tile_of_blocks<Element>& next) {
    constexpr auto most_sets = rows_to_decode_for / 4;
    row_set sets[most_sets];
    matrix_buffer buffers[fits_matrices<Element> ? most_sets : 1];
    const auto buffer_of = [&](int set) -> matrix_buffer& { return buffers[fits_matrices<Element> ? set : 0]; };
    const auto num_sets = describe_sets(t, sets);
    const auto as_matrices = fits_matrices<Element> && multiplies_matrices() &&
                             std::all_of(sets, sets + num_sets, [](const row_set& set) { return set.all_seen; });
    for (auto head = 0; head < piece_.num_heads && num_sets != 0; ++head) {
      float key_scales[tile_tokens];
      float value_scales[tile_tokens];
      read_scales(where, head, t, key_scales, value_scales);
      fetch_scales(next, head);
      t.keys = keys_of_head(head);
      t.values = values_of_head(head);
      auto ahead = strip_queue{};
      if (as_matrices) {
        constexpr auto distance = 3;
        describe_queue(ahead, where, next, head, distance);
        t.ahead = &ahead;
      }
      auto index = 0;
      for (auto first = 0; first < t.num_tokens; first += strip_tokens) {
        t.next = strip_ahead(where, next, head, ++index);
        t.later = strip_ahead(where, next, head, index + 1);
        for (auto i = 0; i < num_sets; ++i) {
          place(sets[i], head);
          multiply_strip(sets[i], t, {first, std::min(t.num_tokens, first + strip_tokens)}, buffer_of(i), as_matrices);
          t.next = t.later = {};
        }
      }
      for (auto i = 0; i < num_sets; ++i) {
        place(sets[i], head);
        if (as_matrices) {
          weigh_matrices(sets[i], t, buffer_of(i), ahead);
        } else {
          weigh(sets[i], t);
        }
      }
      for (auto first = 0; first < t.num_tokens; first += strip_tokens) {
        t.next = strip_ahead(where, next, head, ++index);
        t.later = strip_ahead(where, next, head, index + 1);
        const auto range = token_range{first, std::min(t.num_tokens, first + strip_tokens)};
        if (as_matrices) {
          lay_out_strip(t, range);
          continue;
        }
        for (auto i = 0; i < num_sets; ++i) {
          place(sets[i], head);
          add<Element>(sets[i], t, range);
          t.next = t.later = {};
        }
      }
      for (auto i = 0; i < num_sets && as_matrices; ++i) {
        place(sets[i], head);
        add_matrices(sets[i], t, buffer_of(i));
      }
      fetch_next(ahead, 2 * tile_tokens);
    }
  }

  /// The strips from a distance on, as many as a tile has in one KV head.
  PAGEDKV_INLINE void describe_queue(strip_queue& queue, const tile_of_blocks<Element>& where,
                                     const tile_of_blocks<Element>& next, std::int32_t head,
                                     std::int32_t distance) const {
    queue.num_strips = static_cast<std::int32_t>(2 * divide_up(where.num_tokens, strip_tokens));
    for (auto i = 0; i <= queue.num_strips; ++i) {
      queue.strips[i] = strip_ahead(where, next, head, distance + i);
    }
  }

  PAGEDKV_INLINE void multiply_strip(const row_set& set, const tile& t, token_range range, matrix_buffer& buffer,
                                     bool as_matrices) {
    if constexpr (fits_matrices<Element>) {
      if (as_matrices) {
        shape_for(set);
        auto* const copies = reinterpret_cast<std::byte*>(tile_);
        with_rows(set.num_rows, [&](auto rows) {
          multiply_key_matrices<Element, decltype(rows)::value>(set, t, range, copies, buffer);
        });
        return;
      }
    }
    multiply<Element>(set, t, range);
  }

  PAGEDKV_INLINE void weigh_matrices(const row_set& set, const tile& t, matrix_buffer& buffer, strip_queue& ahead) {
    if constexpr (fits_matrices<Element>) {
      constexpr auto rows_each = rows_ahead / 2;
      fetch_next(ahead, rows_each);
      with_rows(set.num_rows, [&](auto rows) { add_parts<Element, decltype(rows)::value>(set, t, buffer); });
      fetch_next(ahead, rows_each);
      weigh(set, t);
      fetch_next(ahead, rows_each);
      with_rows(set.num_rows, [&](auto rows) { lay_out_weights<Element, decltype(rows)::value>(set, t, buffer); });
    }
  }

  [[nodiscard]] PAGEDKV_INLINE std::byte* value_matrices() const {
    return reinterpret_cast<std::byte*>(tile_ + tile_tokens * dim_);
  }

  PAGEDKV_INLINE void lay_out_strip(const tile& t, token_range range) {
    if constexpr (fits_matrices<Element>) {
      lay_out_values<Element>(t, range, value_matrices());
    }
  }

  PAGEDKV_INLINE void add_matrices(const row_set& set, const tile& t, const matrix_buffer& buffer) {
    if constexpr (fits_matrices<Element>) {
      shape_for(set);
      auto* const values = value_matrices();
      with_rows(set.num_rows, [&](auto rows) {
        add_value_matrices<Element, decltype(rows)::value>(set, t, values, buffer);
      });
    }
  }

  PAGEDKV_INLINE void shape_for(const row_set& set) {
    if (shaped_for_ != set.num_rows) {
      shape_matrices<Element>(set.num_rows);
      shaped_for_ = set.num_rows;
    }
  }

  /// Prefetches one KV head's part of the scales of a tile. They are contiguous in a block, whatever their order is.
  PAGEDKV_INLINE void fetch_scales(const tile_of_blocks<Element>& where, std::int32_t head) const {
    if constexpr (Element::scaled) {
      constexpr auto part_bytes = strip_tokens * static_cast<std::int64_t>(sizeof(float));
      for (auto first = 0; first < where.num_tokens; first += strip_tokens) {
        const auto* const scales =
            call_.view.base + where.scale_offsets[first] + (piece_.first_head + head) * part_bytes;
        __builtin_prefetch(scales + call_.view.key_scale_offset, 0, 2);
        __builtin_prefetch(scales + call_.view.value_scale_offset, 0, 2);
      }
    }
  }

  /// Applies the scales.
  PAGEDKV_INLINE void attend_decoded(const tile_of_blocks<Element>& where, tile t, std::int32_t head) {
    auto* const values = tile_ + tile_tokens * dim_;
    const auto& view = call_.view;
    float key_scales[tile_tokens];
    float value_scales[tile_tokens];
    read_scales(where, head, t, key_scales, value_scales);
    decode_tile<Element>(keys_of_head(head), t, t.offsets, t.key_scales, view.head_dim, dim_, tile_);
    // The values of latent storage are decoded with its keys.
    const auto latent = view.is_latent() && t.value_dim % lanes == 0;
    if (!latent) {
      decode_tile<Element>(values_of_head(head), t, t.value_offsets, t.value_scales, t.value_dim, value_dim_, values);
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
    t.offsets = offsets;
    t.value_offsets = latent ? offsets : value_offsets;
    t.key_scales = t.value_scales = nullptr;
    t.dim = dim_;
    t.value_dim = latent ? t.value_dim : value_dim_;
    attend_sets<float32>(t, head);
  }

  /// Processes a tile in one KV head.
  template <class Stored>
  PAGEDKV_INLINE void attend_sets(const tile& t, std::int32_t head) {
    auto set = row_set{};
    const auto whole = token_range{0, t.num_tokens};
    for (auto row = std::int64_t{0}, i = std::int64_t{0}; row < num_rows_; row += set.num_rows, ++i) {
      if (describe(set, t, row, i)) {
        place(set, head);
        multiply<Stored>(set, t, whole);
        weigh(set, t);
        add<Stored>(set, t, whole);
      }
    }
  }

  // Lambdas do not inherit the instruction set, so they call functions that are not inlined.
  template <class Stored>
  PAGEDKV_INLINE static void multiply(const row_set& set, const tile& t, token_range range) {
    with_rows(set.num_rows, [&](auto rows) { multiply_keys<Stored, decltype(rows)::value>(set, t, range); });
  }
  PAGEDKV_INLINE static void weigh(const row_set& set, const tile& t) {
    with_rows(set.num_rows, [&](auto rows) { weigh_scores<decltype(rows)::value>(set, t); });
  }
  template <class Stored>
  PAGEDKV_INLINE static void add(const row_set& set, const tile& t, token_range range) {
    with_rows(set.num_rows, [&](auto rows) { add_values<Stored, decltype(rows)::value>(set, t, range); });
  }

  /// Describes the sets that see any token of the tile, and returns their number.
  PAGEDKV_INLINE std::int32_t describe_sets(const tile& t, row_set* sets) const {
    auto num_sets = 0;
    for (auto row = std::int64_t{0}, i = std::int64_t{0}; row < num_rows_; row += rows_in_set(num_rows_ - row), ++i) {
      num_sets += describe(sets[num_sets], t, row, i) ? 1 : 0;
    }
    return num_sets;
  }

  /// The tokens of a tile that the tree mask of a query hides, one bit each.
  [[nodiscard]] PAGEDKV_INLINE std::uint64_t hidden_branches(query_place place, const tile& t) const {
    const auto num_queries = call_.num_queries(place.row);
    const auto hidden = static_cast<std::uint64_t>(~call_.tree_mask(place.row, place.query)) &
                        ((std::uint64_t{1} << num_queries) - 1);
    const auto first = call_.position(place.row, 0) - t.first_token;  // of the tree, in tokens of the tile
    if (first >= tile_tokens || first <= -tile_tokens) {
      return 0;
    }
    return first >= 0 ? hidden << first : hidden >> -first;
  }

  /// Describes set `index`, which begins at a row, but for its KV head; false if no row sees any token.
  PAGEDKV_INLINE bool describe(row_set& set, const tile& t, std::int64_t row, std::int64_t index) const {
    set.num_rows = rows_in_set(num_rows_ - row);
    set.first_row = row;
    set.index = index;
    set.stride = dim_;
    set.sum_stride = value_dim_;
    set.in_tree = !call_.batch.tree_masks.empty();
    set.biased = call_.options.alibi_slopes != nullptr;
    set.cap = call_.options.soft_cap * 1.442695041f;
    set.all_seen = true;
    auto any = false;
    for (auto r = 0; r < set.num_rows; ++r) {
      const auto place = query_of(own_row(set, r));
      const auto position = call_.position(place.row, place.query);
      const auto visible = visible_from(position, call_.options.window);
      const auto begin = std::clamp<std::int64_t>(visible.begin - t.first_token, 0, t.num_tokens);
      const auto end = std::clamp<std::int64_t>(visible.end - t.first_token, begin, t.num_tokens);
      set.seen[r] = {begin, end};
      set.positions[r] = static_cast<std::int32_t>(position - t.first_token);
      set.all_seen = set.all_seen && begin == 0 && end == t.num_tokens;
      any = any || begin < end;
      if (set.in_tree) {
        set.hidden[r] = hidden_branches(place, t);
        set.all_seen = set.all_seen && set.hidden[r] == 0;
      }
    }
    return any;
  }

  /// A set's row among those of its unit; padding repeats the last row.
  [[nodiscard]] PAGEDKV_INLINE std::int64_t own_row(const row_set& set, std::int32_t r) const {
    return std::min(set.first_row + r, num_rows_ - 1);
  }

  /// Selects the KV head of a set.
  PAGEDKV_INLINE void place(row_set& set, std::int32_t head) const {
    set.queries = queries(head) + set.first_row * dim_;
    set.query_matrices = query_matrices(head) + set.first_row * dim_;
    set.sums = sums(head) + set.first_row * value_dim_;
    set.scores = scores(head) + set.first_row * tile_tokens;
    set.highest = states(head) + set.index * 2 * lanes;
    set.totals = set.highest + lanes;
    for (auto r = 0; set.biased && r < set.num_rows; ++r) {
      const auto query_head = (piece_.first_head + head) * call_.group_size + own_row(set, r) % call_.group_size;
      set.slopes[r] = call_.options.alibi_slopes[query_head] * 1.442695041f;
    }
  }

  /// Gathers the sums of the lanes of each row, and merges them or leaves them to the merging function.
  PAGEDKV_INLINE void finish_chunk(std::int32_t chunk, std::int32_t head, float* partials) {
    if constexpr (fits_panels<Element>) {
      if (in_panels_) {
        finish_panels(chunk, head, partials);
        return;
      }
    }
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
      for (auto r = row; r < row + own && sorts_pairs(); ++r) {
        restore_pairs(sums(head) + r * value_dim_, call_.view.dim_of_values());
      }
      keep({sums(head) + row * value_dim_, highest, totals}, chunk, head, row, own, partials);
      state += 2 * lanes;
      row += rows;
    }
  }

  /// Merges the results of `count` rows of a chunk, or leaves them to the merging function.
  PAGEDKV_INLINE void keep(partial done, std::int32_t chunk, std::int32_t head, std::int64_t row, std::int64_t count,
                           float* partials) const {
    auto into = unit_.first_partial < 0 ? merged(head) : partial_of(chunk, head, partials);
    into = {into.sums + row * value_dim_, into.highest + row, into.totals + row};
    if (unit_.first_partial >= 0) {
      clear(into, count, value_dim_);
    }
    merge(into, done, count, value_dim_);
  }

  [[nodiscard]] PAGEDKV_INLINE std::int64_t num_panels() const { return divide_up(num_rows_, panel_rows); }

#if PAGEDKV_LANES == 16
  [[nodiscard]] PAGEDKV_INLINE panel_state& panel_at(std::int32_t head, std::int64_t panel) const {
    return *reinterpret_cast<panel_state*>(states(head) + panel * panel_state_size);
  }

  PAGEDKV_INLINE void load_panels(std::int32_t head) {
    if (shaped_for_ == 0) {
      shape_panels();
      shaped_for_ = panel_rows;
    }
    const auto dim = call_.panel_dim();
    for (auto panel = std::int64_t{0}; panel < num_panels(); ++panel) {
      auto& state = panel_at(head, panel);
      for (auto r = 0; r < panel_rows; ++r) {
        const auto row = std::min(panel * panel_rows + r, num_rows_ - 1);
        const auto place = query_of(row);
        load_query(head, row, dim, tile_ + r * dim);
        if (sorts_numbers<Element>) {
          sort_pairs(tile_ + r * dim, dim);
        }
        state.positions[r] = static_cast<std::int32_t>(call_.position(place.row, place.query));
        const auto* const slopes = call_.options.alibi_slopes;
        const auto own_head = (piece_.first_head + head) * call_.group_size + row % call_.group_size;
        state.slopes[r] = slopes == nullptr ? 0.0f : slopes[own_head] * 1.442695041f;
      }
      state.has_low_part = lay_out_panel(tile_, dim, queries(head) + panel * panel_rows * dim) ? 1 : 0;
    }
  }

  PAGEDKV_INLINE void clear_panels() {
    for (auto head = 0; head < piece_.num_heads; ++head) {
      std::fill_n(sums(head), num_panels() * panel_rows * value_dim_, 0.0f);
      for (auto panel = std::int64_t{0}; panel < num_panels(); ++panel) {
        std::fill_n(panel_at(head, panel).origins, panel_rows, -std::numeric_limits<float>::infinity());
        std::fill_n(panel_at(head, panel).totals, panel_rows, 0.0f);
      }
    }
  }

  /// Whether every row sees all tokens of a tile.
  [[nodiscard]] PAGEDKV_INLINE bool is_seen_by_all(const tile& t) const {
    const auto end = t.first_token + t.num_tokens;
    if (unit_.is_prefix) {
      return true;
    }
    const auto first = call_.position(unit_.row, unit_.first_query);
    const auto last = first + unit_.num_queries - 1;
    const auto before_tree = call_.batch.tree_masks.empty() || end <= call_.position(unit_.row, 0);
    return before_tree && end <= first + 1 &&
           visible_from(last, call_.options.window).begin <= t.first_token;
  }

  PAGEDKV_INLINE void attend_panels(const tile_of_blocks<Element>& where, tile t, const tile_of_blocks<Element>& next,
                                    std::int32_t head) {
    float key_scales[tile_tokens];
    float value_scales[tile_tokens];
    read_scales(where, head, t, key_scales, value_scales);
    fetch_scales(next, head);
    t.keys = keys_of_head(head);
    t.values = values_of_head(head);
    auto ahead = strip_queue{};
    describe_queue(ahead, where, next, head, static_cast<std::int32_t>(2 * divide_up(t.num_tokens, strip_tokens)));
    t.ahead = &ahead;
    // A weight of zero does not cancel a NaN among values that a row does not see.
    const auto apart = is_seen_by_all(t) ? 0 : find_non_finite<Element>(t);
    lay_out_panel_keys<Element>(t, call_.panel_dim(), tile_);
    lay_out_panel_values<Element>(t, value_dim_, apart, tile_ + tile_tokens * call_.panel_dim());
    auto factors = score_factors{};
    set_factors(t, score_factor(), factors);
    auto panel = std::int64_t{0};
    for (; panel + 1 < num_panels(); panel += 2) {
      attend_pair<2>(t, head, panel, factors, apart);
    }
    if (panel < num_panels()) {
      attend_pair<1>(t, head, panel, factors, apart);
    }
    fetch_next(ahead, 2 * tile_tokens);
  }

  /// Processes a tile for one or two panels.
  template <int Count>
  PAGEDKV_INLINE void attend_pair(const tile& t, std::int32_t head, std::int64_t panel, const score_factors& factors,
                                  std::uint64_t apart) {
    auto pair = panels{};
    pair.count = Count;
    pair.dim = call_.panel_dim();
    pair.value_dim = value_dim_;
    pair.queries = queries(head) + panel * panel_rows * pair.dim;
    pair.sums = sums(head) + panel * panel_rows * value_dim_;
    auto* const keys = tile_;
    auto* const values = keys + tile_tokens * pair.dim;
    auto* const scores = values + tile_tokens * value_dim_;
    auto* const weights = scores + tile_tokens * pair_columns;
    const auto rule = score_rule{&factors, call_.options.soft_cap * 1.442695041f, call_.options.window,
                                 call_.options.alibi_slopes != nullptr};
    panel_sight sights[2];
    auto any_seen = false;
    for (auto i = 0; i < Count; ++i) {
      pair.states[i] = &panel_at(head, panel + i);
      sights[i] = sight_of(*pair.states[i], t, rule.window);
      any_seen = any_seen || sights[i].any_seen;
    }
    if (!any_seen) {
      return;
    }
    multiply_panel_keys<Element, Count>(pair, t, keys, scores);
    for (auto i = 0; i < Count; ++i) {
      auto* const own = scores + i * panel_rows;
      const auto raw = sights[i].all_seen && apart == 0 && t.num_tokens % pair_columns == 0 && rule.cap == 0 &&
                       !rule.biased && call_.batch.tree_masks.empty();
      if (!raw) {
        finish_panel_scores(rule, t, *pair.states[i], sights[i], own);
      }
      hide_panel_branches(t, panel + i, own);
      weigh_panel<Element>(t, own, raw ? factors.of_products : factors.of_scores, *pair.states[i],
                           pair.sums + i * pair.sums_size(), value_dim_,
                           weights + i * panel_rows * tile_tokens);
    }
    add_panel_values<Element, Count>(pair, t, values, weights);
    for (auto i = 0; i < Count; ++i) {
      add_apart(t, apart, scores + i * panel_rows, *pair.states[i], pair.sums + i * pair.sums_size());
    }
  }

  /// Sets the scores of tokens that tree masks hide to minus infinity.
  PAGEDKV_INLINE void hide_panel_branches(const tile& t, std::int64_t panel, float* scores) const {
    for (auto r = 0; r < panel_rows && !call_.batch.tree_masks.empty(); ++r) {
      const auto hidden = hidden_branches(query_of(std::min(panel * panel_rows + r, num_rows_ - 1)), t);
      for (auto token = 0; token < t.num_tokens && hidden != 0; ++token) {
        if ((hidden >> token & 1) != 0) {
          scores[token * pair_columns + r] = -std::numeric_limits<float>::infinity();
        }
      }
    }
  }

  /// Adds the tokens whose values are not finite to the sums of the rows that see them.
  PAGEDKV_INLINE void add_apart(const tile& t, std::uint64_t apart, const float* scores, const panel_state& state,
                                float* sums) const {
    for (auto token = 0; token < t.num_tokens && apart >> token != 0; ++token) {
      if ((apart >> token & 1) != 0) {
        add_panel_token<Element>(t, token, read_floats(scores + token * pair_columns), state, sums);
      }
    }
  }

  PAGEDKV_INLINE void finish_panels(std::int32_t chunk, std::int32_t head, float* partials) {
    for (auto panel = std::int64_t{0}; panel < num_panels(); ++panel) {
      auto& state = panel_at(head, panel);
      const auto row = panel * panel_rows;
      transpose_sums(sums(head) + row * value_dim_, value_dim_, tile_);
      keep({tile_, state.origins, state.totals}, chunk, head, row, std::min<std::int64_t>(panel_rows, num_rows_ - row),
           partials);
    }
  }
#else
  PAGEDKV_INLINE void load_panels(std::int32_t) {}
  PAGEDKV_INLINE void clear_panels() {}
  PAGEDKV_INLINE void attend_panels(const tile_of_blocks<Element>&, const tile&, const tile_of_blocks<Element>&,
                                    std::int32_t) {}
  PAGEDKV_INLINE void finish_panels(std::int32_t, std::int32_t, float*) {}
#endif

  [[nodiscard]] PAGEDKV_INLINE partial partial_of(std::int32_t chunk, std::int32_t head, float* partials) const {
    return partial_at(partials + offset_of_partial(call_, unit_, chunk, piece_.first_head + head), num_rows_,
                      value_dim_);
  }

  const attention_call& call_;
  const attention_plan& plan_;
  const unit& unit_;
  const piece& piece_;
  std::int64_t num_rows_;
  std::int32_t dim_;
  std::int32_t value_dim_;
  bool in_panels_;
  float* tile_;
  float* heads_;
  std::int32_t shaped_for_ = 0;  // rows that the matrix registers have shapes for, if any
};

template <class Element>
PAGEDKV_NOINLINE void run_piece(const attention_call& call, const attention_plan& plan, const piece& p, float* scratch,
                                float* partials) {
  worker<Element>(call, plan, p, scratch).run(partials);
}

}  // namespace pagedkv::host::attention::PAGEDKV_ISA

#endif
