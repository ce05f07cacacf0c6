// A refusal of a cache names the argument, what it was, and the nearest value that is allowed.

#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/locking/lock_free.hpp>

#include "../support/cache_fixture.hpp"
#include "../support/messages.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

constexpr auto largest = std::numeric_limits<std::int32_t>::max();

/// Calls back when memory comes.
struct calling_allocator {
  inline static std::function<void()> on_map = [] {};

  [[nodiscard]] static std::byte* allocate(std::size_t bytes, std::size_t) noexcept {
    return static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
  }
  static void deallocate(std::byte* pointer, std::size_t) noexcept { std::free(pointer); }
  [[nodiscard]] static std::size_t granule() noexcept { return 4096; }
  [[nodiscard]] static std::byte* reserve(std::size_t bytes, std::size_t alignment) noexcept {
    return allocate(bytes, alignment);
  }
  [[nodiscard]] static bool map(std::byte*, std::size_t) noexcept {
    on_map();
    return true;
  }
  static void unmap(std::byte*, std::size_t) noexcept {}
};
static_assert(resizable_allocator<calling_allocator>);

/// Of a device that is not there.
struct absent_backend : host_backend {
  static constexpr std::string_view name = "absent";

  absent_backend() { throw exception(error{error_code::backend_failure, "the search for a device", 100}); }
};

/// Of one that cannot be had.
struct absent_allocator : host_allocator {
  absent_allocator() { throw exception(error{error_code::backend_failure, "the search for a pool", 101}); }
};

/// Calls back when a block is copied on write.
struct calling_backend : host_backend {
  static constexpr std::string_view name = "calling";
  inline static std::function<void()> on_copy = [] {};

  [[nodiscard]] result<void> copy_blocks(const block_storage_view& view, std::span<const block_pair> copies,
                                         stream_type stream) noexcept {
    on_copy();
    return host_backend::copy_blocks(view, copies, stream);
  }
};

}  // namespace

TEST_CASE("a refused configuration is told its field", "[messages]") {
  const auto with = [](auto&& change) {
    auto config = small_cache(20);
    change(config);
    return said(kv_cache<float32>::create(config));
  };
  check_messages({
      {with([](auto& c) { c.block_size = 0; }), invalid("cache_config.block_size is 0, limit 1")},
      {with([](auto& c) { c.num_blocks = 0; }), invalid("cache_config.num_blocks is 0, limit 1")},
      {with([](auto& c) { c.num_layers = -1; }), invalid("cache_config.num_layers is -1, limit 1")},
      {with([](auto& c) { c.num_kv_heads = 0; }), invalid("cache_config.num_kv_heads is 0, limit 1")},
      {with([](auto& c) { c.head_dim = 0; }), invalid("cache_config.head_dim is 0, limit 1")},
      {with([](auto& c) { c.max_sequences = 0; }), invalid("cache_config.max_sequences is 0, limit 1")},
      {with([](auto& c) { c.max_blocks = 19; }), invalid("cache_config.max_blocks is 19, limit 20")},
      {with([](auto& c) { c.block_size = c.num_kv_heads = 65'536; }),
       "size overflow: cache_config.block_size * num_kv_heads is 4294967296, limit 2147483647"},
      {with([](auto& c) { c.block_size = 65'536, c.head_dim = 16'384; }),
       "size overflow: cache_config.block_size * num_kv_heads * head_dim * 2 is 2147483648, limit 2147483647"},
      {with([](auto& c) { c.groups = {group_config{}}; }),
       invalid("number of cache_config.groups, which are for the policy layer_groups, is 1, limit 0")},
      {with([](auto& c) { c.num_blocks = c.num_layers = largest, c.block_size = 4096, c.head_dim = 4096; }),
       "size overflow: number of blocks whose bytes 63 bits do not count is 2147483647"},
  });
}

TEST_CASE("a refused option is told its name", "[messages]") {
  auto cache = kv_cache<float32>{small_cache(20)};
  const auto with = [&](auto&& change) {
    auto options = sequence_options{};
    change(options);
    const auto refused = said(cache.create_sequence(text(0, 5), options));
    CHECK(refused == said(cache.would_fit(text(0, 5), options)));
    return refused;
  };
  const auto with_range = [&](const range_retention& range) {
    return with([&](auto& o) { o.ranges[1] = range; });
  };
  check_messages({
      {with([](auto& o) { o.priority = 101; }), invalid("sequence_options.priority is 101, limit 100")},
      {with([](auto& o) { o.retention = -1; }), invalid("sequence_options.retention is -1, limit 0")},
      {with([](auto& o) { o.expected_return = -2; }), invalid("sequence_options.expected_return is -2, limit 0")},
      {with([](auto& o) { o.expected_tokens = -3; }), invalid("sequence_options.expected_tokens is -3, limit 0")},
      {with([](auto& o) { o.max_cached_tokens = -4; }), invalid("sequence_options.max_cached_tokens is -4, limit 0")},
      {with([](auto& o) { o.first_chunk = -5; }), invalid("sequence_options.first_chunk is -5, limit 0")},
      {with([](auto& o) { o.num_prompt_tokens = -6; }), invalid("sequence_options.num_prompt_tokens is -6, limit 0")},
      {with_range({-1, 4, {}}), invalid("range_retention.first is -1, limit 0")},
      {with_range({4, 3, {}}), invalid("range_retention.last, before the first, is 3, limit 4")},
      {with_range({0, 4, {101, 0}}), invalid("range_retention.retention.priority is 101, limit 100")},
      {with_range({0, 4, {50, -7}}), invalid("range_retention.retention.duration is -7, limit 0")},
      {with([](auto& o) { o.answer = block_retention{102, 0}; }),
       invalid("sequence_options.answer->priority is 102, limit 100")},
      {with([](auto& o) { o.answer = block_retention{50, -8}; }),
       invalid("sequence_options.answer->duration is -8, limit 0")},
  });
}

TEST_CASE("a refusal names the argument, what it was, and what is allowed", "[messages]") {
  auto cache = kv_cache<float32>{small_cache(20)};
  const auto id = create_committed(cache, text(0, 40));
  const auto dropped = create_committed(cache, text(100, 16));
  REQUIRE(cache.drop_before(dropped, 8));
  const auto uncommitted = cache.create_sequence(text(200, 6)).value().id;
  const auto gone = create_committed(cache, text(300, 1));
  REQUIRE(cache.release(gone));
  const auto never = std::to_string(static_cast<std::uint64_t>(gone));
  auto slots = std::vector<slot>(20);
  auto out = tokens(20);
  auto blocks = std::vector<block_id>(9);
  auto failures = std::array<batch_failure, 1>{};
  const auto batch = [&](const batch_entry& entry, std::size_t num_slots, std::size_t num_failures) {
    return cache.append_batch({&entry, 1}, {.slots = std::span{slots}.first(num_slots),
                                            .failures = std::span{failures}.first(num_failures)});
  };
  const auto with_key = [&](std::int64_t position) {
    const auto keys = std::array{prefix_key{position, {1}}};
    return cache.append(uncommitted, token_run{std::span{out}.first(2), keys});
  };
  const auto key = std::array{prefix_key{6, {1}}};
  const auto only_keys = token_run{tokens{}, key};
  check_messages({
      {said(cache.slot_mapping(id, 30, slots)),
       invalid("end of the slot mapping, first_token + slots.size(), is 50, limit 40")},
      {said(cache.slot_mapping(id, -1, slots)), invalid("first_token of the slot mapping is -1, limit 0")},
      {said(cache.slot_mapping(id, std::numeric_limits<std::int64_t>::max(), slots)),
       invalid("first_token of the slot mapping is 9223372036854775807, limit 40")},
      {said(cache.tokens(id, 30, out)),
       invalid("end of the tokens to copy, first_token + out.size(), is 50, limit 40")},
      {said(cache.tokens(id, -1, out)),
       invalid("first_token of the tokens to copy, outside of those held, is -1, limit 0")},
      {said(cache.block_table(id, blocks)), invalid("room for block ids is 9, limit 10")},
      {said(cache.block_table(id, blocks, 11)), invalid("first block to copy is 11, limit 10")},
      {said(cache.truncate(id, 41)), invalid("number of tokens to keep is 41, limit 40")},
      {said(cache.truncate(dropped, 7)), invalid("number of tokens to keep, before those held, is 7, limit 8")},
      {said(cache.drop_before(id, 41)),
       invalid("start of the window, outside of the committed tokens, is 41, limit 40")},
      {said(cache.drop_before(id, -1)),
       invalid("start of the window, outside of the committed tokens, is -1, limit 0")},
      {said(cache.commit(id, 41)), invalid("number of computed tokens, more than the sequence has, is 41, limit 40")},
      {said(cache.commit(id, 39)), invalid("number of computed tokens, fewer than committed, is 39, limit 40")},
      {said(cache.fork(uncommitted)), invalid("number of tokens to fork that are not committed is 6, limit 0")},
      {said(cache.reserve_slots(id, -1)), invalid("number of slots ahead is -1, limit 0")},
      {said(cache.reserve_slots(id, std::int64_t{1} << 31)),
       invalid("number of slots ahead is 2147483648, limit 2147483647")},
      {said(batch({id, {}, -1, std::int64_t{1} << 31}, 20, 1)),
       invalid("number of slots ahead in a batch is 2147483648, limit 2147483647")},
      {said(batch({id, out}, 19, 1)), invalid("room for slots of a batch is 19, limit 20")},
      {said(batch({id, out}, 20, 0)), invalid("room for failures of a batch is 0, limit 1")},
      {said(with_key(5)), invalid("position of a key is 5, limit 6")},
      {said(with_key(8)), invalid("position of a key is 8, limit 7")},
      {said(cache.append(uncommitted, only_keys)), invalid("number of keys without tokens is 1, limit 0")},
      {said(cache.create_sequence(only_keys)), invalid("number of keys without tokens is 1, limit 0")},
      {said(cache.would_fit(only_keys)), invalid("number of keys without tokens is 1, limit 0")},
      {said(cache.invalidate_blocks(std::array{block_id{20}})), invalid("block to invalidate is 20, limit 19")},
      {said(cache.resize(0)), invalid("number of blocks is 0, limit 1")},
      {said(cache.resize(21)), invalid("number of blocks, more than cache_config::capacity, is 21, limit 20")},
      {said(cache.resize(10)), "in use: number of blocks that the pool has to keep is 14, limit 10"},
      {said(cache.reset_prefix_cache()), "in use: number of blocks in use or retiring is 14, limit 0"},
      {said(cache.describe(gone)), "unknown sequence: sequence id is " + never},
      {said(cache.unpin(pin_id{7})), "unknown pin: pin id is 7"},
      {said(cache.retire_step(step_id{3})), "unknown step: step is 3"},
      {said(cache.evict(blocks, step_id{3})), "unknown step: step is 3"},
      {said(cache.create_sequence(text(400, 81))),
       "never fits: number of blocks needed, more than the pool has, is 21, limit 20"},
      {said(cache.create_sequence(text(400, 29))),
       "capacity exhausted: number of blocks needed, more than there are now, is 8, limit 6"},
  });
}

TEST_CASE("a refusal for want of room says how much there is", "[messages]") {
  auto config = small_cache(20);
  config.max_sequences = 2;
  auto cache = kv_cache<float32>{config};
  const auto ids = std::vector{create_committed(cache, text(0, 12)), create_committed(cache, text(50, 8))};
  auto narrow = padded_batch{2, 2};
  auto low = padded_batch{1, 3};
  auto short_one = compressed_batch{2, 4};
  check_messages({
      {said(cache.create_sequence(text(90, 4))),
       "limit reached: number of sequences, at most cache_config.max_sequences, is 3, limit 2"},
      {said(cache.would_fit(text(90, 4))),
       "limit reached: number of sequences, at most cache_config.max_sequences, is 3, limit 2"},
      {said(cache.update(narrow, ids)),
       "limit reached: number of blocks in a row, more than the batch was made for, is 3, limit 2"},
      {said(cache.update(low, ids)), "limit reached: number of rows, more than the batch was made for, is 2, limit 1"},
      {said(cache.update(short_one, ids)),
       "limit reached: number of blocks in all rows, more than the batch was made for, is 5, limit 4"},
  });
  REQUIRE((cache.pin(text(0, 12)) && cache.pin(text(50, 8))));
  CHECK(said(cache.pin(text(0, 4))) ==
        "limit reached: number of pins, at most cache_config.max_sequences, is 3, limit 2");
  REQUIRE(cache.begin_step());
  CHECK(said(cache.compact()) == "in use: number of steps in flight is 1, limit 0");
  for (auto i = 1; i < 64; ++i) {
    REQUIRE(cache.begin_step());
  }
  CHECK(said(cache.begin_step()) ==
        "limit reached: number of steps from the oldest open one on is 65, limit 64, until step 1 retires");
}

TEST_CASE("creation returns what the constructors of a backend and an allocator throw", "[messages]") {
  using without_backend = kv_cache<float32, absent_backend>;
  using without_memory = kv_cache<float32, absent_allocator>;
  CHECK_THROWS_AS(without_backend{small_cache(4)}, exception);
  CHECK(said(without_backend::create(small_cache(4))) == "backend failure: the search for a device is 100");
  CHECK(said(without_backend::create(small_cache(4), host_allocator{})) ==
        "backend failure: the search for a device is 100");
  CHECK(said(without_backend::create(small_cache(4), no_events{})) ==
        "backend failure: the search for a device is 100");
  CHECK(said(without_memory::create(small_cache(4))) == "backend failure: the search for a pool is 101");
}

TEST_CASE("a block that all references are used up for is not shared again", "[messages]") {
  auto config = small_cache(4);
  config.max_sequences = std::int32_t{block_state::max_count};
  auto cache = kv_cache<float32>{config};
  const auto id = create_committed(cache, text(0, 4));
  for (auto count = std::uint32_t{1}; count < block_state::max_count; ++count) {
    if (!cache.pin(text(0, 4))) {
      FAIL("a pin was refused");
    }
  }
  CHECK(said(cache.fork(id)) == "limit reached: reference count is 1048576, limit 1048575");
}

TEST_CASE("a sequence that another thread uses is busy, and a refusal says so", "[messages]") {
  auto cache = kv_cache<float32, lock_free, clock_sweep, calling_backend>{small_cache(4)};
  const auto id = create_committed(cache, text(0, 6));
  const auto fork = cache.fork(id).value();
  auto meanwhile = std::string{};
  calling_backend::on_copy = [&] { meanwhile = said(cache.describe(fork)); };
  REQUIRE(cache.append(fork, token{1}));
  calling_backend::on_copy = [] {};
  CHECK(meanwhile == "sequence busy: id of a sequence that another thread is using is " +
                         std::to_string(static_cast<std::int64_t>(fork)));
}

TEST_CASE("a change of the size says which blocks or changes are in its way", "[messages]") {
  auto config = small_cache(4);
  config.max_blocks = 4096;
  auto cache = kv_cache<float32, lock_free, clock_sweep, calling_allocator>{config};
  auto nested = std::string{};
  calling_allocator::on_map = [&] { nested = said(cache.resize(5)); };
  REQUIRE(cache.resize(4096));
  calling_allocator::on_map = [] {};
  CHECK(nested == "in use: number of other changes of the size is 1, limit 0");
  const auto id = create_committed(cache, text(0, 16));
  auto held = table_of(cache, id);
  std::ranges::sort(held);
  CHECK(said(cache.resize(static_cast<std::int32_t>(held[3]))) ==
        "in use: number of held blocks beyond the new size is 1, limit 0");
  CHECK(said(cache.resize(static_cast<std::int32_t>(held[1]))) ==
        "in use: number of held blocks beyond the new size is 3, limit 0");
}
