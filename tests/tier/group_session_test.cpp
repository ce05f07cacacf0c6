#include "../groups/group_engine.hpp"
#include "temporary_folder.hpp"

#include <pagedkv/requests/request_tracker.hpp>
#include <pagedkv/tier/hand_over.hpp>
#include <pagedkv/tier/session_file.hpp>
#include <pagedkv/tier/tiered_cache.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;
using testing::temporary_folder;

namespace {

using groups_engine = engine<group_cache<float32>>;

/// Restores a session whose tokens the test knows, and checks everything that its next token reads.
std::optional<sequence_id> restore(groups_engine& into, const groups_engine::live& saved, const std::string& path) {
  const auto restored = restore_sequence(into.cache, path);
  if (!restored) {
    return std::nullopt;
  }
  auto& s = into.sequences[restored->id];
  s = saved;
  s.computed = std::max(saved.computed, restored->num_cached_tokens);
  CHECK(into.cache.describe(restored->id)->num_computed_tokens == s.computed);
  auto text = tokens(saved.text.size());
  CHECK(into.cache.tokens(restored->id, 0, text));
  CHECK(text == saved.text);
  into.check(restored->id);
  CHECK(into.cache.check_invariants().empty());
  return restored->id;
}

void release_all(groups_engine& from) {
  while (!from.sequences.empty()) {
    from.release(from.sequences.begin()->first);
  }
  CHECK(from.cache.check_invariants().empty());
}

}  // namespace

TEST_CASE("sessions with groups, windows and states are restored as they were saved", "[tier][session][random]") {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  const auto folder = temporary_folder{};
  const auto path = folder.file("session");
  for (const auto& [kind, groups] : kinds) {
    CAPTURE(kind);
    for (int round = 0; round < 15; ++round) {
      auto one = groups_engine{config_of(groups)};
      const auto length = static_cast<int>(random() % 90);
      const auto id = one.create(counted(length), {.salt = salt{3}, .saving = {.every = 8, .at_end = true}}).value();
      one.compute(id, static_cast<std::int64_t>(random() % static_cast<unsigned>(length + 1)));
      CAPTURE(length, one.sequences.at(id).computed);
      REQUIRE(save_sequence(one.cache, id, path));
      const auto saved = one.sequences.at(id);

      auto another = groups_engine{config_of(groups)};
      const auto restored = restore(another, saved, path).value();
      CHECK(another.cache.describe(restored)->options.salt == salt{3});
      CHECK(another.cache.describe(restored)->options.saving.every == 8);
      CHECK(another.cache.describe(restored)->options.saving.at_end);
      // It goes on, and others share what is whole of it: every hit has its contents.
      another.compute(restored);
      REQUIRE(another.append(restored, counted(20, 500)));
      another.compute(restored);
      another.check(restored);
      for (const auto end : {length + 10, length / 2, length + 20}) {
        auto text = another.sequences.at(restored).text;
        text.resize(static_cast<std::size_t>(end));
        const auto sharing = another.create(text, {.salt = salt{3}});
        REQUIRE(sharing);
        another.compute(*sharing);
        another.check(*sharing);
      }
      release_all(another);

      // Where it is cached, it shares.
      const auto again = restore(one, saved, path);
      REQUIRE(again);
      one.compute(*again);
      one.check(*again);
      release_all(one);
    }
  }
}

TEST_CASE("after a restored session has ended, hits have what they need", "[tier][session]") {
  const auto folder = temporary_folder{};
  const auto path = folder.file("session");
  for (const auto& [kind, groups] : kinds) {
    CAPTURE(kind);
    auto one = groups_engine{config_of(groups)};
    const auto id = one.create(counted(64), {.saving = {.every = 4}}).value();
    one.compute(id);
    REQUIRE(save_sequence(one.cache, id, path));
    auto another = groups_engine{config_of(groups)};
    another.release(restore(another, one.sequences.at(id), path).value());
    for (const auto length : {65, 64, 61, 50, 33, 10}) {
      CAPTURE(length);
      const auto next = another.create(counted(length)).value();  // checks what a hit brings
      another.compute(next);
      another.check(next);
      another.release(next);
    }
    CHECK(another.cache.find_prefix(counted(70)) >= 60);
  }
}

TEST_CASE("what a restored session computed is found up to the last whole block", "[tier][session]") {
  const auto folder = temporary_folder{};
  const auto path = folder.file("session");
  for (const auto& [kind, groups] : kinds) {
    for (auto computed = 0; computed <= 66; ++computed) {
      CAPTURE(kind, computed);
      auto one = groups_engine{config_of(groups)};
      const auto id = one.create(counted(computed + 3), {.saving = {.every = 4}}).value();
      one.compute(id, computed);
      const auto before = one.cache.statistics();
      REQUIRE(save_sequence(one.cache, id, path));
      CHECK(one.cache.statistics().blocks == before.blocks);
      CHECK(one.cache.statistics().num_pins == 0);
      auto another = groups_engine{config_of(groups)};
      another.release(restore(another, one.sequences.at(id), path).value());
      // Each checks what its hit brings. The last token of a prompt is left to compute.
      const auto again = another.create(counted(computed)).value();
      CHECK(another.sequences.at(again).computed == std::max(computed - 1, 0) / 4 * 4);
      const auto longer = another.create(counted(computed + 20)).value();
      CHECK(another.sequences.at(longer).computed == computed / 4 * 4);
      for (const auto next : {again, longer}) {
        another.compute(next);
        another.check(next);
      }
    }
  }
}

TEST_CASE("a cache with tiers finds what a restored session computed", "[tier][session]") {
  using tiered_engine = engine<kv_cache<float32, layer_groups, host_tier<>>>;
  const auto folder = temporary_folder{};
  const auto path = folder.file("session");
  for (const auto& [kind, groups] : kinds) {
    for (const auto computed : {30, 39, 43, 44}) {
      CAPTURE(kind, computed);
      auto one = tiered_engine{config_of(groups), tier_config{}, basic_host_tier<host_allocator, lru>{256}};
      const auto id = one.create(counted(computed), {.saving = {.every = 4}}).value();
      one.compute(id);
      REQUIRE(save_sequence(one.cache, id, path));
      auto another = tiered_engine{config_of(groups), tier_config{.write = write_policy::through},
                                   basic_host_tier<host_allocator, lru>{256}};
      const auto restored = restore_sequence(another.cache, path)->id;
      another.sequences[restored] = one.sequences.at(id);
      another.check(restored);
      another.release(restored);
      CHECK(another.serve(counted(60), {.saving = {.every = 4}}) == computed / 4 * 4);
      another.check_invariants();
    }
  }
}

TEST_CASE("a session has the newest state that was saved before its end", "[tier][session]") {
  const auto folder = temporary_folder{};
  const auto path = folder.file("session");
  for (const auto& groups : {group_list{full, state}, group_list{latent, with_sinks, state}}) {
    auto one = groups_engine{config_of(groups)};
    const auto id = one.create(counted(30)).value();  // saved at 28
    one.compute(id);
    for (const auto length : {30, 31, 34, 39}) {
      CAPTURE(length);
      REQUIRE(one.append(id, counted(length - static_cast<int>(one.sequences.at(id).text.size()), 30)));
      one.compute(id);
      REQUIRE(save_sequence(one.cache, id, path));
      auto another = groups_engine{config_of(groups)};
      const auto restored = restore(another, one.sequences.at(id), path).value();
      another.compute(restored);
      another.check(restored);
      another.release(restored);
      CHECK(another.serve(counted(60)) == 28);
      auto twice = restore(another, one.sequences.at(id), path).value();  // finds it
      another.check(twice);
      CHECK(another.cache.describe(twice)->num_cached_tokens == 28);
    }
  }
}

TEST_CASE("a session has a state that another sequence saved", "[tier][session]") {
  const auto folder = temporary_folder{};
  const auto path = folder.file("session");
  for (const auto& groups : {group_list{full, state}, group_list{latent, with_sinks, state}}) {
    for (const auto at_branches : {false, true}) {
      CAPTURE(at_branches);
      auto one = groups_engine{config_of(groups)};
      const auto id = one.create(counted(50), {.num_prompt_tokens = 30, .saving = {.at_prompt_end = false}}).value();
      one.compute(id);
      REQUIRE(one.cache.find_prefix(counted(60)) == 0);
      auto other = counted(46);
      other.resize(60);  // leaves the first one after 46 tokens
      const auto saving = state_saving{.at_branches = at_branches, .at_prompt_end = !at_branches};
      const auto branch = one.create(at_branches ? other : counted(46), {.saving = saving}).value();
      one.compute(branch);
      REQUIRE(one.cache.find_prefix(counted(60)) == 44);
      REQUIRE(save_sequence(one.cache, id, path));
      auto another = groups_engine{config_of(groups)};
      another.release(restore(another, one.sequences.at(id), path).value());
      CHECK(another.serve(counted(60)) == 44);
    }
  }
}

TEST_CASE("a session takes at most a block of each window for hits", "[tier][session]") {
  const auto folder = temporary_folder{};
  auto longest = std::uintmax_t{0};  // of sessions with the same last whole block
  auto shortest = std::numeric_limits<std::uintmax_t>::max();
  auto one = groups_engine{config_of({full, window, with_sinks})};
  const auto id = one.create(counted(200)).value();
  for (const auto computed : {149, 150, 151, 152}) {
    one.compute(id, computed);
    REQUIRE(save_sequence(one.cache, id, folder.file("session")));
    longest = std::max(longest, std::filesystem::file_size(folder.file("session")));
    shortest = std::min(shortest, std::filesystem::file_size(folder.file("session")));
  }
  const auto record_bytes = make_record_format(one.cache, "").record_bytes();
  CHECK(longest - shortest <= 2 * record_bytes);
}

TEST_CASE("a session is saved without blocks that are reserved ahead", "[tier][session]") {
  const auto folder = temporary_folder{};
  auto one = groups_engine{config_of({full, window})};
  const auto id = one.create(counted(200)).value();
  one.compute(id, 200);
  REQUIRE(save_sequence(one.cache, id, folder.file("without")));
  REQUIRE(one.cache.reserve_slots(id, 100));
  REQUIRE(save_sequence(one.cache, id, folder.file("with")));
  CHECK(std::filesystem::file_size(folder.file("with")) == std::filesystem::file_size(folder.file("without")));
}

TEST_CASE("a session is saved without blocks that were evicted behind its windows", "[tier][session]") {
  const auto folder = temporary_folder{};
  const auto path = folder.file("session");
  auto one = groups_engine{config_of({full, window}, 60)};
  const auto id = one.create(counted(50)).value();
  one.compute(id, 47);
  for (auto first = 1'000; one.cache.statistics().evictions < 20; first += 1'000) {
    one.release(one.hold(counted(60, first)));
  }
  REQUIRE(save_sequence(one.cache, id, path));
  auto another = groups_engine{config_of({full, window})};
  another.release(restore(another, one.sequences.at(id), path).value());
  CHECK(another.cache.find_prefix(counted(70)) < 44);
}

namespace {

/// Host memory; another thread's work happens while blocks are copied for a session.
struct interrupted_backend : host_backend {
  static constexpr std::string_view name = "interrupted";

  result<void> swap_blocks(const block_storage_view& from, const block_storage_view& to,
                           std::span<const block_pair> pairs, swap_direction direction, stream_type stream) noexcept {
    if (*interrupt) {
      std::exchange(*interrupt, {})();
    }
    return host_backend::swap_blocks(from, to, pairs, direction, stream);
  }
  std::function<void()>* interrupt = nullptr;
};

}  // namespace

TEST_CASE("a session is right where all pins end while it is saved", "[tier][session]") {
  const auto folder = temporary_folder{};
  const auto path = folder.file("session");
  auto interrupt = std::function<void()>{};
  using interrupted_engine = engine<group_cache<float32, interrupted_backend>>;
  auto backend = interrupted_backend{};
  backend.interrupt = &interrupt;
  auto one = interrupted_engine{config_of({full, window}, 60), host_allocator{}, backend};
  const auto id = one.create(counted(50)).value();
  one.compute(id, 47);
  interrupt = [&] {
    CHECK(one.cache.unpin_all() == 1);
    for (auto first = 1'000; one.cache.statistics().evictions < 20; first += 1'000) {
      one.release(one.hold(counted(60, first)));
    }
  };
  REQUIRE(save_sequence(one.cache, id, path));
  CHECK(!interrupt);
  auto another = groups_engine{config_of({full, window})};
  auto saved = groups_engine::live{one.sequences.at(id).text, 47, {}};
  another.release(restore(another, saved, path).value());
  for (const auto length : {70, 47, 30}) {
    another.serve(counted(length));  // checks what a hit brings
  }
}

TEST_CASE("a request adopts a restored session with all that its next token reads", "[tier][session][requests]") {
  const auto folder = temporary_folder{};
  const auto path = folder.file("session");
  for (const auto& [kind, groups] : kinds) {
    CAPTURE(kind);
    auto one = groups_engine{config_of(groups)};
    const auto id = one.create(counted(47)).value();
    one.compute(id, 43);
    REQUIRE(save_sequence(one.cache, id, path));
    auto another = groups_engine{config_of(groups)};
    auto tracker = request_tracker{another.cache};
    const auto restored = restore(another, one.sequences.at(id), path).value();
    const auto request = tracker.adopt(restored).value();
    REQUIRE(tracker.append(request, counted(9, 500)));
    auto& s = another.sequences.at(restored);
    for (const auto next : counted(9, 500)) {
      s.text.push_back(next);
    }
    another.compute(restored);  // from the token on that was not computed
    another.check(restored);
    REQUIRE(tracker.finish(request));
    CHECK(another.cache.statistics().blocks.in_use == 0);
    CHECK(another.cache.check_invariants().empty());
  }
}

TEST_CASE("a session with groups of another shape, or torn, is refused", "[tier][session]") {
  const auto folder = temporary_folder{};
  const auto path = folder.file("session");
  auto one = groups_engine{config_of({full, with_sinks, state})};
  const auto id = one.create(counted(50)).value();
  one.compute(id);
  REQUIRE(save_sequence(one.cache, id, path));
  const auto saved = one.sequences.at(id);
  auto other_window = with_sinks;
  other_window.window = 13;
  for (const auto& groups : {group_list{full, other_window, state}, group_list{full, with_sinks}, group_list{full}}) {
    auto another = groups_engine{config_of(groups)};
    CHECK(!restore(another, saved, path));
    CHECK(another.cache.num_free_blocks() == 400);
  }
  auto another = groups_engine{config_of({full, with_sinks, state})};
  const auto size = std::filesystem::file_size(path);
  for (auto left = size - 1; left > 0; left -= std::min<std::uintmax_t>(left, 97)) {
    CAPTURE(left);
    std::filesystem::resize_file(path, left);
    REQUIRE(!restore(another, saved, path));
  }
  CHECK(another.cache.num_free_blocks() == 400);
  REQUIRE(save_sequence(one.cache, id, path));
  CHECK(restore(another, saved, path));

  auto small = groups_engine{config_of({full, with_sinks, state}, 8)};
  CHECK(restore_sequence(small.cache, path).has_error());
  CHECK(small.cache.num_free_blocks() == 8);
}

TEST_CASE("an offer that lacks a block of a group is refused", "[tier][session][hand_over]") {
  auto one = groups_engine{config_of({full, with_sinks, state})};
  const auto id = one.create(counted(50)).value();
  one.compute(id);
  const auto offer = offer_sequence(one.cache, id).value();
  auto another = groups_engine{config_of({full, with_sinks, state})};
  const auto is_refused = [&](const sequence_offer& changed) {
    const auto made = accept_sequence(another.cache, changed, one.cache.blocks());
    return made.has_error() && made.error().code == error_code::invalid_argument &&
           another.cache.num_free_blocks() == 400;
  };
  auto end = std::ptrdiff_t{0};
  for (std::size_t g = 0; g < 3; ++g) {
    CAPTURE(g);
    const auto& table = offer.head.tables[g];
    REQUIRE(table.num_entries > table.num_leading);
    const auto begin = std::exchange(end, end + table.num_entries);
    const auto without = [&](std::int64_t entry) {
      auto changed = offer;
      --changed.head.tables[g].num_entries;
      changed.blocks.erase(changed.blocks.begin() + begin + entry);
      return changed;
    };
    CHECK(is_refused(without(table.num_entries - 1)));
    auto later = without(table.num_leading);
    ++later.head.tables[g].first_place;
    CHECK(is_refused(later));
    if (table.num_leading != 0) {
      auto no_sink = without(0);
      --no_sink.head.tables[g].num_leading;
      CHECK(is_refused(no_sink));
    }
  }
  REQUIRE(offer.head.tables[1].num_leading != 0);
  CHECK(accept_sequence(another.cache, offer, one.cache.blocks()));
}

TEST_CASE("keys of a sequence with groups go with it", "[tier][session]") {
  const auto folder = temporary_folder{};
  const auto prompt = counted(29);  // a hit before its end finds the whole window in the session
  const auto image = std::array{prefix_key{5, {1, 2}}};
  auto one = groups_engine{config_of({full, window})};
  const auto id = one.cache.create_sequence({prompt, image})->id;
  one.sequences[id].text = prompt;
  one.compute(id);
  REQUIRE(save_sequence(one.cache, id, folder.file("session")));
  const auto check = [&](groups_engine& into, sequence_id made) {
    auto keys = std::vector<prefix_key>(2);
    CHECK(into.cache.keys(made, keys).value() == 1);
    CHECK(keys.front() == image.front());
    CHECK(into.cache.find_prefix({prompt, image}) > 20);
    CHECK(into.cache.find_prefix(prompt) < 8);
  };
  auto another = groups_engine{config_of({full, window})};
  check(another, restore(another, one.sequences.at(id), folder.file("session")).value());
  auto third = groups_engine{config_of({full, window})};
  check(third, hand_over(one.cache, id, third.cache)->id);
}

TEST_CASE("forks of a sequence with groups are saved apart", "[tier][session]") {
  const auto folder = temporary_folder{};
  auto one = groups_engine{config_of({full, window, state})};
  const auto first = one.create(counted(30)).value();
  one.compute(first);
  const auto second = one.fork(first).value();
  REQUIRE(one.append(first, counted(9, 100)));
  REQUIRE(one.append(second, counted(9, 200)));
  one.compute(first);
  one.compute(second);
  REQUIRE(save_sequence(one.cache, first, folder.file("a")));
  REQUIRE(save_sequence(one.cache, second, folder.file("b")));
  auto another = groups_engine{config_of({full, window, state})};
  const auto a = restore(another, one.sequences.at(first), folder.file("a")).value();
  const auto b = restore(another, one.sequences.at(second), folder.file("b")).value();
  another.check(a);
  another.check(b);
}
