#include "../support/failing_allocator.hpp"
#include "../support/printing.hpp"

#include <pagedkv/policy/allocator/host_allocator.hpp>
#include <pagedkv/policy/allocator/page_allocators.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>
#include <pagedkv/policy/element/int8.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/storage/block_storage.hpp>

#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <cstring>
#include <limits>
#include <map>
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

/// Which granules of one reservation have memory, and how many maps may still succeed. Outlives its allocators.
struct mapping_log {
  static constexpr auto granule = std::size_t{4096};

  std::map<std::size_t, bool> mapped;  // by the number of the granule
  std::byte* start = nullptr;
  std::int64_t maps_left = std::numeric_limits<std::int64_t>::max();
  bool misused = false;  // a granule was mapped twice, or unmapped without memory

  void mark(const std::byte* pointer, std::size_t bytes, bool maps) {
    const auto offset = static_cast<std::size_t>(pointer - start);
    misused |= offset % granule != 0 || bytes % granule != 0 || bytes == 0;
    for (auto i = offset / granule; i < (offset + bytes) / granule; ++i) {
      misused |= mapped[i] == maps;
      mapped[i] = maps;
    }
  }
  [[nodiscard]] std::int64_t bytes() const {
    auto num = std::int64_t{0};
    for (const auto& [index, has_memory] : mapped) {
      num += has_memory;
    }
    return num * std::int64_t{granule};
  }
};

class logged_mappings : public host_allocator {
 public:
  explicit logged_mappings(mapping_log& log) : log_(&log) {}

  [[nodiscard]] std::size_t granule() const noexcept { return mapping_log::granule; }
  [[nodiscard]] std::byte* reserve(std::size_t bytes, std::size_t alignment) noexcept {
    return log_->start = allocate(bytes, alignment);
  }
  [[nodiscard]] bool map(std::byte* pointer, std::size_t bytes) noexcept {
    if (log_->maps_left-- <= 0) {
      return false;
    }
    log_->mark(pointer, bytes, true);
    return true;
  }
  void unmap(std::byte* pointer, std::size_t bytes) noexcept { log_->mark(pointer, bytes, false); }

 private:
  mapping_log* log_;
};

static_assert(resizable_allocator<logged_mappings>);

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

TEMPLATE_TEST_CASE("storage has memory behind the blocks of its size, wherever their layers lie", "[block_storage]",
                   nhd_layer_major, nhd_block_major) {
  auto log = mapping_log{};
  auto config = usable();
  config.num_blocks = 2;
  config.max_blocks = 40;
  using storage_type = block_storage<int8, TestType, logged_mappings>;
  auto storage = storage_type::create(config, logged_mappings{log}).value();
  const auto view = storage.view();
  CHECK(view.num_blocks == 40);
  const auto has_memory = [&](std::int32_t block) {
    auto all = true;
    for (auto layer = 0; layer < view.num_layers; ++layer) {
      const auto* const start = view.block(layer, block);
      for (const auto* byte : {start, start + view.layer_bytes() - 1}) {
        all = all && log.mapped[static_cast<std::size_t>(byte - view.base) / mapping_log::granule];
      }
    }
    return all;
  };
  for (const auto num_blocks : {1, 40, 39, 7, 7, 8, 1, 25, 2}) {
    CAPTURE(num_blocks);
    REQUIRE(storage.resize(num_blocks));
    CHECK(storage.view().base == view.base);
    for (auto block = 0; block < num_blocks; ++block) {
      CHECK(has_memory(block));
    }
    CHECK(log.bytes() == storage.bytes());
    const auto exact = num_blocks * view.num_layers * view.layer_bytes();
    const auto regions = TestType::storage == storage_order::layer_major ? view.num_layers : 1;
    CHECK(storage.bytes() >= exact);
    CHECK(storage.bytes() < exact + regions * static_cast<std::int64_t>(mapping_log::granule));
  }
  CHECK_FALSE(log.misused);
}

TEST_CASE("storage that cannot grow stays as it was", "[block_storage]") {
  auto log = mapping_log{};
  auto config = usable();
  config.max_blocks = 40;
  using storage_type = block_storage<int8, nhd_layer_major, logged_mappings>;
  auto storage = storage_type::create(config, logged_mappings{log}).value();
  const auto before = log.mapped;
  for (auto maps = 0; maps < config.num_layers; ++maps) {
    log.maps_left = maps;
    const auto refused = storage.resize(40);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == error_code::out_of_memory);
    CHECK(refused.error().value == storage.bytes_for(40) - storage.bytes());
    CHECK(storage.bytes() == storage.bytes_for(9));
    CHECK(log.bytes() == storage.bytes());
  }
  log.maps_left = 0;
  auto none = mapping_log{};
  none.maps_left = 2;
  const auto refused = storage_type::create(config, logged_mappings{none});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == error_code::out_of_memory);
  CHECK(none.bytes() == 0);
  CHECK_FALSE(log.misused);
}

TEST_CASE("contents stay while storage grows and shrinks behind them", "[block_storage]") {
  auto config = usable();
  config.max_blocks = 2000;
  auto storage = block_storage<float32, nhd_layer_major, reserving_allocator>::create(config).value();
  const auto view = storage.view();
  const auto fill = [&](std::int32_t block) {
    for (auto layer = 0; layer < view.num_layers; ++layer) {
      std::memset(view.block(layer, block), 1 + layer + block % 100, static_cast<std::size_t>(view.layer_bytes()));
    }
  };
  const auto holds = [&](std::int32_t block) {
    auto all = true;
    for (auto layer = 0; layer < view.num_layers; ++layer) {
      all = all && *view.block(layer, block) == std::byte(1 + layer + block % 100) &&
            view.block(layer, block)[view.layer_bytes() - 1] == std::byte(1 + layer + block % 100);
    }
    return all;
  };
  fill(8);
  for (const auto num_blocks : {2000, 9, 777, 20}) {
    REQUIRE(storage.resize(num_blocks));
    fill(num_blocks - 1 == 8 ? 7 : num_blocks - 1);
    CHECK(holds(8));
  }
}

TEST_CASE("an allocator whose memory stays provides the capacity at once", "[block_storage]") {
  auto log = allocation_log{};
  auto config = usable();
  config.max_blocks = 20;
  auto storage = logged_storage::create(config, failing_allocator<>{log}).value();
  CHECK(log.live_bytes == storage.bytes());
  CHECK(storage.bytes() == storage.bytes_for(20));
  REQUIRE(storage.resize(20));
  REQUIRE(storage.resize(1));
  CHECK(log.calls == 1);
  CHECK(log.live_bytes == storage.bytes());
}
