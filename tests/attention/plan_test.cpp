#include <pagedkv/attention/plan.hpp>

#include <catch2/catch_test_macros.hpp>

#include <map>
#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace {

using namespace pagedkv;

/// Lengths in the form of a batch.
struct rows_under_test {
  std::vector<std::int32_t> indptr = {0};
  std::vector<std::int32_t> last_block_len;
  std::vector<std::int32_t> query_indptr;

  rows_under_test(const std::vector<std::int32_t>& lengths, std::int32_t block_size) {
    for (const auto length : lengths) {
      indptr.push_back(indptr.back() + (length + block_size - 1) / block_size);
      last_block_len.push_back(length == 0 ? 0 : (length - 1) % block_size + 1);
    }
  }

  [[nodiscard]] attention_batch batch() const { return {indptr, {}, last_block_len, query_indptr}; }
};

/// Executes a plan as waves do. Checks that every tile of every task is processed once, that pieces of one task have
/// consecutive numbers and are merged, and that whole tasks are not. Returns the largest number of tiles of a wave.
std::int64_t check_plan(const attention_planner& planner) {
  const auto rows = planner.rows();
  const auto shares = planner.shares();
  const auto split = planner.shape().split_tokens > 0 ? planner.shape().split_tokens / attention_tile : 1 << 30;
  auto next = std::tuple(0, 0, 0);  // row, task, tile
  auto partials = std::map<std::tuple<int, int>, std::vector<int>>{};
  auto most = std::int64_t{0};
  for (auto share = std::size_t{0}; share + 1 < shares.size(); ++share) {
    auto [row, task, tile] = std::tuple(shares[share].row, shares[share].task, shares[share].tile);
    const auto end = std::tuple(shares[share + 1].row, shares[share + 1].task, shares[share + 1].tile);
    REQUIRE(std::tuple(row, task, tile) == next);
    auto partial = shares[share].first_partial;
    auto tiles = std::int64_t{0};
    while (std::tuple(row, task, tile) != end) {
      const auto& of = rows[static_cast<std::size_t>(row)];
      const auto in_end = std::tuple(row, task) == std::tuple(std::get<0>(end), std::get<1>(end));
      const auto until = std::min(in_end ? std::get<2>(end) : of.num_tiles, (tile / split + 1) * split);
      REQUIRE(until > tile);
      tiles += until - tile;
      if (tile > 0 || until < of.num_tiles) {
        partials[{row, task}].push_back(partial++);
      }
      tile = until;
      if (tile == of.num_tiles) {
        tile = 0;
        ++task;
      }
      if (task == of.num_tasks) {
        task = 0;
        ++row;
      }
    }
    next = end;
    most = std::max(most, tiles);
  }
  CHECK(next == std::tuple(static_cast<int>(rows.size()), 0, 0));
  CHECK(planner.merges().size() == partials.size());
  auto used = std::set<int>{};
  for (const auto& merge : planner.merges()) {
    const auto& pieces = partials[{merge.row, merge.task}];
    REQUIRE(pieces.size() == static_cast<std::size_t>(merge.num_partials));
    for (auto i = 0; i < merge.num_partials; ++i) {
      CHECK(pieces[static_cast<std::size_t>(i)] == merge.first_partial + i);
      CHECK(used.insert(merge.first_partial + i).second);
    }
  }
  return most;
}

[[nodiscard]] attention_shape shape_of(std::int32_t num_shares, std::int32_t max_rows) {
  auto shape = attention_shape{};
  shape.num_kv_heads = 4;
  shape.group_size = 4;
  shape.num_shares = num_shares;
  shape.max_rows = max_rows;
  return shape;
}

TEST_CASE("a chunk of a prompt becomes rows that end at their last query", "[attention_plan]") {
  auto batch = rows_under_test({1000, 300, 20}, 16);
  batch.query_indptr = {0, 600, 900, 901};
  auto shape = attention_shape{};
  shape.group_size = 2;
  shape.columns = 64;
  shape.num_shares = 10;
  shape.max_rows = 3;
  shape.max_query_tokens = 901;
  auto planner = attention_planner(shape);
  REQUIRE(planner.plan(batch.batch()));
  check_plan(planner);
  REQUIRE(planner.rows().size() == 19 + 10 + 1);
  auto seen = std::vector<int>(901);
  for (const auto& row : planner.rows()) {
    REQUIRE(row.num_queries <= 32);
    CHECK(row.num_tiles == (row.num_tokens + 15) / 16);
    for (auto i = row.first_query; i < row.first_query + row.num_queries; ++i) {
      ++seen[static_cast<std::size_t>(i)];
      const auto position = row.num_tokens - row.num_queries + i - row.first_query;
      CHECK(position == (i < 600 ? 400 + i : (i < 900 ? i - 600 : 19)));
    }
  }
  CHECK(seen == std::vector<int>(901, 1));
  batch.query_indptr = {0, 700, 1000, 1050};
  CHECK_FALSE(planner.plan(batch.batch()));
  CHECK(planner.rows().empty());
}

TEST_CASE("a tree has no more tokens than a mask has bits", "[attention_plan]") {
  auto batch = rows_under_test({100}, 16);
  batch.query_indptr = {0, 33};
  const auto masks = std::vector<std::uint32_t>(33);
  auto with_masks = batch.batch();
  with_masks.tree_masks = masks;
  auto planner = attention_planner(attention_shape{});
  const auto refused = planner.plan(with_masks);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().value == 33);
}

TEST_CASE("a plan gives every wave as many tiles as the others", "[attention_plan]") {
  auto random = std::mt19937(1);
  for (auto round = 0; round < 200; ++round) {
    const auto num_rows = static_cast<std::int32_t>(random() % 40);
    auto lengths = std::vector<std::int32_t>{};
    for (auto i = 0; i < num_rows; ++i) {
      lengths.push_back(static_cast<std::int32_t>(random() % (random() % 2 == 0 ? 20 : 5000)));
    }
    auto shape = shape_of(1 + static_cast<std::int32_t>(random() % 300), 40);
    shape.window = random() % 3 == 0 ? 100 : 0;
    auto planner = attention_planner(shape);
    const auto rows = rows_under_test(lengths, 16);
    INFO("round " << round);
    REQUIRE(planner.plan(rows.batch()));
    auto all = std::int64_t{0};
    for (const auto& row : planner.rows()) {
      all += std::int64_t{row.num_tiles + 1} * row.num_tasks;
    }
    // With equal tasks, a tenth of the waves may have no work.
    CHECK(check_plan(planner) <= all * 10 / 9 / shape.num_shares + 1);
    CHECK(static_cast<std::int32_t>(planner.rows().size()) == num_rows);
  }
}

TEST_CASE("equal tasks are cut nowhere, or everywhere alike, where that costs few waves", "[attention_plan]") {
  auto planner = attention_planner(shape_of(1056, 256));
  REQUIRE(planner.plan(rows_under_test(std::vector<std::int32_t>(128, 4096), 16).batch()));
  check_plan(planner);
  CHECK(planner.merges().size() == 512);
  for (const auto& merge : planner.merges()) {
    CHECK(merge.num_partials == 2);
  }
  REQUIRE(planner.plan(rows_under_test(std::vector<std::int32_t>(256, 4096), 16).batch()));
  CHECK(planner.merges().empty());
  CHECK(check_plan(planner) == 256);
}

TEST_CASE("a fixed split cuts every sequence at the same tokens", "[attention_plan]") {
  auto random = std::mt19937(2);
  for (auto round = 0; round < 100; ++round) {
    auto lengths = std::vector<std::int32_t>{};
    for (auto i = 0; i < 10; ++i) {
      lengths.push_back(static_cast<std::int32_t>(random() % 3000));
    }
    auto shape = shape_of(1 + static_cast<std::int32_t>(random() % 100), 10);
    shape.split_tokens = 256;
    shape.max_partials = 1000;
    auto planner = attention_planner(shape);
    REQUIRE(planner.plan(rows_under_test(lengths, 16).batch()));
    check_plan(planner);
    for (const auto& merge : planner.merges()) {
      CHECK(merge.num_partials == (lengths[static_cast<std::size_t>(merge.row)] + 255) / 256);
    }
  }
}

TEST_CASE("a plan follows growing sequences", "[attention_plan]") {
  auto lengths = std::vector<std::int32_t>{100, 999, 16, 31, 5000};
  auto planner = attention_planner(shape_of(64, 5));
  REQUIRE(planner.plan(rows_under_test(lengths, 16).batch()));
  const auto first_share = planner.shares()[40];
  for (auto step = 0; step < 300; ++step) {
    for (auto& length : lengths) {
      ++length;
    }
    REQUIRE(planner.update(rows_under_test(lengths, 16).batch()));
    check_plan(planner);
    CHECK(planner.rows()[4].num_tokens == 5001 + step);
    if (step == 0) {
      CHECK(planner.shares()[40].tile == first_share.tile);
    }
  }
  lengths.pop_back();
  REQUIRE(planner.update(rows_under_test(lengths, 16).batch()));
  check_plan(planner);
  CHECK(planner.rows().size() == 4);
}

TEST_CASE("too many rows or pieces are refused, and leave an empty plan", "[attention_plan]") {
  auto planner = attention_planner(shape_of(8, 2));
  REQUIRE_FALSE(planner.plan(rows_under_test({1, 2, 3}, 16).batch()));
  CHECK(planner.plan(rows_under_test({1, 2, 3}, 16).batch()).error().code == error_code::limit_reached);
  CHECK(planner.rows().empty());
  auto shape = shape_of(8, 2);
  shape.split_tokens = 16;
  shape.max_partials = 20;
  auto split = attention_planner(shape);
  REQUIRE(split.plan(rows_under_test({80}, 16).batch()));
  CHECK(split.plan(rows_under_test({96}, 16).batch()).error().code == error_code::limit_reached);
  CHECK(split.merges().empty());
}

}  // namespace
