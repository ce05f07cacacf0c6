#pragma once

#include <pagedkv/policy/eviction/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace pagedkv::support {

/// An `offer` of any type, in a form that a virtual function can take.
class any_offer {
 public:
  template <class Offer>
  explicit any_offer(Offer& offer) noexcept
      : offer_(&offer), ask_([](void* target, block_id block, bool anyway) noexcept {
          auto& asked = *static_cast<Offer*>(target);
          return anyway ? asked(block, evict_anyway) : asked(block);
        }) {}

  eviction_answer operator()(block_id block) const noexcept { return ask_(offer_, block, false); }
  eviction_answer operator()(block_id block, evict_anyway_t) const noexcept { return ask_(offer_, block, true); }

 private:
  void* offer_;
  eviction_answer (*ask_)(void*, block_id, bool) noexcept;
};

class any_eviction {
 public:
  virtual ~any_eviction() = default;
  virtual void insert(block_id block, const block_release& release) noexcept = 0;
  virtual void note(block_id block, const block_release& release) noexcept = 0;
  virtual void remove(block_id block) noexcept = 0;
  virtual void erase(block_id block) noexcept = 0;
  virtual void rename(block_id from, block_id to) noexcept = 0;
  [[nodiscard]] virtual block_id victim(any_offer offer, timestamp now) noexcept = 0;
  [[nodiscard]] virtual std::size_t metadata_bytes() const noexcept = 0;
};

using eviction_factory = std::unique_ptr<any_eviction> (*)(std::int32_t num_blocks);

template <eviction_policy Eviction>
class any_eviction_of final : public any_eviction {
 public:
  explicit any_eviction_of(std::int32_t num_blocks) : policy_(num_blocks) {}

  [[nodiscard]] static std::unique_ptr<any_eviction> make(std::int32_t num_blocks) {
    return std::make_unique<any_eviction_of>(num_blocks);
  }

  void insert(block_id block, const block_release& release) noexcept override { policy_.insert(block, release); }
  void note([[maybe_unused]] block_id block, [[maybe_unused]] const block_release& release) noexcept override {
    if constexpr (requires { policy_.note(block, release); }) {
      policy_.note(block, release);
    }
  }
  void remove(block_id block) noexcept override { policy_.remove(block); }
  void erase(block_id block) noexcept override { policy_.erase(block); }
  void rename(block_id from, block_id to) noexcept override { policy_.rename(from, to); }
  block_id victim(any_offer offer, timestamp now) noexcept override { return policy_.victim(offer, now); }
  std::size_t metadata_bytes() const noexcept override { return policy_.metadata_bytes(); }

 private:
  Eviction policy_;
};

/// Tokens of the answer that policies are told of blocks which this thread releases, unless it is 0: for sequences that
/// end before their answer is appended.
inline thread_local std::uint32_t stated_answer = 0;

/// An eviction policy that is chosen when the program runs, as one policy type: a cache for each of them, times locking
/// policies and elements, would take minutes to compile. A cache makes its policy from the number of blocks alone, so
/// the choice is left in `factory` before the cache is constructed.
template <bool Concurrent>
class chosen_eviction {
 public:
  static constexpr std::string_view name = "chosen";
  static constexpr bool concurrent = Concurrent;
  static constexpr bool uses_priority = true;  // may be one that does
  inline static thread_local eviction_factory factory = nullptr;

  explicit chosen_eviction(std::int32_t num_blocks) : policy_(factory(num_blocks)) {}

  void insert(block_id block, const block_release& release) noexcept {
    auto with_answer = release;
    with_answer.num_output_tokens = stated_answer != 0 ? stated_answer : release.num_output_tokens;
    policy_->insert(block, with_answer);
  }
  void note(block_id block, const block_release& release) noexcept { policy_->note(block, release); }
  void remove(block_id block) noexcept { policy_->remove(block); }
  void erase(block_id block) noexcept { policy_->erase(block); }
  void rename(block_id from, block_id to) noexcept { policy_->rename(from, to); }
  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp now) noexcept {
    return policy_->victim(any_offer{offer}, now);
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return policy_->metadata_bytes(); }

 private:
  std::unique_ptr<any_eviction> policy_;
};

static_assert(eviction_policy<chosen_eviction<false>> && eviction_policy<chosen_eviction<true>>);

}  // namespace pagedkv::support
