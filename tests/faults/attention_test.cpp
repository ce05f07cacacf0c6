#include "cache_world.hpp"

#include <pagedkv/host/attend.hpp>

#include <catch2/catch_template_test_macros.hpp>

#include <array>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

/// A cache whose committed sequence has K/V.
template <class Made>
struct attention_world : cache_world<Made> {
  using base = cache_world<Made>;
  using base::cache, base::first, base::slots, base::compressed, base::row_size;

  explicit attention_world(fault_plan& plan) : base(plan) {
    static const auto numbers = std::array<float, num_tokens * row_size>{};
    const auto of_tokens = std::span{slots}.first(num_tokens);
    REQUIRE(cache.slot_mapping(first, 0, of_tokens));
    const auto rows = contiguous_rows(numbers, 1, row_size);
    REQUIRE(cache.write(0, of_tokens, rows, rows));
    REQUIRE(cache.update(compressed, std::span{&first, 1}));
  }

  static constexpr auto num_tokens = std::size_t{22};
};

}  // namespace

TEMPLATE_TEST_CASE("attention of a cache survives each fault", "[faults]", one_group_cache, cache_of_groups<>) {
  using world = attention_world<TestType>;
  using operation = faulty_operation<world>;
  constexpr auto attending = std::array{
      operation{"attend", [](world& w) {
                  static const auto query = std::array<float, world::row_size>{};
                  auto result = query;
                  auto batch = attention_batch{};
                  batch.indptr = w.compressed.indptr();
                  batch.indices = w.compressed.indices();
                  batch.last_block_len = w.compressed.last_block_len();
                  return error_of(w.cache.attend(0, batch, contiguous_rows(query, 1, w.row_size),
                                                 attention_output<float>{contiguous_rows(result, 1, w.row_size)}));
                }}};
  CHECK(inject_faults(attending) > 4);
}
