#include "check_storage.hpp"

#include <pagedkv/core/ids.hpp>
#include <pagedkv/device/allocators.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

namespace blocks_test {

using namespace pagedkv;
using namespace pagedkv::test;

template <class Target, class Layout>
struct combination {
  using target = Target;
  using layout_type = Layout;
};

template <class Layout>
using on_host = combination<host_target, Layout>;
template <class Layout>
using on_waves_of_64 = combination<hip_target<0>, Layout>;
template <class Layout>
using on_waves_of_32 = combination<hip_target<1>, Layout>;

std::vector<block_pair> random_pairs(std::int32_t num_blocks, std::size_t count, bool fan_out, std::mt19937& random) {
  auto destinations = std::vector<std::int32_t>(static_cast<std::size_t>(num_blocks));
  std::iota(destinations.begin(), destinations.end(), 0);
  auto sources = destinations;
  std::shuffle(destinations.begin(), destinations.end(), random);
  std::shuffle(sources.begin(), sources.end(), random);
  auto pairs = std::vector<block_pair>();
  for (auto i = std::size_t{0}; i < count; ++i) {
    pairs.push_back({fan_out ? sources[random() % sources.size()] : sources[i], destinations[i]});
  }
  return pairs;
}

/// Runs `operation(view)` on random blocks and compares every byte with `pairs` copied as if all were read first.
template <class Target, class Operation>
void check_moved(const Target& target, const storage_plan& layout, const std::vector<block_pair>& pairs,
                 std::mt19937& random, Operation operation) {
  auto expected = random_bytes(static_cast<std::size_t>(layout.bytes), random);
  const auto storage = target_array<std::byte, Target>(target, expected);
  REQUIRE(operation(at(layout.view, storage.data())));
  reference_move(expected, expected, layout.view, layout.view, pairs);
  REQUIRE(storage.values() == expected);
}

TEMPLATE_PRODUCT_TEST_CASE("Copied blocks are equal in every layer and every other byte stays", "[blocks]",
                           (on_host, on_waves_of_64, on_waves_of_32),
                           (nhd_by_layer, nhd_by_block, hnd_by_layer, hnd_by_block)) {
  using target_type = typename TestType::target;
  auto target = require_target<target_type>();
  auto random = std::mt19937(11);
  const auto layout = plan<int8, typename TestType::layout_type>(make_config(16, 12, 3, 2, 40));
  for (const auto& pairs : {std::vector<block_pair>{}, {{3, 7}}, {{0, 11}, {0, 5}, {10, 1}, {4, 2}}}) {
    check_moved(target, layout, pairs, random, [&](const block_storage_view& view) {
      const auto copied = target.backend.copy_blocks(view, pairs, target.stream());
      return copied ? target.backend.synchronize(target.stream()) : copied;
    });
  }
}

TEMPLATE_TEST_CASE("More pairs than one launch takes are copied and moved", "[blocks][random]", hip_target<0>,
                   hip_target<1>) {
  auto target = require_target<TestType>();
  auto random = std::mt19937(12);
  const auto layout = plan<float16, nhd_by_layer>(make_config(1, 1400, 2, 1, 16));
  auto pairs = std::vector<block_pair>();
  for (auto i = 0; i < 600; ++i) {
    pairs.push_back({i, 700 + i});
  }
  check_moved(target, layout, pairs, random,
              [&](const block_storage_view& view) { return target.backend.copy_blocks(view, pairs, target.stream()); });
  auto chain = std::vector<block_pair>();
  auto cycle = std::vector<block_pair>();
  for (auto i = 0; i < 699; ++i) {
    chain.push_back({i, i + 1});
    cycle.push_back({i, i + 1});
  }
  cycle.push_back({699, 0});
  auto exchanges = std::vector<block_pair>();
  for (auto i = 0; i < 600; i += 2) {
    exchanges.push_back({i, i + 1});
    exchanges.push_back({i + 1, i});
  }
  const auto mixed = random_pairs(1400, 1400, true, random);
  for (const auto& moves : {chain, cycle, exchanges, mixed}) {
    check_moved(target, layout, moves, random, [&](const block_storage_view& view) {
      return target.backend.move_blocks(view, moves, target.stream());
    });
  }
}

TEMPLATE_PRODUCT_TEST_CASE("Moves behave as if all blocks were read first", "[blocks][random]",
                           (on_host, on_waves_of_64, on_waves_of_32), (nhd_by_layer, nhd_by_block)) {
  using target_type = typename TestType::target;
  auto target = require_target<target_type>();
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937(seed);
  const auto move = [&](const std::vector<block_pair>& pairs) {
    return [&target, &pairs](const block_storage_view& view) {
      const auto moved = target.backend.move_blocks(view, pairs, target.stream());
      return moved ? target.backend.synchronize(target.stream()) : moved;
    };
  };
  const auto layout = plan<int8, typename TestType::layout_type>(make_config(5, 8, 2, 1, 7));
  const auto cases = std::vector<std::vector<block_pair>>{
      {},
      {{2, 2}},                                          // itself
      {{1, 0}, {2, 1}, {3, 2}},                          // a chain
      {{3, 2}, {2, 1}, {1, 0}},                          // the same in the order that would lose blocks
      {{0, 1}, {1, 0}},                                  // a swap
      {{0, 1}, {1, 2}, {2, 0}, {5, 6}, {6, 5}, {7, 7}},  // disjoint cycles
      {{0, 1}, {1, 2}, {2, 0}, {1, 3}, {3, 4}, {0, 5}},  // branches that leave a cycle
      {{6, 0}, {6, 1}, {6, 2}, {0, 6}},                  // one source for several
  };
  for (const auto& pairs : cases) {
    check_moved(target, layout, pairs, random, move(pairs));
  }
  for (auto round = 0; round < 40; ++round) {
    CAPTURE(round);
    const auto pairs = random_pairs(8, random() % 9, round % 2 == 0, random);
    check_moved(target, layout, pairs, random, move(pairs));
  }
}

TEMPLATE_TEST_CASE("Blocks outside the storage and ambiguous moves are refused before anything is written", "[blocks]",
                   host_target, hip_target<0>) {
  auto target = require_target<TestType>();
  const auto layout = plan<float32, nhd_by_layer>(make_config(4, 4, 1, 1, 8));
  const auto bytes = std::vector<std::byte>(static_cast<std::size_t>(layout.bytes), std::byte{7});
  const auto storage = target_array<std::byte, TestType>(target, bytes);
  const auto view = at(layout.view, storage.data());
  for (const auto wrong : {block_pair{4, 0}, block_pair{0, 4}, block_pair{-1, 0}, block_pair{0, -1}}) {
    const auto pairs = std::vector<block_pair>{{0, 1}, wrong};
    CHECK(target.backend.copy_blocks(view, pairs, target.stream()).error().code == error_code::invalid_argument);
    CHECK(target.backend.move_blocks(view, pairs, target.stream()).error().code == error_code::invalid_argument);
  }
  const auto ambiguous = std::vector<block_pair>{{0, 2}, {1, 2}};
  CHECK(target.backend.move_blocks(view, ambiguous, target.stream()).error().message() ==
        "invalid argument: destination block of two moves is 2");
  CHECK(storage.values() == bytes);
}

TEST_CASE("Blocks of foreign storage are copied and moved at any alignment", "[blocks]") {
  auto target = require_target<hip_target<0>>();
  auto random = std::mt19937(13);
  for (const auto& sizes : {std::pair{0, 40}, {0, 16}, {0, 23}, {3, 64}, {8, 5}, {16, 1040}}) {
    const auto start = sizes.first;
    const auto layer_bytes = sizes.second;
    CAPTURE(start, layer_bytes);
    auto view = block_storage_view{};
    view.num_blocks = 6;
    view.num_layers = 3;
    view.layer_stride = layer_bytes;
    view.block_stride = view.layer_stride * view.num_layers + start;
    const auto bytes = static_cast<std::size_t>(start + view.block_stride * view.num_blocks);
    auto expected = random_bytes(bytes, random);
    const auto storage = target_array<std::byte, hip_target<0>>(target, expected);
    const auto pairs = std::vector<block_pair>{{0, 1}, {1, 0}, {2, 5}};
    REQUIRE(target.backend.move_blocks(at(view, storage.data() + start), pairs, target.stream()));
    const auto before = expected;
    for (const auto& [source, destination] : pairs) {
      for (auto layer = 0; layer < view.num_layers; ++layer) {
        const auto place = [&](std::int32_t block) {
          return start + block * view.block_stride + layer * view.layer_stride;
        };
        std::memcpy(expected.data() + place(destination), before.data() + place(source),
                    static_cast<std::size_t>(layer_bytes));
      }
    }
    REQUIRE(storage.values() == expected);
  }
}

/// Pinned host memory of a device target, with its contents.
class pinned_bytes {
 public:
  explicit pinned_bytes(const std::vector<std::byte>& bytes)
      : size_(bytes.size()), data_(allocator_.allocate(size_, block_alignment)) {
    REQUIRE(data_ != nullptr);
    std::ranges::copy(bytes, data_);
  }
  pinned_bytes(const pinned_bytes&) = delete;
  pinned_bytes& operator=(const pinned_bytes&) = delete;
  ~pinned_bytes() { allocator_.deallocate(data_, size_); }

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::vector<std::byte> values() const { return {data_, data_ + size_}; }

 private:
  hip::pinned_allocator allocator_;
  std::size_t size_;
  std::byte* data_;
};

template <class Device, class Host>
struct two_layouts {
  using device = Device;
  using host = Host;
};

TEMPLATE_TEST_CASE("Blocks swapped out and in again are bit-identical, whatever the storage orders", "[blocks]",
                   (two_layouts<nhd_by_layer, nhd_by_layer>), (two_layouts<nhd_by_layer, nhd_by_block>),
                   (two_layouts<nhd_by_block, nhd_by_block>), (two_layouts<hnd_by_block, hnd_by_layer>)) {
  auto target = require_target<hip_target<0>>();
  auto random = std::mt19937(14);
  // 4 KiB and 4 MiB per block: below and above the size from which a run is a copy of its own.
  for (const auto head_dim : {16, 16384}) {
    const auto device_layout = plan<int8, typename TestType::device>(make_config(16, 16, 2, 4, head_dim));
    const auto host_layout = plan<int8, typename TestType::host>(make_config(16, 10, 2, 4, head_dim));
    auto on_device = random_bytes(static_cast<std::size_t>(device_layout.bytes), random);
    auto on_host = random_bytes(static_cast<std::size_t>(host_layout.bytes), random);
    const auto device = target_array<std::byte, hip_target<0>>(target, on_device);
    const auto host = pinned_bytes(on_host);
    const auto device_view = at(device_layout.view, device.data());
    const auto host_view = at(host_layout.view, host.data());

    const auto out = std::vector<block_pair>{{3, 0}, {4, 1}, {5, 2}, {6, 3}, {7, 4}, {8, 5}, {1, 9}};
    REQUIRE(hip::swap_blocks(device_view, host_view, out, runtime::device_to_host, target.stream()));
    REQUIRE(target.backend.synchronize(target.stream()));
    reference_move(on_host, on_device, host_layout.view, device_layout.view, out);
    CHECK(same_bits(host.values(), on_host));
    CHECK(same_bits(device.values(), on_device));

    const auto in = std::vector<block_pair>{{0, 13}, {1, 14}, {2, 15}, {9, 0}};
    REQUIRE(hip::swap_blocks(host_view, device_view, in, runtime::host_to_device, target.stream()));
    REQUIRE(target.backend.synchronize(target.stream()));
    reference_move(on_device, on_host, device_layout.view, host_layout.view, in);
    CHECK(same_bits(device.values(), on_device));
    CHECK(same_bits(host.values(), on_host));
  }
}

TEST_CASE("Swaps of storages that do not fit are refused", "[blocks]") {
  auto target = require_target<hip_target<0>>();
  const auto device = plan<int8, nhd_by_layer>(make_config(16, 4, 2, 4, 64)).view;
  const auto pairs = std::vector<block_pair>{{0, 0}};
  const auto swap = [&](const block_storage_view& host, const std::vector<block_pair>& which) {
    return hip::swap_blocks(device, host, which, runtime::device_to_host, target.stream());
  };
  CHECK(swap(plan<int8, nhd_by_layer>(make_config(16, 4, 3, 4, 64)).view, pairs).has_error());
  CHECK(swap(plan<float16, nhd_by_layer>(make_config(16, 4, 2, 4, 64)).view, pairs).has_error());
  CHECK(swap(plan<int8, hnd_by_layer>(make_config(16, 4, 2, 4, 64)).view, pairs).has_error());
  CHECK(swap(plan<int8, nhd_by_layer>(make_config(16, 2, 2, 4, 64)).view, {{0, 2}}).has_error());
  CHECK(swap(plan<int8, nhd_by_layer>(make_config(16, 9, 2, 4, 64)).view, {{4, 2}}).has_error());
  const auto padded = plan<int8, nhd_by_layer>(make_config(1, 4, 2, 1, 8)).view;
  const auto as_large = plan<float32, nhd_by_layer>(make_config(1, 4, 2, 1, 8)).view;
  REQUIRE(padded.layer_bytes() == as_large.layer_bytes());
  CHECK(hip::swap_blocks(padded, as_large, pairs, runtime::device_to_host, target.stream()).has_error());
}

template <class To, class From>
struct conversion {
  using to = To;
  using from = From;
};

TEMPLATE_TEST_CASE("Blocks are converted between elements and layouts", "[blocks]", (conversion<float32, float16>),
                   (conversion<float32, bfloat16>), (conversion<float32, int8>), (conversion<float16, float32>),
                   (conversion<float16, bfloat16>), (conversion<float16, int8>), (conversion<bfloat16, float32>),
                   (conversion<bfloat16, float16>), (conversion<bfloat16, int8>), (conversion<int8, float32>),
                   (conversion<int8, float16>), (conversion<int8, bfloat16>), (conversion<float8_e4m3, bfloat16>),
                   (conversion<float16, float8_e4m3>), (conversion<float8_e4m3, int8>),
                   (conversion<basic_float8_e4m3<token_scale>, float8_e4m3>)) {
  using to = typename TestType::to;
  using from = typename TestType::from;
  auto target = require_target<hip_target<0>>();
  auto random = std::mt19937(15);
  for (const auto head_dim : {64, 33}) {
    auto config = make_config(5, 6, 2, 3, head_dim);
    const auto laid_out_from = *lay_out<from, nhd_by_layer>(config);
    config.num_blocks = 4;
    check_conversion(target, laid_out_from, *lay_out<to, hnd_by_block>(config), {{5, 0}, {1, 3}, {0, 1}}, random);
  }
}

TEST_CASE("More pairs than one launch takes are converted", "[blocks]") {
  auto target = require_target<hip_target<1>>();
  auto random = std::mt19937(16);
  // More heads than a workgroup processes per token.
  const auto config = make_config(1, 700, 1, 70, 16);
  auto pairs = std::vector<block_pair>();
  for (auto block = 0; block < 700; ++block) {
    pairs.push_back({block, 699 - block});
  }
  check_conversion(target, *lay_out<float32, nhd_by_layer>(config), *lay_out<int8, nhd_by_layer>(config), pairs,
                   random);
}

TEST_CASE("Blocks of latent vectors, and of values with rows of their own, are converted", "[blocks]") {
  auto target = require_target<hip_target<0>>();
  auto random = std::mt19937(17);
  for (const auto latent : {false, true}) {
    CAPTURE(latent);
    auto group = group_config{};
    group.kind = latent ? group_kind::latent : group_kind::full;
    group.num_kv_heads = latent ? 1 : 3;
    group.key_dim = 48;
    group.value_dim = latent ? 33 : 72;
    const auto from_plan = plan_storage<nhd_by_layer>(group, 4, 3, size_of_element<float32>).value();
    const auto to_plan = plan_storage<hnd_by_block>(group, 4, 2, size_of_element<bfloat16>).value();
    const auto bytes_of = [&](const auto& plan) { return random_bytes(static_cast<std::size_t>(plan.bytes), random); };
    const auto from_memory = target_array<std::byte, hip_target<0>>(target, bytes_of(from_plan));
    const auto to_memory = target_array<std::byte, hip_target<0>>(target, bytes_of(to_plan));
    const auto from = at(from_plan.view, from_memory.data());
    const auto to = at(to_plan.view, to_memory.data());

    const auto num_slots = std::int64_t{4};
    auto keys = rows_of<float32>(num_slots, group.num_kv_heads, group.key_dim, 0);
    auto values = rows_of<float32>(num_slots, group.num_kv_heads, group.value_dim, 0);
    keys.fill(num_slots, group.num_kv_heads, random, 3.0F);
    values.fill(num_slots, group.num_kv_heads, random, 3.0F);
    const auto key_rows = target_array<float, hip_target<0>>(target, keys.numbers);
    const auto value_rows = target_array<float, hip_target<0>>(target, values.numbers);
    const auto old_slots =  // of block 2
        target_array<slot, hip_target<0>>(target, std::vector{slot{8}, slot{9}, slot{10}, slot{11}});
    const auto new_slots = target_array<slot, hip_target<0>>(target, std::vector{slot{0}, slot{1}, slot{2}, slot{3}});
    const auto* const key_data = key_rows.data();
    const auto* const value_data = value_rows.data();
    REQUIRE(target.backend.append<float32>(from, 0, std::span<const slot>(old_slots.data(), 4), keys.view(key_data),
                                           values.view(value_data), target.stream()));
    REQUIRE(hip::convert_blocks<bfloat16, float32>(from, to, std::vector<block_pair>{{2, 0}}, target.stream()));
    REQUIRE(target.backend.gather<bfloat16>(to, 0, std::span<const slot>(new_slots.data(), 4),
                                            keys.view(key_rows.data()), values.view(value_rows.data()),
                                            target.stream()));
    REQUIRE(target.backend.synchronize(target.stream()));
    const auto rounded = [](float number) { return bfloat16::decode(bfloat16::encode(number, 1.0F), 1.0F); };
    auto expected = keys.numbers;
    std::ranges::transform(expected, expected.begin(), rounded);
    CHECK(key_rows.values() == expected);
    if (latent) {
      // A latent value is the first part of its key.
      for (auto i = 0; i < num_slots; ++i) {
        std::copy_n(keys.row(i, 0), group.value_dim, values.row(i, 0));
      }
    }
    expected = values.numbers;
    std::ranges::transform(expected, expected.begin(), rounded);
    CHECK(value_rows.values() == expected);

    const auto convert = [&](const block_storage_view& into, const block_pair& pair) {
      return hip::convert_blocks<bfloat16, float32>(from, into, std::span{&pair, 1}, target.stream());
    };
    CHECK(convert(to, {3, 0}).has_error());
    group.value_dim = 32;
    const auto shorter = plan_storage<hnd_by_block>(group, 4, 2, size_of_element<bfloat16>).value();
    CHECK(convert(at(shorter.view, to_memory.data()), {2, 0}).has_error());
  }
}

}  // namespace blocks_test
