#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <string>

namespace pagedkv::testing {

/// Whether an assertion ends the process; tried in a copy of it.
template <class Body>
[[nodiscard]] bool asserts(Body&& body) {
  const auto child = fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    close(STDERR_FILENO);
    body();
    _exit(0);
  }
  auto status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

/// The words that a body prints as an error, in a copy of the process, until an assertion ends it. Empty if none does.
template <class Body>
[[nodiscard]] std::string words_of_assertion(Body&& body) {
  int ends[2];
  if (pipe(ends) != 0) {
    return {};
  }
  const auto child = fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    dup2(ends[1], STDERR_FILENO);
    body();
    _exit(0);
  }
  close(ends[1]);
  auto words = std::string{};
  char part[256];
  for (auto length = read(ends[0], part, sizeof(part)); length > 0; length = read(ends[0], part, sizeof(part))) {
    words.append(part, static_cast<std::size_t>(length));
  }
  close(ends[0]);
  auto status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT ? words : std::string{};
}

}  // namespace pagedkv::testing
