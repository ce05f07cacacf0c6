#pragma once

#include <poll.h>
#include <pagedkv/detail/deadline.hpp>
#include <pagedkv/tier/redis_config.hpp>
#include <pagedkv/tier/redis_connection.hpp>
#include <pagedkv/tier/remote_tier.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace pagedkv {

/// Slots of a cluster, over which keys are divided.
inline constexpr auto num_redis_slots = std::size_t{16'384};

namespace detail {

inline constexpr auto crc16_table = [] {
  auto table = std::array<std::uint16_t, 256>{};
  for (auto i = std::uint32_t{0}; i < table.size(); ++i) {
    auto value = i << 8;
    for (auto bit = 0; bit < 8; ++bit) {
      value = (value << 1) ^ ((value & 0x8000) != 0 ? 0x1021U : 0U);
    }
    table[i] = static_cast<std::uint16_t>(value);
  }
  return table;
}();

}  // namespace detail

/// The slot of a cluster that has this key: CRC16 (XMODEM) of the part between the first braces, if there is one, as
/// Redis' specification of clusters says.
[[nodiscard]] constexpr std::size_t redis_slot(std::string_view key) noexcept {
  if (const auto open = key.find('{'); open != key.npos) {
    const auto close = key.find('}', open + 1);
    if (close != key.npos && close != open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  auto crc = std::uint32_t{0};
  for (const auto character : key) {
    const auto index = ((crc >> 8) ^ static_cast<unsigned char>(character)) & 0xff;
    crc = ((crc << 8) & 0xffff) ^ detail::crc16_table[index];
  }
  return crc % num_redis_slots;
}

static_assert(redis_slot("123456789") == 0x31c3 % num_redis_slots, "the check value of the specification");

namespace detail {

/// Which node has which slot.
struct redis_topology {
  static constexpr auto no_node = std::uint16_t{0xffff};

  std::vector<redis_endpoint> nodes;
  std::vector<std::uint16_t> node_of_slot;  // empty: the one node has all

  friend bool operator==(const redis_topology&, const redis_topology&) = default;

  [[nodiscard]] std::optional<std::size_t> find(const redis_endpoint& endpoint) const noexcept {
    const auto found = std::ranges::find(nodes, endpoint);
    return found == nodes.end() ? std::nullopt : std::optional{static_cast<std::size_t>(found - nodes.begin())};
  }

  [[nodiscard]] std::size_t node_of(std::string_view key) const noexcept {
    return node_of_slot.empty() ? 0 : node_of_slot[redis_slot(key)];
  }
};

/// From the answer to CLUSTER SLOTS, whose elements are `[first, last, [host, port, …], replicas…]`. A node without a
/// host is the one that was asked, and so is the only node of a store without a cluster, which answers with an error.
/// Nothing if the answer is neither. Throws `std::bad_alloc`.
[[nodiscard]] inline std::optional<redis_topology> read_topology(const redis_answer& answer,
                                                                 const redis_endpoint& asked) {
  if (answer.type == REDIS_REPLY_ERROR) {
    return redis_topology{{asked}, {}};
  }
  if (answer.type != REDIS_REPLY_ARRAY || answer.elements.empty()) {
    return {};
  }
  auto topology = redis_topology{{}, std::vector<std::uint16_t>(num_redis_slots, redis_topology::no_node)};
  const auto is_within = [](const redis_answer& number, long long limit) {
    return number.type == REDIS_REPLY_INTEGER && number.number >= 0 && number.number < limit;
  };
  for (const auto& range : answer.elements) {
    const auto& parts = range.elements;
    if (parts.size() < 3 || !is_within(parts[0], num_redis_slots) || !is_within(parts[1], num_redis_slots) ||
        parts[2].elements.size() < 2 || !is_within(parts[2].elements[1], 65'536) ||
        parts[2].elements[1].number == 0) {  // a host would be a path here
      return {};
    }
    const auto& host = parts[2].elements[0].text;
    auto node =
        redis_endpoint{host.empty() ? asked.host : host, static_cast<std::uint16_t>(parts[2].elements[1].number)};
    auto index = topology.find(node);
    if (!index) {
      index = topology.nodes.size();
      topology.nodes.push_back(std::move(node));
    }
    for (auto slot = parts[0].number; slot <= parts[1].number; ++slot) {
      topology.node_of_slot[static_cast<std::size_t>(slot)] = static_cast<std::uint16_t>(*index);
    }
  }
  return topology;
}

/// Where a node says that a key is.
struct redis_redirection {
  bool once = false;  // ASK: a slot is on its way there; otherwise it has moved for good
  std::size_t slot = 0;
  redis_endpoint endpoint;
};

/// From an error `MOVED slot host:port` or `ASK slot host:port`; a missing host is that of the node that answered.
/// Throws `std::bad_alloc`.
[[nodiscard]] inline std::optional<redis_redirection> read_redirection(const redis_answer& answer,
                                                                       const redis_endpoint& asked) {
  auto text = std::string_view{answer.text};
  auto found = redis_redirection{text.starts_with("ASK "), 0, asked};
  if (answer.type != REDIS_REPLY_ERROR || (!found.once && !text.starts_with("MOVED "))) {
    return {};
  }
  text.remove_prefix(text.find(' ') + 1);
  const auto space = text.find(' ');
  const auto colon = text.rfind(':');
  if (space == text.npos || colon == text.npos || colon < space) {
    return {};
  }
  const auto slot = small_number(text.substr(0, space));
  const auto port = small_number(text.substr(colon + 1));
  if (!slot || *slot >= num_redis_slots || !port || *port == 0) {
    return {};
  }
  found.slot = *slot;
  found.endpoint.port = *port;
  if (const auto host = text.substr(space + 1, colon - space - 1); !host.empty()) {
    found.endpoint.host = host;
  }
  return found;
}

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

  /// The caller had no memory for what it took: the next attempt announces the topology again.
  void lose() noexcept {
    const auto lock = std::scoped_lock{mutex_};
    is_lost_ = true;
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
      const auto deadline = deadline_in(config_.connect_timeout);
      if (made->exchange(std::array<std::string, 2>{"CLUSTER", "SLOTS"}, deadline)) {
        if (auto found = read_topology(made->answer(), endpoint)) {
          announce(*std::move(found));
          return made;
        }
      }
      failure = endpoint.host + ": no table of slots that is understood";
    }
    return nullptr;
  }

  void announce(redis_topology found) {
    const auto lock = std::scoped_lock{mutex_};
    if (is_lost_ || found != topology_) {
      news_.topology = found;  // without memory for it, the next attempt announces it
      topology_ = std::move(found);
      is_lost_ = false;
    }
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
  bool is_lost_ = false;
  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace detail

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
    state_->connector.await_first_attempt(detail::deadline_in(config.connect_timeout));
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
        connector.lose();
      }
    }

    void transfer(const detail::redis_batch& batch, time_point deadline) {
      adopt_news();
      for (auto i = std::size_t{0}; i < batch.values.size(); ++i) {
        const auto node = topology.node_of(batch.values[i].key);
        is_stale = is_stale || node == detail::redis_topology::no_node;
        queue(node, {i, 0, false});
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
    bool is_stale = false;  // slots have moved, or no node had one
    detail::redis_connector connector;
  };

  std::unique_ptr<state> state_;
};

static_assert(remote_client<redis_client>);

}  // namespace pagedkv
