#pragma once

#include <pagedkv/policy/allocator/concept.hpp>

#include <chrono>
#include <cstddef>
#include <utility>

namespace pagedkv::bench {

/// `Upstream`, with the seconds that it takes to map and unmap added up in a sum, which outlives it.
template <resizable_allocator Upstream>
class timed_allocator : public Upstream {
 public:
  timed_allocator(double& seconds, Upstream upstream = Upstream{}) : Upstream(std::move(upstream)), seconds_(&seconds) {}

  [[nodiscard]] bool map(std::byte* pointer, std::size_t bytes) noexcept {
    const auto start = clock::now();
    const auto mapped = Upstream::map(pointer, bytes);
    *seconds_ += std::chrono::duration<double>(clock::now() - start).count();
    return mapped;
  }

  void unmap(std::byte* pointer, std::size_t bytes) noexcept {
    const auto start = clock::now();
    Upstream::unmap(pointer, bytes);
    *seconds_ += std::chrono::duration<double>(clock::now() - start).count();
  }

 private:
  using clock = std::chrono::steady_clock;

  double* seconds_;
};

}  // namespace pagedkv::bench
