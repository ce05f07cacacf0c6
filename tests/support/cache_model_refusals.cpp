#include "cache_model.hpp"

#include <array>
#include <limits>

// Calls that a cache refuses.

namespace pagedkv::test {

namespace {

constexpr auto invalid = error_code::invalid_argument;
constexpr auto huge = std::numeric_limits<std::int64_t>::max();

}  // namespace

void cache_model::ask_wrongly(const operation& next) {
  const auto refused = is_full() ? error_code::limit_reached : invalid;
  const auto create = [&](const sequence_options& options, const char* what) {
    expect_error(cache_.create_sequence({}, options), refused, what);
  };
  create({.priority = 101}, "create with priority 101");
  create({.retention = -1}, "create with negative retention");
  create({.expected_tokens = -1}, "create expecting -1 tokens");
  if (kind_.has_groups) {
    create({.saving = {.every = -1}}, "create that saves every -1 tokens");
  }
  expect_error(cache_.retire_step(step_id{~std::uint64_t{0}}), error_code::unknown_step, "retire of an unknown step");
  if (const auto* const s = pick(next.b)) {
    ask_wrongly_of(*s);
    for (std::size_t g = 0; g < shape_.num_groups(); ++g) {
      ask_wrongly_of(*s, g);
    }
  }
}

void cache_model::ask_wrongly_of(const model_sequence& s) {
  const auto size = s.text.size();
  const auto one = std::array{token{1}};
  const auto key = prefix_key{.position = size + 1};
  auto slots = std::vector<slot>(1);
  expect_error(cache_.commit(s.id, size + 1), invalid, "commit past the end");
  expect_error(cache_.commit(s.id, huge), invalid, "commit of everything there is");
  expect_error(cache_.commit(s.id, s.num_computed - 1), invalid, "commit backwards");
  expect_error(cache_.truncate(s.id, size + 1), invalid, "truncate past the end");
  expect_error(cache_.truncate(s.id, -huge), invalid, "truncate far before the start");
  expect_error(cache_.append(s.id, token_run{one, {&key, 1}}), invalid, "append with a key outside");
  expect_error(cache_.reserve_slots(s.id, -1), invalid, "reserve a negative number");
  expect_error(cache_.append_batch(std::array{batch_entry{s.id, {one}}}, {}), invalid, "a batch without room");
  expect_error(cache_.slot_mapping(s.id, 0, slots, shape_.num_groups()), invalid, "slots of no group");
  if (counts_blocks()) {
    expect_error(cache_.truncate(s.id, start_of(s) - 1), invalid, "truncate before the window");
    expect_error(cache_.drop_before(s.id, s.num_computed + 1), invalid, "drop uncommitted tokens");
    expect_error(cache_.drop_before(s.id, -1), invalid, "drop before the start");
  }
}

/// Of one group.
void cache_model::ask_wrongly_of(const model_sequence& s, std::size_t g) {
  auto slots = std::vector<slot>(static_cast<std::size_t>(s.num_slots()) + 1);
  expect_error(cache_.slot_mapping(s.id, 0, slots, g), invalid, "slots past the end");
  expect_error(cache_.slot_mapping(s.id, -1, {}, g), invalid, "slots before the start");
  expect_error(cache_.slot_mapping(s.id, huge, slots, g), invalid, "slots far past the end");
  if (const auto size = fetch_shown(s, g).size(); size != 0) {
    auto blocks = std::vector<block_id>(size - 1);
    expect_error(cache_.block_table(s.id, blocks, g), invalid, "a block table in too little room");
  }
}

void cache_model::use_dead_id(const operation& next) {
  auto id = static_cast<sequence_id>(next.b);  // generation 0: never was
  if (next.a % 3 == 0 && !dead_.empty()) {
    id = dead_[next.b % dead_.size()];
  } else if (next.a % 3 == 1) {
    id = static_cast<sequence_id>(~std::uint64_t{next.b});
  }
  const auto unknown = error_code::unknown_sequence;
  auto slots = std::vector<slot>(1);
  auto blocks = std::vector<block_id>(1);
  expect_error(cache_.append(id, 1), unknown, "append to a dead id");
  expect_error(cache_.append(id, std::vector<token>(3)), unknown, "append of a run to a dead id");
  expect_error(cache_.reserve_slots(id, 1), unknown, "slots ahead of a dead id");
  expect_error(cache_.commit(id, 0), unknown, "commit of a dead id");
  expect_error(cache_.fork(id), unknown, "fork of a dead id");
  expect_error(cache_.truncate(id, 0), unknown, "truncate of a dead id");
  expect_error(cache_.release(id, false), unknown, "release of a dead id");
  expect_error(cache_.describe(id), unknown, "describe of a dead id");
  expect_error(cache_.tokens(id, 0, {}), unknown, "tokens of a dead id");
  const auto begun = cache_.begin_step(std::array{id});
  expect_error(begun, steps_.is_full() ? error_code::limit_reached : unknown, "begin step of a dead id");
  steps_.skip_number();
  if (counts_blocks()) {
    expect_error(cache_.drop_before(id, 0), unknown, "drop before of a dead id");
  }
  for (std::size_t g = 0; g < shape_.num_groups(); ++g) {
    expect_error(cache_.block_table(id, blocks, g), unknown, "block table of a dead id");
    if (shape_.holds_tokens(g)) {
      expect_error(cache_.slot_mapping(id, 0, slots, g), unknown, "slot mapping of a dead id");
      expect_error(cache_.update(padded_[g], std::array{id}, g), unknown, "padded batch with a dead id");
      expect_error(cache_.update(compressed_[g], std::array{id}, g), unknown, "compressed batch with a dead id");
    }
  }
  const auto dead_pin = dead_pins_.empty() ? pin_id{~std::uint64_t{0}} : dead_pins_[next.b % dead_pins_.size()];
  expect_error(cache_.unpin(dead_pin), error_code::unknown_pin, "unpin of a dead id");
  expect_error(cache_.retire_step(step_id{0}), error_code::unknown_step, "retire of step 0");
  expect_error(cache_.retire_step(step_id{static_cast<std::uint64_t>(steps_.last()) + 1}), error_code::unknown_step,
               "retire of a step to come");
  if (steps_.last() != step_id{0} && !steps_.contains(steps_.last())) {
    expect_error(cache_.retire_step(steps_.last()), error_code::unknown_step, "retire of a retired step");
  }
}

}  // namespace pagedkv::test
