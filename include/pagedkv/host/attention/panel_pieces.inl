// The pieces of a plan with many rows, for one instruction set; see vectors.inl.
#if defined(PAGEDKV_ISA) && PAGEDKV_LANES == 16

namespace pagedkv::host::attention::PAGEDKV_ISA {

/// Computes a piece in panels.
template <class Element>
class panel_worker : private worker {
 public:
  // An inherited constructor would not inherit the instruction set.
  PAGEDKV_INLINE panel_worker(const attention_call& call, const work_plan& plan, const piece& p, float* scratch)
      : worker(call, plan, p, scratch) {}

  PAGEDKV_INLINE void run(float* partials) {
    shape_panels();
    worker::run<Element>(*this, partials);
    release_matrices();
  }

  [[nodiscard]] PAGEDKV_INLINE partial merged(std::int32_t head) const {
    return partial_at(states(head) + num_panels() * panel_state_size, num_rows_, value_dim_);
  }

  PAGEDKV_NOINLINE void load_queries(std::int32_t head) {
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

  PAGEDKV_NOINLINE void begin_chunk() {
    for (auto head = 0; head < piece_.num_heads; ++head) {
      std::fill_n(sums(head), num_panels() * panel_rows * value_dim_, 0.0f);
      for (auto panel = std::int64_t{0}; panel < num_panels(); ++panel) {
        std::fill_n(panel_at(head, panel).origins, panel_rows, -std::numeric_limits<float>::infinity());
        std::fill_n(panel_at(head, panel).totals, panel_rows, 0.0f);
      }
    }
  }

  PAGEDKV_NOINLINE void attend_tile(const tile_of_blocks<Element>& where, const tile_of_blocks<Element>& next) {
    for (auto head = 0; head < piece_.num_heads; ++head) {
      attend_head(where, where.describe(call_), next, head);
    }
  }

  PAGEDKV_NOINLINE void finish_chunk(std::int32_t chunk, std::int32_t head, float* partials) {
    for (auto panel = std::int64_t{0}; panel < num_panels(); ++panel) {
      auto& state = panel_at(head, panel);
      const auto row = panel * panel_rows;
      transpose_sums(sums(head) + row * value_dim_, value_dim_, tile_);
      keep({tile_, state.origins, state.totals}, merged(head), chunk, head, row,
           std::min<std::int64_t>(panel_rows, num_rows_ - row), partials);
    }
  }

 private:
  [[nodiscard]] PAGEDKV_INLINE std::int64_t num_panels() const { return divide_up(num_rows_, panel_rows); }


  // Working memory of a KV head.
  [[nodiscard]] PAGEDKV_INLINE float* queries(std::int32_t head) const {
    return heads_ + head * scratch_of_head(call_, unit_);
  }
  [[nodiscard]] PAGEDKV_INLINE float* sums(std::int32_t head) const {
    return queries(head) + num_panels() * panel_rows * call_.panel_dim();
  }
  [[nodiscard]] PAGEDKV_INLINE float* states(std::int32_t head) const {
    return sums(head) + num_panels() * panel_rows * value_dim_;
  }
  [[nodiscard]] PAGEDKV_INLINE panel_state& panel_at(std::int32_t head, std::int64_t panel) const {
    return *reinterpret_cast<panel_state*>(states(head) + panel * panel_state_size);
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

  PAGEDKV_INLINE void attend_head(const tile_of_blocks<Element>& where, tile t, const tile_of_blocks<Element>& next,
                                  std::int32_t head) {
    float key_scales[tile_tokens];
    float value_scales[tile_tokens];
    where.read_scales(call_, piece_.first_head + head, t, key_scales, value_scales);
    next.fetch_scales(call_, piece_.first_head + head);
    t.keys = where.keys_of(call_, piece_.first_head + head);
    t.values = where.values_of(call_, piece_.first_head + head);
    fetch_queue ahead;
    list_ahead(call_, piece_, where, next, head, 1, ahead);
    t.ahead = &ahead;
    // A weight of zero does not cancel a NaN among values that a row does not see.
    const auto apart = is_seen_by_all(t) ? 0 : find_non_finite<Element>(t);
    lay_out_panel_keys<Element>(t, call_.panel_dim(), tile_);
    lay_out_panel_values<Element>(t, value_dim_, apart, tile_ + tile_tokens * call_.panel_dim());
    auto factors = score_factors{};
    set_factors(t, score_factor(head), factors);
    auto panel = std::int64_t{0};
    for (; panel + 1 < num_panels(); panel += 2) {
      attend_pair<2>(t, head, panel, factors, apart);
    }
    if (panel < num_panels()) {
      attend_pair<1>(t, head, panel, factors, apart);
    }
    ahead.fetch_rest();
  }

  /// Processes a tile for one or two panels.
  template <int Count>
  PAGEDKV_NOINLINE void attend_pair(const tile& t, std::int32_t head, std::int64_t panel, const score_factors& factors,
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

};

}  // namespace pagedkv::host::attention::PAGEDKV_ISA

#endif
