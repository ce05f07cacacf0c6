#pragma once

#include <pagedkv/executor/launch_shape.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Faults that the executor reports, the stacks that lanes run on, and the workgroup that they form.

#if defined(__has_feature)
  #if __has_feature(address_sanitizer)
    #define PAGEDKV_ADDRESS_SANITIZER
  #endif
  #if __has_feature(thread_sanitizer)
    #define PAGEDKV_THREAD_SANITIZER
  #endif
#endif
#if defined(__SANITIZE_ADDRESS__) && !defined(PAGEDKV_ADDRESS_SANITIZER)
  #define PAGEDKV_ADDRESS_SANITIZER
#endif
#if defined(__SANITIZE_THREAD__) && !defined(PAGEDKV_THREAD_SANITIZER)
  #define PAGEDKV_THREAD_SANITIZER
#endif

#if defined(PAGEDKV_ADDRESS_SANITIZER)
  #include <sanitizer/common_interface_defs.h>
#endif
#if defined(PAGEDKV_THREAD_SANITIZER)
  #include <sanitizer/tsan_interface.h>
#endif

namespace pagedkv::executor {

enum class fault_kind : std::uint8_t {
  divergent_barrier,         // not every lane of the workgroup reached the same barrier
  divergent_wave_operation,  // not every lane of the wave reached the same shuffle, ballot or vote
  invalid_wave_operation,    // a width that is no power of two up to the wave size, or a lane that does not exist
  shared_race,               // two lanes touched a shared element, one writing, with no barrier between
  uninitialised_shared_read,
  shared_out_of_bounds,
  global_out_of_bounds,
  misaligned_access,
  failed_check,
  escaped_exception,
};

[[nodiscard]] constexpr std::string_view describe(fault_kind kind) noexcept {
  switch (kind) {
    case fault_kind::divergent_barrier: return "divergent barrier";
    case fault_kind::divergent_wave_operation: return "divergent wave operation";
    case fault_kind::invalid_wave_operation: return "invalid wave operation";
    case fault_kind::shared_race: return "shared memory race";
    case fault_kind::uninitialised_shared_read: return "uninitialised shared memory read";
    case fault_kind::shared_out_of_bounds: return "shared memory access out of bounds";
    case fault_kind::global_out_of_bounds: return "global memory access out of bounds";
    case fault_kind::misaligned_access: return "misaligned access";
    case fault_kind::failed_check: return "failed check";
    case fault_kind::escaped_exception: return "escaped exception";
  }
  return "unknown fault";
}

/// The fault of a kernel, and the lane that caused it.
struct fault {
  fault_kind kind{};
  std::string kernel;
  kernels::extent workgroup;
  std::uint32_t lane = 0;  // within the workgroup, x fastest
  std::string detail;

  [[nodiscard]] std::string message() const {
    const auto coordinate = [](std::uint32_t i) { return std::to_string(i); };
    return std::string(describe(kind)) + " in kernel " + kernel + ", workgroup (" + coordinate(workgroup.x) + ", " +
           coordinate(workgroup.y) + ", " + coordinate(workgroup.z) + "), lane " + std::to_string(lane) + ": " + detail;
  }
};

/// A line of a kernel. As a default argument it is the caller's line; std::source_location needs clang 15.
struct call_site {
  const char* file = "";
  int line = 0;

  [[nodiscard]] static constexpr call_site current(const char* file = __builtin_FILE(),
                                                   int line = __builtin_LINE()) noexcept {
    return {file, line};
  }
};

/// "file:line", without the directories.
[[nodiscard]] inline std::string describe(const call_site& where) {
  auto file = std::string_view(where.file);
  file.remove_prefix(file.find_last_of('/') + 1);
  return std::string(file) + ":" + std::to_string(where.line);
}

/// A stack of its own that runs `body` repeatedly: each `resume` runs until the body suspends or returns. Belongs to
/// one thread. The sanitizers are informed of every switch.
class fiber {
 public:
  explicit fiber(std::size_t stack_bytes) {
    auto allocator = boost::context::protected_fixedsize_stack(stack_bytes);
    auto stack = allocator.allocate();
    stack_bytes_ = stack.size;
    stack_bottom_ = static_cast<std::byte*>(stack.sp) - stack.size;
#if defined(PAGEDKV_THREAD_SANITIZER)
    own_identity_ = __tsan_create_fiber(0);
#endif
    context_ = boost::context::fiber(std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack),
                                     allocator, [this](boost::context::fiber&& caller) {
                                       enter(std::move(caller));
                                       return std::move(caller_);
                                     });
  }

  fiber(const fiber&) = delete;
  fiber& operator=(const fiber&) = delete;

  /// The body must not be suspended.
  ~fiber() {
    body_ = nullptr;
    resume();
#if defined(PAGEDKV_THREAD_SANITIZER)
    __tsan_destroy_fiber(own_identity_);
#endif
  }

  /// Sets the body that the next `resume` starts. The current body must not be suspended.
  void assign(std::function<void()> body) { body_ = std::move(body); }

  void resume() {
#if defined(PAGEDKV_ADDRESS_SANITIZER)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, stack_bottom_, stack_bytes_);
#endif
#if defined(PAGEDKV_THREAD_SANITIZER)
    caller_identity_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(own_identity_, 0);
#endif
    context_ = std::move(context_).resume();
#if defined(PAGEDKV_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }

  /// Returns to the caller of `resume`. Call it on this fiber's own stack only.
  void suspend() {
#if defined(PAGEDKV_ADDRESS_SANITIZER)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, caller_bottom_, caller_bytes_);
#endif
    announce_return();
    caller_ = std::move(caller_).resume();
#if defined(PAGEDKV_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(fake_stack, &caller_bottom_, &caller_bytes_);
#endif
  }

 private:
  void enter(boost::context::fiber&& caller) {
    caller_ = std::move(caller);
#if defined(PAGEDKV_ADDRESS_SANITIZER)
    __sanitizer_finish_switch_fiber(nullptr, &caller_bottom_, &caller_bytes_);
#endif
    while (body_) {
      body_();
      suspend();
    }
#if defined(PAGEDKV_ADDRESS_SANITIZER)
    __sanitizer_start_switch_fiber(nullptr, caller_bottom_, caller_bytes_);
#endif
    announce_return();
  }

  void announce_return() {
#if defined(PAGEDKV_THREAD_SANITIZER)
    __tsan_switch_to_fiber(caller_identity_, 0);
#endif
  }

  std::function<void()> body_;
  boost::context::fiber context_;
  boost::context::fiber caller_;
  void* stack_bottom_ = nullptr;
  std::size_t stack_bytes_ = 0;
#if defined(PAGEDKV_ADDRESS_SANITIZER)
  const void* caller_bottom_ = nullptr;
  std::size_t caller_bytes_ = 0;
#endif
#if defined(PAGEDKV_THREAD_SANITIZER)
  void* own_identity_ = nullptr;
  void* caller_identity_ = nullptr;
#endif
};

/// One kernel and everything that all of its workgroups share.
struct launch {
  std::string_view kernel;
  kernels::extent grid;
  kernels::extent workgroup;
  std::size_t dynamic_shared_bytes = 0;
  std::uint32_t wave_size = 64;
  void (*body)(const void* arguments) = nullptr;  // run once by every lane
  std::vector<std::max_align_t> arguments;
};

/// Identifies a point at which a lane waits. Lanes meet only if they wait at the same line of the source.
struct meeting {
  enum class kind : std::uint8_t { barrier, wave } what{};
  std::uint32_t width = 0;
  call_site where;

  [[nodiscard]] bool same_place(const meeting& other) const noexcept {
    // Mostly, both names are one string.
    return what == other.what && width == other.width && where.line == other.where.line &&
           (where.file == other.where.file || std::strcmp(where.file, other.where.file) == 0);
  }

  [[nodiscard]] std::string text() const {
    return (what == kind::barrier ? "waits at the barrier " : "waits at the wave operation ") + describe(where);
  }
};

/// Lanes that meet each other in wave operations, and the values that they bring.
struct wave {
  std::uint32_t num_lanes = 0;
  std::uint64_t meetings = 0;
  // Two, because a lane may write its next value before another lane has read its previous one.
  std::array<std::array<std::uint64_t, 64>, 2> values{};
};

struct lane {
  enum class state : std::uint8_t { ready, waiting, finished };

  std::unique_ptr<fiber> stack;
  std::uint32_t index = 0;
  std::uint32_t index_in_wave = 0;
  wave* own_wave = nullptr;
  kernels::extent thread;
  state now = state::finished;
  meeting at;

  [[nodiscard]] std::string whereabouts() const {
    return "lane " + std::to_string(index) + " " + (now == state::finished ? std::string("has returned") : at.text());
  }
};

/// Thrown through a kernel to unwind all lanes after one of them caused a fault.
struct abandoned {};

/// Runs workgroups one after the other on the thread that owns it, each lane on a fiber, always in the same order:
/// every lane runs until it waits for other lanes or returns. When no lane can run, the lanes that met continue. If
/// none met, the lanes have diverged: the workgroup reports it and unwinds them.
class workgroup {
 public:
  static constexpr auto stack_bytes = std::size_t{256} << 10;

  workgroup() = default;
  workgroup(const workgroup&) = delete;
  workgroup& operator=(const workgroup&) = delete;

  [[nodiscard]] static workgroup*& running() noexcept {
    static thread_local workgroup* group = nullptr;
    return group;
  }

  [[nodiscard]] std::optional<fault> run(const launch& work, kernels::extent index) {
    start(work, index);
    running() = this;
    while (!fault_ && run_ready_lanes() && release_those_that_met()) {
    }
    while (fault_ && run_ready_lanes()) {
    }
    running() = nullptr;
    return std::exchange(fault_, std::nullopt);
  }

  /// Waits for every lane of the workgroup.
  void barrier(const call_site& where) { wait({meeting::kind::barrier, 0, where}); }

  /// Waits for every lane of the wave; afterwards `exchanged` returns the value that each lane brought.
  void meet_wave(std::uint64_t brought, std::uint32_t width, const call_site& where) {
    if (width == 0 || width > work_->wave_size || (width & (width - 1)) != 0) {
      report(fault_kind::invalid_wave_operation, "width " + std::to_string(width) + " at " + describe(where));
    }
    auto& own = *current_->own_wave;
    own.values[own.meetings % 2][current_->index_in_wave] = brought;
    wait({meeting::kind::wave, width, where});
  }

  /// The value that a lane of the current wave brought to the meeting that the current lane has just left.
  [[nodiscard]] std::uint64_t exchanged(std::uint32_t lane_in_wave) {
    return exchanged_up_to(lane_in_wave)[lane_in_wave];
  }

  /// The values of lanes 0 to `last_lane`, in this order. Valid until the current lane meets others again.
  [[nodiscard]] const std::uint64_t* exchanged_up_to(std::uint32_t last_lane) {
    const auto& own = *current_->own_wave;
    if (last_lane >= own.num_lanes) {
      report(fault_kind::invalid_wave_operation,
             "lane " + std::to_string(last_lane) + " of a wave of " + std::to_string(own.num_lanes));
    }
    return own.values[(own.meetings - 1) % 2].data();
  }

  /// Ends the workgroup on behalf of the current lane.
  [[noreturn]] void report(fault_kind kind, std::string detail) {
    blame(kind, *current_, std::move(detail));
    throw abandoned();
  }

  [[nodiscard]] const lane& current() const noexcept { return *current_; }
  [[nodiscard]] const launch& work() const noexcept { return *work_; }
  [[nodiscard]] std::uint32_t lanes_in_wave() const noexcept { return current_->own_wave->num_lanes; }
  [[nodiscard]] kernels::extent index() const noexcept { return index_; }

  /// Barriers passed since the workgroup started.
  [[nodiscard]] std::uint32_t epoch() const noexcept { return epoch_; }

  /// Differs between runs, so that values left in shared memory by an earlier workgroup are recognised.
  [[nodiscard]] std::uint64_t run_number() const noexcept { return run_number_; }

  [[nodiscard]] std::byte* dynamic_shared() noexcept { return dynamic_shared_.data(); }

 private:
  void start(const launch& work, kernels::extent index) {
    static auto num_runs = std::atomic<std::uint64_t>{0};
    work_ = &work;
    index_ = index;
    epoch_ = 0;
    run_number_ = ++num_runs;
    dynamic_shared_.assign(work.dynamic_shared_bytes, std::byte{0xFF});
    const auto shape = work.workgroup;
    num_lanes_ = shape.x * shape.y * shape.z;
    waves_.resize((num_lanes_ + work.wave_size - 1) / work.wave_size);
    for (auto& each : waves_) {
      each.num_lanes = 0;
      each.meetings = 0;
    }
    while (lanes_.size() < num_lanes_) {
      lanes_.emplace_back().stack = std::make_unique<fiber>(stack_bytes);
    }
    for (auto i = std::uint32_t{0}; i < num_lanes_; ++i) {
      auto& each = lanes_[i];
      each.index = i;
      each.index_in_wave = i % work.wave_size;
      each.own_wave = &waves_[i / work.wave_size];
      each.thread = kernels::extent{i % shape.x, i / shape.x % shape.y, i / shape.x / shape.y};
      each.now = lane::state::ready;
      each.stack->assign([this] { run_body(); });
      ++each.own_wave->num_lanes;
    }
  }

  void run_body() {
    try {
      if (!fault_) {
        work_->body(work_->arguments.data());
      }
    } catch (const abandoned&) {
    } catch (const std::exception& e) {
      blame(fault_kind::escaped_exception, *current_, e.what());
    }
    current_->now = lane::state::finished;
  }

  /// False when every lane has finished.
  bool run_ready_lanes() {
    auto unfinished = false;
    for (auto i = std::uint32_t{0}; i < num_lanes_; ++i) {
      auto& each = lanes_[i];
      if (each.now == lane::state::ready || (fault_ && each.now == lane::state::waiting)) {
        current_ = &each;
        each.stack->resume();
      }
      unfinished = unfinished || each.now != lane::state::finished;
    }
    return unfinished;
  }

  void wait(const meeting& where) {
    current_->at = where;
    current_->now = lane::state::waiting;
    current_->stack->suspend();
    if (fault_) {
      throw abandoned();
    }
  }

  /// False when a lane waits for lanes that will never arrive.
  bool release_those_that_met() {
    auto released = false;
    for (auto first = std::uint32_t{0}; first < num_lanes_; first += work_->wave_size) {
      const auto last = std::min(first + work_->wave_size, num_lanes_);
      const auto* const waiting = find_waiting(meeting::kind::wave, first, last);
      if (waiting == nullptr) {
        continue;
      }
      if (!all_at(*waiting, first, last, fault_kind::divergent_wave_operation)) {
        return false;
      }
      ++waves_[first / work_->wave_size].meetings;
      release(first, last);
      released = true;
    }
    if (released) {
      return true;
    }
    const auto* const waiting = find_waiting(meeting::kind::barrier, 0, num_lanes_);
    if (waiting == nullptr || !all_at(*waiting, 0, num_lanes_, fault_kind::divergent_barrier)) {
      return false;
    }
    ++epoch_;
    release(0, num_lanes_);
    return true;
  }

  [[nodiscard]] const lane* find_waiting(meeting::kind what, std::uint32_t first, std::uint32_t last) const noexcept {
    for (auto i = first; i < last; ++i) {
      if (lanes_[i].now == lane::state::waiting && lanes_[i].at.what == what) {
        return &lanes_[i];
      }
    }
    return nullptr;
  }

  bool all_at(const lane& example, std::uint32_t first, std::uint32_t last, fault_kind otherwise) {
    for (auto i = first; i < last; ++i) {
      const auto& each = lanes_[i];
      if (each.now != lane::state::waiting || !each.at.same_place(example.at)) {
        blame(otherwise, each, each.whereabouts() + " while " + example.whereabouts());
        return false;
      }
    }
    return true;
  }

  void release(std::uint32_t first, std::uint32_t last) noexcept {
    for (auto i = first; i < last; ++i) {
      lanes_[i].now = lane::state::ready;
    }
  }

  // Only the first fault is kept: later ones may be its consequences.
  void blame(fault_kind kind, const lane& culprit, std::string detail) {
    if (!fault_) {
      fault_ = fault{kind, std::string(work_->kernel), index_, culprit.index, std::move(detail)};
    }
  }

  const launch* work_ = nullptr;
  kernels::extent index_;
  std::uint32_t num_lanes_ = 0;
  std::uint32_t epoch_ = 0;
  std::uint64_t run_number_ = 0;
  lane* current_ = nullptr;
  std::vector<lane> lanes_;
  std::vector<wave> waves_;
  std::vector<std::byte> dynamic_shared_;
  std::optional<fault> fault_;
};

}  // namespace pagedkv::executor
