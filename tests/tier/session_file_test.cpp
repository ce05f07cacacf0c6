#include "../support/messages.hpp"
#include "damage.hpp"
#include "temporary_folder.hpp"
#include "written_sequences.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/element/int8.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/tier/session_file.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::testing;

namespace {

std::vector<std::byte> bytes_of(const std::string& path) {
  auto bytes = std::vector<std::byte>(std::filesystem::file_size(path));
  std::ifstream{path, std::ios::binary}.read(reinterpret_cast<char*>(bytes.data()), std::ssize(bytes));
  return bytes;
}

template <class Cache>
bool refuses(Cache& cache, const std::string& path) {
  const auto restored = restore_sequence(cache, path);
  return restored.has_error() && restored.error().code == error_code::invalid_argument &&
         cache.num_available_blocks() == cache.num_blocks() && cache.statistics().num_sequences == 0;
}

using plain = kv_cache<>;
using scaled = kv_cache<int8, lock_free, clock_sweep>;
using by_block = kv_cache<float32, hnd_block_major, rw_lock>;
using by_layer = kv_cache<bfloat16, nhd_layer_major, sharded_mutex, clock_sweep>;

}  // namespace

TEMPLATE_TEST_CASE("a session is restored as it was saved", "[tier][session]", plain, scaled, by_block, by_layer,
                   cache_with_tier) {
  const auto folder = temporary_folder{};
  const auto path = folder.file("session");
  for (const auto size : {std::size_t{1}, std::size_t{4}, std::size_t{11}, std::size_t{80}, std::size_t{0}}) {
    CAPTURE(size);
    const auto tokens = text(7, size);
    auto keys = std::vector<prefix_key>{};
    if (size > 8) {
      keys = {{1, {2, 3}}, {5, {6, 7}}, {5, {8, 9}}};
    }
    auto options = sequence_options{};
    options.salt = salt{5};
    options.priority = 70;
    options.expected_return = 9;
    options.num_prompt_tokens = 3;
    options.ranges[1] = {2, 6, {80, 11}};
    options.answer = block_retention{90, 12};
    {
      auto cache = TestType{small_config()};
      const auto id = create_written(cache, {tokens, keys}, options, size > 8 ? 1 : 0);
      REQUIRE(save_sequence(cache, id, path));
    }
    auto cache = TestType{small_config(32, 2)};
    const auto other = create_written(cache, text(1'000, 6));
    const auto restored = restore_sequence(cache, path);
    REQUIRE(restored);
    CHECK(restored->num_cached_tokens == 0);
    const auto id = restored->id;
    CHECK(tokens_of(cache, id) == tokens);
    auto restored_keys = std::vector<prefix_key>(keys.size());
    CHECK(cache.keys(id, restored_keys).value() == keys.size());
    CHECK(restored_keys == keys);
    const auto info = cache.describe(id).value();
    CHECK(info.num_computed_tokens == static_cast<std::int64_t>(size) - (size > 8 ? 1 : 0));
    CHECK(info.num_prompt_tokens == std::min<std::int64_t>(3, std::ssize(tokens)));
    CHECK(info.options.salt == salt{5});
    CHECK(info.options.priority == 70);
    CHECK(info.options.expected_return == 9);
    CHECK(info.options.ranges[1].last == 6);
    CHECK(info.options.ranges[1].retention.duration == 11);
    CHECK(info.options.answer.value().priority == 90);
    CHECK(has_rows(cache, id, tokens, 0, size));
    CHECK(has_rows(cache, other, text(1'000, 6), 0, 6));
    // Its full blocks are published, for the same salt and keys.
    const auto num_full = info.num_computed_tokens / block_size * block_size;
    auto longer = tokens;
    longer.push_back(1);
    CHECK(cache.find_prefix({longer, keys}, salt{5}) == num_full);
    CHECK(cache.find_prefix({longer, keys}, salt{6}) == 0);
    // It goes on like any other.
    REQUIRE(cache.append(id, text(500, 9)));
    CHECK(cache.check_invariants().empty());
    REQUIRE(cache.release(id));
    REQUIRE(cache.release(other));
    CHECK(cache.check_invariants().empty());
  }
}

TEST_CASE("a restored session shares what is there already", "[tier][session]") {
  const auto folder = temporary_folder{};
  const auto path = folder.file("session");
  const auto tokens = text(7, 22);
  auto cache = plain{small_config()};
  const auto id = create_written(cache, tokens);
  REQUIRE(save_sequence(cache, id, path));

  SECTION("while the saved one lives") {
    const auto restored = restore_sequence(cache, path).value();
    CHECK(restored.num_cached_tokens == 20);
    CHECK(restored.num_new_blocks == 1);
    CHECK(has_rows(cache, restored.id, tokens, 0, 22));
    REQUIRE(cache.release(id));
    CHECK(has_rows(cache, restored.id, tokens, 0, 22));
  }
  SECTION("of a shorter prefix") {
    auto another = plain{small_config(32, 2)};
    const auto other = create_written(another, text(7, 10));
    const auto restored = restore_sequence(another, path).value();
    CHECK(restored.num_cached_tokens == 8);
    CHECK(has_rows(another, restored.id, tokens, 0, 22));
    CHECK(has_rows(another, other, text(7, 10), 0, 10));
    CHECK(another.check_invariants().empty());
  }
  SECTION("more than the saved one had computed") {
    const auto early = cache.create_sequence(text(300, 12)).value().id;
    write_rows(cache, early, text(300, 12));
    REQUIRE(save_sequence(cache, early, path));
    REQUIRE(cache.commit(early, 12));
    const auto restored = restore_sequence(cache, path).value();
    CHECK(restored.num_cached_tokens == 8);
    CHECK(cache.describe(restored.id)->num_computed_tokens == 8);
    CHECK(has_rows(cache, restored.id, text(300, 12), 0, 8));
  }
}

TEST_CASE("forks are saved apart", "[tier][session]") {
  const auto folder = temporary_folder{};
  auto cache = plain{small_config()};
  const auto first = create_written(cache, text(7, 10));
  const auto second = cache.fork(first).value();
  auto long_first = text(7, 10);
  auto long_second = text(7, 10);
  for (token i = 0; i < 5; ++i) {
    long_first.push_back(100 + i);
    long_second.push_back(200 + i);
    REQUIRE(cache.append(first, token{100 + i}));
    REQUIRE(cache.append(second, token{200 + i}));
  }
  write_rows(cache, first, long_first, 10);
  write_rows(cache, second, long_second, 10);
  REQUIRE(save_sequence(cache, first, folder.file("a")));
  REQUIRE(save_sequence(cache, second, folder.file("b")));
  auto another = plain{small_config(32, 2)};
  const auto a = restore_sequence(another, folder.file("a")).value();
  const auto b = restore_sequence(another, folder.file("b")).value();
  CHECK(tokens_of(another, a.id) == long_first);
  CHECK(tokens_of(another, b.id) == long_second);
  CHECK(has_rows(another, a.id, long_first, 0, 15));
  CHECK(has_rows(another, b.id, long_second, 0, 15));
  CHECK(b.num_cached_tokens == 8);
  CHECK(another.check_invariants().empty());
}

TEST_CASE("a session whose first blocks were dropped is restored with its window", "[tier][session]") {
  const auto folder = temporary_folder{};
  const auto path = folder.file("session");
  const auto tokens = text(7, 22);
  auto cache = plain{small_config()};
  const auto id = create_written(cache, tokens);
  REQUIRE(cache.drop_before(id, 13));
  CHECK(cache.tokens(id, 11, {}).error().code == error_code::invalid_argument);

  // The dropped tokens are the caller's to tell.
  CHECK(test::said(save_sequence(cache, id, path)) ==
        test::invalid("tokens in contents of a session, which are not the sequence's, is 0, limit 22"));
  auto others = tokens;
  others[14] += 1;
  CHECK(test::said(save_sequence(cache, id, path, session_options<>{.contents = others})) ==
        test::invalid("position in contents of a session, where the token is not the sequence's, is 14"));
  const auto keys = std::array{prefix_key{3, {1, 2}}};
  CHECK(test::said(save_sequence(cache, id, path, session_options<>{.contents = {tokens, keys}})) ==
        test::invalid("keys in contents of a session, which are not the sequence's, is 1, limit 0"));
  CHECK(!std::filesystem::exists(path));
  REQUIRE(save_sequence(cache, id, path, session_options<>{.contents = tokens}));
  const auto own_keys = std::array{prefix_key{1, {2, 3}}, prefix_key{5, {6, 7}}};
  const auto other_keys = std::array{own_keys[0], prefix_key{5, {6, 8}}};
  const auto keyed = create_written(cache, {text(70, 6), own_keys});
  CHECK(test::said(save_sequence(cache, keyed, folder.file("keyed"),
                                 session_options<>{.contents = {text(70, 6), other_keys}})) ==
        test::invalid("position of a key in contents of a session, which is not the sequence's, is 5"));

  auto another = plain{small_config(32, 2)};
  const auto restored = restore_sequence(another, path).value();
  CHECK(has_rows(another, restored.id, tokens, 12, 10));
  auto blocks = std::vector<block_id>(6);
  REQUIRE(another.block_table(restored.id, blocks));
  CHECK(std::ranges::count(blocks, no_block) == 3);
  CHECK(another.find_prefix(tokens) == 0);
  CHECK(another.num_free_blocks() == 29);
  CHECK(another.check_invariants().empty());

  // All of them may be gone.
  REQUIRE(cache.append(id, text(29, 2)));
  REQUIRE(cache.commit(id, 24));
  REQUIRE(cache.drop_before(id, 24));
  REQUIRE(save_sequence(cache, id, path, session_options<>{.contents = text(7, 24)}));
  const auto empty = restore_sequence(another, path).value();
  CHECK(another.describe(empty.id)->num_computed_tokens == 24);
  CHECK(another.num_free_blocks() == 29);

  // A single one is missed, too.
  auto config = small_config();
  config.block_size = 1;
  auto by_token = plain{config};
  const auto without_first = create_written(by_token, text(7, 3));
  REQUIRE(by_token.drop_before(without_first, 1));
  CHECK(test::said(save_sequence(by_token, without_first, folder.file("another"))) ==
        test::invalid("tokens in contents of a session, which are not the sequence's, is 0, limit 3"));
}

TEST_CASE("a session survives its process", "[tier][session]") {
  const auto folder = temporary_folder{};
  const auto path = folder.file("session");
  const auto child = fork();
  if (child == 0) {
    auto cache = plain{small_config()};
    const auto id = create_written(cache, text(7, 30));
    _exit(save_sequence(cache, id, path) ? 0 : 1);
  }
  auto status = 0;
  waitpid(child, &status, 0);
  REQUIRE(status == 0);
  auto cache = plain{small_config(32, 2)};
  const auto restored = restore_sequence(cache, path).value();
  CHECK(has_rows(cache, restored.id, text(7, 30), 0, 30));
}

TEST_CASE("a session that is damaged anywhere, or cut, is refused, and the cache stays as it was", "[tier][session]") {
  const auto folder = temporary_folder{};
  const auto path = folder.file("session");
  {
    auto cache = plain{small_config()};
    const auto keys = std::vector<prefix_key>{{1, {2, 3}}};
    REQUIRE(save_sequence(cache, create_written(cache, {text(7, 6), keys}), path));
  }
  const auto whole = bytes_of(path);
  auto cache = plain{small_config(32, 2)};
  const auto refuses_bytes = [&](std::span<const std::byte> damaged) {
    put_bytes(path, damaged);
    return refuses(cache, path);
  };
  damage_everywhere(whole, refuses_bytes);
  auto longer = whole;
  longer.push_back(std::byte{});
  CHECK(refuses_bytes(longer));
  const auto size = std::to_string(whole.size());
  CHECK(test::said(restore_sequence(cache, path)) ==
        test::invalid("bytes of a session's file, which is damaged, is " + std::to_string(longer.size()) + ", limit " +
                      size + " (" + path + ")"));
  auto last_flipped = whole;
  last_flipped.back() ^= std::byte{1};
  put_bytes(path, last_flipped);
  CHECK(test::said(restore_sequence(cache, path)) ==
        test::invalid("record of a session's file, which is damaged, is 1 (" + path + ")"));
  CHECK(!refuses_bytes(whole));
}

TEST_CASE("a session of another format is refused", "[tier][session]") {
  const auto folder = temporary_folder{};
  const auto path = folder.file("session");
  auto cache = plain{small_config()};
  REQUIRE(save_sequence(cache, create_written(cache, text(7, 10)), path, session_options<>{.model = "one"}));
  auto another = plain{small_config(32, 2)};
  CHECK(refuses(another, path));
  const auto said_of = [&](plain& restored, std::string_view model) {
    return test::said(restore_sequence(restored, path, session_options<>{.model = model}));
  };
  const auto found = restore_sequence(another, path, session_options<>{.model = "one"});
  auto wider = kv_cache<float32>{small_config()};
  CHECK(restore_sequence(wider, path, session_options<>{.model = "one"}).error().code ==
        error_code::invalid_argument);
  auto config = small_config();
  config.num_layers = 4;
  auto deeper = plain{config};
  CHECK(test::said(restore_sequence(deeper, path, session_options<>{.model = "one"})) ==
        test::invalid("bytes of a session's file, which is of another format, is " +
                      std::to_string(std::filesystem::file_size(path)) + " (has layers=3, not layers=4: " + path +
                      ")"));
  CHECK(said_of(another, "two").ends_with(" (has model=one, not model=two: " + path + ")"));
  CHECK(said_of(another, "").ends_with(" (has model=one, not model=: " + path + ")"));
  CHECK(found);
}

TEST_CASE("sessions that cannot be saved or restored are errors", "[tier][session]") {
  const auto folder = temporary_folder{};
  const auto path = folder.file("session");
  auto cache = plain{small_config()};
  CHECK(save_sequence(cache, sequence_id{}, path).error().code == error_code::unknown_sequence);
  CHECK(restore_sequence(cache, path).error().value == ENOENT);
  CHECK(test::said(restore_sequence(cache, path)) ==
        "backend failure: opening a session's file answered 2 (No such file or directory: " + path + ")");
  const auto chunked = cache.create_sequence(text(7, 20), {.first_chunk = 5}).value().id;
  CHECK(test::said(save_sequence(cache, chunked, path)) ==
        test::invalid("tokens of a session whose prompt is still appended is 5, limit 20"));
  const auto keys = std::array{prefix_key{1, {2, 3}}, prefix_key{10, {4, 5}}};
  const auto keyed = cache.create_sequence({text(7, 12), keys}, {.first_chunk = 7, .num_prompt_tokens = 5}).value().id;
  CHECK(test::said(save_sequence(cache, keyed, path)) ==
        test::invalid("position of a session's key, whose token is still to be appended, is 10, limit 6"));
  REQUIRE(cache.append(keyed, text(14, 5)));
  CHECK(save_sequence(cache, keyed, folder.file("keyed")));
  CHECK(restore_sequence(cache, folder.file("keyed")));
  std::filesystem::remove(folder.file("keyed"));
  const auto id = create_written(cache, text(7, 30));
  CHECK(save_sequence(cache, id, folder.file("no/session")).error().value == ENOENT);
  CHECK(test::said(save_sequence(cache, id, folder.file("no/session"))) ==
        "backend failure: making a file answered 2 (No such file or directory: " + folder.file("no/session") + ")");
  CHECK(std::filesystem::is_empty(folder.file("")));

  REQUIRE(save_sequence(cache, id, path));
  auto small = plain{small_config(4)};
  CHECK(restore_sequence(small, path).error().code == error_code::never_fits);
  CHECK(small.num_free_blocks() == 4);

  // An older file stays when a newer one does not fit on the disk.
  const auto before = bytes_of(path);
  const auto child = fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const auto limit = rlimit{10'000, RLIM_INFINITY};
    const auto refused = setrlimit(RLIMIT_FSIZE, &limit) == 0 && save_sequence(cache, id, path).error().value == EFBIG;
    _exit(refused ? 0 : 1);
  }
  auto status = 0;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(bytes_of(path) == before);
  CHECK(std::distance(std::filesystem::directory_iterator{folder.file("")}, {}) == 1);
}
