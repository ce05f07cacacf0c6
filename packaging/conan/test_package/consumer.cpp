#include <pagedkv/pagedkv.hpp>

#include <iostream>

int main() {
  auto cache = pagedkv::kv_cache<>({.num_blocks = 4});
  std::cout << cache.statistics().blocks.free << " blocks are free\n";
}
