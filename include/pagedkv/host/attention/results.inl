// Results of chunks, their merge, and the output, for one instruction set; see vectors.inl.
#if defined(PAGEDKV_ISA)

namespace pagedkv::host::attention::PAGEDKV_ISA {

/// Sums, highest scores and totals of the rows of a unit, for one KV head.
struct partial {
  float* sums = nullptr;  // [row][padded dim]
  float* highest = nullptr;
  float* totals = nullptr;
};

PAGEDKV_INLINE partial partial_at(float* memory, std::int64_t num_rows, std::int64_t dim) {
  return {memory, memory + num_rows * dim, memory + num_rows * (dim + 1)};
}

PAGEDKV_INLINE void clear(partial p, std::int64_t num_rows, std::int64_t dim) {
  std::fill_n(p.sums, num_rows * dim, 0.0f);
  std::fill_n(p.highest, num_rows, -std::numeric_limits<float>::infinity());
  std::fill_n(p.totals, num_rows, 0.0f);
}

/// Adds a result to that of the preceding chunks.
PAGEDKV_NOINLINE void merge(partial into, partial from, std::int64_t num_rows, std::int64_t dim) {
  for (auto row = std::int64_t{0}; row < num_rows; ++row) {
    const auto highest = into.highest[row] > from.highest[row] ? into.highest[row] : from.highest[row];
    const auto base = highest == -std::numeric_limits<float>::infinity() ? 0.0f : highest;
    const auto factors = exp2(floats{into.highest[row] - base, from.highest[row] - base});
    const auto of_into = factors[0];
    const auto of_from = factors[1];
    for (auto d = std::int64_t{0}; d < dim; d += lanes) {
      auto* const sums = into.sums + row * dim + d;
      write_floats(sums, read_floats(sums) * of_into + read_floats(from.sums + row * dim + d) * of_from);
    }
    into.totals[row] = into.totals[row] * of_into + from.totals[row] * of_from;
    into.highest[row] = highest;
  }
}

/// Divides by the sum of weights, and writes the output.
PAGEDKV_NOINLINE void store(const attention_call& call, const unit& u, std::int32_t kv_head, partial p) {
  constexpr auto log2_e = 1.442695041f;
  const auto dim = call.padded_value_dim();
  const auto value_scale = call.value_scale(kv_head);
  for (auto row = std::int64_t{0}; row < rows_of(call, u); ++row) {
    const auto head = kv_head * call.group_size + static_cast<std::int32_t>(row % call.group_size);
    const auto query = call.first_query(u.row) + u.first_query + row / call.group_size;
    auto* const sums = p.sums + row * dim;
    auto total = p.totals[row];
    auto highest = p.highest[row];
    const auto position = call.position(u.row, u.first_query + static_cast<std::int32_t>(row / call.group_size));
    const auto sees_none = call.batch.lists.kind != listed_blocks::none && total == 0;
    if (call.options.sinks != nullptr && position >= 0 && !sees_none) {
      const auto sink = call.options.sinks[head] * log2_e;
      const auto base = highest > sink ? highest : sink;
      const auto factors = exp2(floats{highest - base, sink - base});
      scale_row(sums, dim, factors[0]);
      total = total * factors[0] + factors[1];
      highest = base;
    }
    if (total != 0) {
      scale_row(sums, dim, value_scale / total);
    }
    call.store_output(call, query, head, sums);
    if (call.log_sum_exp != nullptr) {
      call.log_sum_exp[query * call.num_heads + head] =
          total == 0 ? -std::numeric_limits<float>::infinity()
                     : static_cast<float>((double{highest} + std::log2(double{total})) * 0.6931471805599453);
    }
  }
}

/// The part of a shared prefix's partial result that belongs to a unit.
PAGEDKV_INLINE partial partial_of_prefix(const attention_call& call, const unit& prefix, const unit& u,
                                         std::int32_t chunk, std::int32_t head, float* partials) {
  const auto dim = call.padded_value_dim();
  const auto row = std::int64_t{u.query_of_prefix} * call.group_size;
  const auto whole = partial_at(partials + offset_of_partial(call, prefix, chunk, head), rows_of(call, prefix), dim);
  return {whole.sums + row * dim, whole.highest + row, whole.totals + row};
}

/// Merges the chunks of one KV head of a unit, and of its prefix, into the first chunk's memory, and writes the output.
PAGEDKV_NOINLINE void merge_chunks(const attention_call& call, const work_plan& plan, const unit& u,
                                   std::int32_t head, float* partials) {
  const auto num_rows = rows_of(call, u);
  const auto dim = call.padded_value_dim();
  const auto first = partial_at(partials + offset_of_partial(call, u, 0, head), num_rows, dim);
  for (auto chunk = 1; chunk < u.num_chunks; ++chunk) {
    merge(first, partial_at(partials + offset_of_partial(call, u, chunk, head), num_rows, dim), num_rows, dim);
  }
  for (auto chunk = 0; u.prefix != unit::none && chunk < plan.units[u.prefix].num_chunks; ++chunk) {
    merge(first, partial_of_prefix(call, plan.units[u.prefix], u, chunk, head, partials), num_rows, dim);
  }
  store(call, u, head, first);
}

}  // namespace pagedkv::host::attention::PAGEDKV_ISA

#endif
