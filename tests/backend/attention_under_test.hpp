#pragma once

#include "../support/attention_reference.hpp"
#include "host_kernels.hpp"
#include "storage_under_test.hpp"

#include <pagedkv/host/attend.hpp>
#include <pagedkv/host/rows.hpp>
#include <pagedkv/policy/element/parts/row.hpp>

#include <cmath>
#include <numeric>
#include <span>
#include <vector>

namespace pagedkv::test {

/// The start of a row that has the blocks of an earlier row.
struct shared_start {
  std::size_t row = 0;
  std::int64_t tokens = 0;  // whole blocks
};

/// The shape of a batch: the length of each row in tokens; `num_queries` queries per row, or as in `queries`.
struct batch_shape {
  std::vector<std::int64_t> lengths = {};
  std::int32_t block_size = 16;
  std::int32_t num_kv_heads = 2;
  std::int32_t group_size = 1;
  std::int32_t head_dim = 64;
  std::vector<std::int32_t> queries = {};  // of each row; empty: one each
  float magnitude = 1;                // of keys, values and queries
  std::int32_t value_dim = 0;         // 0: as long as keys
  bool latent = false;
  bool tree = false;  // random tree masks
  std::vector<shared_start> shared = {};  // of each row; empty: none
  listed_blocks lists = listed_blocks::none;
  std::vector<std::int32_t> listed = {};  // entries of each list of each row, which are random
};

/// Sequences in blocks in random order. Every slot without a token holds garbage: NaN where the element has one.
template <class Storage, class Input = float32, class Output = Input>
class attention_under_test {
 public:
  using element_type = typename Storage::element_type;

  static constexpr std::int32_t layer = 1;

  template <class Random>
  attention_under_test(const batch_shape& shape, Random& random)
      : shape_(shape), storage_(group_of(shape), shape.block_size, num_blocks_of(shape)) {
    std::fill_n(storage_.data(), storage_.size(), std::byte{0xff});
    auto blocks = std::vector<std::int32_t>(static_cast<std::size_t>(storage_.view().num_blocks));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), random);
    indptr_.push_back(0);
    query_indptr_.push_back(0);
    for (auto row = std::size_t{0}; row < shape.lengths.size(); ++row) {
      const auto length = shape.lengths[row];
      const auto shared = shape.shared.empty() ? shared_start{} : shape.shared[row];
      const auto num_shared = shared.tokens / shape.block_size;
      for (auto i = std::int64_t{0}; i < num_shared; ++i) {
        indices_.push_back(indices_[static_cast<std::size_t>(indptr_[shared.row] + i)]);
      }
      for (auto i = num_shared; i < blocks_of(shape, length); ++i) {
        indices_.push_back(block_id{blocks.back()});
        blocks.pop_back();
      }
      indptr_.push_back(static_cast<std::int32_t>(indices_.size()));
      last_block_len_.push_back(length == 0 ? 0 : static_cast<std::int32_t>((length - 1) % shape.block_size + 1));
      query_indptr_.push_back(query_indptr_.back() + (shape.queries.empty() ? 1 : shape.queries[row]));
      fill_row(row, random);
    }
    make_lists(random);
    fill_queries(random);
    for (auto query = 0; query < (shape.tree ? query_indptr_.back() : 0); ++query) {
      tree_masks_.push_back(static_cast<std::uint32_t>(random()));
    }
  }

  [[nodiscard]] const block_storage_view& view() const { return storage_.view(); }
  [[nodiscard]] std::int32_t num_heads() const { return shape_.num_kv_heads * shape_.group_size; }
  [[nodiscard]] std::vector<block_id>& indices() { return indices_; }
  [[nodiscard]] std::vector<typename Input::storage>& queries() { return queries_; }

  [[nodiscard]] attention_batch batch() const {
    auto result = attention_batch{indptr_, indices_, last_block_len_, {}};
    if (!shape_.queries.empty()) {
      result.query_indptr = query_indptr_;
    }
    result.tree_masks = tree_masks_;
    result.shares_prefixes = !shape_.shared.empty();
    result.lists = {shape_.lists, list_indptr_, entries_};
    return result;
  }
  [[nodiscard]] std::vector<std::int32_t>& entries() { return entries_; }

  /// Keys and values of one token.
  [[nodiscard]] slot slot_of(std::size_t row, std::int64_t token) const {
    const auto block = indices_[static_cast<std::size_t>(indptr_[row] + token / shape_.block_size)];
    return slot{static_cast<std::int64_t>(block) * shape_.block_size + token % shape_.block_size};
  }

  void write(std::size_t row, std::int64_t token, const std::vector<float>& key, const std::vector<float>& value) {
    const auto slots = std::vector{slot_of(row, token)};
    const auto dim = shape_.head_dim;
    host::append<element_type>(storage_.view(), layer, slots, {key.data(), 0, dim, 1, shape_.num_kv_heads, dim},
                               {value.data(), 0, value_dim(), 1, shape_.num_kv_heads, value_dim()})
        .value();
  }

  /// Attention of all rows. Rows of queries and outputs are further apart than they are long, like slices of a packed
  /// projection.
  [[nodiscard]] result<void> attend(const attention_options& options = {}, host::workers threads = {},
                                    host::instruction_set instructions = host::best_instruction_set()) {
    return attend(batch(), options, threads, instructions);
  }

  /// Attention of one row as a batch.
  [[nodiscard]] result<void> attend_alone(std::size_t row, const attention_options& options = {},
                                          host::instruction_set instructions = host::best_instruction_set()) {
    auto alone = batch();
    alone.indptr = alone.indptr.subspan(row, 2);
    alone.last_block_len = alone.last_block_len.subspan(row, 1);
    alone.query_indptr = std::span(query_indptr_).subspan(row, 2);
    alone.lists.indptr = shape_.lists == listed_blocks::none ? alone.lists.indptr : alone.lists.indptr.subspan(row, 2);
    return attend(alone, options, {}, instructions);
  }

  [[nodiscard]] float output_at(std::int64_t query, std::int64_t head, std::int64_t d) const {
    const auto index = static_cast<std::size_t>(query * output_token_stride() + head * output_head_stride() + d);
    return Output::decode(output_[index], 1.0f);
  }

  [[nodiscard]] std::vector<float> output_of_row(std::size_t row) const {
    const auto dim = static_cast<std::size_t>(value_dim());
    const auto num_rows = static_cast<std::size_t>((query_indptr_[row + 1] - query_indptr_[row]) * num_heads());
    auto numbers = std::vector<float>(num_rows * (dim + 1));
    auto rest = std::span{numbers};
    for (auto query = query_indptr_[row]; query < query_indptr_[row + 1]; ++query) {
      for (auto head = 0; head < num_heads(); ++head) {
        const auto first = query * output_token_stride() + head * output_head_stride();
        decode_row<Output>(std::span{output_}.subspan(static_cast<std::size_t>(first), dim), 1.0f, rest.first(dim));
        rest[dim] = log_sum_exp(query, head);
        rest = rest.subspan(dim + 1);
      }
    }
    return numbers;
  }

  [[nodiscard]] float log_sum_exp(std::int64_t query, std::int64_t head) const {
    return log_sum_exp_[static_cast<std::size_t>(query * num_heads() + head)];
  }

  /// Each row in float64.
  [[nodiscard]] std::vector<attention_answer> expected(const attention_options& options) const {
    auto answers = std::vector<attention_answer>{};
    for (auto row = std::size_t{0}; row < shape_.lengths.size(); ++row) {
      answers.push_back(reference_attention(problem_of(row), options));
    }
    return answers;
  }

  /// The largest relative error of all rows, of outputs and of log-sum-exps.
  [[nodiscard]] double worst_error(const std::vector<attention_answer>& expected) const {
    auto worst = 0.0;
    for (auto row = std::size_t{0}; row < shape_.lengths.size(); ++row) {
      const auto& answer = expected[row];
      const auto row_size = static_cast<std::size_t>(num_heads()) * static_cast<std::size_t>(value_dim());
      for (auto i = std::int64_t{0}; i < query_indptr_[row + 1] - query_indptr_[row]; ++i) {
        const auto query = query_indptr_[row] + i;
        // All heads in one: the terms of a single number may cancel out, and then only they say what is large.
        const auto wanted = std::span{answer.output}.subspan(static_cast<std::size_t>(i) * row_size, row_size);
        worst = worse(worst, relative_error(wanted, [&](std::size_t n) {
                        const auto at = static_cast<std::int64_t>(n);
                        return output_at(query, at / value_dim(), at % value_dim());
                      }));
        for (auto head = std::int64_t{0}; head < num_heads(); ++head) {
          const auto wanted_sum = answer.log_sum_exp[static_cast<std::size_t>(i * num_heads() + head)];
          const auto sum = double{log_sum_exp(query, head)};
          const auto difference = std::abs(sum - wanted_sum) / std::max(1.0, std::abs(wanted_sum));
          worst = worse(worst, sum == wanted_sum ? 0.0 : difference);
        }
      }
    }
    return worst;
  }

 private:
  static std::int64_t blocks_of(const batch_shape& shape, std::int64_t length) {
    return (length + shape.block_size - 1) / shape.block_size;
  }

  static group_config group_of(const batch_shape& shape) {
    auto group = group_config{};
    group.kind = shape.latent ? group_kind::latent : group_kind::full;
    group.num_layers = 2;
    group.num_kv_heads = shape.num_kv_heads;
    group.key_dim = shape.head_dim;
    group.value_dim = shape.value_dim == 0 ? shape.head_dim : shape.value_dim;
    return group;
  }

  static std::int32_t num_blocks_of(const batch_shape& shape) {
    auto num_blocks = 3;
    for (const auto length : shape.lengths) {
      num_blocks += static_cast<std::int32_t>(blocks_of(shape, length));
    }
    return num_blocks;
  }

  static double worse(double a, double b) { return std::isnan(a) || a > b ? a : b; }

  [[nodiscard]] std::int32_t value_dim() const { return storage_.view().dim_of_values(); }
  [[nodiscard]] std::int64_t head_stride() const { return shape_.head_dim + 3; }
  [[nodiscard]] std::int64_t token_stride() const { return num_heads() * head_stride() + 5; }

  // Those of queries are different.
  [[nodiscard]] std::int64_t output_head_stride() const { return value_dim() + 1; }
  [[nodiscard]] std::int64_t output_token_stride() const { return num_heads() * output_head_stride() + 11; }

  [[nodiscard]] result<void> attend(const attention_batch& batch, const attention_options& options,
                                    host::workers threads, host::instruction_set instructions) {
    output_.assign(static_cast<std::size_t>(query_indptr_.back() * output_token_stride()), typename Output::storage{});
    log_sum_exp_.assign(static_cast<std::size_t>(query_indptr_.back() * num_heads()), 7.0f);
    const auto num_queries = query_indptr_.back();
    const auto queries = token_rows<const typename Input::storage>{queries_.data(), token_stride(), head_stride(),
                                                                   num_queries,     num_heads(),    shape_.head_dim};
    const auto output = attention_output<typename Output::storage>{
        {output_.data(), output_token_stride(), output_head_stride(), num_queries, num_heads(), value_dim()},
        log_sum_exp_.data()};
    return host::attend<element_type, Input, Output>(storage_.view(), layer, batch, queries, output, options, threads,
                                                     instructions);
  }

  template <class Random>
  void fill_row(std::size_t row, Random& random) {
    const auto length = shape_.lengths[row];
    const auto heads = shape_.num_kv_heads;
    const auto dim = shape_.head_dim;
    auto slots = std::vector<slot>{};
    for (auto token = std::int64_t{0}; token < length; ++token) {
      slots.push_back(slot_of(row, token));
    }
    auto keys = std::vector<float>(static_cast<std::size_t>(length * heads * dim));
    auto values = std::vector<float>(static_cast<std::size_t>(length * heads * value_dim()));
    draw_numbers(keys, shape_.magnitude, random);
    draw_numbers(values, shape_.magnitude, random);
    host::append<element_type>(
        storage_.view(), layer, slots, {keys.data(), heads * dim, dim, length, shape_.num_kv_heads, shape_.head_dim},
        {values.data(), heads * value_dim(), value_dim(), length, shape_.num_kv_heads, value_dim()})
        .value();
  }

  template <class Random>
  void make_lists(Random& random) {
    list_indptr_.push_back(0);
    for (auto row = std::size_t{0}; row < shape_.listed.size(); ++row) {
      const auto blocks = std::span{indices_}.subspan(static_cast<std::size_t>(indptr_[row]),
                                                      static_cast<std::size_t>(indptr_[row + 1] - indptr_[row]));
      const auto num_lists = shape_.lists == listed_blocks::of_heads ? shape_.num_kv_heads : 1;
      const auto added =
          random_entries(static_cast<std::int32_t>(blocks.size()), num_lists * shape_.listed[row], random);
      entries_.insert(entries_.end(), added.begin(), added.end());
      list_indptr_.push_back(static_cast<std::int32_t>(entries_.size()));
      remove_unlisted(blocks, added);
    }
  }

  template <class Random>
  void fill_queries(Random& random) {
    auto numbers = std::vector<float>(static_cast<std::size_t>(query_indptr_.back() * token_stride()));
    draw_numbers(numbers, shape_.magnitude, random);
    queries_.resize(numbers.size());
    encode_row<Input>(numbers, queries_);
  }

  [[nodiscard]] attention_problem problem_of(std::size_t row) const {
    auto problem = attention_problem{};
    const auto first = static_cast<std::size_t>(indptr_[row]);
    const auto count = static_cast<std::size_t>(indptr_[row + 1]) - first;
    read_blocks<element_type>(problem, storage_.view(), layer, std::span{indices_}.subspan(first, count),
                              shape_.lengths[row]);
    problem.num_queries = query_indptr_[row + 1] - query_indptr_[row];
    problem.num_heads = num_heads();
    for (auto head = 0; shape_.lists != listed_blocks::none && head < shape_.num_kv_heads; ++head) {
      const auto begin = static_cast<std::size_t>(list_indptr_[row]);
      const auto num_lists = shape_.lists == listed_blocks::of_heads ? shape_.num_kv_heads : 1;
      const auto each = (static_cast<std::size_t>(list_indptr_[row + 1]) - begin) / static_cast<std::size_t>(num_lists);
      const auto own = begin + (num_lists == 1 ? 0 : static_cast<std::size_t>(head) * each);
      problem.listed.push_back(tokens_of_entries(std::span{entries_}.subspan(own, each), shape_.block_size));
    }
    for (auto query = query_indptr_[row]; shape_.tree && query < query_indptr_[row + 1]; ++query) {
      problem.tree_masks.push_back(tree_masks_[static_cast<std::size_t>(query)]);
    }
    for (auto i = std::int64_t{0}; i < problem.num_queries * num_heads(); ++i) {
      const auto query = query_indptr_[row] + i / num_heads();
      for (auto d = 0; d < shape_.head_dim; ++d) {
        const auto at = static_cast<std::size_t>(query * token_stride() + i % num_heads() * head_stride() + d);
        problem.queries.push_back(double{Input::decode(queries_[at], 1.0f)});
      }
    }
    return problem;
  }

  batch_shape shape_;
  Storage storage_;
  std::vector<std::int32_t> indptr_;
  std::vector<std::int32_t> query_indptr_;
  std::vector<block_id> indices_;
  std::vector<std::int32_t> last_block_len_;
  std::vector<std::int32_t> list_indptr_;
  std::vector<std::int32_t> entries_;
  std::vector<typename Input::storage> queries_;
  std::vector<std::uint32_t> tree_masks_;
  std::vector<typename Output::storage> output_;
  std::vector<float> log_sum_exp_;
};

}  // namespace pagedkv::test
