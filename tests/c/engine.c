/* The loop of an engine in C: two prompts of which the second finds the blocks of the first. */

#include <pagedkv/c/pagedkv.h>

#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                                         \
  do {                                                                           \
    if (!(condition)) {                                                          \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, pagedkv_last_message()); \
      return 1;                                                                  \
    }                                                                            \
  } while (0)

enum { num_tokens = 40, block_size = 16 };

int main(void) {
  pagedkv_cache* cache = NULL;
  pagedkv_config config;
  pagedkv_sequence first, second, forked, unknown = 12345;
  pagedkv_step step;
  pagedkv_statistics statistics = {sizeof statistics, 0, 0, 0, 0, 0, 0, 0};
  pagedkv_storage storage = {.struct_size = sizeof storage};
  pagedkv_sequence_info info = {.struct_size = sizeof info};
  pagedkv_error error = {.struct_size = sizeof error};
  int32_t tokens[num_tokens];
  int32_t many[8 * block_size] = {0};
  int32_t blocks[4];
  int64_t slots[num_tokens];
  const float scales[] = {0.5f, 0.25f}; /* of K and of V */
  int64_t num_cached = -1;
  size_t num_blocks = 0;
  int i;
  for (i = 0; i < num_tokens; ++i) {
    tokens[i] = i;
  }

  CHECK(pagedkv_last_message()[0] == '\0');
  pagedkv_last_error(&error);
  CHECK(error.code == PAGEDKV_OK && error.limit == INT64_MIN);
  pagedkv_config_init(&config);
  CHECK(pagedkv_create(&config, &cache) == PAGEDKV_INVALID_ARGUMENT && cache == NULL);
  CHECK(strcmp(pagedkv_last_message(), "invalid argument: cache_config.num_blocks is 0, limit 1") == 0);
  config.num_blocks = 8;
  config.head_dim = 8;
  config.struct_size = 4;
  CHECK(pagedkv_create(&config, &cache) == PAGEDKV_INVALID_ARGUMENT);
  config.struct_size = sizeof config;
#ifdef HAS_SCALES
  CHECK(pagedkv_create_with_scales(&config, scales, &cache) == PAGEDKV_OK);
#else
  CHECK(pagedkv_create_with_scales(&config, scales, &cache) == PAGEDKV_INVALID_ARGUMENT);
  CHECK(pagedkv_create(&config, &cache) == PAGEDKV_OK);
#endif
  pagedkv_get_storage(cache, &storage);
  CHECK(storage.base != NULL && storage.token_stride == 8);

  CHECK(pagedkv_create_sequence(cache, tokens, num_tokens, 0, &first, &num_cached) == PAGEDKV_OK && num_cached == 0);
  CHECK(pagedkv_slot_mapping(cache, first, 0, slots, num_tokens) == PAGEDKV_OK);
  CHECK(pagedkv_block_table(cache, first, blocks, 4, &num_blocks) == PAGEDKV_OK && num_blocks == 3);
  for (i = 0; i < num_tokens; ++i) {
    CHECK(slots[i] == blocks[i / block_size] * (int64_t)block_size + i % block_size);
    *((uint16_t*)((char*)storage.base + blocks[i / block_size] * storage.block_stride) +
      (i % block_size) * storage.token_stride) = (uint16_t)i;
  }
  CHECK(pagedkv_begin_step(cache, &first, 1, &step) == PAGEDKV_OK);
  CHECK(pagedkv_commit(cache, first, num_tokens) == PAGEDKV_OK);
  CHECK(pagedkv_append(cache, first, tokens, 1) == PAGEDKV_OK);
  CHECK(pagedkv_find_prefix(cache, tokens, num_tokens, 0) == 32);
  CHECK(pagedkv_find_prefix(cache, tokens, num_tokens, 7) == 0);

  CHECK(pagedkv_create_sequence(cache, tokens, num_tokens, 0, &second, &num_cached) == PAGEDKV_OK && num_cached == 32);
  CHECK(pagedkv_commit(cache, second, num_tokens) == PAGEDKV_OK);
  CHECK(pagedkv_fork(cache, second, &forked) == PAGEDKV_OK);
  CHECK(pagedkv_truncate(cache, forked, 33) == PAGEDKV_OK);
  CHECK(pagedkv_release(cache, unknown) == PAGEDKV_UNKNOWN_SEQUENCE);
  CHECK(strncmp(pagedkv_last_message(), "unknown sequence: ", 18) == 0);
  CHECK(pagedkv_block_table(cache, second, blocks, 1, &num_blocks) == PAGEDKV_INVALID_ARGUMENT && num_blocks == 3);

  CHECK(pagedkv_describe(cache, second, &info) == PAGEDKV_OK && info.struct_size == sizeof info);
  CHECK(info.num_tokens == num_tokens && info.num_computed_tokens == num_tokens);
  CHECK(info.num_cached_tokens == 32 && info.num_blocks == 3);
  CHECK(pagedkv_describe(cache, unknown, &info) == PAGEDKV_UNKNOWN_SEQUENCE && info.num_blocks == 3);

  CHECK(pagedkv_release(cache, first) == PAGEDKV_OK);
  CHECK(pagedkv_release(cache, second) == PAGEDKV_OK);
  CHECK(pagedkv_release(cache, forked) == PAGEDKV_OK);
  CHECK(pagedkv_retire_step(cache, step) == PAGEDKV_OK);
  CHECK(pagedkv_retire_step(cache, step) == PAGEDKV_UNKNOWN_STEP);
  CHECK(pagedkv_begin_step(cache, NULL, 0, &step) == PAGEDKV_OK);
  CHECK(pagedkv_create_sequence(cache, many, 6 * block_size, 0, &first, &num_cached) == PAGEDKV_OK);
  CHECK(pagedkv_release(cache, first) == PAGEDKV_OK);
  CHECK(pagedkv_create_sequence(cache, many, 8 * block_size, 0, &first, &num_cached) == PAGEDKV_CAPACITY_EXHAUSTED);
  pagedkv_last_error(&error);
  CHECK(error.struct_size == sizeof error && error.code == PAGEDKV_CAPACITY_EXHAUSTED && error.step == step);
  CHECK(error.value == 8 && error.limit == 2);
  CHECK(pagedkv_retire_step(cache, step) == PAGEDKV_OK);

  statistics.evictions = 77;
  statistics.struct_size = offsetof(pagedkv_statistics, evictions); /* as an older program would */
  pagedkv_get_statistics(cache, &statistics);
  CHECK(statistics.evictions == 77 && statistics.struct_size == offsetof(pagedkv_statistics, evictions));
  CHECK(statistics.blocks_in_use == 0 && statistics.num_sequences == 0 && statistics.hit_blocks == 2);
  CHECK(statistics.blocks_free + statistics.blocks_evictable == 8 && statistics.blocks_evictable == 2);
  pagedkv_destroy(cache);
  pagedkv_destroy(NULL);
  return 0;
}
