#pragma once

#include <pagedkv/backend/concept.hpp>
#include <pagedkv/core/checked.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/storage/view.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_index.hpp>
#include <pagedkv/tier/tier_config.hpp>
#include <pagedkv/tier/tier_statistics.hpp>
#include <pagedkv/tier/transfer_queue.hpp>

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv {

namespace detail {

/// Numbers batches of copies between a device and host memory, in the order in which they were enqueued, which is also
/// the order in which they are executed, on whichever streams. Not thread-safe.
template <swaps_blocks Backend>
class stream_marks {
 public:
  using stream_type = typename Backend::stream_type;

  /// Throws `exception`, `std::bad_alloc`.
  explicit stream_marks(Backend& backend) : backend_(backend) {
    marks_.reserve(num_marks);
    for (std::size_t i = 0; i < num_marks; ++i) {
      marks_.push_back(backend.make_mark());
    }
  }

  /// Before a batch is enqueued on a stream.
  [[nodiscard]] result<void> order(stream_type stream) noexcept {
    return begun_ == 0 ? result<void>{} : backend_.wait_for(newest(), stream);
  }

  /// After a batch was enqueued on a stream.
  void note(stream_type stream) noexcept {
    if (begun_ - done() == num_marks) {
      --begun_;  // the newest mark stands for two batches
    }
    ++begun_;
    if (!backend_.set_mark(newest(), stream)) {
      static_cast<void>(backend_.synchronize(stream));
    }
  }

  /// The number of the newest batch.
  [[nodiscard]] std::uint64_t begun() const noexcept { return begun_; }

  /// The number of the newest batch that was executed.
  [[nodiscard]] std::uint64_t done() noexcept {
    while (done_ < begun_) {
      const auto reached = backend_.reached(marks_[(done_ + 1) % num_marks]);
      if (!reached || !*reached) {
        break;
      }
      ++done_;
    }
    return done_;
  }

 private:
  static constexpr auto num_marks = std::size_t{16};

  [[nodiscard]] auto& newest() noexcept { return marks_[begun_ % num_marks]; }

  Backend& backend_;
  std::vector<typename Backend::mark> marks_;
  std::uint64_t begun_ = 0;
  std::uint64_t done_ = 0;
};

/// The memory of a host tier: whole records, or, where no slower tier gets them, no more than their blocks, which then
/// lie closer together.
template <allocator Allocator>
class host_records {
 public:
  /// Throws `exception` when the allocator is exhausted.
  host_records(Allocator memory, record_format format, std::int32_t num_records, bool are_whole)
      : memory_(std::move(memory)),
        format_(std::move(format)),
        header_bytes_(are_whole ? format_.header_bytes() : 0),
        record_bytes_(are_whole ? format_.record_bytes() : format_.payload_bytes()),
        num_records_(num_records) {
    assert(num_records > 0);
    auto size = checked_size{};
    const auto bytes = size.multiply(static_cast<std::int64_t>(record_bytes_), num_records);
    base_ = size.overflowed() ? nullptr : memory_.allocate(static_cast<std::size_t>(bytes), record_alignment);
    if (base_ == nullptr) {
      fail({error_code::out_of_memory, "number of host records", num_records});
    }
  }
  host_records(const host_records&) = delete;
  host_records& operator=(const host_records&) = delete;
  ~host_records() { memory_.deallocate(base_, bytes()); }

  [[nodiscard]] const record_format& format() const noexcept { return format_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return record_bytes_ * static_cast<std::size_t>(num_records_); }
  /// Requires whole records.
  [[nodiscard]] std::span<std::byte> record(std::int32_t place) const noexcept {
    assert(header_bytes_ != 0 && "this host tier keeps no headers");
    return {base_ + record_bytes_ * static_cast<std::size_t>(place), record_bytes_};
  }
  /// The blocks in the records.
  [[nodiscard]] block_storage_view blocks(const block_storage_view& device) const noexcept {
    return format_.payloads(device, base_ + header_bytes_, record_bytes_, num_records_);
  }

 private:
  Allocator memory_;
  record_format format_;
  std::size_t header_bytes_;
  std::size_t record_bytes_;
  std::int32_t num_records_;
  std::byte* base_ = nullptr;
};

}  // namespace detail

/// Moves records: copies between the device and host memory, and, behind them, writes and reads between host memory and
/// slower tiers. A failed transfer is a lost write or a miss. One thread at a time; only the constructor allocates.
template <swaps_blocks Backend, allocator Allocator, class Index>
class record_transfers {
 public:
  using stream_type = typename Backend::stream_type;
  using queues_type = typename Index::queues_type;
  static constexpr auto host = Index::host;
  static constexpr bool has_slower = Index::has_slower;

  /// Throws `exception`, `std::bad_alloc`.
  record_transfers(const tier_config& config, std::int32_t num_blocks, Backend& backend,
                   const block_storage_view& device, const record_format& format, Allocator memory,
                   std::int32_t num_records, Index& index, queues_type& queues)
      : config_(config),
        backend_(backend),
        device_(device),
        records_(std::move(memory), format, num_records, has_slower),
        host_blocks_(records_.blocks(device)),
        max_writing_(static_cast<std::size_t>(std::max(num_records / 2, 1))),
        index_(index),
        queues_(queues),
        marks_(backend) {
    const auto most_saved = 2 * static_cast<std::size_t>(num_blocks);
    pending_.reserve(most_saved);
    pairs_.reserve(most_saved);
    unwritten_.reserve(static_cast<std::size_t>(num_records));
    unread_.reserve(static_cast<std::size_t>(num_records));
  }
  record_transfers(const record_transfers&) = delete;
  record_transfers& operator=(const record_transfers&) = delete;

  /// With the next `flush`: the block must keep its contents until then.
  void want_written(record_id record, block_id block) noexcept {
    if (index_.at(record).pending) {
      return;
    }
    if (pending_.size() == pending_.capacity()) {
      index_.lose_unwritten();
      return;
    }
    index_.hold(record);
    index_.at(record).pending = true;
    pending_.push_back({record, block});
  }

  /// Writes to slower tiers that could begin beside those that are wanted already.
  [[nodiscard]] std::size_t num_more_writes() const noexcept {
    return max_writing_ - std::min(max_writing_, num_writing_ + index_.num_waiting() + pending_.size());
  }

  /// Whether blocks wait to be copied to host memory.
  [[nodiscard]] bool has_pending() const noexcept { return !pending_.empty(); }

  /// Copies what the device evicted, or should write through, to host memory, ahead of all that is enqueued on the
  /// stream from now on.
  void flush(stream_type stream) noexcept {
    if (!pending_.empty()) {
      save_pending(stream);
    }
  }

  /// Copies device blocks: those of `path` from its last one on, so that no tier gets a record before those that begin
  /// it. At most so many; `path` is empty afterwards.
  void want_path_written(std::vector<std::pair<record_id, block_id>>& path, std::size_t most) noexcept {
    for (; !path.empty() && most != 0; --most) {
      want_written(path.back().first, path.back().second);
      path.pop_back();
    }
    path.clear();
  }

  /// Drops victims that lie in memory that is gone.
  void forget_pending() noexcept {
    for (const auto& [record, block] : pending_) {
      index_.lose_unwritten();
      index_.at(record).pending = false;
      index_.let_go(record);
    }
    pending_.clear();
  }

  /// Orders what is enqueued on the stream from now on behind all copies so far. False when the backend fails.
  [[nodiscard]] bool order(stream_type stream) noexcept { return marks_.order(stream).has_value(); }

  /// Enqueues the copy of records in host memory to these blocks of the device. All or nothing.
  [[nodiscard]] bool copy_to_device(std::span<const record_id> records, std::span<const block_id> blocks,
                                    stream_type stream) noexcept {
    pairs_.clear();
    for (std::size_t i = 0; i < records.size(); ++i) {
      pairs_.push_back({index_.place_of(records[i], host), static_cast<std::int32_t>(blocks[i])});
    }
    if (!marks_.order(stream) ||
        !backend_.swap_blocks(host_blocks_, device_, pairs_, swap_direction::from_host, stream)) {
      index_.counts(host).failed_loads += std::ssize(records);
      return false;
    }
    marks_.note(stream);
    for (const auto record : records) {
      index_.touch(record);
      if (index_.is_owed(record)) {
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
  void end_executed() noexcept {
    if constexpr (has_slower) {
      take_completions();
    }
  }
  /// Executes waiting transfers on this thread, where there is none for them; returns how many.
  std::size_t run_transfers() noexcept { return queues_.run(); }
  /// Whether a transfer between host memory and a slower tier is under way, or waits to begin.
  [[nodiscard]] bool is_busy() noexcept { return !unwritten_.empty() || !unread_.empty() || !queues_.are_empty(); }
  [[nodiscard]] transfer_signal& signal() noexcept { return queues_.signal(); }

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

  // Between the device and host memory.

  [[gnu::noinline]] void save_pending(stream_type stream) noexcept {
    take_host_places();
    const bool copied =
        pairs_.empty() ||
        (marks_.order(stream) && backend_.swap_blocks(device_, host_blocks_, pairs_, swap_direction::to_host, stream));
    if (copied && !pairs_.empty()) {
      marks_.note(stream);
      index_.counts(host).written += std::ssize(pairs_);
    }
    for (const auto& [record, block] : pending_) {
      if (!copied) {
        index_.lose_host_record(record);
      } else if constexpr (has_slower) {
        pass_on(record);
      }
      index_.let_go(record);
    }
    pending_.clear();
    progress();
  }
  /// Takes places for what is pending, which is what gets one afterwards.
  void take_host_places() noexcept {
    const auto removals = index_.tree().delay_removals();
    pairs_.resize(pending_.size());
    auto num_taken = std::size_t{0};
    for (const auto& [record, block] : pending_) {
      index_.at(record).pending = false;
      const auto is_wanted = !index_.in_host_memory(record) && !index_.is_withdrawn(record);
      const auto to = is_wanted ? index_.take_place(record, host) : -1;
      if (to >= 0) {
        ++index_.counts(host).handed_over;
        index_.enter_host_memory(record, to);
        pairs_[num_taken] = {static_cast<std::int32_t>(block), to};
        pending_[num_taken++] = {record, block};
      } else {
        if (is_wanted) {
          index_.lose_unwritten();
        }
        index_.let_go(record);
      }
    }
    pairs_.resize(num_taken);
    pending_.resize(num_taken);
  }

  // Writes to slower tiers.

  /// Records that are being written hold half of host memory at most, so that loads find room. The others are owed.
  void pass_on(record_id record) noexcept {
    index_.owe(record);
    if (index_.is_owed(record) && num_writing_ != max_writing_) {
      index_.begin_write(record);
      ++num_writing_;
      unwritten_.push_back({record, 1, 0, marks_.begun()});
    }
  }
  void pass_on_owed(record_id record) noexcept {
    index_.counts(host).late_writes += num_writing_ != max_writing_ ? 1 : 0;
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
    for (; number < index_.num_tiers(); ++number) {
      const auto wanted = !index_.is_withdrawn(record) && index_.is_due(record, number);
      if (wanted && start_write(record, number)) {
        return;
      }
    }
    --num_writing_;
    index_.end_write(record);
  }
  [[nodiscard]] bool start_write(record_id record, std::size_t number) noexcept {
    const auto to = index_.take_place(record, number);
    auto job = job_for(record, index_.place_of(record, host), to);
    job.writes = true;
    job.sealed = index_.at(record).sealed;
    if (to >= 0 && try_push(job, number)) {
      return true;
    }
    fail_write(record, to, number);
    return false;
  }
  /// The record stays owed, if it is valid.
  void fail_write(record_id record, std::int32_t to, std::size_t number) noexcept {
    if (to >= 0) {
      index_.give_back_unwritten(record, to, number);
    }
    ++index_.counts(number).failed_writes;
  }
  void end_write(const record_job& job, std::size_t number) noexcept {
    const auto to = static_cast<std::int32_t>(job.transfer.place);
    auto& here = index_.at(job.record);
    here.sealed = here.sealed || job.sealed;
    const auto written = job.outcome == transfer_outcome::done;
    if (written) {
      index_.enter(job.record, number, to);
    } else {
      fail_write(job.record, to, number);
    }
    write_on(job.record, number + 1);
    if (const auto owed = written ? index_.find_owed() : no_record; owed != no_record) {
      pass_on_owed(owed);
    }
  }

  // Reads from slower tiers.

  [[nodiscard]] double seconds_to_load(std::span<const record_id> records) noexcept {
    auto seconds = 0.0;
    for (auto number = host + 1; number < index_.num_tiers(); ++number) {
      const auto& queue = queues_[number];
      const auto is_from = [&](record_id record) {
        return !index_.in_host_memory(record) && index_.source_of(record) == number;
      };
      const auto wanted = static_cast<std::size_t>(std::ranges::count_if(records, is_from));
      const auto speed = queue.read_bytes_per_second();
      if (wanted != 0 && speed > 0) {
        const auto num_records = wanted + queue.num_reads_waiting();
        seconds += static_cast<double>(num_records * records_.format().record_bytes()) / speed;
      }
    }
    return seconds;
  }

  [[nodiscard]] bool start_load(record_id record) noexcept {
    const auto number = index_.source_of(record);
    if (number == 0) {
      return false;
    }
    const auto to = unread_.size() < unread_.capacity() ? index_.take_place(record, host) : -1;
    if (to < 0) {
      ++index_.counts(number).refused_loads;
      return false;
    }
    index_.hold(record);
    auto& here = index_.at(record);
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
      const auto from = std::max(index_.place_of(each->record, each->tier), std::int32_t{0});
      if (index_.is_withdrawn(each->record)) {  // meanwhile: the tier has it no more
        end_load(each->record, each->place, false);
      } else if (!try_push(job_for(each->record, each->place, from), each->tier)) {
        ++index_.counts(each->tier).refused_loads;
        end_load(each->record, each->place, false);
      }
    }
    unread_.erase(unread_.begin(), ready);
  }
  /// `read`: the record is in its place, whole.
  void end_load(record_id record, std::int32_t to, bool read) noexcept {
    auto& here = index_.at(record);
    here.loading = false;
    --num_loading_;
    if (read && !index_.in_host_memory(record)) {
      const auto source = here.source;
      index_.enter_host_memory(record, to);
      here.sealed = true;
      here.source = source;
      ++index_.counts(host).loaded_into;
    } else {
      index_.give_back_place(to, host);
    }
    index_.let_go(record);
  }
  void end_read(const record_job& job, std::size_t number) noexcept {
    auto& counts = index_.counts(number);
    const auto whole = job.outcome == transfer_outcome::done && !job.damaged;
    if (whole) {
      ++counts.loads;
    } else if (job.outcome == transfer_outcome::missing) {
      ++counts.missing_loads;
    } else {
      ++counts.failed_loads;
    }
    if (job.outcome == transfer_outcome::missing || job.damaged) {
      index_.drop(job.record, number);
      index_.owe(job.record);  // if host memory has it by now
    }
    end_load(job.record, job.host_place, whole);
  }

  [[nodiscard]] record_job job_for(record_id record, std::int32_t host_place, std::int32_t in_tier) noexcept {
    auto job = record_job{};
    job.identity = index_.identity(record, host_place);
    job.transfer = {key_in_tier(job.identity), in_tier, records_.record(host_place)};
    job.record = record;
    job.host_place = host_place;
    return job;
  }
  [[nodiscard]] bool try_push(const record_job& job, std::size_t number) noexcept {
    return queues_[number].try_push(job);
  }
  void take_completions() noexcept {
    for (auto number = host + 1; number < index_.num_tiers(); ++number) {
      auto& queue = queues_[number];
      auto job = record_job{};
      while (queue.try_pop(job)) {
        job.writes ? end_write(job, number) : end_read(job, number);
      }
      for (auto place = std::int64_t{0}; queue.try_pop_erased(place);) {
        index_.note_erased(static_cast<std::int32_t>(place), number);
      }
    }
  }

  tier_config config_;
  Backend& backend_;
  block_storage_view device_;
  detail::host_records<Allocator> records_;
  block_storage_view host_blocks_;
  std::size_t max_writing_;
  Index& index_;
  queues_type& queues_;
  detail::stream_marks<Backend> marks_;
  std::size_t num_loading_ = 0;
  std::size_t num_writing_ = 0;  // records that are being written, tier after tier
  std::vector<saved_block> pending_;
  std::vector<awaited> unwritten_;
  std::vector<awaited> unread_;
  std::vector<block_pair> pairs_;
};

}  // namespace pagedkv
