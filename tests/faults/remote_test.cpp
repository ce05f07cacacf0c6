#include "../tier/remote_values.hpp"
#include "../tier/store_process.hpp"
#include "injection.hpp"

#include <pagedkv/detail/memory.hpp>
#include <pagedkv/tier/redis_client.hpp>
#include <pagedkv/tier/remote_tier.hpp>

#include <chrono>
#include <cstddef>
#include <optional>
#include <thread>

using namespace pagedkv;
using namespace pagedkv::test;
using namespace std::chrono_literals;

namespace {

/// Whether a batch succeeds soon.
template <class Batch>
[[nodiscard]] bool succeeds(const Batch& batch, std::size_t size) {
  for (auto left = 500; left > 0; --left) {
    if (batch() == size) {
      return true;
    }
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

/// A client and values to set and get.
struct remote_world {
  [[nodiscard]] bool works() {
    return succeeds([&] { return values.set(*client); }, values.size()) &&
           succeeds([&] { return values.get(*client); }, values.size()) && values.are_right();
  }

  fault_plan plan;
  testing::remote_values values{4, 100};
  std::optional<redis_client> client;
};

}  // namespace

// Allocations of the client's own thread fail, too.
TEST_CASE("a client of a store connects again after each fault", "[faults]") {
  testing::skip_without_store();
  auto store = testing::store_process{};
  auto config = redis_config{.endpoints = {{"127.0.0.1", store.port()}}};
  config.longest_pause = 20ms;
  auto num_faults = 0;
  SECTION("when it is made") {
    for (auto happened = true; happened; num_faults += happened ? 1 : 0) {
      CAPTURE(num_faults);
      auto w = remote_world{};
      w.plan.arm(fault_site::operator_new, num_faults + 1);
      const auto connect = [&] { return w.client.emplace(config), true; };
      const auto made = detail::with_memory(connect, false);
      happened = w.plan.disarm();
      CHECK((made || happened));
      CHECK((!made || w.works()));
    }
    CHECK(num_faults > 10);
  }
  SECTION("in the first batch, when the store came later") {
    for (auto happened = true; happened; num_faults += happened ? 1 : 0) {
      CAPTURE(num_faults);
      auto w = remote_world{};
      store.kill();
      w.client.emplace(config);
      store.start();
      std::this_thread::sleep_for(100ms);  // in which the client's thread connects
      w.plan.arm(fault_site::operator_new, num_faults + 1);
      w.values.set(*w.client);
      happened = w.plan.disarm();
      CHECK(w.works());
    }
    CHECK(num_faults > 1);
  }
}
