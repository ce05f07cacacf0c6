#include "conformance.hpp"
#include "temporary_folder.hpp"

#include <pagedkv/tier/file_tier.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace pagedkv;
using testing::conformance_batch;
using testing::known_records;
using testing::no_hurry;
using testing::numbers_from;
using testing::record_memory;
using testing::temporary_folder;

namespace {

std::int64_t bytes_of_places(const record_format& format, std::int64_t places) {
  return static_cast<std::int64_t>(format.header_bytes()) + places * static_cast<std::int64_t>(format.record_bytes());
}

/// Executes requests when asked for completions, in a random order, with faults that a test scripts.
class scripted_files {
 public:
  /// The outcome of a request instead of its execution; none executes it. `hang` never completes it by itself.
  static constexpr auto hang = std::int64_t{1} << 40;
  static inline std::function<std::optional<std::int64_t>(const file_request&)> script;
  static inline std::vector<file_request> hanging;
  static inline scripted_files* last = nullptr;

  static result<std::unique_ptr<scripted_files>> create(std::int32_t) noexcept {
    auto engine = std::make_unique<scripted_files>();
    last = engine.get();
    script = nullptr;
    hanging.clear();
    return engine;
  }
  static std::string_view name() noexcept { return "scripted"; }
  void start(const file_request& request) noexcept { waiting_.push_back(request); }
  void cancel(std::size_t) noexcept { ++num_cancelled; }

  std::optional<file_completion> next(file_deadline) noexcept {
    while (!waiting_.empty()) {
      std::swap(waiting_[random_() % waiting_.size()], waiting_.back());
      const auto request = waiting_.back();
      waiting_.pop_back();
      const auto outcome = script ? script(request) : std::nullopt;
      if (outcome == hang) {
        hanging.push_back(request);
      } else {
        return file_completion{request.slot, outcome.value_or(execute(request))};
      }
    }
    return std::nullopt;
  }

  /// The kernel comes back: requests that hung are executed after all.
  void end_hanging() {
    script = nullptr;
    waiting_.insert(waiting_.end(), hanging.begin(), hanging.end());
    hanging.clear();
  }

  static std::int64_t execute(const file_request& request, std::size_t at_most = ~std::size_t{0}) {
    const auto bytes = request.bytes.first(std::min(at_most, request.bytes.size()));
    const auto size = request.is_write ? pwrite(request.descriptor, bytes.data(), bytes.size(), request.offset)
                                       : pread(request.descriptor, bytes.data(), bytes.size(), request.offset);
    return size < 0 ? -errno : size;
  }

  int num_cancelled = 0;

 private:
  std::vector<file_request> waiting_;
  std::mt19937 random_{Catch::getSeed()};
};

using scripted_tier = basic_file_tier<scripted_files>;

struct scripted {
  temporary_folder folder;
  known_records records{testing::small_record_format()};
  scripted_tier tier = scripted_tier::create({folder.file("a")}, bytes_of_places(records.format(), 402),
                                             records.format(), {.queue_depth = 4, .timeout = no_hurry})
                           .value();
};

}  // namespace

TEST_CASE("the scripted engine conforms", "[tier]") {
  auto test = scripted{};
  auto number = 0;
  testing::check_conformance(test.records, [&] {
    return scripted_tier::create({test.folder.file(std::to_string(number++))},
                                 bytes_of_places(test.records.format(), 400), test.records.format(),
                                 {.queue_depth = 7, .timeout = no_hurry})
        .value();
  });
}

TEST_CASE("interrupted and short transfers go on", "[tier][random]") {
  auto test = scripted{};
  auto random = std::mt19937{Catch::getSeed()};
  scripted_files::script = [&](const file_request& request) -> std::optional<std::int64_t> {
    switch (random() % 4) {
      case 0: return -EINTR;
      case 1: return -EAGAIN;
      case 2: return scripted_files::execute(request, record_alignment);
      default: return std::nullopt;
    }
  };
  auto batch = conformance_batch{test.records, numbers_from(0, 50)};
  batch.write(test.tier);
  CHECK(batch.num_done() == 50);
  batch.read(test.tier);
  CHECK(batch.num_served() == 50);
}

TEST_CASE("an error fails its transfer alone", "[tier][random]") {
  auto test = scripted{};
  auto batch = conformance_batch{test.records, numbers_from(0, 50)};
  batch.write(test.tier);
  const auto fail_sixth = [&](std::int64_t outcome) {
    const auto size = static_cast<std::int64_t>(test.records.format().record_bytes());
    const auto begin = static_cast<std::int64_t>(test.records.format().header_bytes()) + 5 * size;
    scripted_files::script = [=](const file_request& request) -> std::optional<std::int64_t> {
      const auto is_hit = request.offset >= begin && request.offset < begin + size;
      return is_hit ? std::optional{outcome} : std::nullopt;
    };
  };
  for (const auto outcome : {-EIO, -ENOSPC, -EINVAL}) {
    fail_sixth(outcome);
    batch.write(test.tier);
    CHECK(batch.num_done() == 49);
    CHECK(batch.outcomes()[5] == transfer_outcome::failed);
    batch.read(test.tier);
    CHECK(batch.num_served() == 49);
    CHECK(batch.outcomes()[5] == transfer_outcome::failed);
    CHECK(test.tier.for_each_record([](auto, const auto&) {}) == 1);
  }
  fail_sixth(0);
  batch.write(test.tier);
  CHECK(batch.outcomes()[5] == transfer_outcome::failed);
  batch.read(test.tier);
  CHECK(batch.outcomes()[5] == transfer_outcome::missing);
}

TEST_CASE("endless interruptions end with the time of a batch", "[tier][random]") {
  auto folder = temporary_folder{};
  const auto records = known_records{testing::small_record_format()};
  auto tier = scripted_tier::create({folder.file("a")}, bytes_of_places(records.format(), 10), records.format(),
                                    {.timeout = std::chrono::milliseconds{1}})
                  .value();
  scripted_files::script = [](const file_request&) { return -EINTR; };
  auto batch = conformance_batch{records, numbers_from(0, 10)};
  batch.write(tier);
  CHECK(batch.num_done() == 0);
  scripted_files::last->end_hanging();
}

TEST_CASE("a request that outlives its batch touches nothing of the caller's", "[tier][random]") {
  auto test = scripted{};
  auto& engine = *scripted_files::last;
  auto batch = conformance_batch{test.records, numbers_from(0, 10)};
  batch.write(test.tier);

  auto num_hanging = 2;
  scripted_files::script = [&](const file_request&) -> std::optional<std::int64_t> {
    return num_hanging-- > 0 ? std::optional{scripted_files::hang} : std::nullopt;
  };
  batch.read(test.tier);
  CHECK(batch.num_done() == 8);
  CHECK(std::ranges::count(batch.outcomes(), transfer_outcome::failed) == 2);
  CHECK(engine.num_cancelled == 2);
  CHECK(test.tier.num_lingering() == 2);

  // With the slots that are left, the tier goes on.
  auto others = conformance_batch{test.records, numbers_from(100, 10)};
  others.write(test.tier);
  others.read(test.tier);
  CHECK(others.num_served() == 10);

  engine.end_hanging();
  for (auto& transfer : batch.transfers()) {
    std::ranges::fill(transfer.bytes, std::byte{0x55});
  }
  others.read(test.tier);
  CHECK(test.tier.num_lingering() == 0);
  for (const auto& transfer : batch.transfers()) {
    CHECK(std::ranges::all_of(transfer.bytes, [](std::byte byte) { return byte == std::byte{0x55}; }));
  }
  batch.read(test.tier);
  CHECK(batch.num_served() == 10);
}

TEST_CASE("a place whose write outlives its batch takes no other until it has ended", "[tier][random]") {
  auto test = scripted{};
  auto& engine = *scripted_files::last;
  scripted_files::script = [](const file_request&) { return scripted_files::hang; };
  auto batch = conformance_batch{test.records, {5}};
  batch.write(test.tier);
  CHECK(batch.num_done() == 0);
  scripted_files::script = nullptr;

  auto others = conformance_batch{test.records, {200, 201}};
  others.transfers().front().place = 5;
  others.write(test.tier);
  CHECK(others.outcomes()[0] == transfer_outcome::failed);
  CHECK(others.outcomes()[1] == transfer_outcome::done);

  engine.end_hanging();
  others.write(test.tier);
  CHECK(others.num_done() == 2);
  others.read(test.tier);
  CHECK(others.num_served() == 2);
}

TEST_CASE("a disk that hangs altogether fails batches at once", "[tier][random]") {
  auto test = scripted{};
  auto& engine = *scripted_files::last;
  scripted_files::script = [](const file_request&) { return scripted_files::hang; };
  auto batch = conformance_batch{test.records, numbers_from(0, 10)};
  for (int i = 0; i < 3; ++i) {
    batch.write(test.tier);
    CHECK(batch.num_done() == 0);
    CHECK(test.tier.num_lingering() == 4);
  }
  CHECK(engine.num_cancelled == 4);
  CHECK(test.tier.for_each_record([](auto, const auto&) {}) == test.tier.num_places());
  engine.end_hanging();
  batch.write(test.tier);
  batch.read(test.tier);
  CHECK(batch.num_served() == 10);
}

TEST_CASE("a record that is torn on disk is never served wrong", "[tier][damage][random]") {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  const auto folder = temporary_folder{};
  const auto records = known_records{testing::small_record_format()};
  const auto& format = records.format();
  constexpr auto num_places = std::size_t{400};
  auto tier =
      file_tier::create({folder.file("a")}, bytes_of_places(format, num_places), format, {.timeout = no_hurry}).value();
  auto image = record_memory{format, num_places};
  auto newer = record_memory{format, 1};

  // Of each tear, the first bytes are of a newer record, or a stretch of bytes is.
  const auto header = format.header_bytes();
  auto num_torn = std::size_t{0};
  const auto num_tears = std::size_t{10'000};
  while (num_torn < num_tears + header) {
    auto numbers = std::vector<std::array<std::uint32_t, 2>>(num_places);
    auto transfers = std::vector<record_transfer>(num_places);
    for (std::size_t i = 0; i < num_places; ++i, ++num_torn) {
      numbers[i] = {static_cast<std::uint32_t>(random() % 1'000), static_cast<std::uint32_t>(1'000 + random() % 1'000)};
      records.seal(numbers[i][0], image[i]);
      records.seal(numbers[i][1], newer[0]);
      auto at = std::uniform_int_distribution<std::size_t>{0, format.record_bytes()};
      const auto begin = num_torn < header || num_torn % 2 == 0 ? 0 : at(random);
      const auto end = num_torn < header ? num_torn : at(random);
      std::ranges::copy(newer[0].subspan(begin, end < begin ? 0 : end - begin), image[i].subspan(begin).begin());
      transfers[i] = {{}, static_cast<std::int64_t>(i), image[i]};
    }
    auto outcomes = std::vector<transfer_outcome>(num_places);
    tier.write(transfers, outcomes);
    REQUIRE(std::ranges::count(outcomes, transfer_outcome::done) == num_places);
    image.clear();
    tier.read(transfers, outcomes);
    REQUIRE(std::ranges::count(outcomes, transfer_outcome::done) == num_places);
    auto num_served = std::size_t{0};
    for (std::size_t i = 0; i < num_places; ++i) {
      for (const auto number : numbers[i]) {
        if (records.verify(number, image[i])) {
          REQUIRE(records.has_payload(number, image[i]));
          ++num_served;
        }
      }
    }
    CHECK(num_served < num_places);
    CHECK(tier.for_each_record([&](std::int64_t place, const record_identity& identity) {
      const auto& both = numbers[static_cast<std::size_t>(place)];
      REQUIRE(std::ranges::find(both, known_records::number_of(identity)) != both.end());
    }) == 0);
  }
}

namespace {

/// Writes known records at random places, and tells a pipe of each before it is written and after, until killed.
class killed_writer {
 public:
  struct note {
    std::int64_t place = 0;
    std::uint32_t number = 0;
    std::uint32_t is_done = 0;
  };

  static constexpr auto num_places = std::int64_t{100};
  static constexpr auto most_in_batch = std::size_t{16};

  template <class Tier>
  [[noreturn]] static void write_forever(Tier tier, const known_records& records, int notes, unsigned seed) {
    auto random = std::mt19937{seed};
    auto memory = record_memory{records.format(), most_in_batch};
    while (true) {
      auto places = std::set<std::int64_t>{};
      const auto size = 1 + random() % most_in_batch;
      while (places.size() < size) {
        places.insert(static_cast<std::int64_t>(random() % num_places));
      }
      auto batch = std::vector<record_transfer>{};
      auto said = std::vector<note>{};
      for (const auto place : places) {
        const auto number = static_cast<std::uint32_t>(random() % 100'000);
        const auto bytes = memory[batch.size()];
        records.seal(number, bytes);
        batch.push_back({records.key(number), place, bytes});
        said.push_back({place, number, 0});
      }
      tell(notes, said);
      auto outcomes = std::vector<transfer_outcome>(size);
      tier.write(batch, outcomes);
      for (std::size_t i = 0; i < size; ++i) {
        said[i].is_done = outcomes[i] == transfer_outcome::done ? 1 : 0;
      }
      tell(notes, said);
    }
  }

 private:
  static void tell(int notes, const std::vector<note>& said) {
    const auto bytes = std::as_bytes(std::span{said});
    if (write(notes, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
      _exit(1);
    }
  }
};

/// Kills a writer that has noted so many writes; returns its notes.
template <class Tier>
std::vector<killed_writer::note> run_and_kill(const std::function<Tier()>& open, const known_records& records,
                                              std::size_t num_notes, unsigned seed) {
  auto ends = std::array<int, 2>{};
  REQUIRE(pipe(ends.data()) == 0);
  const auto child = fork();
  if (child == 0) {
    close(ends[0]);
    killed_writer::write_forever(open(), records, ends[1], seed);
  }
  close(ends[1]);
  auto notes = std::vector<killed_writer::note>{};
  auto is_killed = false;
  auto note = killed_writer::note{};
  // A note fits into a pipe as a whole, and all of them have one size.
  while (read(ends[0], &note, sizeof(note)) == sizeof(note)) {
    notes.push_back(note);
    if (notes.size() >= num_notes && !is_killed) {
      kill(child, SIGKILL);
      is_killed = true;
    }
  }
  close(ends[0]);
  auto status = 0;
  waitpid(child, &status, 0);
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  return notes;
}

}  // namespace

TEMPLATE_TEST_CASE("a process killed while it writes loses only what was not yet written", "[tier][damage][random]",
                   uring_files, thread_files) {
  using tier_type = basic_file_tier<TestType>;
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  const auto folder = temporary_folder{};
  const auto records = known_records{testing::small_record_format()};
  const auto open = std::function{[&] {
    return tier_type::create({folder.file("a")}, bytes_of_places(records.format(), killed_writer::num_places),
                             records.format(), {.timeout = no_hurry})
        .value();
  }};

  // Of each place: the record that must be there; none when a write was begun and not acknowledged.
  auto expected = std::map<std::int64_t, std::optional<std::uint32_t>>{};
  auto num_served = std::size_t{0};
  for (int round = 0; round < 100; ++round) {
    const auto num_notes = 1 + random() % 200;
    for (const auto& note : run_and_kill<tier_type>(open, records, num_notes, static_cast<unsigned>(random()))) {
      expected[note.place] = note.is_done != 0 ? std::optional{note.number} : std::nullopt;
    }
    auto tier = open();
    auto found = std::map<std::int64_t, std::uint32_t>{};
    REQUIRE(tier.for_each_record([&](std::int64_t place, const record_identity& identity) {
      found[place] = known_records::number_of(identity);
    }) == 0);
    for (const auto& [place, number] : expected) {
      const auto at = found.find(place);
      if (number) {
        REQUIRE(at != found.end());
        REQUIRE(at->second == *number);
      }
    }
    for (const auto& [place, number] : found) {
      auto batch = conformance_batch{records, {number}};
      batch.transfers().front().place = place;
      batch.read(tier);
      const auto served = batch.num_served();  // which checks that no wrong byte is
      num_served += served;
      if (const auto at = expected.find(place); at != expected.end() && at->second) {
        REQUIRE(served == 1);
      }
    }
  }
  CHECK(num_served > 1'000);
}
