#pragma once

#include "model_text.hpp"

#include <algorithm>
#include <cstdint>
#include <map>

namespace pagedkv::test {

struct known_prefix {
  std::uint64_t first_run = 0;  // the name of the first granule
  pagedkv::salt salt{};
  bool has_state = false;
};

/// The prefixes of whole granules that were committed, and neither reset nor invalidated since, by name.
struct known_prefixes {
  std::int64_t granularity;
  bool need_states;
  std::map<std::uint64_t, known_prefix> all = {};

  void publish(const named_text& text, std::int64_t end) {
    all.emplace(text.name(end), known_prefix{text.name(granularity), text.salt});
  }
  void save_state(std::uint64_t name) {
    if (const auto found = all.find(name); found != all.end()) {
      found->second.has_state = true;
    }
  }
  /// The longest prefix of at most so many tokens from which every group can continue, if nothing was evicted.
  [[nodiscard]] std::int64_t longest(const named_text& text, std::int64_t most, bool with_states = true) const {
    auto longest = std::int64_t{0};
    for (auto length = granularity; length <= std::min(most, text.size()); length += granularity) {
      const auto found = all.find(text.name(length));
      if (found == all.end()) {
        break;
      }
      longest = with_states && need_states && !found->second.has_state ? longest : length;
    }
    return longest;
  }
};

}  // namespace pagedkv::test
