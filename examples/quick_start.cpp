#include <pagedkv/pagedkv.hpp>

#include <cstdio>
#include <vector>

int main() {
  constexpr auto heads = 2, dim = 64;  // your model's, beside its num_layers; the defaults are 1, 64 and 1
  auto cache = pagedkv::kv_cache<pagedkv::float16>({.num_blocks = 1024, .num_kv_heads = heads, .head_dim = dim});
  auto requests = pagedkv::request_tracker(cache);
  const auto prompt = std::vector<pagedkv::token>(100, 7);

  for (auto i = 0; i < 2; ++i) {  // the second request finds the blocks of the first
    const auto request = requests.submit(prompt).value();
    const auto first = request.num_cached_tokens;
    auto slots = std::vector<pagedkv::slot>(prompt.size() - static_cast<std::size_t>(first));
    cache.slot_mapping(request.sequence, first, slots).value();
    const auto keys = std::vector<float>(slots.size() * heads * dim, 0.5f);  // [token][head][dim], of a model
    const auto rows = pagedkv::contiguous_rows(keys, heads, dim);
    cache.write(0, slots, rows, rows).value();
    cache.commit(request.sequence, 100).value();
    std::printf("%d of 100 tokens were cached\n", static_cast<int>(first));
    requests.finish(request.id).value();
  }
  return cache.statistics().blocks.in_use == 0 ? 0 : 1;
}
