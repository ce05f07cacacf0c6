#pragma once

#include "sampling.hpp"

#include <pagedkv/core/ids.hpp>
#include <pagedkv/sequence/batch_view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace llama {

/// Tokens in a block of a group.
template <class Cache>
[[nodiscard]] std::int32_t block_size_of(const Cache& cache, std::size_t group) {
  if constexpr (Cache::layers_differ) {
    return cache.plan().groups[group].block_size;
  } else {
    return cache.config().block_size;
  }
}

/// Adds the slots of a row's tokens: the last `count` ones in its table, so that they follow without a call of the
/// cache for each sequence.
template <class Slots>
void add_slots(const pagedkv::compressed_batch& tables, std::size_t row, std::int32_t block_size, std::int32_t count,
               Slots& slots) {
  const auto blocks = tables.indices().subspan(static_cast<std::size_t>(tables.indptr()[row]));
  const auto num_blocks = tables.indptr()[row + 1] - tables.indptr()[row];
  const auto first = (num_blocks - 1) * block_size + tables.last_block_len()[row] - count;
  auto entry = static_cast<std::size_t>(first / block_size);
  auto offset = first % block_size;
  for (auto i = std::int32_t{0}; i < count; ++i) {
    slots.push_back(static_cast<pagedkv::slot>(static_cast<std::int64_t>(blocks[entry]) * block_size + offset));
    if (++offset == block_size) {
      offset = 0;
      ++entry;
    }
  }
}

/// The tokens of one forward pass: row after row, those of each row consecutive.
struct step_tokens {
  std::vector<pagedkv::token> tokens;
  std::vector<std::int32_t> positions;     // of each token in its sequence
  std::vector<std::int32_t> starts = {0};  // [rows + 1]: where the tokens of a row start
  std::vector<std::int32_t> wanted;        // tokens whose logits are computed, ascending
  std::vector<bool> is_long;               // whether each token has the rotation of long texts; empty: none has
  std::vector<std::uint32_t> seen;  // by each token: tokens of its row's tree of drafts, a bit each; empty: no trees
  bool is_greedy = false;           // every wanted token is the most likely one

  [[nodiscard]] std::size_t num_rows() const noexcept { return starts.size() - 1; }
};

/// The K/V and the states of the rows of a step, wherever they are.
class memory {
 public:
  virtual ~memory() = default;

  /// Keeps K and V of all tokens, `[token][KV head][dim]`, then attends: each query, `[token][head][dim]`, to its row's
  /// tokens up to its own.
  virtual void attend(std::size_t layer, const float* queries, const float* keys, const float* values,
                      float* output) = 0;
  /// The state of a row in a layer, `state_sizes::numbers` long. Its contents mean nothing before the first token.
  [[nodiscard]] virtual float* state(std::size_t layer, std::size_t row) = 0;
};

/// The most that one step computes.
struct step_limits {
  std::size_t max_rows = 1;
  std::size_t max_tokens = 1;
  std::size_t max_wanted = 1;
};

/// A pass' words on the tokens behind its wanted ones: logits, or of a greedy step only the most likely tokens. Valid
/// until the model's next pass.
struct predictions {
  std::span<const float> logits;         // [wanted][width]
  std::span<const pagedkv::token> best;  // [wanted], or empty
  std::size_t width = 0;

  [[nodiscard]] bool empty() const noexcept { return logits.empty() && best.empty(); }
  /// Those of `count` wanted tokens.
  [[nodiscard]] predictions part(std::size_t first, std::size_t count) const {
    return {logits.empty() ? logits : logits.subspan(first * width, count * width),
            best.empty() ? best : best.subspan(first, count), width};
  }
  [[nodiscard]] pagedkv::token choose(std::size_t wanted, const sampling_options& options,
                                      random_numbers& random) const {
    return best.empty() ? llama::choose(logits.subspan(wanted * width, width), options, random) : best[wanted];
  }
};

}  // namespace llama
