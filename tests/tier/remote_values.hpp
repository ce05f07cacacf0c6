#pragma once

#include <pagedkv/tier/remote_tier.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace pagedkv::testing {

using namespace std::chrono_literals;

constexpr auto no_hang = 60s;  // an answer comes much sooner, or never

/// Values whose bytes follow from their number, on their way to a store or back.
class remote_values {
 public:
  remote_values(std::size_t count, std::size_t bytes, std::size_t first = 0) : outcomes_(count) {
    for (auto i = std::size_t{0}; i < count; ++i) {
      keys_.push_back("value " + std::to_string(first + i));
      bytes_.push_back(contents(first + i, bytes));
    }
    right_ = bytes_;
    for (auto i = std::size_t{0}; i < count; ++i) {
      values_.push_back({keys_[i], bytes_[i]});
    }
  }
  remote_values(const remote_values&) = delete;
  remote_values& operator=(const remote_values&) = delete;

  [[nodiscard]] std::size_t size() const { return values_.size(); }
  [[nodiscard]] const std::string& key(std::size_t index) const { return keys_[index]; }

  /// The number of values with this outcome.
  [[nodiscard]] std::size_t num(transfer_outcome outcome) const {
    return static_cast<std::size_t>(std::ranges::count(outcomes_, outcome));
  }

  /// The number of those done.
  template <class Client>
  std::size_t set(Client& client, std::chrono::milliseconds timeout = no_hang) {
    for (auto i = std::size_t{0}; i < size(); ++i) {
      std::ranges::copy(right_[i], bytes_[i].begin());
    }
    outcomes_.assign(size(), transfer_outcome::missing);
    client.set_many(values_, outcomes_, std::chrono::steady_clock::now() + timeout);
    return num(transfer_outcome::done);
  }

  /// The number of those done.
  template <class Client>
  std::size_t get(Client& client, std::chrono::milliseconds timeout = no_hang) {
    for (auto& bytes : bytes_) {
      std::ranges::fill(bytes, std::byte{});
    }
    outcomes_.assign(size(), transfer_outcome::missing);
    client.get_many(values_, outcomes_, std::chrono::steady_clock::now() + timeout);
    return num(transfer_outcome::done);
  }

  /// Whether each value that is done has the bytes that belong to its key.
  [[nodiscard]] bool are_right() const {
    for (auto i = std::size_t{0}; i < size(); ++i) {
      if (outcomes_[i] == transfer_outcome::done && bytes_[i] != right_[i]) {
        return false;
      }
    }
    return true;
  }

 private:
  [[nodiscard]] static std::vector<std::byte> contents(std::size_t number, std::size_t size) {
    auto random = std::minstd_rand{static_cast<std::uint32_t>(number + 1)};
    auto bytes = std::vector<std::byte>(size);
    std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
    return bytes;
  }

  std::vector<std::string> keys_;
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<std::vector<std::byte>> right_;
  std::vector<remote_value> values_;
  std::vector<transfer_outcome> outcomes_;
};

/// Repeats batches until one is done as a whole: a client that has lost its store connects on its own.
template <class Batch>
void repeat_until_done(const Batch& batch, std::size_t size) {
  while (batch() != size) {
    std::this_thread::yield();
  }
}

/// The descriptors that this process has open.
[[nodiscard]] inline std::size_t num_descriptors() {
  const auto folder = std::filesystem::directory_iterator{"/proc/self/fd"};
  return static_cast<std::size_t>(std::distance(begin(folder), end(folder)));
}

}  // namespace pagedkv::testing
