#pragma once

#include <pagedkv/detail/with_memory.hpp>

#include <cstddef>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace pagedkv::detail {

/// A copy of a text that lasts until the program ends, as the texts of an `error` do. Equal texts share one. Returns
/// `instead` when all copies would take more than 64 KiB, or memory is exhausted. For the paths of files whose errors are
/// reported.
[[nodiscard]] inline const char* lasting_text(std::string text, const char* instead) noexcept {
  constexpr auto most_bytes = std::size_t{1} << 16;
  struct copies {
    std::mutex mutex;
    std::set<std::string> texts;
    std::size_t num_bytes = 0;
  };
  const auto keep = [&]() -> const char* {
    static auto& kept = *new copies;  // errors may be read while static objects end
    const auto guard = std::lock_guard{kept.mutex};
    const auto found = kept.texts.find(text);
    if (found != kept.texts.end()) {
      return found->c_str();
    }
    if (text.size() > most_bytes - kept.num_bytes) {
      return instead;
    }
    const auto& added = *kept.texts.insert(std::move(text)).first;
    kept.num_bytes += added.size();
    return added.c_str();
  };
  return with_memory(keep, instead);
}

}  // namespace pagedkv::detail
