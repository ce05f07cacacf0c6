#pragma once

#include <thread>
#include <vector>

namespace pagedkv::test {

/// Calls `body` with 0 to `num_threads - 1`, each on a thread of its own, and waits for all.
template <class Body>
void on_threads(int num_threads, const Body& body) {
  auto threads = std::vector<std::jthread>{};
  for (auto i = 0; i < num_threads; ++i) {
    threads.emplace_back([&body, i] { body(i); });
  }
}

}  // namespace pagedkv::test
