#pragma once

// Explicit instantiation of the functions that launch kernels, for files that a device compiler turns into objects or
// code objects: one per element here, or a program's own for its own elements. Host compilers then call the same
// functions through their declarations. Use the macros outside every namespace.

#include <pagedkv/core/ids.hpp>
#include <pagedkv/kernels/attention/attend.hpp>
#include <pagedkv/kernels/transfer/append.hpp>
#include <pagedkv/kernels/transfer/convert_blocks.hpp>
#include <pagedkv/kernels/transfer/gather.hpp>
#include <pagedkv/kernels/transfer/rope_append.hpp>

/// The append and the gather over blocks of `Element` and rows of `Rows`.
#define PAGEDKV_INSTANTIATE_APPEND_AND_GATHER(Element, Rows)                                                      \
  template ::pagedkv::runtime::status pagedkv::kernels::append<Element, Rows>(                                    \
      const ::pagedkv::block_storage_view&, std::int32_t, const ::pagedkv::slot*, std::int64_t,                   \
      const ::pagedkv::token_rows<const typename Rows::storage>&,                                                 \
      const ::pagedkv::token_rows<const typename Rows::storage>&, ::pagedkv::runtime::stream);                    \
  template ::pagedkv::runtime::status pagedkv::kernels::gather<Element, Rows>(                                    \
      const ::pagedkv::block_storage_view&, std::int32_t, const ::pagedkv::slot*, std::int64_t,                   \
      const ::pagedkv::token_rows<typename Rows::storage>&, const ::pagedkv::token_rows<typename Rows::storage>&, \
      ::pagedkv::runtime::stream);

/// Every kernel over blocks of `Element` and rows of `Rows`.
#define PAGEDKV_INSTANTIATE_ROWS(Element, Rows)                                                                   \
  PAGEDKV_INSTANTIATE_APPEND_AND_GATHER(Element, Rows)                                                            \
  PAGEDKV_INSTANTIATE_ROPE(Element, Rows, ::pagedkv::kernels::rope_pairing::halves)                               \
  PAGEDKV_INSTANTIATE_ROPE(Element, Rows, ::pagedkv::kernels::rope_pairing::neighbours)

#define PAGEDKV_INSTANTIATE_ROPE(Element, Rows, Pairing)                                                      \
  template ::pagedkv::runtime::status pagedkv::kernels::rope_append<Element, Rows, Pairing>(                  \
      const ::pagedkv::block_storage_view&, std::int32_t, const ::pagedkv::slot*, std::int64_t,               \
      const ::pagedkv::token_rows<const typename Rows::storage>&,                                             \
      const ::pagedkv::token_rows<const typename Rows::storage>&, const std::int64_t*,                        \
      const ::pagedkv::kernels::rope_table&, const ::pagedkv::kernels::rope_queries<typename Rows::storage>&, \
      ::pagedkv::runtime::stream);

/// The conversion of blocks of `From` to `To`.
#define PAGEDKV_INSTANTIATE_CONVERSION(To, From)                                  \
  template ::pagedkv::runtime::status pagedkv::kernels::convert_blocks<To, From>( \
      const ::pagedkv::block_storage_view&, const ::pagedkv::block_storage_view&, \
      std::span<const ::pagedkv::block_pair>, ::pagedkv::runtime::stream);

/// Attention over blocks of `Element`, for queries and outputs of the types in `Numbers`.
#define PAGEDKV_INSTANTIATE_ATTENTION(Element, Numbers)                                          \
  template ::pagedkv::runtime::status pagedkv::kernels::decode_attention<Element, Numbers>(      \
      const ::pagedkv::kernels::attention_call&, const ::pagedkv::attention_plan&, std::int32_t, \
      ::pagedkv::runtime::stream);

/// The expansion of blocks of `Element`, if it has 8 bits, for attention over blocks of `To`; and that attention, which
/// the file of bfloat16 has.
#define PAGEDKV_INSTANTIATE_EXPANSION(Element, To)                                  \
  template ::pagedkv::runtime::status pagedkv::kernels::expand_blocks<Element, To>( \
      const ::pagedkv::kernels::block_expansion&, const ::pagedkv::attention_plan&, ::pagedkv::runtime::stream);
#define PAGEDKV_INSTANTIATE_EXPANDED_ATTENTION(Element, Numbers)                                 \
  template ::pagedkv::runtime::status pagedkv::kernels::attend_in_groups<Element, Numbers>(      \
      const ::pagedkv::kernels::attention_call&, const ::pagedkv::attention_plan&, std::int32_t, \
      ::pagedkv::runtime::stream);

/// Every kernel over blocks of `Element`, for rows, queries, outputs and blocks of the numbers of
/// pagedkv/device/attend.hpp. That header comes first.
#define PAGEDKV_INSTANTIATE_ELEMENT(Element)                                       \
  PAGEDKV_INSTANTIATE_ROWS(Element, ::pagedkv::float32)                            \
  PAGEDKV_INSTANTIATE_ROWS(Element, ::pagedkv::float16)                            \
  PAGEDKV_INSTANTIATE_ROWS(Element, ::pagedkv::bfloat16)                           \
  PAGEDKV_INSTANTIATE_CONVERSION(Element, ::pagedkv::float32)                      \
  PAGEDKV_INSTANTIATE_CONVERSION(Element, ::pagedkv::float16)                      \
  PAGEDKV_INSTANTIATE_CONVERSION(Element, ::pagedkv::bfloat16)                     \
  PAGEDKV_INSTANTIATE_EXPANSION(Element, ::pagedkv::hip::attention_numbers::brain) \
  PAGEDKV_INSTANTIATE_ATTENTION(Element, ::pagedkv::hip::attention_numbers)
