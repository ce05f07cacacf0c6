// The pieces of a plan that are not computed in panels, for one instruction set; see vectors.inl.
#if defined(PAGEDKV_ISA)

namespace pagedkv::host::attention::PAGEDKV_ISA {

/// Number of rows that are computed together, for so many remaining rows; the last row may be padding.
PAGEDKV_INLINE std::int32_t rows_in_set(std::int64_t left) {
  if (left >= 7 && lanes >= 8) {
    return most_rows;
  }
  return left >= 3 ? 4 : (left == 2 ? 2 : 1);
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

/// Computes a piece in sets of up to 8 rows: directly, with the matrix unit, in pairs, or from decoded tiles.
template <class Element>
class row_worker : private worker {
 public:
  // An inherited constructor would not inherit the instruction set.
  PAGEDKV_INLINE row_worker(const attention_call& call, const work_plan& plan, const piece& p, float* scratch)
      : worker(call, plan, p, scratch) {}

  PAGEDKV_INLINE void run(float* partials) {
    worker::run<Element>(*this, partials);
    if (shaped_for_ != 0) {
      release_matrices();
    }
  }

  [[nodiscard]] PAGEDKV_INLINE partial merged(std::int32_t head) const {
    return partial_at(query_matrices(head) + (call_.copies_queries() ? (num_rows_ + 1) * dim_ : 0), num_rows_,
                      value_dim_);
  }

  PAGEDKV_NOINLINE void load_queries(std::int32_t head) {
    factor_ = score_factor(head);
    for (auto row = std::int64_t{0}; row <= num_rows_; ++row) {
      load_query(head, std::min(row, num_rows_ - 1), dim_, queries(head) + row * dim_);
    }
    if (multiplies_pairs()) {
      lay_out_queries_for(head, true);
    }
    for (auto row = std::int64_t{0}; row <= num_rows_; ++row) {
      auto* const numbers = queries(head) + row * dim_;
      scale_row(numbers, dim_, factor_);
      if (sorts_pairs()) {
        sort_pairs(numbers, call_.view.head_dim);
      }
    }
    if (multiplies_matrices()) {
      lay_out_queries_for(head, false);
    }
  }

  PAGEDKV_NOINLINE void begin_chunk() {
    for (auto head = 0; head < piece_.num_heads; ++head) {
      std::fill_n(sums(head), (num_rows_ + 1) * value_dim_, 0.0f);
      for (auto row = std::int64_t{0}; row <= num_rows_; ++row) {
        std::fill_n(states(head) + row * 2 * lanes, lanes, -std::numeric_limits<float>::infinity());
        std::fill_n(states(head) + row * 2 * lanes + lanes, lanes, 0.0f);
      }
    }
  }

  PAGEDKV_NOINLINE void attend_tile(const tile_of_blocks<Element>& where, const tile_of_blocks<Element>& next) {
    auto t = where.describe(call_);
    if (multiplies_pairs() && num_rows_ >= rows_to_decode_for) {
      for (auto head = 0; head < piece_.num_heads; ++head) {
        attend_many_pairs(where, t, head);
      }
      return;
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
        t.keys = where.keys_of(call_, piece_.first_head + head);
        t.values = where.values_of(call_, piece_.first_head + head);
        attend_sets<Element>(t, head);
      }
    }
  }

  /// Gathers the sums of the lanes of each row, and merges them or leaves them to the merging function.
  PAGEDKV_NOINLINE void finish_chunk(std::int32_t chunk, std::int32_t head, float* partials) {
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
      keep({sums(head) + row * value_dim_, highest, totals}, merged(head), chunk, head, row, own, partials);
      state += 2 * lanes;
      row += rows;
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
  [[nodiscard]] PAGEDKV_INLINE float* scores(std::int32_t head) const {
    return states(head) + (num_rows_ + 1) * 2 * row_padding;
  }
  [[nodiscard]] PAGEDKV_INLINE float* query_matrices(std::int32_t head) const {
    return scores(head) + (num_rows_ + 1) * tile_tokens;
  }

  /// Whether keys and values are whole rows of matrix registers.
  [[nodiscard]] PAGEDKV_INLINE bool has_whole_rows() const {
    constexpr auto multiple = matrix_row / size_of<Element>;
    return call_.view.head_dim <= most_dim_for_matrices<Element> && call_.view.head_dim % multiple == 0 &&
           call_.view.dim_of_values() % multiple == 0;
  }

  /// Whether the matrix unit processes tiles of which every row sees all tokens.
  [[nodiscard]] PAGEDKV_INLINE bool multiplies_matrices() const {
    return call_.has_matrix_unit && num_rows_ >= rows_for_matrices<Element> && num_rows_ < rows_to_decode_for &&
           has_whole_rows();
  }

  /// Whether products are those of pairs, for rows that see all tokens of a tile, and of int8 in every tile.
  [[nodiscard]] PAGEDKV_INLINE bool multiplies_pairs() const {
    return fits_pairs<Element> && call_.has_pair_products && num_rows_ >= rows_for_pairs<Element> && has_whole_rows();
  }

  /// Lays out the queries of a KV head a second time, for other products than those of float32.
  PAGEDKV_NOINLINE void lay_out_queries_for(std::int32_t head, bool as_pairs) {
    if constexpr (fits_matrices<Element>) {
      for (auto row = std::int64_t{0}; row < num_rows_; row += rows_in_set(num_rows_ - row)) {
        auto set = row_set{};
        set.num_rows = rows_in_set(num_rows_ - row);
        set.first_row = row;
        set.stride = dim_;
        place(set, head);
        with_rows(set.num_rows, [&](auto rows) {
          constexpr auto num_rows = decltype(rows)::value;
          if (as_pairs) {
            const auto is_exact = lay_out_query_pairs<Element, num_rows>(set, call_.view.head_dim, factor_);
            in_two_parts_ |= is_exact ? 0 : bit_of(head);
          } else {
            lay_out_queries<Element, num_rows>(set, call_.view.head_dim);
          }
        });
      }
    }
  }

  /// Whether strips, which are contiguous, are read ahead of the computation.
  [[nodiscard]] PAGEDKV_INLINE bool reads_strips_ahead() const {
    return call_.follows_reads && num_rows_ <= most_queue_rows && !multiplies_pairs() &&
           call_.view.token_stride == call_.view.head_dim;
  }

  /// Whether a pass over the columns of values takes all tokens of a tile, which the first-level cache holds. A pass
  /// begins and ends by moving its sums, and has few columns where vectors are short.
  [[nodiscard]] PAGEDKV_INLINE bool adds_whole_tiles() const {
    constexpr auto most_bytes = std::int64_t{16} << 10;
    return lanes < 16 && num_rows_ > most_queue_rows &&
           tile_tokens * call_.view.dim_of_values() * size_of<Element> <= most_bytes;
  }

  /// Whether tiles are not decoded first.
  [[nodiscard]] PAGEDKV_INLINE bool reads_directly() const {
    const auto whole_vectors = call_.view.head_dim % lanes == 0 && call_.view.dim_of_values() % lanes == 0;
    return is_native<Element> && whole_vectors && (num_rows_ < rows_to_decode_for || std::same_as<Element, float32>);
  }

  [[nodiscard]] PAGEDKV_INLINE bool sorts_pairs() const { return sorts_numbers<Element> && reads_directly(); }

  /// Processes a tile in one KV head after the other, and prefetches the next one.
  PAGEDKV_INLINE void attend_heads(const tile_of_blocks<Element>& where, tile t, const tile_of_blocks<Element>& next) {
    constexpr auto most_sets = rows_to_decode_for / 4;
    row_set sets[most_sets];
    matrix_buffer buffers[fits_matrices<Element> ? most_sets : 1];
    const auto buffer_of = [&](int set) -> matrix_buffer& { return buffers[fits_matrices<Element> ? set : 0]; };
    const auto num_sets = describe_sets(t, sets);
    const auto all_seen = std::all_of(sets, sets + num_sets, [](const row_set& set) { return set.all_seen; });
    const auto as_matrices = fits_matrices<Element> && multiplies_matrices() && all_seen;
    fetch_queue ahead;
    const auto together = heads_together<Element>(call_, piece_);
    const auto as_pairs = multiplies_pairs() && (all_seen || std::same_as<Element, int8>);
    const auto in_strips = num_rows_ > most_queue_rows && !call_.follows_reads && !as_matrices && !as_pairs;
    auto* const queue = in_strips ? nullptr : &ahead;
    for (auto head = 0; head < piece_.num_heads && num_sets != 0; ++head) {
      float key_scales[tile_tokens];
      float value_scales[tile_tokens];
      where.read_scales(call_, piece_.first_head + head, t, key_scales, value_scales);
      next.fetch_scales(call_, piece_.first_head + head);
      t.keys = where.keys_of(call_, piece_.first_head + head);
      t.values = where.values_of(call_, piece_.first_head + head);
      auto index = 0;
      if (!in_strips && head % together == 0) {
        ahead.fetch_rest();
        list_ahead(call_, piece_, where, next, head, together, ahead);
      }
      for (auto first = 0; first < t.num_tokens; first += strip_tokens) {
        set_ahead(t, queue, where, next, head, ++index);
        const auto keys = as_pairs && num_rows_ > 1 ? keys_in_pairs(t, first, false) : key_matrix{};
        for (auto i = 0; i < num_sets; ++i) {
          place(sets[i], head);
          const auto range = token_range{first, std::min(t.num_tokens, first + strip_tokens)};
          if (as_pairs) {
            multiply_pairs(sets[i], t, head, first, keys);
          } else {
            multiply_strip(sets[i], t, range, buffer_of(i), as_matrices);
          }
          t.ahead = nullptr;
          t.next.num_rows = t.later.num_rows = 0;
        }
      }
      t.ahead = queue;
      for (auto i = 0; i < num_sets; ++i) {
        place(sets[i], head);
        if (as_matrices) {
          weigh_matrices(sets[i], t, buffer_of(i));
        } else {
          weigh(sets[i], t);
        }
        if (as_pairs) {
          add_pairs_of(sets[i], t, buffer_of(i));
          t.ahead = nullptr;
        }
      }
      const auto together_of_values = adds_whole_tiles() && !in_strips && !as_matrices ? tile_tokens : strip_tokens;
      for (auto first = 0; first < t.num_tokens && !as_pairs; first += together_of_values) {
        set_ahead(t, queue, where, next, head, ++index);
        const auto range = token_range{first, std::min(t.num_tokens, first + together_of_values)};
        if (as_matrices) {
          lay_out_strip(t, range);
          continue;
        }
        for (auto i = 0; i < num_sets; ++i) {
          place(sets[i], head);
          add<Element>(sets[i], t, range);
          t.ahead = nullptr;
          t.next.num_rows = t.later.num_rows = 0;
        }
      }
      t.ahead = queue;
      for (auto i = 0; i < num_sets && as_matrices; ++i) {
        place(sets[i], head);
        add_matrices(sets[i], t, buffer_of(i));
      }
    }
    ahead.fetch_rest();
  }

  /// Sets what is prefetched during a strip: what a queue has, or the strip of an index.
  PAGEDKV_INLINE void set_ahead(tile& t, fetch_queue* queue, const tile_of_blocks<Element>& where,
                                const tile_of_blocks<Element>& next, std::int32_t head, std::int32_t index) const {
    t.ahead = queue;
    if (queue == nullptr) {
      t.next = strip_ahead(call_, piece_, where, next, head, index);
      t.later = strip_ahead(call_, piece_, where, next, head, index + 1);
    } else if (reads_strips_ahead()) {
      read_rows(strip_ahead(call_, piece_, where, next, head, index));
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

  [[nodiscard]] PAGEDKV_INLINE key_matrix keys_in_pairs(const tile& t, std::int64_t first, bool is_single) {
    if constexpr (fits_pairs<Element>) {
      return find_key_pairs<Element>(t, first, reinterpret_cast<std::byte*>(tile_ + first * dim_), is_single);
    } else {
      return {};
    }
  }

  PAGEDKV_INLINE void multiply_pairs(const row_set& set, const tile& t, std::int32_t head, std::int64_t first,
                                     key_matrix keys) {
    if constexpr (fits_pairs<Element>) {
      if (set.num_rows == 1) {  // the last set, which may overwrite copies
        keys = keys_in_pairs(t, first, true);
      }
      with_rows(set.num_rows, [&](auto rows) {
        constexpr auto num_rows = decltype(rows)::value;
        if ((in_two_parts_ & bit_of(head)) != 0 && !std::same_as<Element, int8>) {
          multiply_key_pairs<Element, num_rows, 2>(set, t, first, keys, factor_);
        } else {
          multiply_key_pairs<Element, num_rows, 1>(set, t, first, keys, factor_);
        }
      });
    }
  }

  PAGEDKV_INLINE void add_pairs_of(const row_set& set, const tile& t, matrix_buffer& buffer) {
    if constexpr (fits_pairs<Element>) {
      with_rows(set.num_rows, [&](auto rows) { round_weights<Element, decltype(rows)::value>(set, t, buffer); });
      const auto sorted = sorts_pairs();
      with_rows(set.num_rows, [&](auto rows) {
        add_value_pairs<Element, decltype(rows)::value>(set, t, buffer, sorted);
      });
    }
  }

  PAGEDKV_INLINE void weigh_matrices(const row_set& set, const tile& t, matrix_buffer& buffer) {
    if constexpr (fits_matrices<Element>) {
      constexpr auto rows_each = rows_ahead / 2;
      fetch_next(t, t.dim * size_of<Element>, rows_each);
      with_rows(set.num_rows, [&](auto rows) { add_parts<Element, decltype(rows)::value>(set, t, buffer); });
      fetch_next(t, t.dim * size_of<Element>, rows_each);
      weigh(set, t);
      fetch_next(t, t.dim * size_of<Element>, rows_each);
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

  /// Processes a tile for many rows: decoded for the sets with rows that do not see all of it, else in pairs.
  PAGEDKV_NOINLINE void attend_many_pairs(const tile_of_blocks<Element>& where, tile t, std::int32_t head) {
    if constexpr (fits_pairs<Element>) {
      float key_scales[tile_tokens];
      float value_scales[tile_tokens];
      where.read_scales(call_, piece_.first_head + head, t, key_scales, value_scales);
      t.keys = where.keys_of(call_, piece_.first_head + head);
      t.values = where.values_of(call_, piece_.first_head + head);
      key_matrix keys[tile_tokens / strip_tokens];
      for (auto first = 0; first < t.num_tokens; first += strip_tokens) {
        keys[first / strip_tokens] = keys_in_pairs(t, first, false);
      }
      auto are_all_seen = true;
      auto set = row_set{};
      matrix_buffer buffer;
      for (auto row = std::int64_t{0}, i = std::int64_t{0}; row < num_rows_; row += set.num_rows, ++i) {
        if (!describe(set, t, row, i)) {
          continue;
        }
        if (!set.all_seen && !std::same_as<Element, int8>) {
          are_all_seen = false;
        } else {
          place(set, head);
          for (auto first = 0; first < t.num_tokens; first += strip_tokens) {
            multiply_pairs(set, t, head, first, keys[first / strip_tokens]);
          }
          weigh(set, t);
          add_pairs_of(set, t, buffer);
        }
      }
      if (!are_all_seen) {
        attend_decoded(where, where.describe(call_), head, true);
      }
    }
  }

  /// Applies the scales. Perhaps only for sets with rows that do not see all of the tile.
  PAGEDKV_NOINLINE void attend_decoded(const tile_of_blocks<Element>& where, tile t, std::int32_t head,
                                       bool only_unseen = false) {
    auto* const values = tile_ + tile_tokens * dim_;
    const auto& view = call_.view;
    float key_scales[tile_tokens];
    float value_scales[tile_tokens];
    where.read_scales(call_, piece_.first_head + head, t, key_scales, value_scales);
    decode_tile<Element>(where.keys_of(call_, piece_.first_head + head), t, t.offsets, t.key_scales, view.head_dim,
                         dim_, tile_);
    // The values of latent storage are decoded with its keys.
    const auto latent = view.is_latent() && t.value_dim % lanes == 0;
    if (!latent) {
      decode_tile<Element>(where.values_of(call_, piece_.first_head + head), t, t.value_offsets, t.value_scales,
                           t.value_dim, value_dim_, values);
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
    attend_sets<float32>(t, head, only_unseen);
  }

  /// Processes a tile in one KV head.
  template <class Stored>
  PAGEDKV_INLINE void attend_sets(const tile& t, std::int32_t head, bool only_unseen = false) {
    auto set = row_set{};
    const auto whole = token_range{0, t.num_tokens};
    for (auto row = std::int64_t{0}, i = std::int64_t{0}; row < num_rows_; row += set.num_rows, ++i) {
      if (describe(set, t, row, i) && !(only_unseen && set.all_seen)) {
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
    if (set.num_rows == 1 || !set.all_seen) {
      add_seen_values<Stored>(set, t, range);
      return;
    }
    with_rows(set.num_rows, [&](auto rows) {
      if constexpr (decltype(rows)::value > 1) {
        add_values<Stored, decltype(rows)::value>(set, t, range);
      }
    });
  }

  /// Describes the sets that see any token of the tile, and returns their number.
  PAGEDKV_INLINE std::int32_t describe_sets(const tile& t, row_set* sets) const {
    auto num_sets = 0;
    for (auto row = std::int64_t{0}, i = std::int64_t{0}; row < num_rows_; row += rows_in_set(num_rows_ - row), ++i) {
      num_sets += describe(sets[num_sets], t, row, i) ? 1 : 0;
    }
    return num_sets;
  }

  /// Describes set `index`, which begins at a row, but for its KV head; false if no row sees any token.
  PAGEDKV_NOINLINE bool describe(row_set& set, const tile& t, std::int64_t row, std::int64_t index) const {
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

  /// The bit of a KV head; those of more than 64 share bits.
  [[nodiscard]] static constexpr std::uint64_t bit_of(std::int32_t head) { return std::uint64_t{1} << (head % 64); }

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

  std::uint64_t in_two_parts_ = 0;  // a bit for each KV head: its queries are not all numbers of bfloat16
  float factor_ = 0;                // of products; one for all KV heads without static scales
  std::int32_t shaped_for_ = 0;     // rows that the matrix registers have shapes for, if any
};

}  // namespace pagedkv::host::attention::PAGEDKV_ISA

#endif
