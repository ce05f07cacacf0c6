#pragma once

#include <pagedkv/tier/redis_config.hpp>
#include <pagedkv/tier/redis_connector.hpp>
#include <pagedkv/tier/redis_pipeline.hpp>
#include <pagedkv/tier/redis_topology.hpp>
#include <pagedkv/tier/remote_client.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>

namespace pagedkv {

/// A client of Valkey or Redis over hiredis: a single store, or a cluster, which it recognises by its answer to CLUSTER
/// SLOTS. A thread of its own resolves names, connects, greets and asks for slots; callers never wait for it.
///
/// A connection whose answer is late, malformed or none to what was asked is closed, and its values have failed. Errors
/// of the store (no memory left, loading, read only) fail their value and keep the connection. No signal reaches the
/// process from a connection that breaks. Without memory for a batch, its values fail.
class redis_client {
 public:
  static constexpr std::string_view name = "redis";

  /// The clock's type of deadlines.
  using time_point = std::chrono::steady_clock::time_point;

  /// Waits for the first attempt to connect, at most `connect_timeout`; without success it continues to try. Throws
  /// `std::bad_alloc`, and `std::system_error` if there is no thread. The destructor waits for an attempt in progress,
  /// which includes the system's look-up of a name.
  explicit redis_client(const redis_config& config) : state_(std::make_unique<state>(config)) {
    state_->connector.await_first_attempt(std::chrono::steady_clock::now() + config.connect_timeout);
    state_->adopt_news();
  }

  void set_many(std::span<const remote_value> batch, std::span<transfer_outcome> outcomes,
                time_point deadline) noexcept {
    state_->run({detail::redis_verb::set, batch, outcomes, state_->options, state_->options.empty() ? 0 : 2}, deadline);
  }

  void get_many(std::span<const remote_value> batch, std::span<transfer_outcome> outcomes,
                time_point deadline) noexcept {
    state_->run({detail::redis_verb::get, batch, outcomes, {}, 0}, deadline);
  }

  void erase_many(std::span<const remote_value> batch, std::span<transfer_outcome> outcomes,
                  time_point deadline) noexcept {
    state_->run({detail::redis_verb::unlink, batch, outcomes, {}, 0}, deadline);
  }

  /// That the latest batch left open.
  [[nodiscard]] std::size_t num_connections() const noexcept { return state_->num_connected(); }

  /// Why the latest attempt to connect failed; empty if it did not. Throws `std::bad_alloc`.
  [[nodiscard]] std::string failure() const { return state_->connector.failure(); }

 private:
  struct state {
    explicit state(const redis_config& with)
        : config(with), options(option_text(with)), buffer(receive_bytes), connector(with) {}

    [[nodiscard]] static std::string option_text(const redis_config& config) {
      if (config.time_to_live.count() <= 0) {
        return {};
      }
      const auto number = std::to_string(config.time_to_live.count());
      return "$2\r\nPX\r\n$" + std::to_string(number.size()) + "\r\n" + number + "\r\n";
    }

    void run(const detail::redis_batch& batch, time_point deadline) noexcept {
      std::ranges::fill(batch.outcomes.first(batch.values.size()), transfer_outcome::failed);
      if (batch.values.empty()) {
        return;
      }
      const auto ran = detail::with_memory([&] { return transfer(batch, deadline), true; }, false);
      if (!ran) {
        close_busy();
      }
    }

    void transfer(const detail::redis_batch& batch, time_point deadline) {
      adopt_news();
      for (auto i = std::size_t{0}; i < batch.values.size(); ++i) {
        queue(topology.node_of(batch.values[i].key), {i, 0, false});
      }
      for_each_busy([&](auto& pipeline) { return pipeline.send(batch); });
      while (await_sockets(deadline)) {
        for (auto i = std::size_t{0}; i < polled.size(); ++i) {
          serve(batch, i);
        }
        for_each_busy([&](auto& pipeline) { return pipeline.has_unsent() || pipeline.send(batch); });
      }
      close_busy();
      if (is_stale || num_connected() < std::max(pipelines.size(), std::size_t{1})) {
        connector.repair(held());
        is_stale = false;
      }
    }

    void serve(const detail::redis_batch& batch, std::size_t index) {
      auto& slot = pipelines[polled_nodes[index]];
      const auto events = polled[index].revents;
      auto alive = true;
      if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) {
        alive = slot->receive(batch, buffer, [&](const auto& request, const auto& answer) {
          redirect(request, answer, slot->connection().endpoint());
        });
      }
      if (alive && (events & POLLOUT) != 0) {
        alive = slot->send(batch);
      }
      if (!alive) {
        slot.reset();
      }
    }

    /// Whether some socket is ready, in `polled`; false at the deadline, and when there is nothing left to wait for.
    [[nodiscard]] bool await_sockets(time_point deadline) {
      polled.clear();
      polled_nodes.clear();
      for (auto i = std::size_t{0}; i < pipelines.size(); ++i) {
        if (pipelines[i] && pipelines[i]->is_busy()) {
          const auto events = pipelines[i]->has_unsent() ? POLLIN | POLLOUT : POLLIN;
          polled.push_back({pipelines[i]->connection().descriptor(), static_cast<short>(events), 0});
          polled_nodes.push_back(i);
        }
      }
      if (polled.empty() || std::chrono::steady_clock::now() >= deadline) {
        return false;
      }
      return ::poll(polled.data(), polled.size(), detail::milliseconds_until(deadline)) >= 0 || errno == EINTR;
    }

    template <class Call>
    void for_each_busy(const Call& call) {
      for (auto& pipeline : pipelines) {
        if (pipeline && pipeline->is_busy() && !call(*pipeline)) {
          pipeline.reset();
        }
      }
    }

    void close_busy() noexcept {
      for_each_busy([](auto&) { return false; });
    }

    void queue(std::size_t node, const detail::redis_request& request) {
      if (node < pipelines.size() && pipelines[node]) {
        pipelines[node]->queue(request);
      }
    }

    void redirect(const detail::redis_request& request, const detail::redis_answer& answer,
                  const redis_endpoint& asked) {
      const auto to = detail::read_redirection(answer, asked);
      if (!to) {
        return;
      }
      is_stale = is_stale || !to->once;
      const auto node = topology.find(to->endpoint);
      if (!node || request.redirections == max_redirections) {
        return;
      }
      if (!to->once && !topology.node_of_slot.empty()) {
        topology.node_of_slot[to->slot] = static_cast<std::uint16_t>(*node);
      }
      queue(*node, {request.index, request.redirections + 1, to->once});
    }

    void adopt_news() {
      auto news = connector.take();
      if (news.topology) {
        auto next = std::vector<std::optional<detail::redis_pipeline>>(news.topology->nodes.size());
        for (auto& pipeline : pipelines) {
          const auto node = pipeline ? news.topology->find(pipeline->connection().endpoint()) : std::nullopt;
          if (node) {
            next[*node] = std::move(pipeline);
          }
        }
        pipelines = std::move(next);
        topology = *std::move(news.topology);
      }
      for (auto& made : news.connections) {
        if (const auto node = topology.find(made->endpoint())) {
          pipelines[*node].emplace(std::move(made), config.max_in_flight_bytes);
        }
      }
    }

    [[nodiscard]] std::vector<redis_endpoint> held() const {
      auto endpoints = std::vector<redis_endpoint>{};
      for (const auto& pipeline : pipelines) {
        if (pipeline) {
          endpoints.push_back(pipeline->connection().endpoint());
        }
      }
      return endpoints;
    }

    [[nodiscard]] std::size_t num_connected() const noexcept {
      return static_cast<std::size_t>(std::ranges::count_if(pipelines, [](const auto& p) { return p.has_value(); }));
    }

    static constexpr auto receive_bytes = std::size_t{64} << 10;  // which stays in a processor's cache
    static constexpr auto max_redirections = 4;

    redis_config config;
    std::string options;
    std::vector<char> buffer;
    detail::redis_topology topology;
    std::vector<std::optional<detail::redis_pipeline>> pipelines;  // for each node; empty without a connection
    std::vector<pollfd> polled;
    std::vector<std::size_t> polled_nodes;
    bool is_stale = false;  // slots have moved
    detail::redis_connector connector;
  };

  std::unique_ptr<state> state_;
};

static_assert(remote_client<redis_client>);

}  // namespace pagedkv
