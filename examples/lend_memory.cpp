// Two models share a machine: a cache lends memory that it does not use to the other, and gets it back.

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/allocator/page_allocators.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

using cache = pagedkv::kv_cache<pagedkv::float16, pagedkv::reserving_allocator>;

/// Moves the memory of up to `num_blocks` blocks from one cache to another, whose blocks have the same size; returns of
/// how many. Blocks in use stay; cached ones are evicted as far as necessary.
std::int32_t lend(cache& from, cache& to, std::int32_t num_blocks) {
  const auto available = static_cast<std::int32_t>(from.num_available_blocks());
  const auto room = to.config().capacity() - to.num_blocks();
  const auto lent = std::min({num_blocks, available, from.num_blocks() - 1, room});
  if (lent <= 0 || !from.resize(from.num_blocks() - lent)) {
    return 0;
  }
  to.resize(to.num_blocks() + lent).value();
  return lent;
}

void describe(const char* name, const cache& of) {
  const auto blocks = of.statistics().blocks;
  std::printf("%s: %d blocks, of which %d in use and %d cached\n", name, static_cast<int>(of.num_blocks()),
              static_cast<int>(blocks.in_use), static_cast<int>(blocks.evictable));
}

}  // namespace

int main() {
  const auto config = pagedkv::cache_config{.num_blocks = 64, .max_blocks = 120, .num_layers = 4};
  auto chat = cache{config};
  auto batch = cache{config};

  // The chat model has served a prompt of 40 blocks, and is idle.
  const auto question = std::vector<pagedkv::token>(40 * 16, 1);
  const auto asked = chat.create_sequence(question).value().id;
  chat.commit(asked, 40 * 16).value();
  chat.release(asked).value();

  // A document for the other model takes 100 blocks.
  const auto document = std::vector<pagedkv::token>(100 * 16, 2);
  auto reading = batch.create_sequence(document);
  if (!reading) {
    std::printf("lent: %d blocks\n", static_cast<int>(lend(chat, batch, 100 - batch.num_blocks())));
    reading = batch.create_sequence(document);
  }
  describe("batch", batch);
  describe("chat", chat);

  batch.release(reading.value().id).value();
  std::printf("given back: %d blocks\n", static_cast<int>(lend(batch, chat, 64 - chat.num_blocks())));
  describe("chat", chat);
  return chat.num_blocks() == batch.num_blocks() ? 0 : 1;
}
