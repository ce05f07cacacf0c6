#include "../support/tokens.hpp"

#include <pagedkv/router/keys.hpp>
#include <pagedkv/router/llm_d_keys.hpp>

#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>
#include <pagedkv/pagedkv.hpp>

#include <xxhash.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace pagedkv;
using pagedkv::test::numbered;

static_assert(!block_keys<int> && !adapter_keys<cache_keys>);

std::uint64_t fnv_1a(const std::vector<std::uint8_t>& bytes) {
  auto hash = std::uint64_t{14695981039346656037U};
  for (const auto byte : bytes) {
    hash ^= byte;
    hash *= 1099511628211U;
  }
  return hash;
}

/// As llm-d defines them, with a general encoder of CBOR.
std::vector<std::uint64_t> llm_d_by_definition(const std::string& seed, const std::string& model,
                                               const std::vector<std::vector<std::uint32_t>>& blocks) {
  using nlohmann::json;
  auto parent = fnv_1a({seed.begin(), seed.end()});
  parent = fnv_1a(json::to_cbor(json::array({parent, nullptr, model})));
  auto keys = std::vector<std::uint64_t>{};
  for (const auto& block : blocks) {
    parent = fnv_1a(json::to_cbor(json::array({parent, block, nullptr})));
    keys.push_back(parent);
  }
  return keys;
}

TEST_CASE("llm-d's keys are FNV-1a over canonical CBOR", "[router]") {
  // Numbers on both sides of every length that CBOR distinguishes.
  const auto blocks = std::vector<std::vector<std::uint32_t>>{
      {0, 1, 23, 24}, {255, 256, 65'535, 65'536}, {128'255, 2'147'483'647, 2'147'483'648U, 4'294'967'295U}};
  auto prompt = std::vector<token>{};
  for (const auto& block : blocks) {
    prompt.insert(prompt.end(), block.begin(), block.end());
  }
  auto keys = std::array<std::uint64_t, 3>{};
  for (const auto* seed : {"", "42"}) {
    for (const auto* model : {"m", "meta-llama/Llama-3.1-8B-Instruct-Turbo"}) {
      REQUIRE(prompt_keys(llm_d_keys{model, seed}, prompt, 4, keys) == 3);
      CHECK(std::vector(keys.begin(), keys.end()) == llm_d_by_definition(seed, model, blocks));
    }
  }
}

TEST_CASE("llm-d's keys of an adapter are those of a model with its name", "[router]") {
  const auto prompt = numbered(4, 1'000);
  const auto block = std::vector<std::uint32_t>(prompt.begin(), prompt.end());
  for (const auto* seed : {"", "42"}) {
    const auto keys = llm_d_keys{"model", seed};
    CHECK(keys.with_adapter("sql").first(prompt) == llm_d_by_definition(seed, "sql", {block})[0]);
    CHECK(keys.first(prompt) == llm_d_by_definition(seed, "model", {block})[0]);
  }
}

TEST_CASE("llm-d's keys of blocks of any size", "[router]") {
  for (const auto block_size : {1U, 23U, 24U, 64U, 255U, 256U, 300U}) {
    const auto prompt = numbered(block_size, 1'000);
    auto key = std::array<std::uint64_t, 1>{};
    REQUIRE(prompt_keys(llm_d_keys{"model"}, prompt, block_size, key) == 1);
    CHECK(key[0] == llm_d_by_definition("", "model", {{prompt.begin(), prompt.end()}})[0]);
  }
}

/// Little-endian, as the definitions say, whatever this machine is.
template <class Number>
void put(std::vector<std::uint8_t>& bytes, Number value) {
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    bytes.push_back(static_cast<std::uint8_t>(value >> 8 * i));
  }
}

TEST_CASE("Dynamo's keys are chained XXH3 with its seed", "[router]") {
  const auto prompt = numbered(50, 7);
  for (const auto* adapter : {"", "sql"}) {
    const auto name = std::string{adapter};
    const auto token_seed = 1337 + (name.empty() ? 0 : XXH3_64bits(name.data(), name.size()));
    auto expected = std::vector<std::uint64_t>{};
    for (std::size_t i = 0; i < 3; ++i) {
      auto bytes = std::vector<std::uint8_t>{};
      for (std::size_t j = 0; j < 16; ++j) {
        put(bytes, static_cast<std::uint32_t>(prompt[16 * i + j]));
      }
      const auto own = XXH3_64bits_withSeed(bytes.data(), bytes.size(), token_seed);
      auto pair = std::vector<std::uint8_t>{};
      put(pair, i == 0 ? 0 : expected.back());
      put(pair, own);
      expected.push_back(i == 0 ? own : XXH3_64bits_withSeed(pair.data(), pair.size(), 1337));
    }
    auto keys = std::vector<std::uint64_t>(8);
    keys.resize(prompt_keys(dynamo_keys{name}, prompt, 16, keys));  // the last two tokens fill no block
    CHECK(keys == expected);
  }
}

TEST_CASE("the keys of caches are the hashes of their events", "[router]") {
  auto config = cache_config{};
  config.block_size = 16;
  config.num_blocks = 8;
  config.head_dim = 1;
  config.hash_seed = 99;
  const auto cache = kv_cache<>{config};
  const auto prompt = numbered(50);
  for (const auto tenant : {salt::none, make_salt(3, 4)}) {
    auto expected = std::array<std::uint64_t, 3>{};
    auto keys = expected;
    REQUIRE(cache.hash_blocks(prompt, expected, tenant) == 3);
    REQUIRE(prompt_keys(cache_keys{config.hash_seed, tenant}, prompt, 16, keys) == 3);
    CHECK(keys == expected);
  }
}

TEST_CASE("no more keys are written than there is room for", "[router]") {
  auto keys = std::array<std::uint64_t, 3>{};
  const auto room = std::span(keys).first(2);
  CHECK(prompt_keys(dynamo_keys{}, numbered(15), 16, room) == 0);
  CHECK(keys[0] == 0);
  CHECK(prompt_keys(dynamo_keys{}, numbered(100), 16, room) == 2);
  CHECK(keys[1] != 0);
  CHECK(keys[2] == 0);
}

}  // namespace
