#include "../support/attention_reference.hpp"
#include "../support/printing.hpp"
#include "host_kernels.hpp"

#include <pagedkv/host/attend.hpp>
#include <pagedkv/host/thread_pool.hpp>
#include <pagedkv/pagedkv.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <map>
#include <random>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

constexpr auto num_kv_heads = 2;
constexpr auto group_size = 3;
constexpr auto num_heads = num_kv_heads * group_size;
constexpr auto head_dim = 64;

/// Keys, values and queries as functions of tokens and positions, like a model's.
std::vector<float> project(token t, std::size_t position, unsigned which, int heads) {
  auto random = std::mt19937{static_cast<unsigned>(t) * 7919u + static_cast<unsigned>(position) * 31u + which};
  auto number = std::uniform_real_distribution<float>{-1, 1};
  auto row = std::vector<float>(static_cast<std::size_t>(heads * head_dim));
  std::ranges::generate(row, [&] { return number(random); });
  return row;
}

/// A model's decode loop over a cache, and each sequence's tokens, which determine contiguous keys and values.
template <class Cache>
class decoder {
 public:
  decoder() : cache_({.block_size = 16, .num_blocks = 200, .num_kv_heads = num_kv_heads, .head_dim = head_dim}) {}

  sequence_id create(const std::vector<token>& prompt) {
    const auto created = cache_.create_sequence(prompt).value();
    tokens_[created.id] = prompt;
    write(created.id, created.num_cached_tokens);
    return created.id;
  }

  void append(sequence_id id, token t) {
    cache_.append(id, t).value();
    tokens_[id].push_back(t);
    write(id, static_cast<std::int64_t>(tokens_[id].size()) - 1);
  }

  sequence_id fork(sequence_id id) {
    const auto forked = cache_.fork(id).value();
    tokens_[forked] = tokens_[id];
    return forked;
  }

  /// The largest error of one query per sequence compared to contiguous attention in float64.
  double attend() {
    auto ids = std::vector<sequence_id>{};
    auto queries = std::vector<float>{};
    for (const auto& [id, tokens] : tokens_) {
      ids.push_back(id);
      const auto query = project(tokens.back(), tokens.size() - 1, 3, num_heads);
      queries.insert(queries.end(), query.begin(), query.end());
    }
    auto batch = compressed_batch(64, 200);
    cache_.update(batch, ids).value();
    auto output = std::vector<float>(queries.size());
    constexpr auto stride = std::int64_t{num_heads} * head_dim;
    REQUIRE(host_backend{}.attend<typename Cache::element_type>(
        cache_.view(), 0, {batch.indptr(), batch.indices(), batch.last_block_len(), {}},
        contiguous_rows(queries, num_heads, head_dim), {contiguous_rows(output, num_heads, head_dim)}, {},
        host_backend::stream_type{threads_}));
    auto worst = 0.0;
    for (auto row = std::size_t{0}; row < ids.size(); ++row) {
      const auto first = row * static_cast<std::size_t>(stride);
      const auto answer = contiguous(tokens_[ids[row]], {queries.data() + first, static_cast<std::size_t>(stride)});
      for (auto head = std::size_t{0}; head < num_heads; ++head) {
        const auto wanted = std::span{answer.output}.subspan(head * head_dim, head_dim);
        worst = std::max(worst, relative_error(wanted, [&](std::size_t d) {
                           return output[first + head * head_dim + d];
                         }));
      }
    }
    return worst;
  }

 private:
  void write(sequence_id id, std::int64_t first) {
    const auto& tokens = tokens_[id];
    auto slots = std::vector<slot>(tokens.size() - static_cast<std::size_t>(first));
    cache_.slot_mapping(id, first, slots).value();
    for (auto i = std::size_t{0}; i < slots.size(); ++i) {
      const auto position = static_cast<std::size_t>(first) + i;
      const auto keys = project(tokens[position], position, 1, num_kv_heads);
      const auto values = project(tokens[position], position, 2, num_kv_heads);
      const auto one = std::vector{slots[i]};
      cache_
          .write(0, one, contiguous_rows(keys, num_kv_heads, head_dim), contiguous_rows(values, num_kv_heads, head_dim))
          .value();
    }
    cache_.commit(id, static_cast<std::int64_t>(tokens.size())).value();
  }

  static attention_answer contiguous(const std::vector<token>& tokens, std::span<const float> query) {
    auto problem = attention_problem{};
    problem.num_tokens = static_cast<std::int64_t>(tokens.size());
    problem.num_heads = num_heads;
    problem.num_kv_heads = num_kv_heads;
    problem.key_dim = problem.value_dim = head_dim;
    problem.queries.assign(query.begin(), query.end());
    for (auto position = std::size_t{0}; position < tokens.size(); ++position) {
      const auto keys = project(tokens[position], position, 1, num_kv_heads);
      const auto values = project(tokens[position], position, 2, num_kv_heads);
      problem.keys.insert(problem.keys.end(), keys.begin(), keys.end());
      problem.values.insert(problem.values.end(), values.begin(), values.end());
    }
    return reference_attention(problem, {});
  }

  Cache cache_;
  std::map<sequence_id, std::vector<token>> tokens_;
  host::thread_pool threads_{2};
};

}  // namespace

TEMPLATE_TEST_CASE("a decode loop attends over blocks as over contiguous memory", "[attention][cache]", float32,
                   float16, bfloat16, int8) {
  auto decode = decoder<kv_cache<TestType>>{};
  const auto prompt = std::vector<token>(40, 7);
  const auto first = decode.create(prompt);
  const auto shares_prefix = decode.create(prompt);
  const auto forked = decode.fork(first);
  for (auto step = 0; step < 20; ++step) {
    decode.append(first, step);
    decode.append(shares_prefix, step % 3);
    decode.append(forked, 100 + step);
    CHECK(decode.attend() <= attention_tolerance<TestType>);
  }
}
