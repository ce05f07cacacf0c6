#pragma once

namespace pagedkv {

/// All keys of a layer share a scale, and so do all values. The engine gives them, see `cache_config::scales`.
struct tensor_scale {
  static constexpr bool in_block = false;
  static constexpr bool per_head = false;
};

/// The keys of a layer's KV head share a scale, and so do its values. The engine gives them.
struct head_scale {
  static constexpr bool in_block = false;
  static constexpr bool per_head = true;
};

/// The numbers of one token and KV head share a scale. Appending computes it, and it lies in the block.
struct token_scale {
  static constexpr bool in_block = true;
};

/// Whether the engine gives an element's scales: static ones.
template <class Element>
inline constexpr bool has_static_scales = requires { requires !Element::scale_type::in_block; };

/// Whether a number is its stored bits alone. Rows in the caller's memory have such elements.
template <class Element>
inline constexpr bool is_unscaled = !Element::scaled && !has_static_scales<Element>;

}  // namespace pagedkv
