#include "../../../examples/support/trace.hpp"
#include "../../support/best_of.hpp"

#include <pagedkv/pagedkv.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iostream>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

// The work of workload.py: pagedkv_manager TRACE NUM_REQUESTS prints JSON.

namespace {

using namespace pagedkv;
using clock_type = std::chrono::steady_clock;
using nlohmann::json;

constexpr auto trace_block = std::int64_t{512};
constexpr auto num_token_values = std::int64_t{1'000'003};
constexpr auto max_steps = std::uint32_t{32};
constexpr auto long_prompt = std::int64_t{131'072};
constexpr auto num_rows = std::size_t{1'024};
constexpr auto row_tokens = std::int64_t{8'192};
constexpr auto pool = std::int64_t{100'000};
constexpr auto chain = std::int64_t{1'000};

template <class Result>
auto taken(Result&& outcome) {
  if (!outcome) {
    throw std::runtime_error{outcome.error().message()};
  }
  if constexpr (requires { *outcome; }) {
    return *outcome;
  }
}

[[nodiscard]] kv_cache<float16> make_cache(std::int64_t block_size, std::int64_t num_blocks) {
  return kv_cache<float16>{{.block_size = static_cast<std::int32_t>(block_size),
                            .num_blocks = static_cast<std::int32_t>(num_blocks),
                            .head_dim = 1}};
}

[[nodiscard]] std::vector<token> prompt_of(const support::trace_request& request) {
  auto prompt = std::vector<token>{};
  for (const auto id : request.blocks) {
    for (std::int64_t i = 0; i < trace_block; ++i) {
      prompt.push_back(static_cast<token>((static_cast<std::int64_t>(id) * trace_block + i) % num_token_values));
    }
  }
  prompt.resize(request.num_prompt_tokens);
  return prompt;
}

[[nodiscard]] std::vector<token> chain_of(std::int64_t number, std::int64_t length) {
  auto tokens = std::vector<token>{};
  for (std::int64_t i = 0; i < length; ++i) {
    tokens.push_back(static_cast<token>((number * 7'919'001 + i * 13) % num_token_values));
  }
  return tokens;
}

[[nodiscard]] double microseconds(clock_type::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

[[nodiscard]] json serve_requests(const std::vector<support::trace_request>& requests, std::int64_t block_size) {
  auto distinct = std::set<std::uint64_t>{};
  for (const auto& request : requests) {
    distinct.insert(request.blocks.begin(), request.blocks.end());
  }
  auto cache = make_cache(block_size, static_cast<std::int64_t>(distinct.size()) * trace_block / block_size / 10);
  auto whole = clock_type::duration{};
  auto decode = clock_type::duration{};
  auto num_steps = std::int64_t{0};
  auto hits = json::array();
  for (const auto& request : requests) {
    const auto prompt = prompt_of(request);
    auto length = static_cast<std::int64_t>(prompt.size());
    const auto start = clock_type::now();
    const auto made = taken(cache.create_sequence(prompt));
    taken(cache.commit(made.id, length));
    const auto middle = clock_type::now();
    for (auto step = std::uint32_t{0}; step < std::min(max_steps, request.num_output_tokens); ++step, ++num_steps) {
      taken(cache.append(made.id, static_cast<token>(step)));
      taken(cache.commit(made.id, ++length));
    }
    const auto after = clock_type::now();
    taken(cache.release(made.id));
    whole += clock_type::now() - start;
    decode += after - middle;
    hits.push_back(made.num_cached_tokens);
  }
  return {{"request_us", microseconds(whole) / static_cast<double>(requests.size())},
          {"step_us", microseconds(decode) / static_cast<double>(num_steps)},
          {"hits", hits}};
}

void publish(kv_cache<float16>& cache, const std::vector<token>& prompt) {
  const auto id = taken(cache.create_sequence(prompt)).id;
  taken(cache.commit(id, static_cast<std::int64_t>(prompt.size())));
  taken(cache.release(id));
}

[[nodiscard]] double look_up_long_prompt(std::int64_t block_size) {
  auto cache = make_cache(block_size, 4 * long_prompt / block_size);
  const auto prompt = chain_of(1, long_prompt + 1);
  publish(cache, prompt);
  return 1e6 * bench::best_seconds(20, [&] { taken(cache.release(taken(cache.create_sequence(prompt)).id)); });
}

[[nodiscard]] double replace_blocks(std::int64_t block_size) {
  auto cache = make_cache(block_size, pool);
  auto number = std::int64_t{0};
  for (; number < pool / chain; ++number) {
    publish(cache, chain_of(number, chain * block_size));
  }
  auto prompt = std::vector<token>{};
  auto last = sequence_id{};
  const auto prepare = [&] {
    prompt = chain_of(number++, chain * block_size);
    static_cast<void>(cache.release(last));
  };
  return 1e6 * bench::best_seconds(20, prepare, [&] {
           last = taken(cache.create_sequence(prompt)).id;
           taken(cache.commit(last, chain * block_size));
         });
}

[[nodiscard]] double step_of_batch() {
  constexpr auto block_size = std::int64_t{16};
  constexpr auto longest = row_tokens + 1'024;
  auto cache = make_cache(block_size, static_cast<std::int64_t>(num_rows) * longest / block_size);
  auto ids = std::vector<sequence_id>{};
  auto lengths = std::vector<std::int64_t>{};
  for (std::size_t row = 0; row < num_rows; ++row) {
    const auto at = static_cast<std::int64_t>(row);
    lengths.push_back(row_tokens - at % block_size);
    ids.push_back(taken(cache.create_sequence(chain_of(at, lengths.back()), {.expected_tokens = longest})).id);
  }
  auto tables = padded_batch{num_rows, static_cast<std::size_t>(longest / block_size)};
  taken(cache.update(tables, ids));
  const auto next = std::vector<token>(num_rows, 7);
  auto entries = std::vector<batch_entry>(num_rows);
  auto slots = std::vector<slot>(num_rows);
  auto failures = std::vector<batch_failure>(num_rows);
  return 1e6 * bench::best_seconds(64, [&] {
           for (std::size_t row = 0; row < num_rows; ++row) {
             entries[row] = {
                 .id = ids[row], .run = std::span{next}.subspan(row, 1), .num_computed_tokens = lengths[row]++};
           }
           if (taken(cache.append_batch(entries, {.slots = slots, .failures = failures})).num_failures != 0) {
             throw std::runtime_error{"a token does not fit"};
           }
           taken(cache.update(tables, ids));
         });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: pagedkv_manager TRACE NUM_REQUESTS\n";
    return 2;
  }
  try {
    const auto requests = support::read_trace(argv[1], std::stoul(argv[2]));
    auto found = json{};
    found["batch_step"] = step_of_batch();
    for (const auto block_size : {16, 512}) {
      const auto size = std::to_string(block_size);
      found["requests_" + size] = serve_requests(requests, block_size);
      found["look_up_" + size] = look_up_long_prompt(block_size);
      found["replace_" + size] = replace_blocks(block_size);
    }
    std::cout << found << '\n';
  } catch (const std::exception& e) {
    std::cerr << "pagedkv_manager: " << e.what() << '\n';
    return 1;
  }
}
