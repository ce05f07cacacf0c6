#include "../support/first_difference.hpp"
#include "../support/printing.hpp"
#include "../support/strided_rows.hpp"
#include "storage_under_test.hpp"

#include <pagedkv/core/ids.hpp>
#include <pagedkv/host/backend.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include <sys/mman.h>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

constexpr auto stream = host_backend::stream_type{};

/// Every slot once in random order, with a negative slot before every third one.
template <class Random>
std::vector<slot> shuffled_slots(const block_storage_view& view, Random& random) {
  auto positions = std::vector<std::int64_t>(static_cast<std::size_t>(view.num_blocks * view.block_size));
  std::iota(positions.begin(), positions.end(), 0);
  std::shuffle(positions.begin(), positions.end(), random);
  positions.resize(std::max<std::size_t>(1, positions.size() / 2));
  auto slots = std::vector<slot>{};
  for (const auto position : positions) {
    if (slots.size() % 3 == 0) {
      slots.push_back(slots.size() % 2 == 0 ? skip_slot : slot{std::numeric_limits<std::int64_t>::min()});
    }
    slots.push_back(slot{position});
  }
  return slots;
}

/// Bytes from the base to one row of K (`which` 0) or V (1), and to its scale: the documented layout, spelled out.
struct position {
  std::int64_t row;
  std::int64_t scale;
};

template <class Storage>
position locate(const Storage& storage, std::int64_t layer, slot s, std::int64_t head, std::int64_t which) {
  using element = typename Storage::element_type;
  using layout = typename Storage::layout_type;
  const auto& view = storage.view();
  const auto rows = std::int64_t{view.block_size} * view.num_kv_heads;
  const auto row_bytes = std::int64_t{view.head_dim} * static_cast<std::int64_t>(sizeof(typename element::storage));
  const auto scales_start = (2 * rows * row_bytes + 3) / 4 * 4;
  const auto layer_bytes = (scales_start + (element::scaled ? 2 * rows * 4 : 0) + 255) / 256 * 256;
  const auto block = static_cast<std::int64_t>(s) / view.block_size;
  const auto offset = static_cast<std::int64_t>(s) % view.block_size;
  const auto start = (layout::storage == storage_order::layer_major ? layer * view.num_blocks + block
                                                                    : block * view.num_layers + layer) *
                     layer_bytes;
  const auto row =
      layout::dimensions == dimension_order::nhd ? offset * view.num_kv_heads + head : head * view.block_size + offset;
  return {start + (which * rows + row) * row_bytes, start + scales_start + (which * rows + row) * 4};
}

/// Writes the expected result of appending `rows` into a copy of the storage's bytes.
template <class Storage>
void expect_appended(std::vector<std::byte>& bytes, const Storage& storage, std::int64_t layer,
                     const std::vector<slot>& slots, const strided_rows& rows, std::int64_t which) {
  using element = typename Storage::element_type;
  auto stored = std::vector<typename element::storage>(static_cast<std::size_t>(storage.view().head_dim));
  for (auto i = std::size_t{0}; i < slots.size(); ++i) {
    for (auto head = 0; slots[i] >= slot{0} && head < storage.view().num_kv_heads; ++head) {
      const auto scale = encode_row<element>(rows.row(static_cast<std::int64_t>(i), head), stored,
                                             storage.scales().of(which == 1, layer, head));
      const auto at = locate(storage, layer, slots[i], head, which);
      std::memcpy(bytes.data() + at.row, stored.data(), stored.size() * sizeof(stored[0]));
      if (element::scaled) {
        std::memcpy(bytes.data() + at.scale, &scale, sizeof(scale));
      }
    }
  }
}

template <class Element>
bool close_enough(std::span<const float> written, std::span<const float> read, float given = 1) {
  if (std::is_same_v<Element, float32>) {
    return std::memcmp(written.data(), read.data(), written.size_bytes()) == 0;
  }
  const auto scale = Element::scaled ? Element::scale_for(absmax(written)) : given;
  for (auto i = std::size_t{0}; i < written.size(); ++i) {
    const auto bound = [&] {
      if constexpr (is_float8<Element>) {
        using format = typename Element::format;
        // Half a step, and the rounding of the product with the scale.
        const auto half_step = std::ldexp(0x1.0001p-1f, -static_cast<int>(format::mantissa_bits));
        const auto beyond = std::abs(written[i]) - scale * static_cast<float>(format::largest);
        return std::max({std::abs(written[i]) * half_step, scale * format::smallest * 0x1.0001p-1f, beyond});
      }
      return Element::scaled ? scale / 2 * (1 + 0x1p-15f) : std::abs(written[i]) * 0x1p-8f;
    }();
    const auto exact =
        std::is_same_v<Element, int8> || read[i] == Element::decode(Element::encode(written[i], scale), scale);
    if (!exact || std::abs(read[i] - written[i]) > bound) {
      return false;
    }
  }
  return true;
}

struct no_scales {
  float operator()(std::int64_t) const { return 1; }
};

/// Whether token i was read from its slot, or is unchanged if the slot is negative. `given(head)`: static scales.
template <class Element, class Given = no_scales>
bool read_back(const std::vector<slot>& slots, const strided_rows& written, const strided_rows& read,
               std::int64_t heads, Given given = {}) {
  for (auto i = std::size_t{0}; i < slots.size(); ++i) {
    for (auto head = std::int64_t{0}; head < heads; ++head) {
      const auto token = static_cast<std::int64_t>(i);
      const auto row = read.row(token, head);
      const bool right = slots[i] < slot{0}
                             ? std::all_of(row.begin(), row.end(), [](float x) { return x == strided_rows::canary; })
                             : close_enough<Element>(written.row(token, head), row, given(head));
      if (!right) {
        return false;
      }
    }
  }
  return true;
}

/// Appends rows to every layer of a storage and gathers them again.
template <class Storage>
void append_and_gather() {
  using element = typename Storage::element_type;
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937{seed};
  auto backend = host_backend{};
  for (const auto block_size : {1, 5, 16, 256}) {
    CAPTURE(block_size);
    const auto storage = Storage{small_config(block_size)};
    const auto& view = storage.view();
    auto expected = storage.bytes();
    for (const auto layer : {1, 2, 0}) {
      const auto slots = shuffled_slots(view, random);
      const auto tokens = static_cast<std::int64_t>(slots.size());
      auto keys = strided_rows{tokens, view.num_kv_heads, view.head_dim};
      auto values = strided_rows{tokens, view.num_kv_heads, view.head_dim, true};
      keys.fill(random, 1.0f);
      values.fill(random, 300.0f);
      REQUIRE(backend.append<element>(view, layer, slots, keys.input(), values.input(), stream));
      expect_appended(expected, storage, layer, slots, keys, 0);
      expect_appended(expected, storage, layer, slots, values, 1);
      CHECK(first_difference(storage.bytes(), expected) == no_difference);

      auto read_keys = strided_rows{tokens, view.num_kv_heads, view.head_dim, true};
      auto read_values = strided_rows{tokens, view.num_kv_heads, view.head_dim};
      REQUIRE(backend.gather<element>(view, layer, slots, read_keys.output(), read_values.output(), stream));
      const auto scale_of = [&](bool value) {
        return [&, value](std::int64_t head) { return storage.scales().of(value, layer, head); };
      };
      CHECK(read_back<element>(slots, keys, read_keys, view.num_kv_heads, scale_of(false)));
      CHECK(read_back<element>(slots, values, read_values, view.num_kv_heads, scale_of(true)));
      CHECK(read_keys.intact_around_rows());
      CHECK(read_values.intact_around_rows());
      CHECK(first_difference(storage.bytes(), expected) == no_difference);
    }
  }
}

}  // namespace

TEMPLATE_PRODUCT_TEST_CASE("appended rows are gathered again, and nothing else is touched", "[backend][random]",
                           (in_nhd_layer_major, in_nhd_block_major, in_hnd_layer_major, in_hnd_block_major),
                           (float32, float16, bfloat16, int8, float8_e4m3)) {
  append_and_gather<TestType>();
}

TEMPLATE_TEST_CASE("scales of a tensor, a head or a row reach the rows that they belong to", "[backend][random]",
                   in_hnd_block_major<basic_float8_e4m3<head_scale>>,
                   in_nhd_layer_major<basic_float8_e4m3<token_scale>>,
                   in_nhd_block_major<basic_float8_e5m2<head_scale>>, in_hnd_layer_major<float8_e4m3fnuz>,
                   in_nhd_layer_major<basic_float8_e5m2fnuz<token_scale>>) {
  append_and_gather<TestType>();
}

TEMPLATE_TEST_CASE("a layer or slot outside the storage is refused before anything is written", "[backend]",
                   in_nhd_layer_major<float32>, in_hnd_block_major<int8>) {
  using element = typename TestType::element_type;
  struct bad_call {
    std::int32_t layer;
    std::int64_t last_slot;
    const char* subject;
    std::int64_t value;
    std::int64_t limit;
  };
  constexpr auto far = std::numeric_limits<std::int64_t>::max();
  const bad_call calls[] = {{0, 35, "slot", 35, 34},
                            {0, far, "slot", far, 34},
                            {3, 34, "layer", 3, 2},
                            {-1, 34, "layer", -1, 0},
                            {std::numeric_limits<std::int32_t>::max(), 34, "layer", 0x7fffffff, 2}};
  const auto storage = TestType{small_config(5)};
  const auto before = storage.bytes();
  auto backend = host_backend{};
  auto random = std::mt19937{1};
  for (const auto& call : calls) {
    auto rows = strided_rows{3, 3, 20};
    rows.fill(random, 1.0f);
    const auto slots = std::vector{slot{0}, skip_slot, slot{call.last_slot}};
    const auto appended =
        backend.append<element>(storage.view(), call.layer, slots, rows.input(), rows.input(), stream);
    auto read = strided_rows{3, 3, 20};
    const auto gathered =
        backend.gather<element>(storage.view(), call.layer, slots, read.output(), read.output(), stream);
    for (const auto& outcome : {appended, gathered}) {
      REQUIRE_FALSE(outcome);
      CHECK(outcome.error().code == error_code::invalid_argument);
      CHECK(outcome.error().subject == std::string{call.subject});
      CHECK(outcome.error().value == call.value);
      CHECK(outcome.error().limit == call.limit);
    }
    CHECK(first_difference(storage.bytes(), before) == no_difference);
    CHECK(read_back<element>({skip_slot, skip_slot, skip_slot}, rows, read, 3));
  }
}

TEST_CASE("more slots than rows are refused", "[backend]") {
  auto storage = in_nhd_layer_major<float32>{small_config(4)};
  const auto before = storage.bytes();
  auto rows = strided_rows{2, 3, 20};
  auto enough = strided_rows{3, 3, 20};
  const auto slots = std::array{slot{0}, slot{1}, skip_slot};
  const auto input = rows.input();
  const auto output = rows.output();
  auto backend = host_backend{};
  const auto& view = storage.view();
  const auto appended = backend.append<float32>(view, 0, slots, enough.input(), input, stream);
  REQUIRE_FALSE(appended);
  CHECK(appended.error().message() == "invalid argument: number of slots, more than rows, is 3, limit 2");
  const auto without_values = backend.append<float32>(view, 0, slots, enough.input(), {}, stream);
  REQUIRE_FALSE(without_values);
  CHECK(without_values.error().message() ==
        "invalid argument: heads of values in token_rows, which are not the storage's, is 0, limit 3");
  CHECK_FALSE(backend.append<float32>(view, 0, slots, input, enough.input(), stream));
  CHECK_FALSE(backend.gather<float32>(view, 0, slots, output, output, stream));
  const auto uncounted = token_rows<const float>{input.data, input.token_stride, input.head_stride};
  CHECK_FALSE(backend.append<float32>(view, 0, slots, uncounted, uncounted, stream));
  CHECK(first_difference(storage.bytes(), before) == no_difference);
  CHECK(backend.append<float32>(view, 0, std::span{slots}.first(2), input, input, stream));
}

TEST_CASE("no slots and only skipped ones change nothing", "[backend]") {
  const auto storage = in_nhd_layer_major<float16>{small_config(16)};
  const auto before = storage.bytes();
  auto backend = host_backend{};
  const auto rows = strided_rows{2, 3, 20};
  CHECK(backend.append<float16>(storage.view(), 0, {}, {}, {}, stream));
  CHECK(backend.gather<float16>(storage.view(), 0, {}, {}, {}, stream));
  const auto skipped = std::vector{skip_slot, slot{-7}};
  CHECK(backend.append<float16>(storage.view(), 0, skipped, rows.input(), rows.input(), stream));
  CHECK(first_difference(storage.bytes(), before) == no_difference);
}

TEST_CASE("of equal slots the last one wins, and gathering may repeat slots", "[backend]") {
  const auto storage = in_hnd_layer_major<int8>{small_config(16)};
  auto backend = host_backend{};
  auto random = std::mt19937{2};
  auto rows = strided_rows{3, 3, 20};
  rows.fill(random, 1.0f);
  REQUIRE(backend.append<int8>(storage.view(), 2, std::vector{slot{9}, slot{8}, slot{9}}, rows.input(), rows.input(),
                               stream));
  auto read = strided_rows{2, 3, 20};
  auto also_read = strided_rows{2, 3, 20};
  const auto repeated = std::vector{slot{9}, slot{9}};
  REQUIRE(backend.gather<int8>(storage.view(), 2, repeated, read.output(), also_read.output(), stream));
  for (const auto head : {0, 1, 2}) {
    CHECK(close_enough<int8>(rows.row(2, head), read.row(0, head)));
    CHECK(close_enough<int8>(rows.row(2, head), read.row(1, head)));
  }
}

TEST_CASE("a NaN in one row leaves the other rows of its block unchanged", "[backend]") {
  const auto storage = in_nhd_layer_major<int8>{small_config(16)};
  auto backend = host_backend{};
  auto random = std::mt19937{3};
  auto rows = strided_rows{2, 3, 20};
  rows.fill(random, 1.0f);
  auto poisoned = rows;
  poisoned.output().data[0] = std::numeric_limits<float>::quiet_NaN();
  const auto slots = std::vector{slot{0}, slot{1}};
  REQUIRE(backend.append<int8>(storage.view(), 0, slots, poisoned.input(), rows.input(), stream));
  auto keys = strided_rows{2, 3, 20};
  auto values = strided_rows{2, 3, 20};
  REQUIRE(backend.gather<int8>(storage.view(), 0, slots, keys.output(), values.output(), stream));
  CHECK(std::isnan(keys.row(0, 0)[5]));
  CHECK(close_enough<int8>(rows.row(0, 1), keys.row(0, 1)));
  CHECK(close_enough<int8>(rows.row(1, 0), keys.row(1, 0)));
  CHECK(close_enough<int8>(rows.row(0, 0), values.row(0, 0)));
}

TEMPLATE_TEST_CASE("slots beyond 2^31 numbers, and their scales, are written and read", "[backend]",
                   in_nhd_layer_major<int8>, in_hnd_block_major<int8>) {
  using layout = typename TestType::layout_type;
  auto config = cache_config{};
  config.num_blocks = 40'000;
  config.num_layers = 4;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  auto plan = plan_storage<layout>(config, size_of_element<int8>).value();
  const auto length = static_cast<std::size_t>(plan.bytes);
  REQUIRE(plan.bytes > std::int64_t{5'000'000'000});
  // Reserved address space: only written pages take memory.
  auto* const reserved =
      ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(reserved != MAP_FAILED);
  plan.view.base = static_cast<std::byte*>(reserved);

  auto backend = host_backend{};
  auto random = std::mt19937{4};
  auto keys = strided_rows{2, 8, 128};
  auto values = strided_rows{2, 8, 128};
  keys.fill(random, 1.0f);
  values.fill(random, 2.0f);
  const auto slots = std::vector{slot{16 * 40'000 - 1}, slot{16 * 20'000}};
  REQUIRE(backend.append<int8>(plan.view, 3, slots, keys.input(), values.input(), stream));
  const auto pairs = std::vector{block_pair{39'999, 1}};
  REQUIRE(backend.copy_blocks(plan.view, pairs, stream));
  auto read_keys = strided_rows{2, 8, 128};
  auto read_values = strided_rows{2, 8, 128};
  const auto copied = std::vector{slot{31}, slots[1]};
  REQUIRE(backend.gather<int8>(plan.view, 3, copied, read_keys.output(), read_values.output(), stream));
  CHECK(read_back<int8>(copied, keys, read_keys, 8));
  CHECK(read_back<int8>(copied, values, read_values, 8));
  ::munmap(reserved, length);
}
