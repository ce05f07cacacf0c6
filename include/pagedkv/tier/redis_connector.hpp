#pragma once

#include <pagedkv/tier/redis_config.hpp>
#include <pagedkv/tier/redis_connection.hpp>
#include <pagedkv/tier/redis_topology.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pagedkv::detail {

/// Makes a client's connections on a thread of its own, so that no caller waits for a name, a handshake or a pause.
/// Attempts that follow one another closely are apart by pauses that double.
class redis_connector {
 public:
  using connection = std::unique_ptr<redis_connection>;

  struct news {
    std::optional<redis_topology> topology;  // if it has changed
    std::vector<connection> connections;
  };

  /// Begins to connect. Throws `std::system_error` if there is no thread, and `std::bad_alloc`.
  explicit redis_connector(redis_config config)
      : config_(std::move(config)), thread_([this](const std::stop_token& stop) { run(stop); }) {}

  redis_connector(const redis_connector&) = delete;
  redis_connector& operator=(const redis_connector&) = delete;

  /// Waits for a connection in progress: at most as long as the resolver and the time for connecting.
  ~redis_connector() = default;

  /// Waits until the first attempt has ended, at most until the deadline.
  void await_first_attempt(redis_time deadline) {
    auto lock = std::unique_lock{mutex_};
    attempted_.wait_until(lock, deadline, [&] { return has_attempted_; });
  }

  /// All that was made since the last call.
  [[nodiscard]] news take() {
    const auto lock = std::scoped_lock{mutex_};
    return std::exchange(news_, {});
  }

  /// Connects to the nodes of which the caller holds no connection, after asking anew which nodes there are.
  void repair(std::vector<redis_endpoint> held) {
    {
      const auto lock = std::scoped_lock{mutex_};
      held_ = std::move(held);
      for (const auto& made : news_.connections) {
        held_.push_back(made->endpoint());
      }
      is_wanted_ = true;
    }
    changed_.notify_one();
  }

  /// Why the last attempt failed; empty if it did not.
  [[nodiscard]] std::string failure() const {
    const auto lock = std::scoped_lock{mutex_};
    return failure_;
  }

 private:
  void run(const std::stop_token& stop) {
    auto pause = config_.shortest_pause;
    auto lock = std::unique_lock{mutex_};
    while (changed_.wait(lock, stop, [&] { return is_wanted_; }) && !stop.stop_requested()) {
      is_wanted_ = false;
      const auto start = std::chrono::steady_clock::now();
      lock.unlock();
      auto failure = std::string{};
      const auto complete = with_memory([&] { return attempt(stop, failure); }, false);
      lock.lock();
      failure_ = complete ? std::string{} : std::move(failure);
      is_wanted_ = is_wanted_ || !complete;
      has_attempted_ = true;
      attempted_.notify_all();
      changed_.wait_until(lock, stop, start + pause, [] { return false; });
      pause = is_wanted_ ? std::min(2 * pause, config_.longest_pause) : config_.shortest_pause;
    }
  }

  /// Whether the caller now has a connection to every node.
  [[nodiscard]] bool attempt(const std::stop_token& stop, std::string& failure) {
    auto spare = load_topology(stop, failure);
    if (spare == nullptr) {
      return false;
    }
    auto complete = true;
    for (const auto& node : topology_.nodes) {
      complete = !stop.stop_requested() && provide(node, spare, failure) && complete;
    }
    return complete;
  }

  /// From the first node that answers, to which it returns the connection.
  [[nodiscard]] connection load_topology(const std::stop_token& stop, std::string& failure) {
    auto asked = topology_.nodes;
    asked.insert(asked.end(), config_.endpoints.begin(), config_.endpoints.end());
    for (const auto& endpoint : asked) {
      auto made = stop.stop_requested() ? nullptr : redis_connection::connect(endpoint, config_, failure);
      if (made == nullptr) {
        continue;
      }
      const auto deadline = std::chrono::steady_clock::now() + config_.connect_timeout;
      auto found = made->exchange(std::array<std::string, 2>{"CLUSTER", "SLOTS"}, deadline)
                       ? read_topology(made->answer(), endpoint)
                       : std::nullopt;
      if (found) {
        announce(*std::move(found));
        return made;
      }
      failure = endpoint.host + ": no table of slots that is understood";
    }
    return nullptr;
  }

  void announce(redis_topology found) {
    if (found == topology_) {
      return;
    }
    topology_ = std::move(found);
    const auto lock = std::scoped_lock{mutex_};
    news_.topology = topology_;
  }

  /// Makes the connection to a node unless the caller has it. `spare`: one that may already be to that node.
  [[nodiscard]] bool provide(const redis_endpoint& node, connection& spare, std::string& failure) {
    {
      const auto lock = std::scoped_lock{mutex_};
      if (std::ranges::find(held_, node) != held_.end()) {
        return true;
      }
    }
    auto made = spare != nullptr && spare->endpoint() == node ? std::move(spare)
                                                              : redis_connection::connect(node, config_, failure);
    if (made == nullptr) {
      return false;
    }
    const auto lock = std::scoped_lock{mutex_};
    news_.connections.push_back(std::move(made));
    held_.push_back(node);
    return true;
  }

  redis_config config_;
  redis_topology topology_;  // of the thread only
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::condition_variable_any attempted_;
  news news_;
  std::vector<redis_endpoint> held_;
  std::string failure_;
  bool is_wanted_ = true;
  bool has_attempted_ = false;
  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace pagedkv::detail
