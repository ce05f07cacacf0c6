#pragma once

#include "store_process.hpp"

#include <hiredis/hiredis.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace pagedkv::testing {

/// A server that answers each command with what a function returns; without a return value it closes the connection.
class fake_store {
 public:
  using words = std::vector<std::string>;
  using answers = std::function<std::optional<std::string>(const words&)>;

  explicit fake_store(answers with) : answers_(std::move(with)), thread_([this] { run(); }) {}
  fake_store(const fake_store&) = delete;
  fake_store& operator=(const fake_store&) = delete;
  ~fake_store() {
    is_stopped_ = true;
    ::shutdown(listener_.descriptor(), SHUT_RDWR);
  }

  /// As a store does that is no cluster; other commands get what `rest` returns.
  [[nodiscard]] static answers greeting(answers rest) {
    return [rest = std::move(rest)](const words& command) -> std::optional<std::string> {
      if (command[0] == "PING") {
        return "+PONG\r\n";
      }
      if (command[0] == "CLUSTER") {
        return "-ERR This instance has cluster support disabled\r\n";
      }
      return rest(command);
    };
  }

  [[nodiscard]] std::uint16_t port() const { return listener_.port(); }
  [[nodiscard]] std::string url() const { return "redis://127.0.0.1:" + std::to_string(port()); }
  [[nodiscard]] int num_accepted() const { return num_accepted_; }

 private:
  struct peer {
    int descriptor;
    std::unique_ptr<redisReader, decltype(&redisReaderFree)> reader{redisReaderCreate(), &redisReaderFree};
  };

  void run() {
    auto peers = std::vector<peer>{};
    while (!is_stopped_) {
      auto polled = std::vector<pollfd>{{listener_.descriptor(), POLLIN, 0}};
      for (const auto& each : peers) {
        polled.push_back({each.descriptor, POLLIN, 0});
      }
      ::poll(polled.data(), polled.size(), -1);
      for (auto i = peers.size(); i-- > 0;) {
        if (polled[i + 1].revents != 0 && !serve(peers[i])) {
          ::close(peers[i].descriptor);
          peers.erase(peers.begin() + static_cast<std::ptrdiff_t>(i));
        }
      }
      if (polled[0].revents != 0) {
        if (const auto made = ::accept4(listener_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC); made >= 0) {
          ++num_accepted_;
          peers.push_back({made});
        }
      }
    }
    for (const auto& each : peers) {
      ::close(each.descriptor);
    }
  }

  bool serve(peer& from) {
    auto buffer = std::array<char, 65'536>{};
    const auto count = ::recv(from.descriptor, buffer.data(), buffer.size(), 0);
    if (count <= 0 || redisReaderFeed(from.reader.get(), buffer.data(), static_cast<std::size_t>(count)) != REDIS_OK) {
      return false;
    }
    for (void* whole = nullptr; redisReaderGetReply(from.reader.get(), &whole) == REDIS_OK && whole != nullptr;) {
      auto* const request = static_cast<redisReply*>(whole);
      auto command = words{};
      for (auto i = std::size_t{0}; i < static_cast<std::size_t>(request->elements); ++i) {
        command.emplace_back(request->element[i]->str, static_cast<std::size_t>(request->element[i]->len));
      }
      freeReplyObject(request);
      const auto answer = answers_(command);
      if (!answer || !send(from, *answer)) {
        return false;
      }
      whole = nullptr;
    }
    return true;
  }

  static bool send(const peer& to, const std::string& text) {
    for (auto sent = std::size_t{0}; sent < text.size();) {
      const auto count = ::send(to.descriptor, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) {
        return false;
      }
      sent += static_cast<std::size_t>(count);
    }
    return true;
  }

  answers answers_;
  loopback_socket listener_;
  std::atomic<bool> is_stopped_{false};
  std::atomic<int> num_accepted_{0};
  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace pagedkv::testing
