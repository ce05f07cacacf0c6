#include <pagedkv/attention/plan.hpp>

#include "../support/messages.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using namespace pagedkv;
using pagedkv::test::said;

/// Lengths in the form of a batch.
struct rows_under_test {
  std::vector<std::int32_t> indptr = {0};
  std::vector<std::int32_t> last_block_len;
  std::vector<std::int32_t> query_indptr;
  std::vector<block_id> indices;

  rows_under_test(const std::vector<std::int32_t>& lengths, std::int32_t block_size) {
    for (const auto length : lengths) {
      indptr.push_back(indptr.back() + (length + block_size - 1) / block_size);
      last_block_len.push_back(length == 0 ? 0 : (length - 1) % block_size + 1);
    }
  }

  [[nodiscard]] attention_batch batch() const { return {indptr, indices, last_block_len, query_indptr}; }
};

/// Row and task of a share that is one piece of a task.
std::optional<std::tuple<int, int>> one_piece_of(const attention_planner& planner, std::size_t share) {
  const auto& start = planner.parts().shares[share];
  const auto& end = planner.parts().shares[share + 1];
  const auto of_start = std::tuple(start.row, start.task);
  if (of_start == std::tuple(end.row, end.task)) {
    return start.tile < end.tile ? std::optional(of_start) : std::nullopt;
  }
  const auto num_tasks = planner.parts().rows[static_cast<std::size_t>(start.row)].num_tasks;
  const auto next = start.task + 1 < num_tasks ? std::tuple(start.row, start.task + 1) : std::tuple(start.row + 1, 0);
  return end.tile == 0 && next == std::tuple(end.row, end.task) ? std::optional(of_start) : std::nullopt;
}

/// Executes a plan as waves do. Checks that every tile of every task is processed once, that pieces of one task have
/// consecutive numbers and are merged, and that whole tasks are not. Returns the largest number of tiles of a wave.
std::int64_t check_plan(const attention_planner& planner) {
  const auto rows = planner.parts().rows;
  const auto shares = planner.parts().shares;
  const auto split = planner.shape().split_tokens > 0 ? planner.shape().split_tokens / attention_tile : 1 << 30;
  const auto waves = static_cast<std::size_t>(planner.parts().joined_shares);
  auto next = std::tuple(0, 0, 0);  // row, task, tile
  auto partials = std::map<std::tuple<int, int>, std::vector<int>>{};
  auto most = std::int64_t{0};
  for (auto share = std::size_t{0}; share + 1 < shares.size(); ++share) {
    auto [row, task, tile] = std::tuple(shares[share].row, shares[share].task, shares[share].tile);
    const auto end = std::tuple(shares[share + 1].row, shares[share + 1].task, shares[share + 1].tile);
    REQUIRE(std::tuple(row, task, tile) == next);
    auto partial = shares[share].first_partial;
    const auto part = one_piece_of(planner, share);
    const auto joins = part && share % waves != 0 && one_piece_of(planner, share - 1) == part;
    auto tiles = std::int64_t{0};
    while (std::tuple(row, task, tile) != end) {
      const auto& of = rows[static_cast<std::size_t>(row)];
      const auto in_end = std::tuple(row, task) == std::tuple(std::get<0>(end), std::get<1>(end));
      const auto until = std::min(in_end ? std::get<2>(end) : of.num_tiles, (tile / split + 1) * split);
      REQUIRE(until > tile);
      tiles += until - tile;
      // Without a window, a row whose first tile is not the first token's has a shared prefix.
      const auto prefix = planner.shape().window == 0 && of.first_tile > 0;
      if (!joins && (tile > 0 || until < of.num_tiles || prefix)) {
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
  std::erase_if(partials, [&](const auto& each) {
    const auto& row = rows[static_cast<std::size_t>(std::get<0>(each.first))];
    return each.second.size() == 1 && (row.first_tile == 0 || planner.shape().window > 0);
  });
  CHECK(planner.parts().merges.size() == partials.size());
  auto used = std::set<int>{};
  for (const auto& merge : planner.parts().merges) {
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
  shape.kernel = kernel_kind::groups;
  shape.columns = 64;
  shape.num_shares = 10;
  shape.max_rows = 3;
  shape.max_query_tokens = 901;
  auto planner = attention_planner(shape);
  REQUIRE(planner.plan(batch.batch()));
  check_plan(planner);
  REQUIRE(planner.parts().rows.size() == 19 + 10 + 1);
  auto seen = std::vector<int>(901);
  for (const auto& row : planner.parts().rows) {
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
  CHECK(said(planner.plan(batch.batch())) ==
        "limit reached: number of rows and query tokens, more than the planner was made for, is 32, limit 31");
  CHECK(planner.parts().rows.empty());
}

TEST_CASE("the longest window begins with the first tile, also for more queries than tokens", "[attention_plan]") {
  auto shape = shape_of(8, 2);
  shape.window = std::numeric_limits<std::int32_t>::max();
  auto batch = rows_under_test({100, 2}, 16);
  batch.query_indptr = {0, 4, 9};
  const auto check = [&] {
    auto planner = attention_planner(shape);
    REQUIRE(planner.plan(batch.batch()));
    for (const auto& row : planner.parts().rows) {
      CHECK(row.first_tile == 0);
      CHECK(row.num_tiles == (row.num_tokens + attention_tile - 1) / attention_tile);
    }
    check_plan(planner);
  };
  check();
  shape.max_query_tokens = 9;
  check();
}

TEST_CASE("a tree has no more tokens than a mask has bits", "[attention_plan]") {
  auto batch = rows_under_test({100}, 16);
  batch.query_indptr = {0, 33};
  const auto masks = std::vector<std::uint32_t>(33);
  auto with_masks = batch.batch();
  with_masks.tree_masks = masks;
  auto planner = attention_planner(attention_shape{});
  const auto refused = planner.plan(with_masks);
  CHECK(said(refused) == "limit reached: queries of a row with tree masks is 33, limit 32");
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
    shape.joined_shares = random() % 2 == 0 ? 4 : 1;
    auto planner = attention_planner(shape);
    const auto rows = rows_under_test(lengths, 16);
    INFO("round " << round);
    REQUIRE(planner.plan(rows.batch()));
    constexpr auto start_of_task = 4;  // counts as much as this many tiles
    auto all = std::int64_t{0};
    for (const auto& row : planner.parts().rows) {
      all += std::int64_t{row.num_tiles + start_of_task} * row.num_tasks;
    }
    // Waves have three tiles at least, two where they join results. With equal tasks, a tenth of the others may have no
    // work.
    const auto busy = std::clamp<std::int64_t>(all / (shape.joined_shares > 1 ? 2 : 3), 1, shape.num_shares);
    CHECK(check_plan(planner) <= all * 10 / 9 / busy + 1);
    CHECK(static_cast<std::int32_t>(planner.parts().rows.size()) == num_rows);
  }
}

TEST_CASE("equal tasks are cut nowhere, or everywhere alike, where that costs few waves", "[attention_plan]") {
  auto planner = attention_planner(shape_of(1056, 256));
  REQUIRE(planner.plan(rows_under_test(std::vector<std::int32_t>(128, 4096), 16).batch()));
  check_plan(planner);
  CHECK(planner.parts().merges.size() == 512);
  for (const auto& merge : planner.parts().merges) {
    CHECK(merge.num_partials == 2);
  }
  REQUIRE(planner.plan(rows_under_test(std::vector<std::int32_t>(256, 4096), 16).batch()));
  CHECK(planner.parts().merges.empty());
  CHECK(check_plan(planner) == 256);
}

/// Tiles of the longest share, and shares that have any in each workgroup of `joined`.
struct planned_work {
  std::int32_t most_tiles = 0;
  std::vector<std::int32_t> busy_shares;
};

[[nodiscard]] planned_work work_of(const attention_planner& planner, std::size_t joined) {
  const auto shares = planner.parts().shares;
  auto work = planned_work{0, std::vector<std::int32_t>((shares.size() + joined - 2) / joined)};
  auto tiles = std::vector<std::int32_t>(shares.size());
  auto copy = std::vector(shares.begin(), shares.end());
  auto share = std::size_t{0};
  for_each_attention_piece(
      planner.parts().rows, std::span(copy),
      [&](const attention_share& start) { share = static_cast<std::size_t>(&start - copy.data()); },
      [&](std::int32_t, std::int32_t, std::int32_t tile, std::int32_t end) { tiles[share] += end - tile; });
  for (auto i = std::size_t{0}; i + 1 < tiles.size(); ++i) {
    work.most_tiles = std::max(work.most_tiles, tiles[i]);
    work.busy_shares[i / joined] += tiles[i] > 0 ? 1 : 0;
  }
  return work;
}

/// One KV head, and workgroups of `joined` shares.
[[nodiscard]] attention_shape joining_shape(std::int32_t num_shares, std::int32_t max_rows, std::int32_t joined) {
  auto shape = shape_of(num_shares, max_rows);
  shape.joined_shares = joined;
  shape.num_kv_heads = 1;
  return shape;
}

TEST_CASE("one short sequence is cut so that no share has one tile more, and no wave joins alone", "[attention_plan]") {
  auto planner = attention_planner(joining_shape(1056, 8, 4));
  for (const auto& [num_rows, length, most_tiles] :
       {std::tuple(1, 9000, 2), {4, 9000, 3}, {1, 2000, 2}, {1, 16000, 2}}) {
    INFO(num_rows << " rows of " << length);
    REQUIRE(planner.plan(
        rows_under_test(std::vector<std::int32_t>(static_cast<std::size_t>(num_rows), length), 16).batch()));
    check_plan(planner);
    CHECK(planner.parts().joined_shares == 4);
    const auto work = work_of(planner, 4);
    CHECK(work.most_tiles == most_tiles);
    for (const auto busy : work.busy_shares) {
      CHECK((busy == 0 || busy == 4));
    }
  }
}

TEST_CASE("shares that join results are as few as have no more tiles", "[attention_plan]") {
  auto planner = attention_planner(joining_shape(1056, 8, 4));
  REQUIRE(planner.plan(rows_under_test(std::vector<std::int32_t>(4, 9000), 16).batch()));
  REQUIRE(planner.parts().merges.size() == 4);
  for (const auto& merge : planner.parts().merges) {
    // Of 188 shares of three tiles. There is room for 264, of which some would have three, too.
    CHECK(merge.num_partials == 47);
  }
}

TEST_CASE("equal tasks are not cut where no share would be shorter", "[attention_plan]") {
  auto planner = attention_planner(joining_shape(528, 300, 2));
  REQUIRE(planner.plan(rows_under_test(std::vector<std::int32_t>(271, 96), 16).batch()));
  check_plan(planner);
  CHECK(planner.parts().merges.empty());
  REQUIRE(planner.plan(rows_under_test(std::vector<std::int32_t>(201, 192), 16).batch()));
  check_plan(planner);
  CHECK(work_of(planner, 2).most_tiles == 6);
}

TEST_CASE("few short shares of a task join no results", "[attention_plan]") {
  auto planner = attention_planner(joining_shape(1056, 8, 4));
  REQUIRE(planner.plan(rows_under_test({608}, 16).batch()));
  CHECK(planner.parts().joined_shares == 1);
  REQUIRE(planner.parts().merges.size() == 1);
  CHECK(planner.parts().merges[0].num_partials == 19);
}

TEST_CASE("short equal tasks have about three tiles a share, and one without a merge up to three", "[attention_plan]") {
  for (auto tiles = 1; tiles <= 40; ++tiles) {
    for (const auto num_rows : {1, 4}) {
      INFO(num_rows << " rows of " << tiles << " tiles");
      auto planner = attention_planner(shape_of(1056, 8));
      REQUIRE(planner.plan(
          rows_under_test(std::vector<std::int32_t>(static_cast<std::size_t>(num_rows), tiles * 16), 16).batch()));
      check_plan(planner);
      CHECK(work_of(planner, 1).most_tiles <= 3);
      for (const auto& merge : planner.parts().merges) {
        CHECK(merge.num_partials == (tiles + 2) / 3);
      }
      CHECK(planner.parts().merges.empty() == (tiles <= 3));
    }
  }
}

TEST_CASE("shares of two waves have two tiles, and two of them join results", "[attention_plan]") {
  auto planner = attention_planner(joining_shape(528, 8, 2));
  REQUIRE(planner.plan(rows_under_test({9000}, 16).batch()));
  check_plan(planner);
  CHECK(planner.parts().joined_shares == 2);
  REQUIRE(planner.parts().merges.size() == 1);
  CHECK(planner.parts().merges[0].num_partials == 141);
  const auto work = work_of(planner, 2);
  CHECK(work.most_tiles == 2);
  CHECK(std::ranges::count(work.busy_shares, 1) == 0);
}

TEST_CASE("equal tasks are cut into equal shares, whatever the start of a task counts", "[attention_plan]") {
  auto planner = attention_planner(shape_of(1056, 16));
  REQUIRE(planner.plan(rows_under_test(std::vector<std::int32_t>(16, 1024), 16).batch()));
  check_plan(planner);
  CHECK(work_of(planner, 1).most_tiles == 4);  // 64 tasks of 64 tiles
}

[[nodiscard]] attention_shape latent_shape(std::int32_t num_shares, std::int32_t max_rows) {
  auto shape = attention_shape{};
  shape.group_size = 16;
  shape.kernel = kernel_kind::latent;
  shape.columns = 64;
  shape.num_shares = num_shares;
  shape.max_rows = max_rows;
  return shape;
}

TEST_CASE("the parts of a task over latent vectors are equally long, and not too many", "[attention_plan]") {
  auto planner = attention_planner(latent_shape(132, 64));
  const auto lengths_of = [](std::size_t count, std::int32_t length) { return std::vector(count, length); };
  REQUIRE(planner.plan(rows_under_test(lengths_of(64, 4096), 16).batch()));
  CHECK(check_plan(planner) == 128);
  CHECK(planner.parts().merges.size() == 64);
  REQUIRE(planner.plan(rows_under_test(lengths_of(8, 1000), 16).batch()));
  CHECK(check_plan(planner) == 4);
  REQUIRE(planner.plan(rows_under_test({9000}, 16).batch()));
  CHECK(check_plan(planner) == 8);
}

TEST_CASE("shares of latent vectors differ by no more than the start of a piece", "[attention_plan][random]") {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937(seed);
  for (auto round = 0; round < 100; ++round) {
    const auto num_rows = 1 + static_cast<int>(random() % 60);
    auto lengths = std::vector<std::int32_t>{};
    for (auto i = 0; i < num_rows; ++i) {
      lengths.push_back(static_cast<std::int32_t>(200 + random() % 10'000));
    }
    auto planner = attention_planner(latent_shape(20 + static_cast<std::int32_t>(random() % 120), 60));
    INFO("round " << round);
    REQUIRE(planner.plan(rows_under_test(lengths, 16).batch()));
    check_plan(planner);
    const auto overhead = attention_task_overhead(planner.shape());
    auto most = std::int64_t{0};
    auto all = std::int64_t{0};
    auto busy = std::int64_t{0};
    auto shares = std::vector(planner.parts().shares.begin(), planner.parts().shares.end());
    auto own = std::int64_t{0};
    for_each_attention_piece(
        planner.parts().rows, std::span(shares),
        [&](attention_share&) {
          busy += own > 0 ? 1 : 0;
          own = 0;
        },
        [&](std::int32_t, std::int32_t, std::int32_t tile, std::int32_t end) {
          own += end - tile + overhead;
          all += end - tile + overhead;
          most = std::max(most, own);
        });
    busy += own > 0 ? 1 : 0;
    CHECK(most <= all / busy + 2 * overhead + 1);
  }
}

TEST_CASE("prompts about equally long have shares of whole tasks, in step with each other", "[attention_plan]") {
  auto shape = attention_shape{};
  shape.num_kv_heads = 4;
  shape.group_size = 4;
  shape.kernel = kernel_kind::groups;
  shape.columns = 128;
  shape.num_shares = 33;
  shape.max_rows = 8;
  shape.max_query_tokens = 8 * 128;
  auto planner = attention_planner(shape);
  const auto plan_of = [&](std::int32_t length) {
    auto rows = rows_under_test(std::vector<std::int32_t>(8, length), shape.block_size);
    for (auto i = 0; i <= 8; ++i) {
      rows.query_indptr.push_back(i * 128);
    }
    REQUIRE(planner.plan(rows.batch()));
    check_plan(planner);
  };

  plan_of(4096);  // 32 rows of 4 tasks each
  CHECK(planner.parts().merges.empty());
  for (auto i = 0; i < 32; ++i) {
    const auto& share = planner.parts().shares[static_cast<std::size_t>(i)];
    CHECK(std::tuple(share.row, share.task, share.tile) == std::tuple(i, 0, 0));
  }

  plan_of(256);  // the first queries see half as many tokens as the last ones
  CHECK_FALSE(planner.parts().merges.empty());
}

/// Checks that each task is dealt to one share, and returns the largest and the mean number of tiles of a share, each
/// task with its overhead.
std::pair<std::int64_t, double> check_dealt(const attention_planner& planner) {
  const auto rows = planner.parts().rows;
  const auto num_tasks = rows[0].num_tasks;
  auto dealt = std::vector<int>(rows.size() * static_cast<std::size_t>(num_tasks));
  auto most = std::int64_t{0};
  auto all = std::int64_t{0};
  for (const auto& share : planner.parts().shares.first(planner.parts().shares.size() - 1)) {
    auto tiles = std::int64_t{0};
    auto number = share.row * num_tasks + share.task;
    for (auto more = share.tile == attention_share::dealt; more; more = number >= 0) {
      ++dealt[static_cast<std::size_t>(number)];
      tiles += rows[static_cast<std::size_t>(number / num_tasks)].num_tiles + attention_task_overhead(planner.shape());
      const auto next = planner.parts().following_tasks[static_cast<std::size_t>(number)];
      REQUIRE((next < 0 || next > number));
      number = next;
    }
    most = std::max(most, tiles);
    all += tiles;
  }
  CHECK(dealt == std::vector<int>(dealt.size(), 1));
  CHECK(planner.parts().merges.empty());
  return {most, static_cast<double>(all) / static_cast<double>(planner.shape().num_shares)};
}

TEST_CASE("prompts of any lengths are dealt as whole tasks", "[attention_plan]") {
  auto shape = attention_shape{};
  shape.num_kv_heads = 8;
  shape.group_size = 4;
  shape.kernel = kernel_kind::groups;
  shape.columns = 128;
  shape.num_shares = 132;
  shape.max_rows = 16;
  shape.max_query_tokens = 16384;
  shape.deals_tasks = true;
  auto planner = attention_planner(shape);
  const auto plan_of = [&](const std::vector<std::int32_t>& lengths) {
    auto rows = rows_under_test(lengths, shape.block_size);
    rows.query_indptr.push_back(0);
    for (const auto length : lengths) {
      rows.query_indptr.push_back(rows.query_indptr.back() + length);
    }
    REQUIRE(planner.plan(rows.batch()));
  };
  for (const auto& lengths :
       std::vector<std::vector<std::int32_t>>{std::vector<std::int32_t>(8, 2048), {16384}, {5000, 1, 3000, 37, 8000}}) {
    plan_of(lengths);
    const auto [most, mean] = check_dealt(planner);
    CHECK(static_cast<double>(most) <= 1.01 * mean);
  }

  plan_of({256});  // 64 tasks for 132 shares
  CHECK(planner.parts().shares[0].tile == 0);
  check_plan(planner);
}

TEST_CASE("few long tasks are cut, not dealt", "[attention_plan]") {
  auto shape = attention_shape{};
  shape.kernel = kernel_kind::groups;
  shape.columns = 128;
  shape.num_shares = 33;
  shape.max_query_tokens = 1;
  shape.deals_tasks = true;
  auto planner = attention_planner(shape);
  auto rows = rows_under_test({20'000'000}, shape.block_size);
  rows.query_indptr = {0, 1};
  REQUIRE(planner.plan(rows.batch()));
  CHECK(check_plan(planner) > 0);
}

TEST_CASE("waves of a workgroup that have one task between them write one result", "[attention_plan]") {
  auto shape = shape_of(1056, 256);
  shape.joined_shares = 4;
  auto planner = attention_planner(shape);
  REQUIRE(planner.plan(rows_under_test(std::vector<std::int32_t>(128, 4096), 16).batch()));
  check_plan(planner);
  CHECK(planner.parts().merges.empty());
  REQUIRE(planner.plan(rows_under_test({131072}, 16).batch()));
  check_plan(planner);
  REQUIRE(planner.parts().merges.size() == 4);
  for (const auto& merge : planner.parts().merges) {
    CHECK(merge.num_partials == 66);
  }
  const auto short_rows = std::vector<std::int32_t>(64, 16 * 16);
  REQUIRE(
      planner.plan(rows_under_test(short_rows, 16).batch()));  // few tiles for each wave, and few waves for each task
  check_plan(planner);
  CHECK(planner.parts().joined_shares == 1);
  REQUIRE(planner.plan(rows_under_test({9000}, 16).batch()));  // few tiles, but many waves
  check_plan(planner);
  CHECK(planner.parts().joined_shares == 4);
  for (const auto& merge : planner.parts().merges) {
    CHECK(merge.num_partials <= 51);
  }
  shape.split_tokens = 4096;
  auto fixed = attention_planner(shape);
  REQUIRE(fixed.plan(rows_under_test({131072}, 16).batch()));
  check_plan(fixed);
  CHECK(fixed.parts().merges[0].num_partials == 32);
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
    for (const auto& merge : planner.parts().merges) {
      CHECK(merge.num_partials == (lengths[static_cast<std::size_t>(merge.row)] + 255) / 256);
    }
  }
}

TEST_CASE("a plan follows growing sequences", "[attention_plan]") {
  auto lengths = std::vector<std::int32_t>{100, 999, 16, 31, 5000};
  auto planner = attention_planner(shape_of(64, 5));
  REQUIRE(planner.plan(rows_under_test(lengths, 16).batch()));
  const auto first_share = planner.parts().shares[40];
  for (auto step = 0; step < 300; ++step) {
    for (auto& length : lengths) {
      ++length;
    }
    REQUIRE(planner.update(rows_under_test(lengths, 16).batch()));
    check_plan(planner);
    CHECK(planner.parts().rows[4].num_tokens == 5001 + step);
    if (step == 0) {
      CHECK(planner.parts().shares[40].tile == first_share.tile);
    }
  }
  lengths.pop_back();
  REQUIRE(planner.update(rows_under_test(lengths, 16).batch()));
  check_plan(planner);
  CHECK(planner.parts().rows.size() == 4);
}

TEST_CASE("too many rows or pieces are refused, and leave an empty plan", "[attention_plan]") {
  auto planner = attention_planner(shape_of(8, 2));
  CHECK(said(planner.plan(rows_under_test({1, 2, 3}, 16).batch())) ==
        "limit reached: number of rows, more than the planner was made for, is 3, limit 2");
  CHECK(planner.parts().rows.empty());
  auto shape = shape_of(8, 2);
  shape.split_tokens = 16;
  shape.max_partials = 20;
  auto split = attention_planner(shape);
  REQUIRE(split.plan(rows_under_test({80}, 16).batch()));
  CHECK(said(split.plan(rows_under_test({96}, 16).batch())) ==
        "limit reached: partial results of attention is 24, limit 20");
  CHECK(split.parts().merges.empty());
  for (const auto& [max_partials, num_shares] : {std::pair{1, 64}, {2, 64}, {4, 21}, {60, 64}}) {
    CAPTURE(max_partials, num_shares);
    shape = shape_of(num_shares, 2);
    shape.max_partials = max_partials;
    auto cut = attention_planner(shape);
    const auto refused = cut.plan(rows_under_test({1600, 592}, 16).batch());
    REQUIRE(refused.has_error());
    CHECK(refused.error().code == error_code::limit_reached);
    CHECK(refused.error().limit == max_partials);
    CHECK(cut.parts().merges.empty());
    CHECK(cut.parts().rows.empty());
  }
}

/// Sequences whose block tables start alike: of `lengths[i]` tokens, those before `shared[i]` are in the blocks of
/// document `documents[i]`; documents share the blocks before `system` tokens.
[[nodiscard]] rows_under_test rows_of_documents(const std::vector<std::int32_t>& lengths,
                                                const std::vector<std::int32_t>& documents,
                                                const std::vector<std::int32_t>& shared, std::int32_t system = 0,
                                                std::int32_t block_size = 16) {
  auto rows = rows_under_test(lengths, block_size);
  for (auto i = std::size_t{0}; i < lengths.size(); ++i) {
    for (auto block = 0; block < (lengths[i] + block_size - 1) / block_size; ++block) {
      const auto of_document = (block + 1) * block_size <= shared[i];
      const auto first =
          (block + 1) * block_size <= system ? 0 : (of_document ? 1 + documents[i] : 1000 + static_cast<int>(i));
      rows.indices.push_back(block_id{first * 10000 + block});
    }
  }
  return rows;
}

[[nodiscard]] attention_shape sharing_shape(std::int32_t max_rows, std::int32_t num_shares = 64) {
  auto shape = shape_of(num_shares, max_rows);
  shape.prefix_columns = 128;
  shape.prefix_shares = 40;
  shape.prefix_costs = {.tile = 4, .launch = 4};  // small plans suffice
  return shape;
}

/// Checks what `check_plan` does, that prefixes are read once and merged, and that each row reads the tiles after its
/// prefix. Returns the tiles of the prefix of each row.
std::vector<std::int32_t> check_prefixes(const attention_planner& planner, const rows_under_test& batch) {
  check_plan(planner);
  const auto& shape = planner.shape();
  auto partials = std::map<std::pair<int, int>, std::vector<int>>{};  // of prefix and task
  auto next = std::tuple(0, 0, 0);
  for (auto share = std::size_t{0}; share + 1 < planner.parts().prefix_shares.size(); ++share) {
    const auto& start = planner.parts().prefix_shares[share];
    const auto& last = planner.parts().prefix_shares[share + 1];
    auto partial = start.first_partial;
    REQUIRE(std::tuple(start.row, start.task, start.tile) == next);
    while (next != std::tuple(last.row, last.task, last.tile)) {
      auto& [row, task, tile] = next;
      const auto& prefix = planner.parts().prefixes[static_cast<std::size_t>(row)];
      partials[{row, task}].push_back(partial++);
      tile = row == last.row && task == last.task ? last.tile : prefix.num_tiles;
      next = tile < prefix.num_tiles
                 ? next
                 : (task + 1 < prefix.num_tasks ? std::tuple(row, task + 1, 0) : std::tuple(row + 1, 0, 0));
    }
  }
  CHECK(next == std::tuple(static_cast<int>(planner.parts().prefixes.size()), 0, 0));
  CHECK(partials.size() == planner.parts().prefixes.size() * static_cast<std::size_t>(shape.num_kv_heads));

  auto tiles = std::vector<std::int32_t>(planner.parts().rows.size());
  auto merged = std::set<std::pair<int, int>>{};
  for (auto i = std::size_t{0}; i < planner.parts().merges.size(); ++i) {
    const auto& merge = planner.parts().merges[i];
    const auto& row = planner.parts().rows[static_cast<std::size_t>(merge.row)];
    const auto& results = planner.parts().prefix_results[i];
    CHECK((row.first_tile > 0) == (results.num_partials > 0));
    if (results.num_partials == 0) {
      continue;
    }
    merged.insert({merge.row, merge.task});
    const auto head = merge.task / row.num_column_tiles;
    const auto query = results.first_column / shape.group_size;
    auto found = false;
    for (auto p = std::size_t{0}; p < planner.parts().prefixes.size(); ++p) {
      const auto& prefix = planner.parts().prefixes[p];
      if (partials[{static_cast<int>(p), head}].front() != results.first_partial) {
        continue;
      }
      found = true;
      CHECK(partials[{static_cast<int>(p), head}].size() == static_cast<std::size_t>(results.num_partials));
      REQUIRE(query < prefix.num_queries);
      const auto of_row = merge.task % row.num_column_tiles * shape.columns / shape.group_size;
      const auto& read = planner.parts().prefix_queries[static_cast<std::size_t>(prefix.first_query + query)];
      CHECK(read.token == row.first_query + of_row);
      CHECK(read.position == row.num_tokens - row.num_queries + of_row);
      CHECK(prefix.num_queries * shape.group_size <= shape.prefix_columns);
      CHECK(prefix.num_tiles == row.first_tile);
      const auto num_blocks = (prefix.num_tokens + shape.block_size - 1) / shape.block_size;
      for (auto block = 0; block < num_blocks; ++block) {
        CHECK(batch.indices[static_cast<std::size_t>(prefix.first_index + block)] ==
              batch.indices[static_cast<std::size_t>(row.first_index + block)]);
      }
    }
    CHECK(found);
    tiles[static_cast<std::size_t>(merge.row)] = row.first_tile;
  }
  auto with_prefix = std::size_t{0};
  for (const auto& row : planner.parts().rows) {
    CHECK(row.first_tile * 16 <= std::max(row.num_tokens - row.num_queries, 0));
    CHECK(row.num_tiles == (row.num_queries == 0 ? 1 : std::max((row.num_tokens + 15) / 16 - row.first_tile, 1)));
    with_prefix += row.first_tile > 0 ? static_cast<std::size_t>(row.num_tasks) : 0;
  }
  CHECK(merged.size() == with_prefix);
  return tiles;
}

TEST_CASE("a prefix that many sequences share is read once", "[attention_plan]") {
  const auto lengths = std::vector<std::int32_t>(40, 2100);
  auto planner = attention_planner(sharing_shape(40));
  const auto batch = rows_of_documents(lengths, std::vector<std::int32_t>(40, 0), std::vector<std::int32_t>(40, 2000));
  REQUIRE(planner.plan(batch.batch()));
  CHECK(check_prefixes(planner, batch) == std::vector<std::int32_t>(40, 125));
  // 32 queries have room among 128 columns; the other eight share another read.
  CHECK(planner.parts().prefixes.size() == 2);
}

TEST_CASE("prefixes are shared only where that saves time", "[attention_plan]") {
  auto planner = attention_planner(sharing_shape(40));
  const auto tiles_of = [&](std::size_t rows, std::int32_t shared, std::int32_t length) {
    const auto batch = rows_of_documents(std::vector<std::int32_t>(rows, length), std::vector<std::int32_t>(rows, 0),
                                         std::vector<std::int32_t>(rows, shared));
    REQUIRE(planner.plan(batch.batch()));
    const auto tiles = check_prefixes(planner, batch);
    CHECK(std::ranges::count(tiles, tiles[0]) == static_cast<std::ptrdiff_t>(rows));
    return tiles[0];
  };
  // Four reads cost as much as one for many columns.
  CHECK(tiles_of(2, 4000, 4100) == 0);
  CHECK(tiles_of(4, 4000, 4100) == 0);
  CHECK(tiles_of(8, 4000, 4100) == 250);
  // The merge takes 12 tiles for each of four heads; the launch takes four for each wave.
  CHECK(tiles_of(8, 32, 4100) == 0);
  CHECK(tiles_of(8, 192, 4100) == 0);
  CHECK(tiles_of(8, 640, 4100) == 0);
  CHECK(tiles_of(8, 656, 4100) == 41);
  CHECK(tiles_of(40, 0, 4100) == 0);
  CHECK(planner.parts().prefixes.empty());
}

TEST_CASE("costs of a device decide which prefixes are shared", "[attention_plan]") {
  // As `attention_shape_on` sets them for 16-bit numbers and an H200, where these batches were measured.
  auto shape = sharing_shape(64, 1056);
  shape.num_kv_heads = 8;
  shape.prefix_shares = 132;
  shape.prefix_costs = {};
  const auto shares = [&](std::size_t rows, std::int32_t shared, std::int32_t own) {
    auto planner = attention_planner(shape);
    const auto batch = rows_of_documents(std::vector<std::int32_t>(rows, shared + own),
                                         std::vector<std::int32_t>(rows, 0), std::vector<std::int32_t>(rows, shared));
    REQUIRE(planner.plan(batch.batch()));
    return !planner.parts().prefixes.empty();
  };
  CHECK(shares(64, 16384, 512));
  CHECK(shares(16, 16384, 512));
  CHECK_FALSE(shares(6, 16384, 512));
  CHECK_FALSE(shares(64, 2048, 2048));
  CHECK_FALSE(shares(64, 512, 4096));
  CHECK_FALSE(shares(32, 4096, 4096));
  shape.group_size = 8;
  CHECK(shares(64, 16384, 512));
  CHECK_FALSE(shares(64, 2048, 2048));
  shape.prefix_costs = {.tile = 4, .launch = 58};  // int8
  CHECK(shares(64, 16384, 512));
  CHECK(shares(16, 16384, 512));
  CHECK_FALSE(shares(6, 16384, 512));
  CHECK_FALSE(shares(3, 131072, 16));
  CHECK_FALSE(shares(64, 1024, 1024));
  shape.prefix_costs = {.tile = 10, .launch = 100};  // int8 without products of warpgroups
  CHECK(shares(64, 16384, 512));
  CHECK_FALSE(shares(6, 16384, 512));
  shape.num_kv_heads = 32;
  shape.group_size = 1;
  shape.prefix_costs = {.tile = 4, .launch = 58};
  CHECK(shares(6, 16384, 512));
  CHECK(shares(64, 1024, 1024));
  CHECK_FALSE(shares(3, 131072, 16));
  shape.prefix_costs = {};
  CHECK(shares(4, 16384, 512));
  CHECK(shares(64, 2048, 2048));
  CHECK_FALSE(shares(64, 512, 4096));
}

TEST_CASE("rows share the prefixes that save most", "[attention_plan]") {
  auto lengths = std::vector<std::int32_t>{};
  auto documents = std::vector<std::int32_t>{};
  auto shared = std::vector<std::int32_t>{};
  for (auto i = 0; i < 36; ++i) {
    lengths.push_back(i == 35 ? 600 : 5000 + 7 * i);
    documents.push_back(i % 3);
    shared.push_back(i == 34 ? 640 : 4096);
  }
  auto planner = attention_planner(sharing_shape(36));
  const auto batch = rows_of_documents(lengths, documents, shared, 512);
  REQUIRE(planner.plan(batch.batch()));
  auto expected = std::vector<std::int32_t>(36, 256);
  expected[34] = expected[35] = 0;  // alone they would cost more
  CHECK(check_prefixes(planner, batch) == expected);
  CHECK(planner.parts().prefixes.size() == 3);
  // Documents of two sequences each save less than what all have in common.
  for (auto i = std::size_t{0}; i < 36; ++i) {
    documents[i] = static_cast<std::int32_t>(i / 2);
  }
  const auto pairs = rows_of_documents(lengths, documents, shared, 512);
  REQUIRE(planner.plan(pairs.batch()));
  expected.assign(36, 32);
  const auto tiles = check_prefixes(planner, pairs);
  CHECK(std::ranges::count(tiles, 32) >= 32);
}

TEST_CASE("a sequence keeps a token of its own after a shared prefix", "[attention_plan]") {
  for (const auto block_size : {1, 5, 16, 64}) {
    auto shape = sharing_shape(20);
    shape.block_size = block_size;
    auto planner = attention_planner(shape);
    const auto batch = rows_of_documents(std::vector<std::int32_t>(20, 1280), std::vector<std::int32_t>(20, 0),
                                         std::vector<std::int32_t>(20, 1280), 0, block_size);
    REQUIRE(planner.plan(batch.batch()));
    CHECK(check_prefixes(planner, batch) == std::vector<std::int32_t>(20, (1280 - 1) / block_size * block_size / 16));
  }
}

TEST_CASE("queries of a row stay together in a prefix", "[attention_plan]") {
  auto shape = sharing_shape(20);
  shape.columns = 16;
  shape.max_partials = 400;
  auto planner = attention_planner(shape);
  auto batch = rows_of_documents(std::vector<std::int32_t>(20, 1500), std::vector<std::int32_t>(20, 0),
                                 std::vector<std::int32_t>(20, 1400));
  batch.query_indptr = {0};
  for (auto i = 0; i < 20; ++i) {
    batch.query_indptr.push_back(batch.query_indptr.back() + (i == 7 ? 0 : 1 + i % 5));
  }
  REQUIRE(planner.plan(batch.batch()));
  const auto tiles = check_prefixes(planner, batch);
  CHECK(tiles[7] == 0);
  CHECK(std::ranges::count(tiles, 87) == 19);
}

TEST_CASE("a row without queries takes one tile", "[attention_plan]") {
  auto batch = rows_under_test({100, 900, 50}, 16);
  batch.query_indptr = {0, 1, 1, 3};
  auto planner = attention_planner(shape_of(3, 3));
  REQUIRE(planner.plan(batch.batch()));
  check_plan(planner);
  CHECK(planner.parts().rows[1].num_tiles == 1);
}

TEST_CASE("options that share no prefix", "[attention_plan]") {
  const auto batch = rows_of_documents(std::vector<std::int32_t>(20, 1500), std::vector<std::int32_t>(20, 0),
                                       std::vector<std::int32_t>(20, 1400));
  const auto check_flat = [&](const attention_shape& shape) {
    auto planner = attention_planner(shape);
    REQUIRE(planner.plan(batch.batch()));
    check_plan(planner);
    CHECK(planner.parts().prefixes.empty());
    CHECK(planner.parts().prefix_shares.empty());
    CHECK(planner.bytes().size() == attention_plan_layout(shape_of(64, 20)).bytes);
  };
  auto shape = sharing_shape(20);
  shape.window = 4000;
  check_flat(shape);
  shape = sharing_shape(20);
  shape.prefix_columns = 0;
  check_flat(shape);
  shape = sharing_shape(20);
  shape.split_tokens = 256;
  shape.max_partials = 1000;
  auto planner = attention_planner(shape);
  REQUIRE(planner.plan(batch.batch()));
  check_plan(planner);
  CHECK(planner.parts().prefixes.empty());
}

TEST_CASE("a plan keeps shared prefixes while sequences grow", "[attention_plan]") {
  auto lengths = std::vector<std::int32_t>(20, 1500);
  const auto make = [&] {
    return rows_of_documents(lengths, std::vector<std::int32_t>(lengths.size(), 0),
                             std::vector<std::int32_t>(lengths.size(), 1400));
  };
  auto planner = attention_planner(sharing_shape(20));
  REQUIRE(planner.plan(make().batch()));
  const auto words = planner.parts().prefix_shares[20].tile;
  for (auto step = 0; step < 100; ++step) {
    for (auto& length : lengths) {
      ++length;
    }
    const auto batch = make();
    REQUIRE(planner.update(batch.batch()));
    CHECK(check_prefixes(planner, batch) == std::vector<std::int32_t>(20, 87));
    CHECK(planner.parts().prefix_shares[20].tile == words);
  }
  lengths[3] = 1390;
  const auto shorter = make();
  REQUIRE(planner.update(shorter.batch()));
  CHECK(check_prefixes(planner, shorter)[3] != 87);
  lengths.resize(2);
  const auto two = make();
  REQUIRE(planner.update(two.batch()));
  CHECK(check_prefixes(planner, two) == std::vector<std::int32_t>(2, 0));
}

TEST_CASE("prefixes of random batches", "[attention_plan]") {
  auto random = std::mt19937(3);
  for (auto round = 0; round < 200; ++round) {
    INFO("round " << round);
    auto lengths = std::vector<std::int32_t>{};
    auto documents = std::vector<std::int32_t>{};
    auto shared = std::vector<std::int32_t>{};
    const auto num_rows = 1 + random() % 80;
    const auto num_documents = 1 + random() % 8;
    for (auto i = std::size_t{0}; i < num_rows; ++i) {
      lengths.push_back(static_cast<std::int32_t>(random() % 3000));
      documents.push_back(static_cast<std::int32_t>(random() % num_documents));
      shared.push_back(static_cast<std::int32_t>(random() % 3000));
    }
    auto shape = sharing_shape(80, 1 + static_cast<std::int32_t>(random() % 100));
    shape.prefix_shares = 1 + static_cast<std::int32_t>(random() % 60);
    auto planner = attention_planner(shape);
    const auto batch = rows_of_documents(lengths, documents, shared, static_cast<std::int32_t>(random() % 1000));
    REQUIRE(planner.plan(batch.batch()));
    check_prefixes(planner, batch);
  }
}

}  // namespace
