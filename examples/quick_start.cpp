#include <pagedkv/pagedkv.hpp>

#include <cstdio>
#include <vector>

int main() {
  auto cache = pagedkv::kv_cache<pagedkv::float16>({.block_size = 16, .num_blocks = 1024, .num_kv_heads = 2});
  auto requests = pagedkv::request_tracker(cache);
  const auto prompt = std::vector<pagedkv::token>(100, 7);

  for (auto i = 0; i < 2; ++i) {  // the second request finds the blocks of the first
    const auto request = requests.submit(prompt).value();
    const auto first = request.num_cached_tokens;
    auto slots = std::vector<pagedkv::slot>(prompt.size() - static_cast<std::size_t>(first));
    cache.slot_mapping(request.sequence, first, slots).value();
    const auto keys = std::vector<float>(slots.size() * 2 * 64, 0.5f);  // [token][head][dim], as a model computes them
    const auto rows = pagedkv::contiguous_rows(keys, 2, 64);
    cache.write(0, slots, rows, rows).value();
    cache.commit(request.sequence, 100).value();
    std::printf("%d of 100 tokens were cached\n", static_cast<int>(first));
    requests.finish(request.id).value();
  }
  return cache.statistics().blocks.in_use == 0 ? 0 : 1;
}
