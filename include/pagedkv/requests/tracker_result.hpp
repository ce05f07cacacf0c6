#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>

#include <utility>
#include <vector>

namespace pagedkv {

/// Result of an operation that may preempt requests: a value or an error, and with either the requests that it
/// preempted.
template <class T>
class [[nodiscard]] tracker_result : public result<T> {
 public:
  using result<T>::result;
  tracker_result(result<T> outcome, std::vector<request_id> preempted) noexcept
      : result<T>(std::move(outcome)), preempted_(std::move(preempted)) {}

  /// Requests that gave way, in the order of preemption. Takes memory only when there are any.
  [[nodiscard]] const std::vector<request_id>& preempted() const& noexcept { return preempted_; }
  [[nodiscard]] std::vector<request_id> preempted() && noexcept { return std::move(preempted_); }

 private:
  std::vector<request_id> preempted_;
};

}  // namespace pagedkv
