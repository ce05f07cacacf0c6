#pragma once

#include <pagedkv/executor/workgroup.hpp>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

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

}  // namespace pagedkv::executor
