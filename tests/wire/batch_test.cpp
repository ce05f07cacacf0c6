#include "../support/full_numbers.hpp"
#include "../support/messages.hpp"
#include "../support/tokens.hpp"

#include <pagedkv/router/keys.hpp>
#include <pagedkv/router/llm_d_keys.hpp>
#include <pagedkv/wire/apply.hpp>
#include <pagedkv/wire/batch_writer.hpp>
#include <pagedkv/wire/read_batch.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <nlohmann/json.hpp>

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace pagedkv;
using pagedkv::test::numbered;
using nlohmann::json;

std::string packed(const json& value) {
  const auto bytes = json::to_msgpack(value);
  return {bytes.begin(), bytes.end()};
}

/// From memory that ends with the message, so that AddressSanitizer sees a byte too many.
result<wire_batch> read_copy(std::string_view bytes) {
  const auto copy = std::vector<char>(bytes.begin(), bytes.end());
  return read_batch({copy.data(), copy.size()});
}

json unpacked(std::string_view bytes) { return json::from_msgpack(bytes); }

cache_event stored(std::uint64_t hash, std::uint64_t parent, bool is_first, const std::vector<token>& tokens) {
  auto event = cache_event{};
  event.kind = event_kind::stored;
  event.hash = hash;
  event.parent_hash = parent;
  event.origin = is_first ? no_block : block_id{0};
  event.tokens = tokens;
  return event;
}

cache_event evicted(std::uint64_t hash) {
  auto event = cache_event{};
  event.kind = event_kind::evicted;
  event.hash = hash;
  return event;
}

cache_event reset() {
  auto event = cache_event{};
  event.kind = event_kind::reset;
  return event;
}

TEST_CASE("a batch is written as vLLM writes it", "[wire]") {
  const auto one = numbered(2, 5);
  const auto two = numbered(2, 70'000);
  const auto three = numbered(2, -1);
  auto arrays = batch_writer{wire_encoding::arrays};
  auto maps = batch_writer{wire_encoding::maps, "GPU", 3};
  for (auto* writer : {&arrays, &maps}) {
    writer->add(stored(11, 99, true, one));
    writer->add(stored(0xffff'ffff'ffff'ffffU, 11, false, two));  // behind it: one event with it
    writer->add(stored(13, 11, false, three));                    // a branch: an event of its own
    writer->add(evicted(11));
    writer->add(evicted(13));
    writer->add(reset());
    CHECK(writer->num_events() == 4);
  }
  const auto first_hashes = json::array({11U, 0xffff'ffff'ffff'ffffU});
  const auto first_tokens = json::array({5, 6, 70'000, 70'001});
  CHECK(unpacked(arrays.finish(1.5)) ==
        json::array({1.5,
                     json::array({json::array({"BlockStored", first_hashes, nullptr, first_tokens, 2, nullptr, "GPU",
                                               nullptr, json::array({nullptr, nullptr})}),
                                  json::array({"BlockStored", json::array({13}), 11, json::array({-1, 0}), 2, nullptr,
                                               "GPU", nullptr, json::array({nullptr})}),
                                  json::array({"BlockRemoved", json::array({11, 13}), "GPU"}),
                                  json::array({"AllBlocksCleared"})}),
                     nullptr}));
  const auto written = unpacked(maps.finish(2));
  CHECK(written.at(2) == 3);
  CHECK(written.at(1).at(0) == json{{"type", "BlockStored"},
                                    {"block_hashes", first_hashes},
                                    {"parent_block_hash", nullptr},
                                    {"token_ids", first_tokens},
                                    {"block_size", 2},
                                    {"lora_id", nullptr},
                                    {"medium", "GPU"},
                                    {"lora_name", nullptr},
                                    {"extra_keys", json::array({nullptr, nullptr})}});
  CHECK(written.at(1).at(2) ==
        json{{"type", "BlockRemoved"}, {"block_hashes", json::array({11, 13})}, {"medium", "GPU"}});
  CHECK(written.at(1).at(3) == json{{"type", "AllBlocksCleared"}});
}

TEST_CASE("salt and prefix keys are written as extra keys of their block", "[wire]") {
  const auto tokens = numbered(2, 0);
  const auto keys = std::vector<prefix_key>{{1, {7, 8}}};
  auto writer = batch_writer{wire_encoding::arrays};
  auto first = stored(1, 0, true, tokens);
  first.salt = salt{42};
  writer.add(first);
  auto second = stored(2, 1, false, tokens);
  second.salt = salt{42};
  second.keys = keys;
  writer.add(second);
  CHECK(unpacked(writer.finish(0)).at(1).at(0).at(8) == json::array({json::array({42}), json::array({1, 7, 8})}));
}

TEST_CASE("adapters are written, read and indexed as vLLM names them", "[wire]") {
  const auto base = numbered(4, 0);
  const auto keys = std::vector<prefix_key>{{1, {7, 8}}};
  const auto adapter_of = [](salt tag) {
    return tag == salt{42} ? std::optional{wire_adapter{3, "french"}} : std::nullopt;
  };
  for (const auto encoding : {wire_encoding::arrays, wire_encoding::maps}) {
    auto writer = batch_writer{encoding, "GPU", std::nullopt, adapter_of};
    auto first = stored(1, 0, true, base);
    first.salt = salt{42};
    auto second = stored(2, 1, false, base);
    second.salt = salt{42};
    second.keys = keys;
    auto of_model = stored(3, 0, true, base);
    of_model.salt = salt{7};
    for (const auto& event : {first, second, of_model}) {
      writer.add(event);
    }
    const auto payload = std::string{writer.finish(0)};
    const auto written = unpacked(payload).at(1);
    const bool maps = encoding == wire_encoding::maps;
    CHECK((maps ? written.at(0).at("lora_id") : written.at(0).at(5)) == 3);
    CHECK((maps ? written.at(0).at("lora_name") : written.at(0).at(7)) == "french");
    CHECK((maps ? written.at(0).at("extra_keys") : written.at(0).at(8)) ==
          json::array({json::array({"french"}), json::array({"french", 1, 7, 8})}));
    CHECK((maps ? written.at(1).at("lora_id") : written.at(1).at(5)) == nullptr);

    const auto batch = read_batch(payload).value();
    CHECK(batch.events.at(0).adapter_id == 3);
    CHECK(batch.events.at(0).adapter == "french");
    CHECK(batch.events.at(0).extras.at(0) == 0);
    CHECK(batch.events.at(0).extras.at(1) != 0);
    CHECK(batch.events.at(1).adapter.empty());
    CHECK(batch.events.at(1).extras.at(0) != 0);

    auto index = worker_index{{.num_blocks = 64, .num_workers = 2}};
    const auto scheme = llm_d_keys{"model"};
    auto feed = worker_feed<llm_d_keys>{index, worker_id{0}, scheme};
    apply(batch, feed);
    const auto french = scheme.with_adapter("french");
    CHECK(french.first(base) == llm_d_keys{"french"}.first(base));
    CHECK(index.holds(worker_id{0}, french.first(base)));
    CHECK(index.holds(worker_id{0}, french.next(french.first(base), base)));
    CHECK(index.holds(worker_id{0}, scheme.first(base)));
    CHECK(!index.holds(worker_id{0}, scheme.next(scheme.first(base), base)));

    auto own = worker_feed<cache_keys>{index, worker_id{1}, cache_keys{1}};
    apply(batch, own);
    CHECK(own.num_foreign() == 2);
    CHECK(own.num_blocks() == 1);
  }
}

TEST_CASE("an adapter's number alone is not indexed but counted, and other extra keys are told apart", "[wire]") {
  const auto event = [](const json& number, const json& extra) {
    return json::array({"BlockStored", json::array({1}), nullptr, json::array({5, 6}), 2, number, "GPU", nullptr,
                        json::array({extra})});
  };
  const auto read = [&](const json& number, const json& extra) {
    return read_batch(packed(json::array({0.0, json::array({event(number, extra)})}))).value();
  };
  auto index = worker_index{{.num_blocks = 64, .num_workers = 2}};
  auto feed = worker_feed<dynamo_keys>{index, worker_id{0}, dynamo_keys{}};
  apply(read(4, json::array({"?"})), feed);
  CHECK(feed.num_blocks() == 0);
  CHECK(feed.num_foreign() == 1);
  apply(read(4, json::array({"?"})), feed, "CPU");  // another medium is nothing of this index's
  apply(read(nullptr, nullptr), feed);
  CHECK(feed.num_blocks() == 1);
  CHECK(feed.num_foreign() == 1);
  const auto extra = [&](const json& value) { return read(nullptr, value).events.at(0).extras.at(0); };
  CHECK(extra(nullptr) == 0);
  CHECK(extra(json::array({"image", 3})) == extra(json::array({json::array({"image", 3})})));
  CHECK(extra(json::array({"image", 3})) != extra(json::array({"image", 4})));
  CHECK(extra(json::array({"image"})) != extra(json::array({"salt"})));
}

TEST_CASE("events of a cache with groups name the group and its kind", "[wire]") {
  const auto tokens = numbered(2, 0);
  auto of_group = stored(1, 0, true, tokens);
  of_group.group = 1;
  of_group.layers = group_kind::latent;
  auto gone = evicted(1);
  gone.group = 1;
  for (const auto encoding : {wire_encoding::arrays, wire_encoding::maps}) {
    auto writer = batch_writer{encoding};
    writer.add(of_group);
    writer.add(gone);
    const auto payload = std::string{writer.finish(0)};
    const auto events = unpacked(payload).at(1);
    const bool maps = encoding == wire_encoding::maps;
    CHECK((maps ? events.at(0).at("group_idx") : events.at(0).at(9)) == 1);
    CHECK((maps ? events.at(0).at("kv_cache_spec_kind") : events.at(0).at(10)) == "mla_attention");
    CHECK((maps ? events.at(1).at("group_idx") : events.at(1).at(3)) == 1);
    const auto read = read_batch(payload).value();
    CHECK(read.events.at(0).group == 1);
    CHECK(read.events.at(1).group == 1);
  }
}

TEST_CASE("an event that has not been finished is in its batch only", "[wire]") {
  auto writer = batch_writer{wire_encoding::arrays};
  CHECK(writer.empty());
  writer.add(evicted(1));
  CHECK_FALSE(writer.empty());
  CHECK(unpacked(writer.finish(0)).at(1).size() == 1);
  writer.clear();
  CHECK(writer.empty());
  CHECK(unpacked(writer.finish(0)).at(1).empty());
}

TEST_CASE("nothing of an event that was given up is in the next batch", "[wire]") {
  const auto tokens = numbered(2, 0);
  const auto keys = std::vector<prefix_key>{{1, {7, 8}}};
  auto writer = batch_writer{wire_encoding::arrays};
  auto given_up = stored(1, 0, true, tokens);
  given_up.keys = keys;
  writer.add(given_up);
  writer.clear();
  writer.add(stored(2, 0, true, tokens));
  CHECK(unpacked(writer.finish(0)).at(1).at(0).at(8) == json::array({nullptr}));
}

TEST_CASE("a large batch outgrows its buffer", "[wire]") {
  const auto encoding = GENERATE(wire_encoding::arrays, wire_encoding::maps);
  const auto tokens = numbered(512, 100'000);
  auto writer = batch_writer{encoding};
  for (auto i = std::uint64_t{0}; i < 300; ++i) {
    writer.add(stored(i + 1, i, i == 0, tokens));
    if (i % 7 == 0) {
      writer.add(evicted(i));
    }
  }
  const auto read = read_batch(writer.finish(0)).value();
  auto num_tokens = std::size_t{0};
  for (const auto& event : read.events) {
    num_tokens += event.tokens.size();
  }
  CHECK(num_tokens == 300 * 512);
}

TEST_CASE("both encodings read alike", "[wire]") {
  const auto tokens = numbered(4, 0);
  const auto arrays = json::array(
      {0.5,
       json::array({json::array({"BlockStored", json::array({1, 2}), 9, json::array({0, 1, 2, 3}), 2, nullptr, "GPU"}),
                    json::array({"BlockRemoved", json::array({-1}), "CPU", 3}), json::array({"AllBlocksCleared"}),
                    json::array({"BlockUpdated", 1, json::object({{"new", true}})})}),
       4});
  const auto maps = json::array(
      {0.5,
       json::array(
           {json{{"type", "BlockStored"},
                 {"block_hashes", json::array({1, 2})},
                 {"parent_block_hash", 9},
                 {"token_ids", json::array({0, 1, 2, 3})},
                 {"block_size", 2},
                 {"medium", "GPU"},
                 {"group_idx", 0},
                 {"locality", json::array({"a", json::object()})},
                 {"kv_cache_spec_kind", "full_attention"}},
            json{{"group_idx", 3}, {"medium", "CPU"}, {"block_hashes", json::array({-1})}, {"type", "BlockRemoved"}},
            json{{"type", "AllBlocksCleared"}}, json{{"type", "BlockUpdated"}}}),
       4});
  auto expected = wire_batch{.timestamp = 0.5, .events = {}, .rank = 4, .num_unknown = 1};
  expected.events.push_back({wire_kind::stored, {1, 2}, 9, tokens, 2, "GPU", 0});
  expected.events.push_back({wire_kind::removed, {~std::uint64_t{0}}, std::nullopt, {}, 0, "CPU", 3});
  expected.events.push_back({wire_kind::cleared, {}, std::nullopt, {}, 0, "", 0});
  CHECK(read_batch(packed(arrays)).value() == expected);
  CHECK(read_batch(packed(maps)).value() == expected);
}

TEST_CASE("stored blocks without tokens are read, and left out of an index", "[wire]") {
  const auto both =
      json::array({"BlockStored", json::array({1, 2}), nullptr, json::array({0, 1, 2, 3}), 2, nullptr, "GPU"});
  const auto offloaded = json::array({"BlockStored", json::array({1, 2}), nullptr, json::array(), 0, nullptr, "CPU"});
  const auto listed = json{{"type", "BlockStored"},
                           {"block_hashes", json::array({1, 7})},
                           {"parent_block_hash", nullptr},
                           {"token_ids", json::array()},
                           {"block_size", 2},
                           {"medium", "GPU"}};
  const auto batch = read_batch(packed(json::array({0, json::array({both, offloaded, listed})}))).value();
  REQUIRE(batch.events.size() == 3);
  CHECK(batch.events[1] == wire_event{wire_kind::stored, {1, 2}, std::nullopt, {}, 0, "CPU", 0});
  CHECK(batch.events[2] == wire_event{wire_kind::stored, {1, 7}, std::nullopt, {}, 2, "GPU", 0});

  auto index = worker_index{{.num_blocks = 64}};
  auto feed = worker_feed{index, worker_id{0}, dynamo_keys{}};
  apply(batch, feed);
  CHECK(feed.num_blocks() == 2);
  feed.removed(1);
  CHECK(feed.num_blocks() == 1);
}

TEST_CASE("a hash of bytes becomes one of 64 bits", "[wire]") {
  const auto digest = std::vector<std::uint8_t>(32, 0xab);
  const auto batch =
      json::array({0, json::array({json::array({"BlockRemoved", json::array({json::binary(digest)})})}), nullptr});
  const auto read = read_batch(packed(batch)).value();
  CHECK(read.events.at(0).hashes == std::vector<std::uint64_t>{XXH3_64bits(digest.data(), digest.size())});
}

TEST_CASE("what is no batch is refused", "[wire]") {
  for (const auto& other : {json(nullptr), json(7), json::array({1}), json::array({0, 5}),
                            json::array({"now", json::array()}), json::array({0, json::array(), "rank"})}) {
    INFO(other);
    CHECK(read_batch(packed(other)).has_error());
  }
  CHECK(test::said(read_batch("")) == test::invalid("bytes of a batch of KV events, which cannot be read, is 0"));
}

TEST_CASE("counts above what the bytes left can hold are refused", "[wire]") {
  using namespace std::string_literals;
  const auto head = "\x93\xcb\0\0\0\0\0\0\0\0"s;  // an array of three, and a timestamp
  for (const auto& count : {"\xdd\xff\xff\xff\xff"s, "\xdd\x80\0\0\0"s, "\xdd\0\0\0\x02"s, "\xdc\0\x02"s, "\x92"s,
                            "\xdf\xff\xff\xff\xff"s, "\xdf\x80\0\0\0"s, "\xdf\x7f\xff\xff\xff"s, "\x82"s,
                            "\xdb\xff\xff\xff\xff"s, "\xc6\xff\xff\xff\xff"s, "\xc9\xff\xff\xff\xff"s}) {
    for (const auto& before : {head, head + '\x91', head + "\x91\x92\xac"s + "BlockRemoved"}) {
      for (const auto& behind : {""s, "\x90"s}) {
        const auto message = before + count + behind;
        CHECK(read_copy(message).has_error());
      }
    }
  }
}

json stored_as_map(const json& hashes, const json& tokens, const json& block_size) {
  return {{"type", "BlockStored"}, {"block_hashes", hashes},   {"parent_block_hash", nullptr},
          {"token_ids", tokens},   {"block_size", block_size}, {"lora_id", nullptr},
          {"medium", "GPU"},       {"lora_name", nullptr}};
}

TEST_CASE("an event that cannot be understood is left out, and those beside it stay", "[wire]") {
  const auto pairs = json::array({json::array({1, 2}), json::array({2, 3})});
  const auto removed = json::array({"BlockRemoved", json::array({9}), "GPU"});
  for (const auto& odd : {
           stored_as_map(json::array({1}), pairs, 2),  // of a draft model's pairs of tokens
           stored_as_map(json::array({1, 2}), json::array({1, 2, 3, 4, 5, 6}),
                         2),  // of three blocks, one of which has no hash
           stored_as_map(json::array({1}), json::array({1, 2, 3}), 2),
           stored_as_map(json::array({1}), json::array({1, std::int64_t{1} << 40}), 2),
           stored_as_map(json::array({1}), json::array({1, 2}), "two"),
           stored_as_map(7, json::array({1, 2}), 2),
           json{{"type", "BlockMoved"}, {"block_hashes", "?"}},
           json{{"type", 3}},
           json{{"no", "type"}},
           json::object(),
           json::array({"BlockStored", 1}),
           json::array({"BlockMoved", 1}),
           json::array({3}),
           json::array(),
           json(7),
           json("BlockStored"),
           json(nullptr),
       }) {
    INFO(odd);
    const auto batch = read_batch(packed(json::array({0.5, json::array({removed, odd, removed}), 1})));
    REQUIRE(batch);
    CHECK(batch->num_unknown == 1);
    CHECK(batch->rank == 1);
    REQUIRE(batch->events.size() == 2);
    CHECK(batch->events.front() == batch->events.back());
    CHECK(batch->events.front().hashes == std::vector<std::uint64_t>{9});
  }
}

TEST_CASE("nil stands for what a worker does not say", "[wire]") {
  auto event = stored_as_map(json::array({1}), nullptr, nullptr);
  event["extra_keys"] = event["group_idx"] = event["block_offsets"] = nullptr;
  const auto batch = read_batch(packed(json::array({0, json::array({event}), nullptr}))).value();
  CHECK(batch.num_unknown == 0);
  CHECK(batch.events == std::vector{wire_event{wire_kind::stored, {1}, std::nullopt, {}, 0, "GPU", 0}});
}

TEST_CASE("a removal that cannot be understood makes its batch one, since its blocks would stay", "[wire]") {
  for (const auto& odd : {json::array({"BlockRemoved", 9}), json::array({"BlockRemoved", json::array({json::array()})}),
                          json{{"type", "BlockRemoved"}, {"block_hashes", json::array({9})}, {"group_idx", "first"}},
                          json{{"type", "AllBlocksCleared"}, {"medium", 3}}}) {
    INFO(odd);
    CHECK(read_batch(packed(json::array({0, json::array({odd})}))).has_error());
  }
}

/// Batches of every form that the reader knows.
std::vector<std::string> whole_batches() {
  auto batches = std::vector<std::string>{};
  const auto tokens = numbered(4, 60'000);
  const auto keys = std::vector<prefix_key>{{1, {7, 8}}};
  for (const auto encoding : {wire_encoding::arrays, wire_encoding::maps}) {
    auto writer = batch_writer{encoding, "GPU", 1, [](salt) { return std::optional{wire_adapter{3, "french"}}; }};
    auto first = stored(1, 0, true, tokens);
    first.salt = salt{1};
    auto second = stored(~std::uint64_t{0}, 1, false, tokens);
    second.salt = salt{1};
    second.keys = keys;
    for (const auto& event : {first, second, evicted(1), reset()}) {
      writer.add(event);
    }
    batches.emplace_back(writer.finish(1));
  }
  const auto digest = json::binary(std::vector<std::uint8_t>(32, 0xab));
  auto offloaded = stored_as_map(json::array({digest}), json::array(), 0);
  offloaded["extra_keys"] = json::array({json::array({"image", json::array({1, digest}), 2.5, true})});
  batches.push_back(
      packed(json::array({0.5, json::array({offloaded, json{{"type", "New"}, {"of", offloaded}}}), nullptr})));
  return batches;
}

/// Changes bits, whole bytes, and runs of bytes, of which heads of MessagePack with large counts are some.
void mutate(std::vector<char>& bytes, const std::vector<std::string>& others, std::mt19937& random) {
  static constexpr char heads[] =
      "\xdd\xff\xff\xff\xff\xdf\x80\0\0\0\xdc\xff\xff\xde\0\x40\xdb\xff\xff\xff\xff\xc6\xff\xc1\xc9\xc0";
  const auto place = [&](std::size_t size) { return static_cast<std::ptrdiff_t>(random() % (size + 1)); };
  const auto at = place(bytes.size() - 1);
  switch (random() % 6) {
    case 0: bytes[static_cast<std::size_t>(at)] ^= static_cast<char>(1 << random() % 8); break;
    case 1: bytes[static_cast<std::size_t>(at)] = static_cast<char>(random()); break;
    case 2: bytes.resize(static_cast<std::size_t>(at) + 1); break;
    case 3: {
      const auto begin = place(sizeof heads - 6);
      bytes.insert(bytes.begin() + at, heads + begin, heads + begin + 5);
      break;
    }
    case 4: {
      const auto& other = others[random() % others.size()];
      const auto begin = place(other.size() - 1);
      const auto size = std::min<std::ptrdiff_t>(place(16), static_cast<std::ptrdiff_t>(other.size()) - begin);
      bytes.insert(bytes.begin() + at, other.begin() + begin, other.begin() + begin + size);
      break;
    }
    default: bytes.erase(bytes.begin() + at, bytes.begin() + std::min(at + place(8), std::ssize(bytes) - 1));
  }
}

/// AddressSanitizer sees what is read past the end of a message. PAGEDKV_TEST_FULL=1 runs 100 times as many.
TEST_CASE("a million mutated batches are refused or read, and nothing beyond them is", "[wire][random]") {
  auto random = std::mt19937{Catch::getSeed()};
  const auto whole = whole_batches();
  for (const auto& batch : whole) {
    REQUIRE(read_batch(batch));
    for (std::size_t size = 0; size < batch.size(); ++size) {
      CHECK(read_copy(batch.substr(0, size)).has_error());
    }
  }
  const auto num_runs = testing::scaled(1'000'000, 100'000'000);
  auto num_read = 0;
  auto index = worker_index{{.num_blocks = 64}};
  for (auto i = 0; i < num_runs; ++i) {
    const auto& origin = whole[random() % whole.size()];
    auto bytes = std::vector<char>(origin.begin(), origin.end());
    for (auto mutations = 1 + random() % 3; mutations > 0; --mutations) {
      mutate(bytes, whole, random);
    }
    if (const auto batch = read_copy({bytes.data(), bytes.size()})) {
      auto feed = worker_feed{index, worker_id{0}, dynamo_keys{}};
      apply(*batch, feed);
      ++num_read;
    }
  }
  CHECK(num_read > num_runs / 20);
}

}  // namespace
