#include "cache_model.hpp"

#include <algorithm>

// Batches: appends to many sequences at once, and the arrays for kernels.

namespace pagedkv::test {

/// One entry for each of some sequences, and perhaps one for none.
void cache_model::append_batch(const operation& next) {
  cache_.copies_fail = false;  // an entry whose commit succeeds may fail later
  in_batch_ = true;
  const auto rows = prepare_rows(next);
  auto entries = std::vector<batch_entry>{};
  for (const auto& [s, growth, commit] : rows) {
    entries.push_back({s->id, {growth.tokens, growth.keys}, commit, growth.num_ahead});
  }
  const auto one = std::vector<token>{1};
  if (next.b % 3 == 0) {
    entries.push_back({.id = dead_.empty() ? sequence_id{next.b} : dead_[next.b % dead_.size()], .run = one});
  }
  auto num_slots = std::size_t{0};
  for (const auto& entry : entries) {
    num_slots += entry.run.tokens.size() + static_cast<std::size_t>(entry.num_ahead);
  }
  auto slots = std::vector<slot>(num_slots * (shape_.num_groups() - shape_.has_state()));
  auto failures = std::vector<batch_failure>(entries.size());
  auto blocks = std::vector<new_block>(max_table);
  const auto done = cache_.append_batch(entries, {slots, failures, blocks});
  expect_success(done, "append of a batch");
  expect_equal(static_cast<std::int64_t>(done->num_slots), static_cast<std::int64_t>(num_slots), "slots of a batch");
  failures.resize(done->num_failures);
  blocks.resize(done->num_new_blocks);
  coverage_.batch_entries += std::ssize(entries);
  coverage_.batch_failures += std::ssize(failures);
  follow_batch(rows, entries, failures, slots, blocks);
}

std::vector<cache_model::batch_row> cache_model::prepare_rows(const operation& next) {
  auto rows = std::vector<batch_row>{};
  for (auto i = std::size_t{0}; i < live_.size(); ++i) {
    if ((next.a >> i & 1) == 0) {
      rows.push_back({&live_[i], {}, batch_entry::no_commit});
    }
  }
  if (next.b % 2 == 0) {
    std::ranges::reverse(rows);
  }
  auto number = next.c;
  for (auto& [s, growth, commit] : rows) {
    growth = draw_growth(*s, next.b + number, number, number % 3 == 0, sizes_);
    if (number % 2 == 0) {
      commit = s->text.size();
      write(*s, commit);
      write_state(*s, commit);
    }
    number += 7;
  }
  return rows;
}

/// Without groups, entries that did not fit must not fit behind the batch, either: the others have only taken blocks.
void cache_model::follow_batch(std::span<const batch_row> rows, std::span<const batch_entry> entries,
                               std::span<const batch_failure> failures, std::span<slot> slots,
                               std::span<const new_block> blocks) {
  const auto in_use = seen_.blocks.in_use;
  auto wanted = std::vector<new_block>{};
  auto failed = failures.begin();
  auto first_slot = std::size_t{0};
  for (auto i = std::size_t{0}; i < entries.size(); ++i) {
    const bool has_failed = failed != failures.end() && failed->entry == i;
    const auto* const row = i < rows.size() ? &rows[i] : nullptr;
    expect(row != nullptr || has_failed, "an entry with a dead id succeeded");
    if (row != nullptr) {
      for (auto added : follow_entry(*row, has_failed ? &*failed : nullptr)) {
        added.entry = static_cast<std::uint32_t>(i);
        wanted.push_back(added);
      }
    } else {
      expect(failed->reason.code == error_code::unknown_sequence, "an entry failed for a reason of its own");
    }
    const auto num_slots = entries[i].run.tokens.size() + static_cast<std::size_t>(entries[i].num_ahead);
    check_slots_of_entry(row, has_failed, slots, first_slot, num_slots);
    first_slot += num_slots;
    failed += has_failed;
  }
  expect(failed == failures.end(), "a batch told a failure twice");
  const auto same = [](const new_block& a, const new_block& b) {
    return a.entry == b.entry && a.index == b.index && a.block == b.block && a.group == b.group;
  };
  expect(std::ranges::equal(blocks, wanted, same), "a batch told other new blocks than there are");
  peak_within_ = in_use;
  peak_at_most_ = in_use + fresh_taken_;
  for (const auto& failure : failures) {
    if (counts_blocks() && failure.entry < rows.size()) {
      repeat_entry(entries[failure.entry], slots);
    }
  }
}

/// A commit stays if only its append fails. Returns the new entries of the block tables.
std::vector<new_block> cache_model::follow_entry(const batch_row& row, const batch_failure* failure) {
  auto& s = *row.s;
  if (row.commit != batch_entry::no_commit) {
    follow_commit(s, row.commit, std::numeric_limits<std::int64_t>::max());
    exact_ = exact_ && !shape_.has_state();  // the model does not know how many blocks were left for states
  }
  if (failure == nullptr) {
    return grow(s, row.growth);
  }
  const auto code = failure->reason.code;
  expect(code == error_code::capacity_exhausted || code == error_code::never_fits,
         "an entry failed for a reason of its own");
  ++expected_.refusals;
  return {};
}

/// They are those of the slot mapping, one group that holds tokens after the other; none of an entry that failed.
void cache_model::check_slots_of_entry(const batch_row* row, bool has_failed, std::span<const slot> slots,
                                       std::size_t first_slot, std::size_t num_slots) {
  const auto num_groups = shape_.num_groups() - shape_.has_state();
  const auto size = num_groups == 0 ? 0 : slots.size() / num_groups;
  for (std::size_t g = 0, part = 0; g < shape_.num_groups(); ++g) {
    if (!shape_.holds_tokens(g)) {
      continue;
    }
    const auto told = slots.subspan(part++ * size + first_slot, num_slots);
    if (has_failed) {
      expect(std::ranges::count(told, skip_slot) == std::ssize(told), "an entry that failed has slots");
    } else {
      const auto first = row->s->text.size() - std::ssize(row->growth.tokens);
      const auto asked = fetch_slots(*row->s, g, first, first + std::ssize(told));
      expect(std::ranges::equal(asked, told), "a batch told other slots than the slot mapping");
    }
  }
}

void cache_model::repeat_entry(batch_entry entry, std::span<slot> slots) {
  entry.num_computed_tokens = batch_entry::no_commit;
  auto reason = batch_failure{};
  const auto repeated = cache_.append_batch({&entry, 1}, {slots, {&reason, 1}, {}});
  expect(repeated && repeated->num_failures == 1, "an entry did not fit into the batch, but fits behind it");
  ++expected_.refusals;
}

void cache_model::update_batches(const operation& next) {
  auto rows = std::vector<const model_sequence*>{};
  for (auto i = std::size_t{0}; i < live_.size(); ++i) {
    if ((next.a >> i & 1) == 0 || next.b % 3 != 0) {
      rows.push_back(&live_[i]);
    }
  }
  if (next.b % 4 == 0) {
    std::ranges::reverse(rows);
  }
  auto ids = std::vector<sequence_id>{};
  std::ranges::transform(rows, std::back_inserter(ids), [](const auto* s) { return s->id; });
  for (std::size_t g = 0; g < shape_.num_groups(); ++g) {
    const auto padded = cache_.update(padded_[g], ids, g);
    const auto compressed = cache_.update(compressed_[g], ids, g);
    if (shape_.holds_tokens(g)) {
      expect_success(padded, "update of a padded batch");
      expect_success(compressed, "update of a compressed batch");
      check_batches(rows, g);
    } else {
      expect(!padded && padded.error().code == error_code::invalid_argument, "a padded batch of states");
      expect(!compressed && compressed.error().code == error_code::invalid_argument, "a compressed batch of states");
    }
  }
}

void cache_model::check_batches(std::span<const model_sequence* const> wanted, std::size_t g) {
  const auto& padded = padded_[g];
  const auto& compressed = compressed_[g];
  expect_equal(static_cast<std::int64_t>(padded.num_rows()), std::ssize(wanted), "rows of the padded batch");
  expect_equal(static_cast<std::int64_t>(compressed.num_rows()), std::ssize(wanted), "rows of the compressed batch");
  auto start = std::int32_t{0};
  for (auto i = std::size_t{0}; i < wanted.size(); ++i) {
    const auto& s = *wanted[i];
    const auto blocks = shown(s, g);
    const auto num_hidden = kind_.has_groups ? static_cast<std::int64_t>(s.tables[g].num_skipped()) : 0;
    const auto length = s.text.size() - num_hidden * shape_.block_size(g);
    auto filled = blocks;
    filled.resize(padded.row_stride(), no_block);
    const auto row = padded.block_tables().subspan(i * padded.row_stride(), padded.row_stride());
    expect(std::ranges::equal(row, filled), "a row of the padded batch is wrong");
    expect_equal(padded.lengths()[i], length, "a length in the padded batch");
    expect_equal(compressed.indptr()[i], start, "the start of a row of the compressed batch");
    const auto entries = compressed.indices().subspan(static_cast<std::size_t>(start), blocks.size());
    expect(std::ranges::equal(entries, blocks), "a row of the compressed batch is wrong");
    const auto last = length == 0 ? 0 : (length - 1) % shape_.block_size(g) + 1;
    expect_equal(compressed.last_block_len()[i], last, "the length of the last block in the compressed batch");
    start += static_cast<std::int32_t>(blocks.size());
  }
  expect_equal(compressed.indptr()[wanted.size()], start, "the end of the compressed batch");
}

}  // namespace pagedkv::test
