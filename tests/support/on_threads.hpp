#pragma once

#include <concepts>
#include <thread>
#include <vector>

namespace pagedkv::test {

/// Calls `body` with 0 to `num_threads - 1`, each on a thread of its own, and waits for all.
template <std::integral Count, class Body>
void on_threads(Count num_threads, const Body& body) {
  auto threads = std::vector<std::jthread>{};
  for (auto i = Count{0}; i < num_threads; ++i) {
    threads.emplace_back([&body, i] { body(i); });
  }
}

}  // namespace pagedkv::test
