#pragma once

#include <pagedkv/detail/memory.hpp>
#include <pagedkv/host/attention/check.hpp>
#include <pagedkv/host/attention/kernels.hpp>
#include <pagedkv/host/backend.hpp>
#include <pagedkv/host/workers.hpp>

#include <atomic>
#include <memory>
#include <new>

namespace pagedkv::host {

namespace attention {

/// Rows of any type as bytes, with strides in numbers.
template <class Byte, class Number>
[[nodiscard]] token_rows<Byte> as_bytes(const token_rows<Number>& rows) noexcept {
  return {reinterpret_cast<Byte*>(rows.data),
          rows.token_stride,
          rows.head_stride,
          rows.num_tokens,
          rows.num_heads,
          rows.head_dim};
}

/// Describes the operation, without the types of queries and outputs.
template <element Input, element Output>
[[nodiscard]] attention_call describe(const block_storage_view& view, std::int32_t layer, const attention_batch& batch,
                                      const token_rows<const typename Input::storage>& queries,
                                      const attention_output<typename Output::storage>& output,
                                      const attention_options& options) noexcept {
  auto call = attention_call{};
  call.view = view;
  call.layer = layer;
  call.group_size = queries.num_heads / std::max(1, view.num_kv_heads);
  call.batch = batch;
  call.options = options;
  call.queries = as_bytes<const std::byte>(queries);
  call.output = as_bytes<std::byte>(output.rows);
  call.num_heads = queries.num_heads;
  call.log_sum_exp = output.log_sum_exp;
  call.load_query = &load_query<Input>;
  call.store_output = &store_output<Output>;
  return call;
}

/// Runs `work(i, scratch)` for every i below `count`; each thread takes the next i when it is idle.
template <class Work>
void share_out(workers threads, int num_threads, std::size_t count, float* scratch, std::int64_t scratch_each,
               Work work) {
  auto next = std::atomic<std::size_t>{0};
  threads.run(num_threads, [&](int thread) {
    for (auto i = next.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      work(i, scratch + thread * scratch_each);
    }
  });
}

/// Frees what `allocate` returned.
struct release_numbers {
  void operator()(float* numbers) const noexcept { ::operator delete(numbers, alignment); }

  /// The memory's alignment in bytes.
  static constexpr auto alignment = std::align_val_t{row_padding * sizeof(float)};
};

/// Memory for so many numbers. Throws `std::bad_alloc`.
[[nodiscard]] inline std::unique_ptr<float[], release_numbers> allocate(std::int64_t count) {
  const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
  return std::unique_ptr<float[], release_numbers>(
      static_cast<float*>(::operator new(bytes, release_numbers::alignment)));
}

/// Runs a checked operation. Errors: `out_of_memory`.
[[nodiscard]] inline result<void> run(const attention_call& call, kernels code, workers threads) noexcept {
  const auto attend = [&]() -> result<void> {
    const auto plan = make_plan(call, threads.size());
    const auto scratch = allocate(plan.scratch * plan.num_threads);
    const auto partials = allocate(plan.num_partials);
    share_out(threads, plan.num_threads, plan.pieces.size(), scratch.get(), plan.scratch,
              [&](std::size_t i, float* own) { code.run_piece(call, plan, plan.pieces[i], own, partials.get()); });
    if (plan.num_partials != 0) {
      const auto num_heads = static_cast<std::size_t>(call.view.num_kv_heads);
      share_out(threads, plan.num_threads, plan.units.size() * num_heads, nullptr, 0, [&](std::size_t i, float*) {
        const auto& u = plan.units[i / num_heads];
        const auto head = static_cast<std::int32_t>(i % num_heads);
        if (u.first_partial >= 0 && !u.is_prefix && head >= u.first_head && head - u.first_head < u.num_heads) {
          code.merge_chunks(call, plan, u, head, partials.get());
        }
      });
    }
    return {};
  };
  const auto num_rows = static_cast<std::int64_t>(call.batch.num_rows());
  return detail::with_memory(attend, error{error_code::out_of_memory, "attention over rows", num_rows});
}

}  // namespace attention

/// Attention of the batch's queries over one layer's blocks, on threads that the caller lends; complete when it
/// returns. `Input` and `Output` are unscaled elements; arithmetic is float32, with AVX-512 or AVX2 where the processor
/// has them. With AMX, for int8 with AVX-512 VNNI, and for bfloat16 with AVX-512 BF16, infinite queries, keys, values
/// and scales may give NaN, and queries and weights keep 15 bits or more, counted from the largest one of a query or of
/// a row's weights. Weights of bfloat16 keep 8 with AVX-512 BF16. With AMX, so do those of bfloat16 and of elements of
/// 8 bits where more than 16 pairs of query and head, of one row or of rows that share a prefix, share a KV head;
/// there, values of bfloat16 from 2^120 on may overflow. Work is divided by tokens and heads, so that one long sequence
/// keeps all threads busy. Linear in the tokens that each query reads, times its heads.
///
/// The result of a row has the same bits whatever else is in the batch, unless rows share prefixes, and however many
/// threads there are, for the same instruction set, which the processor must support. Blocks before every query's
/// window are not read and may be `no_block`.
///
/// g++ and clang compile this header; nvcc does not.
///
/// Errors, before anything is written: `invalid_argument` for a layer, a layout that is not strided, a number of heads,
/// a negative window or cap, rows of queries or results of another shape, a row pointer, the length of a last block,
/// tree masks, an entry of a list beyond its row's blocks, or a block outside the storage; `out_of_memory` for the
/// working memory: some 100 KiB of each thread, and 64 MiB at most for results of parts of rows.
template <element Element, element Input = float32, element Output = Input>
  requires(is_unscaled<Input> && is_unscaled<Output>)
[[nodiscard]] result<void> attend(const block_storage_view& view, std::int32_t layer, const attention_batch& batch,
                                  const token_rows<const typename Input::storage>& queries,
                                  const attention_output<typename Output::storage>& output,
                                  const attention_options& options = {}, workers threads = {},
                                  instruction_set instructions = best_instruction_set()) noexcept {
  auto call = attention::describe<Input, Output>(view, layer, batch, queries, output, options);
  call.has_matrix_unit = instructions == instruction_set::amx;
  call.follows_reads = follows_reads();
  call.has_pair_products = attention::has_pair_products<Element>(instructions);
  call.has_panels = call.has_matrix_unit && attention::has_panels_for<Element>;
  if (const auto checked = attention::check(call); !checked) {
    return checked;
  }
  return attention::run(call, attention::kernels_for<Element>(instructions), threads);
}

}  // namespace pagedkv::host

namespace pagedkv {

template <element Element, element Input, element Output>
result<void> host_backend::attend(const block_storage_view& view, std::int32_t layer, const attention_batch& batch,
                                  const token_rows<const typename Input::storage>& queries,
                                  const attention_output<typename Output::storage>& output,
                                  const attention_options& options, stream_type stream) noexcept {
  return host::attend<Element, Input, Output>(view, layer, batch, queries, output, options, stream.threads);
}

static_assert(attention_backend_for<host_backend, float16, float32, float16>);

}  // namespace pagedkv
