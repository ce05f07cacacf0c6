#pragma once

#include "../support/static_scales.hpp"

#include <pagedkv/policy/allocator/host_allocator.hpp>
#include <pagedkv/policy/element/all.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/storage/layout.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace pagedkv::test {

/// Block storage whose every byte can be compared: filled with one byte before use. With scales where the element reads
/// some.
template <class Element, class Layout>
class storage_under_test {
 public:
  using element_type = Element;
  using layout_type = Layout;

  explicit storage_under_test(const cache_config& config)
      : storage_under_test(static_scales<Element>(config), [&](const float* scales) {
          auto scaled = config;
          scaled.scales = scales;
          return plan_storage<Layout>(scaled, size_of_element<Element>).value();
        }) {}

  storage_under_test(const group_config& group, std::int32_t block_size, std::int32_t num_blocks)
      : storage_under_test(static_scales<Element>(group), [&](const float* scales) {
          auto scaled = group;
          scaled.scales = scales;
          return plan_storage<Layout>(scaled, block_size, num_blocks, size_of_element<Element>).value();
        }) {}

  [[nodiscard]] const block_storage_view& view() const { return plan_.view; }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(plan_.bytes); }
  [[nodiscard]] std::vector<std::byte> bytes() const { return {memory_.get(), memory_.get() + size()}; }
  [[nodiscard]] std::byte* data() { return memory_.get(); }
  [[nodiscard]] const static_scales<Element>& scales() const { return scales_; }

 private:
  template <class MakePlan>
  storage_under_test(static_scales<Element> scales, MakePlan make_plan)
      : scales_(std::move(scales)),
        plan_(make_plan(scales_.data())),
        memory_(host_allocator{}.allocate(size(), block_alignment)) {
    std::fill_n(memory_.get(), size(), std::byte{0xa5});
    plan_.view.base = memory_.get();
  }

  struct release {
    void operator()(std::byte* pointer) const { host_allocator{}.deallocate(pointer, 0); }
  };

  static_scales<Element> scales_;
  storage_plan plan_;
  std::unique_ptr<std::byte[], release> memory_;
};

template <class Element>
using in_nhd_layer_major = storage_under_test<Element, nhd_layer_major>;
template <class Element>
using in_nhd_block_major = storage_under_test<Element, nhd_block_major>;
template <class Element>
using in_hnd_layer_major = storage_under_test<Element, hnd_layer_major>;
template <class Element>
using in_hnd_block_major = storage_under_test<Element, hnd_block_major>;

inline cache_config small_config(std::int32_t block_size) {
  auto config = cache_config{};
  config.block_size = block_size;
  config.num_blocks = 7;
  config.num_layers = 3;
  config.num_kv_heads = 3;
  config.head_dim = 20;
  return config;
}

}  // namespace pagedkv::test
