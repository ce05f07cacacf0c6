// A sequence takes back what it has published for a launch, while another thread may share it.

#include "../support/check_schedules.hpp"
#include "../support/pairs_of_tokens.hpp"
#include "../support/scheduled_policies.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>
#include <catch2/generators/catch_generators_random.hpp>

#include <array>
#include <optional>
#include <string_view>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

/// Either the writer keeps its blocks, or no other sequence has one.
template <class Cache>
void writer_gives_way(execution& e) {
  auto cache = Cache{pairs_of_tokens(4)};
  const auto step = cache.begin_step().value();
  const auto writer = cache.create_sequence(std::array<token, 4>{1, 2, 3, 4}).value().id;
  e.expect(cache.commit(writer, 4).has_value(), "cannot commit");
  auto withdrawn = std::optional<result<std::int64_t>>{};
  auto shared = std::optional<result<admission>>{};
  e.spawn([&] { withdrawn = cache.withdraw(writer); });
  e.spawn([&] { shared = cache.create_sequence(std::array<token, 5>{1, 2, 3, 4, 5}); });
  e.run();
  if (e.failure().empty()) {
    const bool gives_way = withdrawn->has_value();
    const bool is_busy = !gives_way && withdrawn->error().code == error_code::sequence_busy;
    e.expect(gives_way || is_busy || withdrawn->error().code == error_code::in_use, "another error");
    e.expect(!gives_way || !shared->has_value() || (*shared)->num_cached_tokens == 0,
             "a sequence shares what nobody writes");
    e.expect(gives_way || is_busy || shared->has_value(), "in use, and nobody uses it");
    const bool is_shared = shared->has_value() && (*shared)->num_cached_tokens != 0;
    e.expect(!is_busy || cache.withdraw(writer).has_value() == !is_shared, "a repetition ends otherwise");
    e.expect(cache.release(writer).has_value(), "cannot release");
    e.expect(!gives_way || cache.find_prefix(std::array<token, 5>{1, 2, 3, 4, 5}) == 0,
             "a look-up finds what nobody writes");
    e.expect(cache.retire_step(step).has_value(), "cannot retire");
    expect_sound(e, cache);
  }
}

/// A look-up keeps no writer's blocks for longer than it takes.
template <class Cache>
void writer_gives_way_to_a_look_up(execution& e) {
  auto cache = Cache{pairs_of_tokens(4)};
  const auto step = cache.begin_step().value();
  const auto writer = cache.create_sequence(std::array<token, 4>{1, 2, 3, 4}).value().id;
  e.expect(cache.commit(writer, 4).has_value(), "cannot commit");
  auto withdrawn = std::optional<result<std::int64_t>>{};
  e.spawn([&] { withdrawn = cache.withdraw(writer); });
  e.spawn([&] { static_cast<void>(cache.find_prefix(std::array<token, 5>{1, 2, 3, 4, 5})); });
  e.run();
  if (e.failure().empty()) {
    const bool gives_way = withdrawn->has_value();
    constexpr auto subject = std::string_view{"number of blocks that look-ups read ahead of their launch"};
    e.expect(gives_way || withdrawn->error().code == error_code::sequence_busy, "another error");
    e.expect(gives_way || withdrawn->error().subject == subject, "another subject");
    e.expect(gives_way || cache.withdraw(writer).has_value(), "busy without another thread");
    e.expect(cache.release(writer).has_value(), "cannot release");
    e.expect(cache.find_prefix(std::array<token, 5>{1, 2, 3, 4, 5}) == 0, "a look-up finds what nobody writes");
    e.expect(cache.retire_step(step).has_value(), "cannot retire");
    expect_sound(e, cache);
  }
}

/// Either the writer keeps its blocks, or no fork has one.
template <class Cache>
void writer_gives_way_or_forks(execution& e) {
  auto cache = Cache{pairs_of_tokens(4)};
  const auto step = cache.begin_step().value();
  const auto writer = cache.create_sequence(std::array<token, 4>{1, 2, 3, 4}).value().id;
  e.expect(cache.commit(writer, 4).has_value(), "cannot commit");
  auto withdrawn = std::optional<result<std::int64_t>>{};
  auto forked = std::optional<result<sequence_id>>{};
  e.spawn([&] { withdrawn = cache.withdraw(writer); });
  e.spawn([&] { forked = cache.fork(writer); });
  e.run();
  if (e.failure().empty()) {
    const auto code_of = [](const auto& outcome) { return outcome->error().code; };
    e.expect(!withdrawn->has_value() || !forked->has_value(), "a fork shares what nobody writes");
    e.expect(withdrawn->has_value() || code_of(withdrawn) == error_code::in_use ||
                 code_of(withdrawn) == error_code::sequence_busy,
             "another error of a withdrawal");
    e.expect(forked->has_value() || code_of(forked) == error_code::in_use ||
                 code_of(forked) == error_code::sequence_busy,
             "another error of a fork");
    e.expect(cache.release(writer).has_value(), "cannot release");
    e.expect(cache.retire_step(step).has_value(), "cannot retire");
    expect_sound(e, cache);
  }
}

TEST_CASE("no schedule of two threads shares what a writer takes back", "[withdraw][scheduler][random]") {
  const auto seed = GENERATE(take(1, random(0U, 0xffff'ffffU)));
  using scheduled_lock_free_cache = kv_cache<float32, stepwise_lock_free<>, scheduled_sweep<>>;
  using scheduled_sharded_cache = kv_cache<float32, scheduled_sharded_mutex>;
  for (const auto body : {writer_gives_way<scheduled_lock_free_cache>, writer_gives_way<scheduled_sharded_cache>,
                          writer_gives_way_to_a_look_up<scheduled_lock_free_cache>,
                          writer_gives_way_to_a_look_up<scheduled_sharded_cache>,
                          writer_gives_way_or_forks<scheduled_lock_free_cache>,
                          writer_gives_way_or_forks<scheduled_sharded_cache>}) {
    check_complete(explorer{{.preemptions = 2}}.exhaustive(body));
    check_passes(explorer{{.preemptions = 6, .surprises = 2}}.random(body, seed, 5'000));
  }
}

}  // namespace
