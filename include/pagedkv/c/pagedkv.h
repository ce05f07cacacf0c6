/* A paged key/value cache for engines in C and for bindings: the bookkeeping and the block storage of pagedkv's C++ cache.
 *
 * Compile pagedkv/c/pagedkv.cpp, beside this header, once into your program: c++ -std=c++20, and link xxHash. It holds one
 * kind of cache, float16 on the host under a reader-writer lock, unless you define another:
 *   -DPAGEDKV_C_CACHE='pagedkv::kv_cache<pagedkv::int8, pagedkv::single_thread>'
 * and, if its policies need a header, -DPAGEDKV_C_HEADER='<pagedkv/policy/eviction/arc.hpp>'.
 *
 * Functions return PAGEDKV_OK or the code of an error and have then changed nothing, results included;
 * pagedkv_last_message() says more. A function may be called from any thread if the locking policy allows it.
 *
 * ABI: ids, codes and the order of fields do not change. Later versions append codes, functions, and fields to the
 * structures that functions fill: struct_size, which the caller sets to what sizeof was when it was compiled, tells how
 * much to fill. pagedkv_config stays as it is: more settings would come with a function of their own. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pagedkv_cache pagedkv_cache;
typedef uint64_t pagedkv_sequence;
typedef uint64_t pagedkv_step;

enum {
  PAGEDKV_OK,
  PAGEDKV_INVALID_ARGUMENT,   /* a value outside what the operation accepts */
  PAGEDKV_SIZE_OVERFLOW,      /* a product of sizes does not fit its type */
  PAGEDKV_OUT_OF_MEMORY,      /* an allocator had nothing left */
  PAGEDKV_CAPACITY_EXHAUSTED, /* not enough blocks now, even after eviction */
  PAGEDKV_NEVER_FITS,         /* more blocks than the pool has */
  PAGEDKV_UNKNOWN_SEQUENCE,   /* never existed, or already released */
  PAGEDKV_SEQUENCE_BUSY,      /* another thread is inside an operation on it */
  PAGEDKV_UNKNOWN_STEP,       /* never begun, or already retired */
  PAGEDKV_IN_USE,             /* refused while blocks or steps are in use */
  PAGEDKV_LIMIT_REACHED,      /* a bounded table or counter is full */
  PAGEDKV_BACKEND_FAILURE,    /* the device runtime refused a call */
  PAGEDKV_OTHER_ERROR         /* a code that this header does not know */
};

typedef struct pagedkv_config {
  size_t struct_size;
  int32_t block_size; /* tokens in a block */
  int32_t num_blocks; /* blocks in the pool */
  int32_t num_layers;
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t max_sequences; /* alive at once */
  uint64_t hash_seed;    /* 0 draws one at random */
} pagedkv_config;

/* Block storage as kernels address it: layer L of block B is at base + L * layer_stride + B * block_stride. The key of one
 * token and head is head_dim neighbouring elements, (token in block) * token_stride + head * head_stride elements further;
 * its value lies value_offset bytes after it. Strides of layer and block are in bytes. int8, and float8 with a scale per
 * token, have float scales in the block: that of a key lies key_scale_offset bytes after the start of the block's layer
 * and (token) * scale_token_stride + head * scale_head_stride floats further, that of a value likewise; elsewhere the
 * offsets are 0. */
typedef struct pagedkv_storage {
  size_t struct_size;
  void* base;
  int64_t block_stride;
  int64_t layer_stride;
  int64_t value_offset;
  int64_t token_stride;
  int64_t head_stride;
  int64_t key_scale_offset;
  int64_t value_scale_offset;
  int64_t scale_token_stride;
  int64_t scale_head_stride;
} pagedkv_storage;

typedef struct pagedkv_sequence_info {
  size_t struct_size;
  int64_t num_tokens;
  int64_t num_computed_tokens; /* committed */
  int64_t num_cached_tokens;   /* by the prefix hit of its creation */
  int64_t num_blocks;          /* in the block table */
} pagedkv_sequence_info;

typedef struct pagedkv_error {
  size_t struct_size;
  int64_t code;      /* PAGEDKV_OK before the first error */
  int64_t value;     /* that the operation refused: the blocks needed, for example */
  int64_t limit;     /* that it violates: the blocks available, for example; INT64_MIN without one */
  pagedkv_step step; /* PAGEDKV_CAPACITY_EXHAUSTED: there is room when it and those before have retired; 0 if not */
} pagedkv_error;

typedef struct pagedkv_statistics {
  size_t struct_size;
  int64_t blocks_free;
  int64_t blocks_in_use;
  int64_t blocks_evictable;
  int64_t blocks_retiring;
  int64_t num_sequences;
  int64_t hit_blocks; /* of all sequences so far */
  int64_t evictions;
} pagedkv_statistics;

/* The message of the last error in this thread; empty before the first. Valid until the next error. */
const char* pagedkv_last_message(void);

/* The same error in numbers. Sets struct_size as pagedkv_get_storage does. */
void pagedkv_last_error(pagedkv_error* error);

/* The library's defaults; num_blocks is left to be set. */
void pagedkv_config_init(pagedkv_config* config);

int pagedkv_create(const pagedkv_config* config, pagedkv_cache** cache);
/* For an element whose scales the engine gives, as float8_e4m3: for each layer one of K and one of V, or one of each KV
 * head's K and then of each one's V. Kernels read them from the engine's memory, where they stay. */
int pagedkv_create_with_scales(const pagedkv_config* config, const float* scales, pagedkv_cache** cache);
/* Accepts NULL. */
void pagedkv_destroy(pagedkv_cache* cache);

/* Starts a sequence with a prompt. K/V of the first *num_cached_tokens is in the cache already. Sequences with different
 * salts share nothing. */
int pagedkv_create_sequence(pagedkv_cache* cache, const int32_t* tokens, size_t num_tokens, uint64_t salt,
                            pagedkv_sequence* sequence, int64_t* num_cached_tokens);
int pagedkv_append(pagedkv_cache* cache, pagedkv_sequence sequence, const int32_t* tokens, size_t num_tokens);
/* Declares that K/V of the first num_tokens is written, and lets other sequences find the full blocks among them. */
int pagedkv_commit(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t num_tokens);
int pagedkv_fork(pagedkv_cache* cache, pagedkv_sequence sequence, pagedkv_sequence* fork);
/* Keeps the first num_tokens. */
int pagedkv_truncate(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t num_tokens);
int pagedkv_release(pagedkv_cache* cache, pagedkv_sequence sequence);

/* Sets struct_size as pagedkv_get_storage does. */
int pagedkv_describe(pagedkv_cache* cache, pagedkv_sequence sequence, pagedkv_sequence_info* info);

/* Slots of num_slots tokens from first_token on: block * block_size + offset. */
int pagedkv_slot_mapping(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t first_token, int64_t* slots,
                         size_t num_slots);
/* Copies the block table, whose size goes to *num_blocks; room is how many entries blocks has. pagedkv_describe tells how
 * many are needed. */
int pagedkv_block_table(pagedkv_cache* cache, pagedkv_sequence sequence, int32_t* blocks, size_t room,
                        size_t* num_blocks);

/* Length, in tokens, of the longest cached prefix. */
int64_t pagedkv_find_prefix(pagedkv_cache* cache, const int32_t* tokens, size_t num_tokens, uint64_t salt);

/* Opens a step that uses these sequences: until it retires, blocks that they release are not handed out again. With NULL
 * it may use any block. */
int pagedkv_begin_step(pagedkv_cache* cache, const pagedkv_sequence* sequences, size_t num_sequences,
                       pagedkv_step* step);
int pagedkv_retire_step(pagedkv_cache* cache, pagedkv_step step);

/* Both set struct_size to how much was filled in. */
void pagedkv_get_storage(pagedkv_cache* cache, pagedkv_storage* storage);
void pagedkv_get_statistics(pagedkv_cache* cache, pagedkv_statistics* statistics);

#ifdef __cplusplus
}
#endif
