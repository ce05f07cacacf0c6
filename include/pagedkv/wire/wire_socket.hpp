#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
#include <zmq.hpp>

namespace pagedkv::detail {

/// The number behind the last batch of a replay: -1.
inline constexpr auto end_of_replay = ~std::uint64_t{0};

[[nodiscard]] constexpr std::array<char, 8> big_endian(std::uint64_t number) noexcept {
  auto bytes = std::array<char, 8>{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(number >> (56 - 8 * i));
  }
  return bytes;
}

/// None when there are not eight bytes.
[[nodiscard]] constexpr std::optional<std::uint64_t> from_big_endian(std::string_view bytes) noexcept {
  if (bytes.size() != 8) {
    return std::nullopt;
  }
  auto number = std::uint64_t{0};
  for (const auto byte : bytes) {
    number = number << 8 | static_cast<std::uint8_t>(byte);
  }
  return number;
}

/// The number of a batch: the last part but one, ahead of the payload.
[[nodiscard]] inline std::optional<std::uint64_t> number_in(const std::vector<zmq::message_t>& parts) {
  return from_big_endian(parts[parts.size() - 2].to_string_view());
}

/// Repeats a call into ZeroMQ for as long as signals interrupt it; such a call has done nothing.
template <class Call>
auto uninterrupted(Call&& call) {
  for (;;) {
    try {
      return call();
    } catch (const zmq::error_t& failure) {
      if (failure.num() != EINTR) {
        throw;
      }
    }
  }
}

/// A socket whose operations signals do not end. All may throw `zmq::error_t`.
class wire_socket {
 public:
  wire_socket(zmq::context_t& context, zmq::socket_type type)
      : socket_(uninterrupted([&] {
          return zmq::socket_t{context, type};
        })) {}

  template <class Option, class Value>
  void set(const Option& option, const Value& value) {
    uninterrupted([&] { socket_.set(option, value); });
  }
  void bind(const std::string& endpoint) {
    uninterrupted([&] { socket_.bind(endpoint); });
  }
  void connect(const std::string& endpoint) {
    uninterrupted([&] { socket_.connect(endpoint); });
  }

  /// The bound endpoint, with the port that was chosen for "*".
  [[nodiscard]] std::string endpoint() const {
    return uninterrupted([&] { return socket_.get(zmq::sockopt::last_endpoint); });
  }

  /// One part of a message.
  void send(zmq::const_buffer part, zmq::send_flags flags) {
    uninterrupted([&] { static_cast<void>(socket_.send(part, flags)); });
  }

  /// Waits until a message has arrived; false when none has in time.
  [[nodiscard]] bool has_message(std::chrono::milliseconds timeout) {
    const auto begin = std::chrono::steady_clock::now();
    auto item = zmq_pollitem_t{socket_.handle(), 0, ZMQ_POLLIN, 0};
    return uninterrupted([&] {
      const auto elapsed = std::chrono::steady_clock::now() - begin;
      const auto left =
          std::max(timeout - std::chrono::floor<std::chrono::milliseconds>(elapsed), decltype(timeout){0});
      const auto num_ready = zmq_poll(&item, 1, static_cast<long>(left.count()));
      if (num_ready < 0) {
        throw zmq::error_t{};
      }
      return num_ready > 0;
    });
  }

  /// All parts of the next message, which has arrived.
  [[nodiscard]] std::vector<zmq::message_t> receive() {
    auto parts = std::vector<zmq::message_t>{};
    do {
      parts.emplace_back();
      if (!uninterrupted([&] { return socket_.recv(parts.back(), zmq::recv_flags::dontwait); })) {
        return {};
      }
    } while (parts.back().more());
    return parts;
  }

 private:
  zmq::socket_t socket_;
};

}  // namespace pagedkv::detail
