#include "../support/asserts.hpp"
#include "../support/full_numbers.hpp"
#include "../support/messages.hpp"
#include "conformance.hpp"
#include "damage.hpp"
#include "temporary_folder.hpp"

#include <pagedkv/tier/file_tier.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

using namespace pagedkv;
using testing::conformance_batch;
using testing::known_records;
using testing::no_hurry;
using testing::numbers_from;
using testing::temporary_folder;

namespace {

constexpr auto soon = std::chrono::milliseconds{1};

std::int64_t bytes_for(const record_format& format, std::int64_t places, std::int64_t files = 1) {
  const auto record = static_cast<std::int64_t>(format.record_bytes());
  return places * record + files * static_cast<std::int64_t>(format.header_bytes());
}

/// Whether `body` returns true in a process of its own, whose limits and rights it may change.
template <class Body>
bool in_own_process(const Body& body) {
  const auto child = fork();
  if (child == 0) {
    try {
      _exit(body() ? 0 : 1);
    } catch (...) {
      _exit(1);
    }
  }
  auto status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// Number of the record in each place, as the tier tells them.
template <class Tier>
std::map<std::int64_t, std::uint32_t> numbers_in(Tier& tier) {
  auto found = std::map<std::int64_t, std::uint32_t>{};
  auto last = std::int64_t{-1};
  CHECK(tier.for_each_record([&](std::int64_t place, const record_identity& identity) {
    CHECK(place > last);
    last = place;
    found[place] = known_records::number_of(identity);
  }) == 0);
  return found;
}

std::string contents_of(const std::string& path) {
  auto stream = std::ifstream{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{stream}, {}};
}

}  // namespace

TEMPLATE_TEST_CASE("files conform", "[tier][random]", uring_files, thread_files, automatic_files) {
  using tier_type = basic_file_tier<TestType>;
  static_assert(persistent_tier<tier_type>);
  const auto folder = temporary_folder{};
  const auto records = known_records{testing::small_record_format()};
  const auto make = [&](std::vector<std::string> files, std::int32_t depth) {
    return [&records, files, depth, bytes = bytes_for(records.format(), 402, std::ssize(files))] {
      for (const auto& file : files) {
        std::filesystem::remove(file);
      }
      return tier_type::create(files, bytes, records.format(), {depth, no_hurry}).value();
    };
  };
  SECTION("one") { testing::check_conformance(records, make({folder.file("a")}, 32)); }
  SECTION("three, of a shallow queue") {
    testing::check_conformance(records, make({folder.file("a"), folder.file("b"), folder.file("c")}, 3));
  }
}

TEMPLATE_TEST_CASE("records are longer than requests", "[tier]", uring_files, thread_files) {
  const auto folder = temporary_folder{};
  const auto records = known_records{testing::small_record_format((1 << 20) + 12'345)};
  auto tier = basic_file_tier<TestType>::create({folder.file("a")}, bytes_for(records.format(), 9), records.format(),
                                                {.queue_depth = 4, .timeout = no_hurry})
                  .value();
  auto batch = conformance_batch{records, numbers_from(0, 9)};
  batch.write(tier);
  batch.read(tier);
  CHECK(batch.num_served() == 9);
}

TEMPLATE_TEST_CASE("the longest timeout of files is no limit", "[tier]", uring_files, thread_files) {
  const auto folder = temporary_folder{};
  const auto records = known_records{testing::small_record_format()};
  const auto options = file_tier_options{.queue_depth = 2, .timeout = std::chrono::nanoseconds::max()};
  auto tier =
      basic_file_tier<TestType>::create({folder.file("a")}, bytes_for(records.format(), 50), records.format(), options)
          .value();
  auto some = conformance_batch{records, numbers_from(0, 50)};
  some.write(tier);
  CHECK(std::ranges::count(some.outcomes(), transfer_outcome::done) == 50);
  some.read(tier);
  CHECK(std::ranges::count(some.outcomes(), transfer_outcome::done) == 50);
}

TEST_CASE("io_uring executes a request before anybody waits for it", "[tier]") {
  const auto engine = uring_files::create(1).value();
  auto ends = std::array<int, 2>{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  auto sent = std::array<std::byte, 8>{};
  engine->start({.slot = 0, .descriptor = ends[1], .bytes = sent, .is_write = true});
  auto polled = pollfd{ends[0], POLLIN, 0};
  CHECK(::poll(&polled, 1, 60'000) == 1);
  const auto completed = engine->next(std::chrono::steady_clock::now() + no_hurry);
  REQUIRE(completed);
  CHECK(completed->outcome == std::ssize(sent));
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("a tier says how it works", "[tier]") {
  const auto folder = temporary_folder{};
  const auto format = testing::small_record_format();
  const auto bytes = bytes_for(format, 5) + 100;
  const auto tier = basic_file_tier<thread_files>::create({folder.file("a")}, bytes, format).value();
  CHECK(tier.name == "file_tier");
  CHECK(tier.engine() == "threads");
  CHECK(tier.num_places() == 5);
  const auto flags = O_RDWR | O_CREAT | O_DIRECT;
  const auto direct = open(folder.file("probe").c_str(), flags, 0600);
  CHECK(tier.direct() == (direct >= 0));
  close(direct);
  CHECK((std::filesystem::status(folder.file("a")).permissions() & std::filesystem::perms::all) ==
        (std::filesystem::perms::owner_read | std::filesystem::perms::owner_write));
}

TEST_CASE("files opened again have their records, in any order and of another size", "[tier]") {
  const auto folder = temporary_folder{};
  const auto records = known_records{testing::small_record_format()};
  const auto a = folder.file("a");
  const auto b = folder.file("b");
  const auto open = [&](std::vector<std::string> paths, std::int64_t places) {
    return file_tier::create(paths, bytes_for(records.format(), places, 2), records.format(), {.timeout = no_hurry})
        .value();
  };
  {
    auto tier = open({a, b}, 600);
    CHECK(numbers_in(tier).empty());
    auto batch = conformance_batch{records, numbers_from(10, 300)};
    batch.write(tier);
    auto again = conformance_batch{records, {20}};
    again.transfers().front().place = 599;
    again.write(tier);
    CHECK(numbers_in(tier).size() == 301);
    CHECK(numbers_in(tier)[599] == 20);
  }
  const auto served = [&](auto& tier) {
    auto found = numbers_in(tier);
    for (const auto& [place, number] : found) {
      auto batch = conformance_batch{records, {number}};
      batch.transfers().front().place = place;
      batch.read(tier);
      CHECK(batch.num_served() == 1);
    }
    return found.size();
  };
  {
    auto tier = open({b, a}, 600);
    CHECK(served(tier) == 301);
  }
  {
    auto tier = open({a, b}, 700);
    CHECK(tier.num_places() == 700);
    CHECK(served(tier) == 301);
  }
  auto tier = open({a, b}, 100);
  CHECK(served(tier) == 90);
}

TEST_CASE("files of something else are refused and stay as they are", "[tier][damage]") {
  const auto folder = temporary_folder{};
  const auto format = testing::small_record_format();
  const auto path = folder.file("a");
  const auto refusal = [&](const record_format& wanted) {
    const auto before = contents_of(path);
    const auto made = file_tier::create({path}, bytes_for(wanted, 10), wanted);
    CHECK(contents_of(path) == before);
    return test::said(made);
  };
  const auto about = [&](const std::string& what, const std::string& words = {}) {
    return test::invalid(what + " is " + std::to_string(std::filesystem::file_size(path)) + " (" + words + path + ")");
  };
  SECTION("a file of a user") {
    for (const auto* const text : {"x", "precious", "pagedkv and more of a text that is much longer than its header"}) {
      std::ofstream{path} << text;
      CHECK(refusal(format) == about("size of a file that holds something else than records,"));
    }
  }
  SECTION("records of another format") {
    CHECK(file_tier::create({path}, bytes_for(format, 10), format).has_value());
    CHECK(refusal(testing::small_record_format(60'000)) == about("size of a file with records of another format,"));
    auto other = format;
    other.text = "pagedkv record 3, of a test";
    CHECK(refusal(other) == about("size of a file with records of another format,", "has records, not pagedkv: "));
    CHECK(file_tier::create({path}, bytes_for(format, 10), format).has_value());
  }
  SECTION("a file whose header is damaged anywhere, or cut") {
    CHECK(file_tier::create({path}, bytes_for(format, 1), format).has_value());
    const auto refuses = [&](std::span<const std::byte> damaged) {
      testing::put_bytes(path, damaged);
      const auto made = file_tier::create({path}, bytes_for(format, 1), format, {.queue_depth = 1});
      return made.has_error() && made.error().code == error_code::invalid_argument &&
             std::filesystem::file_size(path) == damaged.size();
    };
    const auto whole = contents_of(path).substr(0, format.header_bytes());
    const auto header = std::as_bytes(std::span{whole});
    testing::damage_everywhere({header.begin(), header.end()}, refuses, 1);  // an empty file is new
    CHECK(!refuses(header));
  }
  SECTION("an empty file is made a tier's") {
    std::ofstream{path};
    CHECK(file_tier::create({path}, bytes_for(format, 10), format).has_value());
  }
}

TEST_CASE("files that cannot be had are errors, and leave nothing behind", "[tier]") {
  const auto folder = temporary_folder{};
  const auto format = testing::small_record_format();
  const auto bytes = bytes_for(format, 10);
  const auto options = file_tier_options{.timeout = soon};
  const auto refusal = [&](const std::vector<std::string>& paths, std::int64_t size) {
    return file_tier::create(paths, size, format, options).error();
  };
  const auto least = bytes_for(format, 1);
  const auto too_few = [&](std::int64_t size) {
    return test::invalid("bytes of a tier's files is " + std::to_string(size) + ", limit " + std::to_string(least));
  };
  CHECK(refusal({}, bytes).message() == test::invalid("number of a tier's files is 0, limit 1"));
  CHECK(refusal({folder.file("a")}, least - 1).message() == too_few(least - 1));
  for (const auto negative : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    CHECK(refusal({folder.file("a")}, negative).message() == too_few(negative));
  }
  CHECK(refusal({folder.file("no/a")}, bytes).value == ENOENT);
  CHECK(refusal({folder.file("a"), folder.file("no/a")}, bytes).message() ==
        "backend failure: opening a file of a tier answered 2 (No such file or directory: " + folder.file("no/a") +
            ")");
  CHECK(refusal({folder.file("")}, bytes).value == EISDIR);
  CHECK(refusal({"/dev/null"}, bytes).message() ==
        test::invalid("type of a tier's file, which is not regular, is " + std::to_string(S_IFCHR) + " (/dev/null)"));
  CHECK_THAT(refusal({folder.file("a"), folder.file("a")}, 2 * bytes).message(),
             Catch::Matchers::StartsWith("in use: descriptor of a tier's file, which another tier has locked, is "));
  const auto depth = file_tier::create({folder.file("b")}, bytes, format, {.queue_depth = 0});
  CHECK(test::said(depth) == test::invalid("file_tier_options.queue_depth is 0, limit 1"));
  CHECK(!std::filesystem::exists(folder.file("b")));

  const auto tier = file_tier::create({folder.file("c")}, bytes, format).value();
  CHECK(refusal({folder.file("c")}, bytes).code == error_code::in_use);
}

TEST_CASE("files are made and changed all together, or not at all", "[tier]") {
  const auto folder = temporary_folder{};
  const auto format = testing::small_record_format();
  const auto paths = std::vector{folder.file("a"), folder.file("b")};
  SECTION("where the second one is refused") {
    std::ofstream{paths[1]} << "precious";
    CHECK(file_tier::create(paths, bytes_for(format, 20, 2), format).error().code == error_code::invalid_argument);
    CHECK(!std::filesystem::exists(paths[0]));
    CHECK(file_tier::create({paths[0]}, bytes_for(format, 20), format).has_value());
    const auto before = contents_of(paths[0]);
    CHECK(file_tier::create(paths, bytes_for(format, 20, 2), format).error().code == error_code::invalid_argument);
    CHECK(contents_of(paths[0]) == before);
    CHECK(contents_of(paths[1]) == "precious");
  }
  SECTION("where the disk of the second one is full") {
    CHECK(in_own_process([&] {
      const auto next = detail::file_descriptor{::open("/dev/null", O_RDONLY)}.number();
      const auto second = static_cast<std::uint32_t>(next + 1);
      auto program = std::to_array<sock_filter>({BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fallocate, 0, 3),
                                                 BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
                                                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, second, 0, 1),
                                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSPC),
                                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)});
      using tier = basic_file_tier<thread_files>;
      const auto is_refused = [&](std::int64_t num_places) {
        const auto made = tier::create(paths, bytes_for(format, num_places, 2), format);
        return made.has_error() && made.error().value == ENOSPC;
      };
      const auto large = tier::create({paths[1]}, bytes_for(format, 15), format).has_value();
      const auto filter = sock_fprog{static_cast<unsigned short>(program.size()), program.data()};
      if (!large || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
          prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
        return false;
      }
      // The first one is new, then it exists and would grow, then it exists and would be cut.
      auto is_right = is_refused(20) && !std::filesystem::exists(paths[0]);
      is_right &= tier::create({paths[0]}, bytes_for(format, 5), format).has_value();
      const auto before = contents_of(paths[0]);
      is_right &= is_refused(20) && contents_of(paths[0]) == before;
      is_right &= is_refused(4) && contents_of(paths[0]) == before;
      // A file that begins with zeros is taken for an empty one.
      for (const auto& end : {std::string{}, std::string(50'000, '\0') + "precious"}) {
        const auto zeros = std::string(100, '\0') + end;
        std::ofstream{paths[0], std::ios::binary} << zeros;
        is_right &= is_refused(20) && contents_of(paths[0]) == zeros;
      }
      return is_right && std::ssize(contents_of(paths[1])) == bytes_for(format, 15);
    }));
  }
}

TEST_CASE("a file that is removed while a tier waits for its lock is made anew", "[tier]") {
  const auto folder = temporary_folder{};
  const auto format = testing::small_record_format();
  const auto path = folder.file("a");
  const auto num_opened = [&] {
    return std::ranges::count_if(std::filesystem::directory_iterator{"/proc/self/fd"}, [&](const auto& each) {
      auto failed = std::error_code{};
      return std::filesystem::read_symlink(each.path(), failed) == path;
    });
  };
  auto holder = std::optional{detail::file_descriptor{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRWXU)}};
  REQUIRE(::flock(holder->number(), LOCK_EX) == 0);
  auto made = std::optional<result<file_tier>>{};
  {
    const auto waiting = std::jthread{
        [&] { made.emplace(file_tier::create({path}, bytes_for(format, 10), format, {.timeout = no_hurry})); }};
    while (num_opened() < 2) {
      std::this_thread::yield();
    }
    CHECK(std::filesystem::remove(path));
    holder.reset();
  }
  CHECK(made->has_value());
  CHECK(std::filesystem::exists(path));
  CHECK(file_tier::create({path}, bytes_for(format, 10), format, {.timeout = soon}).error().code == error_code::in_use);
}

TEST_CASE("a file without the right to it is refused", "[tier]") {
  const auto folder = temporary_folder{};
  const auto format = testing::small_record_format();
  const auto path = folder.file("a");
  std::ofstream{path};
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  constexpr auto nobody = 65'534;
  CHECK(in_own_process([&] {
    const auto is_other = geteuid() != 0 || seteuid(nobody) == 0;
    return is_other && file_tier::create({path}, bytes_for(format, 10), format).error().value == EACCES;
  }));
}

TEST_CASE("where io_uring is refused, it says so, and threads do its work", "[tier]") {
  CHECK(in_own_process([] {
    auto program = std::to_array<sock_filter>({BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                               BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
                                               BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                                               BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)});
    const auto filter = sock_fprog{static_cast<unsigned short>(program.size()), program.data()};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
      return false;
    }
    const auto folder = temporary_folder{};
    const auto format = testing::small_record_format();
    const auto bytes = bytes_for(format, 10);
    const auto refused = basic_file_tier<uring_files>::create({folder.file("a")}, bytes, format);
    const auto chosen = file_tier::create({folder.file("a")}, bytes, format);
    return refused.has_error() && refused.error().message().find("thread_files") != std::string::npos && chosen &&
           chosen->engine() == "threads";
  }));
}

TEST_CASE("a request that is cancelled before a thread executes it completes, too", "[tier]") {
  const auto folder = temporary_folder{};
  std::ofstream{folder.file("a")} << "contents";
  const auto file = detail::file_descriptor{open(folder.file("a").c_str(), O_RDONLY | O_CLOEXEC)};
  const auto engine = thread_files::create(1).value();
  auto bytes = std::array<std::byte, 8>{};
  const auto next = [&] { return engine->next(std::chrono::steady_clock::now() + std::chrono::minutes{1}); };
  for (std::size_t i = 0; i < 100; ++i) {
    engine->start({i, file.number(), 0, bytes});
    engine->cancel(i);
    const auto completion = next();
    REQUIRE(completion);
    CHECK(completion->slot == i);
    CHECK((completion->outcome == std::ssize(bytes) || completion->outcome == -ECANCELED));
    CHECK(!next());
  }
}

#if !PAGEDKV_UNDER_ADDRESS_SANITIZER && !PAGEDKV_UNDER_THREAD_SANITIZER  // which end a process without memory
TEST_CASE("without memory for headers, records are not looked for", "[tier]") {
  CHECK(in_own_process([] {
    const auto folder = temporary_folder{};
    auto format = testing::small_record_format();
    format.text.assign(5'000'000, 'a');
    const auto bytes = bytes_for(format, 1);
    auto tier = basic_file_tier<thread_files>::create({folder.file("a")}, bytes, format, {.queue_depth = 1}).value();
    auto limit = rlimit{};
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 1'000'000'000);
    if (setrlimit(RLIMIT_AS, &limit) != 0) {
      return false;
    }
    if (std::unique_ptr<void, decltype(&std::free)>{std::malloc(1'200'000'000), &std::free} != nullptr) {
      return true;  // an emulator that knows no limits
    }
    try {
      tier.for_each_record([](auto, const auto&) {});
      return false;
    } catch (const exception& refused) {
      return refused.reason().code == error_code::out_of_memory;
    }
  }));
}
#endif

TEMPLATE_TEST_CASE("a full disk fails writes and spares the rest", "[tier]", uring_files, thread_files) {
  CHECK(in_own_process([] {
    std::signal(SIGXFSZ, SIG_IGN);
    const auto folder = temporary_folder{};
    const auto records = known_records{testing::small_record_format()};
    const auto bytes = bytes_for(records.format(), 40);
    const auto allow = [](std::int64_t size) {
      const auto limit = rlimit{static_cast<rlim_t>(size), RLIM_INFINITY};
      return setrlimit(RLIMIT_FSIZE, &limit) == 0;
    };
    auto is_right = allow(bytes - 1);
    const auto refused = basic_file_tier<TestType>::create({folder.file("a")}, bytes, records.format());
    is_right &= refused.has_error() && refused.error().value == EFBIG && !std::filesystem::exists(folder.file("a"));
    is_right &= allow(bytes);
    const auto options = file_tier_options{.timeout = no_hurry};
    auto tier = basic_file_tier<TestType>::create({folder.file("a")}, bytes, records.format(), options).value();
    // The last place that fits, fits in part.
    is_right &= allow(bytes_for(records.format(), 29) + static_cast<std::int64_t>(record_alignment) + 100);
    auto batch = conformance_batch{records, numbers_from(0, 40)};
    batch.write(tier);
    is_right &= batch.num_done() == 29;
    batch.read(tier);
    is_right &= batch.num_served() == 29;
    is_right &= allow(bytes);
    batch.write(tier);
    batch.read(tier);
    return is_right && batch.num_served() == 40;
  }));
}

TEMPLATE_TEST_CASE("a file cut behind a tier's back loses what was cut", "[tier]", uring_files, thread_files) {
  const auto folder = temporary_folder{};
  const auto records = known_records{testing::small_record_format()};
  auto tier = basic_file_tier<TestType>::create({folder.file("a")}, bytes_for(records.format(), 40), records.format(),
                                                {.timeout = no_hurry})
                  .value();
  auto batch = conformance_batch{records, numbers_from(0, 40)};
  batch.write(tier);
  for (const auto left : {std::int64_t{4'096 + 1'000}, std::int64_t{1}, std::int64_t{0}}) {
    CAPTURE(left);
    std::filesystem::resize_file(folder.file("a"), static_cast<std::uintmax_t>(bytes_for(records.format(), 25) + left));
    batch.read(tier);
    CHECK(batch.num_served() == 25);
    CHECK(batch.outcomes()[24] == transfer_outcome::done);
    CHECK(batch.outcomes()[25] == transfer_outcome::missing);
    CHECK(batch.outcomes()[26] == transfer_outcome::missing);
  }
  batch.write(tier);
  batch.read(tier);
  CHECK(batch.num_served() == 40);
}

#if !defined(NDEBUG)
TEST_CASE("misuse of files is asserted", "[tier]") {
  const auto folder = temporary_folder{};
  const auto records = known_records{testing::small_record_format()};
  auto tier = basic_file_tier<thread_files>::create({folder.file("a")}, bytes_for(records.format(), 10),
                                                    records.format(), {.queue_depth = 1})
                  .value();
  auto batch = conformance_batch{records, {3}};
  auto outcomes = std::vector<transfer_outcome>(1);
  const auto write_changed = [&](auto change) {
    return testing::asserts([&] {
      change(batch.transfers().front());
      tier.write(batch.transfers(), outcomes);
    });
  };
  CHECK(write_changed([](record_transfer& transfer) { transfer.place = 10; }));
  CHECK(write_changed([](record_transfer& transfer) { transfer.place = -1; }));
  CHECK(write_changed([](record_transfer& transfer) { transfer.bytes = transfer.bytes.first(record_alignment); }));
  CHECK(testing::asserts([&] { tier.write(batch.transfers(), {}); }));
}
#endif
