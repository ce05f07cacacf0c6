#pragma once

#include "fiber.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace pagedkv::testing {

/// Threads of one execution, including thread 0, which sets the scene.
inline constexpr auto max_threads = std::size_t{9};

/// The steps that happened before a thread's current one: for each thread, their number.
class vector_clock {
 public:
  void tick(std::size_t thread) { ++steps_[thread]; }

  void join(const vector_clock& other) {
    for (auto i = std::size_t{0}; i < max_threads; ++i) {
      steps_[i] = std::max(steps_[i], other.steps_[i]);
    }
  }

  [[nodiscard]] std::uint32_t operator[](std::size_t thread) const { return steps_[thread]; }

 private:
  std::array<std::uint32_t, max_threads> steps_;  // zeros only if asked for, by {}: most of a history is never used
};

/// One decision of a schedule: `chosen` of `options`; 0 is the behaviour without the scheduler.
struct decision {
  std::size_t position = 0;  // among those that an execution with a choice before each step would make
  std::uint32_t options = 1;
  std::uint32_t chosen = 0;
};

/// Makes the choices of an execution. Exhaustive, random and replaying exploration differ only in this.
using decide = std::function<std::uint32_t(std::size_t position, std::uint32_t options)>;

struct bounds {
  std::uint32_t preemptions = 2;  // switches away from a thread that could continue
  std::uint32_t surprises = 0;    // loads of older values, and weak compare-and-swaps that fail idly
  std::uint64_t max_schedules = 2'000'000;
  std::uint32_t max_steps = 5'000;  // in one schedule; more is no progress
};

/// An atomic object of an execution: which thread constructed it, and how many this thread had constructed before. A
/// schedule that is repeated constructs the same objects, though elsewhere in memory.
struct object_id {
  std::uint32_t thread = 0;
  std::uint32_t number = 0;
};

/// The objects that are common to threads of some execution: two touched them, and one of the two wrote.
///
/// Schedules need no choice before a step on any other object. Such a step, with the plain code behind it, commutes
/// with those of other threads, so a thread that is preempted before it may as well continue up to its next step on a
/// common object. Happens-before and the values that loads may return stay the same, and there are no more preemptions:
/// if the thread ends or sleeps first, the switch is none. (Persistent sets of one thread: Godefroid, "Partial-order
/// methods for the verification of concurrent systems", LNCS 1032, 1996; under a bound of preemptions, with
/// synchronisation in place of common objects: Musuvathi and Qadeer, "Iterative context bounding", PLDI 2007.)
///
/// Executions tell which objects are common. An exploration that finds no further one has not missed any: until a step
/// makes a further object common, a schedule is equivalent to an explored one, which has that step, too.
///
/// All this supposes that threads meet in steps only. Plain data is no exception where steps order its uses.
/// `scheduled_data` reports uses that no step orders, whichever thread comes first; for other plain data of components,
/// threads under ThreadSanitizer do. Where several threads use a test's own plain records, the test calls
/// `execution::concerns_others`.
class common_objects {
 public:
  /// Before each execution.
  void begin() { ++execution_; }

  [[nodiscard]] bool contains(object_id object) { return at(object).contained; }

  void touch(object_id object, std::size_t thread, bool writes) {
    auto& touched = at(object);
    if (touched.execution != execution_) {
      touched.execution = execution_;
      touched.threads = 0;
      touched.written = false;
    }
    touched.threads |= 1U << thread;
    touched.written |= writes;
    if (touched.written && (touched.threads & (touched.threads - 1)) != 0) {
      insert(object);
    }
  }

  void insert(object_id object) {
    auto& known = at(object);
    num_contained_ += !known.contained;
    known.contained = true;
  }

  [[nodiscard]] std::size_t size() const { return num_contained_; }

 private:
  struct knowledge {
    std::uint64_t execution = 0;  // that touched it last
    std::uint32_t threads = 0;    // of that execution: a bit each
    bool written = false;         // in that execution
    bool contained = false;
  };

  [[nodiscard]] knowledge& at(object_id object) {
    auto& of_thread = objects_[object.thread];
    if (of_thread.size() <= object.number) {
      of_thread.resize(2 * std::size_t{object.number} + 1);
    }
    return of_thread[object.number];
  }

  std::array<std::vector<knowledge>, max_threads> objects_;
  std::uint64_t execution_ = 0;
  std::size_t num_contained_ = 0;
};

/// A thread that is stopped before the step after its first `steps`, and continues when all others have ended.
struct stop {
  std::size_t thread = 0;
  std::uint32_t steps = 0;
};

/// One run of a scenario under one schedule. The scenario sets its scene, spawns threads, calls `run`, and checks.
class execution {
 public:
  /// With `common`, schedules switch before steps on these objects only, and the execution adds to them.
  execution(std::vector<std::unique_ptr<fiber>>& fibers, const bounds& limits, decide source, stop stopped = {},
            common_objects* common = nullptr)
      : fibers_(fibers), limits_(limits), decide_(std::move(source)), stop_(stopped), common_(common) {
    active_ = this;
    trace_.reserve(usual_decisions);
    clocks_[0].tick(0);
  }

  execution(const execution&) = delete;
  execution& operator=(const execution&) = delete;
  ~execution() { active_ = nullptr; }

  [[nodiscard]] static execution* active() { return active_; }

  /// Adds a thread; the first is number 1. No exception may leave a body.
  void spawn(std::function<void()> body) {
    const auto thread = ++num_threads_;
    if (fibers_.size() < thread) {
      fibers_.push_back(std::make_unique<fiber>());
    }
    fibers_[thread - 1]->start(std::move(body));
    clocks_[thread] = clocks_[0];
    clocks_[thread].tick(thread);
  }

  /// Interleaves the spawned threads until all have ended, or until the schedule makes no progress.
  void run() {
    auto next = first();
    while (next != 0) {
      current_ = next;
      fibers_[next - 1]->resume();
      if (abandoned_) {
        break;
      }
      next = next_ != 0 ? next_ : first();
      next_ = 0;
    }
    current_ = 0;
    for (auto thread = std::size_t{1}; thread <= num_threads_; ++thread) {
      clocks_[0].join(clocks_[thread]);
      if (!abandoned_ && !fibers_[thread - 1]->finished()) {
        fail("deadlock: a thread waits and nobody is left to wake it");
        abandoned_ = true;
      }
    }
    clocks_[0].tick(0);
  }

  void expect(bool condition, const char* otherwise) {
    if (!condition) {
      fail(otherwise);
    }
  }

  void fail(const std::string& what) {
    if (failure_.empty()) {
      failure_ = what;
    }
  }

  [[nodiscard]] const std::string& failure() const { return failure_; }
  [[nodiscard]] const std::vector<decision>& trace() const { return trace_; }
  [[nodiscard]] std::vector<decision> take_trace() { return std::move(trace_); }

  /// Number of instrumented operations of a thread.
  [[nodiscard]] std::uint32_t steps(std::size_t thread) const { return steps_[thread]; }

  /// Number of the running thread; 0 outside `run`.
  [[nodiscard]] std::size_t current() const { return current_; }
  [[nodiscard]] vector_clock& clock() { return clocks_[current_]; }

  /// Separates the running thread's earlier writes from its later ones, for threads that synchronise with the former
  /// only.
  void tick() { clocks_[current_].tick(current_); }

  /// A name for an object that the running thread constructs.
  [[nodiscard]] object_id new_object() {
    const auto object = object_id{static_cast<std::uint32_t>(current_), num_constructed_[current_]++};
    touch(object, true);
    return object;
  }

  /// Every instrumented operation starts here: the schedule may switch to another thread before it.
  void step(object_id object, bool writes) {
    tick();
    if (current_ == 0) {
      return;
    }
    if (++total_steps_ > limits_.max_steps) {
      fail("no progress: too many steps");
      abandoned_ = true;
      fibers_[current_ - 1]->leave();
    }
    if (halted(current_)) {
      fibers_[current_ - 1]->leave();
    } else {
      may_preempt(object);
    }
    ++steps_[current_];
    last_[current_] = object;
    touch(object, writes);
  }

  /// Says that plain code of the running thread, since its last step, uses data that another thread uses, too.
  /// Schedules then have a choice before that step.
  void concerns_others() {
    if (common_ != nullptr && steps_[current_] != 0) {
      common_->insert(last_[current_]);
    }
  }

  /// Sleeps until `wake(place)`. Only from inside a thread.
  void sleep(const void* place) {
    blocked_[current_] = place;
    fibers_[current_ - 1]->leave();
  }

  void wake(const void* place, bool all) {
    for (auto thread = std::size_t{1}; thread <= num_threads_; ++thread) {
      if (blocked_[thread] == place) {
        blocked_[thread] = nullptr;
        if (!all) {
          return;
        }
      }
    }
  }

  /// Whether the bounds permit a surprising event now.
  [[nodiscard]] bool may_surprise() const { return current_ != 0 && surprises_ != limits_.surprises; }

  /// Whether a surprising but permitted event happens now, and which of `options` kinds; 0 is the ordinary case.
  [[nodiscard]] std::uint32_t surprise(std::uint32_t options) {
    if (options < 2 || !may_surprise()) {
      return 0;
    }
    const auto chosen = choose(options);
    surprises_ += chosen != 0;
    return chosen;
  }

 private:
  /// Threads in ascending order. No memory of its own: each step of each schedule asks for one.
  class thread_list {
   public:
    void push_back(std::size_t thread) { threads_[size_++] = static_cast<std::uint8_t>(thread); }
    [[nodiscard]] std::size_t size() const { return size_; }
    [[nodiscard]] bool empty() const { return size_ == 0; }
    [[nodiscard]] std::size_t operator[](std::size_t index) const { return threads_[index]; }

   private:
    std::size_t size_ = 0;
    std::array<std::uint8_t, max_threads> threads_;
  };

  void touch(object_id object, bool writes) {
    if (common_ != nullptr && current_ != 0) {
      common_->touch(object, current_, writes);
    }
  }

  void may_preempt(object_id before) {
    if (current_ == stop_.thread || preemptions_ == limits_.preemptions) {
      return;
    }
    const auto others = ready_except(current_);
    if (others.empty()) {
      return;
    }
    if (common_ != nullptr && !common_->contains(before)) {
      ++position_;
      return;
    }
    const auto chosen = choose(static_cast<std::uint32_t>(others.size()) + 1);
    if (chosen != 0) {
      ++preemptions_;
      next_ = others[chosen - 1];
      fibers_[current_ - 1]->leave();
    }
  }

  [[nodiscard]] bool halted(std::size_t thread) const {
    if (thread != stop_.thread || steps_[thread] != stop_.steps) {
      return false;
    }
    for (auto other = std::size_t{1}; other <= num_threads_; ++other) {
      if (other != thread && !fibers_[other - 1]->finished()) {
        return true;
      }
    }
    return false;
  }

  [[nodiscard]] bool ready(std::size_t thread) const {
    return !fibers_[thread - 1]->finished() && blocked_[thread] == nullptr && !halted(thread);
  }

  [[nodiscard]] thread_list ready_except(std::size_t excluded) const {
    auto list = thread_list{};
    for (auto thread = std::size_t{1}; thread <= num_threads_; ++thread) {
      if (thread != excluded && ready(thread)) {
        list.push_back(thread);
      }
    }
    return list;
  }

  // The thread to continue with when the current one cannot run; 0 when none can.
  [[nodiscard]] std::size_t first() {
    if (stop_.thread != 0 && steps_[stop_.thread] < stop_.steps && ready(stop_.thread)) {
      return stop_.thread;
    }
    const auto all = ready_except(0);
    return all.empty() ? 0 : all[all.size() == 1 ? 0 : choose(static_cast<std::uint32_t>(all.size()))];
  }

  [[nodiscard]] std::uint32_t choose(std::uint32_t options) {
    const auto chosen = decide_(position_, options);
    trace_.push_back({position_++, options, chosen});
    return chosen;
  }

  static constexpr auto usual_decisions = std::size_t{64};
  static inline execution* active_ = nullptr;

  std::vector<std::unique_ptr<fiber>>& fibers_;
  const bounds& limits_;
  decide decide_;
  stop stop_;
  common_objects* common_;
  std::size_t num_threads_ = 0;
  std::size_t current_ = 0;
  std::size_t next_ = 0;
  std::uint32_t preemptions_ = 0;
  std::uint32_t surprises_ = 0;
  std::uint32_t total_steps_ = 0;
  bool abandoned_ = false;
  std::size_t position_ = 0;
  std::array<std::uint32_t, max_threads> num_constructed_{};
  std::array<std::uint32_t, max_threads> steps_{};
  std::array<object_id, max_threads> last_{};  // of each thread's last step
  std::array<const void*, max_threads> blocked_{};
  std::array<vector_clock, max_threads> clocks_{};
  std::vector<decision> trace_;
  std::string failure_;
};

using scenario = std::function<void(execution&)>;

/// The result of an exploration. `schedule` replays the failing execution.
struct finding {
  std::uint64_t schedules = 0;  // that ran, those before an exploration began again included
  bool complete = false;        // the explored ones stand for all executions within the bounds
  std::string failure;
  std::string schedule;
  std::uint64_t seed = 0;
};

/// Runs scenarios under many schedules.
class explorer {
 public:
  explicit explorer(const bounds& limits = {}) : limits_(limits) {}

  /// Every schedule within the bounds, depth first, until one fails; of those that differ only in the moments of steps
  /// that concern no other thread, one.
  [[nodiscard]] finding exhaustive(const scenario& body) {
    auto result = finding{};
    auto path = std::vector<decision>{};
    auto common = common_objects{};
    while (result.schedules < limits_.max_schedules) {
      const auto follow = [&, depth = std::size_t{0}](std::size_t, std::uint32_t) mutable {
        const auto at = depth++;
        return at < path.size() ? path[at].chosen : 0;
      };
      const auto num_common = common.size();
      path = once(body, follow, {}, result, &common);
      if (!result.failure.empty()) {
        return result;
      }
      if (common.size() != num_common) {
        path.clear();  // earlier schedules lacked choices
        continue;
      }
      while (!path.empty() && path.back().chosen + 1 == path.back().options) {
        path.pop_back();
      }
      if (path.empty()) {
        result.complete = true;
        return result;
      }
      ++path.back().chosen;
    }
    return result;
  }

  /// Explores `schedules` random schedules. Each depends only on the seed and its number.
  [[nodiscard]] finding random(const scenario& body, std::uint64_t seed, std::uint64_t schedules) {
    auto result = finding{};
    result.seed = seed;
    while (result.schedules < schedules && result.failure.empty()) {
      auto source = std::mt19937_64{seed + result.schedules};
      // Ordinary choices prevail; otherwise threads would meet only at their first steps.
      const auto roll = [&](std::size_t, std::uint32_t options) {
        return source() % 6 == 0 ? static_cast<std::uint32_t>(source() % options) : 0;
      };
      once(body, roll, {}, result);
    }
    return result;
  }

  /// Replays the execution with a finding's schedule.
  [[nodiscard]] finding replay(const scenario& body, const std::string& schedule) {
    auto choices = std::vector<std::pair<std::size_t, std::uint32_t>>{};
    auto text = std::istringstream{schedule};
    auto position = std::size_t{};
    auto chosen = std::uint32_t{};
    for (auto colon = char{}; text >> position >> colon >> chosen;) {
      choices.emplace_back(position, chosen);
    }
    const auto follow = [&](std::size_t at, std::uint32_t) {
      const auto found = std::find_if(choices.begin(), choices.end(), [&](const auto& c) { return c.first == at; });
      return found == choices.end() ? 0 : found->second;
    };
    auto result = finding{};
    once(body, follow, {}, result);
    return result;
  }

  /// Runs one schedule without surprises, with a thread stopped.
  [[nodiscard]] finding stopped(const scenario& body, const stop& where) {
    auto result = finding{};
    once(body, [](std::size_t, std::uint32_t) { return 0U; }, where, result);
    return result;
  }

  /// Stops `thread` before each of its steps in turn; the others must end without it, under some random schedules each.
  [[nodiscard]] finding stopped_anywhere(const scenario& body, std::size_t thread, std::uint64_t seed) {
    auto result = finding{};
    result.seed = seed;
    for (auto steps = std::uint32_t{0}; result.failure.empty(); ++steps) {
      auto reached = false;
      for (auto i = 0; i < 4 && result.failure.empty(); ++i) {
        auto source = std::mt19937_64{seed + result.schedules};
        const auto roll = [&](std::size_t, std::uint32_t options) {
          return static_cast<std::uint32_t>(source() % options);
        };
        auto made = std::uint32_t{};
        once(
            [&](execution& e) {
              body(e);
              made = e.steps(thread);
            },
            roll, {thread, steps}, result);
        reached |= made > steps;
      }
      if (!reached) {
        result.complete = true;
        return result;
      }
    }
    return result;
  }

 private:
  std::vector<decision> once(const scenario& body, decide source, stop stopped, finding& result,
                             common_objects* common = nullptr) {
    if (common != nullptr) {
      common->begin();
    }
    auto run = execution{fibers_, limits_, std::move(source), stopped, common};
    body(run);
    ++result.schedules;
    result.failure = run.failure();
    if (!result.failure.empty()) {
      result.schedule = text_of(run.trace());
    }
    return run.take_trace();
  }

  [[nodiscard]] static std::string text_of(const std::vector<decision>& trace) {
    auto text = std::ostringstream{};
    for (const auto& made : trace) {
      if (made.chosen != 0) {
        text << made.position << ':' << made.chosen << ' ';
      }
    }
    return text.str();
  }

  bounds limits_;
  std::vector<std::unique_ptr<fiber>> fibers_;
};

}  // namespace pagedkv::testing
