#include "../support/messages.hpp"
#include "fake_store.hpp"
#include "remote_values.hpp"
#include "store_process.hpp"

#include <pagedkv/tier/redis_client.hpp>
#include <pagedkv/tier/redis_connection.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

using namespace pagedkv;
using namespace pagedkv::testing;

namespace {

using words = std::vector<std::string>;

redis_config config_of(std::string_view url) { return parse_redis_url(url).value(); }

}  // namespace

TEST_CASE("a URL names hosts, a user and a database", "[redis]") {
  const auto plain = config_of("redis://store");
  CHECK(plain.endpoints == std::vector<redis_endpoint>{{"store", 6'379}});
  CHECK(plain.user.empty());
  CHECK(plain.password.empty());
  CHECK(plain.database == 0);
  const auto full = config_of("redis://engine:a%40b%2f@10.0.0.1:7000,[fe80::1]:7001,node/3");
  CHECK(full.endpoints == std::vector<redis_endpoint>{{"10.0.0.1", 7'000}, {"fe80::1", 7'001}, {"node", 6'379}});
  CHECK(full.user == "engine");
  CHECK(full.password == "a@b/");
  CHECK(full.database == 3);
  CHECK(config_of("redis://:word@store").password == "word");
  CHECK(config_of("unix:///run/store").endpoints == std::vector<redis_endpoint>{{"/run/store", 0}});
  for (const auto* const wrong :
       {"", "redis:/", "http://store", "rediss://store", "redis://", "redis://:6379", "redis://a:0", "redis://a:65536",
        "redis://a:x", "redis://a,", "redis://a/b", "redis://a/-1", "redis://[::1", "redis://[::1]7", "redis://a%4:b@c",
        "unix://", "unix://path"}) {
    CAPTURE(wrong);
    CHECK(parse_redis_url(wrong).has_error());
  }
}

TEST_CASE("a wrong URL is refused with the byte where it goes wrong", "[redis][messages]") {
  using test::invalid;
  const auto refusal = [](std::string_view url) { return test::said(parse_redis_url(url)); };
  test::check_messages({
      {refusal("http://store"), invalid("byte of a URL where redis:// or unix:// is missing is 0")},
      {refusal("redis://a%4:b@c"), invalid("byte of a URL after which digits do not follow a percent sign is 8")},
      {refusal("unix://path"), invalid("byte of a URL where a path is missing is 7")},
      {refusal("redis://a/b"), invalid("byte of a URL after which the database is no number is 8")},
      {refusal("redis://a,b:x"), invalid("byte of a URL where host or port is wrong is 10")},
  });
}

TEST_CASE("a URL that asks for TLS is refused with a sentence that says so", "[redis]") {
  const auto refused = parse_redis_url("rediss://engine:word@store:6380/1");
  REQUIRE(refused.has_error());
  CHECK(refused.error().message() == "invalid argument: byte of a URL that asks for TLS, which there is not, is 0");
}

TEST_CASE("keys have the slots of the specification", "[redis]") {
  CHECK(redis_slot("") == 0);
  CHECK(redis_slot("foo") == 12'182);
  CHECK(redis_slot("{user1000}.following") == redis_slot("user1000"));
  CHECK(redis_slot("foo{}{bar}") != redis_slot("bar"));
  CHECK(redis_slot("foo{{bar}}zap") == redis_slot("{bar"));
}

TEST_CASE("a store keeps values of any size", "[redis]") {
  skip_without_store();
  const auto in_file_system = GENERATE(false, true);
  const auto store = store_process{};
  auto client = redis_client{config_of(in_file_system ? "unix://" + store.socket_path() : store.url())};
  CHECK(client.failure() == "");
  CHECK(client.num_connections() == 1);
  for (const auto bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{100}, std::size_t{20'000}, std::size_t{5'000'000}}) {
    CAPTURE(bytes);
    const auto count = bytes > 1'000'000 ? std::size_t{3} : std::size_t{2'000};
    auto values = remote_values{count, bytes};
    CHECK(values.set(client) == count);
    CHECK(values.get(client) == count);
    CHECK(values.are_right());
  }
  auto unknown = remote_values{10, 100, 10'000};
  CHECK(unknown.get(client) == 0);
  CHECK(unknown.num(transfer_outcome::missing) == 10);
  auto another_size = remote_values{3, 4'999'999};
  CHECK(another_size.get(client) == 0);
  CHECK(another_size.num(transfer_outcome::missing) == 3);
  CHECK(client.num_connections() == 1);
  auto moved = std::move(client);
  CHECK(another_size.set(moved) == 3);
  CHECK(store.call({"CLIENT", "LIST"}).find("id=") != std::string::npos);
}

TEST_CASE("values live as long as they are told to", "[redis]") {
  skip_without_store();
  const auto store = store_process{};
  auto config = config_of(store.url() + "/5");
  auto values = remote_values{3, 100};
  auto client = redis_client{config};
  REQUIRE(values.set(client) == 3);
  CHECK(store.call({"EXISTS", values.key(0)}) == "0");  // in database 0
  CHECK(store.call({"EVAL", "redis.call('SELECT', 5) return redis.call('PTTL', KEYS[1])", "1", values.key(0)}) == "-1");
  config.database = 0;
  config.time_to_live = std::chrono::hours{10};
  auto other = redis_client{config};
  REQUIRE(values.set(other) == 3);
  CHECK(std::stol(store.call({"PTTL", values.key(0)})) > 0);
}

TEST_CASE("values go to no other database than the one that was asked for", "[redis]") {
  skip_without_store();
  const auto store = store_process{};
  auto values = remote_values{3, 100};
  auto client = redis_client{config_of(store.url() + "/9999")};
  CHECK(client.num_connections() == 0);
  CHECK_FALSE(client.failure().empty());
  CHECK(values.set(client) == 0);
  CHECK(store.call({"EXISTS", values.key(0)}) == "0");
}

TEST_CASE("a store that is killed in a batch loses this batch, and is found again", "[redis][random]") {
  skip_without_store();
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  auto store = store_process{};
  auto client = redis_client{config_of(store.url())};
  auto values = remote_values{100, 100'000};
  REQUIRE(values.set(client) == values.size());
  const auto before = num_descriptors();
  for (auto round = 0; round < 5; ++round) {
    CAPTURE(round);
    const auto num_batches = random() % 20;
    const auto writing = random() % 2 == 0;
    {
      const auto killer = std::jthread{[&] {
        for (auto i = num_batches * 1'000; i > 0; --i) {
          std::this_thread::yield();
        }
        store.kill();
      }};
      while ((writing ? values.set(client) : values.get(client)) == values.size()) {
        CHECK(values.are_right());
      }
      CHECK(values.num(transfer_outcome::failed) > 0);
      CHECK(values.are_right());
    }
    CHECK(values.get(client) == 0);
    store.start();
    repeat_until_done([&] { return values.set(client); }, values.size());
    CHECK(values.get(client) == values.size());
    CHECK(values.are_right());
  }
  CHECK(num_descriptors() == before);
}

TEST_CASE("a store that does not answer costs no more than the time that a batch has", "[redis]") {
  skip_without_store();
  const auto store = store_process{};
  auto client = redis_client{config_of(store.url())};
  auto values = remote_values{20, 100'000};
  REQUIRE(values.set(client) == values.size());
  store.signal(SIGSTOP);
  const auto writing = GENERATE(false, true);
  CHECK((writing ? values.set(client, 20ms) : values.get(client, 20ms)) == 0);
  CHECK(values.num(transfer_outcome::failed) == values.size());
  CHECK(client.num_connections() == 0);
  CHECK(values.get(client, 20ms) == 0);
  store.signal(SIGCONT);
  repeat_until_done([&] { return values.set(client); }, values.size());
  CHECK(values.get(client) == values.size());
  CHECK(values.are_right());
}

TEST_CASE("a store that is paused is used when it goes on", "[redis]") {
  skip_without_store();
  const auto store = store_process{};
  auto client = redis_client{config_of(store.url())};
  auto values = remote_values{20, 1'000};
  REQUIRE(values.set(client) == values.size());
  CHECK(store.call({"CLIENT", "PAUSE", "100000", "WRITE"}) == "OK");
  CHECK(values.set(client, 20ms) == 0);
  CHECK(store.call({"CLIENT", "UNPAUSE"}) == "OK");
  repeat_until_done([&] { return values.set(client); }, values.size());
}

TEST_CASE("a full store refuses values and serves those that it has", "[redis]") {
  skip_without_store();
  const auto store = store_process{{"--maxmemory-policy", "noeviction"}};
  auto client = redis_client{config_of(store.url())};
  auto values = remote_values{20, 1'000};
  REQUIRE(values.set(client) == values.size());
  CHECK(store.call({"CONFIG", "SET", "maxmemory", "1"}) == "OK");
  auto more = remote_values{20, 100'000, 100};
  CHECK(more.set(client) == 0);
  CHECK(more.num(transfer_outcome::failed) == more.size());
  CHECK(client.num_connections() == 1);
  CHECK(values.get(client) == values.size());
  CHECK(values.are_right());
  CHECK(store.call({"CONFIG", "SET", "maxmemory", "0"}) == "OK");
  CHECK(more.set(client) == more.size());
}

TEST_CASE("a key of another type has no value", "[redis]") {
  skip_without_store();
  const auto store = store_process{};
  auto client = redis_client{config_of(store.url())};
  auto values = remote_values{3, 100};
  REQUIRE(values.set(client) == 3);
  store.call({"DEL", values.key(1)});
  store.call({"LPUSH", values.key(1), "a"});
  CHECK(values.get(client) == 2);
  CHECK(values.num(transfer_outcome::failed) == 1);
  CHECK(values.set(client) == 3);
  CHECK(client.num_connections() == 1);
}

TEST_CASE("a client logs in, and says why it cannot", "[redis]") {
  skip_without_store();
  const auto store = store_process{{"--requirepass", "secret"}};
  auto values = remote_values{3, 100};
  for (const auto* const login : {"", ":wrong@", "stranger:secret@"}) {
    CAPTURE(login);
    auto client = redis_client{config_of(store.url(login))};
    CHECK(client.num_connections() == 0);
    CHECK(client.failure().find(*login == '\0' ? "NOAUTH" : "WRONGPASS") != std::string::npos);
    CHECK(values.set(client) == 0);
    CHECK(values.num(transfer_outcome::failed) == 3);
  }
  for (const auto* const login : {":secret@", "default:secret@"}) {
    auto client = redis_client{config_of(store.url(login))};
    CHECK(client.failure() == "");
    CHECK(values.set(client) == 3);
  }
}

TEST_CASE("a store that comes later is found", "[redis]") {
  skip_without_store();
  auto store = store_process{};
  store.kill();
  auto client = redis_client{config_of(store.url())};
  CHECK(client.failure().find("refused") != std::string::npos);
  auto values = remote_values{3, 100};
  CHECK(values.get(client) == 0);
  CHECK(values.num(transfer_outcome::failed) == 3);
  store.start();
  repeat_until_done([&] { return values.set(client); }, 3);
}

TEST_CASE("a client names the host that refuses it, and the reason", "[redis]") {
  const auto host = "127.0.0.1:" + std::to_string(free_port());
  const auto client = redis_client{config_of("redis://" + host)};
  CHECK(client.num_connections() == 0);
  CHECK(client.failure() == host + ": Connection refused");
  const auto without = redis_client{config_of("unix:///no/socket")};
  CHECK(without.num_connections() == 0);
  CHECK(without.failure() == "/no/socket:0: No such file or directory");
}

TEST_CASE("a host that has no address costs no batch any time", "[redis]") {
  auto config = redis_config{};
  config.endpoints = {{std::string(64, 'a') + ".invalid", 6'379}};  // too long for a name, so that no server is asked
  auto client = redis_client{config};
  auto values = remote_values{3, 100};
  CHECK(values.set(client) == 0);
  CHECK(values.num(transfer_outcome::failed) == 3);
  CHECK(client.num_connections() == 0);
}

TEST_CASE("a store that closes connections is asked again after pauses only", "[redis]") {
  const auto store = fake_store{fake_store::greeting([](const words&) { return std::nullopt; })};
  auto config = config_of(store.url());
  config.shortest_pause = std::chrono::hours{1};
  config.longest_pause = std::chrono::hours{1};
  const auto before = num_descriptors();
  {
    auto client = redis_client{config};
    REQUIRE(client.num_connections() == 1);
    auto values = remote_values{50, 100'000};  // more than a socket takes: the client writes to a closed connection
    for (auto i = 0; i < 100; ++i) {
      CHECK(values.set(client) == 0);
    }
    CHECK(client.num_connections() == 0);
    CHECK(store.num_accepted() == 1);
  }
  CHECK(num_descriptors() <= before);
}

TEST_CASE("a connection that its peer resets is lost, whatever is done with it", "[redis]") {
  const auto listener = loopback_socket{};
  const auto reset_connection = [&] {
    auto made = std::make_unique<detail::redis_connection>(redis_endpoint{"127.0.0.1", listener.port()});
    const auto peer = ::accept4(listener.descriptor(), nullptr, nullptr, SOCK_CLOEXEC);
    REQUIRE(peer >= 0);
    const auto at_once = linger{1, 0};
    REQUIRE(::setsockopt(peer, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)) == 0);
    ::close(peer);
    auto polled = pollfd{made->descriptor(), 0, 0};  // errors are told without being asked for
    REQUIRE(::poll(&polled, 1, -1) == 1);
    return made;
  };
  auto buffer = std::array<char, 16>{};
  CHECK(reset_connection()->receive(buffer, 100) == detail::io_state::lost);
  auto part = iovec{buffer.data(), buffer.size()};
  auto parts = std::span{&part, 1};
  CHECK(reset_connection()->send(parts) == detail::io_state::lost);
}

TEST_CASE("answers that belong to nothing fail their values", "[redis]") {
  const auto answer = GENERATE(values<std::string>({"$9223372036854775807\r\n",
                                                    "$-2\r\n",
                                                    "$101\r\n",
                                                    "$100\r\nshort\r\n",
                                                    ":5\r\n",
                                                    "*2\r\n$1\r\na\r\n$1\r\nb\r\n",
                                                    "*1000000000\r\n",
                                                    "*2\r\n$1\r\na\r\n",
                                                    "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
                                                    "\r\n",
                                                    "x",
                                                    "",
                                                    "+OK",
                                                    "+WHAT\r\n",
                                                    "-MOVED 1\r\n",
                                                    "-MOVED 99999 127.0.0.1:1\r\n",
                                                    "-MOVED 1 127.0.0.1:1\r\n",
                                                    "-ASK 1 :1\r\n",
                                                    "-ERR no\r\n",
                                                    "$5\r\nabcde\r\n+more\r\n",
                                                    std::string(300'000, '+')}));
  CAPTURE(answer.substr(0, 40));
  const auto store = fake_store{fake_store::greeting([&](const words&) { return answer; })};
  auto client = redis_client{config_of(store.url())};
  REQUIRE(client.num_connections() == 1);
  auto values = remote_values{20, 100};
  for (auto i = 0; i < 3; ++i) {
    CHECK(values.get(client, 20ms) == 0);
    CHECK(values.num(transfer_outcome::missing) <= (answer.starts_with("$5") ? 1U : 0U));
    CHECK(values.set(client, 20ms) == 0);
  }
}

TEST_CASE("the longest time to connect is no limit", "[redis]") {
  const auto store = fake_store{fake_store::greeting([](const words&) { return "+OK\r\n"; })};
  auto config = config_of(store.url());
  config.connect_timeout = std::chrono::milliseconds::max();
  auto client = redis_client{config};
  CHECK(client.num_connections() == 1);
  CHECK(client.failure() == "");
}

TEST_CASE("a value is stored only when the store says so", "[redis]") {
  const auto answer = GENERATE(values<std::string>(
      {":1\r\n", "$-1\r\n", "$2\r\nOK\r\n", "+QUEUED\r\n", "*1\r\n+OK\r\n", "-ERR no\r\n", "+OKAY\r\n"}));
  CAPTURE(answer);
  const auto store = fake_store{fake_store::greeting([&](const words&) { return answer; })};
  auto client = redis_client{config_of(store.url())};
  REQUIRE(client.num_connections() == 1);
  auto values = remote_values{3, 100};
  CHECK(values.set(client) == 0);
  CHECK(values.num(transfer_outcome::failed) == values.size());
}

TEST_CASE("random answers give no value of another size", "[redis][random]") {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  const auto store = fake_store{fake_store::greeting([&](const words& command) -> std::optional<std::string> {
    constexpr auto parts = std::to_array<std::string_view>(
        {"$", "100", "\r\n", "*", "-1", ":", "+OK", "-ERR", "9", "\n", "$100\r\n", "MOVED 5 :7", "ASK 5 h:9"});
    auto text = std::string{command[0] == "SET" ? "+OK\r\n" : "$100\r\n" + std::string(100, 'a') + "\r\n"};
    for (auto i = random() % 3; i > 0; --i) {
      const auto at = static_cast<std::ptrdiff_t>(random() % (text.size() + 1));
      if (random() % 2 == 0) {
        text.erase(text.begin() + at, text.begin() + std::min(at + 3, std::ssize(text)));
      } else {
        text.insert(static_cast<std::size_t>(at), parts[random() % parts.size()]);
      }
    }
    return text;
  })};
  auto config = config_of(store.url());
  config.longest_pause = config.shortest_pause = std::chrono::milliseconds{1};
  auto client = redis_client{config};
  for (auto i = 0; i < 400; ++i) {
    auto values = remote_values{random() % 8 + 1, 100};
    values.get(client, 5ms);
    CHECK(values.num(transfer_outcome::missing) < values.size() + 1);
    values.set(client, 5ms);
  }
}

TEST_CASE("a store that greets with nonsense is not connected to", "[redis]") {
  const auto greeting =
      GENERATE(values<std::string>({"*1000000000\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n", "+OK\r\n", "$-1\r\n", "",
                                    "*3\r\n:1\r\n", "-LOADING\r\n", std::string(100'000, '*')}));
  const auto store = fake_store{[&](const words&) { return greeting; }};
  auto config = config_of(store.url());
  config.connect_timeout = 20ms;
  const auto client = redis_client{config};
  CHECK(client.num_connections() == 0);
}

TEST_CASE("a table of slots that makes no sense is refused", "[redis]") {
  const auto table = GENERATE(values<std::string>(
      {"*0\r\n", "*1\r\n:1\r\n", "*1\r\n*2\r\n:0\r\n:1\r\n", "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\na\r\n:1\r\n",
       "*1\r\n*3\r\n:-1\r\n:1\r\n*2\r\n$1\r\na\r\n:1\r\n", "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:65536\r\n",
       "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:0\r\n", "*1\r\n*3\r\n:0\r\n:1\r\n*1\r\n$1\r\na\r\n", "+OK\r\n",
       "$-1\r\n", "*-1\r\n"}));
  CAPTURE(table);
  const auto store = fake_store{[&](const words& command) { return command[0] == "PING" ? "+PONG\r\n" : table; }};
  const auto client = redis_client{config_of(store.url())};
  CHECK(client.num_connections() == 0);
  CHECK(client.failure().ends_with(": no table of slots that is understood"));
}
