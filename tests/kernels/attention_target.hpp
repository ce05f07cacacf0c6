#pragma once

#include "../support/attention_reference.hpp"
#include "attention_kernels.hpp"
#include "reference.hpp"
#include "target.hpp"

#include <pagedkv/device/attend.hpp>
#include <pagedkv/host/rows.hpp>

#include <cmath>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <vector>

namespace pagedkv::test {

/// A row's tokens that are in the blocks of an earlier row.
struct shared_tokens {
  std::size_t row = 0;
  std::int32_t count = 0;
};

/// A batch and the options of attention over it.
struct attention_case {
  std::vector<std::int32_t> lengths = {};
  std::int32_t block_size = 16;
  std::int32_t num_kv_heads = 2;
  std::int32_t group_size = 1;
  std::int32_t head_dim = 64;
  std::vector<std::int32_t> queries = {};  // of each row; empty: one each
  std::int32_t split_tokens = 0;
  std::int32_t num_shares = 0;  // 0: the device's
  std::int32_t gap = 0;         // numbers between rows of queries
  float magnitude = 1;
  float scale = 0;
  float soft_cap = 0;
  std::int32_t window = 0;
  bool alibi = false;
  bool sinks = false;
  std::int32_t value_dim = 0;  // 0: as long as keys
  bool latent = false;
  bool tree = false;     // random tree masks
  bool prefill = false;  // plan chunks of prompts
  std::vector<shared_tokens> shared = {};  // of each row; if not empty, plans may share prefixes
  std::int32_t grown = 0;                  // tokens of each row since the plan was made; their blocks are older
  bool far = false;                        // blocks have ids up to 70,000, and lie within 4.6 GB
  bool graph = true;                       // launch what reads shared prefixes even if the plan has none
  listed_blocks lists = listed_blocks::none;
  std::vector<std::int32_t> listed = {};  // entries of each list of each row, which are random
  bool captured_for_one = false;          // the call knows only of one query a row
  bool captured_for_first_row = false;    // the call knows only of the first row
  bool expands = false;                   // blocks of 8 bits are expanded once
  bool drops = false;                     // blocks before the window do not exist
  bool wide_tasks = false;                // tasks of long values have 128 columns on all devices like NVIDIA's
};

/// Latent vectors of 576 numbers, of which the first 512 are the values.
[[nodiscard]] inline attention_case latent_case() {
  auto asked = attention_case{};
  asked.num_kv_heads = 1;
  asked.latent = true;
  asked.head_dim = 576;
  asked.value_dim = 512;
  return asked;
}

/// The matrix instructions of a device.
[[nodiscard]] inline runtime::matrix_instructions matrices_of(int device) {
  auto properties = runtime::device_properties{};
  REQUIRE(runtime::get_device_properties(&properties, device) == runtime::success);
  return properties.matrices;
}

/// A real device, or the executor's that has matrix instructions with the shapes of NVIDIA's.
[[nodiscard]] inline int tested_device() { return hip_target<1>::why_absent().empty() ? 1 : 0; }

/// A copy of a few blocks, with ids up to 70,000 and 64 KiB apart. On the executor, memory costs what is touched.
template <class Target>
class far_blocks {
 public:
  far_blocks(const Target& target, const block_storage_view& near) : target_(target), view_(near) {
    view_.block_stride = 64 << 10;
    view_.layer_stride = near.layer_bytes();
    view_.num_blocks = 70'001;
    view_.base = static_cast<std::byte*>(target.allocate(static_cast<std::size_t>(view_.num_blocks) << 16));
    for (auto layer = 0; layer < near.num_layers; ++layer) {
      for (auto block = 0; block < near.num_blocks; ++block) {
        const auto id = static_cast<std::int64_t>(id_of(block_id{block}));
        target.upload(view_.base + id * view_.block_stride + layer * view_.layer_stride, near.block(layer, block),
                      static_cast<std::size_t>(near.layer_bytes()));
      }
    }
  }
  far_blocks(const far_blocks&) = delete;
  far_blocks& operator=(const far_blocks&) = delete;
  ~far_blocks() { target_.release(view_.base); }

  [[nodiscard]] const block_storage_view& view() const { return view_; }
  [[nodiscard]] block_id id_of(block_id near) const {
    return block_id{view_.num_blocks - 1 - static_cast<std::int32_t>(near)};
  }

 private:
  const Target& target_;
  block_storage_view view_;
};

/// Sequences in blocks in random order. Every slot without a token holds bytes of all ones: NaN where the element has
/// one.
template <class Element, class Layout, class Input>
class attention_batch_under_test {
 public:
  using number = typename Input::storage;

  static constexpr std::int32_t layer = 1;
  static constexpr std::int32_t num_layers = 2;

  attention_batch_under_test(const attention_case& asked, std::uint32_t seed) : asked_(asked), random_(seed) {
    for (const auto length : asked.lengths) {
      const auto blocks = (length + asked.block_size - 1) / asked.block_size;
      indptr_.push_back(indptr_.back() + blocks);
      last_block_len_.push_back(length == 0 ? 0 : (length - 1) % asked.block_size + 1);
      query_indptr_.push_back(query_indptr_.back() + num_queries(query_indptr_.size() - 1));
    }
    make_blocks();
    make_lists();
    drop_blocks();
    fill_queries();
    for (auto head = 0; head < num_heads(); ++head) {
      slopes_.push_back(std::exp2(-8.0F * static_cast<float>(head + 1) / static_cast<float>(num_heads())));
      sinks_.push_back(static_cast<float>(head % 5) - 2.0F);
    }
    for (auto query = 0; query < (asked.tree ? num_query_tokens() : 0); ++query) {
      tree_masks_.push_back(static_cast<std::uint32_t>(random_()));
    }
  }

  [[nodiscard]] std::int32_t num_heads() const { return asked_.num_kv_heads * asked_.group_size; }
  [[nodiscard]] std::int32_t num_query_tokens() const { return query_indptr_.back(); }
  [[nodiscard]] std::int32_t num_queries(std::size_t row) const {
    return asked_.queries.empty() ? 1 : asked_.queries[row];
  }
  [[nodiscard]] std::int32_t value_dim() const { return plan_.view.dim_of_values(); }
  [[nodiscard]] std::int64_t head_stride() const { return asked_.head_dim + asked_.gap; }
  [[nodiscard]] std::int64_t token_stride() const { return head_stride() * num_heads() + asked_.gap; }
  // Those of outputs are different, and as well aligned.
  [[nodiscard]] std::int64_t output_head_stride() const { return value_dim() + asked_.gap + 16; }
  [[nodiscard]] std::int64_t output_token_stride() const { return output_head_stride() * num_heads() + asked_.gap + 16; }
  [[nodiscard]] std::vector<block_id>& indices() { return indices_; }
  [[nodiscard]] block_storage_view view() { return at(plan_.view, storage_.data()); }

  [[nodiscard]] attention_batch host_batch() const {
    auto batch = attention_batch{indptr_, indices_, last_block_len_, {}};
    if (!asked_.queries.empty()) {
      batch.query_indptr = query_indptr_;
    }
    batch.lists = {asked_.lists, list_indptr_, entries_};
    return batch;
  }

  /// One row as a batch.
  [[nodiscard]] attention_batch host_batch_of(std::size_t row) const {
    auto batch = host_batch();
    batch.indptr = batch.indptr.subspan(row, 2);
    batch.last_block_len = batch.last_block_len.subspan(row, 1);
    batch.query_indptr = std::span(query_indptr_).subspan(row, 2);
    batch.lists.indptr = asked_.lists == listed_blocks::none ? batch.lists.indptr : batch.lists.indptr.subspan(row, 2);
    return batch;
  }

  [[nodiscard]] attention_options options(const float* slopes, const float* sinks) const {
    auto options = attention_options{};
    options.scale = asked_.scale;
    options.soft_cap = asked_.soft_cap;
    options.window = asked_.window;
    options.alibi_slopes = asked_.alibi ? slopes : nullptr;
    options.sinks = asked_.sinks ? sinks : nullptr;
    return options;
  }

  struct answer {
    std::vector<double> output;  // [token][head][dim]
    std::vector<double> log_sum_exp;
  };

  /// The result of the target, for all rows or for one alone.
  template <class Target>
  [[nodiscard]] answer run(const Target& target, int device, std::optional<std::size_t> alone = {}) {
    auto shape = hip::attention_shape_on<Element>(
                     device, view(), asked_.group_size,
                     {num_rows(), most_queries(), asked_.prefill ? num_query_tokens() : 0, asked_.tree,
                      !asked_.shared.empty(), asked_.lists, asked_.window, asked_.expands ? indptr_.back() + 2 : 0})
                     .value();
    expanded_blocks_ = shape.expanded_blocks;
    if (asked_.wide_tasks && matrices_of(device) == runtime::matrix_instructions::mma) {
      shape.columns = shape.kernel == kernel_kind::groups ? 128 : shape.columns;
      shape.prefix_columns = shape.prefix_columns > 0 ? 128 : 0;
    }
    shape.split_tokens = asked_.split_tokens;
    shape.num_shares = asked_.num_shares > 0 ? asked_.num_shares : shape.num_shares;
    shape.prefix_costs = {.tile = 4, .launch = 4};  // small batches share prefixes
    shape.max_partials = asked_.split_tokens > 0 ? (shape.shares_tasks() ? 128 : 4096) : 0;
    auto planner = attention_planner(shape);
    auto batch = alone.has_value() ? host_batch_of(*alone) : host_batch();
    auto ended_earlier = std::vector(batch.last_block_len.begin(), batch.last_block_len.end());
    for (auto& length : ended_earlier) {
      length -= asked_.grown;
    }
    auto earlier = batch;
    earlier.last_block_len = ended_earlier;
    planner.plan(earlier).value();
    planner.update(batch).value();
    num_prefixes_ = planner.num_prefixes();

    const auto words = target_array<std::byte, Target>(target, {planner.bytes().begin(), planner.bytes().end()});
    const auto workspace = target_array<std::byte, Target>(
        target, std::vector(attention_workspace_bytes(shape, value_dim()), std::byte{0xff}));
    const auto storage = target_array<std::byte, Target>(target, storage_);
    const auto scales = target_scales<Element, Target>(target, group_);
    auto stored = scales.in(at(plan_.view, storage.data()));
    auto ids = indices_;
    auto far = std::optional<far_blocks<Target>>{};
    if (asked_.far) {
      stored = scales.in(far.emplace(target, view()).view());
      std::ranges::transform(ids, ids.begin(), [&](block_id id) { return far->id_of(id); });
    }
    const auto indices = target_array<block_id, Target>(target, ids);
    const auto queries = target_array<number, Target>(target, queries_);
    const auto untouched =
        std::vector<number>(static_cast<std::size_t>(num_query_tokens() * output_token_stride()), canary());
    const auto output = target_array<number, Target>(target, untouched);
    const auto rows = static_cast<std::size_t>(num_query_tokens() * num_heads());
    const auto log_sum_exp = target_array<float, Target>(target, std::vector<float>(rows, -12352.0F));
    const auto slopes = target_array<float, Target>(target, slopes_);
    const auto sinks = target_array<float, Target>(target, sinks_);
    const auto masks = target_array<std::uint32_t, Target>(target, tree_masks_);

    if (asked_.captured_for_first_row) {
      batch = host_batch_of(0);
    }
    batch.indices = {indices.data(), indices.size()};
    batch.plan = {shape, words.data(), workspace.data(), asked_.graph || num_prefixes_ > 0};
    batch.tree_masks = {masks.data(), tree_masks_.size()};
    const auto entries = target_array<std::int32_t, Target>(target, entries_);
    batch.lists.blocks = {entries.data(), entries_.size()};
    batch.query_indptr = asked_.captured_for_one ? std::span<const std::int32_t>{} : batch.query_indptr;
    const auto from = token_rows<const number>{queries.data(),     token_stride(), head_stride(),
                                               num_query_tokens(), num_heads(),    stored.head_dim};
    const auto to = attention_output<number>{{output.data(), output_token_stride(), output_head_stride(),
                                              num_query_tokens(), num_heads(), stored.dim_of_values()},
                                             log_sum_exp.data()};
    auto backend = target.backend;
    backend
        .template attend<Element, Input>(stored, layer, batch, from, to, options(slopes.data(), sinks.data()),
                                         target.stream())
        .value();
    backend.synchronize(target.stream()).value();
    return collect(output.values(), log_sum_exp.values());
  }

  /// The same in float64.
  [[nodiscard]] answer expected() {
    auto all = answer{};
    for (auto row = std::size_t{0}; row < asked_.lengths.size(); ++row) {
      auto problem = attention_problem{};
      problem.num_queries = num_queries(row);
      problem.num_heads = num_heads();
      for (auto head = 0; asked_.lists != listed_blocks::none && head < asked_.num_kv_heads; ++head) {
        const auto each = static_cast<std::size_t>(asked_.listed[row]);
        const auto own = asked_.lists == listed_blocks::of_heads ? static_cast<std::size_t>(head) * each : 0;
        problem.listed.push_back(tokens_of_entries(
            std::span(entries_).subspan(static_cast<std::size_t>(list_indptr_[row]) + own, each), asked_.block_size));
      }
      read_blocks<Element>(problem, view(), layer, std::span(indices_).subspan(static_cast<std::size_t>(indptr_[row])),
                           asked_.lengths[row]);
      for (auto i = query_indptr_[row]; i < query_indptr_[row + 1]; ++i) {
        if (asked_.tree) {
          problem.tree_masks.push_back(tree_masks_[static_cast<std::size_t>(i)]);
        }
        for (auto head = 0; head < num_heads(); ++head) {
          for (auto dim = 0; dim < asked_.head_dim; ++dim) {
            const auto at_number = static_cast<std::size_t>(i * token_stride() + head * head_stride() + dim);
            problem.queries.push_back(double{Input::decode(queries_[at_number], 1.0F)});
          }
        }
      }
      const auto answered = reference_attention(problem, options(slopes_.data(), sinks_.data()));
      all.output.insert(all.output.end(), answered.output.begin(), answered.output.end());
      all.log_sum_exp.insert(all.log_sum_exp.end(), answered.log_sum_exp.begin(), answered.log_sum_exp.end());
    }
    return all;
  }

  /// The outputs of a row, and after them its log-sum-exps.
  [[nodiscard]] std::vector<double> numbers_of_row(const answer& of, std::size_t row) const {
    auto numbers = std::vector<double>{};
    const auto add = [&](const std::vector<double>& all, std::int32_t each) {
      const auto first = all.begin() + query_indptr_[row] * num_heads() * each;
      numbers.insert(numbers.end(), first, first + num_queries(row) * num_heads() * each);
    };
    add(of.output, value_dim());
    add(of.log_sum_exp, 1);
    return numbers;
  }

  /// Shared prefixes of the last plan.
  [[nodiscard]] std::size_t num_prefixes() const { return num_prefixes_; }
  /// Blocks that the last plan had room for.
  [[nodiscard]] std::int32_t expanded_blocks() const { return expanded_blocks_; }

  [[nodiscard]] static number canary() { return Input::encode(-12352.0F, 1.0F); }

 private:
  [[nodiscard]] std::int32_t num_rows() const { return static_cast<std::int32_t>(asked_.lengths.size()); }
  [[nodiscard]] std::int32_t most_queries() const {
    return asked_.queries.empty() ? 1 : *std::max_element(asked_.queries.begin(), asked_.queries.end());
  }

  /// Tokens of whole blocks that an earlier row has written.
  [[nodiscard]] std::int32_t num_shared(std::size_t row) const {
    return row < asked_.shared.size() ? asked_.shared[row].count / asked_.block_size * asked_.block_size : 0;
  }

  void make_blocks() {
    const auto num_blocks = indptr_.back() + 3;
    group_.kind = asked_.latent ? group_kind::latent : group_kind::full;
    group_.num_layers = num_layers;
    group_.num_kv_heads = asked_.num_kv_heads;
    group_.key_dim = asked_.head_dim;
    group_.value_dim = asked_.value_dim == 0 ? asked_.head_dim : asked_.value_dim;
    scales_ = static_scales<Element>(group_);
    group_.scales = scales_.data();
    plan_ = plan_storage<Layout>(group_, asked_.block_size, num_blocks, size_of_element<Element>).value();
    storage_.assign(static_cast<std::size_t>(plan_.bytes), std::byte{0xff});
    auto blocks = std::vector<std::int32_t>(static_cast<std::size_t>(num_blocks));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), random_);
    for (auto i = 0; i < indptr_.back(); ++i) {
      indices_.push_back(block_id{blocks[static_cast<std::size_t>(i)]});
    }
    for (auto row = std::size_t{0}; row < asked_.shared.size(); ++row) {
      const auto from = indices_.begin() + indptr_[asked_.shared[row].row];
      std::copy_n(from, num_shared(row) / asked_.block_size, indices_.begin() + indptr_[row]);
    }
    auto key = std::vector<float>(static_cast<std::size_t>(asked_.num_kv_heads * asked_.head_dim));
    auto value = std::vector<float>(static_cast<std::size_t>(asked_.num_kv_heads * value_dim()));
    for (auto row = std::size_t{0}; row < asked_.lengths.size(); ++row) {
      for (auto token = num_shared(row); token < asked_.lengths[row]; ++token) {
        draw_numbers(key, asked_.magnitude, random_);
        draw_numbers(value, asked_.magnitude, random_);
        const auto block = indices_[static_cast<std::size_t>(indptr_[row] + token / asked_.block_size)];
        const auto slots =
            std::vector{slot{static_cast<std::int64_t>(block) * asked_.block_size + token % asked_.block_size}};
        host::append<Element>(view(), layer, slots,
                              {key.data(), 0, asked_.head_dim, 1, asked_.num_kv_heads, asked_.head_dim},
                              {value.data(), 0, value_dim(), 1, asked_.num_kv_heads, value_dim()})
            .value();
      }
    }
  }

  void make_lists() {
    for (auto row = std::size_t{0}; row < asked_.listed.size(); ++row) {
      const auto num_blocks = indptr_[row + 1] - indptr_[row];
      const auto num_lists = asked_.lists == listed_blocks::of_heads ? asked_.num_kv_heads : 1;
      const auto added = random_entries(num_blocks, num_lists * asked_.listed[row], random_);
      entries_.insert(entries_.end(), added.begin(), added.end());
      list_indptr_.push_back(static_cast<std::int32_t>(entries_.size()));
      remove_unlisted(
          std::span(indices_).subspan(static_cast<std::size_t>(indptr_[row]), static_cast<std::size_t>(num_blocks)),
          added);
    }
  }

  void drop_blocks() {
    for (auto row = std::size_t{0}; asked_.drops && row < asked_.lengths.size(); ++row) {
      const auto first = asked_.lengths[row] - num_queries(row) - asked_.window + 1;
      std::fill_n(indices_.begin() + indptr_[row], std::max(first, 0) / asked_.block_size, no_block);
    }
  }

  void fill_queries() {
    queries_.assign(static_cast<std::size_t>(num_query_tokens() * token_stride()), canary());
    auto numbers = std::vector<float>(static_cast<std::size_t>(asked_.head_dim));
    for (auto i = 0; i < num_query_tokens(); ++i) {
      for (auto head = 0; head < num_heads(); ++head) {
        draw_numbers(numbers, asked_.magnitude, random_);
        const auto first = static_cast<std::size_t>(i * token_stride() + head * head_stride());
        encode_row<Input>(numbers, std::span(queries_).subspan(first, numbers.size()));
      }
    }
  }

  [[nodiscard]] answer collect(const std::vector<number>& output, const std::vector<float>& log_sum_exp) const {
    auto all = answer{};
    auto num_written_gaps = 0;
    for (auto i = 0; i < num_query_tokens(); ++i) {
      for (auto head = 0; head < num_heads(); ++head) {
        const auto start = static_cast<std::size_t>(i * output_token_stride() + head * output_head_stride());
        for (auto dim = std::size_t{0}; dim < static_cast<std::size_t>(value_dim()); ++dim) {
          all.output.push_back(double{Input::decode(output[start + dim], 1.0F)});
        }
        for (auto dim = static_cast<std::size_t>(value_dim()); dim < static_cast<std::size_t>(output_head_stride());
             ++dim) {
          num_written_gaps += output[start + dim] == canary() ? 0 : 1;
        }
      }
    }
    CHECK(num_written_gaps == 0);
    all.log_sum_exp.assign(log_sum_exp.begin(), log_sum_exp.end());
    return all;
  }

  attention_case asked_;
  std::mt19937 random_;
  std::vector<std::int32_t> indptr_ = {0};
  std::vector<std::int32_t> query_indptr_ = {0};
  std::vector<std::int32_t> last_block_len_;
  std::vector<block_id> indices_;
  group_config group_ = {};
  static_scales<Element> scales_;
  storage_plan plan_;
  std::vector<std::byte> storage_;
  std::vector<number> queries_;
  std::vector<float> slopes_;
  std::vector<float> sinks_;
  std::vector<std::uint32_t> tree_masks_;
  std::vector<std::int32_t> list_indptr_ = {0};
  std::vector<std::int32_t> entries_;
  std::size_t num_prefixes_ = 0;
  std::int32_t expanded_blocks_ = 0;
};

/// Runs a case on a device and compares every row of numbers and every log-sum-exp with float64. Returns the number of
/// shared prefixes.
template <class Element, class Layout, class Input, int Device>
std::size_t check_attention(const attention_case& asked, std::uint32_t seed) {
  const auto target = require_target<hip_target<Device>>();
  auto batch = attention_batch_under_test<Element, Layout, Input>(asked, seed);
  const auto expected = batch.expected();
  const auto got = batch.run(target, Device);
  REQUIRE(got.output.size() == expected.output.size());
  const auto tolerance = std::max(attention_tolerance<Element>, attention_tolerance<Input>);
  const auto dim = static_cast<std::size_t>(batch.value_dim());
  for (auto row = std::size_t{0}; row < expected.log_sum_exp.size(); ++row) {
    const auto reference = std::span(expected.output).subspan(row * dim, dim);
    const auto error = relative_error(reference, [&](std::size_t i) { return got.output[row * dim + i]; });
    INFO("row " << row << ", seed " << seed << ", " << Element::name << " of " << Input::name << ", dim " << dim
                << ", group " << asked.group_size << ", block " << asked.block_size << ", device " << Device);
    CHECK(error <= tolerance);
    const auto difference = expected.log_sum_exp[row] == got.log_sum_exp[row]
                                ? 0.0
                                : std::abs(expected.log_sum_exp[row] - got.log_sum_exp[row]);
    CHECK(difference <= tolerance * std::max(1.0, std::abs(expected.log_sum_exp[row])));
  }
  return batch.num_prefixes();
}

/// Checks on `tested_device()`. `Layout`: on the executor.
template <class Element, class Input, class Layout = hnd_by_block>
std::size_t check_on_tested_device(const attention_case& asked, std::uint32_t seed) {
  return tested_device() == 1 ? check_attention<Element, hnd_by_block, Input, 1>(asked, seed)
                              : check_attention<Element, Layout, Input, 0>(asked, seed);
}

/// Runs a case with both orders of dimensions, and on each device that there is: the executor's have matrix
/// instructions of every kind.
template <class Element, class Input>
void check_on_every_device(const attention_case& asked, std::uint32_t seed) {
  check_attention<Element, nhd_by_layer, Input, 0>(asked, seed);
  if (!hip_target<1>::why_absent().empty()) {
    check_attention<Element, hnd_by_block, Input, 0>(asked, seed);
    return;
  }
  check_attention<Element, hnd_by_block, Input, 1>(asked, seed);
  if (hip_target<2>::why_absent().empty()) {
    check_attention<Element, hnd_by_block, Input, 2>(asked, seed);
  }
}

}  // namespace pagedkv::test
