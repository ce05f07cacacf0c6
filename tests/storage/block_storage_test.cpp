#include "../support/failing_allocator.hpp"
#include "../support/printing.hpp"

#include <pagedkv/policy/allocator/huge_page_allocator.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/element/int8.hpp>
#include <pagedkv/policy/layout/nhd_block_major.hpp>
#include <pagedkv/storage/block_storage.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

using namespace pagedkv;
using namespace pagedkv::test;

namespace {

using layout = nhd_block_major;
template <class Element, class Allocator = host_allocator>
using storage_of = block_storage<Element, layout, Allocator>;
using logged_storage = storage_of<int8, failing_allocator<>>;

static_assert(!std::is_copy_constructible_v<logged_storage> && !std::is_copy_assignable_v<logged_storage>);
static_assert(std::is_nothrow_move_constructible_v<logged_storage> &&
              std::is_nothrow_move_assignable_v<logged_storage>);

cache_config usable() {
  auto config = cache_config{};
  config.num_blocks = 9;
  config.num_layers = 3;
  config.num_kv_heads = 2;
  config.head_dim = 24;
  return config;
}

}  // namespace

TEMPLATE_TEST_CASE("storage is the planned size, aligned and writable throughout", "[block_storage]",
                   storage_of<float32>, storage_of<float16>, storage_of<int8>,
                   (storage_of<int8, huge_page_allocator>)) {
  for (const auto num_blocks : {1, 9, 1000}) {
    auto config = usable();
    config.num_blocks = num_blocks;
    const auto storage = TestType::create(config);
    REQUIRE(storage);
    const auto plan = plan_storage<layout>(config, size_of_element<typename TestType::element_type>).value();
    const auto& view = storage->view();
    CHECK(storage->bytes() == plan.bytes);
    CHECK(view.block_stride == plan.view.block_stride);
    CHECK(view.layer_stride == plan.view.layer_stride);
    CHECK(view.num_blocks == num_blocks);
    REQUIRE(view.base != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(view.base) % block_alignment == 0);
    std::memset(view.base, 0x5a, static_cast<std::size_t>(storage->bytes()));
    CHECK(view.base[storage->bytes() - 1] == std::byte{0x5a});
  }
}

TEST_CASE("memory is given back once, with its size", "[block_storage]") {
  auto log = allocation_log{};
  {
    const auto storage = logged_storage::create(usable(), failing_allocator<>{log});
    REQUIRE(storage);
    CHECK(log.live == 1);
    CHECK(log.live_bytes == storage->bytes());
  }
  CHECK(log.live == 0);
  CHECK(log.live_bytes == 0);
}

TEST_CASE("moving hands the memory over without moving it", "[block_storage]") {
  auto log = allocation_log{};
  {
    auto first = logged_storage::create(usable(), failing_allocator<>{log}).value();
    auto* const base = first.view().base;
    auto second = std::move(first);
    CHECK(second.view().base == base);
    CHECK(first.view().base == nullptr);
    CHECK(first.bytes() == 0);

    auto larger = usable();
    larger.num_blocks = 20;
    auto third = logged_storage::create(larger, failing_allocator<>{log}).value();
    CHECK(log.live == 2);
    third = std::move(second);
    CHECK(log.live == 1);
    CHECK(third.view().base == base);
    CHECK(log.live_bytes == third.bytes());
  }
  CHECK(log.live == 0);
}

TEST_CASE("an allocator with nothing left is an error that says how much was asked for", "[block_storage]") {
  auto log = allocation_log{.fail_at = 1};
  const auto storage = logged_storage::create(usable(), failing_allocator<>{log});
  REQUIRE_FALSE(storage);
  CHECK(storage.error().code == error_code::out_of_memory);
  CHECK(storage.error().value == plan_storage<layout>(usable(), size_of_element<int8>)->bytes);
  CHECK(log.calls == 1);
  CHECK(log.live == 0);
  CHECK(logged_storage::create(usable(), failing_allocator<>{log}));
}

TEST_CASE("a bad configuration is refused before anything is allocated", "[block_storage]") {
  auto log = allocation_log{};
  auto zero = usable();
  zero.head_dim = 0;
  const auto nothing = logged_storage::create(zero, failing_allocator<>{log});
  REQUIRE_FALSE(nothing);
  CHECK(nothing.error().subject == std::string{"cache_config.head_dim"});

  auto huge = usable();
  huge.num_blocks = huge.num_layers = std::numeric_limits<std::int32_t>::max();
  const auto overflow = logged_storage::create(huge, failing_allocator<>{log});
  REQUIRE_FALSE(overflow);
  CHECK(overflow.error().code == error_code::size_overflow);
  CHECK(log.calls == 0);
}
