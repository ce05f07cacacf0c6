/* A paged key/value cache for engines in C and for bindings: all that pagedkv's C++ cache does.
 *
 * Compile pagedkv/c/pagedkv.cpp, beside this header, once into your program: c++ -std=c++20 -O2, and link xxHash and
 * the system's threads. It holds one kind of cache, which macros choose by the names of the policies:
 *
 *   -DPAGEDKV_C_ELEMENT=int8             default float16
 *   -DPAGEDKV_C_LOCKING=lock_free        default rw_lock
 *   -DPAGEDKV_C_EVICTION=tiny_lfu        default lru
 *   -DPAGEDKV_C_BACKEND=copy_list        default host_backend
 *   -DPAGEDKV_C_PREEMPTION=no_preemption default recompute
 *   -DPAGEDKV_C_GROUPS=1                 several kinds of layers
 *   -DPAGEDKV_C_HOST_TIER=1              host memory behind the device; it comes with the next two, too
 *   -DPAGEDKV_C_FILE_TIER=1              files behind that; link liburing
 *   -DPAGEDKV_C_REMOTE_TIER=1            a store behind that; link hiredis
 *   -DPAGEDKV_C_EVENTS=0                 leaves out events: where nothing takes them, each costs a test
 *   -DPAGEDKV_C_ATTENTION=0              leaves out attention, two fifths of the time to compile
 *   -DPAGEDKV_C_POLICIES='hnd_layer_major, contiguous_runs'  of other axes
 *   -DPAGEDKV_C_HEADER='<own/header.hpp>'  with policies whose headers are not found by their names
 *
 * A function that this kind of cache cannot serve returns PAGEDKV_UNSUPPORTED; pagedkv_get_build tells before.
 * Policies that do not work together do not compile, with a sentence that says what to write instead.
 *
 *   part               functions pagedkv_...                                          C++ class or header
 *   errors             last_message, last_error                                       result
 *   what was compiled  get_build                                                      policies
 *   caches             config_init, tiers_init, create, destroy, get_config           kv_cache
 *   streams            stream_...                                                     a backend's stream
 *   sequences          create_sequence ... release, describe, tokens, keys            kv_cache
 *   batches            append_batch, batch_...                                        padded_batch, compressed_batch
 *   slots and tables   slot_mapping, block_table, num_skipped_tokens, common_prefix   kv_cache
 *   prefixes           find_prefix, would_fit, hash_blocks, pin_prefix, invalidate_   kv_cache
 *   steps and blocks   begin_step, retire_step, evict, resize, compact ...            kv_cache
 *   K and V            get_storage, write, read, attend, synchronize ...              kv_cache, its backend
 *   tiers              settle, poll, wait, get_tier ...                               kv_cache<host_tier<>, ...>
 *   sessions           save_sequence, restore_sequence, hand_over                     tier/session_file.hpp
 *   requests           tracker_...                                                    request_tracker
 *   numbers            get_statistics, get_memory, metrics_text, check_invariants     kv_cache, metrics/prometheus.hpp
 *
 * docs/c.md has each C++ operation beside its function. Where a comment says no more, a function means what that
 * operation means, and has its errors and its cost.
 *
 * Errors. Functions return PAGEDKV_OK or the code of an error and have then changed nothing, results included;
 * pagedkv_last_message() says more. No exception leaves a function. A NULL where none may be is
 * PAGEDKV_INVALID_ARGUMENT; a pointer that leads nowhere, and a handle that was destroyed, are misuse, as in C.
 *
 * Threads. Functions on a cache or a tracker may be called from any thread if the locking policy allows it; with
 * single_thread, from one at a time. One thread at a time uses a batch or a list of copies. Functions without a handle,
 * and those of which a comment says it, may be called at any time. Errors, lists of preempted requests and lists of
 * moves belong to the thread.
 *
 * Ownership. create functions make handles, which the caller ends with the destroy function of that type, after all
 * other calls on them: trackers before their cache. All else is the caller's memory, which a call uses only until it
 * returns, unless stated. With hip_backend, what operations on a stream read and write stays until the stream has
 * passed them.
 *
 * ABI. Numbers of codes and the order of fields do not change. Later versions append codes, functions, and fields to
 * structures with struct_size. The caller sets struct_size to sizeof before any call. The library writes as far as that
 * and sets struct_size to how much it has written; of fields that the caller does not know, it takes the defaults. It
 * refuses a structure of the caller's that is longer than its own. Structures without struct_size never change.
 * Booleans are int32_t. */
#pragma once

#include <pagedkv/version.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Handles. Each belongs to the caller, from its create function to its destroy function. A tracker follows requests
 * from their submission to their end; a batch holds block tables as kernels read them. */
typedef struct pagedkv_cache pagedkv_cache;
typedef struct pagedkv_tracker pagedkv_tracker;
typedef struct pagedkv_batch pagedkv_batch;

/* Where operations copy bytes. With host_backend, threads that attention uses: NULL for the calling one alone. With
 * copy_list, the list of the blocks that the engine is to copy, never NULL. With hip_backend, the runtime's stream,
 * cast to this; NULL is the default one. */
typedef struct pagedkv_stream pagedkv_stream;

/* Ids of one cache, or of one tracker. An id whose object has ended is refused, with the error PAGEDKV_UNKNOWN_... of
 * its kind. Steps (forward passes in flight) are numbered from 1 in the order in which they begin; 0 is none. A pin
 * keeps a prefix from eviction. */
typedef uint64_t pagedkv_sequence;
typedef uint64_t pagedkv_request;
typedef uint64_t pagedkv_step;
typedef uint64_t pagedkv_pin;

/* What functions return, and the codes of errors. */
enum {
  PAGEDKV_OK = 0,
  PAGEDKV_INVALID_ARGUMENT = 1,   /* a value outside what the operation accepts */
  PAGEDKV_SIZE_OVERFLOW = 2,      /* a product of sizes does not fit its type */
  PAGEDKV_OUT_OF_MEMORY = 3,      /* an allocator had nothing left */
  PAGEDKV_CAPACITY_EXHAUSTED = 4, /* not enough blocks now, even after eviction */
  PAGEDKV_NEVER_FITS = 5,         /* more blocks than the pool has */
  PAGEDKV_UNKNOWN_SEQUENCE = 6,   /* never existed, or already released */
  PAGEDKV_SEQUENCE_BUSY = 7,      /* another thread is inside an operation on it */
  PAGEDKV_UNKNOWN_PIN = 8,        /* never made, or already ended */
  PAGEDKV_UNKNOWN_STEP = 9,       /* never begun, or already retired */
  PAGEDKV_UNKNOWN_REQUEST = 10,   /* never submitted, or purged */
  PAGEDKV_ALREADY_ENDED = 11,     /* the request finished, was cancelled or failed before */
  PAGEDKV_PREEMPTED = 12,         /* the request holds no sequence until it is resumed */
  PAGEDKV_NOT_PREEMPTED = 13,     /* the request runs: there is nothing to resume */
  PAGEDKV_IN_USE = 14,            /* refused while blocks or steps are in use */
  PAGEDKV_LIMIT_REACHED = 15,     /* a bounded table or counter is full */
  PAGEDKV_BACKEND_FAILURE = 16,   /* the device runtime, or the system, refused a call */
  PAGEDKV_UNSUPPORTED = 17        /* the cache was compiled without it */
};

/* Errors ------------------------------------------------------------------------------------------------------ */

/* The kind of an error and the value that caused it. */
typedef struct pagedkv_error {
  size_t struct_size;
  int64_t code;        /* PAGEDKV_OK before the first error */
  int64_t value;       /* that the operation refused: the blocks needed, for example */
  int64_t limit;       /* that it violates: the blocks available, for example; INT64_MIN without one */
  pagedkv_step step;   /* PAGEDKV_CAPACITY_EXHAUSTED: there is room when it and those before have retired; 0 if not.
                          PAGEDKV_LIMIT_REACHED: the open step that keeps others from beginning */
  const char* subject; /* what the value is; lives as long as the program */
} pagedkv_error;

/* The message of the last error in this thread; empty before the first. Valid until the thread's next error. */
const char* pagedkv_last_message(void);
/* The latest error in numbers. */
int pagedkv_last_error(pagedkv_error* error);

/* What was compiled ------------------------------------------------------------------------------------------- */

/* The policies and parts of this build. */
typedef struct pagedkv_build {
  size_t struct_size;
  const char* element; /* names, which live as long as the program */
  const char* locking;
  const char* eviction;
  const char* backend;
  const char* preemption;
  int32_t element_bytes;      /* of a number of K or V */
  int32_t scale_bytes;        /* in a block, of each token and KV head, for K and for V; 0 without */
  int32_t layers_differ;      /* PAGEDKV_C_GROUPS */
  int32_t num_tiers;          /* host memory is the first */
  int32_t has_memory;         /* false: K and V are in memory of the engine's */
  int32_t has_events;         /* PAGEDKV_C_EVENTS */
  int32_t computes_attention; /* PAGEDKV_C_ATTENTION, with host_backend */
  int32_t uses_priority;      /* the eviction policy heeds priorities and retention */
} pagedkv_build;

/* All caches of a program have one build, so this may be called before there is a cache. */
int pagedkv_get_build(pagedkv_build* build);

/* Tokens ------------------------------------------------------------------------------------------------------ */

/* Contents that the tokens do not tell, such as half of an image's digest, from a position in the sequence on. */
typedef struct pagedkv_key {
  int64_t position;
  uint64_t value[2]; /* any bits */
} pagedkv_key;

/* A prompt, or tokens to append: tokens[num_tokens]. Zeros where there are neither keys[num_keys], in the order of
 * their positions, nor hashes[num_hashes], of pagedkv_hash_blocks. */
typedef struct pagedkv_run {
  const int32_t* tokens;
  size_t num_tokens;
  const pagedkv_key* keys;
  size_t num_keys;
  const uint64_t* hashes;
  size_t num_hashes;
} pagedkv_run;

/* Caches ------------------------------------------------------------------------------------------------------ */

/* Kinds of layers: which tokens the next one reads. */
enum {
  PAGEDKV_FULL = 0,    /* the next token reads all others */
  PAGEDKV_WINDOW = 1,  /* the last window - 1, and the first num_sinks */
  PAGEDKV_CHUNKED = 2, /* those since the last multiple of window */
  PAGEDKV_LATENT = 3,  /* all, from one vector a token, whose first value_dim numbers are V */
  PAGEDKV_STATE = 4    /* a state of fixed size; no tokens */
};

/* Layers of one kind, which share block tables. */
typedef struct pagedkv_group {
  int32_t kind;
  int32_t num_layers;
  int32_t num_kv_heads;
  int32_t key_dim;
  int32_t value_dim;
  int32_t num_sinks;
  int64_t window; /* tokens */
  int64_t state_bytes;
  const float* scales; /* as cache_config::scales */
} pagedkv_group;

/* Behind each kind are the fields of pagedkv_event that it sets. */
enum {
  PAGEDKV_EVENT_STORED = 0, /* a block entered the prefix index: block, origin, hash, parent_hash, tokens, keys, salt */
  PAGEDKV_EVENT_EVICTED = 1,  /* a block left the prefix index: block, hash */
  PAGEDKV_EVENT_RESET = 2,    /* every block left the prefix index: num_blocks */
  PAGEDKV_EVENT_ADMITTED = 3, /* from a prompt: sequence, num_sequence_tokens, num_blocks, salt */
  PAGEDKV_EVENT_HIT = 4,      /* it shares a prefix: the same, and hash of the last block, and block without groups */
  PAGEDKV_EVENT_FORKED = 5,   /* sequence, source */
  PAGEDKV_EVENT_RELEASED = 6, /* sequence, num_sequence_tokens */
  PAGEDKV_EVENT_COPIED = 7,   /* a block was copied on write: block, origin */
  PAGEDKV_EVENT_REFUSED = 8,  /* more blocks were needed than there are: num_blocks, num_available */
  PAGEDKV_EVENT_STEP_BEGUN = 9,
  PAGEDKV_EVENT_STEP_RETIRED = 10,
  PAGEDKV_EVENT_STARTED = 11,   /* a request was submitted, forked or resumed: request, sequence */
  PAGEDKV_EVENT_PREEMPTED = 12, /* request, sequence */
  PAGEDKV_EVENT_ENDED = 13      /* request */
};

/* One change, with the fields that its kind sets. Pointers are valid during the call. */
typedef struct pagedkv_event {
  size_t struct_size;
  int32_t kind;
  int32_t block;
  int32_t origin;
  int32_t group;      /* of a block, where layers differ; else -1 */
  int32_t group_kind; /* of that group */
  int32_t padding;
  uint64_t hash;
  uint64_t parent_hash;
  uint64_t salt;
  pagedkv_sequence sequence;
  pagedkv_sequence source;
  pagedkv_request request;
  pagedkv_step step;
  int64_t num_sequence_tokens;
  int64_t num_blocks;
  int64_t num_available;
  const int32_t* tokens; /* [num_tokens] */
  size_t num_tokens;
  const pagedkv_key* keys; /* [num_keys] */
  size_t num_keys;
} pagedkv_event;

/* When blocks go to the tiers: pagedkv_tiers.write. */
enum {
  PAGEDKV_WRITE_ON_EVICTION = 0, /* blocks are written to tiers when the device evicts them */
  PAGEDKV_WRITE_THROUGH = 1,     /* when they are committed */
  PAGEDKV_WRITE_HITS = 2         /* when the hits_before_write-th sequence shares them */
};

/* What stands behind the device. Strings are copied. */
typedef struct pagedkv_tiers {
  size_t struct_size;
  const char* model;         /* the engine's name for the weights: of other weights nothing is read */
  int32_t write;             /* PAGEDKV_WRITE_ON_EVICTION, ... */
  int32_t hits_before_write; /* sequences, with PAGEDKV_WRITE_HITS */
  int32_t exclusive;         /* true: host memory gives up what the device has */
  int32_t known_records;
  int32_t ask_ahead; /* blocks */
  int32_t queue_records;
  int32_t threads; /* false: transfers run in pagedkv_run_transfers only */
  int32_t host_records;
  int64_t prefill_tokens_per_second; /* what computes faster is not loaded; 0 loads everything */
  const char* const* file_paths;     /* [num_file_paths], of the file tier */
  size_t num_file_paths;
  int64_t file_bytes;
  const char* remote_url; /* of the remote tier: redis://host:port/database; docs/tiers.md has more */
  int64_t remote_timeout; /* nanoseconds, of a batch */
} pagedkv_tiers;

/* pagedkv_config_init fills it first. 0 in event_kinds: no events. */
typedef struct pagedkv_config {
  size_t struct_size;
  int32_t block_size; /* tokens in a block */
  int32_t num_blocks; /* blocks in the pool, at first */
  int32_t max_blocks; /* that it may grow to; 0 for num_blocks */
  int32_t num_layers; /* groups say this and the next two otherwise */
  int32_t num_kv_heads;
  int32_t head_dim;      /* numbers */
  int32_t max_sequences; /* alive at once */
  uint32_t event_kinds;  /* bits, one a kind, from the lowest on: those that on_event gets */
  uint64_t hash_seed;    /* 0 draws one at random */
  const float* scales; /* if the engine gives the element's scales: as cache_config::scales; they stay where they are */
  const pagedkv_group* groups; /* [num_groups]; copied, but for their scales, which stay where they are */
  size_t num_groups;
  const pagedkv_tiers* tiers; /* copied */
  void* memory;               /* for the allocator caller_memory: of the engine's, which outlives the cache */
  size_t memory_bytes;
  /* Called on each change, in the thread and inside the locks of the operation that makes it: it calls no function
   * of the cache or its trackers, and should not wait. It may call those of another cache, whose function calls none
   * of this one: else both may wait for each other. */
  void (*on_event)(void* context, const pagedkv_event* event);
  void* event_context;
  int64_t device; /* for hip_backend */
} pagedkv_config;

/* The library's defaults; num_blocks is left to be set. */
int pagedkv_config_init(pagedkv_config* config);
/* The library's defaults; model, host_records and the places of tiers are left to be set. */
int pagedkv_tiers_init(pagedkv_tiers* tiers);

/* Errors: PAGEDKV_INVALID_ARGUMENT, PAGEDKV_SIZE_OVERFLOW and PAGEDKV_OUT_OF_MEMORY; PAGEDKV_BACKEND_FAILURE where a
 * device or a tier refuses; PAGEDKV_IN_USE for a file of another process; PAGEDKV_UNSUPPORTED for what was not
 * compiled. */
int pagedkv_create(const pagedkv_config* config, pagedkv_cache** cache);
/* Accepts NULL. */
void pagedkv_destroy(pagedkv_cache* cache);
/* Its sizes and groups, which are valid as long as the cache. Tiers, device, memory and the callback are those of
 * pagedkv_config_init. */
int pagedkv_get_config(pagedkv_cache* cache, pagedkv_config* config);

/* How a group uses blocks. */
typedef struct pagedkv_group_info {
  size_t struct_size;
  int32_t kind;
  int32_t block_size;       /* tokens in a block; 0 for states */
  int32_t parts_per_block;  /* of a state */
  int32_t blocks_per_state; /* for all parts of all layers */
  int64_t part_bytes;       /* one layer of a block's tokens, or one part of a state; padding included */
  int64_t block_bytes;      /* the same for all groups */
} pagedkv_group_info;

/* Errors: PAGEDKV_UNSUPPORTED where layers do not differ. */
int pagedkv_get_group(pagedkv_cache* cache, size_t group, pagedkv_group_info* info);

/* Streams: for host_backend and copy_list --------------------------------------------------------------------- */

/* num_threads: of host_backend's, the caller's included; 0 for one a processor, and with copy_list. */
int pagedkv_stream_create(int32_t num_threads, pagedkv_stream** stream);
/* Accepts NULL. */
void pagedkv_stream_destroy(pagedkv_stream* stream);

/* One block copied, or moved, to another, in every layer. */
typedef struct pagedkv_block_pair {
  int32_t source;
  int32_t destination;
} pagedkv_block_pair;

/* The blocks to copy, in this order, before the step's kernels run, until the list is cleared; valid until it grows. */
int pagedkv_stream_copies(pagedkv_stream* stream, const pagedkv_block_pair** copies, size_t* num_copies);
int pagedkv_stream_clear(pagedkv_stream* stream);

/* Sequences --------------------------------------------------------------------------------------------------- */

/* Priority and retention of the blocks that hold some tokens, in the units of pagedkv_sequence_options. */
typedef struct pagedkv_range {
  int64_t first; /* tokens [first, last); empty: says nothing */
  int64_t last;
  int64_t priority;
  int64_t retention; /* nanoseconds */
} pagedkv_range;

/* Options of one sequence, from its creation on. */
typedef struct pagedkv_sequence_options {
  size_t struct_size;
  uint64_t salt;              /* sequences with different salts share nothing */
  int64_t retention;          /* nanoseconds after release for which the priority holds; 0 for ever */
  int64_t expected_return;    /* nanoseconds after release until the session's next request; 0: unknown */
  int64_t expected_tokens;    /* appending up to this length allocates no memory */
  int64_t max_cached_tokens;  /* of the prompt, that hits may bring; 0 does not read the prefix cache */
  int64_t first_chunk;        /* tokens behind the cached ones that creation appends; later chunks are not larger */
  int64_t num_prompt_tokens;  /* of the tokens at creation; later ones are an answer so far */
  int64_t save_every;         /* of a model with state: saves it every so many tokens; 0: not */
  int32_t save_at_branches;   /* true: where the prompt leaves cached tokens of groups without state */
  int32_t save_at_prompt_end; /* true: the last length before the last token of the prompt */
  int32_t save_at_end;        /* true: the last length of the answer */
  int32_t publish;            /* false: commit enters nothing into the prefix cache */
  int32_t priority;           /* 0 to 100; under a policy that heeds it, blocks of higher priority stay longer */
  int32_t has_answer;         /* true: the next two are of what follows the prompt */
  int64_t answer_priority;
  int64_t answer_retention; /* nanoseconds */
  pagedkv_range ranges[4];
} pagedkv_sequence_options;

/* The library's defaults. Functions take NULL for these. */
int pagedkv_sequence_options_init(pagedkv_sequence_options* options);

/* What a new sequence found in the cache, and what it took. Tokens behind these are still to be appended. */
typedef struct pagedkv_admission {
  size_t struct_size;
  pagedkv_sequence sequence;
  int64_t num_cached_tokens; /* whose K and V is in the cache */
  int64_t num_tokens;        /* these and the first chunk */
  int64_t num_blocks;
  int64_t num_new_blocks;     /* the last ones of the table */
  int64_t num_loading_tokens; /* behind the cached ones, on their way from a tier: see pagedkv_settle */
} pagedkv_admission;

/* Facts about a session when a request of it ends. Functions take NULL for none. */
typedef struct pagedkv_release_hint {
  size_t struct_size;
  int32_t session_ended;   /* true: no request will continue it */
  int32_t branch_complete; /* true: none will continue this branch */
  int64_t expected_return; /* nanoseconds until the next request; 0: as in the options */
} pagedkv_release_hint;

/* A snapshot of one sequence. */
typedef struct pagedkv_sequence_info {
  size_t struct_size;
  int64_t num_tokens;
  int64_t num_computed_tokens; /* committed */
  int64_t num_prompt_tokens;
  int64_t num_cached_tokens; /* at its creation, and by loads from tiers that were settled since */
  int64_t num_blocks;        /* in the block table, dropped ones included */
  int64_t num_slots;         /* of the tokens and those reserved ahead */
  int64_t created;           /* nanoseconds, by the time of the cache */
  int64_t last_access;       /* the same, in nanoseconds */
} pagedkv_sequence_info;

/* Starts a sequence with a prompt, which may be empty. */
int pagedkv_create_sequence(pagedkv_cache* cache, const pagedkv_run* prompt, const pagedkv_sequence_options* options,
                            pagedkv_stream* stream, pagedkv_admission* admission);
int pagedkv_append(pagedkv_cache* cache, pagedkv_sequence sequence, const pagedkv_run* run, pagedkv_stream* stream);
/* Takes blocks for tokens that are not known yet. */
int pagedkv_reserve_slots(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t num_ahead, pagedkv_stream* stream);
/* Declares that K/V of the first num_tokens is written, and lets other sequences find the full blocks among them. */
int pagedkv_commit(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t num_tokens, pagedkv_stream* stream);
int pagedkv_fork(pagedkv_cache* cache, pagedkv_sequence sequence, pagedkv_stream* stream, pagedkv_sequence* fork);
/* Keeps the first num_tokens. */
int pagedkv_truncate(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t num_tokens);
/* Releases blocks that end before this token. PAGEDKV_UNSUPPORTED where layers differ: windows move by themselves. */
int pagedkv_drop_before(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t num_tokens);
/* These two: PAGEDKV_UNSUPPORTED where layers do not differ. */
int pagedkv_drop_behind_windows(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t num_tokens);
int pagedkv_next_saved_length(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t* num_tokens);
int pagedkv_release(pagedkv_cache* cache, pagedkv_sequence sequence, const pagedkv_release_hint* hint);

/* options: NULL if not wanted. */
int pagedkv_describe(pagedkv_cache* cache, pagedkv_sequence sequence, pagedkv_sequence_info* info,
                     pagedkv_sequence_options* options);
int pagedkv_tokens(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t first_token, int32_t* tokens,
                   size_t num_tokens);
/* Copies keys as far as there is room; *num_keys: how many there are. */
int pagedkv_keys(pagedkv_cache* cache, pagedkv_sequence sequence, pagedkv_key* keys, size_t room, size_t* num_keys);

/* Batches ----------------------------------------------------------------------------------------------------- */

/* One sequence's part in pagedkv_append_batch. */
typedef struct pagedkv_batch_entry {
  pagedkv_sequence sequence;
  pagedkv_run run;             /* to append; may be empty */
  int64_t num_computed_tokens; /* to commit before; -1: none */
  int64_t num_ahead;           /* slots to reserve behind */
} pagedkv_batch_entry;

/* Why an entry, counted from 0, failed. The others are those of pagedkv_error, in its units. */
typedef struct pagedkv_batch_failure {
  size_t entry;
  int64_t code;
  int64_t value;
  int64_t limit;
  pagedkv_step step;
  const char* subject;
} pagedkv_batch_failure;

/* An entry of a block table that is new. */
typedef struct pagedkv_new_block {
  uint32_t entry; /* of the batch */
  uint32_t index; /* in the block table */
  int32_t block;
  uint32_t group;
} pagedkv_new_block;

/* The caller's arrays, with room for so many elements, that pagedkv_append_batch fills. */
typedef struct pagedkv_batch_buffers {
  size_t struct_size;
  int64_t* slots; /* [group that holds tokens][entry][token, and slot ahead] */
  size_t room_for_slots;
  pagedkv_batch_failure* failures; /* [failed entry]; as many as there are entries have room for all */
  size_t room_for_failures;
  pagedkv_new_block* new_blocks; /* [new block], in the order of entries; those that do not fit are counted */
  size_t room_for_new_blocks;
} pagedkv_batch_buffers;

/* How much pagedkv_append_batch wrote into the buffers; of new blocks, how many there are. */
typedef struct pagedkv_batch_outcome {
  size_t struct_size;
  size_t num_slots; /* of one group */
  size_t num_failures;
  size_t num_new_blocks;
  size_t num_groups; /* that have slots */
} pagedkv_batch_outcome;

/* Commits, appends and maps slots for all entries. An entry that fails changes nothing but its commit, and does not
 * fail the call. Takes memory only when a thread's batch is its longest so far. */
int pagedkv_append_batch(pagedkv_cache* cache, const pagedkv_batch_entry* entries, size_t num_entries,
                         const pagedkv_batch_buffers* buffers, pagedkv_stream* stream, pagedkv_batch_outcome* outcome);

/* Block tables as padded rows, [row][row_stride] with -1 behind the end; or as compressed rows. Pointers of the
 * other kind are NULL. Valid until the next update. */
typedef struct pagedkv_batch_view {
  size_t struct_size;
  size_t num_rows;
  size_t row_stride; /* entries */
  const int32_t* block_tables;
  const int32_t* lengths;        /* [num_rows] */
  const int32_t* indptr;         /* [num_rows + 1] */
  const int32_t* indices;        /* [indptr[num_rows]] */
  const int32_t* last_block_len; /* [num_rows] */
} pagedkv_batch_view;

/* They take all memory that updates need: for max_blocks in each row, or for max_indices in all rows together. An
 * update that needs more returns PAGEDKV_LIMIT_REACHED. */
int pagedkv_batch_create_padded(size_t max_rows, size_t max_blocks, pagedkv_batch** batch);
int pagedkv_batch_create_compressed(size_t max_rows, size_t max_indices, pagedkv_batch** batch);
/* Accepts NULL. */
void pagedkv_batch_destroy(pagedkv_batch* batch);
/* Writes what has changed since the last update. A batch is used with one cache and one group only. Rows show up to
 * num_ahead of the slots that are reserved ahead, as if they had tokens. */
int pagedkv_batch_update(pagedkv_cache* cache, pagedkv_batch* batch, const pagedkv_sequence* sequences,
                         size_t num_sequences, size_t group, int64_t num_ahead);
int pagedkv_batch_get_view(pagedkv_batch* batch, pagedkv_batch_view* view);

/* Slots and tables. Without groups of layers, group is 0 ------------------------------------------------------ */

/* Slots of num_slots tokens from first_token on: block * block_size + offset; negative where blocks were dropped. */
int pagedkv_slot_mapping(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t first_token, int64_t* slots,
                         size_t num_slots, size_t group);
/* Copies the block table from an entry on, or the blocks of the sequence's state; *num_blocks: the size of all of
 * it. */
int pagedkv_block_table(pagedkv_cache* cache, pagedkv_sequence sequence, size_t first_block, int32_t* blocks,
                        size_t room, size_t group, size_t* num_blocks);
/* Tokens that the table lacks. PAGEDKV_UNSUPPORTED where layers do not differ. */
int pagedkv_num_skipped_tokens(pagedkv_cache* cache, pagedkv_sequence sequence, size_t group, int64_t* num_tokens);
/* Full blocks that all of these sequences share at the start of their tables. */
int pagedkv_common_prefix(pagedkv_cache* cache, const pagedkv_sequence* sequences, size_t num_sequences, size_t group,
                          int64_t* num_blocks);

/* Prefixes ---------------------------------------------------------------------------------------------------- */

/* Length, in tokens, of the longest cached prefix. */
int pagedkv_find_prefix(pagedkv_cache* cache, const pagedkv_run* run, uint64_t salt, int64_t* num_tokens);
/* Whether pagedkv_create_sequence would succeed now. */
int pagedkv_would_fit(pagedkv_cache* cache, const pagedkv_run* prompt, const pagedkv_sequence_options* options,
                      int64_t* num_cached_tokens, int64_t* num_new_blocks);
/* Hashes for pagedkv_run.hashes; in any thread, under every locking policy. Fills as far as there is room. */
int pagedkv_hash_blocks(pagedkv_cache* cache, const pagedkv_run* prompt, uint64_t salt, uint64_t* hashes, size_t room,
                        size_t* num_hashes);
int pagedkv_pin_prefix(pagedkv_cache* cache, const pagedkv_run* run, uint64_t salt, pagedkv_pin* pin,
                       int64_t* num_tokens);
/* Copies the blocks that a hit of the prefix shares, or of which it copies a part, as pagedkv_block_table does: of a
 * window, those of leading tokens, then those that the next token reads; those of a saved state. */
int pagedkv_pin_block_table(pagedkv_cache* cache, pagedkv_pin pin, size_t first_block, int32_t* blocks, size_t room,
                            size_t group, size_t* num_blocks);
/* PAGEDKV_UNKNOWN_PIN once it is ended; PAGEDKV_SEQUENCE_BUSY while another thread ends it, under lock_free. */
int pagedkv_unpin(pagedkv_cache* cache, pagedkv_pin pin);
int pagedkv_unpin_all(pagedkv_cache* cache, int64_t* num_pins);
int pagedkv_invalidate_prefix(pagedkv_cache* cache, const pagedkv_run* run, uint64_t salt, int64_t* num_blocks);
int pagedkv_invalidate_salt(pagedkv_cache* cache, uint64_t salt, int64_t* num_blocks);
int pagedkv_invalidate_blocks(pagedkv_cache* cache, const int32_t* blocks, size_t size, int64_t* num_blocks);
/* Before the release of a sequence whose launch will not happen: hides what it has published for the newest step, if
 * that is open. PAGEDKV_IN_USE while others share some of it. */
int pagedkv_withdraw(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t* num_blocks);
int pagedkv_reset_prefix_cache(pagedkv_cache* cache, int64_t* num_blocks);

/* Steps and blocks -------------------------------------------------------------------------------------------- */

/* Opens a step that uses these sequences, of which there may be none: until it retires, blocks that they release are
 * not handed out again. With NULL it may use any block. */
int pagedkv_begin_step(pagedkv_cache* cache, const pagedkv_sequence* sequences, size_t num_sequences,
                       pagedkv_step* step);
int pagedkv_retire_step(pagedkv_cache* cache, pagedkv_step step);

/* Evicts up to `room` blocks ahead of need, which keep their contents until this open step has retired. */
int pagedkv_evict(pagedkv_cache* cache, pagedkv_step step, int32_t* blocks, size_t room, pagedkv_stream* stream,
                  size_t* num_blocks);

/* Blocks of the pool; of those, the ones that an allocation takes without evicting any; and those with the ones that
 * it may evict. While other threads are at work, the last two are not less than the true ones at some moment of the call. */
int pagedkv_num_blocks(pagedkv_cache* cache, int64_t* num_blocks);
int pagedkv_num_free_blocks(pagedkv_cache* cache, int64_t* num_blocks);
int pagedkv_num_available_blocks(pagedkv_cache* cache, int64_t* num_blocks);

/* The result of pagedkv_gain_of_releasing. */
typedef struct pagedkv_release_gain {
  size_t struct_size;
  int64_t at_once;    /* blocks more for an allocation */
  int64_t with_steps; /* further blocks, when open steps that use them have retired */
} pagedkv_release_gain;

/* What an allocation gains if these sequences are released, beside what a prompt would share; NULL: no prompt. */
int pagedkv_gain_of_releasing(pagedkv_cache* cache, const pagedkv_sequence* sequences, size_t num_sequences,
                              const pagedkv_run* prompt, uint64_t salt, pagedkv_release_gain* gain);
/* Positions in `sequences`, ascending, of those to release for so many blocks; none when all are not enough. There
 * is room for num_sequences positions. */
int pagedkv_fewest_to_release(pagedkv_cache* cache, const pagedkv_sequence* sequences, size_t num_sequences,
                              int64_t num_blocks, const pagedkv_run* prompt, uint64_t salt, size_t* positions,
                              size_t* num_positions);

/* Changes the number of blocks; moves those that are in the way. Under lock_free, none move. */
int pagedkv_resize(pagedkv_cache* cache, int32_t num_blocks, pagedkv_stream* stream);
/* Gathers free blocks at the end. Under lock_free, with no other thread at work; cached blocks come behind those in use,
   for which one is evicted if no block is free. */
int pagedkv_compact(pagedkv_cache* cache, pagedkv_stream* stream);
/* The moves of this thread's last pagedkv_resize or pagedkv_compact that succeeded; valid until its next one. */
int pagedkv_last_moves(const pagedkv_block_pair** moves, size_t* num_moves);

/* Nanoseconds since an origin of the caller's; dates sequences and ends retention. */
int pagedkv_advance_time(pagedkv_cache* cache, int64_t now);
int pagedkv_time(pagedkv_cache* cache, int64_t* now);

/* K and V. PAGEDKV_UNSUPPORTED with copy_list: they are in the engine's tensors ------------------------------- */

/* Where numbers of K, or of V, lie in a layout without rows: piece is 0 in one with rows. Strides are in numbers. See
 * core/storage_formats.hpp. */
typedef struct pagedkv_pieces {
  int32_t piece;
  int32_t holds_tokens;
  int64_t head_stride;
  int64_t token_stride;
  int64_t dim_stride;
} pagedkv_pieces;

/* Block storage as kernels address it: layer L of block B is at base + L * layer_stride + B * block_stride. The key
 * of one token and head is head_dim neighbouring elements, (token in block) * token_stride + head * head_stride
 * elements further; its value is value_dim of them, value_offset bytes and (token) * value_token_stride + head *
 * value_head_stride elements further. Strides of layer and block are in bytes. int8, and float8 with a scale per
 * token, have float scales in the block: that of a key lies key_scale_offset bytes after the start of the block's
 * layer and (token) * scale_token_stride + head * scale_head_stride floats further, that of a value likewise;
 * elsewhere the offsets are 0. Scales that the engine gave are at static_scales + layer * static_layer_stride + head
 * * static_head_stride, those of values static_value_offset further: static_scales[layer][head] with these strides. */
typedef struct pagedkv_storage {
  size_t struct_size;
  void* base;
  int64_t block_stride;
  int64_t layer_stride;
  int64_t value_offset;
  int64_t token_stride;
  int64_t head_stride;
  int64_t value_token_stride;
  int64_t value_head_stride;
  int64_t key_scale_offset;
  int64_t value_scale_offset;
  int64_t scale_token_stride;
  int64_t scale_head_stride;
  int32_t num_blocks; /* of the capacity */
  int32_t num_layers;
  int32_t block_size; /* tokens of this group in a block */
  int32_t num_kv_heads;
  int32_t head_dim;
  int32_t value_dim;
  const float* static_scales;
  int32_t static_layer_stride;
  int32_t static_head_stride;
  int32_t static_value_offset;
  int32_t element_bytes;
  pagedkv_pieces key_pieces;
  pagedkv_pieces value_pieces;
} pagedkv_storage;

/* The storage of a group that holds tokens. Valid as long as the cache. */
int pagedkv_get_storage(pagedkv_cache* cache, size_t group, pagedkv_storage* storage);
/* Whole blocks of all groups, for transfers: a block's layers are layer_stride apart. Valid as long as the cache. */
int pagedkv_get_blocks(pagedkv_cache* cache, pagedkv_storage* storage);
/* The address of one part of a state, counted in a block that pagedkv_block_table names. */
int pagedkv_state_part(pagedkv_cache* cache, size_t group, int32_t block, int32_t part, void** address);

/* Types of numbers in rows. The cache converts them to and from its element. */
enum { PAGEDKV_FLOAT32 = 0, PAGEDKV_FLOAT16 = 1, PAGEDKV_BFLOAT16 = 2 };

/* Rows of numbers of such a type, [token][head][dim], with strides in numbers; those of one head are contiguous. */
typedef struct pagedkv_rows {
  void* data;
  int64_t token_stride;
  int64_t head_stride;
  int64_t num_tokens;
  int32_t num_heads;
  int32_t head_dim;
  int32_t type;
  int32_t padding;
} pagedkv_rows;

/* Writes rows of K and V, of one type, at slots that are in use; negative ones are skipped. values: NULL for a latent
 * group. */
int pagedkv_write(pagedkv_cache* cache, int32_t layer, const int64_t* slots, size_t num_slots, const pagedkv_rows* keys,
                  const pagedkv_rows* values, pagedkv_stream* stream, size_t group);
/* Reads them into memory that the rows describe. */
int pagedkv_read(pagedkv_cache* cache, int32_t layer, const int64_t* slots, size_t num_slots, const pagedkv_rows* keys,
                 const pagedkv_rows* values, pagedkv_stream* stream, size_t group);

/* Which blocks rows read: all, those of a list for each row, or of a list for each KV head of a row, all as long. */
enum { PAGEDKV_LISTS_NONE = 0, PAGEDKV_LISTS_OF_ROWS = 1, PAGEDKV_LISTS_OF_HEADS = 2 };

/* Attention of a batch's queries over one layer. Rows of sequences are those of a compressed batch. */
typedef struct pagedkv_attention {
  size_t struct_size;
  int32_t layer;
  int32_t shares_prefixes; /* rows whose blocks start alike may share the read; then bits depend on the other rows */
  size_t group;
  size_t num_rows;
  const int32_t* indptr;  /* [num_rows + 1] */
  const int32_t* indices; /* [num_indices] */
  size_t num_indices;
  const int32_t* last_block_len; /* [num_rows] */
  const int32_t* query_indptr;   /* [num_rows + 1]; NULL: one query a row */
  const uint32_t* tree_masks;    /* [query]; NULL: no trees */
  size_t num_tree_masks;
  pagedkv_rows queries; /* one row a query, with the heads of queries */
  pagedkv_rows outputs; /* written */
  float* log_sum_exp;   /* [query][head]; NULL: not computed */
  float scale;          /* a factor of scores; 0: 1 / sqrt(head_dim) */
  float soft_cap;       /* of scores; 0: none */
  int32_t window;       /* tokens; 0: all */
  int32_t padding;
  const float* alibi_slopes; /* [head]; NULL: none */
  const float* sinks;        /* [head]; NULL: none */
  /* Positions in the block tables of their rows, of the blocks that are read; negative ones are skipped. */
  const int32_t* list_blocks; /* [row][KV head, with PAGEDKV_LISTS_OF_HEADS][entry] */
  size_t num_list_blocks;
  const int32_t* list_indptr; /* [num_rows + 1]; where those of a row start */
  int32_t lists;              /* PAGEDKV_LISTS_NONE, ... */
  int32_t padding_of_lists;
} pagedkv_attention;

/* Attention with host_backend. With hip_backend, attention takes a plan, which C has not: PAGEDKV_UNSUPPORTED. */
int pagedkv_attend(pagedkv_cache* cache, const pagedkv_attention* attention, pagedkv_stream* stream);
/* Waits until all work in the stream is done. */
int pagedkv_synchronize(pagedkv_cache* cache, pagedkv_stream* stream);

/* Tiers. PAGEDKV_UNSUPPORTED without -------------------------------------------------------------------------- */

/* How far a sequence's load from the tiers has come. */
typedef struct pagedkv_load_progress {
  size_t struct_size;
  int64_t num_loaded_tokens;
  int64_t num_loading_tokens; /* behind these; 0: done */
} pagedkv_load_progress;

/* A snapshot of one tier, in records; counters begin at creation. docs/metrics.md says what they count. */
typedef struct pagedkv_tier_statistics {
  size_t struct_size;
  const char* name; /* lives as long as the program */
  int64_t num_places;
  int64_t num_records;
  int64_t hit_blocks;
  int64_t hit_tokens;
  int64_t written;
  int64_t adopted;
  int64_t loaded_into;
  int64_t evictions;
  int64_t dropped;
  int64_t handed_over;
  int64_t num_owed;
  int64_t lost_writes;
  int64_t failed_writes;
  int64_t late_writes;
  int64_t loads;
  int64_t missing_loads;
  int64_t failed_loads;
  int64_t refused_loads;
  int64_t num_erasing;
  int64_t num_orphans;
} pagedkv_tier_statistics;

/* Ends a load: takes what has arrived. *num_tokens: those with K and V; the others are to be computed. */
int pagedkv_settle(pagedkv_cache* cache, pagedkv_sequence sequence, pagedkv_stream* stream, int64_t* num_tokens);
/* Lengths, in tokens, of the prefix that a prompt would find: on the device, with host memory behind that, and with
 * the slower tiers behind both. */
int pagedkv_find_prefix_in_tiers(pagedkv_cache* cache, const pagedkv_run* run, uint64_t salt, int64_t* on_device,
                                 int64_t* with_host_memory, int64_t* with_slower_tiers);
int pagedkv_poll(pagedkv_cache* cache, pagedkv_sequence sequence, pagedkv_load_progress* progress);
/* Goes on with transfers of all sequences. */
int pagedkv_poll_all(pagedkv_cache* cache);
/* Waits for a sequence's load, for so many nanoseconds at most; for ever if negative. */
int pagedkv_wait(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t timeout, pagedkv_load_progress* progress);
/* Waits until no transfer of a slower tier is under way; *is_idle: whether there is none. */
int pagedkv_wait_idle(pagedkv_cache* cache, int64_t timeout, int32_t* is_idle);
int pagedkv_run_transfers(pagedkv_cache* cache, size_t* num_transfers);
/* 0 is host memory. */
int pagedkv_get_tier(pagedkv_cache* cache, size_t number, pagedkv_tier_statistics* statistics);
/* Bytes of the records in host memory. */
int pagedkv_host_bytes(pagedkv_cache* cache, size_t* num_bytes);

/* Sessions. PAGEDKV_UNSUPPORTED with copy_list ---------------------------------------------------------------- */

/* NULL stands for neither. */
typedef struct pagedkv_session_options {
  size_t struct_size;
  const char* model;           /* the engine's name for the weights; NULL: none */
  const pagedkv_run* contents; /* all of the sequence, where blocks were dropped; NULL: the cache has it */
} pagedkv_session_options;

/* Saves a sequence to a file, and waits for that. During this call and the next two, no thread calls pagedkv_compact or
 * pagedkv_resize, which move blocks. */
int pagedkv_save_sequence(pagedkv_cache* cache, pagedkv_sequence sequence, const char* path,
                          const pagedkv_session_options* options, pagedkv_stream* stream);
int pagedkv_restore_sequence(pagedkv_cache* cache, const char* path, const pagedkv_session_options* options,
                             pagedkv_stream* stream, pagedkv_admission* admission);
/* Copies a sequence to another cache. The stream is the receiver's. */
int pagedkv_hand_over(pagedkv_cache* from, pagedkv_sequence sequence, pagedkv_cache* to,
                      const pagedkv_session_options* options, pagedkv_stream* stream, pagedkv_admission* admission);

/* Requests ---------------------------------------------------------------------------------------------------- */

/* How many requests a tracker takes, and which records of ended ones it keeps. */
typedef struct pagedkv_tracker_config {
  size_t struct_size;
  int32_t max_open;  /* requests not ended; 0: twice the cache's max_sequences */
  int32_t max_ended; /* records; the oldest go first */
  int64_t max_age;   /* nanoseconds of the cache's time since the end */
} pagedkv_tracker_config;

/* States of a request: it holds a sequence while it runs, none until it is resumed for the first time or again, and
 * none once it is finished, cancelled or failed. */
enum {
  PAGEDKV_REQUEST_RUNNING = 0,
  PAGEDKV_REQUEST_PREEMPTED = 1,
  PAGEDKV_REQUEST_FINISHED = 2,
  PAGEDKV_REQUEST_CANCELLED = 3,
  PAGEDKV_REQUEST_FAILED = 4,
  PAGEDKV_REQUEST_WAITING = 5
};

/* A request that runs. The fields behind the first are those of pagedkv_admission. */
typedef struct pagedkv_submission {
  size_t struct_size;
  pagedkv_request request;
  pagedkv_sequence sequence;
  int64_t num_cached_tokens;
  int64_t num_tokens;
  int64_t num_blocks;
  int64_t num_new_blocks;
  int64_t num_loading_tokens;
} pagedkv_submission;

/* The record of a request, until it is purged. Times are in nanoseconds, by pagedkv_advance_time. */
typedef struct pagedkv_request_info {
  size_t struct_size;
  int32_t state;
  int32_t may_preempt;
  pagedkv_sequence sequence; /* while running */
  uint64_t arrival;          /* position in the order of submission */
  int64_t num_preemptions;
  int64_t submitted; /* time of the cache */
  int64_t ended;
  int64_t failure; /* the code of a failed request */
  int64_t failure_value;
  int64_t failure_limit;
} pagedkv_request_info;

/* Requests, forks included: waiting, running, preempted and the records kept of ended ones are those of now, the others
 * count from the tracker's creation on. */
typedef struct pagedkv_tracker_statistics {
  size_t struct_size;
  int64_t submitted;
  int64_t refused;
  int64_t running;
  int64_t preempted;
  int64_t finished;
  int64_t cancelled;
  int64_t failed;
  int64_t preemptions;
  int64_t kept_records;
  int64_t waiting;
} pagedkv_tracker_statistics;

/* The library's defaults. pagedkv_tracker_create takes NULL for these. */
int pagedkv_tracker_config_init(pagedkv_tracker_config* config);
/* Works on this cache, which outlives the tracker. */
int pagedkv_tracker_create(pagedkv_cache* cache, const pagedkv_tracker_config* config, pagedkv_tracker** tracker);
/* Accepts NULL. Releases the sequences of running requests. */
void pagedkv_tracker_destroy(pagedkv_tracker* tracker);

/* Starts a request. With may_preempt, running requests that rank below it lose their blocks if the pool is full. */
int pagedkv_tracker_submit(pagedkv_tracker* tracker, const pagedkv_run* prompt, const pagedkv_sequence_options* options,
                           int32_t may_preempt, pagedkv_stream* stream, pagedkv_submission* submission);
/* Takes a request that waits for blocks, which pagedkv_tracker_resume starts with its prompt. */
int pagedkv_tracker_enqueue(pagedkv_tracker* tracker, const pagedkv_sequence_options* options, int32_t may_preempt,
                            pagedkv_request* request);
int pagedkv_tracker_resume(pagedkv_tracker* tracker, pagedkv_request request, const pagedkv_run* tokens,
                           pagedkv_stream* stream, pagedkv_submission* submission);
int pagedkv_tracker_append(pagedkv_tracker* tracker, pagedkv_request request, const pagedkv_run* run,
                           pagedkv_stream* stream);
/* pagedkv_append_batch for running requests: entries[i] is of the sequence of requests[i]; PAGEDKV_INVALID_ARGUMENT, and
 * nothing is changed, where it is not, unless that request has ended or gave way and no other has the sequence. Entries
 * for which blocks are missing are repeated with preemption, the highest rank first, unless their request has others;
 * those of requests that gave way count as failed, with PAGEDKV_PREEMPTED. New blocks of repeated entries come last;
 * ignore those of failed entries. */
int pagedkv_tracker_append_batch(pagedkv_tracker* tracker, const pagedkv_request* requests,
                                 const pagedkv_batch_entry* entries, size_t num_entries,
                                 const pagedkv_batch_buffers* buffers, pagedkv_stream* stream,
                                 pagedkv_batch_outcome* outcome);
/* The requests that this thread's last pagedkv_tracker_submit, resume, append or append_batch preempted, also if it
 * failed; valid until its next one. */
int pagedkv_last_preempted(const pagedkv_request** requests, size_t* num_requests);
int pagedkv_tracker_fork(pagedkv_tracker* tracker, pagedkv_request request, pagedkv_stream* stream,
                         pagedkv_request* fork, pagedkv_sequence* sequence);
/* Makes a request of a sequence that exists already, such as a restored one; the caller no longer releases it. The
 * options count for its rank, and when it is resumed, but the salt and, unless they limit it, the prompt are the
 * sequence's. Errors: PAGEDKV_IN_USE if a request of this tracker has the sequence. */
int pagedkv_tracker_adopt(pagedkv_tracker* tracker, pagedkv_sequence sequence, const pagedkv_sequence_options* options,
                          int32_t may_preempt, pagedkv_request* request);
int pagedkv_tracker_finish(pagedkv_tracker* tracker, pagedkv_request request, const pagedkv_release_hint* hint);
int pagedkv_tracker_cancel(pagedkv_tracker* tracker, pagedkv_request request);
/* reason: a code and two numbers, which pagedkv_tracker_describe tells. Its subject is not kept. */
int pagedkv_tracker_fail(pagedkv_tracker* tracker, pagedkv_request request, const pagedkv_error* reason);
int pagedkv_tracker_preempt(pagedkv_tracker* tracker, pagedkv_request request, pagedkv_stream* stream);
/* Waiting and preempted requests in the order in which to resume them. Errors: PAGEDKV_INVALID_ARGUMENT when there is
 * not room for all; the error's limit is their number. */
int pagedkv_tracker_resumable(pagedkv_tracker* tracker, pagedkv_request* requests, size_t room, size_t* num_requests);
/* options: NULL if not wanted. */
int pagedkv_tracker_describe(pagedkv_tracker* tracker, pagedkv_request request, pagedkv_request_info* info,
                             pagedkv_sequence_options* options);
int pagedkv_tracker_purge(pagedkv_tracker* tracker);
int pagedkv_tracker_get_statistics(pagedkv_tracker* tracker, pagedkv_tracker_statistics* statistics);

/* Numbers ----------------------------------------------------------------------------------------------------- */

/* They count blocks, tokens, sequences and events: docs/metrics.md says which. */
typedef struct pagedkv_statistics {
  size_t struct_size;
  int64_t blocks_free;
  int64_t blocks_in_use;
  int64_t blocks_evictable;
  int64_t blocks_retiring;
  int64_t peak_in_use;
  int64_t num_sequences;
  int64_t num_pins;
  int64_t num_tokens;
  int64_t unfilled_slots;
  int64_t prompts;
  int64_t prompt_blocks;
  int64_t hit_blocks;
  int64_t hit_tokens;
  int64_t evictions;
  int64_t invalidations;
  int64_t copies;
  int64_t refusals;
  int64_t blocks_together;
  int64_t runs_together;
  int64_t blocks_in_runs;
  int64_t waits;
  int64_t retries;
  int64_t steals;
} pagedkv_statistics;

/* Bytes by purpose. */
typedef struct pagedkv_memory {
  size_t struct_size;
  int64_t payload;
  int64_t pool;
  int64_t index;
  int64_t sequences;
} pagedkv_memory;

/* A name such as "model", of letters, digits and underscores, which no other label has, nor a metric by itself, such as
 * "state" or "tier" (docs/metrics.md); and any text in UTF-8. */
typedef struct pagedkv_label {
  const char* name;
  const char* value;
} pagedkv_label;

/* Snapshots; while other threads are at work, sums over values that change meanwhile. */
int pagedkv_get_statistics(pagedkv_cache* cache, pagedkv_statistics* statistics);
int pagedkv_get_memory(pagedkv_cache* cache, pagedkv_memory* memory);

/* These two write a text with a zero behind it; *num_bytes: both together. Without room, which the error's limit tells,
 * they write nothing and return PAGEDKV_INVALID_ARGUMENT; with NULL and no room they only count. */

/* Prometheus' exposition format, of the cache, its tiers, and a tracker unless that is NULL. */
int pagedkv_metrics_text(pagedkv_cache* cache, pagedkv_tracker* tracker, const pagedkv_label* labels, size_t num_labels,
                         char* text, size_t room, size_t* num_bytes);
/* A line for each broken invariant; none when all hold. For tests; under lock_free, with no other thread at work. */
int pagedkv_check_invariants(pagedkv_cache* cache, char* text, size_t room, size_t* num_bytes);

#ifdef __cplusplus
}
#endif
