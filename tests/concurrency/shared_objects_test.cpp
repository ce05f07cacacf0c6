#include "../support/full_numbers.hpp"
#include "objects/object.hpp"

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <dlfcn.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace pagedkv;
using namespace pagedkv::testing;

/// A shared object, loaded without sharing symbols with others.
class loaded_object {
 public:
  explicit loaded_object(const std::string& name)
      : handle_(dlopen((std::string{PAGEDKV_OBJECTS} + "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL)) {
    INFO((handle_ == nullptr ? dlerror() : ""));
    REQUIRE(handle_ != nullptr);
    entry_ = static_cast<const object_entry*>(dlsym(handle_, "entry"));
    REQUIRE(entry_ != nullptr);
  }

  [[nodiscard]] const object_entry& entry() const { return *entry_; }

 private:
  void* handle_;  // stays loaded: threads may end later
  const object_entry* entry_ = nullptr;
};

struct two_objects {
  loaded_object first{"first_object.so"};
  loaded_object second{"second_object.so"};
};

TEST_CASE("two objects that hide their symbols number the threads of one component apart", "[thread_index][objects]") {
  const auto objects = two_objects{};
  REQUIRE(&objects.first.entry() != &objects.second.entry());
  const auto index = objects.first.entry().make_index();
  auto number_by_first = std::uint32_t{};
  auto number_by_second = std::uint32_t{};
  auto claimed = std::atomic<int>{0};
  auto num_stable = std::atomic<int>{0};  // Catch2's assertions are for one thread
  const auto claim = [&](const loaded_object& by, std::uint32_t& number) {
    number = by.entry().current(index);
    ++claimed;
    while (claimed < 2) {
      std::this_thread::yield();
    }
    num_stable += objects.first.entry().current(index) == number;
    num_stable += objects.second.entry().current(index) == number;
  };
  auto one = std::thread{[&] { claim(objects.first, number_by_first); }};
  auto other = std::thread{[&] { claim(objects.second, number_by_second); }};
  one.join();
  other.join();
  CHECK(num_stable == 4);
  CHECK(number_by_first != number_by_second);
}

TEST_CASE("two objects that hide their symbols share a lock-free cache", "[objects][stress][random]") {
  const auto objects = two_objects{};
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  const auto& maker = objects.first.entry();
  const auto num_rounds = scaled(under_thread_sanitizer ? 2'000 : 20'000, 20'000);
  for (auto round = 0U; round < 10; ++round) {
    const auto cache = std::unique_ptr<shared_cache, void (*)(shared_cache*)>{maker.make_cache(), maker.destroy_cache};
    auto num_wrong = std::atomic<int>{0};
    auto threads = std::vector<std::thread>{};
    for (auto i = 0U; i < 4; ++i) {
      const auto& entry = i % 2 == 0 ? objects.first.entry() : objects.second.entry();
      threads.emplace_back([&, i] { num_wrong += entry.use_cache(*cache, seed + 4 * round + i, num_rounds); });
    }
    for (auto& thread : threads) {
      thread.join();
    }
    REQUIRE(num_wrong == 0);
    REQUIRE(objects.first.entry().is_sound(*cache));
    REQUIRE(objects.second.entry().is_sound(*cache));
  }
}

}  // namespace
