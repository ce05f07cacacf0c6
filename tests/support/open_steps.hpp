#pragma once

#include "model_sequence.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv::test {

/// A slot or state that a sequence writes.
struct model_writing {
  sequence_id id;
  std::size_t group;
  block_id block;
  std::int64_t block_size;  // 0 for a state
  std::int64_t offset;      // in the block
  std::uint64_t name;       // of the prefix that ends there
};

/// The steps in flight, the blocks that they may still touch, and the slots that they use.
class open_steps {
 public:
  static constexpr auto most = std::uint64_t{64};  // between the oldest in flight and the next

  [[nodiscard]] bool empty() const noexcept { return steps_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return steps_.size(); }
  [[nodiscard]] bool is_full() const { return !empty() && last_ + 1 - steps_.begin()->first >= most; }
  [[nodiscard]] bool contains(step_id step) const { return steps_.contains(static_cast<std::uint64_t>(step)); }
  [[nodiscard]] step_id last() const noexcept { return step_id{last_}; }
  /// Whether the step that began last is in flight. One that was refused has not begun.
  [[nodiscard]] bool has_newest() const { return steps_.contains(newest_); }
  [[nodiscard]] step_id at(std::size_t index) const {
    return step_id{std::next(steps_.begin(), static_cast<std::ptrdiff_t>(index))->first};
  }

  /// Begins the step behind the last one, which uses these sequences; perhaps every other block in use as well.
  void begin(std::span<const model_sequence* const> used, bool everything) {
    auto& step = steps_[++last_];
    newest_ = last_;
    last_of_everything_ = everything ? last_ : last_of_everything_;
    for (const auto* const s : used) {
      for (std::size_t g = 0; g < s->tables.size(); ++g) {
        for (std::size_t place = 0; place < s->tables[g].blocks.size(); ++place) {
          step.uses.emplace(s->tables[g].blocks[place], use{step.users.size(), g, place});
        }
      }
      step.users.push_back({s->id, s->num_slots(), s->text.names});
    }
  }
  /// The next step was refused for what it uses, and has taken its number.
  void skip_number() { last_ += !is_full(); }
  void retire(step_id step) {
    steps_.erase(static_cast<std::uint64_t>(step));
    std::erase_if(fences_, [&](const auto& entry) { return empty() || steps_.begin()->first > entry.second.step; });
  }

  /// The newest step that uses everything or this sequence, if one is given, and has to be waited for; 0 for none.
  [[nodiscard]] std::uint64_t fence_of(const model_sequence* s) const {
    auto newest = !empty() && last_of_everything_ >= steps_.begin()->first ? last_of_everything_ : 0;
    for (const auto& [number, step] : steps_) {
      if (s != nullptr && std::ranges::find(step.users, s->id, &user::id) != step.users.end()) {
        newest = std::max(newest, number);
      }
    }
    return newest;
  }
  /// A sequence holds a block, or slots of it, no longer.
  void let_go(block_id block, const model_sequence& s) {
    if (const auto step = fence_of(&s); block != no_block && step != 0) {
      fences_[block].step = std::max(fences_[block].step, step);
    }
  }
  /// The newest step reads this block, which was evicted for it.
  void add_victim(block_id block) { fences_[block] = {last_, true}; }
  [[nodiscard]] bool is_victim(block_id block) const { return has_fence(block) && fences_.at(block).is_victim; }
  /// Whether a step may touch a block that was given back.
  [[nodiscard]] bool has_fence(block_id block) const { return fences_.contains(block); }
  /// The number of those that `is_held` is not true of.
  template <class Held>
  [[nodiscard]] std::int64_t num_fences_unless(const Held& is_held) const {
    return std::ranges::count_if(fences_, [&](const auto& entry) { return !is_held(entry.first); });
  }

  /// Whether no step uses what is written, unless the step is to write the same there.
  [[nodiscard]] bool allow(const model_writing& wanted) const {
    return !is_victim(wanted.block) &&
           std::ranges::all_of(steps_, [&](const auto& entry) { return entry.second.allows(wanted); });
  }

  template <class Name>
  void rename(const Name& new_name) {
    const auto rename_keys = [&](auto& entries) {
      for (auto& [block, value] : std::exchange(entries, {})) {
        entries.emplace(new_name(block), std::move(value));
      }
    };
    rename_keys(fences_);
    for (auto& [number, step] : steps_) {
      rename_keys(step.uses);
    }
  }

 private:
  struct user {
    sequence_id id;
    std::int64_t num_slots;
    std::vector<std::uint64_t> names;
  };
  struct use {
    std::size_t user;
    std::size_t group;
    std::size_t place;
  };
  struct fence {
    std::uint64_t step = 0;  // the newest that may touch the block
    bool is_victim = false;
  };
  struct open_step {
    std::vector<user> users;
    std::multimap<block_id, use> uses;

    [[nodiscard]] bool allows(const model_writing& wanted) const {
      const auto [begin, end] = uses.equal_range(wanted.block);
      return std::all_of(begin, end, [&](const auto& entry) {
        const auto& [index, group, place] = entry.second;
        const auto& [id, num_slots, names] = users[index];
        const bool is_own = id == wanted.id;
        if (group != wanted.group || wanted.block_size == 0) {
          return group == wanted.group && is_own;
        }
        const auto end_of_token = static_cast<std::int64_t>(place) * wanted.block_size + wanted.offset + 1;
        const bool is_same =
            end_of_token >= std::ssize(names) || names[static_cast<std::size_t>(end_of_token)] == wanted.name;
        return end_of_token > num_slots || (is_own && is_same);
      });
    }
  };

  std::map<std::uint64_t, open_step> steps_;
  std::uint64_t last_ = 0;    // number taken
  std::uint64_t newest_ = 0;  // number of a step that began
  std::uint64_t last_of_everything_ = 0;
  std::map<block_id, fence> fences_;
};

}  // namespace pagedkv::test
