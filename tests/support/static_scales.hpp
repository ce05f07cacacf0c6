#pragma once

#include <pagedkv/core/config.hpp>
#include <pagedkv/core/storage_formats.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagedkv::test {

/// The static scales of a group, as an engine gives them: all different, except every seventh. None for elements that
/// have others, or no scales.
template <class Element>
struct static_scales {
  std::int32_t num_kv_heads = 1;
  std::int32_t vectors = 2;  // K and V; latent: one
  std::vector<float> numbers = {};

  static_scales() = default;
  explicit static_scales(const cache_config& config) : static_scales(layers_of(config)) {}
  explicit static_scales(const group_config& group)
      : num_kv_heads(group.num_kv_heads), vectors(group.kind == group_kind::latent ? 1 : 2) {
    const auto count = has_static_scales<Element> ? group.num_layers * vectors * per_vector() : 0;
    for (auto i = 0; i < count; ++i) {
      numbers.push_back(0.7F + 0.1F * static_cast<float>(i % 7));
    }
  }

  /// For the configuration.
  [[nodiscard]] const float* data() const { return numbers.empty() ? nullptr : numbers.data(); }

  /// As documented: [layer][K, V][KV head, or one for all].
  [[nodiscard]] float of(bool value, std::int64_t layer, std::int64_t head) const {
    if (numbers.empty()) {
      return 1.0F;
    }
    const auto vector = layer * vectors + (value && vectors == 2 ? 1 : 0);
    return numbers[static_cast<std::size_t>(vector * per_vector() + (per_vector() == 1 ? 0 : head))];
  }

 private:
  [[nodiscard]] static group_config layers_of(const cache_config& config) {
    auto group = group_config{};
    group.num_layers = config.num_layers;
    group.num_kv_heads = config.num_kv_heads;
    return group;
  }

  [[nodiscard]] std::int32_t per_vector() const {
    if constexpr (has_static_scales<Element>) {
      return Element::scale_type::per_head ? num_kv_heads : 1;
    }
    return 1;
  }
};

}  // namespace pagedkv::test
