#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/policy/tiers/concept.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/slower_tier.hpp>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace pagedkv {

/// One record to write to a tier or to read from it, and how that ended.
struct record_job {
  record_transfer transfer;
  record_identity identity;      // its contents stay where they are until the job is done
  record_id record = no_record;  // the caller's, as the next
  std::int32_t host_place = -1;  // of the bytes
  bool writes = false;
  bool sealed = false;  // a write whose bytes have their header already
  transfer_outcome outcome = transfer_outcome::failed;
  bool damaged = false;  // a read brought other bytes than were asked for
  std::uint64_t number = 0;  // the queue's: of the order in which jobs and erasures came
};

/// Wakes threads that wait for any of several queues.
class transfer_signal {
 public:
  void notify() noexcept {
    {
      const auto lock = std::lock_guard{mutex_};
      ++count_;
    }
    changed_.notify_all();
  }
  [[nodiscard]] std::uint64_t count() const noexcept {
    const auto lock = std::lock_guard{mutex_};
    return count_;
  }
  /// Until a notification after `count` was read, or the deadline.
  void wait(std::uint64_t count, std::chrono::steady_clock::time_point deadline) noexcept {
    auto lock = std::unique_lock{mutex_};
    changed_.wait_until(lock, deadline, [&] { return count_ != count; });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t count_ = 0;
};

/// Executes the transfers of one tier in batches: a batch of erasures, if there are any, then one of reads, or else of
/// writes. On a thread of its own, or in calls of `run`. It seals records before it writes them, and verifies what it
/// reads. One caller's thread pushes and pops; it never waits for the tier.
class transfer_queue {
 public:
  /// `has_places`: whether the tier has numbered places. `capacity`: jobs that were pushed and not popped. Throws
  /// `std::bad_alloc`, `std::system_error`.
  transfer_queue(std::unique_ptr<slower_tier> tier, bool has_places, record_format format, std::size_t capacity,
                 bool threaded, transfer_signal& signal)
      : tier_(std::move(tier)),
        has_places_(has_places),
        format_(std::move(format)),
        capacity_(capacity),
        signal_(signal) {
    for (auto* list : {&reads_, &writes_, &done_, &batch_}) {
      list->reserve(capacity);
    }
    transfers_.reserve(max_batch);
    outcomes_.reserve(max_batch);
    if (threaded) {
      thread_ = std::thread{[this] { serve(); }};
    }
  }
  transfer_queue(const transfer_queue&) = delete;
  transfer_queue& operator=(const transfer_queue&) = delete;

  ~transfer_queue() { stop(); }

  /// Waits for the batch that is being executed, and erases what is to be erased, as far as the tier does it at once.
  /// Drops the rest; the places of dropped writes are erased, because nobody knows of the records there any more.
  void stop() noexcept {
    if (thread_.joinable()) {
      {
        const auto lock = std::lock_guard{mutex_};
        stopping_ = true;
      }
      wake_.notify_one();
      thread_.join();
    }
    auto lock = std::unique_lock{mutex_};
    if (has_places_) {
      for (const auto& job : writes_) {
        num_erasing_.fetch_add(1, std::memory_order_relaxed);
        const auto add = [&] { return add_erasure({job.transfer.key, job.transfer.place, job.number}), true; };
        static_cast<void>(detail::with_memory(add, false));
      }
      writes_.clear();
    }
    while (!erasures_.empty() && execute_erasures(lock)) {
    }
  }

  /// False when full.
  [[nodiscard]] bool try_push(const record_job& job) noexcept {
    {
      const auto lock = std::lock_guard{mutex_};
      if (num_inside_ == capacity_) {
        return false;
      }
      ++num_inside_;
      auto& to = job.writes ? writes_ : reads_;
      to.push_back(job);
      to.back().number = ++last_number_;
    }
    wake_.notify_one();
    return true;
  }

  /// A job that is done; false when there is none. In the order in which they were executed: a later write of a record
  /// outdates what a read of it said.
  [[nodiscard]] bool try_pop(record_job& job) noexcept {
    if (num_done_.load(std::memory_order_acquire) == 0) {
      return false;
    }
    const auto lock = std::lock_guard{mutex_};
    job = done_[num_popped_++];
    num_done_.store(done_.size() - num_popped_, std::memory_order_release);
    --num_inside_;
    return true;
  }

  /// Executes a batch of erasures and one of transfers on the caller's thread. Returns the number of transfers, plus
  /// one if all of these erasures succeeded. Does nothing where the queue has a thread.
  std::size_t run() noexcept {
    if (thread_.joinable()) {
      return 0;
    }
    auto lock = std::unique_lock{mutex_};
    const auto num_erased = erasures_.empty() || !execute_erasures(lock) ? std::size_t{0} : std::size_t{1};
    return num_erased + execute_batch(lock);
  }

  /// Has a record erased, in this place or by its key, and again until that succeeds, or until a write under the key
  /// that was pushed later does: it has replaced the record. Without memory, a record is not erased, and counts as
  /// being erased for good.
  void erase(const record_key& key, std::int64_t place) noexcept {
    {
      const auto lock = std::lock_guard{mutex_};
      num_erasing_.fetch_add(1, std::memory_order_relaxed);
      static_cast<void>(detail::with_memory([&] { return add_erasure({key, place, ++last_number_}), true; }, false));
    }
    wake_.notify_one();
  }
  /// A place whose record was erased; false when there is none.
  [[nodiscard]] bool try_pop_erased(std::int64_t& place) noexcept {
    if (num_erased_.load(std::memory_order_acquire) == 0) {
      return false;
    }
    const auto lock = std::lock_guard{mutex_};
    place = erased_.back();
    erased_.pop_back();
    num_erased_.store(erased_.size(), std::memory_order_release);
    return true;
  }
  /// Records that the tier may still have, although they are to be erased.
  [[nodiscard]] std::size_t num_erasing() const noexcept { return num_erasing_.load(std::memory_order_acquire); }

  [[nodiscard]] std::size_t num_inside() const noexcept {
    const auto lock = std::lock_guard{mutex_};
    return num_inside_;
  }
  [[nodiscard]] std::size_t num_reads_waiting() const noexcept {
    const auto lock = std::lock_guard{mutex_};
    return reads_.size();
  }

  /// The speed of reads lately; 0 before the first.
  [[nodiscard]] double read_bytes_per_second() const noexcept { return read_speed_.load(std::memory_order_relaxed); }

  /// While no transfer is under way.
  [[nodiscard]] slower_tier& tier() noexcept { return *tier_; }

 private:
  using clock = std::chrono::steady_clock;
  static constexpr auto max_batch = std::size_t{64};
  static constexpr auto pause = std::chrono::milliseconds{100};  // before erasing again

  struct erasure {
    record_key key;
    std::int64_t place;
    std::uint64_t number;
  };

  void serve() noexcept {
    auto lock = std::unique_lock{mutex_};
    for (;;) {
      await_work(lock);
      if (stopping_) {
        return;
      }
      if (erases_now()) {
        const auto erased = execute_erasures(lock);
        retry_erasures_ = erased ? clock::time_point{} : clock::now() + pause;
      }
      execute_batch(lock);
    }
  }
  void await_work(std::unique_lock<std::mutex>& lock) noexcept {
    while (!stopping_ && reads_.empty() && writes_.empty() && !erases_now()) {
      if (erasures_.empty()) {
        wake_.wait(lock);
      } else {
        wake_.wait_until(lock, retry_erasures_);
      }
    }
  }

  [[nodiscard]] bool erases_now() const noexcept { return !erasures_.empty() && clock::now() >= retry_erasures_; }
  void add_erasure(const erasure& added) {
    if (const auto most = erased_.size() + erasures_.size() + 1; erased_.capacity() < most) {
      erased_.reserve(2 * most);
    }
    erasures_.push_back(added);
  }
  /// One batch. False when some of it failed.
  bool execute_erasures(std::unique_lock<std::mutex>& lock) noexcept {
    const auto size = std::min(erasures_.size(), max_batch);
    transfers_.clear();
    for (std::size_t i = 0; i < size; ++i) {
      transfers_.push_back({erasures_[i].key, erasures_[i].place, {}});
    }
    lock.unlock();
    outcomes_.assign(size, transfer_outcome::failed);
    tier_->erase(transfers_, outcomes_);
    lock.lock();
    auto failed = erasures_.begin();
    for (std::size_t i = 0; i < size; ++i) {
      if (outcomes_[i] == transfer_outcome::done) {
        erased_.push_back(erasures_[i].place);
      } else {
        *failed++ = erasures_[i];
      }
    }
    const auto all = failed == erasures_.begin();
    const auto num_erased = erasures_.begin() + static_cast<std::ptrdiff_t>(size) - failed;
    const auto untried = erasures_.erase(failed, failed + num_erased);
    std::rotate(erasures_.begin(), untried, erasures_.end());
    num_erased_.store(erased_.size(), std::memory_order_release);
    num_erasing_.fetch_sub(static_cast<std::size_t>(num_erased), std::memory_order_release);
    return all;
  }

  std::size_t execute_batch(std::unique_lock<std::mutex>& lock) noexcept {
    auto& from = reads_.empty() ? writes_ : reads_;
    const auto size = std::min(from.size(), max_batch);
    if (size == 0) {
      return 0;
    }
    const auto end = from.begin() + static_cast<std::ptrdiff_t>(size);
    batch_.assign(from.begin(), end);
    from.erase(from.begin(), end);
    lock.unlock();
    if (batch_.front().writes) {
      write_batch();
    } else {
      read_batch();
    }
    lock.lock();
    if (!has_places_ && batch_.front().writes && !erasures_.empty()) {
      drop_replaced();
    }
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(std::exchange(num_popped_, std::size_t{0})));
    done_.insert(done_.end(), batch_.begin(), batch_.end());
    num_done_.store(done_.size(), std::memory_order_release);
    lock.unlock();
    signal_.notify();
    lock.lock();
    return size;
  }

  /// Drops the erasures of records that this batch has written over.
  void drop_replaced() noexcept {
    constexpr auto key_of = [](const record_job& job) { return job.transfer.key.low; };
    std::ranges::sort(batch_, {}, key_of);
    const auto is_replaced = [&](const erasure& each) {
      const auto replaces = [&](const record_job& job) {
        return job.outcome == transfer_outcome::done && job.transfer.key == each.key && each.number < job.number;
      };
      // libstdc++'s range of equal elements needs views, which clang 15 refuses.
      const auto first = std::ranges::lower_bound(batch_, each.key.low, {}, key_of);
      return std::any_of(first, std::ranges::upper_bound(batch_, each.key.low, {}, key_of), replaces);
    };
    const auto num_dropped = std::erase_if(erasures_, is_replaced);
    num_erasing_.fetch_sub(num_dropped, std::memory_order_release);
  }

  void write_batch() noexcept {
    transfers_.clear();
    for (auto& job : batch_) {
      job.sealed = job.sealed || seal_record(format_, job.identity, job.transfer.bytes);
      if (job.sealed) {
        transfers_.push_back(job.transfer);
      }
    }
    outcomes_.assign(transfers_.size(), transfer_outcome::failed);
    if (!transfers_.empty()) {
      tier_->write(transfers_, outcomes_);
    }
    auto next = outcomes_.begin();
    for (auto& job : batch_) {
      job.outcome = job.sealed ? *next++ : transfer_outcome::failed;
    }
  }

  void read_batch() noexcept {
    transfers_.clear();
    for (const auto& job : batch_) {
      transfers_.push_back(job.transfer);
    }
    outcomes_.assign(transfers_.size(), transfer_outcome::failed);
    const auto start = clock::now();
    tier_->read(transfers_, outcomes_);
    note_speed(clock::now() - start);
    for (std::size_t i = 0; i < batch_.size(); ++i) {
      auto& job = batch_[i];
      job.outcome = outcomes_[i];
      if (job.outcome == transfer_outcome::done) {
        job.damaged = verify_record(format_, job.identity, job.transfer.bytes) != record_fault::none;
      }
    }
  }

  void note_speed(std::chrono::duration<double> took) noexcept {
    const auto num_read = std::ranges::count(outcomes_, transfer_outcome::done);
    const auto seconds = took.count();
    if (num_read == 0 || seconds <= 0) {
      return;
    }
    const auto speed = static_cast<double>(num_read) * static_cast<double>(format_.record_bytes()) / seconds;
    const auto before = read_speed_.load(std::memory_order_relaxed);
    read_speed_.store(before == 0 ? speed : before * 0.75 + speed * 0.25, std::memory_order_relaxed);
  }

  std::unique_ptr<slower_tier> tier_;
  bool has_places_;
  record_format format_;
  std::size_t capacity_;
  transfer_signal& signal_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<record_job> reads_;
  std::vector<record_job> writes_;
  std::vector<record_job> done_;
  std::size_t num_popped_ = 0;  // of these
  std::vector<erasure> erasures_;
  std::vector<std::int64_t> erased_;  // places
  clock::time_point retry_erasures_;
  std::size_t num_inside_ = 0;
  std::uint64_t last_number_ = 0;
  bool stopping_ = false;
  std::atomic<std::size_t> num_done_{0};
  std::atomic<std::size_t> num_erased_{0};
  std::atomic<std::size_t> num_erasing_{0};
  std::atomic<double> read_speed_{0};
  std::vector<record_job> batch_;  // the executing thread's, as the next two
  std::vector<record_transfer> transfers_;
  std::vector<transfer_outcome> outcomes_;
  std::thread thread_;
};

/// The queues of the tiers behind host memory, which have the numbers from 1 on, the fastest first.
class transfer_queues {
 public:
  static constexpr bool has_slower = true;

  /// Takes the slower tiers out of the list. Throws `std::bad_alloc`, `std::system_error`.
  transfer_queues(tier_list& tiers, const record_format& format, std::size_t capacity, bool threaded) {
    queues_.reserve(tiers.slower.size());
    for (auto& tier : tiers.slower) {
      const auto has_places = tiers.shapes[queues_.size() + 1].has_places;
      queues_.push_back(
          std::make_unique<transfer_queue>(std::move(tier), has_places, format, capacity, threaded, signal_));
    }
  }

  [[nodiscard]] transfer_queue& operator[](std::size_t number) const noexcept {
    assert(number >= 1 && number <= queues_.size() && "the number of a slower tier");
    return *queues_[number - 1];
  }

  void erase(std::size_t number, const record_key& key, std::int64_t place) noexcept {
    (*this)[number].erase(key, place);
  }
  /// 0 for host memory.
  [[nodiscard]] std::int64_t num_erasing(std::size_t number) const noexcept {
    return number == 0 ? 0 : static_cast<std::int64_t>((*this)[number].num_erasing());
  }
  [[nodiscard]] bool are_empty() const noexcept {
    return std::ranges::all_of(queues_, [](const auto& queue) { return queue->num_inside() == 0; });
  }
  std::size_t run() noexcept {
    auto num_run = std::size_t{0};
    for (const auto& queue : queues_) {
      num_run += queue->run();
    }
    return num_run;
  }
  void stop() noexcept {
    for (const auto& queue : queues_) {
      queue->stop();
    }
  }

  [[nodiscard]] transfer_signal& signal() noexcept { return signal_; }

 private:
  transfer_signal signal_;
  std::vector<std::unique_ptr<transfer_queue>> queues_;
};

/// Stands for the queues of a cache whose only tier is host memory: it compiles no transfers to slower ones.
class no_transfer_queues {
 public:
  static constexpr bool has_slower = false;

  no_transfer_queues(const tier_list&, const record_format&, std::size_t, bool) noexcept {}

  static void erase(std::size_t, const record_key&, std::int64_t) noexcept {}
  [[nodiscard]] static std::int64_t num_erasing(std::size_t) noexcept { return 0; }
  [[nodiscard]] static bool are_empty() noexcept { return true; }
  static std::size_t run() noexcept { return 0; }
  static void stop() noexcept {}
  [[nodiscard]] transfer_signal& signal() noexcept { return signal_; }

 private:
  transfer_signal signal_;
};

}  // namespace pagedkv
