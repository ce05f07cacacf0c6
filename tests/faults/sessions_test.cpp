#include "../tier/temporary_folder.hpp"
#include "cache_world.hpp"
#include "files_in_folder.hpp"

#include <pagedkv/tier/hand_over.hpp>
#include <pagedkv/tier/session_file.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

/// A cache with a session in a file whose tokens it has, and another one of a peer's, which also offers its sequence.
struct session_world : cache_world<one_group_cache> {
  using options_type = session_options<failing_allocator<>>;

  explicit session_world(fault_plan& plan) : cache_world(plan), options{.memory = failing_allocator<>{plan.memory}} {
    REQUIRE(save_sequence(cache, first, known));
    const auto id = peer.cache.create_sequence(text(2'000, static_cast<std::size_t>(num_tokens))).value().id;
    std::iota(rows.begin(), rows.end(), 1.0f);
    REQUIRE(peer.cache.slot_mapping(id, 0, of_tokens));
    const auto numbers = contiguous_rows(std::as_const(rows), 1, row_size);
    REQUIRE(peer.cache.write(0, of_tokens, numbers, numbers));
    REQUIRE(peer.cache.commit(id, num_tokens));
    REQUIRE(save_sequence(peer.cache, id, unknown));
    offer = offer_sequence(peer.cache, id).value();
    bytes = encode_offer(offer).value();
  }

  /// A sequence that is created and given back counts as a prompt.
  [[nodiscard]] std::vector<std::int64_t> observe() const {
    auto facts = test::observe(cache, live(), one_group_cache::num_groups, false);
    for (const auto& [name, contents] : files_in(folder)) {
      facts.push_back(static_cast<std::int64_t>(std::hash<std::string>{}(name + contents)));
    }
    return facts;
  }

  [[nodiscard]] std::optional<error> restore(const std::string& path) noexcept {
    return noted(restore_sequence(cache, path, options));
  }
  [[nodiscard]] std::optional<error> accept() noexcept {
    return noted(accept_sequence(cache, offer, peer.cache.blocks()));
  }

  /// Whether the sequence that was started last has the peer's K/V.
  [[nodiscard]] bool has_rows() {
    auto key_rows = decltype(rows){};
    auto value_rows = key_rows;
    REQUIRE(cache.slot_mapping(restored->id, 0, of_tokens));
    REQUIRE(cache.read(0, of_tokens, contiguous_rows(key_rows, 1, row_size), contiguous_rows(value_rows, 1, row_size)));
    return key_rows == rows && value_rows == rows;
  }

  static constexpr auto num_tokens = std::int64_t{14};

  fault_plan no_faults;
  one_group_cache peer{no_faults};
  testing::temporary_folder folder;
  std::string known = folder.file("known");
  std::string unknown = folder.file("unknown");
  std::string fresh = folder.file("fresh");
  options_type options;
  sequence_offer offer;
  std::vector<std::byte> bytes;
  std::optional<admission> restored;

 private:
  [[nodiscard]] std::optional<error> noted(const result<admission>& outcome) noexcept {
    restored = outcome ? std::optional{*outcome} : std::nullopt;
    return error_of(outcome);
  }

  std::array<float, num_tokens * row_size_of_one_group> rows{};
  std::span<slot> of_tokens = std::span{slots}.first(static_cast<std::size_t>(num_tokens));
};

using session_operation = faulty_operation<session_world>;

constexpr auto save_anew = session_operation{"save to a new file", [](session_world& w) {
                                               return error_of(save_sequence(w.cache, w.third, w.fresh, w.options));
                                             }};
constexpr auto save_again = session_operation{
    "replace a file", [](session_world& w) { return error_of(save_sequence(w.cache, w.third, w.known, w.options)); }};

/// The same with groups: a sequence whose session takes a window's block and a saved state from the prefix cache, and a
/// file of such a one.
struct group_session_world : cache_world<cache_of_groups<>> {
  explicit group_session_world(fault_plan& plan)
      : cache_world(plan), options{.memory = failing_allocator<>{plan.memory}} {
    saved = started(cache, 3'000);
    ids.push_back(saved);
    REQUIRE(save_sequence(peer.cache, started(peer.cache, 2'000), unknown));
  }

  [[nodiscard]] std::vector<std::string> check_invariants() {
    auto broken = cache.check_invariants();
    if (cache.statistics().num_pins != 1) {
      broken.emplace_back("a pin is left");
    }
    if (cache.statistics().num_sequences != std::ssize(ids) + (restored ? 1 : 0)) {
      broken.emplace_back("a sequence is left");
    }
    return broken;
  }
  [[nodiscard]] std::optional<error> restore() noexcept {
    const auto outcome = restore_sequence(cache, unknown, options);
    restored = outcome ? std::optional{*outcome} : std::nullopt;
    return error_of(outcome);
  }

  fault_plan no_faults;
  cache_of_groups<> peer{no_faults};
  testing::temporary_folder folder;
  std::string unknown = folder.file("unknown");
  std::string fresh = folder.file("fresh");
  session_options<failing_allocator<>> options;
  sequence_id saved{};
  std::optional<admission> restored;

 private:
  [[nodiscard]] static sequence_id started(cache_type& in, token first) {
    const auto id = in.create_sequence(text(first, 23)).value().id;
    REQUIRE(in.commit(id, 20));  // saves the state
    REQUIRE(in.commit(id, 23));
    return id;
  }
};

}  // namespace

TEST_CASE("sessions with windows and states survive each fault", "[faults]") {
  using operation = faulty_operation<group_session_world>;
  constexpr auto operations = std::array{
      operation{"save",
                [](group_session_world& w) { return error_of(save_sequence(w.cache, w.saved, w.fresh, w.options)); }},
      operation{"restore", [](group_session_world& w) { return w.restore(); }, [](group_session_world&) {}, false},
  };
  CHECK(inject_faults(operations) > 20);
}

TEST_CASE("saving a session survives each fault of memory and backends", "[faults]") {
  auto num_reported = std::int64_t{0};
  for (const auto site : {fault_site::operator_new, fault_site::allocator, fault_site::backend}) {
    num_reported += inject_faults(save_anew, site).reported;
    num_reported += inject_faults(save_again, site).reported;
  }
  CHECK(num_reported > 10);
}

TEST_CASE("saving a session survives each fault of the file system", "[faults]") {
  for (const auto& saving : {save_anew, save_again}) {
    auto happened = true;
    auto num_reported = 0;
    for (auto n = std::int64_t{1}; happened; ++n) {
      CAPTURE(saving.name, n);
      auto plan = fault_plan{};
      auto w = session_world{plan};
      const auto before = w.observe();
      plan.arm(fault_site::files, n);
      const auto failure = saving.run(w);
      happened = plan.disarm();
      CHECK(happened == failure.has_value());
      if (failure) {
        ++num_reported;
        CHECK(tells_of_a_fault(*failure));
        const auto has_its_name = std::string_view{failure->subject} == "syncing a folder";
        CHECK((w.observe() == before) == !has_its_name);
        CHECK_FALSE(saving.run(w));
      }
      CHECK(files_in(w.folder).size() == (saving.run == save_anew.run ? 3 : 2));
    }
    CHECK(num_reported == 7);  // two opened, two writes, one renamed, two synced
  }
}

TEST_CASE("restoring a session, and taking over a sequence, survive each fault", "[faults]") {
  constexpr auto operations = std::array{
      session_operation{"restore with a hit", [](session_world& w) { return w.restore(w.known); }},
      session_operation{"restore", [](session_world& w) { return w.restore(w.unknown); }},
      session_operation{"offer", [](session_world& w) { return error_of(offer_sequence(w.cache, w.first)); }},
      session_operation{"encode an offer", [](session_world& w) { return error_of(encode_offer(w.offer)); }},
      session_operation{"decode an offer", [](session_world& w) { return error_of(decode_offer(w.bytes)); }},
      session_operation{"accept", [](session_world& w) { return w.accept(); }},
  };
  CHECK(inject_faults(operations) > 20);
}

TEST_CASE("what is restored or taken over after a fault has its K/V", "[faults]") {
  for (const auto run :
       {+[](session_world& w) { return w.restore(w.unknown); }, +[](session_world& w) { return w.accept(); }}) {
    for (const auto site : fault_sites) {
      auto happened = true;
      for (auto n = std::int64_t{1}; happened; ++n) {
        CAPTURE(static_cast<int>(site), n);
        auto plan = fault_plan{};
        auto w = session_world{plan};
        plan.arm(site, n);
        const auto failure = run(w);
        happened = plan.disarm();
        REQUIRE((!failure || !run(w)));
        CHECK(w.has_rows());
      }
    }
  }
}
