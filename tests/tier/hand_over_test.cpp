#include "../support/messages.hpp"
#include "damage.hpp"
#include "written_sequences.hpp"

#include <pagedkv/policy/allocator/shared_allocator.hpp>
#include <pagedkv/policy/element/int8.hpp>
#include <pagedkv/policy/eviction/clock_sweep.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/tier/hand_over.hpp>

#include <catch2/catch_template_test_macros.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::testing;

namespace {

using plain = kv_cache<>;
using scaled = kv_cache<int8, lock_free, clock_sweep>;
using hnd_blocks = kv_cache<hnd_block_major, rw_lock>;

/// Counts the blocks that are copied from peers.
struct counting_backend : host_backend {
  [[nodiscard]] result<void> swap_blocks(const block_storage_view& from, const block_storage_view& to,
                                         std::span<const block_pair> pairs, swap_direction direction,
                                         stream_type stream) noexcept {
    *num_copied += pairs.size();
    return fails ? error{error_code::backend_failure, "copy of blocks"}
                 : host_backend::swap_blocks(from, to, pairs, direction, stream);
  }

  std::size_t* num_copied = nullptr;
  bool fails = false;
};
using counting_cache = kv_cache<counting_backend>;

}  // namespace

TEMPLATE_TEST_CASE("a sequence goes on in another cache", "[tier][hand_over]", plain, scaled, hnd_blocks,
                   cache_with_tier) {
  for (const auto size : {std::size_t{0}, std::size_t{1}, std::size_t{4}, std::size_t{11}, std::size_t{80}}) {
    CAPTURE(size);
    auto first = TestType{small_config()};
    auto second = TestType{small_config(40, 2)};
    const auto tokens = text(7, size);
    const auto keys = size > 8 ? std::vector<prefix_key>{{1, {2, 3}}} : std::vector<prefix_key>{};
    auto options = sequence_options{};
    options.salt = salt{5};
    const auto from = create_written(first, {tokens, keys}, options);
    const auto made = hand_over(first, from, second, {.model = "tiny"});
    REQUIRE(made);
    CHECK(tokens_of(second, made->id) == tokens);
    CHECK(has_rows(second, made->id, tokens, 0, size));
    CHECK(has_rows(first, from, tokens, 0, size));
    CHECK(second.describe(made->id)->num_computed_tokens == std::ssize(tokens));
    auto longer = tokens;
    longer.push_back(1);
    CHECK(second.find_prefix({longer, keys}, salt{5}) == std::ssize(tokens) / block_size * block_size);
    CHECK(second.find_prefix({longer, keys}, salt{6}) == 0);
    REQUIRE(first.release(from));
    REQUIRE(second.append(made->id, text(500, 9)));
    CHECK(first.check_invariants().empty());
    CHECK(second.check_invariants().empty());
  }
}

TEMPLATE_TEST_CASE("a sequence whose prompt was computed in chunks goes on in another cache with all its tokens",
                   "[tier][hand_over]", plain, scaled, cache_with_tier) {
  auto first = TestType{small_config()};
  auto second = TestType{small_config(40, 2)};
  const auto tokens = text(7, 20);
  auto options = sequence_options{};
  options.first_chunk = 6;
  options.max_cached_tokens = 4;
  const auto from = first.create_sequence(tokens, options).value();
  REQUIRE(from.num_tokens == 6);
  REQUIRE(first.append(from.id, std::span{tokens}.subspan(6)));
  write_rows(first, from.id, tokens);
  REQUIRE(first.commit(from.id, 20));
  create_written(second, text(7, 9));
  const auto made = hand_over(first, from.id, second);
  REQUIRE(made);
  CHECK(made->num_tokens == 20);
  CHECK(made->num_cached_tokens == 8);
  CHECK(tokens_of(second, made->id) == tokens);
  CHECK(has_rows(second, made->id, tokens, 0, 20));
  CHECK(second.describe(made->id)->num_computed_tokens == 20);
}

TEST_CASE("blocks that the other cache has are not copied", "[tier][hand_over]") {
  auto num_copied = std::size_t{0};
  auto first = plain{small_config()};
  auto second = counting_cache{small_config(32, 2), {}, counting_backend{{}, &num_copied}};
  const auto prompt = text(1, 20);
  const auto from = create_written(first, prompt);
  const auto there = create_written(second, text(1, 9));  // two full blocks
  const auto made = hand_over(first, from, second);
  REQUIRE(made);
  CHECK(made->num_cached_tokens == 8);
  CHECK(num_copied == 3);
  CHECK(has_rows(second, made->id, prompt, 0, 20));
  REQUIRE(second.release(there));
  CHECK(second.check_invariants().empty());
}

TEST_CASE("a sequence that cannot be handed over leaves the other cache as it was", "[tier][hand_over]") {
  auto first = plain{small_config()};
  const auto from = create_written(first, text(1, 20));
  const auto is_empty = [](auto& cache) {
    return cache.num_available_blocks() == cache.num_blocks() && cache.statistics().num_sequences == 0 &&
           cache.check_invariants().empty();
  };
  auto small = plain{small_config(4)};
  CHECK(hand_over(first, from, small).error().code == error_code::never_fits);
  CHECK(is_empty(small));
  auto shape = small_config();
  shape.head_dim = 16;
  auto wide = plain{shape};
  CHECK(hand_over(first, from, wide).error().code == error_code::invalid_argument);
  CHECK(is_empty(wide));
  auto other = kv_cache<bfloat16>{small_config()};
  CHECK(hand_over(first, from, other).error().code == error_code::invalid_argument);
  auto second = plain{small_config(32, 2)};
  const auto offer = offer_sequence(first, from, {.model = "one"}).value();
  CHECK(test::said(accept_sequence(second, offer, first.view(), "two")) ==
        test::invalid("characters of an offer's format, which is not the cache's, is " +
                      std::to_string(offer.format.size()) + " (has model=one, not model=two)"));
  auto short_offer = offer;
  short_offer.blocks.pop_back();
  CHECK(test::said(accept_sequence(second, short_offer, first.view(), "one")) ==
        test::invalid("number of blocks offered is 4, limit 5"));
  auto misplaced = offer;
  misplaced.head.tables[0].first_place = 2;
  CHECK(test::said(accept_sequence(second, misplaced, first.view(), "one")) ==
        test::invalid("place in a session's table, which a sequence has not, is 5"));
  auto lacking = offer;
  --lacking.head.tables[0].num_entries;
  lacking.blocks.pop_back();
  CHECK(test::said(accept_sequence(second, lacking, first.view(), "one")) ==
        test::invalid("place of computed tokens, which a session has not, is 4"));
  lacking.head.tables[0].num_entries = 0;
  lacking.blocks.clear();
  CHECK(test::said(accept_sequence(second, lacking, first.view(), "one")) ==
        test::invalid("place of computed tokens, which a session has not, is 0"));
  auto offer_beyond = offer;
  offer_beyond.blocks.back() = block_id{first.num_blocks()};
  CHECK(accept_sequence(second, offer_beyond, first.view(), "one").error().code == error_code::invalid_argument);
  CHECK(is_empty(second));
  auto num_copied = std::size_t{0};
  auto broken = counting_cache{small_config(), {}, counting_backend{{}, &num_copied, true}};
  CHECK(hand_over(first, from, broken).error().code == error_code::backend_failure);
  CHECK(is_empty(broken));
  CHECK(hand_over(first, sequence_id{77}, second).error().code == error_code::unknown_sequence);
  CHECK(accept_sequence(second, offer, first.view(), "one"));
}

TEST_CASE("an offer survives as bytes, and one that is damaged anywhere, or cut, is refused", "[tier][hand_over]") {
  auto first = plain{small_config()};
  const auto tokens = text(1, 11);
  const auto from = create_written(first, tokens);
  const auto bytes = encode_offer(offer_sequence(first, from).value()).value();
  const auto offer = decode_offer(bytes).value();
  auto second = plain{small_config(32, 2)};
  const auto made = accept_sequence(second, offer, first.view());
  REQUIRE(made);
  CHECK(has_rows(second, made->id, tokens, 0, 11));
  damage_everywhere(bytes, [](std::span<const std::byte> damaged) {
    const auto decoded = decode_offer(damaged);
    return test::said(decoded) ==
           test::invalid("bytes of an offer, which is damaged, is " + std::to_string(damaged.size()));
  });
  auto longer = bytes;
  longer.push_back(std::byte{});
  CHECK(decode_offer(longer).has_error());
}

TEST_CASE("another process takes over a sequence through shared memory", "[tier][hand_over]") {
  using shared = kv_cache<shared_allocator>;
  const auto tokens = text(3, 30);
  auto memory = shared_allocator{};
  auto first = shared{small_config(), memory};
  const auto from = create_written(first, tokens);
  const auto offered = encode_offer(offer_sequence(first, from).value()).value();
  auto pipe = std::array<int, 2>{};
  REQUIRE(::pipe(pipe.data()) == 0);
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // Only what came through the pipe and the descriptor, as in a process of its own.
    auto view = block_storage_view{};
    auto bytes = std::vector<std::byte>(offered.size());
    auto arrived = ::read(pipe[0], &view, sizeof(view)) == static_cast<::ssize_t>(sizeof(view)) &&
                   ::read(pipe[0], bytes.data(), bytes.size()) == std::ssize(bytes);
    const auto storage_bytes = static_cast<std::size_t>(view.num_blocks) * static_cast<std::size_t>(view.num_layers) *
                               static_cast<std::size_t>(view.layer_bytes());
    const auto mapped = shared_mapping{memory.descriptor(), storage_bytes};
    view.base = mapped.data();
    auto second = plain{small_config(32, 2)};
    const auto offer = decode_offer(bytes);
    const auto made = offer ? accept_sequence(second, *offer, view) : result<admission>{offer.error()};
    ::_exit(arrived && made && has_rows(second, made->id, tokens, 0, tokens.size()) ? 0 : 1);
  }
  auto view = first.view();
  view.base = nullptr;  // an address of this process
  REQUIRE(::write(pipe[1], &view, sizeof(view)) == static_cast<::ssize_t>(sizeof(view)));
  REQUIRE(::write(pipe[1], offered.data(), offered.size()) == std::ssize(offered));
  auto status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST_CASE("an offer whose numbers do not go together is refused, though it is sealed", "[tier][hand_over]") {
  auto cache = plain{small_config()};
  const auto offer = offer_sequence(cache, create_written(cache, {text(7, 11), {}}, {})).value();
  REQUIRE(decode_offer(encode_offer(offer).value()));
  const auto is_refused = [&](auto&& change) {
    auto changed = offer;
    change(changed.head);
    return decode_offer(encode_offer(changed).value()).has_error();
  };
  constexpr auto huge = std::int64_t{1} << 62;
  CHECK(is_refused([](auto& head) { head.num_computed_tokens = -1; }));
  CHECK(is_refused([](auto& head) { head.num_computed_tokens = 12; }));
  CHECK(is_refused([](auto& head) { head.tables[0].num_entries = huge; }));
  CHECK(is_refused([](auto& head) { head.tables[0].num_entries = -1; }));
  CHECK(is_refused([](auto& head) { head.tables[1].first_place = huge; }));
  CHECK(is_refused([](auto& head) { head.tables[0].num_leading = head.tables[0].num_entries + 1; }));
}
