#include "../support/printing.hpp"
#include "reference.hpp"
#include "target.hpp"

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

namespace piecewise_test {

using namespace pagedkv;
using namespace pagedkv::test;

template <class Target, class Element, class Layout>
struct combination {
  using target = Target;
  using element = Element;
  using layout_type = Layout;
};

template <class Element, class Layout>
using on_host = combination<host_target, Element, Layout>;
template <class Element, class Layout>
using on_waves_of_64 = combination<hip_target<0>, Element, Layout>;
template <class Element, class Layout>
using on_waves_of_32 = combination<hip_target<1>, Element, Layout>;

struct shape {
  std::int32_t block_size;
  std::int32_t num_blocks;
  std::int32_t num_kv_heads;
  std::int32_t head_dim;
  std::size_t num_tokens;
  std::int64_t gap;  // numbers between the caller's rows
};

// Head dimensions that are no powers of two, one beyond 32 lanes of vectors, lengths around a block's end, strides that
// keep and that break alignment.
constexpr shape shapes[] = {{16, 8, 2, 64, 97, 0}, {32, 4, 3, 80, 70, 16}, {8, 9, 1, 96, 17, 0},  {16, 8, 5, 112, 40, 3},
                            {16, 4, 1, 16, 1, 1},  {48, 2, 2, 240, 96, 0}, {16, 3, 1, 640, 20, 0}, {16, 4, 2, 64, 0, 0}};

enum class slot_order { random, runs, aligned };

/// Slots with runs of neighbours, as prompts have: sequences that start and end anywhere in a block, tokens that are
/// skipped, and decoded tokens between.
std::vector<slot> slots_in_runs(const cache_config& config, std::size_t count, slot_order order, std::mt19937& random) {
  if (order == slot_order::random) {
    return random_slots(config, count, random);
  }
  auto blocks = std::vector<std::int64_t>(static_cast<std::size_t>(config.num_blocks));
  std::iota(blocks.begin(), blocks.end(), 0);
  std::shuffle(blocks.begin(), blocks.end(), random);
  auto slots = std::vector<slot>();
  for (const auto block : blocks) {
    const auto first = order == slot_order::aligned ? 0 : static_cast<std::int32_t>(random() % 3);
    for (auto offset = first; offset < config.block_size && slots.size() < count; ++offset) {
      const auto skipped = order == slot_order::runs && random() % 23 == 0;
      slots.push_back(skipped ? skip_slot : slot{block * config.block_size + offset});
    }
  }
  return slots;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Whether the layout takes the sizes.
template <class Element, class Layout>
bool fits(const cache_config& config) {
  return plan_storage<Layout>(config, size_of_element<Element>).has_value();
}

/// Appends rows stored as `Rows`, compares every byte of the storage with a plain loop by the published formulas, and
/// gathers the rows again.
template <class Element, class Layout, class Rows, class Target>
void append_and_gather(Target& target, const shape& each, slot_order order, std::mt19937& random) {
  CAPTURE(each.block_size, each.num_kv_heads, each.head_dim, each.num_tokens, each.gap, static_cast<int>(order));
  const auto config = make_config(each.block_size, each.num_blocks, 2, each.num_kv_heads, each.head_dim);
  if (!fits<Element, Layout>(config)) {
    return;
  }
  const auto slots = slots_in_runs(config, each.num_tokens, order, random);
  const auto tokens = static_cast<std::int64_t>(slots.size());
  auto keys = rows_of<Rows>(tokens, config.num_kv_heads, config.head_dim, each.gap);
  auto values = rows_of<Rows>(tokens, config.num_kv_heads, config.head_dim, each.gap);
  keys.fill(tokens, config.num_kv_heads, random, 3.0F);
  values.fill(tokens, config.num_kv_heads, random, 300.0F);
  const auto planned = plan<Element, Layout>(config);
  auto expected = random_bytes(static_cast<std::size_t>(planned.bytes), random);

  const auto storage = target_array<std::byte, Target>(target, expected);
  const auto view = at(planned.view, storage.data());
  const auto mapping = target_array<slot, Target>(target, slots);
  const auto all = std::span<const slot>{mapping.data(), mapping.size()};
  using number = typename Rows::storage;
  const auto key_rows = target_array<number, Target>(target, keys.numbers);
  const auto value_rows = target_array<number, Target>(target, values.numbers);
  REQUIRE(target.backend.template append<Element, Rows>(view, 1, all, keys.view(key_rows.data()),
                                                        values.view(value_rows.data()), target.stream()));
  REQUIRE(target.backend.synchronize(target.stream()));
  const auto reference = reference_storage<Element, Layout>{config, expected.data()};
  reference_append(reference, 1, slots, keys, values);
  REQUIRE(same_bits(storage.values(), expected));

  std::fill(keys.numbers.begin(), keys.numbers.end(), rows_of<Rows>::canary());
  std::fill(values.numbers.begin(), values.numbers.end(), rows_of<Rows>::canary());
  const auto key_out = target_array<number, Target>(target, keys.numbers);
  const auto value_out = target_array<number, Target>(target, values.numbers);
  REQUIRE(target.backend.template gather<Element, Rows>(view, 1, all, keys.view(key_out.data()),
                                                        values.view(value_out.data()), target.stream()));
  REQUIRE(target.backend.synchronize(target.stream()));
  reference_gather(reference, 1, slots, keys, values);
  REQUIRE(same_bits(key_out.values(), keys.numbers));
  REQUIRE(same_bits(value_out.values(), values.numbers));
  REQUIRE(same_bits(storage.values(), expected));
}

TEMPLATE_PRODUCT_TEST_CASE("Rows lie where the published formulas say, and nothing else is touched", "[piecewise]",
                           (on_host, on_waves_of_64, on_waves_of_32),
                           ((float32, transposed_layer_major), (float16, transposed_layer_major),
                            (bfloat16, transposed_block_major), (int8, transposed_layer_major),
                            (float32, shuffled_layer_major), (float16, shuffled_block_major),
                            (bfloat16, shuffled_layer_major), (int8, shuffled_layer_major))) {
  using element = typename TestType::element;
  using layout = typename TestType::layout_type;
  auto target = require_target<typename TestType::target>();
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  auto random = std::mt19937(seed);
  for (const auto& each : shapes) {
    for (const auto order : {slot_order::random, slot_order::runs, slot_order::aligned}) {
      append_and_gather<element, layout, float32>(target, each, order, random);
    }
  }
  append_and_gather<element, layout, float16>(target, {16, 4, 2, 80, 50, 0}, slot_order::runs, random);
  append_and_gather<element, layout, bfloat16>(target, {32, 3, 2, 144, 50, 8}, slot_order::runs, random);
}

}  // namespace piecewise_test
