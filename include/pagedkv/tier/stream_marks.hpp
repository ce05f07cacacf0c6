#pragma once

#include <pagedkv/policy/backend/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagedkv {

/// Numbers batches of copies between a device and host memory, in the order in which they were enqueued, which is also
/// the order in which they are executed, on whichever streams. Not thread-safe.
template <swaps_blocks Backend>
class stream_marks {
 public:
  using stream = typename Backend::stream;

  /// Throws `exception`, `std::bad_alloc`.
  explicit stream_marks(Backend& backend) : backend_(backend) {
    marks_.reserve(num_marks);
    for (std::size_t i = 0; i < num_marks; ++i) {
      marks_.push_back(backend.make_mark());
    }
  }

  /// Before a batch is enqueued on a stream.
  [[nodiscard]] result<void> order(stream on) noexcept {
    return begun_ == 0 ? result<void>{} : backend_.wait_for(newest(), on);
  }

  /// After a batch was enqueued on a stream.
  void note(stream on) noexcept {
    if (begun_ - done() == num_marks) {
      --begun_;  // the newest mark stands for two batches
    }
    ++begun_;
    if (!backend_.set_mark(newest(), on)) {
      static_cast<void>(backend_.synchronize(on));
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

}  // namespace pagedkv
