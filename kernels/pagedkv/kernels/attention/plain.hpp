#pragma once

#include <pagedkv/core/storage_formats.hpp>
#include <pagedkv/kernels/attention/launcher.hpp>
#include <pagedkv/kernels/attention/matrix.hpp>
#include <pagedkv/kernels/attention/result.hpp>
#include <pagedkv/kernels/attention/walk.hpp>
#include <pagedkv/kernels/divider.hpp>

namespace pagedkv::kernels {

/// The length of rows in the registers of the general kernel: all lanes of a wave of 32 have the same number of chunks.
template <class Element>
inline constexpr int general_plain_dim = [] {
  constexpr auto step = 32 * vector_bytes / static_cast<int>(sizeof(typename Element::storage));
  return (largest_plain_dim + step - 1) / step * step;
}();

/// The state of a group of lanes for one piece, with plain float32 arithmetic: one query and every `num_groups`-th
/// token. Each lane holds some numbers of each row. `General`: values may have rows of their own, and queries may have
/// tree masks.
template <class Element, class Numbers, int HeadDim, bool General>
class plain_piece {
 public:
  using storage = typename Element::storage;
  static constexpr int chunk = vector_bytes / static_cast<int>(sizeof(storage));
  static constexpr int group_lanes = HeadDim / chunk < 32 ? HeadDim / chunk : 32;
  static constexpr int chunks = HeadDim / (chunk * group_lanes);

  PAGEDKV_DEVICE plain_piece(const attention_call& call, const divider<std::int32_t>& block_size, bool aligned,
                             int lane)
      : call_(call),
        block_size_(block_size),
        aligned_(aligned),
        group_(lane / group_lanes),
        lane_(lane % group_lanes),
        num_groups_(wave_size() / group_lanes) {}

  PAGEDKV_DEVICE void begin(const attention_walk& walk) {
    const auto& call = read_again(call_);
    column_ = find_column(call, walk.row, walk.task, 0, 1);
    rule_ = score_rule::of(call, column_);
    if constexpr (General) {
      branches_ = hidden_branches::of(call, walk.row, column_);
    }
    head_ = walk.task / walk.row.num_column_tiles;
    key_scale_ = static_key_scale<Element>(call, walk);
    reference_ = -INFINITY;
    sum_ = 0.0F;
    read_query<Numbers>(call, column_, first_dim(0), first_dim(1) - first_dim(0), query_);
    PAGEDKV_UNROLL
    for (auto j = 0; j < chunks; ++j) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < chunk; ++i) {
        output_[j][i] = 0.0F;
      }
    }
  }

  PAGEDKV_DEVICE void add_tile(const attention_walk& walk, std::int32_t tile) {
    const auto first_token = first_token_of(read_again(call_), walk.row, walk.row.first_tile + tile);
    const auto last_token = last_of_tile(first_token);
    for (auto i = 0; i < attention_tile; i += num_groups_) {
      const auto token = first_token + i + group_;
      auto visible = token >= rule_.first_token && token <= last_token;
      if constexpr (General) {
        visible = visible && !branches_.hide(token);
      }
      add_token(address_of(walk, token, visible), token, visible);
    }
  }

  /// Merges the states of the groups and writes the result.
  PAGEDKV_DEVICE void finish(const attention_walk& walk) {
    for (auto distance = group_lanes; distance < num_groups_ * group_lanes; distance *= 2) {
      const auto other_reference = shuffle_xor(reference_, distance, wave_size());
      const auto other_sum = shuffle_xor(sum_, distance, wave_size());
      const auto largest = fmaxf(reference_, other_reference);
      const auto own_factor = sum_ == 0.0F ? 0.0F : exp2f(reference_ - largest);
      const auto other_factor = other_sum == 0.0F ? 0.0F : exp2f(other_reference - largest);
      PAGEDKV_UNROLL
      for (auto j = 0; j < chunks; ++j) {
        PAGEDKV_UNROLL
        for (auto i = 0; i < chunk; ++i) {
          const auto other = shuffle_xor(output_[j][i], distance, wave_size());
          output_[j][i] = output_[j][i] * own_factor + other * other_factor;
        }
      }
      sum_ = sum_ * own_factor + other_sum * other_factor;
      reference_ = largest;
    }
    if (group_ == 0 && column_.exists()) {
      write(walk);
    }
  }

 private:
  /// The last token of a tile that the query may see: with lists, tiles end with their block.
  [[nodiscard]] PAGEDKV_DEVICE std::int32_t last_of_tile(std::int32_t first_token) const {
    const auto& call = read_again(call_);
    if (!call.lists.exist() || first_token < 0) {
      return rule_.last_token;
    }
    const auto last = first_token + call.view.block_size - block_size_.split(first_token).remainder - 1;
    return last < rule_.last_token ? last : rule_.last_token;
  }

  [[nodiscard]] PAGEDKV_DEVICE std::int32_t first_dim(int j) const { return (j * group_lanes + lane_) * chunk; }

  /// Address of a token's key, of its key scale, and of its value if that has a row of its own.
  struct token_address {
    const std::byte* key = nullptr;
    const std::byte* scale = nullptr;
    const std::byte* own_value = nullptr;
  };

  [[nodiscard]] PAGEDKV_DEVICE token_address address_of(const attention_walk& walk, std::int32_t token,
                                                        bool visible) const {
    const auto& view = call_.view;
    const auto split = block_size_.split(visible ? token : 0);
    auto block = std::int32_t{0};
    if (visible) {
      block = static_cast<std::int32_t>(load(call_.indices + walk.row.first_index + split.quotient));
      check(block >= 0 && block < view.num_blocks, "block within the storage");
    }
    const auto within = [&](std::int64_t token_stride, std::int64_t head_stride) {
      return split.remainder * static_cast<std::int32_t>(token_stride) + head_ * static_cast<std::int32_t>(head_stride);
    };
    const auto* const start = view.block(call_.layer, block);
    auto address = token_address{
        start + static_cast<std::int64_t>(within(view.token_stride, view.head_stride)) *
                    static_cast<std::int64_t>(sizeof(storage)),
        start + static_cast<std::int64_t>(within(view.scale_token_stride, view.scale_head_stride)) * 4};
    if constexpr (General) {
      address.own_value = start + view.value_offset +
                          static_cast<std::int64_t>(within(value_token_stride(), value_head_stride())) *
                              static_cast<std::int64_t>(sizeof(storage));
    }
    return address;
  }

  [[nodiscard]] PAGEDKV_DEVICE std::int64_t value_token_stride() const {
    return call_.view.has_own_values() ? call_.view.value_token_stride : call_.view.token_stride;
  }
  [[nodiscard]] PAGEDKV_DEVICE std::int64_t value_head_stride() const {
    return call_.view.has_own_values() ? call_.view.value_head_stride : call_.view.head_stride;
  }

  PAGEDKV_DEVICE void add_token(const token_address& address, std::int32_t token, bool visible)
    requires packs_tokens<Element>
  {
    registers<float, chunks, chunk> numbers;
    read_packed(address.key, visible, numbers);
    const auto product = product_with(numbers);
    if (visible) {
      add_scored(score(product, token), 1.0F, numbers);
    }
  }

  PAGEDKV_DEVICE void add_token(const token_address& address, std::int32_t token, bool visible) {
    registers<float, chunks, chunk> keys;
    registers<float, chunks, chunk> values;
    const auto key_dim = [this] { return call_.view.head_dim; };
    if constexpr (General) {
      // Read again: masks of the lanes that end in each chunk would take more scalar registers than there are.
      read_row(address.key, visible, [this] { return read_again(call_).view.head_dim; }, keys);
      read_row(address.own_value, visible, [this] { return read_again(call_).output.dim; }, values);
    } else {
      read_row(address.key, visible, key_dim, keys);
      read_row(address.key + call_.view.value_offset, visible, key_dim, values);
    }
    auto product = product_with(keys);
    if (!visible) {
      return;
    }
    auto value_scale = 1.0F;
    if constexpr (has_static_scales<Element>) {
      product *= key_scale_;
    }
    if constexpr (Element::scaled) {
      product *= load(reinterpret_cast<const float*>(address.scale + call_.view.key_scale_offset));
      value_scale = load(reinterpret_cast<const float*>(address.scale + call_.view.value_scale_offset));
    }
    add_scored(score(product, token), value_scale, values);
  }

  /// The product of the query and a key. Every lane takes part.
  [[nodiscard]] PAGEDKV_DEVICE float product_with(const registers<float, chunks, chunk>& keys) const {
    auto product = 0.0F;
    PAGEDKV_UNROLL
    for (auto j = 0; j < chunks; ++j) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < chunk; ++i) {
        product += query_[j][i] * keys[j][i];
      }
    }
    for (auto distance = group_lanes / 2; distance > 0; distance /= 2) {
      product += shuffle_xor(product, distance, group_lanes);
    }
    return product;
  }

  PAGEDKV_DEVICE void add_scored(float score, float value_scale, const registers<float, chunks, chunk>& values) {
    const auto largest = fmaxf(reference_, score);
    const auto safe = largest == -INFINITY ? 0.0F : largest;
    const auto before = sum_ == 0.0F ? 0.0F : exp2f(reference_ - safe);
    const auto probability = exp2f(score - safe);
    const auto weight = probability * value_scale;
    sum_ = sum_ * before + probability;
    reference_ = largest;
    PAGEDKV_UNROLL
    for (auto j = 0; j < chunks; ++j) {
      PAGEDKV_UNROLL
      for (auto i = 0; i < chunk; ++i) {
        output_[j][i] = output_[j][i] * before + weight * values[j][i];
      }
    }
  }

  [[nodiscard]] PAGEDKV_DEVICE float score(float product, std::int32_t token) const {
    auto score = product * call_.scale;
    if (call_.soft_cap > 0.0F) {
      score = call_.soft_cap * tanhf(score / call_.soft_cap);
    }
    return score * log2_e + (call_.alibi_slopes != nullptr ? rule_.bias(token) : 0.0F);
  }

  template <class Dim>
  PAGEDKV_DEVICE void read_row(const std::byte* from, bool visible, Dim dim,
                               registers<float, chunks, chunk>& numbers) const {
    PAGEDKV_UNROLL
    for (auto j = 0; j < chunks; ++j) {
      auto stored = vector<storage, chunk>{};
      const auto* const start = reinterpret_cast<const storage*>(from) + first_dim(j);
      if (visible && aligned_) {
        if (first_dim(j) < dim()) {
          stored = load_vector<chunk>(start);
        }
      } else if (visible) {
        const auto count = (General ? dim() : read_again(call_).view.head_dim) - first_dim(j);
        PAGEDKV_UNROLL
        for (auto i = 0; i < chunk; ++i) {
          if (i < count) {
            stored.values[i] = load(start + i);
          }
        }
      }
      const auto decoded = decode<Element, chunk>(stored, 1.0F);
      PAGEDKV_UNROLL
      for (auto i = 0; i < chunk; ++i) {
        numbers[j][i] = decoded.values[i];
      }
    }
  }

  /// Reads a packed token: the first chunk has its quantised numbers, the second one the others.
  PAGEDKV_DEVICE void read_packed(const std::byte* from, bool visible, registers<float, chunks, chunk>& numbers) const {
    constexpr auto packed = Element::packed;
    using number = typename Element::rotated::storage;
    constexpr auto each = vector_bytes / static_cast<int>(sizeof(number));
    static_assert(chunks == 2 && group_lanes * chunk == packed.latent_dim && packed.part_dim % chunk == 0 &&
                  packed.rotated_dim % chunk == 0);
    auto latent = vector<storage, chunk>{};
    auto scale = 0.0F;
    registers<vector<number, each>, chunk / each> rotated = {};
    if (visible) {
      latent = load_vector<chunk>(reinterpret_cast<const storage*>(from) + first_dim(0));
      scale = load(reinterpret_cast<const float*>(from + packed.scale_offset) + first_dim(0) / packed.part_dim);
    }
    if (visible && first_dim(1) < packed.key_dim()) {
      const auto* const rest =
          reinterpret_cast<const number*>(from + packed.rotated_offset) + first_dim(1) - packed.latent_dim;
      PAGEDKV_UNROLL
      for (auto k = 0; k < chunk / each; ++k) {
        rotated[k] = load_vector<each>(rest + k * each);
      }
    }
    const auto decoded = decode<typename Element::latent, chunk>(latent, scale);
    PAGEDKV_UNROLL
    for (auto i = 0; i < chunk; ++i) {
      numbers[0][i] = decoded.values[i];
      numbers[1][i] = Element::rotated::decode(rotated[i / each].values[i % each], 1.0F);
    }
  }

  PAGEDKV_DEVICE void write(const attention_walk& walk) const {
    const auto& call = read_again(call_);
    const auto scale = static_value_scale<Element>(call, walk);
    const auto ended = end_softmax(call, column_, reference_, sum_);
    if (lane_ == 0 && walk.whole) {
      write_log_sum_exp(call, column_, ended);
    } else if (lane_ == 0) {
      write_partial_sum(call, walk.partial, reference_, sum_);
    }
    PAGEDKV_UNROLL
    for (auto j = 0; j < chunks; ++j) {
      auto numbers = vector<float, chunk>{};
      PAGEDKV_UNROLL
      for (auto i = 0; i < chunk; ++i) {
        numbers.values[i] = has_static_scales<Element> ? output_[j][i] * scale : output_[j][i];
      }
      if (walk.whole) {
        write_output<Numbers>(call, column_, first_dim(j), numbers, ended.factor);
      } else {
        write_partial(call, walk.partial, first_dim(j), numbers);
      }
    }
  }

  const attention_call& call_;
  const divider<std::int32_t>& block_size_;
  bool aligned_;
  int group_;
  int lane_;
  int num_groups_;
  query_column column_{};
  score_rule rule_{};
  hidden_branches branches_{};
  std::int32_t head_ = 0;
  float key_scale_ = 1.0F;  // a static one
  float reference_ = 0.0F;
  float sum_ = 0.0F;
  registers<float, chunks, chunk> query_;
  registers<float, chunks, chunk> output_;
};

/// Decode attention with plain arithmetic: for float32, for devices whose matrix instructions the library does not
/// support, and for rows that are not aligned to vectors. A task has one column. `aligned`: rows start at multiples of
/// 16 bytes, and their lengths are such multiples. `General` as above.
template <class Element, class Numbers, int HeadDim, bool General, int Waves>
PAGEDKV_KERNEL void PAGEDKV_LAUNCH_BOUNDS(Waves * 64)
    plain_attend_kernel(attention_call call, divider<std::int32_t> block_size, bool aligned) {
  const auto wave = uniform(static_cast<int>(local_index().x) / wave_size());
  const auto lane = static_cast<int>(local_index().x) % wave_size();
  const auto share = static_cast<std::int32_t>(workgroup_index().x) * Waves + wave;
  let_next_kernel_start();
  if (share >= call.plan.num_shares) {
    return;
  }
  auto walk = attention_walk(call, share);
  auto state = plain_piece<Element, Numbers, HeadDim, General>(call, block_size, aligned, lane);
  while (!walk.done) {
    state.begin(walk);
    for (auto tile = walk.tile; tile < walk.end; ++tile) {
      state.add_tile(walk, tile);
    }
    state.finish(walk);
    walk.next_piece();
  }
}

}  // namespace pagedkv::kernels
