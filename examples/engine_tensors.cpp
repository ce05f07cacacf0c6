// An engine that keeps K/V in tensors of its own: the cache has no memory, decides which blocks hold which tokens, and
// lists the blocks that the engine has to copy. See docs/integrate.md.

#include <pagedkv/backend/copy_list.hpp>
#include <pagedkv/pagedkv.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

using namespace pagedkv;

namespace {

constexpr auto config = cache_config{.block_size = 4, .num_blocks = 16};

/// K of one layer, one number a token: [block][token in the block].
struct tensor {
  std::vector<float> numbers = std::vector<float>(std::size_t{config.num_blocks} * config.block_size);

  [[nodiscard]] float* block(std::int32_t id) { return numbers.data() + std::ptrdiff_t{id} * config.block_size; }
  [[nodiscard]] float& at(slot of) { return numbers[static_cast<std::size_t>(of)]; }
};

/// Carries out the list of copies, before kernels of the step write or read the tensors.
void copy_blocks(std::vector<tensor>& layers, std::span<const block_pair> copies) {
  for (const auto [source, destination] : copies) {
    for (auto& layer : layers) {
      std::copy_n(layer.block(source), config.block_size, layer.block(destination));
    }
  }
}

/// Appends one token to each sequence; writes the token as its K.
void step(kv_cache<copy_list>& cache, std::vector<tensor>& layers, std::span<const sequence_id> ids,
          std::span<const token> next) {
  auto copies = std::vector<block_pair>{};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    cache.append(ids[i], next[i], copies).value();
  }
  copy_blocks(layers, copies);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto last = cache.describe(ids[i])->num_tokens - 1;
    auto slots = std::array<slot, 1>{};
    cache.slot_mapping(ids[i], last, slots).value();
    for (auto& layer : layers) {
      layer.at(slots[0]) = static_cast<float>(next[i]);
    }
    cache.commit(ids[i], last + 1).value();
  }
}

/// Reads the K of a sequence through its slots.
bool holds(const kv_cache<copy_list>& cache, std::vector<tensor>& layers, sequence_id id,
           std::span<const token> expected) {
  auto slots = std::vector<slot>(expected.size());
  cache.slot_mapping(id, 0, slots).value();
  return std::ranges::all_of(layers, [&](tensor& layer) {
    return std::ranges::equal(slots, expected,
                              [&](slot of, token wanted) { return layer.at(of) == static_cast<float>(wanted); });
  });
}

}  // namespace

int main() {
  auto cache = kv_cache<copy_list>{config};
  auto layers = std::vector<tensor>(2);
  const auto first = cache.create_sequence(std::span<const token>{}).value().id;
  for (const auto next : {1, 2, 3, 4, 5, 6}) {
    step(cache, layers, std::array{first}, std::array{token{next}});
  }
  const auto second = cache.fork(first).value();
  step(cache, layers, std::array{first, second}, std::array{token{7}, token{8}});  // copies the second block for one

  const bool right = holds(cache, layers, first, std::array<token, 7>{1, 2, 3, 4, 5, 6, 7}) &&
                     holds(cache, layers, second, std::array<token, 7>{1, 2, 3, 4, 5, 6, 8});
  const auto statistics = cache.statistics();
  cache.release(first).value();
  cache.release(second).value();
  std::printf("%s, with %d blocks in use and %d copied\n", right ? "both samples are right" : "K is wrong",
              static_cast<int>(statistics.blocks.in_use), static_cast<int>(statistics.copies));
  return right ? 0 : 1;
}
