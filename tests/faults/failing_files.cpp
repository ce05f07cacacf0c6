#include "failing_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>

// The linker's option `--wrap` has the program call these functions in place of the system's.

extern "C" {
int real_open(const char* path, int flags, ...) __asm__("__real_open64");
int real_mkostemp(char* path, int flags) __asm__("__real_mkostemp64");
int real_fstat(int file, struct stat* about) __asm__("__real_fstat64");
int real_flock(int file, int operation) __asm__("__real_flock");
int real_fallocate(int file, int mode, off_t offset, off_t size) __asm__("__real_fallocate64");
int real_ftruncate(int file, off_t size) __asm__("__real_ftruncate64");
int real_fsync(int file) __asm__("__real_fsync");
int real_rename(const char* from, const char* to) __asm__("__real_rename");
ssize_t real_write(int file, const void* bytes, std::size_t size) __asm__("__real_write");
ssize_t real_pread(int file, void* bytes, std::size_t size, off_t offset) __asm__("__real_pread64");
ssize_t real_pwrite(int file, const void* bytes, std::size_t size, off_t offset) __asm__("__real_pwrite64");

int failing_open(const char* path, int flags, ...) __asm__("__wrap_open64");
int failing_mkostemp(char* path, int flags) __asm__("__wrap_mkostemp64");
int failing_fstat(int file, struct stat* about) __asm__("__wrap_fstat64");
int failing_flock(int file, int operation) __asm__("__wrap_flock");
int failing_fallocate(int file, int mode, off_t offset, off_t size) __asm__("__wrap_fallocate64");
int failing_ftruncate(int file, off_t size) __asm__("__wrap_ftruncate64");
int failing_fsync(int file) __asm__("__wrap_fsync");
int failing_rename(const char* from, const char* to) __asm__("__wrap_rename");
ssize_t failing_write(int file, const void* bytes, std::size_t size) __asm__("__wrap_write");
ssize_t failing_pread(int file, void* bytes, std::size_t size, off_t offset) __asm__("__wrap_pread64");
ssize_t failing_pwrite(int file, const void* bytes, std::size_t size, off_t offset) __asm__("__wrap_pwrite64");
}

namespace {

auto num_calls = std::atomic<long>{0};
auto failing_call = std::atomic<long>{0};

template <class Operation>
auto unless_it_fails(const Operation& operation) -> decltype(operation()) {
  if (num_calls.fetch_add(1) + 1 == failing_call.load()) {
    errno = EIO;
    return -1;
  }
  return operation();
}

}  // namespace

long pagedkv::test::file_operation_count() noexcept { return num_calls.load(); }

void pagedkv::test::fail_file_operation(long n) noexcept { failing_call.store(n == 0 ? 0 : num_calls.load() + n); }

int failing_open(const char* path, int flags, ...) {
  auto mode = mode_t{0};
  if ((flags & O_CREAT) != 0) {
    std::va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
  }
  return unless_it_fails([&] { return real_open(path, flags, mode); });
}
int failing_mkostemp(char* path, int flags) {
  return unless_it_fails([&] { return real_mkostemp(path, flags); });
}
int failing_fstat(int file, struct stat* about) {
  return unless_it_fails([&] { return real_fstat(file, about); });
}
int failing_flock(int file, int operation) {
  return unless_it_fails([&] { return real_flock(file, operation); });
}
int failing_fallocate(int file, int mode, off_t offset, off_t size) {
  return unless_it_fails([&] { return real_fallocate(file, mode, offset, size); });
}
int failing_ftruncate(int file, off_t size) {
  return unless_it_fails([&] { return real_ftruncate(file, size); });
}
int failing_fsync(int file) {
  return unless_it_fails([&] { return real_fsync(file); });
}
int failing_rename(const char* from, const char* to) {
  return unless_it_fails([&] { return real_rename(from, to); });
}
ssize_t failing_write(int file, const void* bytes, std::size_t size) {
  return unless_it_fails([&] { return real_write(file, bytes, size); });
}
ssize_t failing_pread(int file, void* bytes, std::size_t size, off_t offset) {
  return unless_it_fails([&] { return real_pread(file, bytes, size, offset); });
}
ssize_t failing_pwrite(int file, const void* bytes, std::size_t size, off_t offset) {
  return unless_it_fails([&] { return real_pwrite(file, bytes, size, offset); });
}
