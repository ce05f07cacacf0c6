// Latent vectors in packed tokens on devices: append, gather and attention, against the host's code and float64.

#include "attention_target.hpp"

#include <pagedkv/policy/element/float8.hpp>

#include <catch2/catch_template_test_macros.hpp>

namespace packed_tokens_test {

using namespace pagedkv;
using namespace pagedkv::test;

constexpr auto seed = std::uint32_t{20261126};
constexpr auto latent = group_config{.kind = group_kind::latent, .num_layers = 2, .key_dim = 576, .value_dim = 512};

template <class Rows, int Device>
struct with {
  using rows = Rows;
  using target = hip_target<Device>;
};

TEMPLATE_TEST_CASE("Packed tokens are appended and gathered on a device as on the host", "[append][packed]",
                   (with<float32, 0>), (with<bfloat16, 1>)) {
  using rows = typename TestType::rows;
  using target_type = typename TestType::target;
  auto target = require_target<target_type>();
  auto random = std::mt19937(11);
  const auto plan = plan_storage<hnd_by_block>(latent, 16, 5, size_of_element<float8_latent>).value();
  auto expected = random_bytes(static_cast<std::size_t>(plan.bytes), random);
  const auto storage = target_array<std::byte, target_type>(target, expected);
  const auto slots = std::vector{slot{3}, slot{79}, slot{-1}, slot{16}, slot{40}};
  const auto mapping = target_array<slot, target_type>(target, slots);
  // The distance between rows permits vectors or prevents them.
  for (const auto gap : {16, 3}) {
    CAPTURE(gap);
    auto keys = rows_of<rows>(5, 1, 576, gap);
    auto values = rows_of<rows>(5, 1, 512, gap);
    keys.fill(5, 1, random, 3.0F);
    for (auto token = 0; token < 5; ++token) {
      for (auto i = 128; i < 256; ++i) {
        auto& number = keys.row(token, 0)[i];
        number = rows::encode(rows::decode(number, 1.0F) * 1e3F, 1.0F);
      }
    }
    const auto key_array = target_array<typename rows::storage, target_type>(target, keys.numbers);
    const auto value_array = target_array<typename rows::storage, target_type>(target, values.numbers);
    const auto view = at(plan.view, storage.data());
    const auto host_view = at(plan.view, expected.data());
    const auto mapped = std::span<const slot>(mapping.data(), slots.size());
    const typename rows::storage* const key_data = key_array.data();
    const typename rows::storage* const host_keys = keys.numbers.data();
    REQUIRE(
        target.backend.template append<float8_latent, rows>(view, 1, mapped, keys.view(key_data), {}, target.stream()));
    REQUIRE(target.backend.template gather<float8_latent, rows>(view, 1, mapped, keys.view(key_array.data()),
                                                                values.view(value_array.data()), target.stream()));
    REQUIRE(target.backend.synchronize(target.stream()));
    REQUIRE(host::append<float8_latent, rows>(host_view, 1, slots, keys.view(host_keys), {}));
    CHECK(storage.values() == expected);
    REQUIRE(host::gather<float8_latent, rows>(host_view, 1, slots, keys.view(keys.numbers.data()),
                                              values.view(values.numbers.data())));
    CHECK(key_array.values() == keys.numbers);
    CHECK(value_array.values() == values.numbers);
  }
}

TEST_CASE("Packed tokens are refused where they do not fit, before anything is enqueued", "[append][packed]") {
  const auto plan = plan_storage<nhd_by_layer>(latent, 16, 5, size_of_element<float8_latent>).value();
  const auto refused = [&](const token_rows<const float>& rows, std::int32_t layer) {
    const auto slots = std::vector{slot{0}};
    return hip::append<float8_latent, float32>(plan.view, layer, slots, rows, {}, {}).error().message();
  };
  CHECK(refused({nullptr, 512, 512, 1, 1, 512}, 0) ==
        "invalid argument: numbers of a key in token_rows, which are not the storage's, is 512, limit 576");
  CHECK(refused({nullptr, 576, 576, 1, 1, 576}, 2) == "invalid argument: layer is 2, limit 1");
}

/// On a device of the executor without matrix instructions for latent vectors, and on one with some; or on a real one.
template <class Layout, class Input>
void check_on_devices(const attention_case& asked) {
  check_attention<float8_latent, Layout, Input, 0>(asked, seed);
  if (hip_target<1>::why_absent().empty()) {
    check_attention<float8_latent, Layout, Input, 1>(asked, seed);
  }
}

TEST_CASE("attention over packed tokens", "[attention][packed]") {
  auto asked = latent_case();
  asked.lengths = {0, 1, 33, 90};
  asked.group_size = 3;
  check_on_devices<nhd_by_layer, float32>(asked);
  // Two tiles of columns.
  asked.lengths = {17, 40};
  asked.group_size = 70;
  check_on_devices<hnd_by_block, bfloat16>(asked);
}

TEST_CASE("attention over packed tokens in many stages, whole and in pieces", "[attention][packed]") {
  auto asked = latent_case();
  asked.lengths = {500};
  asked.group_size = 4;
  asked.num_shares = 1;
  check_on_devices<hnd_by_block, bfloat16>(asked);
  asked.num_shares = 3;
  asked.lengths = {333, 64};
  asked.block_size = 64;
  check_on_devices<hnd_by_block, bfloat16>(asked);
}

TEST_CASE("attention over packed tokens with all options", "[attention][packed]") {
  auto asked = latent_case();
  asked.group_size = 3;
  // Chunks of prompts, in pieces that are merged, with queries that are not aligned.
  asked.lengths = {16, 70};
  asked.queries = {1, 9};
  asked.prefill = true;
  asked.split_tokens = 32;
  asked.window = 40;
  asked.soft_cap = 8;
  asked.sinks = true;
  asked.gap = 3;
  check_on_devices<nhd_by_layer, float32>(asked);
  asked.prefill = false;
  asked.split_tokens = 0;
  asked.window = 0;
  asked.tree = true;
  asked.block_size = 5;
  check_on_devices<nhd_by_layer, float32>(asked);
  asked.tree = false;
  asked.block_size = 16;
  asked.queries = {};
  asked.lists = listed_blocks::of_rows;
  asked.listed = {1, 3};
  check_on_devices<hnd_by_block, bfloat16>(asked);
}

TEST_CASE("attention over packed tokens needs them at multiples of 16 bytes", "[attention][packed]") {
  const auto plan = plan_storage<nhd_by_layer>(latent, 16, 5, size_of_element<float8_latent>).value();
  alignas(16) std::byte memory[32];
  auto batch = attention_batch{};
  batch.plan.words = batch.plan.workspace = memory;
  batch.plan.shape.block_size = 16;
  batch.plan.shape.num_kv_heads = batch.plan.shape.group_size = 1;
  batch.plan.shape.kernel = kernel_kind::plain;
  const auto check = [&](std::byte* base) {
    return hip::check_attention<float8_latent>(at(plan.view, base), 0, batch, 1, {});
  };
  CHECK(check(memory));
  CHECK(check(memory + 8).error().message() ==
        "invalid argument: kernel of attention_batch.plan, which reads no keys and values that are not aligned, is 0, "
        "limit 0");
}

}  // namespace packed_tokens_test
