#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/detail/function_ref.hpp>
#include <pagedkv/policy/eviction/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace pagedkv {

/// The order in which the records of a tier make room: an eviction policy of any type, over places instead of blocks.
class record_order {
 public:
  using may_go = detail::function_ref<eviction_answer(block_id place, bool anyway)>;

  virtual ~record_order() = default;
  virtual void insert(block_id place, std::uint64_t hash, std::uint32_t depth) noexcept = 0;
  virtual void remove(block_id place) noexcept = 0;
  virtual void erase(block_id place) noexcept = 0;
  [[nodiscard]] virtual block_id victim(may_go answer) noexcept = 0;
  [[nodiscard]] virtual std::size_t metadata_bytes() const noexcept = 0;
};

/// Throws `std::bad_alloc`.
using record_order_factory = std::unique_ptr<record_order> (*)(std::int32_t num_places);

namespace detail {

template <eviction_policy Eviction>
class record_order_of final : public record_order {
 public:
  explicit record_order_of(std::int32_t num_places) : policy_(std::max(num_places, 1)) {}

  [[nodiscard]] static std::unique_ptr<record_order> make(std::int32_t num_places) {
    return std::make_unique<record_order_of>(num_places);
  }

  void insert(block_id place, std::uint64_t hash, std::uint32_t depth) noexcept override {
    policy_.insert(place, {.hash = hash, .depth = depth, .priority = 50});
  }
  void remove(block_id place) noexcept override { policy_.remove(place); }
  void erase(block_id place) noexcept override { policy_.erase(place); }
  block_id victim(may_go answer) noexcept override { return policy_.victim(offer{answer}, timestamp{}); }
  std::size_t metadata_bytes() const noexcept override { return policy_.metadata_bytes(); }

 private:
  struct offer {
    may_go answer;
    eviction_answer operator()(block_id place) const noexcept { return answer(place, false); }
    eviction_answer operator()(block_id place, evict_anyway_t) const noexcept { return answer(place, true); }
  };

  Eviction policy_;
};

}  // namespace detail

}  // namespace pagedkv
