#pragma once

#include <hiredis/hiredis.h>
#include <catch2/catch_test_macros.hpp>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace pagedkv::testing {

/// A socket that listens on a free port of the loopback interface.
class loopback_socket {
 public:
  loopback_socket() : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    auto address = sockaddr_in{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto size = socklen_t{sizeof(address)};
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (::bind(descriptor_, generic, size) != 0 || ::listen(descriptor_, 64) != 0 ||
        ::getsockname(descriptor_, generic, &size) != 0) {
      throw std::runtime_error{"no port on the loopback interface"};
    }
    port_ = ntohs(address.sin_port);
  }
  loopback_socket(const loopback_socket&) = delete;
  loopback_socket& operator=(const loopback_socket&) = delete;
  ~loopback_socket() { ::close(descriptor_); }

  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  int descriptor_;
  std::uint16_t port_ = 0;
};

/// A port that was free a moment ago.
[[nodiscard]] inline std::uint16_t free_port() { return loopback_socket{}.port(); }

/// The name of a server program that is installed; none if there is none.
[[nodiscard]] inline std::optional<std::string> store_program() {
  const auto path = std::string{std::getenv("PATH") == nullptr ? "" : std::getenv("PATH")} + ":";
  for (const auto* const name : {"valkey-server", "redis-server"}) {
    for (auto begin = std::size_t{0}; begin < path.size();) {
      const auto end = path.find(':', begin);
      const auto file = path.substr(begin, end - begin) + "/" + name;
      if (::access(file.c_str(), X_OK) == 0) {
        return file;
      }
      begin = end + 1;
    }
  }
  return {};
}

inline void skip_without_store() {
  if (!store_program()) {
    SKIP("neither valkey-server nor redis-server is installed");
  }
}

/// A server of Valkey or Redis on a loopback port and in a folder of its own; it ends with the test.
class store_process {
 public:
  using words = std::vector<std::string>;

  explicit store_process(words options = {}) : options_(std::move(options)), port_(free_port()) {
    auto name = (std::filesystem::temp_directory_path() / "pagedkv_store_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::runtime_error{"no temporary folder"};
    }
    folder_ = name;
    start();
  }
  store_process(const store_process&) = delete;
  store_process& operator=(const store_process&) = delete;
  ~store_process() {
    kill();
    auto ignored = std::error_code{};
    std::filesystem::remove_all(folder_, ignored);
  }

  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] std::string url(std::string_view login = "") const {
    return "redis://" + std::string{login} + "127.0.0.1:" + std::to_string(port_);
  }
  [[nodiscard]] std::string socket_path() const { return folder_ / "socket"; }

  /// Returns when the server accepts connections, on the same port as before.
  void start() {
    auto arguments = words{store_program().value(), "--port", std::to_string(port_), "--bind", "127.0.0.1"};
    for (const auto& word : {"--save", "", "--appendonly", "no", "--daemonize", "no", "--logfile", ""}) {
      arguments.emplace_back(word);
    }
    for (const auto& word : {std::string{"--dir"}, folder_.string(), std::string{"--unixsocket"}, socket_path()}) {
      arguments.push_back(word);
    }
    arguments.insert(arguments.end(), options_.begin(), options_.end());
    auto pointers = std::vector<char*>{};
    for (auto& word : arguments) {
      pointers.push_back(word.data());
    }
    pointers.push_back(nullptr);
    auto ends = std::array<int, 2>{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw std::runtime_error{"no pipe"};
    }
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(ends[1], STDOUT_FILENO);
      ::dup2(ends[1], STDERR_FILENO);
      ::execv(pointers[0], pointers.data());
      ::_exit(127);
    }
    ::close(ends[1]);
    output_ = ends[0];
    await("Ready to accept connections");
  }

  void kill() {
    if (process_ > 0) {
      signal(SIGKILL);
      ::waitpid(process_, nullptr, 0);
      ::close(output_);
      process_ = 0;
    }
  }

  /// SIGSTOP makes a store that accepts connections and never answers.
  void signal(int number) const { ::kill(process_, number); }

  /// The text or number that the store answers; an error begins with "-".
  std::string call(const words& command) const {
    const auto context =
        std::unique_ptr<redisContext, decltype(&redisFree)>{redisConnect("127.0.0.1", port_), &redisFree};
    auto texts = std::vector<const char*>{};
    auto sizes = std::vector<std::size_t>{};
    for (const auto& word : command) {
      texts.push_back(word.data());
      sizes.push_back(word.size());
    }
    auto* const answer = static_cast<redisReply*>(
        redisCommandArgv(context.get(), static_cast<int>(texts.size()), texts.data(), sizes.data()));
    if (answer == nullptr) {
      throw std::runtime_error{"the store does not answer"};
    }
    const auto owner = std::unique_ptr<void, decltype(&freeReplyObject)>{answer, &freeReplyObject};
    if (answer->type == REDIS_REPLY_INTEGER) {
      return std::to_string(answer->integer);
    }
    return (answer->type == REDIS_REPLY_ERROR ? "-" : "") +
           std::string{answer->str == nullptr ? "" : answer->str, answer->len};
  }

 private:
  void await(std::string_view line) {
    auto text = std::string{};
    auto buffer = std::array<char, 4'096>{};
    while (text.find(line) == text.npos) {
      const auto count = ::read(output_, buffer.data(), buffer.size());
      if (count <= 0) {
        throw std::runtime_error{"the store does not start: " + text};
      }
      text.append(buffer.data(), static_cast<std::size_t>(count));
    }
  }

  words options_;
  std::uint16_t port_;
  std::filesystem::path folder_;
  pid_t process_ = 0;
  int output_ = -1;
};

}  // namespace pagedkv::testing
