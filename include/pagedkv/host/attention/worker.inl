// The state that the pieces of a plan have in common, for one instruction set; see vectors.inl.
#if defined(PAGEDKV_ISA)

namespace pagedkv::host::attention::PAGEDKV_ISA {

/// The computation of a piece, in memory of its thread. Workers for few and for many rows derive from it. They count KV
/// heads from the piece's first one.
class worker {
 public:
  PAGEDKV_INLINE worker(const attention_call& call, const work_plan& plan, const piece& p, float* scratch)
      : call_(call),
        plan_(plan),
        unit_(plan.units[p.unit]),
        piece_(p),
        num_rows_(rows_of(call, unit_)),
        dim_(call.padded_dim()),
        value_dim_(call.padded_value_dim()),
        tile_(scratch),
        heads_(scratch + scratch_of_tile(call)) {}

 protected:
  /// Runs the parts of the computation, which `self` has as public functions.
  template <class Element, class Self>
  PAGEDKV_INLINE void run(Self& self, float* partials) {
    for (auto head = 0; head < piece_.num_heads; ++head) {
      self.load_queries(head);
      clear(self.merged(head), num_rows_, value_dim_);
    }
    attend_chunks<Element>(self, partials);
    for (auto head = 0; head < piece_.num_heads && unit_.first_partial < 0; ++head) {
      store(call_, unit_, piece_.first_head + head, self.merged(head));
    }
  }

  /// The query of one of the unit's rows.
  [[nodiscard]] PAGEDKV_INLINE query_place query_of(std::int64_t row) const {
    return plan_.query_of(unit_, static_cast<std::int32_t>(row / call_.group_size));
  }

  /// The factor of a query and a key's product in a KV head.
  [[nodiscard]] PAGEDKV_INLINE float score_factor(std::int32_t head) const {
    constexpr auto log2_e = 1.442695041f;
    const auto& options = call_.options;
    const auto scale = options.scale == 0 ? 1 / std::sqrt(static_cast<float>(call_.view.head_dim)) : options.scale;
    const auto factor = options.soft_cap == 0 ? scale * log2_e : scale / options.soft_cap;
    return factor * call_.key_scale(piece_.first_head + head);
  }

  /// Loads the queries of a row, and pads them with zeros.
  PAGEDKV_NOINLINE void load_query(std::int32_t head, std::int64_t row, std::int32_t dim, float* numbers) const {
    const auto place = query_of(row);
    const auto token = call_.first_query(place.row) + place.query;
    const auto query_head =
        (piece_.first_head + head) * call_.group_size + static_cast<std::int32_t>(row % call_.group_size);
    call_.load_query(call_, token, query_head, numbers);
    std::fill(numbers + call_.view.head_dim, numbers + dim, 0.0f);
  }

  /// The tokens of a tile that the tree mask of a query hides, one bit each.
  [[nodiscard]] PAGEDKV_NOINLINE std::uint64_t hidden_branches(query_place place, const tile& t) const {
    const auto num_queries = call_.num_queries(place.row);
    const auto hidden = static_cast<std::uint64_t>(~call_.tree_mask(place.row, place.query)) &
                        ((std::uint64_t{1} << num_queries) - 1);
    const auto first = call_.position(place.row, 0) - t.first_token;  // of the tree, in tokens of the tile
    if (first >= tile_tokens || first <= -tile_tokens) {
      return 0;
    }
    return first >= 0 ? hidden << first : hidden >> -first;
  }

  /// Merges the results of `count` rows of a chunk into those of the preceding ones, or leaves them to the merging
  /// function.
  PAGEDKV_NOINLINE void keep(partial done, partial merged, std::int32_t chunk, std::int32_t head, std::int64_t row,
                           std::int64_t count, float* partials) const {
    auto into = unit_.first_partial < 0 ? merged : partial_of(chunk, head, partials);
    into = {into.sums + row * value_dim_, into.highest + row, into.totals + row};
    if (unit_.first_partial >= 0) {
      clear(into, count, value_dim_);
    }
    merge(into, done, count, value_dim_);
  }

 private:
  template <class Element, class Self>
  PAGEDKV_INLINE void attend_chunks(Self& self, float* partials) {
    const auto begin = unit_.seen.begin + piece_.first_chunk * unit_.chunk_tokens;
    const auto end = std::min(unit_.seen.end, begin + piece_.num_chunks * unit_.chunk_tokens);
    if (call_.batch.lists.kind != listed_blocks::none) {
      attend_listed_chunks<Element>(self, partials);
      return;
    }
    auto next = tile_of_blocks<Element>{};
    if (begin < end) {
      next.locate(call_, unit_.row, begin, end);
    }
    for (auto chunk = piece_.first_chunk; chunk < piece_.first_chunk + piece_.num_chunks; ++chunk) {
      self.begin_chunk();
      const auto chunk_end = std::min(end, unit_.seen.begin + (chunk + 1) * unit_.chunk_tokens);
      for (auto first = unit_.seen.begin + chunk * unit_.chunk_tokens; first < chunk_end; first += tile_tokens) {
        const auto where = next;
        if (first + tile_tokens < end) {
          next.locate(call_, unit_.row, first + tile_tokens, end);
        }
        self.attend_tile(where, next);
      }
      for (auto head = 0; head < piece_.num_heads; ++head) {
        self.finish_chunk(chunk, head, partials);
      }
    }
  }

  /// The next tile of a list.
  template <class Element>
  struct listed_tile {
    std::int32_t chunk;
    std::int64_t next;  // token after the tile, in the order of the list
    tile_of_blocks<Element> where;
  };

  /// Finds the next tile that has tokens, before the end of a chunk.
  template <class Element>
  PAGEDKV_NOINLINE void find_listed(listed_tile<Element>& tile, std::int32_t end_chunk) const {
    tile.where.num_tokens = 0;
    for (; tile.chunk < end_chunk; ++tile.chunk) {
      const auto end = std::min(unit_.seen.end, (tile.chunk + 1) * unit_.chunk_tokens);
      tile.next = tile.where.locate_listed(call_, unit_, tile.next, end);
      if (tile.where.num_tokens != 0) {
        return;
      }
    }
  }

  /// Attends to the blocks of a list.
  template <class Element, class Self>
  PAGEDKV_NOINLINE void attend_listed_chunks(Self& self, float* partials) {
    const auto end = piece_.first_chunk + piece_.num_chunks;
    auto next = listed_tile<Element>{piece_.first_chunk, piece_.first_chunk * unit_.chunk_tokens, {}};
    find_listed(next, end);
    for (auto chunk = piece_.first_chunk; chunk < end; ++chunk) {
      self.begin_chunk();
      while (next.chunk == chunk) {
        const auto where = next.where;
        find_listed(next, end);
        self.attend_tile(where, next.chunk < end ? next.where : where);
      }
      for (auto head = 0; head < piece_.num_heads; ++head) {
        self.finish_chunk(chunk, head, partials);
      }
    }
  }

  [[nodiscard]] PAGEDKV_INLINE partial partial_of(std::int32_t chunk, std::int32_t head, float* partials) const {
    return partial_at(partials + offset_of_partial(call_, unit_, chunk, piece_.first_head + head), num_rows_,
                      value_dim_);
  }

 protected:
  const attention_call& call_;
  const work_plan& plan_;
  const unit& unit_;
  const piece& piece_;
  std::int64_t num_rows_;
  std::int32_t dim_;
  std::int32_t value_dim_;
  float* tile_;
  float* heads_;
};

}  // namespace pagedkv::host::attention::PAGEDKV_ISA

#endif
