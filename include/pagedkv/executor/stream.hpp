#pragma once

#include <pagedkv/executor/memory.hpp>
#include <pagedkv/executor/workgroup.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

// Streams of the host executor: threads that run what is enqueued, and the crews that share a kernel's workgroups.

namespace pagedkv::executor {
class stream;
class event;
}  // namespace pagedkv::executor

namespace pagedkv::runtime {

// The numbers are those of CUDA and HIP.
enum status : int {
  success = 0,
  error_invalid_value = 1,
  error_out_of_memory = 2,
  error_invalid_configuration = 9,
  error_no_device = 100,
  error_invalid_device = 101,
  error_invalid_handle = 400,
  error_not_ready = 600,
  error_launch_failure = 719,
};

enum copy_kind : int { host_to_host = 0, host_to_device = 1, device_to_host = 2, device_to_device = 3 };

using stream = executor::stream*;
using event = executor::event*;
using stream_callback = void (*)(stream, status, void*);

}  // namespace pagedkv::runtime

namespace pagedkv::executor {

/// The threads that run workgroups: several at once, and several launches at once. Thread-safe.
class crew {
 public:
  explicit crew(std::size_t num_workers) {
    for (auto i = std::size_t{0}; i < num_workers; ++i) {
      workers_.emplace_back([this] { work(); });
    }
  }

  crew(const crew&) = delete;
  crew& operator=(const crew&) = delete;

  ~crew() {
    {
      const auto lock = std::unique_lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    for (auto& worker : workers_) {
      worker.join();
    }
  }

  /// Runs every workgroup of the launch and waits. After a fault no further workgroup starts.
  [[nodiscard]] std::optional<fault> run(const launch& work) {
    auto mine = job{&work, std::uint64_t{work.grid.x} * work.grid.y * work.grid.z, {}};
    auto lock = std::unique_lock(mutex_);
    jobs_.push_back(&mine);
    changed_.notify_all();
    changed_.wait(lock, [&] { return mine.unfinished() == 0; });
    return std::move(mine.first_fault);
  }

 private:
  struct job {
    const launch* work;
    std::uint64_t num_workgroups;
    std::optional<fault> first_fault;
    std::uint64_t next = 0;
    std::uint64_t running = 0;
    std::uint64_t faulty_workgroup = 0;

    [[nodiscard]] std::uint64_t unstarted() const noexcept { return first_fault ? 0 : num_workgroups - next; }
    [[nodiscard]] std::uint64_t unfinished() const noexcept { return unstarted() + running; }
  };

  void work() {
    auto group = workgroup();
    auto lock = std::unique_lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) {
        return;
      }
      run_next_workgroup(*jobs_.front(), group, lock);
    }
  }

  void run_next_workgroup(job& from, workgroup& group, std::unique_lock<std::mutex>& lock) {
    const auto index = from.next++;
    ++from.running;
    if (from.unstarted() == 0) {
      jobs_.pop_front();
    }
    lock.unlock();
    const auto grid = from.work->grid;
    const auto column = index / grid.x;
    auto found =
        group.run(*from.work, {static_cast<std::uint32_t>(index % grid.x), static_cast<std::uint32_t>(column % grid.y),
                               static_cast<std::uint32_t>(column / grid.y)});
    lock.lock();
    --from.running;
    if (found && (!from.first_fault || index < from.faulty_workgroup)) {
      from.first_fault = std::move(found);
      from.faulty_workgroup = index;
      std::erase(jobs_, &from);
    }
    if (from.unfinished() == 0) {
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<job*> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> workers_;
};

/// At least two workers, so that workgroups overlap on any machine.
[[nodiscard]] inline crew& workers() {
  static auto all = crew(std::max(2U, std::thread::hardware_concurrency()));
  return all;
}

/// The most recent fault of a kernel. Thread-safe.
class fault_record {
 public:
  void put(fault found) {
    const auto lock = std::unique_lock(mutex_);
    last_ = std::move(found);
  }

  /// Returns the fault and clears it.
  [[nodiscard]] std::optional<fault> take() {
    const auto lock = std::unique_lock(mutex_);
    return std::exchange(last_, std::nullopt);
  }

 private:
  std::mutex mutex_;
  std::optional<fault> last_;
};

[[nodiscard]] inline fault_record& faults() {
  static auto record = fault_record();
  return record;
}

/// Numbers the recordings of an event and remembers which have been reached. Thread-safe.
class event_marks {
 public:
  using clock = std::chrono::steady_clock;

  /// The number of this recording; `wait` and `reached` take it.
  [[nodiscard]] std::uint64_t record() {
    const auto lock = std::unique_lock(mutex_);
    return ++recorded_;
  }

  void reach(std::uint64_t recording) {
    {
      const auto lock = std::unique_lock(mutex_);
      reached_ = std::max(reached_, recording);
      when_ = clock::now();
    }
    changed_.notify_all();
  }

  [[nodiscard]] std::uint64_t last_recording() const {
    const auto lock = std::unique_lock(mutex_);
    return recorded_;
  }

  [[nodiscard]] bool reached(std::uint64_t recording) const {
    const auto lock = std::unique_lock(mutex_);
    return reached_ >= recording;
  }

  void wait(std::uint64_t recording) const {
    auto lock = std::unique_lock(mutex_);
    changed_.wait(lock, [&] { return reached_ >= recording; });
  }

  [[nodiscard]] clock::time_point when() const {
    const auto lock = std::unique_lock(mutex_);
    return when_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::uint64_t recorded_ = 0;
  std::uint64_t reached_ = 0;
  clock::time_point when_{};
};

/// The object behind an event handle. Work in streams shares the marks, so the handle may be destroyed before the work
/// is done.
class event {
 public:
  [[nodiscard]] const std::shared_ptr<event_marks>& marks() const noexcept { return marks_; }

 private:
  std::shared_ptr<event_marks> marks_ = std::make_shared<event_marks>();
};

/// Every stream that exists. Thread-safe.
class stream_registry {
 public:
  void add(stream& added) {
    const auto lock = std::unique_lock(mutex_);
    streams_.push_back(&added);
  }

  void remove(stream& removed) {
    const auto lock = std::unique_lock(mutex_);
    std::erase(streams_, &removed);
  }

  /// Waits until no stream has work: releasing memory implies this on a device, too.
  void wait_idle();

 private:
  std::mutex mutex_;
  std::vector<stream*> streams_;
};

[[nodiscard]] inline stream_registry& streams() {
  static auto registry = stream_registry();
  return registry;
}

/// An ordered queue of work with its own thread. Work runs after earlier work of the stream, during or after the call
/// that enqueued it. After a fault, the stream drops work until `synchronize` has reported the fault.
class stream {
 public:
  explicit stream(std::uint32_t wave_size) : wave_size_(wave_size) {
    // Constructed before this stream, so destroyed after it.
    static_cast<void>(workers());
    static_cast<void>(memory());
    static_cast<void>(faults());
    streams().add(*this);
    thread_ = std::thread([this] { work(); });
  }

  stream(const stream&) = delete;
  stream& operator=(const stream&) = delete;

  ~stream() {
    streams().remove(*this);
    {
      const auto lock = std::unique_lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  [[nodiscard]] std::uint32_t wave_size() const noexcept { return wave_size_; }

  /// Dropped after a fault.
  void enqueue(std::function<runtime::status()> run) { push({std::move(run), false}); }

  /// Runs after a fault too, because another thread may wait for it.
  void enqueue_always(std::function<runtime::status()> run) { push({std::move(run), true}); }

  /// Waits until the stream is empty; the next `synchronize` still reports its failure.
  void wait_idle() {
    auto lock = std::unique_lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.empty() && !busy_; });
  }

  /// Waits until the stream is empty. Returns the first failure since the last call.
  [[nodiscard]] runtime::status synchronize() {
    auto lock = std::unique_lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.empty() && !busy_; });
    return std::exchange(failure_, runtime::success);
  }

  [[nodiscard]] runtime::status query() {
    const auto lock = std::unique_lock(mutex_);
    return tasks_.empty() && !busy_ ? std::exchange(failure_, runtime::success) : runtime::error_not_ready;
  }

 private:
  struct task {
    std::function<runtime::status()> run;
    bool always;
  };

  void push(task added) {
    {
      const auto lock = std::unique_lock(mutex_);
      tasks_.push_back(std::move(added));
    }
    changed_.notify_all();
  }

  void work() {
    auto lock = std::unique_lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
      if (tasks_.empty()) {
        return;
      }
      auto next = std::move(tasks_.front());
      tasks_.pop_front();
      if (failure_ == runtime::success || next.always) {
        busy_ = true;
        lock.unlock();
        const auto outcome = next.run();
        lock.lock();
        busy_ = false;
        failure_ = failure_ == runtime::success ? outcome : failure_;
      }
      changed_.notify_all();
    }
  }

  std::uint32_t wave_size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<task> tasks_;
  bool busy_ = false;
  bool stopping_ = false;
  runtime::status failure_ = runtime::success;
  std::thread thread_;
};

inline void stream_registry::wait_idle() {
  const auto lock = std::unique_lock(mutex_);
  for (auto* const each : streams_) {
    each->wait_idle();
  }
}

}  // namespace pagedkv::executor
