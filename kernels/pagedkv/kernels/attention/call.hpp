#pragma once

#include <pagedkv/attention/attention.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/storage/view.hpp>

#include <cstdint>

namespace pagedkv::kernels {

/// The types that queries and outputs may have. Distinguished at run time, because each piece accesses them only once.
enum class number_type : std::int32_t { float32, float16, bfloat16 };

/// Rows of queries or outputs.
struct number_rows {
  void* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  number_type type = number_type::float32;
  bool aligned = false;  // rows start at multiples of 16 bytes and are a multiple of 16 numbers long
};

/// The arguments that the kernels of one call share.
struct attention_call {
  block_storage_view view;
  std::int32_t layer = 0;
  std::int32_t group_size = 1;
  const block_id* indices = nullptr;
  number_rows queries;
  number_rows output;
  float* log_sum_exp = nullptr;
  std::int32_t num_query_heads = 0;
  float scale = 1.0F;
  float soft_cap = 0.0F;
  std::int32_t window = 0;
  const float* alibi_slopes = nullptr;
  const float* sinks = nullptr;
  float* partials = nullptr;      // [partial][column][partial_stride], not yet divided by the sum
  float* partial_sums = nullptr;  // [partial][column][2]: reference and sum, in base 2
  std::int32_t partial_stride = 0;
};

}  // namespace pagedkv::kernels
