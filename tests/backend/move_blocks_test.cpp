#include "../support/allocation_failure.hpp"
#include "../support/first_difference.hpp"
#include "../support/messages.hpp"
#include "../support/printing.hpp"
#include "storage_under_test.hpp"

#include <pagedkv/core/ids.hpp>
#include <pagedkv/host/backend.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

constexpr auto default_stream = host_backend::stream_type{};

using contents = std::vector<std::byte>;

/// All layers of one block, read through the view's strides.
template <class Storage>
contents block_of(const Storage& storage, std::int32_t block) {
  const auto& view = storage.view();
  auto bytes = contents{};
  for (auto layer = 0; layer < view.num_layers; ++layer) {
    const auto* const start = view.block(layer, block);
    bytes.insert(bytes.end(), start, start + view.layer_bytes());
  }
  return bytes;
}

template <class Storage>
std::vector<contents> blocks_of(const Storage& storage) {
  auto blocks = std::vector<contents>{};
  for (auto block = 0; block < storage.view().num_blocks; ++block) {
    blocks.push_back(block_of(storage, block));
  }
  return blocks;
}

template <class Storage, class Random>
void fill(Storage& storage, Random& random) {
  std::generate_n(storage.data(), storage.size(), [&] { return static_cast<std::byte>(random() & 0xff); });
}

/// Every pair as if all sources were read first.
std::vector<contents> moved(const std::vector<contents>& blocks, const std::vector<block_pair>& pairs) {
  auto result = blocks;
  for (const auto& [source, destination] : pairs) {
    result[static_cast<std::size_t>(destination)] = blocks[static_cast<std::size_t>(source)];
  }
  return result;
}

cache_config blocks_config(std::int32_t num_blocks) {
  auto config = small_config(5);
  config.num_blocks = num_blocks;
  config.num_kv_heads = 1;
  config.head_dim = 7;
  return config;
}

}  // namespace

TEMPLATE_TEST_CASE("copied blocks are equal in every layer, scales included", "[backend]", in_nhd_layer_major<int8>,
                   in_nhd_block_major<int8>, in_hnd_layer_major<float16>, in_hnd_block_major<float32>) {
  auto random = std::mt19937{5};
  auto storage = TestType{small_config(5)};
  fill(storage, random);
  const auto before = blocks_of(storage);
  const auto pairs = std::vector<block_pair>{{0, 6}, {0, 3}, {5, 1}};
  REQUIRE(host_backend{}.copy_blocks(storage.view(), pairs, default_stream));
  CHECK(blocks_of(storage) == moved(before, pairs));
  REQUIRE(host_backend{}.copy_blocks(storage.view(), {}, default_stream));
  CHECK(blocks_of(storage) == moved(before, pairs));
  CHECK(host_backend{}.synchronize(default_stream));
}

TEMPLATE_TEST_CASE("moves behave as if all blocks were read first", "[backend]", in_nhd_layer_major<int8>,
                   in_nhd_block_major<int8>) {
  const std::vector<block_pair> cases[] = {
      {},
      {{2, 2}},                                                  // itself
      {{1, 0}, {2, 1}, {3, 2}, {4, 3}},                          // a chain, in the order that works
      {{4, 3}, {3, 2}, {2, 1}, {1, 0}},                          // and in the one that does not
      {{0, 1}, {1, 0}},                                          // a swap
      {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}, {6, 0}},  // one cycle of everything
      {{0, 1}, {1, 0}, {2, 3}, {3, 4}, {4, 2}, {5, 5}},          // disjoint cycles
      {{0, 1}, {1, 2}, {2, 0}, {1, 3}, {3, 4}, {0, 5}},          // branches that leave a cycle
      {{6, 0}, {6, 1}, {6, 2}, {0, 6}},                          // one source for several
  };
  for (const auto& pairs : cases) {
    auto random = std::mt19937{6};
    auto storage = TestType{small_config(5)};
    fill(storage, random);
    const auto before = blocks_of(storage);
    REQUIRE(host_backend{}.move_blocks(storage.view(), pairs, default_stream));
    CHECK(blocks_of(storage) == moved(before, pairs));
  }
}

TEMPLATE_TEST_CASE("random moves behave as if all blocks were read first", "[backend][random]",
                   in_nhd_layer_major<int8>, in_nhd_block_major<int8>) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  for (auto round = 0; round < 300; ++round) {
    const auto num_blocks = 1 + static_cast<std::int32_t>(random() % 24);
    auto storage = TestType{blocks_config(num_blocks)};
    fill(storage, random);
    auto destinations = std::vector<std::int32_t>(static_cast<std::size_t>(num_blocks));
    std::iota(destinations.begin(), destinations.end(), 0);
    auto sources = destinations;
    std::shuffle(destinations.begin(), destinations.end(), random);
    std::shuffle(sources.begin(), sources.end(), random);
    auto pairs = std::vector<block_pair>{};
    const auto count = random() % (static_cast<std::size_t>(num_blocks) + 1);
    for (auto i = std::size_t{0}; i < count; ++i) {
      const auto fan_out = round % 2 == 0 && random() % 4 == 0;
      pairs.push_back({fan_out ? sources[random() % sources.size()] : sources[i], destinations[i]});
    }
    const auto before = blocks_of(storage);
    CAPTURE(round, num_blocks, count);
    REQUIRE(host_backend{}.move_blocks(storage.view(), pairs, default_stream));
    REQUIRE(blocks_of(storage) == moved(before, pairs));
  }
}

TEST_CASE("bad pairs are refused by name before anything is written", "[backend]") {
  auto random = std::mt19937{7};
  auto storage = in_hnd_block_major<int8>{small_config(5)};
  fill(storage, random);
  const auto before = storage.bytes();
  struct bad_call {
    block_pair pair;
    const char* subject;
    std::int64_t value;
  };
  constexpr auto lowest = std::numeric_limits<std::int32_t>::min();
  const bad_call calls[] = {{{7, 0}, "source block", 7},
                            {{-1, 0}, "source block", -1},
                            {{0, 7}, "destination block", 7},
                            {{0, lowest}, "destination block", lowest}};
  for (const auto& [pair, subject, value] : calls) {
    const auto pairs = std::vector<block_pair>{{1, 2}, pair};
    for (const auto& outcome : {host_backend{}.copy_blocks(storage.view(), pairs, default_stream),
                                host_backend{}.move_blocks(storage.view(), pairs, default_stream)}) {
      REQUIRE_FALSE(outcome);
      CHECK(outcome.error().code == error_code::invalid_argument);
      CHECK(outcome.error().subject == std::string{subject});
      CHECK(outcome.error().value == value);
      CHECK(outcome.error().limit == (value < 0 ? 0 : 6));
    }
  }
  const auto twice =
      host_backend{}.move_blocks(storage.view(), std::vector<block_pair>{{1, 4}, {2, 3}, {0, 4}}, default_stream);
  CHECK(said(twice) == invalid("destination block of two moves is 4"));
  const auto smaller = in_hnd_block_major<int8>{small_config(2)};
  const auto unlike = host::copy_blocks(storage.view(), smaller.view(), std::vector<block_pair>{{1, 1}});
  CHECK(said(unlike) == invalid("bytes of a block of the destination, which are not the source's, is " +
                                std::to_string(smaller.view().layer_bytes() * smaller.view().num_layers) + ", limit " +
                                std::to_string(storage.view().layer_bytes() * storage.view().num_layers)));
  CHECK(first_difference(storage.bytes(), before) == no_difference);
}

TEST_CASE("blocks for host memory arrive whole, wherever they lie", "[backend]") {
  constexpr auto num_blocks = 48;
  auto random = std::mt19937{9};
  auto config = small_config(5);
  config.num_blocks = num_blocks;
  auto device = in_nhd_layer_major<float32>{config};
  fill(device, random);
  auto order = std::vector<std::int32_t>(num_blocks);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, random);
  const auto size = device.size();
  for (const auto num_copied : {3, num_blocks}) {  // few bytes, and more than go through the processor's caches
    for (const auto distance : {0U, 4U, 64U}) {
      auto memory = std::vector<std::byte>(size + 256, std::byte{0x5a});
      auto host = device.view();
      const auto start = reinterpret_cast<std::uintptr_t>(memory.data());
      host.base = memory.data() + (64 - start % 64) % 64 + distance;
      auto pairs = std::vector<block_pair>{};
      for (auto i = 0; i < num_copied; ++i) {
        pairs.push_back({order[static_cast<std::size_t>(i)], i});
      }
      REQUIRE(
          host_backend{}.swap_blocks(device.view(), host, pairs, swap_direction::to_host, default_stream).has_value());
      const auto bytes = host.layer_bytes();
      for (auto layer = 0; layer < host.num_layers; ++layer) {
        for (auto block = 0; block < num_blocks; ++block) {
          const auto* const there = host.block(layer, block);
          const auto* const source = device.view().block(layer, order[static_cast<std::size_t>(block)]);
          CHECK((block < num_copied ? std::equal(there, there + bytes, source)
                                    : std::all_of(there, there + bytes, [](auto b) { return b == std::byte{0x5a}; })));
        }
      }
      CHECK(std::all_of(memory.data(), host.base, [](auto b) { return b == std::byte{0x5a}; }));
      CHECK(std::all_of(host.base + size, memory.data() + memory.size(), [](auto b) { return b == std::byte{0x5a}; }));
    }
  }
}

TEST_CASE("moves without working memory fail as a value and change nothing", "[backend]") {
  auto random = std::mt19937{8};
  auto storage = in_nhd_layer_major<int8>{small_config(5)};
  fill(storage, random);
  const auto before = blocks_of(storage);
  const auto pairs = std::vector<block_pair>{{0, 1}, {1, 0}, {2, 3}};
  for (auto fail_at = 0;; ++fail_at) {
    fail_allocations_after(fail_at);
    const auto outcome = host_backend{}.move_blocks(storage.view(), pairs, default_stream);
    fail_allocations_after(-1);
    if (outcome) {
      CHECK(fail_at > 0);
      break;
    }
    CHECK(outcome.error().code == error_code::out_of_memory);
    CHECK(outcome.error().value == 3);
    CHECK(blocks_of(storage) == before);
  }
  CHECK(blocks_of(storage) == moved(before, pairs));
}
