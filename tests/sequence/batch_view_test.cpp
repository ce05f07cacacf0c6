#include "../support/messages.hpp"
#include "../support/printing.hpp"

#include <pagedkv/sequence/batch_view.hpp>
#include <pagedkv/sequence/block_table.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

using namespace pagedkv;

namespace {

constexpr auto block_size = std::int32_t{4};
constexpr auto max_rows = std::size_t{12};
constexpr auto max_blocks = std::size_t{40};

struct known_sequence {
  sequence_id id{};
  block_table blocks;
  std::int64_t num_tokens = 0;

  [[nodiscard]] batch_row row() const { return {id, blocks.version(), num_tokens, blocks.all()}; }

  void grow(std::int64_t num_added, std::mt19937& random) {
    num_tokens += num_added;
    while (static_cast<std::int64_t>(blocks.size()) * block_size < num_tokens) {
      blocks.push_back(to_block(random() % 1000));
    }
  }
  void shrink(std::int64_t keep) {
    num_tokens = keep;
    const auto size = static_cast<std::size_t>((keep + block_size - 1) / block_size);
    if (size < blocks.size()) {
      blocks.shrink(size);
    }
  }
};

using rows = std::vector<const known_sequence*>;

template <class Batch>
[[nodiscard]] Batch make_batch();
template <>
padded_batch make_batch() {
  return {max_rows, max_blocks};
}
template <>
compressed_batch make_batch() {
  return {max_rows, max_rows * max_blocks};
}

template <class Batch>
[[nodiscard]] result<void> update(Batch& batch, const rows& wanted) {
  return batch.update(wanted.size(), block_size, [&](std::size_t i, auto&& use) { return use(wanted[i]->row()); });
}

[[nodiscard]] bool equal(const padded_batch& a, const padded_batch& b) {
  return std::ranges::equal(a.block_tables(), b.block_tables()) && std::ranges::equal(a.lengths(), b.lengths());
}
[[nodiscard]] bool equal(const compressed_batch& a, const compressed_batch& b) {
  return std::ranges::equal(a.indptr(), b.indptr()) && std::ranges::equal(a.indices(), b.indices()) &&
         std::ranges::equal(a.last_block_len(), b.last_block_len());
}

[[nodiscard]] known_sequence sequence_of(std::uint64_t id, std::vector<int> blocks, std::int64_t num_tokens) {
  auto s = known_sequence{sequence_id{id}, {}, num_tokens};
  for (const auto block : blocks) {
    s.blocks.push_back(block_id{block});
  }
  return s;
}

}  // namespace

TEST_CASE("a padded batch is rows of ids with -1 behind the end", "[batch_view]") {
  auto first = sequence_of(1, {3, 4}, 7);
  const auto empty = sequence_of(2, {}, 0);
  auto batch = padded_batch{4, 3};
  REQUIRE(update(batch, {&first, &empty}));
  CHECK(batch.num_rows() == 2);
  CHECK(std::ranges::equal(batch.block_tables(),
                           std::vector{block_id{3}, block_id{4}, no_block, no_block, no_block, no_block}));
  CHECK(std::ranges::equal(batch.lengths(), std::vector{7, 0}));
}

TEST_CASE("a compressed batch is all ids and where rows begin", "[batch_view]") {
  const auto first = sequence_of(1, {3, 4}, 7);
  const auto empty = sequence_of(2, {}, 0);
  const auto full = sequence_of(3, {9}, 4);
  auto batch = compressed_batch{4, 3};
  REQUIRE(update(batch, {&first, &empty, &full}));
  CHECK(std::ranges::equal(batch.indptr(), std::vector{0, 2, 2, 3}));
  CHECK(std::ranges::equal(batch.indices(), std::vector{block_id{3}, block_id{4}, block_id{9}}));
  CHECK(std::ranges::equal(batch.last_block_len(), std::vector{3, 0, 4}));
}

TEMPLATE_TEST_CASE("an updated batch equals one built anew", "[batch_view][random]", padded_batch, compressed_batch) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  auto batch = make_batch<TestType>();
  auto alive = std::vector<std::unique_ptr<known_sequence>>{};
  auto next_id = std::uint64_t{1};
  for (auto round = 0; round < 3000; ++round) {
    const auto kind = random() % 8;
    if (alive.size() < max_rows && (kind == 0 || alive.empty())) {
      alive.push_back(std::make_unique<known_sequence>());
      alive.back()->id = sequence_id{next_id++};
    } else if (kind == 1) {
      alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(random() % alive.size()));
    } else if (kind == 2) {
      std::ranges::shuffle(alive, random);
    } else if (kind == 3) {
      auto& s = *alive[random() % alive.size()];
      s.shrink(static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(s.num_tokens + 1)));
    } else if (kind == 4) {
      auto& s = *alive[random() % alive.size()];
      s.blocks.drop_before(random() % (s.blocks.size() + 1));
    } else if (kind == 5) {
      auto& s = *alive[random() % alive.size()];
      if (s.blocks.size() > 0) {
        s.blocks.replace(random() % s.blocks.size(), to_block(random() % 1000));
      }
    } else {
      for (auto& s : alive) {  // a step of decoding
        s->grow(static_cast<std::int64_t>(random() % 3), random);
        if (s->blocks.size() > max_blocks) {
          s->blocks.clear();
          s->num_tokens = 0;
        }
      }
    }
    auto wanted = rows{};
    for (const auto& s : alive) {
      if (round % 7 != 0 || random() % 2 == 0) {
        wanted.push_back(s.get());
      }
    }
    REQUIRE(update(batch, wanted));
    auto anew = make_batch<TestType>();
    REQUIRE(update(anew, wanted));
    CAPTURE(round, kind);
    REQUIRE(equal(batch, anew));
  }
}

TEST_CASE("a batch of more entries than a size can count is refused", "[batch_view]") {
  constexpr auto half = std::size_t{1} << 63;
  CHECK_THROWS_AS(padded_batch(2, half), std::length_error);
}

TEST_CASE("an update of a padded batch writes only changed entries", "[batch_view]") {
  auto first = sequence_of(1, {3, 4}, 7);
  auto second = sequence_of(2, {5}, 4);
  auto batch = padded_batch{2, 4};
  REQUIRE(update(batch, {&first, &second}));
  // Entries that `update` does not write keep a mark, which the test placed there.
  auto* const entries = const_cast<block_id*>(batch.block_tables().data());
  constexpr auto mark = block_id{77};
  entries[0] = entries[1] = entries[4] = mark;
  second.blocks.push_back(block_id{6});
  second.num_tokens = 5;
  first.num_tokens = 8;
  REQUIRE(update(batch, {&first, &second}));
  CHECK(std::ranges::equal(batch.block_tables(),
                           std::vector{mark, mark, no_block, no_block, mark, block_id{6}, no_block, no_block}));
  CHECK(std::ranges::equal(batch.lengths(), std::vector{8, 5}));
}

TEST_CASE("an update of a compressed batch moves only the rows after one that grew", "[batch_view]") {
  auto first = sequence_of(1, {3}, 3);
  auto second = sequence_of(2, {5}, 4);
  auto third = sequence_of(3, {6, 7}, 8);
  auto batch = compressed_batch{3, 8};
  REQUIRE(update(batch, {&first, &second, &third}));
  auto* const entries = const_cast<block_id*>(batch.indices().data());
  constexpr auto mark = block_id{77};
  entries[0] = entries[1] = entries[2] = mark;
  first.num_tokens = 4;
  second.blocks.push_back(block_id{9});
  second.num_tokens = 5;
  REQUIRE(update(batch, {&first, &second, &third}));
  CHECK(std::ranges::equal(batch.indices(), std::vector{mark, mark, block_id{9}, mark, block_id{7}}));
  CHECK(std::ranges::equal(batch.indptr(), std::vector{0, 1, 3, 5}));
  CHECK(std::ranges::equal(batch.last_block_len(), std::vector{4, 1, 4}));
}

TEST_CASE("a compressed batch counts the last tokens of sequences of any length", "[batch_view]") {
  constexpr auto large = std::numeric_limits<std::int32_t>::max();
  for (const auto last : {std::int32_t{1}, std::int32_t{7}, large}) {
    const auto s = sequence_of(1, {3, 4, 5, 6}, std::int64_t{3} * large + last);
    auto batch = compressed_batch{1, 4};
    REQUIRE(batch.update(1, large, [&](std::size_t, auto&& use) { return use(s.row()); }));
    CHECK(batch.last_block_len()[0] == last);
  }
}

TEMPLATE_TEST_CASE("a batch that does not fit is left as it was", "[batch_view]", padded_batch, compressed_batch) {
  const auto first = sequence_of(1, {3}, 3);
  const auto large = sequence_of(2, std::vector<int>(5, 1), 20);
  auto batch = TestType{2, 4};
  REQUIRE(update(batch, {&first}));
  for (const auto& wanted : {rows{&first, &large}, rows{&first, &first, &first}}) {
    const auto refused = update(batch, wanted);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == error_code::limit_reached);
    CHECK(batch.num_rows() == 1);
  }
  auto anew = TestType{2, 4};
  REQUIRE(update(anew, {&first}));
  CHECK(equal(batch, anew));
}

TEMPLATE_TEST_CASE("an empty sequence takes over the row of another", "[batch_view]", padded_batch, compressed_batch) {
  const auto first = sequence_of(1, {3, 4}, 7);
  const auto empty = sequence_of(2, {}, 0);
  auto batch = make_batch<TestType>();
  REQUIRE(update(batch, {&first}));
  REQUIRE(update(batch, {&empty, &first}));
  auto anew = make_batch<TestType>();
  REQUIRE(update(anew, {&empty, &first}));
  CHECK(equal(batch, anew));
}

TEMPLATE_TEST_CASE("a row that changes while it is copied is busy", "[batch_view][messages]", padded_batch,
                   compressed_batch) {
  auto random = std::mt19937{1};
  auto changing = known_sequence{sequence_id{7}, {}, 0};
  changing.grow(9, random);
  auto batch = make_batch<TestType>();
  auto num_visits = 0;
  const auto updated = batch.update(1, block_size, [&](std::size_t, auto&& use) {
    if (++num_visits == 2) {
      changing.shrink(3);
    }
    return use(changing.row());
  });
  CHECK(test::said(updated) == "sequence busy: id of a sequence that another thread has changed is 7");
}
