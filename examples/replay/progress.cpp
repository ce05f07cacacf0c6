#include "progress.hpp"

#include <fmt/core.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace pagedkv::replay {

progress::progress(std::size_t total) : total_(total), shown_(isatty(STDERR_FILENO) != 0) {}

progress::~progress() {
  if (shown_) {
    fmt::print(stderr, "\r\033[K");  // the report takes the bar's place
  }
}

void progress::advance() {
  constexpr auto width = std::size_t{50};
  const auto done = done_.fetch_add(1, std::memory_order_relaxed) + 1;
  const auto percent = done * 100 / total_;
  if (shown_ && percent != (done - 1) * 100 / total_) {
    fmt::print(stderr, "\r[{:<{}}] {:3} %", fmt::format("{:#<{}}", "", done * width / total_), width, percent);
  }
}

}  // namespace pagedkv::replay
