#include "injection.hpp"

#include <pagedkv/router/keys.hpp>
#include <pagedkv/wire/apply.hpp>
#include <pagedkv/wire/batch_writer.hpp>
#include <pagedkv/wire/read_batch.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

[[nodiscard]] cache_event stored_event(std::uint64_t hash, const std::vector<token>& tokens,
                                       const std::vector<prefix_key>& keys) {
  auto event = cache_event{};
  event.kind = event_kind::stored;
  event.hash = hash;
  event.parent_hash = hash - 1;
  event.origin = block_id{0};
  event.tokens = tokens;
  event.keys = keys;
  return event;
}

/// A writer with an event that later ones may join, the bytes of a batch, and a feed.
struct wire_world {
  explicit wire_world(fault_plan&) {
    writer.add(stored_event(2, tokens, keys));
    auto full = writer;
    full.add(stored_event(3, tokens, keys));
    bytes = full.finish(1.5);
    batch = read_batch(bytes).value();
  }

  [[nodiscard]] std::vector<std::int64_t> observe() const {
    auto facts = std::vector<std::int64_t>{static_cast<std::int64_t>(writer.num_events())};
    const auto seen = read_batch(batch_writer{writer}.finish(1.5)).value();
    for (const auto& event : seen.events) {
      facts.insert(facts.end(), {std::ssize(event.hashes), std::ssize(event.tokens), std::ssize(event.extras)});
    }
    return facts;
  }
  [[nodiscard]] static std::vector<std::string> check_invariants() { return {}; }

  std::vector<token> tokens = text(100, 600);
  std::vector<prefix_key> keys = {{.position = 5, .value = {1, 2}}};
  batch_writer writer{wire_encoding::maps};
  std::string bytes;
  wire_batch batch;
};

/// Runs a call that may lack memory.
template <class Call>
[[nodiscard]] std::optional<error> thrown_by(const Call& call) noexcept {
  const auto run = [&]() -> result<bool> {
    call();
    return true;
  };
  return error_of(detail::with_memory(run, error{error_code::out_of_memory, "a batch", 0}));
}

}  // namespace

TEST_CASE("writing and reading batches of events survive each fault", "[faults]") {
  using operation = faulty_operation<wire_world>;
  static constexpr auto add = [](wire_world& w, std::uint64_t hash) {
    return thrown_by([&] { w.writer.add(stored_event(hash, w.tokens, w.keys)); });
  };
  constexpr auto operations = std::array{
      operation{"add a block that joins", [](wire_world& w) { return add(w, 3); }},
      operation{"add a block that does not", [](wire_world& w) { return add(w, 9); }},
      operation{"finish", [](wire_world& w) { return thrown_by([&] { static_cast<void>(w.writer.finish(1.5)); }); },
                [](wire_world& w) { w.writer = batch_writer{w.writer}; }},
      operation{"read", [](wire_world& w) { return thrown_by([&] { static_cast<void>(read_batch(w.bytes)); }); }},
  };
  CHECK(inject_faults(operations) > 5);
}
