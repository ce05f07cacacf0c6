#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

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

}  // namespace pagedkv::testing
