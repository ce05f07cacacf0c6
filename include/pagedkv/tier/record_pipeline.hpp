#pragma once

#include <pagedkv/core/block_pair.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/backend/concept.hpp>
#include <pagedkv/storage/view.hpp>
#include <pagedkv/tier/host_tier.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_table.hpp>
#include <pagedkv/tier/stream_marks.hpp>
#include <pagedkv/tier/tier_config.hpp>
#include <pagedkv/tier/tier_statistics.hpp>
#include <pagedkv/tier/transfer_queue.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv {

/// Moves records: copies between the device and host memory, and, behind them, writes and reads between host memory and
/// slower tiers. A failed transfer is a lost write or a miss. One thread at a time; only the constructor allocates.
template <swaps_blocks Backend, allocator Allocator, class Catalog>
class record_pipeline {
 public:
  using stream = typename Backend::stream;
  static constexpr auto host = Catalog::host;
  static constexpr auto num_tiers = Catalog::num_tiers;
  static constexpr bool has_slower = num_tiers != 1;

  /// Throws `exception`, `std::bad_alloc`.
  record_pipeline(const tier_config& config, std::int32_t num_blocks, Backend& backend,
                  const block_storage_view& device, const record_format& format, Allocator memory,
                  std::int32_t num_records, Catalog& catalog)
      : config_(config),
        backend_(backend),
        device_(device),
        records_(std::move(memory), format, num_records),
        host_blocks_(records_.blocks(device)),
        max_writing_(static_cast<std::size_t>(std::max(num_records / 2, 1))),
        catalog_(catalog),
        marks_(backend) {
    const auto most_saved = 2 * static_cast<std::size_t>(num_blocks);
    pending_.reserve(most_saved);
    pairs_.reserve(most_saved);
    copied_.reserve(most_saved);
    unwritten_.reserve(static_cast<std::size_t>(num_records));
    unread_.reserve(static_cast<std::size_t>(num_records));
  }
  record_pipeline(const record_pipeline&) = delete;
  record_pipeline& operator=(const record_pipeline&) = delete;

  /// With the next `flush`: the block must keep its contents until then.
  void want_written(record_id record, block_id block) noexcept {
    if (catalog_.at(record).pending) {
      return;
    }
    if (pending_.size() == pending_.capacity()) {
      catalog_.lose_unwritten();
      return;
    }
    catalog_.hold(record);
    catalog_.at(record).pending = true;
    pending_.push_back({record, block});
  }

  /// Writes to slower tiers that could begin beside those that are wanted already.
  [[nodiscard]] std::size_t num_more_writes() const noexcept {
    return max_writing_ - std::min(max_writing_, num_writing_ + catalog_.num_waiting() + pending_.size());
  }

  /// Whether blocks wait to be copied to host memory.
  [[nodiscard]] bool has_pending() const noexcept { return !pending_.empty(); }

  /// Copies what the device evicted, or should write through, to host memory, ahead of all that is enqueued on the
  /// stream from now on.
  void flush(stream on) noexcept {
    if (!pending_.empty()) {
      save_pending(on);
    }
  }

  /// Drops victims that lie in memory that is gone.
  void forget_pending() noexcept {
    for (const auto& [record, block] : pending_) {
      catalog_.lose_unwritten();
      catalog_.at(record).pending = false;
      catalog_.let_go(record);
    }
    pending_.clear();
  }

  /// Orders what is enqueued on the stream from now on behind all copies so far. False when the backend fails.
  [[nodiscard]] bool order(stream on) noexcept { return marks_.order(on).has_value(); }

  /// Enqueues the copy of records in host memory to these blocks of the device. All or nothing.
  [[nodiscard]] bool copy_to_device(std::span<const record_id> records, std::span<const block_id> blocks,
                                    stream on) noexcept {
    pairs_.clear();
    for (std::size_t i = 0; i < records.size(); ++i) {
      pairs_.push_back({place(records[i], host), static_cast<std::int32_t>(blocks[i])});
    }
    if (!marks_.order(on) ||
        !backend_.swap_blocks(host_blocks_, device_, pairs_, swap_direction::from_host, on)) {
      counts_of(host).failed_loads += std::ssize(records);
      return false;
    }
    marks_.note(on);
    for (const auto record : records) {
      catalog_.touch(record);
      if (catalog_.is_owed(record)) {
        pass_on_owed(record);
      }
    }
    return true;
  }

  /// Begins to load a record into host memory, from the fastest tier that has it. False when it has no room.
  [[nodiscard]] bool load([[maybe_unused]] record_id record) noexcept {
    if constexpr (has_slower) {
      return start_load(record);
    } else {
      return false;
    }
  }

  /// Whether to load records rather than to compute so many tokens, as far as speeds are known.
  [[nodiscard]] bool worth_loading([[maybe_unused]] std::span<const record_id> records,
                                   [[maybe_unused]] std::int64_t num_tokens) noexcept {
    if constexpr (has_slower) {
      if (config_.prefill_tokens_per_second != 0) {
        return seconds_to_load(records) <
               static_cast<double>(num_tokens) / static_cast<double>(config_.prefill_tokens_per_second);
      }
    }
    return true;
  }

  /// Takes what transfers have brought, and starts those that can begin.
  void progress() noexcept {
    if constexpr (has_slower) {
      take_completions();
      start_writes();
      start_reads();
    }
  }
  /// Takes what transfers have brought, where the tiers have stopped.
  void end_executed() noexcept { take_completions(); }
  /// Executes waiting transfers on this thread, where there is none for them; returns how many.
  std::size_t run_transfers() noexcept {
    auto num_run = std::size_t{0};
    catalog_.slower().for_each([&](std::size_t, auto& tier) { num_run += tier.queue.run(); });
    return num_run;
  }
  /// Whether a transfer between host memory and a slower tier is under way, or waits to begin.
  [[nodiscard]] bool is_busy() noexcept {
    auto busy = !unwritten_.empty() || !unread_.empty();
    catalog_.slower().for_each([&](std::size_t, auto& tier) { busy |= tier.queue.num_inside() != 0; });
    return busy;
  }
  [[nodiscard]] transfer_signal& signal() noexcept { return catalog_.slower().signal(); }

  [[nodiscard]] std::size_t host_bytes() const noexcept { return records_.bytes(); }
  /// Records that are being read.
  [[nodiscard]] std::size_t num_loading() const noexcept { return num_loading_; }
  /// Records that transfers hold, each once for each transfer.
  [[nodiscard]] std::size_t num_held() const noexcept { return num_loading_ + num_writing_; }

 private:
  struct saved_block {
    record_id record;
    block_id block;
  };
  struct awaited {
    record_id record;
    std::size_t tier;
    std::int32_t place;
    std::uint64_t batch;  // of copies, after which the transfer may begin
  };

  [[nodiscard]] tier_statistics& counts_of(std::size_t number) noexcept { return catalog_.counts_of(number); }
  [[nodiscard]] std::int32_t place(record_id record, std::size_t number) const noexcept {
    return catalog_.directory().place(record, number);
  }

  // Between the device and host memory.

  [[gnu::noinline]] void save_pending(stream on) noexcept {
    pairs_.clear();
    copied_.clear();
    take_host_places();
    const bool copied =
        pairs_.empty() || (marks_.order(on) &&
                           backend_.swap_blocks(device_, host_blocks_, pairs_, swap_direction::to_host, on));
    if (!copied) {
      std::ranges::for_each(copied_, [&](record_id record) { catalog_.lose_host_record(record); });
    } else if (!pairs_.empty()) {
      marks_.note(on);
      counts_of(host).written += std::ssize(copied_);
      pass_on_copies();
    }
    for (const auto& [record, block] : pending_) {
      catalog_.let_go(record);
    }
    pending_.clear();
    progress();
  }
  /// For what is pending, as far as there are any.
  void take_host_places() noexcept {
    const auto removals = catalog_.directory().tree().delay_removals();
    for (const auto& [record, block] : pending_) {
      catalog_.at(record).pending = false;
      if (catalog_.in_host_memory(record) || catalog_.directory().is_withdrawn(record)) {
        continue;
      }
      const auto to = catalog_.take_host_place(record);
      if (to < 0) {
        catalog_.lose_unwritten();
        continue;
      }
      ++counts_of(host).handed_over;
      catalog_.enter_host_memory(record, to);
      pairs_.push_back({static_cast<std::int32_t>(block), to});
      copied_.push_back(record);
    }
  }

  // Writes to slower tiers.

  /// Slower tiers get what host memory got, once it is there.
  void pass_on_copies() noexcept {
    if constexpr (has_slower) {
      for (const auto record : copied_) {
        pass_on(record);
      }
    }
  }
  /// Records that are being written hold half of host memory at most, so that loads find room. The others are owed.
  void pass_on(record_id record) noexcept {
    catalog_.owe(record);
    if (catalog_.is_owed(record) && num_writing_ != max_writing_) {
      catalog_.begin_write(record);
      ++num_writing_;
      unwritten_.push_back({record, 1, 0, marks_.begun()});
    }
  }
  void pass_on_owed(record_id record) noexcept {
    counts_of(host).late_writes += num_writing_ != max_writing_ ? 1 : 0;
    pass_on(record);
  }

  void start_writes() noexcept {
    const auto done = marks_.done();
    const auto ready = std::ranges::find_if(unwritten_, [&](const awaited& each) { return each.batch > done; });
    for (auto each = unwritten_.begin(); each != ready; ++each) {
      write_on(each->record, 1);
    }
    unwritten_.erase(unwritten_.begin(), ready);
  }

  /// Writes a host record to the next tiers from `number` on that lack it, one after the other.
  void write_on(record_id record, std::size_t number) noexcept {
    for (; number < num_tiers; ++number) {
      const auto wanted = !catalog_.directory().is_withdrawn(record) && catalog_.is_due(record, number);
      if (wanted && start_write(record, number)) {
        return;
      }
    }
    --num_writing_;
    catalog_.end_write(record);
  }
  [[nodiscard]] bool start_write(record_id record, std::size_t number) noexcept {
    return catalog_.slower().template with<bool>(number, [&](auto& tier) {
      const auto to = catalog_.take_place(record, number, tier);
      auto job = job_for(record, place(record, host), to);
      job.writes = true;
      job.sealed = catalog_.at(record).sealed;
      if (to >= 0 && tier.queue.try_push(job)) {
        return true;
      }
      fail_write(to, tier);
      return false;
    });
  }
  /// The record stays owed.
  template <class Tier>
  void fail_write(std::int32_t to, Tier& tier) noexcept {
    if (to >= 0) {
      catalog_.give_back_place(to, tier);
    }
    ++tier.counts.failed_writes;
  }
  template <class Tier>
  void end_write(const record_job& job, std::size_t number, Tier& tier) noexcept {
    const auto to = static_cast<std::int32_t>(job.transfer.place);
    auto& here = catalog_.at(job.record);
    here.sealed = here.sealed || job.sealed;
    const auto written = job.outcome == transfer_outcome::done;
    if (written) {
      catalog_.enter(job.record, number, to, tier);
    } else {
      fail_write(to, tier);
    }
    write_on(job.record, number + 1);
    if (const auto owed = written ? catalog_.find_owed() : no_record; owed != no_record) {
      pass_on_owed(owed);
    }
  }

  // Reads from slower tiers.

  [[nodiscard]] double seconds_to_load(std::span<const record_id> records) noexcept {
    auto seconds = 0.0;
    catalog_.slower().for_each([&](std::size_t number, auto& tier) {
      const auto is_from = [&](record_id record) {
        return !catalog_.in_host_memory(record) && catalog_.source_of(record) == number;
      };
      const auto wanted = static_cast<std::size_t>(std::ranges::count_if(records, is_from));
      const auto speed = tier.queue.read_bytes_per_second();
      if (wanted != 0 && speed > 0) {
        const auto num_records = wanted + tier.queue.num_reads_waiting();
        seconds += static_cast<double>(num_records * records_.format().record_bytes()) / speed;
      }
    });
    return seconds;
  }

  [[nodiscard]] bool start_load(record_id record) noexcept {
    const auto number = catalog_.source_of(record);
    if (number == 0) {
      return false;
    }
    const auto to = unread_.size() < unread_.capacity() ? catalog_.take_host_place(record) : -1;
    if (to < 0) {
      ++counts_of(number).refused_loads;
      return false;
    }
    catalog_.hold(record);
    auto& here = catalog_.at(record);
    here.loading = true;
    here.source = static_cast<std::int8_t>(number);
    ++num_loading_;
    unread_.push_back({record, number, to, marks_.begun()});
    return true;
  }
  /// Reads begin when the copies that used their host records before have been executed.
  void start_reads() noexcept {
    const auto done = marks_.done();
    const auto ready = std::ranges::find_if(unread_, [&](const awaited& each) { return each.batch > done; });
    for (auto each = unread_.begin(); each != ready; ++each) {
      const auto started = catalog_.slower().template with<bool>(each->tier, [&](auto& tier) {
        const auto from = std::max(place(each->record, each->tier), std::int32_t{0});
        return tier.queue.try_push(job_for(each->record, each->place, from));
      });
      if (!started) {
        ++counts_of(each->tier).refused_loads;
        end_load(each->record, each->place, false);
      }
    }
    unread_.erase(unread_.begin(), ready);
  }
  /// `read`: the record is in its place, whole.
  void end_load(record_id record, std::int32_t to, bool read) noexcept {
    auto& here = catalog_.at(record);
    here.loading = false;
    --num_loading_;
    if (read && !catalog_.in_host_memory(record)) {
      const auto source = here.source;
      catalog_.enter_host_memory(record, to);
      here.sealed = true;
      here.source = source;
      ++counts_of(host).loaded_into;
    } else {
      catalog_.give_back_host_place(to);
    }
    catalog_.let_go(record);
  }
  template <class Tier>
  void end_read(const record_job& job, std::size_t number, Tier& tier) noexcept {
    const auto whole = job.outcome == transfer_outcome::done && !job.damaged;
    if (whole) {
      ++tier.counts.loads;
    } else if (job.outcome == transfer_outcome::missing) {
      ++tier.counts.missing_loads;
    } else {
      ++tier.counts.failed_loads;
    }
    if (job.outcome == transfer_outcome::missing || job.damaged) {
      catalog_.drop_record(job.record, number, tier);
      catalog_.owe(job.record);  // if host memory has it by now
    }
    end_load(job.record, job.host_place, whole);
  }

  [[nodiscard]] record_job job_for(record_id record, std::int32_t host_place, std::int32_t in_tier) noexcept {
    auto job = record_job{};
    job.identity = catalog_.directory().identity(record, host_place);
    job.transfer = {key_in_tier(job.identity), in_tier, records_.record(host_place)};
    job.record = record;
    job.host_place = host_place;
    return job;
  }
  void take_completions() noexcept {
    catalog_.slower().for_each([&](std::size_t number, auto& tier) {
      auto job = record_job{};
      while (tier.queue.try_pop(job)) {
        if (job.writes) {
          end_write(job, number, tier);
        } else {
          end_read(job, number, tier);
        }
      }
      catalog_.take_erased(tier);
    });
  }

  tier_config config_;
  Backend& backend_;
  block_storage_view device_;
  detail::host_records<Allocator> records_;
  block_storage_view host_blocks_;
  std::size_t max_writing_;
  Catalog& catalog_;
  stream_marks<Backend> marks_;
  std::size_t num_loading_ = 0;
  std::size_t num_writing_ = 0;  // records that are being written, tier after tier
  std::vector<saved_block> pending_;
  std::vector<awaited> unwritten_;
  std::vector<awaited> unread_;
  std::vector<block_pair> pairs_;
  std::vector<record_id> copied_;
};

}  // namespace pagedkv
