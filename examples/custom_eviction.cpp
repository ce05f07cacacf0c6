// A user's eviction policy in a cache: blocks of long prompts are evicted before blocks of short ones.

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/eviction/parts/chain_lists.hpp>

#include <bit>
#include <cstdio>
#include <string_view>
#include <vector>

using namespace pagedkv;

/// Evicts the blocks of the longest prompts first, by powers of two; the least recently released within one power.
class longest_prompt_first {
 public:
  static constexpr std::string_view name = "longest_prompt_first";
  static constexpr bool concurrent = false;

  explicit longest_prompt_first(std::int32_t num_blocks) : lists_(num_blocks, num_sizes) {}

  void insert(block_id block, const block_release& release) noexcept {
    const auto size = std::bit_width(release.num_prompt_tokens);
    lists_.insert(block, release.parent, static_cast<chain_lists::list_index>(size));
  }

  void remove(block_id block) noexcept { lists_.hold(block); }
  void erase(block_id block) noexcept { lists_.erase(block); }
  void rename(block_id from, block_id to) noexcept { lists_.rename(from, to); }

  template <class Offer>
  [[nodiscard]] block_id victim(Offer&& offer, timestamp) noexcept {
    auto block = lists_.take_due(offer);
    for (auto size = num_sizes; size-- > 0 && block == no_block;) {
      block = lists_.take_oldest(size, offer);
    }
    return block != no_block ? block : lists_.take_any(offer);
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return lists_.bytes(); }

 private:
  static constexpr auto num_sizes = chain_lists::list_index{33};

  chain_lists lists_;
};

static_assert(eviction_policy<longest_prompt_first>);

using cache = kv_cache<longest_prompt_first>;

namespace {

/// Runs a prompt of equal tokens through the cache; returns the number of tokens that were cached.
std::int64_t run(cache& blocks, token word, std::size_t length) {
  const auto prompt = std::vector<pagedkv::token>(length, word);
  const auto sequence = blocks.create_sequence(prompt).value();
  blocks.commit(sequence.id, static_cast<std::int64_t>(length)).value();
  blocks.release(sequence.id).value();
  return sequence.num_cached_tokens;
}

}  // namespace

int main() {
  auto blocks = cache{{.block_size = 16, .num_blocks = 16}};
  run(blocks, 1, 64);  // a short prompt of 4 blocks, then a long one of 11
  run(blocks, 2, 176);
  run(blocks, 3, 64);  // its blocks replace those of the long prompt, although the short one is older
  std::printf("short prompt: %lld of 64 tokens cached\n", static_cast<long long>(run(blocks, 1, 64)));
  std::printf("long prompt: %lld of 176 tokens cached\n", static_cast<long long>(run(blocks, 2, 176)));
}
