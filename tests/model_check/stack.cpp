#include "scene.hpp"

#include <pagedkv/pool/lock_free_free_list.hpp>

#include <array>
#include <cstdint>
#include <memory>

namespace pagedkv::model_check {

constexpr auto num_indices = std::uint32_t{3};

/// Indices 0, 1, 2 from the top. The thread that holds an index owns its contents.
class audited_stack {
 public:
  using stack_type = tagged_index_stack<atomic>;

  audited_stack() {
    for (auto index = num_indices; index-- > 0;) {
      stack_.push(next_, index);
    }
  }

  std::uint32_t pop() {
    const auto index = stack_.pop(next_);
    if (index != stack_type::none) {
      contents_[index].write(1);
    }
    return index;
  }

  void push(std::uint32_t index) {
    if (index != stack_type::none) {
      contents_[index].write(2);
      stack_.push(next_, index);
    }
  }

  /// Afterwards every index is there once, but for those that are held.
  void check(std::uint32_t num_held) {
    auto seen = std::array<bool, num_indices>{};
    auto num_seen = num_held;
    for (auto index = pop(); index != stack_type::none && num_seen <= num_indices; index = pop()) {
      expect(!seen[index], "an index is handed out twice");
      seen[index] = true;
      ++num_seen;
    }
    expect(num_seen == num_indices, "an index is lost, or there twice");
  }

 private:
  stack_type stack_;
  stack_type::links next_ = std::make_unique<atomic<std::uint32_t>[]>(num_indices);
  std::array<guarded_number, num_indices> contents_;
};

/// One thread takes two and pushes them so that the first is on top again, over a different one.
void recycle() {
  auto stack = audited_stack{};
  at_once([&] { stack.push(stack.pop()); },
          [&] {
            const auto top = stack.pop();
            const auto second = stack.pop();
            stack.push(top);
            stack.push(second);
          });
  stack.check(0);
}

void keep_one() {
  auto stack = audited_stack{};
  at_once([&] { stack.pop(); },
          [&] {
            const auto top = stack.pop();
            stack.pop();
            stack.push(top);
          });
  stack.check(2);
}

void three_threads() {
  auto stack = audited_stack{};
  at_once([&] { stack.push(stack.pop()); }, [&] { stack.push(stack.pop()); }, [&] { stack.pop(); });
  stack.check(1);
}

}  // namespace pagedkv::model_check

int main() { pagedkv::model_check::PAGEDKV_SCENE(); }
