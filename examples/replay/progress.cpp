#include "progress.hpp"

#include <fmt/core.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace pagedkv::replay {

progress::progress(std::size_t total) : total_(total), shown_(isatty(STDERR_FILENO) != 0) {}

progress::~progress() {
  if (shown_) {
    fmt::print(stderr, "\r\033[K");  // the report replaces the bar
  }
}

void progress::advance() {
  const auto done = done_.fetch_add(1, std::memory_order_relaxed) + 1;
  const auto percent = done * 100 / total_;
  if (shown_ && percent != (done - 1) * 100 / total_) {
    show(percent);
  }
}

void progress::show(std::size_t percent) {
  constexpr auto width = std::size_t{50};
  const auto lock = std::lock_guard{mutex_};
  if (percent > shown_percent_) {  // another thread may already have shown more
    shown_percent_ = percent;
    fmt::print(stderr, "\r[{:<{}}] {:3} %", fmt::format("{:#<{}}", "", percent * width / 100), width, percent);
  }
}

}  // namespace pagedkv::replay
