#include "fake_store.hpp"
#include "remote_values.hpp"
#include "store_process.hpp"

#include <pagedkv/tier/redis_client.hpp>

#include <catch2/catch_test_macros.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::testing;

namespace {

using words = std::vector<std::string>;

/// Two nodes that have half of the slots each.
class small_cluster {
 public:
  small_cluster() {
    auto ports = std::vector<std::string>{};
    for (auto i = 0; i < 2; ++i) {
      ports.push_back(std::to_string(free_port()));
      nodes_.push_back(std::make_unique<store_process>(
          words{"--cluster-enabled", "yes", "--cluster-port", ports.back(), "--cluster-require-full-coverage", "no"}));
      nodes_.back()->call({"CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1)});
    }
    nodes_[0]->call({"CLUSTER", "ADDSLOTSRANGE", "0", "8191"});
    nodes_[1]->call({"CLUSTER", "ADDSLOTSRANGE", "8192", "16383"});
    nodes_[0]->call({"CLUSTER", "MEET", "127.0.0.1", std::to_string(nodes_[1]->port()), ports[1]});
    await_whole();
  }

  [[nodiscard]] store_process& operator[](std::size_t index) const { return *nodes_[index]; }
  [[nodiscard]] std::string id(std::size_t index) const { return nodes_[index]->call({"CLUSTER", "MYID"}); }
  [[nodiscard]] static std::size_t owner(const std::string& key) { return redis_slot(key) < 8'192 ? 0 : 1; }

  void await_whole() const {
    for (const auto& node : nodes_) {
      for (auto text = std::string{}; text.find("cluster_state:ok") == text.npos ||
                                      text.find("cluster_slots_ok:16384") == text.npos ||
                                      text.find("cluster_known_nodes:2") == text.npos;) {
        text = node->call({"CLUSTER", "INFO"});
        std::this_thread::yield();
      }
    }
  }

 private:
  std::vector<std::unique_ptr<store_process>> nodes_;
};

redis_config config_of(const std::string& url) { return parse_redis_url(url).value(); }

}  // namespace

TEST_CASE("a cluster keeps each value at the node that has its slot", "[redis]") {
  if (!store_program()) {
    SKIP("neither valkey-server nor redis-server is installed");
  }
  const auto cluster = small_cluster{};
  const auto nobody = std::to_string(free_port());
  auto client =
      redis_client{config_of("redis://127.0.0.1:" + nobody + ",127.0.0.1:" + std::to_string(cluster[1].port()))};
  CHECK(client.failure() == "");
  REQUIRE(client.num_connections() == 2);
  auto values = remote_values{300, 10'000};
  REQUIRE(values.set(client) == values.size());
  CHECK(values.get(client) == values.size());
  CHECK(values.are_right());
  const auto key = values.key(0);
  const auto from = small_cluster::owner(key);
  const auto to = 1 - from;
  const auto slot = std::to_string(redis_slot(key));
  CHECK(cluster[from].call({"EXISTS", key}) == "1");
  CHECK(cluster[to].call({"EXISTS", key}).starts_with("-MOVED"));

  SECTION("that it has moved to") {
    cluster[from].call({"DEL", key});
    REQUIRE(cluster[to].call({"CLUSTER", "SETSLOT", slot, "NODE", cluster.id(to)}) == "OK");
    REQUIRE(cluster[from].call({"CLUSTER", "SETSLOT", slot, "NODE", cluster.id(to)}) == "OK");
    CHECK(values.get(client) == values.size() - 1);
    CHECK(values.num(transfer_outcome::missing) == 1);
    CHECK(values.set(client) == values.size());
    CHECK(cluster[to].call({"EXISTS", key}) == "1");
    CHECK(values.get(client) == values.size());
    CHECK(values.are_right());
  }
  SECTION("while it is on its way to another") {
    REQUIRE(cluster[to].call({"CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id(from)}) == "OK");
    REQUIRE(cluster[from].call({"CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id(to)}) == "OK");
    CHECK(values.get(client) == values.size());
    cluster[from].call({"DEL", key});
    CHECK(values.get(client) == values.size() - 1);
    CHECK(values.num(transfer_outcome::missing) == 1);
    CHECK(values.set(client) == values.size());
    CHECK(values.get(client) == values.size());
    CHECK(values.are_right());
  }
  SECTION("and loses no more than one node's values when it ends") {
    auto num_kept = std::size_t{0};
    for (auto i = std::size_t{0}; i < values.size(); ++i) {
      num_kept += small_cluster::owner(values.key(i)) == 0 ? 1U : 0U;
    }
    cluster[1].kill();
    CHECK(values.get(client) == num_kept);
    CHECK(values.num(transfer_outcome::failed) == values.size() - num_kept);
    CHECK(values.are_right());
    CHECK(values.get(client) == num_kept);
    cluster[1].start();
    cluster.await_whole();
    repeat_until_done([&] { return values.set(client); }, values.size());
    CHECK(values.get(client) == values.size());
    CHECK(values.are_right());
  }
}

TEST_CASE("redirections that go round in a circle end", "[redis]") {
  auto ports = std::vector<std::uint16_t>(2);
  const auto answers = [&](std::size_t own) {
    return [&ports, own](const words& command) -> std::optional<std::string> {
      if (command[0] == "PING") {
        return "+PONG\r\n";
      }
      const auto node = [&](std::size_t i) { return "*2\r\n$9\r\n127.0.0.1\r\n:" + std::to_string(ports[i]) + "\r\n"; };
      if (command[0] == "CLUSTER") {
        return "*2\r\n*3\r\n:0\r\n:8191\r\n" + node(0) + "*3\r\n:8192\r\n:16383\r\n" + node(1);
      }
      if (command[0] == "ASKING") {
        return "+OK\r\n";
      }
      const auto* const kind = command[1] == "value 0" ? "ASK " : "MOVED ";
      return "-" + std::string{kind} + std::to_string(redis_slot(command[1])) + " :" + std::to_string(ports[1 - own]) +
             "\r\n";
    };
  };
  const auto first = fake_store{answers(0)};
  const auto second = fake_store{answers(1)};
  ports = {first.port(), second.port()};
  auto client = redis_client{config_of(first.url())};
  REQUIRE(client.num_connections() == 2);
  auto values = remote_values{20, 100};
  CHECK(values.set(client) == 0);
  CHECK(values.get(client) == 0);
  CHECK(values.num(transfer_outcome::failed) == values.size());
  CHECK(client.num_connections() == 2);
}

TEST_CASE("slots that no node had are found when one has them", "[redis]") {
  auto port = std::uint16_t{0};
  auto num_slots = std::atomic<int>{8'192};
  const auto store = fake_store{[&](const words& command) -> std::optional<std::string> {
    if (command[0] == "PING") {
      return "+PONG\r\n";
    }
    if (command[0] == "CLUSTER") {
      return "*1\r\n*3\r\n:0\r\n:" + std::to_string(num_slots.load() - 1) +
             "\r\n*2\r\n$9\r\n127.0.0.1\r\n:" + std::to_string(port) + "\r\n";
    }
    return "+OK\r\n";
  }};
  port = store.port();
  auto client = redis_client{config_of(store.url())};
  REQUIRE(client.num_connections() == 1);
  auto values = remote_values{20, 100};
  auto num_known = std::size_t{0};
  for (auto i = std::size_t{0}; i < values.size(); ++i) {
    num_known += redis_slot(values.key(i)) < 8'192 ? 1U : 0U;
  }
  REQUIRE(num_known < values.size());
  CHECK(values.set(client) == num_known);
  CHECK(values.num(transfer_outcome::failed) == values.size() - num_known);
  num_slots = static_cast<int>(num_redis_slots);
  repeat_until_done([&] { return values.set(client); }, values.size());
}
