#pragma once

#include <pagedkv/detail/with_memory.hpp>

#include <hiredis/hiredis.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pagedkv::detail {

/// One answer of a store, as hiredis' reader composes it.
struct redis_answer {
  static constexpr auto most_elements = std::size_t{65'536};
  static constexpr auto most_text = std::size_t{65'536};

  int type = 0;                         // REDIS_REPLY_…; 0: none of those that are expected here
  long long number = 0;                 // an integer, or the size of a text
  std::string text;                     // unless it lies in `target`, or is too long
  std::vector<redis_answer> elements;
  std::span<std::byte> target;          // a text of exactly this size is copied here instead

  [[nodiscard]] bool is_status(std::string_view wanted) const noexcept {
    return type == REDIS_REPLY_STATUS && text == wanted;
  }

  /// Makes a reader of hiredis compose the next answer here; valid for as long as neither moves.
  void read_with(redisReader& reader) noexcept {
    reader.fn = functions();
    reader.privdata = this;
  }

  void reset() noexcept {
    type = 0;
    number = 0;
    text.clear();
    elements.clear();
  }

 private:
  /// Where the reader's current value belongs.
  [[nodiscard]] static redis_answer& place_of(const redisReadTask& task) noexcept {
    if (task.parent == nullptr) {
      return *static_cast<redis_answer*>(task.privdata);
    }
    return static_cast<redis_answer*>(task.parent->obj)->elements[static_cast<std::size_t>(task.idx)];
  }

  static void* make_text(const redisReadTask* task, char* bytes, std::size_t size) noexcept {
    auto& answer = place_of(*task);
    answer.type = task->type;
    answer.number = static_cast<long long>(size);
    if (task->type == REDIS_REPLY_STRING && !answer.target.empty() && size == answer.target.size()) {
      std::memcpy(answer.target.data(), bytes, size);
      return &answer;
    }
    const auto kept = with_memory([&] { return answer.text.assign(bytes, std::min(size, most_text)), true; }, false);
    return kept ? &answer : nullptr;
  }

  static void* make_array(const redisReadTask* task, std::size_t size) noexcept {
    auto& answer = place_of(*task);
    answer.type = task->type;
    const auto made = with_memory(
        [&] { return size <= most_elements && (answer.elements.resize(size), true); }, false);
    return made ? &answer : nullptr;
  }

  static void* make_number(const redisReadTask* task, long long number) noexcept {
    auto& answer = place_of(*task);
    answer.type = task->type;
    answer.number = number;
    return &answer;
  }

  static void* make_nil(const redisReadTask* task) noexcept {
    auto& answer = place_of(*task);
    answer.type = REDIS_REPLY_NIL;
    return &answer;
  }

  [[nodiscard]] static redisReplyObjectFunctions* functions() noexcept {
    // Members and the type of an array's size depend on hiredis' version.
    static auto table = [] {
      auto made = redisReplyObjectFunctions{};
      made.createString = make_text;
      made.createArray = [](const redisReadTask* task, auto size) -> void* {
        return make_array(task, static_cast<std::size_t>(size));
      };
      made.createInteger = make_number;
      made.createNil = make_nil;
      made.freeObject = [](void*) {};
      return made;
    }();
    return &table;
  }
};

}  // namespace pagedkv::detail
