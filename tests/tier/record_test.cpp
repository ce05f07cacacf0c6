#include "../support/small_config.hpp"
#include "damage.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/element/int8.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/policy/tiers/concept.hpp>
#include <pagedkv/tier/record.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

struct alignas(record_alignment) unit {
  std::array<std::byte, record_alignment> bytes{};
};

/// One sealed record, with what it holds.
struct sealed {
  kv_cache<> cache{small_config(4)};
  record_format format = make_record_format(cache.view(), "float32", "tiny model");
  std::array<token, 4> tokens{1, 2, 3, 4};
  std::vector<prefix_key> keys;
  record_identity identity;
  std::vector<unit> memory{format.record_bytes() / record_alignment};

  explicit sealed(std::vector<prefix_key> with = {{9, {10, 11}}}) : keys(std::move(with)) {
    const auto root = root_key(salt{7});
    identity = {chained_key(root, {tokens, keys}), root, salt{7}, 8, {tokens, keys}};
    auto random = std::mt19937{1};
    std::ranges::generate(payload(), [&] { return static_cast<std::byte>(random()); });
  }

  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span{memory}); }
  std::span<std::byte> payload() { return bytes().subspan(format.header_bytes(), format.payload_bytes()); }
  bool seal() { return seal_record(format, identity, bytes()); }
  record_fault verify() { return verify_record(format, identity, bytes()); }
};

}  // namespace

TEST_CASE("a sealed record is whole, and its header says what it holds", "[tier]") {
  auto record = sealed{};
  REQUIRE(record.seal());
  CHECK(record.verify() == record_fault::none);
  const auto [fault, found] = read_record_header(record.format, record.bytes().first(record.format.header_bytes()));
  REQUIRE(fault == record_fault::none);
  CHECK(found.key == record.identity.key);
  CHECK(found.parent == root_key(salt{7}));
  CHECK(found.salt == salt{7});
  CHECK(found.position == 8);
  CHECK(std::ranges::equal(found.contents.tokens, record.tokens));
  CHECK(std::ranges::equal(found.contents.keys, record.keys));
}

TEST_CASE("the text of a format has all that tells where a number is", "[tier]") {
  const auto cache = kv_cache<int8, hnd_layer_major>{small_config(4)};
  CHECK(make_record_format(cache.view(), "int8", "tiny model").text ==
        "pagedkv record 3 block_size=4 layers=3 heads=2 head_dim=8 value_dim=8 layer_bytes=256 value=64 key_scales=128 "
        "value_scales=160 token=8 head=32 value_token=0 value_head=0 scale_token=1 scale_head=4 "
        "pieces,0,0,0,0,0,0,0,0,0,0 element=int8 model=tiny model");
}

TEST_CASE("a record torn at any byte of its header is damaged", "[tier]") {
  auto older = sealed{};
  older.tokens.front() = 100;
  std::ranges::fill(older.payload(), std::byte{5});
  older.identity.key = chained_key(older.identity.parent, {older.tokens, older.keys});
  REQUIRE(older.seal());
  auto record = sealed{};
  REQUIRE(record.seal());
  const auto whole = std::vector<std::byte>(record.bytes().begin(), record.bytes().end());
  const auto nothing = std::vector<std::byte>(whole.size());
  const auto another = std::vector<std::byte>(older.bytes().begin(), older.bytes().end());
  const auto filled = record.format.header_bytes();
  for (auto written = std::size_t{0}; written < filled; ++written) {
    CAPTURE(written);
    for (const auto* const before : {&nothing, &another}) {
      std::ranges::copy(*before, record.bytes().begin());
      std::copy_n(whole.begin(), written, record.bytes().begin());
      CHECK(record.verify() != record_fault::none);
    }
  }
}

TEST_CASE("a record that is damaged anywhere, or cut, is refused", "[tier]") {
  auto record = sealed{};
  REQUIRE(record.seal());
  auto copy = std::vector<unit>(record.memory.size());  // aligned, as readers have it
  const auto header_bytes = record.format.header_bytes();
  const auto refuses = [&](std::span<const std::byte> damaged) {
    const auto bytes = std::as_writable_bytes(std::span{copy}).first(damaged.size());
    std::ranges::copy(damaged, bytes.begin());
    const auto header = bytes.first(std::min(bytes.size(), header_bytes));
    const auto is_header = std::ranges::equal(header, record.bytes().first(header_bytes));
    return verify_record(record.format, record.identity, bytes) != record_fault::none &&
           (read_record_header(record.format, header).fault == record_fault::none) == is_header;
  };
  testing::damage_everywhere({record.bytes().begin(), record.bytes().end()}, refuses);
  CHECK(!refuses(record.bytes()));
}

TEST_CASE("a whole record of other contents is not the one that was asked for", "[tier]") {
  auto record = sealed{};
  REQUIRE(record.seal());
  const auto check = [&](const std::function<void(record_identity&)>& change) {
    auto other = record.identity;
    change(other);
    CHECK(verify_record(record.format, other, record.bytes()) == record_fault::other_contents);
  };
  const auto tokens = std::array<token, 4>{1, 2, 3, 5};
  const auto keys = std::array{prefix_key{9, {10, 12}}};
  check([](auto& other) { ++other.key.low; });
  check([](auto& other) { ++other.key.high; });
  check([](auto& other) { other.parent = {}; });
  check([](auto& other) { other.salt = salt{8}; });
  check([](auto& other) { other.position = 4; });
  check([&](auto& other) { other.contents.tokens = tokens; });
  check([&](auto& other) { other.contents.keys = keys; });
  check([&](auto& other) { other.contents.keys = {}; });
}

TEST_CASE("a sealed record whose position no sequence has is none", "[tier]") {
  constexpr auto largest = std::numeric_limits<std::int64_t>::max();
  auto record = sealed{};
  const auto fault_at = [&](std::int64_t position) {
    record.identity.position = position;
    REQUIRE(record.seal());
    return read_record_header(record.format, record.bytes()).fault;
  };
  CHECK(fault_at(largest - 4) == record_fault::none);
  for (const auto position : {largest - 3, largest, std::int64_t{-1}, std::numeric_limits<std::int64_t>::min()}) {
    CHECK(fault_at(position) == record_fault::damaged);
    CHECK(record.verify() == record_fault::damaged);
  }
}

TEST_CASE("records of different formats are never exchanged", "[tier]") {
  auto record = sealed{};
  REQUIRE(record.seal());
  const auto view = record.cache.view();
  CHECK(verify_record(make_record_format(view, "float16", "tiny model"), record.identity, record.bytes()) ==
        record_fault::other_format);
  CHECK(verify_record(make_record_format(view, "float32", "other model"), record.identity, record.bytes()) ==
        record_fault::other_format);
  auto order = view;
  std::swap(order.token_stride, order.head_stride);
  CHECK(verify_record(make_record_format(order, "float32", "tiny model"), record.identity, record.bytes()) ==
        record_fault::other_format);
  auto pieces = view;
  pieces.value_pieces.dim_stride += 1;
  CHECK(verify_record(make_record_format(pieces, "float32", "tiny model"), record.identity, record.bytes()) ==
        record_fault::other_format);
}

TEST_CASE("keys that do not fit into a header make a block that is not recorded", "[tier]") {
  const auto most = record_alignment / sizeof(prefix_key);
  auto keys = std::vector<prefix_key>(most);
  auto record = sealed{std::move(keys)};
  CHECK(!record.seal());
}

TEST_CASE("keys of records tell chains apart", "[tier]") {
  const auto a = std::array<token, 2>{1, 2};
  const auto b = std::array<token, 2>{3, 4};
  const auto root = root_key(salt{1});
  CHECK(root != root_key(salt{2}));
  CHECK(chained_key(root, a) != chained_key(root, b));
  CHECK(chained_key(root, a) != chained_key(root_key(salt{2}), a));
  CHECK(chained_key(chained_key(root, a), b) != chained_key(chained_key(root, b), a));
  const auto keys = std::array{prefix_key{0, {1, 0}}};
  CHECK(chained_key(root, a) != chained_key(root, {a, keys}));
  CHECK(chained_key(root, a) == chained_key(root_key(salt{1}), a));
}

TEST_CASE("views of records name the same bytes of a block, one record after the other", "[tier]") {
  const auto cache = kv_cache<>{small_config(4)};
  const auto device = cache.view();
  const auto format = make_record_format(device, "float32", "");
  auto memory = std::vector<unit>(2 * format.record_bytes() / record_alignment);
  const auto records =
      format.payloads(device, memory.front().bytes.data() + format.header_bytes(), format.record_bytes(), 2);
  CHECK(records.layer_bytes() == device.layer_bytes());
  CHECK(records.block(0, 1) - records.block(0, 0) == static_cast<std::ptrdiff_t>(format.record_bytes()));
  CHECK(records.block(2, 0) - records.block(0, 0) == 2 * device.layer_bytes());
  CHECK(format.record_bytes() % record_alignment == 0);
  CHECK(records.block(0, 0) == memory.front().bytes.data() + format.header_bytes());
}
