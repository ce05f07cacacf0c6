#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llama {

/// The text of an answer as it grows: whole characters only, and nothing of a string that may end the answer.
class growing_text {
 public:
  /// `stops` outlives the text.
  explicit growing_text(const std::vector<std::string>& stops) : stops_(&stops) {}

  /// Adds bytes, and returns what is certain to be part of the answer now.
  [[nodiscard]] std::string add(std::string_view bytes) {
    held_ += bytes;
    if (const auto stop = find_stop()) {
      held_.resize(*stop);
      is_stopped_ = true;
      return finish();
    }
    return take(std::min(end_of_characters(), begin_of_possible_stop()));
  }
  /// The rest of a finished answer.
  [[nodiscard]] std::string finish() { return take(held_.size()); }
  /// Whether one of the strings that end an answer was found.
  [[nodiscard]] bool is_stopped() const noexcept { return is_stopped_; }

 private:
  [[nodiscard]] std::string take(std::size_t size) {
    auto taken = held_.substr(0, size);
    held_.erase(0, size);
    return taken;
  }

  [[nodiscard]] std::optional<std::size_t> find_stop() const {
    auto first = std::string::npos;
    for (const auto& stop : *stops_) {
      first = std::min(first, held_.find(stop));
    }
    return first == std::string::npos ? std::nullopt : std::optional(first);
  }

  /// Where the longest ending begins that one of the strings begins with.
  [[nodiscard]] std::size_t begin_of_possible_stop() const {
    auto begin = held_.size();
    for (const auto& stop : *stops_) {
      for (auto size = std::min(stop.size() - 1, held_.size()); size > held_.size() - begin; --size) {
        if (held_.ends_with(std::string_view(stop).substr(0, size))) {
          begin = held_.size() - size;
        }
      }
    }
    return begin;
  }

  /// Where a character of UTF-8 begins whose bytes are not all there.
  [[nodiscard]] std::size_t end_of_characters() const {
    for (auto back = std::size_t{1}; back <= std::min<std::size_t>(3, held_.size()); ++back) {
      const auto byte = static_cast<unsigned char>(held_[held_.size() - back]);
      if (byte >= 0xc0) {
        const auto size = std::size_t{byte >= 0xf0 ? 4u : byte >= 0xe0 ? 3u : 2u};
        return size > back ? held_.size() - back : held_.size();
      }
      if (byte < 0x80) {
        break;
      }
    }
    return held_.size();
  }

  const std::vector<std::string>* stops_;
  std::string held_;
  bool is_stopped_ = false;
};

}  // namespace llama
