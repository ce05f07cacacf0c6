#include "../support/tokens.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/router/keys.hpp>
#include <pagedkv/wire/apply.hpp>
#include <pagedkv/wire/event_publisher.hpp>
#include <pagedkv/wire/event_subscriber.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <nlohmann/json.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <signal.h>
#include <unistd.h>

namespace {

using namespace pagedkv;
using pagedkv::test::numbered;
using namespace std::chrono_literals;

constexpr auto no_hang = 60s;  // a message comes much sooner, or never

publisher_config on_loopback() {
  auto config = publisher_config{};
  config.endpoint = "tcp://127.0.0.1:*";
  config.replay_endpoint = "tcp://127.0.0.1:*";
  config.topic = "kv@worker@model";
  config.heartbeat = 5ms;  // so that a subscriber that came late soon sees a number
  return config;
}

subscriber_config to(const event_publisher& publisher) {
  return {.endpoint = publisher.endpoint(), .replay_endpoint = publisher.replay_endpoint(), .topic = "kv@worker"};
}

struct feed_visitor {
  worker_feed<cache_keys>& feed;

  void batch(const wire_batch& events) { apply(events, feed); }
  void lost() { feed.clear(); }
};

cache_config small_cache() {
  auto config = cache_config{};
  config.block_size = 4;
  config.num_blocks = 16;
  config.head_dim = 1;
  config.hash_seed = 5;
  return config;
}

template <class Cache>
void cache_prompt(Cache& cache, const std::vector<token>& prompt) {
  const auto id = cache.create_sequence(prompt).value().id;
  cache.commit(id, std::ssize(prompt)).value();
  cache.release(id).value();
}

TEST_CASE("an index across the wire follows a cache", "[wire]") {
  auto publishing = on_loopback();
  publishing.encoding = GENERATE(wire_encoding::arrays, wire_encoding::maps);
  const auto config = small_cache();
  const auto queues = event_queues{config.block_size};
  auto cache = kv_cache<event_queues>{config, queues};
  cache_prompt(cache, numbered(20));  // before anyone listens
  const auto publisher = event_publisher{queues, publishing};
  auto subscriber = event_subscriber{to(publisher)};
  auto index = worker_index{{.num_blocks = 64}};
  auto feed = worker_feed{index, worker_id{0}, cache_keys{config.hash_seed}};

  const auto num_held = [&](const std::vector<token>& prompt) {
    auto keys = std::array<std::uint64_t, 16>{};
    const auto count = prompt_keys(feed.keys(), prompt, 4, keys);
    auto held = std::vector<std::int64_t>(static_cast<std::size_t>(index.num_workers()));
    index.num_held(std::span(keys).first(count), held);
    return held[0];
  };
  const auto follow = [&](const std::vector<token>& prompt, std::int64_t num_blocks) {
    while (num_held(prompt) != num_blocks) {
      subscriber.poll(no_hang, feed_visitor{feed});
    }
    CHECK(num_held(prompt) == num_blocks);
  };
  follow(numbered(20), 5);
  cache_prompt(cache, numbered(40));
  follow(numbered(40), 10);
  cache_prompt(cache, numbered(60, 100));  // 15 of 16 blocks: those of the first prompt go
  follow(numbered(60, 100), 15);
  follow(numbered(40), cache.find_prefix(numbered(41)) / 4);
  cache.reset_prefix_cache().value();
  follow(numbered(60, 100), 0);
  CHECK(subscriber.num_losses() == 0);
  CHECK(subscriber.num_malformed() == 0);
  CHECK(feed.num_orphans() == 0);
}

struct counting_visitor {
  std::vector<std::uint64_t> hashes;
  std::int64_t num_lost = 0;

  void batch(const wire_batch& events) {
    for (const auto& event : events.events) {
      hashes.insert(hashes.end(), event.hashes.begin(), event.hashes.end());
    }
  }
  void lost() {
    ++num_lost;
    hashes.push_back(0);
  }
};

void emit_eviction(event_queues& queues, std::uint64_t hash) {
  auto event = cache_event{};
  event.kind = event_kind::evicted;
  event.hash = hash;
  queues.emit(event);
}

TEST_CASE("events that found a queue full show as a loss", "[wire]") {
  auto queues = event_queues{4, {.capacity = 2}};
  for (auto i = std::uint64_t{1}; i <= 3; ++i) {
    emit_eviction(queues, i);
  }
  REQUIRE(queues.num_dropped() == 1);
  const auto publisher = event_publisher{queues, on_loopback()};
  auto subscriber = event_subscriber{to(publisher)};
  auto visitor = counting_visitor{};
  while (visitor.num_lost == 0) {
    subscriber.poll(no_hang, visitor);
  }
  CHECK(visitor.hashes == std::vector<std::uint64_t>{1, 2, 0});
}

TEST_CASE("a publisher that has no memory for a batch goes on, and shows a loss", "[wire]") {
  auto publishing = on_loopback();
  publishing.adapter_of = [num_calls = 0](salt) mutable -> std::optional<wire_adapter> {
    if (num_calls++ == 0) {
      throw std::bad_alloc{};
    }
    return std::nullopt;
  };
  auto queues = event_queues{4};
  const auto publisher = event_publisher{queues, publishing};
  auto subscriber = event_subscriber{to(publisher)};
  auto visitor = counting_visitor{};
  subscriber.poll(no_hang, visitor);  // a heartbeat
  const auto tokens = numbered(4);
  queues.emit({.kind = event_kind::stored, .hash = 1, .tokens = tokens, .salt = salt{1}});
  while (visitor.num_lost == 0) {
    subscriber.poll(no_hang, visitor);
  }
  emit_eviction(queues, 2);
  while (visitor.hashes.back() != 2) {
    subscriber.poll(no_hang, visitor);
  }
  CHECK(visitor.hashes == std::vector<std::uint64_t>{0, 2});
}

TEST_CASE("a subscriber that comes late gets all kept batches", "[wire]") {
  constexpr auto num_batches = std::uint64_t{5'000};  // more than ZeroMQ queues for a peer by default
  auto queues = event_queues{4, {.capacity = 8'192}};
  auto expected = std::vector<std::uint64_t>{};
  for (auto i = std::uint64_t{1}; i <= num_batches; ++i) {
    emit_eviction(queues, i);
    expected.push_back(i);
  }
  auto publishing = on_loopback();
  publishing.max_events = 1;
  const auto publisher = event_publisher{queues, publishing};
  while (publisher.num_events() < num_batches) {
    std::this_thread::yield();
  }
  auto subscriber = event_subscriber{to(publisher)};
  auto visitor = counting_visitor{};
  while (visitor.hashes.size() < num_batches && visitor.num_lost == 0) {
    subscriber.poll(no_hang, visitor);
  }
  CHECK(visitor.hashes == expected);
  CHECK(subscriber.num_losses() == 0);
}

TEST_CASE("replies of a replay have the parts of published messages, behind an empty one", "[wire]") {
  auto publishing = on_loopback();
  publishing.first_number = 7;
  auto queues = event_queues{4};
  queues.emit({.kind = event_kind::evicted, .hash = 1});
  const auto publisher = event_publisher{queues, publishing};
  while (publisher.num_batches() == 0) {
    std::this_thread::yield();
  }
  auto context = zmq::context_t{};
  auto socket = detail::wire_socket{context, zmq::socket_type::dealer};
  socket.set(zmq::sockopt::linger, 0);
  socket.connect(publisher.replay_endpoint());
  socket.send(zmq::const_buffer{}, zmq::send_flags::sndmore);
  socket.send(zmq::buffer(detail::big_endian(7)), zmq::send_flags::none);
  const auto next_reply = [&] {
    REQUIRE(socket.has_message(no_hang));
    auto reply = std::vector<std::string>{};
    for (const auto& part : socket.receive()) {
      reply.push_back(part.to_string());
    }
    REQUIRE(reply.size() == 4);
    return reply;
  };
  const auto first = next_reply();
  CHECK(first[0].empty());
  CHECK(first[1] == publishing.topic);
  CHECK(detail::from_big_endian(first[2]) == 7);
  CHECK(read_batch(first[3]).value().events.at(0).hashes == std::vector<std::uint64_t>{1});
  auto last = next_reply();
  while (last[1] == publishing.topic) {
    last = next_reply();  // of a heartbeat
  }
  CHECK(last == std::vector<std::string>{"", "", std::string(8, '\xff'), ""});
}

/// A batch that says which one it is.
std::string batch_of(std::uint64_t hash) {
  auto writer = batch_writer{wire_encoding::arrays};
  auto event = cache_event{};
  event.kind = event_kind::evicted;
  event.hash = hash;
  writer.add(event);
  return std::string{writer.finish(0)};
}

/// A worker whose every message the test decides.
class scripted_worker {
 public:
  scripted_worker() : stream_(context_, zmq::socket_type::xpub), replayer_(context_, zmq::socket_type::router) {
    stream_.bind("tcp://127.0.0.1:*");
    replayer_.bind("tcp://127.0.0.1:*");
    stream_.set(zmq::sockopt::linger, 0);
    replayer_.set(zmq::sockopt::linger, 0);
    endpoint_ = stream_.get(zmq::sockopt::last_endpoint);
    replay_endpoint_ = replayer_.get(zmq::sockopt::last_endpoint);
  }

  [[nodiscard]] subscriber_config config() const {
    return {.endpoint = endpoint_, .replay_endpoint = replay_endpoint_, .topic = {}};
  }

  void wait_for_subscriber() {
    auto subscription = zmq::message_t{};
    static_cast<void>(stream_.recv(subscription));
  }

  void publish(std::uint64_t number, const std::string& payload) {
    stream_.send(zmq::message_t{}, zmq::send_flags::sndmore);
    stream_.send(zmq::buffer(detail::big_endian(number)), zmq::send_flags::sndmore);
    stream_.send(zmq::buffer(payload), zmq::send_flags::none);
  }

  /// vLLM begins replies with the topic since 0.26. Older ones, and SGLang, leave it out.
  bool replies_with_topic = true;

  /// Answers one request with a batch that nobody asks for, again and again, until it is stopped.
  [[nodiscard]] std::jthread repeat_old(std::uint64_t number) {
    return std::jthread{[this, number](const std::stop_token& stop) {
      auto parts = std::array<zmq::message_t, 3>{};
      for (auto& part : parts) {
        static_cast<void>(replayer_.recv(part));
      }
      while (!stop.stop_requested()) {
        reply(parts[0], number, batch_of(number));
        std::this_thread::yield();
      }
    }};
  }

  /// Answers one request with these batches, from a thread of its own.
  [[nodiscard]] std::jthread replay_once(std::map<std::uint64_t, std::string> batches, std::uint64_t& asked_from) {
    return std::jthread{[this, batches = std::move(batches), &asked_from] {
      auto parts = std::array<zmq::message_t, 3>{};
      for (auto& part : parts) {
        static_cast<void>(replayer_.recv(part));
      }
      asked_from = detail::from_big_endian(parts[2].to_string_view()).value();
      for (const auto& [number, payload] : batches) {
        reply(parts[0], number, payload);
      }
      reply(parts[0], detail::end_of_replay, "");
    }};
  }

 private:
  void reply(const zmq::message_t& subscriber, std::uint64_t number, const std::string& payload) {
    replayer_.send(zmq::buffer(subscriber.data(), subscriber.size()), zmq::send_flags::sndmore);
    replayer_.send(zmq::message_t{}, zmq::send_flags::sndmore);
    if (replies_with_topic) {
      replayer_.send(zmq::buffer(std::string{payload.empty() ? "" : "kv-events"}), zmq::send_flags::sndmore);
    }
    replayer_.send(zmq::buffer(detail::big_endian(number)), zmq::send_flags::sndmore);
    replayer_.send(zmq::buffer(payload), zmq::send_flags::none);
  }

  zmq::context_t context_;
  zmq::socket_t stream_;
  zmq::socket_t replayer_;
  std::string endpoint_;
  std::string replay_endpoint_;
};

/// A subscriber of a scripted worker that has received batch 10.
struct conversation {
  scripted_worker worker;
  event_subscriber subscriber{worker.config()};
  counting_visitor visitor;
  std::uint64_t asked_from = 0;

  conversation() {
    worker.wait_for_subscriber();
    const auto replay = worker.replay_once({}, asked_from);
    worker.publish(10, batch_of(10));
    receive(1);
  }

  void receive(std::size_t num_hashes) {
    while (visitor.hashes.size() < num_hashes) {
      subscriber.poll(no_hang, visitor);
    }
  }
};

TEST_CASE("signals end neither a publisher nor a poll", "[wire]") {
  struct sigaction on_signal {};
  struct sigaction before {};
  on_signal.sa_handler = [](int) {};
  REQUIRE(sigaction(SIGUSR1, &on_signal, &before) == 0);
  const auto queues = event_queues{4};
  const auto publisher = event_publisher{queues, on_loopback()};
  auto subscriber = event_subscriber{to(publisher)};
  auto visitor = counting_visitor{};
  const auto deliver = [&](std::uint64_t num_signals) {
    for (auto i = num_signals; i > 0; --i) {
      REQUIRE(kill(getpid(), SIGUSR1) == 0);
      subscriber.poll(1ms, visitor);
    }
  };
  deliver(20);  // to this thread
  auto usr1 = sigset_t{};
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  REQUIRE(pthread_sigmask(SIG_BLOCK, &usr1, nullptr) == 0);
  deliver(200);  // to the publisher's, the only one left that takes it
  const auto before_last = publisher.num_batches();
  while (publisher.num_batches() == before_last) {
    subscriber.poll(1ms, visitor);
  }
  CHECK(visitor.num_lost == 0);
  REQUIRE(pthread_sigmask(SIG_UNBLOCK, &usr1, nullptr) == 0);
  REQUIRE(sigaction(SIGUSR1, &before, nullptr) == 0);
}

TEST_CASE("missing batches come by replay, in order and once", "[wire]") {
  auto talk = conversation{};
  talk.worker.replies_with_topic = GENERATE(true, false);
  CHECK(talk.asked_from == 0);
  {
    const auto replay = talk.worker.replay_once(
        {{9, batch_of(9)}, {11, batch_of(11)}, {12, batch_of(12)}, {13, batch_of(13)}, {14, batch_of(14)}},
        talk.asked_from);
    talk.worker.publish(13, batch_of(13));
    talk.worker.publish(14, batch_of(14));
    talk.receive(5);
  }
  CHECK(talk.asked_from == 11);
  CHECK(talk.visitor.hashes == std::vector<std::uint64_t>{10, 11, 12, 13, 14});
  CHECK(talk.subscriber.num_replayed() == 2);
  CHECK(talk.subscriber.num_losses() == 0);
}

TEST_CASE("a batch that no replay has is reported as lost, where it is missing", "[wire]") {
  auto talk = conversation{};
  {
    const auto replay = talk.worker.replay_once({{12, batch_of(12)}}, talk.asked_from);
    talk.worker.publish(14, batch_of(14));
    talk.receive(5);
  }
  CHECK(talk.visitor.hashes == std::vector<std::uint64_t>{10, 0, 12, 0, 14});
}

TEST_CASE("a worker that begins anew is reported as a loss", "[wire]") {
  auto talk = conversation{};
  {
    const auto replay = talk.worker.replay_once({{0, batch_of(100)}, {1, batch_of(101)}}, talk.asked_from);
    talk.worker.publish(2, batch_of(102));
    talk.receive(5);
  }
  CHECK(talk.asked_from == 0);
  CHECK(talk.visitor.hashes == std::vector<std::uint64_t>{10, 0, 100, 101, 102});
}

TEST_CASE("a batch that cannot be read is reported as lost", "[wire]") {
  auto talk = conversation{};
  talk.worker.publish(11, "garbage");
  talk.worker.publish(12, batch_of(12));
  talk.receive(3);
  CHECK(talk.visitor.hashes == std::vector<std::uint64_t>{10, 0, 12});
  CHECK(talk.subscriber.num_malformed() == 1);
}

TEST_CASE("a batch whose visit throws is reported as lost, ahead of the next one", "[wire]") {
  struct failing_visitor : counting_visitor {
    void batch(const wire_batch& events) {
      if (events.events.at(0).hashes == std::vector<std::uint64_t>{11}) {
        throw std::bad_alloc{};
      }
      counting_visitor::batch(events);
    }
  };
  auto talk = conversation{};
  auto visitor = failing_visitor{};
  talk.worker.publish(11, batch_of(11));
  CHECK_THROWS_AS(talk.subscriber.poll(no_hang, visitor), std::bad_alloc);
  CHECK(visitor.hashes.empty());
  talk.worker.publish(12, batch_of(12));
  while (visitor.hashes.empty() || visitor.hashes.back() != 12) {
    talk.subscriber.poll(no_hang, visitor);
  }
  CHECK(visitor.hashes == std::vector<std::uint64_t>{0, 12});
  CHECK(talk.subscriber.num_losses() == 1);
}

TEST_CASE("a replay that goes on with old batches holds no subscriber", "[wire]") {
  auto talk = conversation{};
  {
    const auto replay = talk.worker.repeat_old(9);
    talk.worker.publish(12, batch_of(12));
    talk.receive(3);
  }
  CHECK(talk.visitor.hashes == std::vector<std::uint64_t>{10, 0, 12});
}

TEST_CASE("an event that cannot be understood costs a subscriber nothing else", "[wire]") {
  using nlohmann::json;
  auto talk = conversation{};
  const auto removed = json::array({"BlockRemoved", json::array({11}), "GPU"});
  const auto pairs = json::array({json::array({1, 2}), json::array({2, 3})});
  const auto odd = json::array({"BlockStored", json::array({7}), nullptr, pairs, 2, nullptr, "GPU"});
  const auto bytes = json::to_msgpack(json::array({0.5, json::array({odd, json::array({"BlockMoved"}), removed})}));
  talk.worker.publish(11, {bytes.begin(), bytes.end()});
  talk.receive(2);
  CHECK(talk.visitor.hashes == std::vector<std::uint64_t>{10, 11});
  CHECK(talk.subscriber.num_losses() == 0);
  CHECK(talk.subscriber.num_malformed() == 0);
}

}  // namespace
