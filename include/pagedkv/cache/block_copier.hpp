#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/detail/function_ref.hpp>

#include <span>

namespace pagedkv::detail {

/// Has the backend copy or move whole blocks, as these pairs say, on the stream of the call. Operations know no more of
/// K/V, so that caches which differ in element, layout, allocator and backend share their code.
///
/// Its namespace is this one: so operations for both kinds of state find the functions of groups, which are declared
/// behind them, by this argument.
using block_copier = function_ref<result<void>(std::span<const block_pair>)>;

/// Renames moved blocks wherever a cache names them: `names` are the ids of all blocks after the moves.
using block_renamer = function_ref<void(std::span<const block_pair> moves, std::span<const block_id> names)>;

}  // namespace pagedkv::detail
