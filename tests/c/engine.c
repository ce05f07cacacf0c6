/* An engine in C calls every function, with good and with bad arguments. It is told how the cache was compiled, and
 * runs with each of several kinds: engine FOLDER ELEMENT LOCKING EVICTION BACKEND NUM_TIERS HAS_GROUPS ATTENDS. */

#include <pagedkv/c/pagedkv.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, pagedkv_last_message()); \
      exit(1);                                                                            \
    }                                                                                     \
  } while (0)
#define OK(call) CHECK((call) == PAGEDKV_OK)
#define WRONG(call) CHECK((call) == PAGEDKV_INVALID_ARGUMENT)
#define UNKNOWN(call) CHECK((call) == PAGEDKV_UNKNOWN_SEQUENCE)
/* A call that succeeds only in some caches. */
#define OK_IF(supported, call) CHECK((call) == ((supported) ? PAGEDKV_OK : PAGEDKV_UNSUPPORTED))
#define WRONG_IF(supported, call) CHECK((call) == ((supported) ? PAGEDKV_INVALID_ARGUMENT : PAGEDKV_UNSUPPORTED))
#define SIZED(type, name) type name = {.struct_size = sizeof name}

enum { block_size = 16, num_heads = 2, head_dim = 16, max_tokens = 160 };

static const pagedkv_sequence unknown = 12345;
static pagedkv_build build;
static const char* folder;
static pagedkv_stream* stream; /* NULL where it need not be one */
static int32_t counting[max_tokens];
static int32_t zeros[max_tokens];

static pagedkv_run run_of(const int32_t* tokens, size_t num_tokens) {
  pagedkv_run run = {.tokens = tokens, .num_tokens = num_tokens};
  return run;
}

static pagedkv_tiers tiers_in(const char* model) {
  static char path[512];
  static const char* const paths[] = {path};
  SIZED(pagedkv_tiers, tiers);
  OK(pagedkv_tiers_init(&tiers));
  snprintf(path, sizeof path, "%s/records", folder);
  tiers.model = model;
  tiers.host_records = 8;
  tiers.threads = 0;
  tiers.write = PAGEDKV_WRITE_THROUGH;
  tiers.file_paths = paths;
  tiers.num_file_paths = 1;
  tiers.file_bytes = 1 << 20;
  tiers.remote_url = "redis://127.0.0.1:1"; /* of a store that is gone */
  return tiers;
}

static const pagedkv_group full_group = {PAGEDKV_FULL, 2, num_heads, head_dim, head_dim, 0, 0, 0, NULL};

/* As large as most tests need it, with what this kind of cache cannot be without. */
static pagedkv_config config_of(int32_t num_blocks) {
  static pagedkv_tiers tiers;
  SIZED(pagedkv_config, config);
  OK(pagedkv_config_init(&config));
  config.block_size = block_size;
  config.num_blocks = num_blocks;
  config.num_layers = 2;
  config.num_kv_heads = num_heads;
  config.head_dim = head_dim;
  if (build.layers_differ) {
    config.groups = &full_group;
    config.num_groups = 1;
  }
  if (build.num_tiers > 0) {
    tiers = tiers_in("weights");
    config.tiers = &tiers;
  }
  return config;
}

static pagedkv_cache* make_cache(int32_t num_blocks) {
  const pagedkv_config config = config_of(num_blocks);
  pagedkv_cache* cache = NULL;
  OK(pagedkv_create(&config, &cache));
  return cache;
}

static pagedkv_sequence create(pagedkv_cache* cache, const int32_t* tokens, size_t num_tokens) {
  const pagedkv_run prompt = run_of(tokens, num_tokens);
  SIZED(pagedkv_admission, made);
  OK(pagedkv_create_sequence(cache, &prompt, NULL, stream, &made));
  CHECK(made.num_tokens == (int64_t)num_tokens);
  return made.sequence;
}

static void end(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t num_computed) {
  OK(pagedkv_commit(cache, sequence, num_computed, stream));
  OK(pagedkv_release(cache, sequence, NULL));
}

static void destroy_checked(pagedkv_cache* cache) {
  char text[256];
  size_t num_bytes = 99;
  OK(pagedkv_check_invariants(cache, text, sizeof text, &num_bytes));
  if (text[0] != '\0') {
    fprintf(stderr, "%s", text);
    exit(1);
  }
  CHECK(num_bytes == 1);
  pagedkv_destroy(cache);
}

static void test_errors_and_build(int argc, char** argv) {
  SIZED(pagedkv_error, error);
  pagedkv_build empty = {.struct_size = 0};
  pagedkv_build part = {.struct_size = offsetof(pagedkv_build, locking), .locking = "unchanged"};
  CHECK(argc == 9);
  CHECK(pagedkv_last_message()[0] == '\0');
  OK(pagedkv_last_error(&error));
  CHECK(error.code == PAGEDKV_OK && error.limit == INT64_MIN && error.subject[0] == '\0');
  WRONG(pagedkv_last_error(NULL));
  CHECK(strcmp(pagedkv_last_message(), "invalid argument: error is NULL") == 0);
  OK(pagedkv_last_error(&error));
  CHECK(error.code == PAGEDKV_INVALID_ARGUMENT && strcmp(error.subject, "error") == 0);
  WRONG(pagedkv_get_build(NULL));
  WRONG(pagedkv_get_build(&empty));
  OK(pagedkv_get_build(&part)); /* as an older program would */
  CHECK(part.struct_size == offsetof(pagedkv_build, locking) && strcmp(part.locking, "unchanged") == 0);
  build.struct_size = sizeof build;
  OK(pagedkv_get_build(&build));
  CHECK(strcmp(build.element, argv[2]) == 0);
  CHECK(strcmp(build.locking, argv[3]) == 0);
  CHECK(strcmp(build.eviction, argv[4]) == 0);
  CHECK(strcmp(build.backend, argv[5]) == 0);
  CHECK(build.num_tiers == atoi(argv[6]) && build.layers_differ == atoi(argv[7]));
  CHECK(build.computes_attention == atoi(argv[8]));
  CHECK(build.has_memory == (strcmp(argv[5], "copy_list") != 0));
  CHECK(build.element_bytes >= 1 && build.preemption[0] != '\0' && !build.uses_priority);
  CHECK((build.scale_bytes > 0) == (strcmp(build.element, "int8") == 0));
}

static void ignore_event(void* context, const pagedkv_event* event) {
  (void)context;
  (void)event;
}

static void test_creation(void) {
  static const pagedkv_group bad_group = {5, 1, 1, 8, 8, 0, 0, 0, NULL};
  pagedkv_config config = config_of(8);
  SIZED(pagedkv_config, got);
  pagedkv_tiers tiers = {.struct_size = sizeof tiers};
  pagedkv_cache* cache = NULL;
  const float scales[] = {0.5f, 0.25f};
  char memory[8], path[512];
  const char* const paths[] = {path};
  WRONG(pagedkv_config_init(NULL));
  WRONG(pagedkv_tiers_init(NULL));
  WRONG(pagedkv_create(NULL, &cache));
  WRONG(pagedkv_create(&config, NULL));
  config.num_blocks = 0;
  WRONG(pagedkv_create(&config, &cache));
  CHECK(cache == NULL &&
        strcmp(pagedkv_last_message(), "invalid argument: cache_config.num_blocks is 0, limit 1") == 0);
  config.num_blocks = 8;
  config.struct_size = sizeof config + 8;
  WRONG(pagedkv_create(&config, &cache));
  config.struct_size = offsetof(pagedkv_config, device); /* as an older program would */
  OK(pagedkv_create(&config, &cache));
  pagedkv_destroy(cache);
  pagedkv_destroy(NULL);
  cache = NULL;
  config.struct_size = sizeof config;

  config.groups = &bad_group;
  config.num_groups = 1;
  WRONG_IF(build.layers_differ, pagedkv_create(&config, &cache));
  config.groups = NULL;
  WRONG(pagedkv_create(&config, &cache));
  config = config_of(8);
  config.num_groups = 9;
  config.groups = &full_group;
  WRONG_IF(build.layers_differ, pagedkv_create(&config, &cache));

  config = config_of(8);
  config.memory = memory;
  CHECK(pagedkv_create(&config, &cache) == PAGEDKV_UNSUPPORTED);
  CHECK(strncmp(pagedkv_last_message(), "unsupported: only caller_memory", 31) == 0);
  config = config_of(8);
  config.scales = scales; /* of an element, or of groups, that have their own */
  CHECK(!build.has_memory || pagedkv_create(&config, &cache) == PAGEDKV_INVALID_ARGUMENT);
  config = config_of(8);
  config.device = 1;
  CHECK(pagedkv_create(&config, &cache) == PAGEDKV_UNSUPPORTED);
  config = config_of(8);
  config.on_event = ignore_event;
  OK_IF(build.has_events, pagedkv_create(&config, &cache));
  pagedkv_destroy(cache);
  cache = NULL;

  config = config_of(8);
  OK(pagedkv_tiers_init(&tiers));
  tiers.struct_size = sizeof tiers + 8;
  config.tiers = &tiers;
  WRONG(pagedkv_create(&config, &cache));
  tiers.struct_size = sizeof tiers;
  WRONG_IF(build.num_tiers > 0, pagedkv_create(&config, &cache));
  tiers = tiers_in("weights");
  tiers.write = 7;
  WRONG_IF(build.num_tiers > 0, pagedkv_create(&config, &cache));
  snprintf(path, sizeof path, "%s/refused", folder);
  tiers = tiers_in("weights");
  tiers.file_paths = paths;
  tiers.queue_records = 0;
  WRONG_IF(build.num_tiers > 0, pagedkv_create(&config, &cache));
  if (build.layers_differ) {
    tiers.queue_records = 8;
    tiers.ask_ahead = 1;
    WRONG_IF(build.num_tiers > 0, pagedkv_create(&config, &cache));
  }
  CHECK(fopen(path, "rb") == NULL);
  tiers = tiers_in("weights");
  tiers.host_records = 0;
  WRONG_IF(build.num_tiers > 0, pagedkv_create(&config, &cache));
  tiers = tiers_in("weights");
  tiers.file_paths = NULL;
  WRONG_IF(build.num_tiers > 0, pagedkv_create(&config, &cache));
  tiers.num_file_paths = 0;
  WRONG_IF(build.num_tiers > 0, pagedkv_create(&config, &cache));
  CHECK(cache == NULL);

  cache = make_cache(8);
  WRONG(pagedkv_get_config(NULL, &got));
  WRONG(pagedkv_get_config(cache, NULL));
  OK(pagedkv_get_config(cache, &got));
  CHECK(got.num_blocks == 8 && got.block_size == block_size && got.tiers == NULL);
  CHECK(got.num_groups == (build.layers_differ ? 1U : 0U) &&
        (got.num_groups == 0 || got.groups[0].num_kv_heads == num_heads));
  pagedkv_destroy(cache);
}

static void test_streams(void) {
  const int takes_list = strcmp(build.backend, "copy_list") == 0;
  const pagedkv_block_pair* pairs = NULL;
  pagedkv_stream* made = NULL;
  size_t num_pairs = 99;
  WRONG(pagedkv_stream_create(0, NULL));
  WRONG(pagedkv_stream_create(-1, &made));
  WRONG(pagedkv_stream_create(100000, &made));
  OK(pagedkv_stream_create(0, &made));
  OK_IF(takes_list, pagedkv_stream_copies(made, &pairs, &num_pairs));
  CHECK(num_pairs == (takes_list ? 0 : 99));
  WRONG_IF(takes_list, pagedkv_stream_copies(NULL, &pairs, &num_pairs));
  WRONG_IF(takes_list, pagedkv_stream_copies(made, NULL, &num_pairs));
  WRONG_IF(takes_list, pagedkv_stream_copies(made, &pairs, NULL));
  OK_IF(takes_list, pagedkv_stream_clear(made));
  WRONG_IF(takes_list, pagedkv_stream_clear(NULL));
  pagedkv_stream_destroy(made);
  pagedkv_stream_destroy(NULL);
  if (takes_list) {
    OK(pagedkv_stream_create(0, &stream));
  }
}

static void test_sequences(void) {
  pagedkv_cache* const cache = make_cache(16);
  const pagedkv_run prompt = run_of(counting, 40), one = run_of(counting, 1), hole = run_of(NULL, 3);
  SIZED(pagedkv_sequence_options, options);
  SIZED(pagedkv_admission, first);
  SIZED(pagedkv_admission, second);
  SIZED(pagedkv_sequence_info, info);
  SIZED(pagedkv_release_hint, hint);
  pagedkv_key keys[2] = {{3, {5, 6}}, {0, {0, 0}}};
  pagedkv_run keyed = run_of(counting, 20);
  pagedkv_sequence forked = 0;
  int32_t tokens[4];
  size_t num_keys = 0;

  WRONG(pagedkv_sequence_options_init(NULL));
  OK(pagedkv_sequence_options_init(&options));
  CHECK(options.publish == 1 && options.priority == 50 && options.first_chunk == INT64_MAX && !options.has_answer);
  WRONG(pagedkv_create_sequence(NULL, &prompt, &options, stream, &first));
  WRONG(pagedkv_create_sequence(cache, NULL, &options, stream, &first));
  WRONG(pagedkv_create_sequence(cache, &hole, &options, stream, &first));
  WRONG(pagedkv_create_sequence(cache, &prompt, &options, stream, NULL));
  options.priority = 300;
  WRONG(pagedkv_create_sequence(cache, &prompt, &options, stream, &first));
  CHECK(strcmp(pagedkv_last_message(), "invalid argument: sequence_options.priority is 300, limit 100") == 0);
  OK(pagedkv_sequence_options_init(&options));
  options.ranges[3].priority = -1;
  WRONG(pagedkv_create_sequence(cache, &prompt, &options, stream, &first));
  OK(pagedkv_sequence_options_init(&options));
  options.has_answer = 1;
  options.answer_priority = 101;
  WRONG(pagedkv_create_sequence(cache, &prompt, &options, stream, &first));
  options.answer_priority = 60;
  options.answer_retention = 7;
  options.salt = 3;
  options.ranges[0].last = 16;
  options.ranges[0].priority = 80;
  CHECK(first.sequence == 0);
  OK(pagedkv_advance_time(cache, 77));
  OK(pagedkv_create_sequence(cache, &prompt, &options, stream, &first));
  CHECK(first.num_cached_tokens == 0 && first.num_tokens == 40 && first.num_blocks == 3 && first.num_new_blocks == 3);
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  OK(pagedkv_describe(cache, first.sequence, &info, &options));
  CHECK(options.salt == 3 && options.has_answer && options.answer_priority == 60 && options.answer_retention == 7);
  CHECK(options.ranges[0].last == 16 && options.ranges[0].priority == 80 && options.publish == 1);
  CHECK(info.num_tokens == 40 && info.num_prompt_tokens == 40 && info.num_computed_tokens == 0 && info.created == 77);

  WRONG(pagedkv_commit(NULL, first.sequence, 40, stream));
  UNKNOWN(pagedkv_commit(cache, unknown, 40, stream));
  WRONG(pagedkv_commit(cache, first.sequence, 41, stream));
  OK(pagedkv_commit(cache, first.sequence, 40, stream));
  OK(pagedkv_create_sequence(cache, &prompt, NULL, stream, &second)); /* another salt */
  CHECK(second.num_cached_tokens == 0);
  OK(pagedkv_release(cache, second.sequence, NULL));
  OK(pagedkv_create_sequence(cache, &prompt, &options, stream, &second));
  CHECK(second.num_cached_tokens == 32 && second.num_new_blocks == 1);

  WRONG(pagedkv_append(NULL, second.sequence, &one, stream));
  WRONG(pagedkv_append(cache, second.sequence, NULL, stream));
  WRONG(pagedkv_append(cache, second.sequence, &hole, stream));
  UNKNOWN(pagedkv_append(cache, unknown, &one, stream));
  OK(pagedkv_append(cache, second.sequence, &one, stream));
  WRONG(pagedkv_reserve_slots(NULL, second.sequence, 4, stream));
  UNKNOWN(pagedkv_reserve_slots(cache, unknown, 4, stream));
  WRONG(pagedkv_reserve_slots(cache, second.sequence, -1, stream));
  OK(pagedkv_reserve_slots(cache, second.sequence, 10, stream));
  WRONG(pagedkv_describe(NULL, second.sequence, &info, NULL));
  WRONG(pagedkv_describe(cache, second.sequence, NULL, NULL));
  UNKNOWN(pagedkv_describe(cache, unknown, &info, NULL));
  OK(pagedkv_describe(cache, second.sequence, &info, NULL));
  CHECK(info.num_tokens == 41 && info.num_slots == 51 && info.num_cached_tokens == 32 && info.num_blocks == 4);

  WRONG(pagedkv_tokens(NULL, second.sequence, 38, tokens, 3));
  WRONG(pagedkv_tokens(cache, second.sequence, 38, NULL, 3));
  WRONG(pagedkv_tokens(cache, second.sequence, 38, tokens, 4));
  UNKNOWN(pagedkv_tokens(cache, unknown, 38, tokens, 3));
  OK(pagedkv_tokens(cache, second.sequence, 38, tokens, 3));
  CHECK(tokens[0] == 38 && tokens[1] == 39 && tokens[2] == 0);

  WRONG(pagedkv_truncate(NULL, second.sequence, 40));
  WRONG(pagedkv_truncate(cache, second.sequence, 42));
  UNKNOWN(pagedkv_truncate(cache, unknown, 40));
  OK(pagedkv_truncate(cache, second.sequence, 40));
  OK(pagedkv_commit(cache, second.sequence, 40, stream));
  WRONG(pagedkv_fork(NULL, second.sequence, stream, &forked));
  WRONG(pagedkv_fork(cache, second.sequence, stream, NULL));
  UNKNOWN(pagedkv_fork(cache, unknown, stream, &forked));
  OK(pagedkv_fork(cache, second.sequence, stream, &forked));
  OK(pagedkv_append(cache, forked, &one, stream)); /* copies the last block */
  if (stream != NULL) {
    const pagedkv_block_pair* pairs = NULL;
    size_t num_pairs = 0;
    WRONG(pagedkv_append(cache, forked, &one, NULL));
    OK(pagedkv_stream_copies(stream, &pairs, &num_pairs));
    CHECK(num_pairs == 1 && pairs[0].source != pairs[0].destination);
    OK(pagedkv_stream_clear(stream));
  }
  WRONG_IF(!build.layers_differ, pagedkv_drop_before(NULL, forked, 16));
  CHECK(pagedkv_drop_before(cache, unknown, 16) ==
        (build.layers_differ ? PAGEDKV_UNSUPPORTED : PAGEDKV_UNKNOWN_SEQUENCE));
  WRONG_IF(!build.layers_differ, pagedkv_drop_before(cache, forked, 99));
  OK_IF(!build.layers_differ, pagedkv_drop_before(cache, forked, 16));

  hint.session_ended = 1;
  WRONG(pagedkv_release(NULL, forked, &hint));
  UNKNOWN(pagedkv_release(cache, unknown, &hint));
  CHECK(strncmp(pagedkv_last_message(), "unknown sequence: ", 18) == 0);
  OK(pagedkv_release(cache, forked, &hint));
  hint.struct_size = 4;
  WRONG(pagedkv_release(cache, second.sequence, &hint));
  OK(pagedkv_release(cache, second.sequence, NULL));
  OK(pagedkv_release(cache, first.sequence, NULL));

  keyed.keys = keys;
  keyed.num_keys = 1;
  OK(pagedkv_create_sequence(cache, &keyed, NULL, stream, &first));
  keys[0].position = 0;
  WRONG(pagedkv_keys(NULL, first.sequence, keys, 2, &num_keys));
  WRONG(pagedkv_keys(cache, first.sequence, NULL, 2, &num_keys));
  WRONG(pagedkv_keys(cache, first.sequence, keys, 2, NULL));
  UNKNOWN(pagedkv_keys(cache, unknown, keys, 2, &num_keys));
  OK(pagedkv_keys(cache, first.sequence, keys, 2, &num_keys));
  CHECK(num_keys == 1 && keys[0].position == 3 && keys[0].value[1] == 6);
  OK(pagedkv_release(cache, first.sequence, NULL));
  destroy_checked(cache);
}

static void test_batches(void) {
  pagedkv_cache* const cache = make_cache(8);
  const pagedkv_sequence first = create(cache, counting, 20), second = create(cache, zeros, 20);
  const pagedkv_sequence both[] = {first, second};
  int64_t slots[8] = {0};
  pagedkv_batch_failure failures[3];
  pagedkv_new_block new_blocks[4];
  pagedkv_batch_entry entries[] = {
      {first, {counting, 2, NULL, 0, NULL, 0}, 20, 0},
      {unknown, {counting, 1, NULL, 0, NULL, 0}, -1, 0},
      {second, {NULL, 0, NULL, 0, NULL, 0}, -1, 1},
  };
  SIZED(pagedkv_batch_buffers, buffers);
  SIZED(pagedkv_batch_outcome, outcome);
  SIZED(pagedkv_batch_view, view);
  pagedkv_batch *padded = NULL, *compressed = NULL;
  int64_t num_common = -1;
  size_t i;
  buffers.slots = slots;
  buffers.room_for_slots = 8;
  buffers.failures = failures;
  buffers.room_for_failures = 3;
  buffers.new_blocks = new_blocks;
  buffers.room_for_new_blocks = 4;

  WRONG(pagedkv_append_batch(NULL, entries, 3, &buffers, stream, &outcome));
  WRONG(pagedkv_append_batch(cache, NULL, 3, &buffers, stream, &outcome));
  WRONG(pagedkv_append_batch(cache, entries, 3, NULL, stream, &outcome));
  WRONG(pagedkv_append_batch(cache, entries, 3, &buffers, stream, NULL));
  buffers.room_for_failures = 2;
  WRONG(pagedkv_append_batch(cache, entries, 3, &buffers, stream, &outcome));
  buffers.room_for_failures = 3;
  buffers.room_for_slots = 3;
  WRONG(pagedkv_append_batch(cache, entries, 3, &buffers, stream, &outcome));
  buffers.slots = NULL;
  WRONG(pagedkv_append_batch(cache, entries, 3, &buffers, stream, &outcome));
  buffers.slots = slots;
  buffers.room_for_slots = 8;
  entries[0].run.tokens = NULL;
  WRONG(pagedkv_append_batch(cache, entries, 3, &buffers, stream, &outcome));
  entries[0].run.tokens = counting;
  OK(pagedkv_append_batch(cache, entries, 3, &buffers, stream, &outcome));
  CHECK(outcome.num_slots == 4 && outcome.num_failures == 1 && outcome.num_new_blocks == 0);
  CHECK(failures[0].entry == 1 && failures[0].code == PAGEDKV_UNKNOWN_SEQUENCE && failures[0].subject[0] != '\0');
  CHECK(slots[0] % block_size == 4 && slots[1] == slots[0] + 1 && slots[2] < 0 && slots[3] % block_size == 4);

  WRONG(pagedkv_batch_create_padded(2, 4, NULL));
  WRONG(pagedkv_batch_create_padded((size_t)-1, 4, &padded));
  WRONG(pagedkv_batch_create_compressed(2, 8, NULL));
  WRONG(pagedkv_batch_create_compressed(2, (size_t)-1, &compressed));
  OK(pagedkv_batch_create_padded(2, 4, &padded));
  OK(pagedkv_batch_create_compressed(2, 8, &compressed));
  WRONG(pagedkv_batch_update(NULL, padded, both, 2, 0, 0));
  WRONG(pagedkv_batch_update(cache, NULL, both, 2, 0, 0));
  WRONG(pagedkv_batch_update(cache, padded, NULL, 2, 0, 0));
  WRONG(pagedkv_batch_update(cache, padded, both, 2, 3, 0));
  UNKNOWN(pagedkv_batch_update(cache, padded, &unknown, 1, 0, 0));
  WRONG(pagedkv_batch_update(cache, padded, both, 2, 0, -1));
  OK(pagedkv_batch_update(cache, padded, both, 2, 0, 2));
  OK(pagedkv_batch_get_view(padded, &view));
  CHECK(view.lengths[0] == 22 && view.lengths[1] == 21); /* one slot is reserved ahead of the second */
  OK(pagedkv_batch_update(cache, padded, both, 2, 0, 0));
  OK(pagedkv_batch_update(cache, compressed, both, 2, 0, 0));
  WRONG(pagedkv_batch_get_view(NULL, &view));
  WRONG(pagedkv_batch_get_view(padded, NULL));
  OK(pagedkv_batch_get_view(padded, &view));
  CHECK(view.num_rows == 2 && view.row_stride == 4 && view.lengths[0] == 22 && view.lengths[1] == 20);
  CHECK(view.block_tables[0] >= 0 && view.block_tables[2] == -1 && view.indptr == NULL);
  CHECK(view.block_tables[1] == slots[0] / block_size);
  OK(pagedkv_batch_get_view(compressed, &view));
  CHECK(view.num_rows == 2 && view.indptr[2] == 4 && view.last_block_len[0] == 6 && view.block_tables == NULL);
  CHECK(view.indices[1] == slots[0] / block_size);
  pagedkv_batch_destroy(padded);
  pagedkv_batch_destroy(compressed);
  pagedkv_batch_destroy(NULL);

  WRONG(pagedkv_common_prefix(NULL, both, 2, 0, &num_common));
  WRONG(pagedkv_common_prefix(cache, NULL, 2, 0, &num_common));
  WRONG(pagedkv_common_prefix(cache, both, 2, 0, NULL));
  WRONG(pagedkv_common_prefix(cache, both, 2, 9, &num_common));
  UNKNOWN(pagedkv_common_prefix(cache, &unknown, 1, 0, &num_common));
  OK(pagedkv_common_prefix(cache, both, 2, 0, &num_common));
  CHECK(num_common == 0);
  for (i = 0; i < 2; ++i) {
    OK(pagedkv_release(cache, both[i], NULL));
  }
  destroy_checked(cache);
}

static void test_slots_and_tables(void) {
  pagedkv_cache* const cache = make_cache(8);
  const pagedkv_sequence sequence = create(cache, counting, 40);
  int64_t slots[40], skipped = -1;
  int32_t blocks[4];
  size_t num_blocks = 0, i;
  WRONG(pagedkv_slot_mapping(NULL, sequence, 0, slots, 40, 0));
  WRONG(pagedkv_slot_mapping(cache, sequence, 0, NULL, 40, 0));
  WRONG(pagedkv_slot_mapping(cache, sequence, 9, slots, 40, 0));
  WRONG(pagedkv_slot_mapping(cache, sequence, 0, slots, 40, 1));
  UNKNOWN(pagedkv_slot_mapping(cache, unknown, 0, slots, 40, 0));
  OK(pagedkv_slot_mapping(cache, sequence, 0, slots, 40, 0));
  WRONG(pagedkv_block_table(NULL, sequence, 0, blocks, 4, 0, &num_blocks));
  WRONG(pagedkv_block_table(cache, sequence, 0, NULL, 4, 0, &num_blocks));
  WRONG(pagedkv_block_table(cache, sequence, 0, blocks, 4, 0, NULL));
  WRONG(pagedkv_block_table(cache, sequence, 0, blocks, 1, 0, &num_blocks));
  WRONG(pagedkv_block_table(cache, sequence, 0, blocks, 4, 1, &num_blocks));
  UNKNOWN(pagedkv_block_table(cache, unknown, 0, blocks, 4, 0, &num_blocks));
  OK(pagedkv_block_table(cache, sequence, 0, blocks, 4, 0, &num_blocks));
  CHECK(num_blocks == 3);
  for (i = 0; i < 40; ++i) {
    CHECK(slots[i] == blocks[i / block_size] * (int64_t)block_size + (int64_t)i % block_size);
  }
  OK(pagedkv_block_table(cache, sequence, 2, blocks, 1, 0, &num_blocks));
  CHECK(num_blocks == 3 && blocks[0] == blocks[2]);
  OK_IF(build.layers_differ, pagedkv_num_skipped_tokens(cache, sequence, 0, &skipped));
  CHECK(skipped == (build.layers_differ ? 0 : -1));
  WRONG_IF(build.layers_differ, pagedkv_num_skipped_tokens(NULL, sequence, 0, &skipped));
  WRONG_IF(build.layers_differ, pagedkv_num_skipped_tokens(cache, sequence, 0, NULL));
  WRONG_IF(build.layers_differ, pagedkv_num_skipped_tokens(cache, sequence, 1, &skipped));
  OK(pagedkv_release(cache, sequence, NULL));
  destroy_checked(cache);
}

static void test_prefixes(void) {
  pagedkv_cache* const cache = make_cache(8);
  const pagedkv_run run = run_of(counting, 40), hole = run_of(NULL, 1), too_long = run_of(counting, 9 * block_size);
  pagedkv_run hashed = run;
  uint64_t hashes[4];
  size_t num_hashes = 0;
  int64_t num_tokens = -1, num_blocks = -1;
  int32_t blocks[4], pinned[4], is_idle = 0;
  size_t size = 0;
  pagedkv_pin pin = 0;
  WRONG(pagedkv_hash_blocks(NULL, &run, 0, hashes, 4, &num_hashes));
  WRONG(pagedkv_hash_blocks(cache, NULL, 0, hashes, 4, &num_hashes));
  WRONG(pagedkv_hash_blocks(cache, &run, 0, NULL, 4, &num_hashes));
  WRONG(pagedkv_hash_blocks(cache, &run, 0, hashes, 4, NULL));
  OK(pagedkv_hash_blocks(cache, &run, 0, hashes, 4, &num_hashes));
  CHECK(num_hashes == 2 && hashes[0] != hashes[1]);
  hashed.hashes = hashes;
  hashed.num_hashes = num_hashes;

  end(cache, create(cache, counting, 40), 40);
  WRONG(pagedkv_find_prefix(NULL, &run, 0, &num_tokens));
  WRONG(pagedkv_find_prefix(cache, &hole, 0, &num_tokens));
  WRONG(pagedkv_find_prefix(cache, &run, 0, NULL));
  OK(pagedkv_find_prefix(cache, &hashed, 0, &num_tokens));
  CHECK(num_tokens == 32);
  OK(pagedkv_find_prefix(cache, &run, 7, &num_tokens));
  CHECK(num_tokens == 0);

  WRONG(pagedkv_would_fit(NULL, &run, NULL, &num_tokens, &num_blocks));
  WRONG(pagedkv_would_fit(cache, NULL, NULL, &num_tokens, &num_blocks));
  WRONG(pagedkv_would_fit(cache, &run, NULL, NULL, &num_blocks));
  WRONG(pagedkv_would_fit(cache, &run, NULL, &num_tokens, NULL));
  CHECK(pagedkv_would_fit(cache, &too_long, NULL, &num_tokens, &num_blocks) == PAGEDKV_NEVER_FITS);
  OK(pagedkv_would_fit(cache, &run, NULL, &num_tokens, &num_blocks));
  CHECK(num_tokens == 32 && num_blocks == 1);

  WRONG(pagedkv_pin_prefix(NULL, &run, 0, &pin, &num_tokens));
  WRONG(pagedkv_pin_prefix(cache, NULL, 0, &pin, &num_tokens));
  WRONG(pagedkv_pin_prefix(cache, &run, 0, NULL, &num_tokens));
  WRONG(pagedkv_pin_prefix(cache, &run, 0, &pin, NULL));
  OK(pagedkv_pin_prefix(cache, &run, 0, &pin, &num_tokens));
  CHECK(num_tokens == 32);
  CHECK(pagedkv_reset_prefix_cache(cache, &num_blocks) == PAGEDKV_IN_USE);
  WRONG(pagedkv_pin_block_table(NULL, pin, 0, pinned, 4, 0, &size));
  WRONG(pagedkv_pin_block_table(cache, pin, 0, NULL, 4, 0, &size));
  WRONG(pagedkv_pin_block_table(cache, pin, 0, pinned, 4, 0, NULL));
  WRONG(pagedkv_pin_block_table(cache, pin, 0, pinned, 1, 0, &size));
  WRONG(pagedkv_pin_block_table(cache, pin, 0, pinned, 4, 1, &size));
  OK(pagedkv_pin_block_table(cache, pin, 0, pinned, 4, 0, &size));
  CHECK(size == 2 && pinned[0] >= 0 && pinned[0] != pinned[1]);
  WRONG(pagedkv_unpin(NULL, pin));
  OK(pagedkv_unpin(cache, pin));
  CHECK(pagedkv_pin_block_table(cache, pin, 0, pinned, 4, 0, &size) == PAGEDKV_UNKNOWN_PIN);
  CHECK(pagedkv_unpin(cache, pin) == PAGEDKV_UNKNOWN_PIN);
  OK(pagedkv_pin_prefix(cache, &run, 0, &pin, &num_tokens));
  WRONG(pagedkv_unpin_all(NULL, &num_blocks));
  WRONG(pagedkv_unpin_all(cache, NULL));
  OK(pagedkv_unpin_all(cache, &num_blocks));
  CHECK(num_blocks == 1);

  WRONG(pagedkv_invalidate_prefix(NULL, &run, 0, &num_blocks));
  WRONG(pagedkv_invalidate_prefix(cache, &hole, 0, &num_blocks));
  WRONG(pagedkv_invalidate_prefix(cache, &run, 0, NULL));
  OK(pagedkv_invalidate_prefix(cache, &run, 0, &num_blocks));
  CHECK(num_blocks == 2);
  end(cache, create(cache, counting, 40), 40);
  WRONG(pagedkv_invalidate_salt(NULL, 0, &num_blocks));
  WRONG(pagedkv_invalidate_salt(cache, 0, NULL));
  OK(pagedkv_invalidate_salt(cache, 0, &num_blocks));
  CHECK(num_blocks > 0);
  OK(pagedkv_find_prefix(cache, &run, 0, &num_tokens));
  CHECK(num_tokens == 0);
  {
    const pagedkv_sequence sequence = create(cache, counting, 40);
    OK(pagedkv_block_table(cache, sequence, 0, blocks, 4, 0, &size));
    end(cache, sequence, 40);
  }
  WRONG(pagedkv_invalidate_blocks(NULL, blocks, 1, &num_blocks));
  WRONG(pagedkv_invalidate_blocks(cache, NULL, 1, &num_blocks));
  WRONG(pagedkv_invalidate_blocks(cache, blocks, 1, NULL));
  OK(pagedkv_invalidate_blocks(cache, blocks, 1, &num_blocks));
  CHECK(num_blocks > 0);
  blocks[0] = 99;
  WRONG(pagedkv_invalidate_blocks(cache, blocks, 1, &num_blocks));
  {
    const pagedkv_sequence sequence = create(cache, counting, 40);
    pagedkv_step step = 0;
    OK(pagedkv_begin_step(cache, NULL, 0, &step));
    OK(pagedkv_commit(cache, sequence, 40, stream));
    WRONG(pagedkv_withdraw(NULL, sequence, &num_blocks));
    WRONG(pagedkv_withdraw(cache, sequence, NULL));
    OK(pagedkv_withdraw(cache, sequence, &num_blocks));
    CHECK(num_blocks > 0);
    OK(pagedkv_release(cache, sequence, NULL));
    OK(pagedkv_retire_step(cache, step));
    CHECK(pagedkv_withdraw(cache, sequence, &num_blocks) == PAGEDKV_UNKNOWN_SEQUENCE);
  }
  end(cache, create(cache, counting, 40), 40);
  WRONG(pagedkv_reset_prefix_cache(NULL, &num_blocks));
  WRONG(pagedkv_reset_prefix_cache(cache, NULL));
  OK_IF(build.num_tiers > 0, pagedkv_wait_idle(cache, -1, &is_idle));
  OK(pagedkv_reset_prefix_cache(cache, &num_blocks));
  CHECK(num_blocks > 0);
  destroy_checked(cache);
}

static void test_steps_and_blocks(void) {
  pagedkv_config config = config_of(8);
  pagedkv_cache* cache = NULL;
  const pagedkv_run many = run_of(zeros, 8 * block_size);
  const pagedkv_block_pair* moves = NULL;
  SIZED(pagedkv_admission, made);
  SIZED(pagedkv_error, error);
  SIZED(pagedkv_release_gain, gain);
  pagedkv_sequence sequences[2];
  pagedkv_step step = 0;
  int64_t count = -1;
  int32_t blocks[8];
  size_t num_blocks = 0, num_moves = 99, positions[2];
  config.max_blocks = 12;
  OK(pagedkv_create(&config, &cache));

  sequences[0] = create(cache, zeros, 6 * block_size);
  WRONG(pagedkv_begin_step(NULL, sequences, 1, &step));
  WRONG(pagedkv_begin_step(cache, sequences, 1, NULL));
  WRONG(pagedkv_begin_step(cache, NULL, 1, &step));
  UNKNOWN(pagedkv_begin_step(cache, &unknown, 1, &step));
  OK(pagedkv_begin_step(cache, sequences, 1, &step));
  OK(pagedkv_release(cache, sequences[0], NULL));
  CHECK(pagedkv_create_sequence(cache, &many, NULL, stream, &made) == PAGEDKV_CAPACITY_EXHAUSTED);
  OK(pagedkv_last_error(&error));
  CHECK(error.code == PAGEDKV_CAPACITY_EXHAUSTED && error.step == step && error.value == 8 && error.limit == 2);
  WRONG(pagedkv_retire_step(NULL, step));
  OK(pagedkv_retire_step(cache, step));
  CHECK(pagedkv_retire_step(cache, step) == PAGEDKV_UNKNOWN_STEP);

  sequences[0] = create(cache, counting, 2 * block_size);
  sequences[1] = create(cache, zeros, 3 * block_size);
  OK(pagedkv_begin_step(cache, NULL, 0, &step));
  OK(pagedkv_commit(cache, sequences[0], 2 * block_size, stream));
  OK(pagedkv_retire_step(cache, step));
  WRONG(pagedkv_num_blocks(NULL, &count));
  WRONG(pagedkv_num_blocks(cache, NULL));
  OK(pagedkv_num_blocks(cache, &count));
  CHECK(count == 8);
  WRONG(pagedkv_num_free_blocks(NULL, &count));
  WRONG(pagedkv_num_free_blocks(cache, NULL));
  OK(pagedkv_num_free_blocks(cache, &count));
  CHECK(count == 3);
  WRONG(pagedkv_num_available_blocks(NULL, &count));
  WRONG(pagedkv_num_available_blocks(cache, NULL));
  OK(pagedkv_num_available_blocks(cache, &count));
  CHECK(count == 3);

  WRONG(pagedkv_gain_of_releasing(NULL, sequences, 2, NULL, 0, &gain));
  WRONG(pagedkv_gain_of_releasing(cache, NULL, 2, NULL, 0, &gain));
  WRONG(pagedkv_gain_of_releasing(cache, sequences, 2, NULL, 0, NULL));
  OK(pagedkv_gain_of_releasing(cache, sequences, 2, &many, 0, &gain));
  CHECK(gain.at_once == 5 && gain.with_steps == 0);
  WRONG(pagedkv_fewest_to_release(NULL, sequences, 2, 3, NULL, 0, positions, &num_blocks));
  WRONG(pagedkv_fewest_to_release(cache, NULL, 2, 3, NULL, 0, positions, &num_blocks));
  WRONG(pagedkv_fewest_to_release(cache, sequences, 2, 3, NULL, 0, NULL, &num_blocks));
  WRONG(pagedkv_fewest_to_release(cache, sequences, 2, 3, NULL, 0, positions, NULL));
  OK(pagedkv_fewest_to_release(cache, sequences, 2, 4, NULL, 0, positions, &num_blocks));
  CHECK(num_blocks == 2 && positions[0] == 0 && positions[1] == 1);

  OK(pagedkv_release(cache, sequences[0], NULL)); /* two cached blocks, which are evicted ahead of need */
  OK(pagedkv_begin_step(cache, NULL, 0, &step));
  WRONG(pagedkv_evict(NULL, step, blocks, 8, stream, &num_blocks));
  WRONG(pagedkv_evict(cache, step, NULL, 8, stream, &num_blocks));
  WRONG(pagedkv_evict(cache, step, blocks, 8, stream, NULL));
  CHECK(pagedkv_evict(cache, 999, blocks, 8, stream, &num_blocks) == PAGEDKV_UNKNOWN_STEP);
  OK(pagedkv_evict(cache, step, blocks, 8, stream, &num_blocks));
  CHECK(num_blocks == 2 && blocks[0] != blocks[1]);
  OK(pagedkv_retire_step(cache, step));

  WRONG(pagedkv_compact(NULL, stream));
  OK(pagedkv_compact(cache, stream)); /* moves the three blocks in use from behind the free ones, if they are there */
  WRONG(pagedkv_last_moves(NULL, &num_moves));
  WRONG(pagedkv_last_moves(&moves, NULL));
  OK(pagedkv_last_moves(&moves, &num_moves));
  CHECK(num_moves <= 3 && (num_moves == 0 || moves[0].source != moves[0].destination));
  WRONG(pagedkv_resize(NULL, 4, stream));
  WRONG(pagedkv_resize(cache, 13, stream));
  CHECK(pagedkv_resize(cache, 2, stream) == PAGEDKV_IN_USE);
  OK(pagedkv_resize(cache, 12, stream));
  OK(pagedkv_num_blocks(cache, &count));
  CHECK(count == 12);
  OK(pagedkv_resize(cache, 3, stream));
  OK(pagedkv_release(cache, sequences[1], NULL));

  WRONG(pagedkv_advance_time(NULL, 5));
  OK(pagedkv_advance_time(cache, 5));
  WRONG(pagedkv_time(NULL, &count));
  WRONG(pagedkv_time(cache, NULL));
  OK(pagedkv_time(cache, &count));
  CHECK(count == 5);
  if (stream != NULL) {
    OK(pagedkv_stream_clear(stream));
  }
  destroy_checked(cache);
}

static pagedkv_rows rows_at(void* data, int64_t num_tokens, int32_t heads) {
  const pagedkv_rows rows = {data, heads * head_dim, head_dim, num_tokens, heads, head_dim, PAGEDKV_FLOAT32, 0};
  return rows;
}

static int is_near(float a, float b) { return a - b < 0.1f && b - a < 0.1f; }

static void test_kv(void) {
  enum { num_tokens = 20, numbers = num_tokens * num_heads * head_dim };
  static float keys[numbers], values[numbers], got_keys[numbers], got_values[numbers];
  static uint16_t half_keys[numbers], half_values[numbers];
  pagedkv_cache* const cache = make_cache(4);
  const pagedkv_sequence sequence = create(cache, counting, num_tokens);
  pagedkv_rows key_rows = rows_at(keys, num_tokens, num_heads), value_rows = rows_at(values, num_tokens, num_heads);
  pagedkv_rows to_keys = rows_at(got_keys, num_tokens, num_heads),
               to_values = rows_at(got_values, num_tokens, num_heads);
  SIZED(pagedkv_storage, storage);
  int64_t slots[num_tokens];
  void* address = NULL;
  size_t i;
  for (i = 0; i < numbers; ++i) {
    keys[i] = (float)(i % 7) - 3.0f;
    values[i] = (float)(i % 5) - 2.0f;
  }
  OK(pagedkv_slot_mapping(cache, sequence, 0, slots, num_tokens, 0));
  OK_IF(build.has_memory, pagedkv_get_storage(cache, 0, &storage));
  WRONG_IF(build.has_memory, pagedkv_get_storage(NULL, 0, &storage));
  WRONG_IF(build.has_memory, pagedkv_get_storage(cache, 0, NULL));
  WRONG_IF(build.has_memory, pagedkv_get_storage(cache, 1, &storage));
  if (build.has_memory) {
    CHECK(storage.base != NULL && storage.head_dim == head_dim && storage.value_dim == head_dim);
    CHECK(storage.num_kv_heads == num_heads && storage.num_layers == 2 && storage.block_size == block_size);
    CHECK(storage.num_blocks == 4 && storage.element_bytes == build.element_bytes && storage.key_pieces.piece == 0);
    CHECK((storage.key_scale_offset != 0) == (build.scale_bytes != 0) &&
          storage.value_token_stride == storage.token_stride);
  }
  OK_IF(build.has_memory, pagedkv_get_blocks(cache, &storage));
  WRONG_IF(build.has_memory, pagedkv_get_blocks(NULL, &storage));
  WRONG_IF(build.has_memory, pagedkv_get_blocks(cache, NULL));

  WRONG_IF(build.has_memory, pagedkv_write(NULL, 1, slots, num_tokens, &key_rows, &value_rows, stream, 0));
  WRONG_IF(build.has_memory, pagedkv_write(cache, 1, NULL, num_tokens, &key_rows, &value_rows, stream, 0));
  WRONG_IF(build.has_memory, pagedkv_write(cache, 1, slots, num_tokens, NULL, &value_rows, stream, 0));
  WRONG_IF(build.has_memory, pagedkv_write(cache, 2, slots, num_tokens, &key_rows, &value_rows, stream, 0));
  WRONG_IF(build.has_memory, pagedkv_write(cache, 1, slots, num_tokens, &key_rows, NULL, stream, 0));
  WRONG_IF(build.has_memory, pagedkv_write(cache, 1, slots, num_tokens, &key_rows, &value_rows, stream, 1));
  value_rows.type = PAGEDKV_FLOAT16;
  WRONG_IF(build.has_memory, pagedkv_write(cache, 1, slots, num_tokens, &key_rows, &value_rows, stream, 0));
  value_rows.type = 3;
  WRONG_IF(build.has_memory, pagedkv_write(cache, 1, slots, num_tokens, &key_rows, &value_rows, stream, 0));
  value_rows.type = PAGEDKV_FLOAT32;
  key_rows.num_heads = num_heads + 1;
  WRONG_IF(build.has_memory, pagedkv_write(cache, 1, slots, num_tokens, &key_rows, &value_rows, stream, 0));
  key_rows.num_heads = num_heads;
  value_rows.head_dim = head_dim * 2;
  WRONG_IF(build.has_memory, pagedkv_write(cache, 1, slots, num_tokens, &key_rows, &value_rows, stream, 0));
  value_rows.head_dim = head_dim;
  OK_IF(build.has_memory, pagedkv_write(cache, 1, slots, num_tokens, &key_rows, &value_rows, stream, 0));
  OK(pagedkv_synchronize(cache, stream));
  WRONG(pagedkv_synchronize(NULL, stream));
  WRONG_IF(build.has_memory, pagedkv_read(NULL, 1, slots, num_tokens, &to_keys, &to_values, stream, 0));
  WRONG_IF(build.has_memory, pagedkv_read(cache, 1, NULL, num_tokens, &to_keys, &to_values, stream, 0));
  WRONG_IF(build.has_memory, pagedkv_read(cache, 1, slots, num_tokens, NULL, &to_values, stream, 0));
  WRONG_IF(build.has_memory, pagedkv_read(cache, 1, slots, num_tokens, &to_keys, NULL, stream, 0));
  WRONG_IF(build.has_memory, pagedkv_read(cache, 1, slots, num_tokens, &to_keys, &to_values, stream, 1));
  to_keys.num_tokens = 1;
  WRONG_IF(build.has_memory, pagedkv_read(cache, 1, slots, num_tokens, &to_keys, &to_values, stream, 0));
  to_keys.num_tokens = num_tokens;
  to_keys.head_dim = head_dim * 2;
  WRONG_IF(build.has_memory, pagedkv_read(cache, 1, slots, num_tokens, &to_keys, &to_values, stream, 0));
  to_keys.head_dim = head_dim;
  to_values.num_heads = num_heads + 1;
  WRONG_IF(build.has_memory, pagedkv_read(cache, 1, slots, num_tokens, &to_keys, &to_values, stream, 0));
  to_values.num_heads = num_heads;
  OK_IF(build.has_memory, pagedkv_read(cache, 1, slots, num_tokens, &to_keys, &to_values, stream, 0));
  for (i = 0; i < numbers; ++i) {
    CHECK(!build.has_memory || (is_near(got_keys[i], keys[i]) && is_near(got_values[i], values[i])));
  }
  to_keys.data = half_keys;
  to_values.data = half_values;
  to_keys.type = to_values.type = PAGEDKV_BFLOAT16;
  OK_IF(build.has_memory, pagedkv_read(cache, 1, slots, num_tokens, &to_keys, &to_values, stream, 0));
  CHECK(!build.has_memory || (half_keys[3] == 0 && half_values[2] == 0 && (half_keys[0] & 0x8000) != 0));
  to_keys.type = to_values.type = PAGEDKV_FLOAT16;
  OK_IF(build.has_memory, pagedkv_read(cache, 1, slots, num_tokens, &to_keys, &to_values, stream, 0));
  OK_IF(build.has_memory, pagedkv_write(cache, 0, slots, num_tokens, &to_keys, &to_values, stream, 0));
  WRONG_IF(build.layers_differ && build.has_memory, pagedkv_state_part(cache, 0, 0, 0, &address));
  OK(pagedkv_release(cache, sequence, NULL));
  destroy_checked(cache);
}

/* Tokens 0 to 19, whose values are their positions, in blocks of 16. */
static void check_lists(pagedkv_cache* cache, pagedkv_attention call) {
  const int32_t list_indptr[] = {0, 2};
  const int32_t second_block[] = {-1, 1};
  const int32_t beyond[] = {0, 2};
  call.lists = PAGEDKV_LISTS_OF_ROWS;
  WRONG_IF(build.computes_attention, pagedkv_attend(cache, &call, NULL));
  call.list_indptr = list_indptr;
  call.list_blocks = beyond;
  call.num_list_blocks = 2;
  WRONG_IF(build.computes_attention, pagedkv_attend(cache, &call, NULL));
  call.list_blocks = second_block;
  call.lists = 3;
  WRONG_IF(build.computes_attention, pagedkv_attend(cache, &call, NULL));
  if (build.computes_attention) {
    pagedkv_error error = {.struct_size = sizeof error};
    OK(pagedkv_last_error(&error));
    CHECK(error.value == 3 && error.limit == PAGEDKV_LISTS_OF_HEADS);
  }
  call.lists = PAGEDKV_LISTS_OF_ROWS;
  OK_IF(build.computes_attention, pagedkv_attend(cache, &call, NULL));
  if (build.computes_attention) {
    CHECK(is_near(((float*)call.outputs.data)[0], 17.5f)); /* the mean of 16 to 19 */
  }
}

static void test_attention(void) {
  enum { num_tokens = 20, query_heads = 4 };
  static float keys[num_tokens * num_heads * head_dim], values[num_tokens * num_heads * head_dim];
  static float queries[query_heads * head_dim], outputs[query_heads * head_dim];
  pagedkv_cache* const cache = make_cache(4);
  const pagedkv_sequence sequence = create(cache, counting, num_tokens);
  const pagedkv_rows key_rows = rows_at(keys, num_tokens, num_heads),
                     value_rows = rows_at(values, num_tokens, num_heads);
  SIZED(pagedkv_attention, call);
  SIZED(pagedkv_batch_view, view);
  pagedkv_batch* batch = NULL;
  pagedkv_stream* threads = stream;
  float log_sum_exp[query_heads] = {0};
  int64_t slots[num_tokens];
  int32_t i;
  for (i = 0; i < num_tokens * num_heads * head_dim; ++i) {
    values[i] = (float)(i / (num_heads * head_dim)); /* the token's position */
  }
  if (stream == NULL) {
    OK(pagedkv_stream_create(2, &threads));
  }
  OK(pagedkv_slot_mapping(cache, sequence, 0, slots, num_tokens, 0));
  OK_IF(build.has_memory, pagedkv_write(cache, 0, slots, num_tokens, &key_rows, &value_rows, stream, 0));
  OK(pagedkv_batch_create_compressed(1, 4, &batch));
  OK(pagedkv_batch_update(cache, batch, &sequence, 1, 0, 0));
  OK(pagedkv_batch_get_view(batch, &view));
  call.num_rows = view.num_rows;
  call.indptr = view.indptr;
  call.indices = view.indices;
  call.num_indices = 2;
  call.last_block_len = view.last_block_len;
  call.queries = rows_at(queries, 1, query_heads);
  call.outputs = rows_at(outputs, 1, query_heads);
  call.log_sum_exp = log_sum_exp;

  WRONG_IF(build.computes_attention, pagedkv_attend(NULL, &call, threads));
  WRONG_IF(build.computes_attention, pagedkv_attend(cache, NULL, threads));
  call.queries.head_dim = head_dim * 2;
  WRONG_IF(build.computes_attention, pagedkv_attend(cache, &call, threads));
  call.queries.head_dim = head_dim;
  call.group = 1;
  WRONG_IF(build.computes_attention, pagedkv_attend(cache, &call, threads));
  call.group = 0;
  call.layer = 2;
  WRONG_IF(build.computes_attention, pagedkv_attend(cache, &call, threads));
  call.layer = 0;
  call.outputs.num_tokens = 0;
  WRONG_IF(build.computes_attention, pagedkv_attend(cache, &call, threads));
  call.outputs = rows_at(NULL, 1, query_heads);
  WRONG_IF(build.computes_attention, pagedkv_attend(cache, &call, threads));
  call.outputs = rows_at(outputs, 1, query_heads);
  call.indptr = NULL;
  WRONG_IF(build.computes_attention, pagedkv_attend(cache, &call, threads));
  call.indptr = view.indptr;
  call.window = -1;
  WRONG_IF(build.computes_attention, pagedkv_attend(cache, &call, threads));
  call.window = 0;
  OK_IF(build.computes_attention, pagedkv_attend(cache, &call, threads));
  if (build.computes_attention) { /* all scores are 0: the mean of 0 to 19, and the logarithm of 20 */
    for (i = 0; i < query_heads * head_dim; ++i) {
      CHECK(is_near(outputs[i], 9.5f));
    }
    CHECK(is_near(log_sum_exp[query_heads - 1], 2.996f));
    call.window = 1;
    OK(pagedkv_attend(cache, &call, NULL));
    CHECK(is_near(outputs[0], 19.0f));
    call.window = 0;
  }
  check_lists(cache, call);
  pagedkv_batch_destroy(batch);
  if (threads != stream) {
    pagedkv_stream_destroy(threads);
  }
  OK(pagedkv_release(cache, sequence, NULL));
  destroy_checked(cache);
}

static void test_groups(void) {
  enum { window = 20, length = 64 };
  const float scales[] = {0.5f, 0.25f}; /* of K and of V */
  const pagedkv_group groups[] = {
      {PAGEDKV_FULL, 1, num_heads, head_dim, head_dim, 0, 0, 0, scales},
      {PAGEDKV_WINDOW, 2, num_heads, head_dim, head_dim, 0, window, 0, NULL},
      {PAGEDKV_STATE, 1, 2, 0, 0, 0, 0, 256, NULL},
  };
  pagedkv_config config = config_of(24);
  pagedkv_cache* cache = NULL;
  SIZED(pagedkv_group_info, info);
  SIZED(pagedkv_storage, storage);
  int64_t skipped = 0, saved = 0;
  int64_t slots[length];
  int32_t blocks[24];
  size_t num_blocks = 0;
  void* address = NULL;
  pagedkv_sequence sequence;
  char path[512];
  const char* const paths[] = {path};
  pagedkv_tiers tiers;
  config.groups = groups;
  config.num_groups = 3;
  if (build.num_tiers > 0) { /* records of these groups have a file of their own */
    snprintf(path, sizeof path, "%s/records_of_groups", folder);
    tiers = *config.tiers;
    tiers.file_paths = paths;
    config.tiers = &tiers;
  }
  if (!build.layers_differ) {
    CHECK(pagedkv_create(&config, &cache) == PAGEDKV_UNSUPPORTED);
    cache = make_cache(4);
    CHECK(pagedkv_get_group(cache, 0, &info) == PAGEDKV_UNSUPPORTED);
    CHECK(pagedkv_drop_behind_windows(cache, unknown, 1) == PAGEDKV_UNSUPPORTED);
    CHECK(pagedkv_next_saved_length(cache, unknown, &saved) == PAGEDKV_UNSUPPORTED);
    CHECK(pagedkv_state_part(cache, 0, 0, 0, &address) == PAGEDKV_UNSUPPORTED);
    pagedkv_destroy(cache);
    return;
  }
  OK(pagedkv_create(&config, &cache));
  WRONG(pagedkv_get_group(NULL, 0, &info));
  WRONG(pagedkv_get_group(cache, 3, &info));
  WRONG(pagedkv_get_group(cache, 0, NULL));
  OK(pagedkv_get_group(cache, 1, &info));
  CHECK(info.kind == PAGEDKV_WINDOW && info.block_size > 0 && info.block_size % block_size == 0 &&
        info.block_bytes > 0);
  OK(pagedkv_get_group(cache, 2, &info));
  CHECK(info.kind == PAGEDKV_STATE && info.block_size == 0 && info.parts_per_block >= 1 && info.part_bytes >= 256);

  sequence = create(cache, counting, length);
  WRONG(pagedkv_next_saved_length(NULL, sequence, &saved));
  WRONG(pagedkv_next_saved_length(cache, sequence, NULL));
  UNKNOWN(pagedkv_next_saved_length(cache, unknown, &saved));
  OK(pagedkv_next_saved_length(cache, sequence, &saved));
  CHECK(saved == length - block_size); /* the last multiple before the prompt's last token */
  OK(pagedkv_slot_mapping(cache, sequence, 0, slots, length, 1));
  WRONG(pagedkv_slot_mapping(cache, sequence, 0, slots, length, 2)); /* a state has none */
  WRONG(pagedkv_get_storage(cache, 2, &storage));
  OK(pagedkv_get_storage(cache, 1, &storage));
  CHECK(storage.num_layers == 2 && storage.static_scales == NULL);
  OK(pagedkv_get_storage(cache, 0, &storage));
  CHECK(storage.static_scales == scales);
  OK(pagedkv_block_table(cache, sequence, 0, blocks, 24, 2, &num_blocks));
  CHECK(num_blocks == (size_t)info.blocks_per_state);
  WRONG(pagedkv_state_part(NULL, 2, blocks[0], 0, &address));
  WRONG(pagedkv_state_part(cache, 0, blocks[0], 0, &address));
  WRONG(pagedkv_state_part(cache, 2, -1, 0, &address));
  WRONG(pagedkv_state_part(cache, 2, blocks[0], info.parts_per_block, &address));
  WRONG(pagedkv_state_part(cache, 2, blocks[0], 0, NULL));
  OK(pagedkv_state_part(cache, 2, blocks[0], 0, &address));
  memset(address, 1, 256);

  WRONG(pagedkv_drop_behind_windows(NULL, sequence, 1));
  WRONG(pagedkv_drop_behind_windows(cache, sequence, length + 1));
  UNKNOWN(pagedkv_drop_behind_windows(cache, unknown, 1));
  OK(pagedkv_drop_behind_windows(cache, sequence, 1));
  OK(pagedkv_commit(cache, sequence, saved, stream));
  OK(pagedkv_commit(cache, sequence, length, stream));
  OK(pagedkv_num_skipped_tokens(cache, sequence, 1, &skipped));
  CHECK(skipped > 0 && skipped <= length - window + 1);
  OK(pagedkv_release(cache, sequence, NULL));
  {
    const pagedkv_run prompt = run_of(counting, length);
    int64_t num_tokens = 0;
    OK(pagedkv_find_prefix(cache, &prompt, 0, &num_tokens));
    CHECK(num_tokens == saved);
  }
  destroy_checked(cache);
}

static void test_tiers(void) {
  enum { length = 64 };
  static float numbers[length * num_heads * head_dim];
  pagedkv_cache* const cache = make_cache(8);
  const pagedkv_run prompt = run_of(counting, length);
  SIZED(pagedkv_load_progress, progress);
  SIZED(pagedkv_tier_statistics, statistics);
  SIZED(pagedkv_admission, made);
  int64_t settled = -1;
  int32_t is_idle = -1, tokens[length], i, round;
  size_t count = 99;
  const int has = build.num_tiers > 0;
  WRONG_IF(has, pagedkv_settle(NULL, unknown, stream, &settled));
  WRONG_IF(has, pagedkv_settle(cache, unknown, stream, NULL));
  CHECK(pagedkv_settle(cache, unknown, stream, &settled) == (has ? PAGEDKV_UNKNOWN_SEQUENCE : PAGEDKV_UNSUPPORTED));
  {
    int64_t reach[3] = {-1, -1, -1};
    WRONG_IF(has, pagedkv_find_prefix_in_tiers(NULL, &prompt, 0, &reach[0], &reach[1], &reach[2]));
    WRONG_IF(has, pagedkv_find_prefix_in_tiers(cache, NULL, 0, &reach[0], &reach[1], &reach[2]));
    WRONG_IF(has, pagedkv_find_prefix_in_tiers(cache, &prompt, 0, NULL, &reach[1], &reach[2]));
    WRONG_IF(has, pagedkv_find_prefix_in_tiers(cache, &prompt, 0, &reach[0], NULL, &reach[2]));
    WRONG_IF(has, pagedkv_find_prefix_in_tiers(cache, &prompt, 0, &reach[0], &reach[1], NULL));
    OK_IF(has, pagedkv_find_prefix_in_tiers(cache, &prompt, 0, &reach[0], &reach[1], &reach[2]));
    CHECK(!has || (reach[0] == 0 && reach[1] == 0 && reach[2] == 0));
  }
  WRONG_IF(has, pagedkv_poll(NULL, unknown, &progress));
  WRONG_IF(has, pagedkv_poll(cache, unknown, NULL));
  OK_IF(has, pagedkv_poll(cache, unknown, &progress));
  WRONG_IF(has, pagedkv_poll_all(NULL));
  OK_IF(has, pagedkv_poll_all(cache));
  WRONG_IF(has, pagedkv_wait(NULL, unknown, 0, &progress));
  WRONG_IF(has, pagedkv_wait(cache, unknown, 0, NULL));
  OK_IF(has, pagedkv_wait(cache, unknown, INT64_MAX, &progress));
  WRONG_IF(has, pagedkv_wait_idle(NULL, -1, &is_idle));
  WRONG_IF(has, pagedkv_wait_idle(cache, -1, NULL));
  OK_IF(has, pagedkv_wait_idle(cache, -1, &is_idle));
  CHECK(is_idle == (has ? 1 : -1));
  WRONG_IF(has, pagedkv_run_transfers(NULL, &count));
  WRONG_IF(has, pagedkv_run_transfers(cache, NULL));
  OK_IF(has, pagedkv_run_transfers(cache, &count));
  WRONG_IF(has, pagedkv_host_bytes(NULL, &count));
  WRONG_IF(has, pagedkv_host_bytes(cache, NULL));
  OK_IF(has, pagedkv_host_bytes(cache, &count));
  WRONG_IF(has, pagedkv_get_tier(NULL, 0, &statistics));
  WRONG_IF(has, pagedkv_get_tier(cache, 0, NULL));
  WRONG_IF(has, pagedkv_get_tier(cache, (size_t)build.num_tiers, &statistics));
  OK_IF(has, pagedkv_get_tier(cache, 0, &statistics));
  if (!has) {
    pagedkv_destroy(cache);
    return;
  }
  CHECK(count > 0 && strcmp(statistics.name, "host") == 0 && statistics.num_places == 8);

  /* The first prompt goes from the device to host memory and to files, when four others come. */
  for (round = 0; round < 5; ++round) {
    int64_t slots[length];
    pagedkv_sequence sequence;
    const pagedkv_rows rows = rows_at(numbers, length, num_heads);
    for (i = 0; i < length; ++i) {
      tokens[i] = counting[i] + 1000 * round;
    }
    for (i = 0; i < length * num_heads * head_dim; ++i) {
      numbers[i] = (float)round;
    }
    sequence = create(cache, tokens, length);
    OK(pagedkv_slot_mapping(cache, sequence, 0, slots, length, 0));
    for (i = 0; i < 2; ++i) {
      OK(pagedkv_write(cache, i, slots, length, &rows, &rows, stream, 0));
    }
    end(cache, sequence, length);
    OK(pagedkv_wait_idle(cache, -1, &is_idle));
  }
  OK(pagedkv_create_sequence(cache, &prompt, NULL, stream, &made));
  CHECK(made.num_cached_tokens + made.num_loading_tokens == length - block_size && made.num_loading_tokens > 0);
  OK(pagedkv_wait(cache, made.sequence, -1, &progress));
  CHECK(progress.num_loading_tokens == 0);
  OK(pagedkv_settle(cache, made.sequence, stream, &settled));
  CHECK(settled == length - block_size);
  OK(pagedkv_get_tier(cache, 1, &statistics));
  CHECK(strcmp(statistics.name, "host") != 0 && statistics.loads > 0 && statistics.hit_tokens > 0);
  {
    static float got[length * num_heads * head_dim];
    int64_t slots[length];
    const pagedkv_rows rows = rows_at(got, length, num_heads);
    memset(got, 1, sizeof got);
    OK(pagedkv_slot_mapping(cache, made.sequence, 0, slots, length, 0));
    OK(pagedkv_read(cache, 1, slots, length - block_size, &rows, &rows, stream, 0));
    CHECK(is_near(got[0], 0.0f) && is_near(got[(length - block_size) * num_heads * head_dim - 1], 0.0f));
  }
  OK(pagedkv_release(cache, made.sequence, NULL));
  destroy_checked(cache);
}

static void test_sessions(void) {
  pagedkv_config config = config_of(8);
  pagedkv_tiers tiers;
  pagedkv_cache *cache = NULL, *other = NULL;
  SIZED(pagedkv_session_options, options);
  SIZED(pagedkv_admission, made);
  pagedkv_sequence sequence;
  char path[512];
  const int has = build.has_memory; /* and a backend that copies */
  if (build.num_tiers > 0) {
    tiers = tiers_in("weights");
    config.tiers = &tiers;
  }
  OK(pagedkv_create(&config, &cache));
  snprintf(path, sizeof path, "%s/session", folder);
  options.model = "weights";
  sequence = create(cache, counting, 40);
  OK(pagedkv_commit(cache, sequence, 40, stream));
  WRONG_IF(has, pagedkv_save_sequence(NULL, sequence, path, &options, stream));
  WRONG_IF(has, pagedkv_save_sequence(cache, sequence, NULL, &options, stream));
  CHECK(pagedkv_save_sequence(cache, unknown, path, &options, stream) ==
        (has ? PAGEDKV_UNKNOWN_SEQUENCE : PAGEDKV_UNSUPPORTED));
  CHECK(pagedkv_save_sequence(cache, sequence, "/nowhere/session", NULL, stream) ==
        (has ? PAGEDKV_BACKEND_FAILURE : PAGEDKV_UNSUPPORTED));
  OK_IF(has, pagedkv_save_sequence(cache, sequence, path, &options, stream));
  WRONG_IF(has, pagedkv_restore_sequence(NULL, path, &options, stream, &made));
  WRONG_IF(has, pagedkv_restore_sequence(cache, NULL, &options, stream, &made));
  WRONG_IF(has, pagedkv_restore_sequence(cache, path, &options, stream, NULL));
  WRONG_IF(has, pagedkv_restore_sequence(cache, path, NULL, stream, &made)); /* of another model */
  OK_IF(has, pagedkv_restore_sequence(cache, path, &options, stream, &made));
  if (has) {
    CHECK(made.num_tokens == 40 && made.num_cached_tokens == 32);
    OK(pagedkv_release(cache, made.sequence, NULL));
  }

  if (build.num_tiers > 1) { /* the first cache has locked its files */
    other = cache;
  } else {
    OK(pagedkv_create(&config, &other));
  }
  WRONG_IF(has, pagedkv_hand_over(NULL, sequence, other, &options, stream, &made));
  WRONG_IF(has, pagedkv_hand_over(cache, sequence, NULL, &options, stream, &made));
  WRONG_IF(has, pagedkv_hand_over(cache, sequence, other, &options, stream, NULL));
  CHECK(pagedkv_hand_over(cache, unknown, other, &options, stream, &made) ==
        (has ? PAGEDKV_UNKNOWN_SEQUENCE : PAGEDKV_UNSUPPORTED));
  OK_IF(has, pagedkv_hand_over(cache, sequence, other, &options, stream, &made));
  if (has) {
    SIZED(pagedkv_sequence_info, info);
    OK(pagedkv_describe(other, made.sequence, &info, NULL));
    CHECK(info.num_computed_tokens == 40);
    OK(pagedkv_release(other, made.sequence, NULL));
  }
  OK(pagedkv_release(cache, sequence, NULL));
  if (other != cache) {
    destroy_checked(other);
  }
  destroy_checked(cache);
}

/* The first request is preempted, the second runs. */
static void test_tracked_batch(pagedkv_tracker* tracker, const pagedkv_submission* first,
                               const pagedkv_submission* second) {
  const pagedkv_request requests[] = {first->request, second->request};
  const pagedkv_batch_entry entries[] = {
      {first->sequence, {counting, 1, NULL, 0, NULL, 0}, -1, 0},
      {second->sequence, {counting, 1, NULL, 0, NULL, 0}, -1, 0},
  };
  int64_t slots[8] = {0};
  pagedkv_batch_failure failures[2];
  SIZED(pagedkv_batch_buffers, buffers);
  SIZED(pagedkv_batch_outcome, outcome);
  buffers.slots = slots;
  buffers.room_for_slots = 8;
  buffers.failures = failures;
  buffers.room_for_failures = 2;
  WRONG(pagedkv_tracker_append_batch(NULL, requests, entries, 2, &buffers, stream, &outcome));
  WRONG(pagedkv_tracker_append_batch(tracker, NULL, entries, 2, &buffers, stream, &outcome));
  WRONG(pagedkv_tracker_append_batch(tracker, requests, NULL, 2, &buffers, stream, &outcome));
  WRONG(pagedkv_tracker_append_batch(tracker, requests, entries, 2, NULL, stream, &outcome));
  WRONG(pagedkv_tracker_append_batch(tracker, requests, entries, 2, &buffers, stream, NULL));
  const pagedkv_batch_entry of_others[] = {entries[1], entries[1]};
  WRONG(pagedkv_tracker_append_batch(tracker, requests, of_others, 2, &buffers, stream, &outcome));
  OK(pagedkv_tracker_append_batch(tracker, requests, entries, 2, &buffers, stream, &outcome));
  CHECK(outcome.num_slots == 2 && outcome.num_groups >= 1 && outcome.num_failures == 1);
  CHECK(failures[0].entry == 0 && failures[0].code == PAGEDKV_PREEMPTED);
  CHECK(slots[0] < 0 && slots[1] >= 0);
}

static void test_requests(void) {
  pagedkv_cache* const cache = make_cache(8);
  const pagedkv_run large = run_of(counting, 6 * block_size), small = run_of(zeros, 4 * block_size),
                    one = run_of(zeros, 1);
  const int preempts = strcmp(build.preemption, "none") != 0;
  SIZED(pagedkv_tracker_config, config);
  SIZED(pagedkv_submission, first);
  SIZED(pagedkv_submission, second);
  SIZED(pagedkv_sequence_options, options);
  SIZED(pagedkv_request_info, info);
  SIZED(pagedkv_tracker_statistics, statistics);
  SIZED(pagedkv_error, reason);
  SIZED(pagedkv_release_hint, hint);
  pagedkv_tracker* tracker = NULL;
  const pagedkv_request* preempted = NULL;
  pagedkv_request waiting[2], fork = 0;
  pagedkv_sequence forked = 0;
  size_t count = 99;
  WRONG(pagedkv_tracker_config_init(NULL));
  OK(pagedkv_tracker_config_init(&config));
  CHECK(config.max_open == 0 && config.max_ended > 0);
  WRONG(pagedkv_tracker_create(NULL, &config, &tracker));
  WRONG(pagedkv_tracker_create(cache, &config, NULL));
  config.max_open = -1;
  WRONG(pagedkv_tracker_create(cache, &config, &tracker));
  config.max_open = 4;
  OK(pagedkv_tracker_create(cache, &config, &tracker));

  WRONG(pagedkv_tracker_submit(NULL, &large, NULL, 0, stream, &first));
  WRONG(pagedkv_tracker_submit(tracker, NULL, NULL, 0, stream, &first));
  WRONG(pagedkv_tracker_submit(tracker, &large, NULL, 0, stream, NULL));
  OK(pagedkv_tracker_submit(tracker, &large, NULL, 0, stream, &first));
  CHECK(first.num_tokens == 6 * block_size && first.num_new_blocks == 6);
  OK(pagedkv_last_preempted(&preempted, &count));
  CHECK(count == 0);
  CHECK(pagedkv_tracker_submit(tracker, &small, NULL, 0, stream, &second) == PAGEDKV_CAPACITY_EXHAUSTED);
  OK(pagedkv_sequence_options_init(&options));
  options.priority = 90;
  if (preempts) {
    OK(pagedkv_tracker_submit(tracker, &small, &options, 1, stream, &second));
    WRONG(pagedkv_last_preempted(NULL, &count));
    WRONG(pagedkv_last_preempted(&preempted, NULL));
    OK(pagedkv_last_preempted(&preempted, &count));
    CHECK(count == 1 && preempted[0] == first.request);
  } else {
    CHECK(pagedkv_tracker_submit(tracker, &small, &options, 1, stream, &second) == PAGEDKV_CAPACITY_EXHAUSTED);
    WRONG(pagedkv_tracker_preempt(NULL, first.request, stream));
    OK(pagedkv_tracker_preempt(tracker, first.request, stream));
    OK(pagedkv_tracker_submit(tracker, &small, &options, 1, stream, &second));
  }
  CHECK(pagedkv_tracker_preempt(tracker, first.request, stream) == PAGEDKV_PREEMPTED);
  CHECK(pagedkv_tracker_append(tracker, first.request, &one, stream) == PAGEDKV_PREEMPTED);
  WRONG(pagedkv_tracker_resumable(NULL, waiting, 2, &count));
  WRONG(pagedkv_tracker_resumable(tracker, NULL, 2, &count));
  WRONG(pagedkv_tracker_resumable(tracker, waiting, 2, NULL));
  WRONG(pagedkv_tracker_resumable(tracker, waiting, 0, &count));
  OK(pagedkv_tracker_resumable(tracker, waiting, 2, &count));
  CHECK(count == 1 && waiting[0] == first.request);
  WRONG(pagedkv_tracker_describe(NULL, second.request, &info, NULL));
  WRONG(pagedkv_tracker_describe(tracker, second.request, NULL, NULL));
  CHECK(pagedkv_tracker_describe(tracker, unknown, &info, NULL) == PAGEDKV_UNKNOWN_REQUEST);
  options.priority = 0;
  OK(pagedkv_tracker_describe(tracker, second.request, &info, &options));
  CHECK(info.state == PAGEDKV_REQUEST_RUNNING && info.may_preempt && options.priority == 90 &&
        info.sequence == second.sequence);

  WRONG(pagedkv_tracker_append(NULL, second.request, &one, stream));
  WRONG(pagedkv_tracker_append(tracker, second.request, NULL, stream));
  OK(pagedkv_tracker_append(tracker, second.request, &one, stream));
  test_tracked_batch(tracker, &first, &second);
  OK(pagedkv_commit(cache, second.sequence, 4 * block_size + 2, stream));
  WRONG(pagedkv_tracker_fork(NULL, second.request, stream, &fork, &forked));
  WRONG(pagedkv_tracker_fork(tracker, second.request, stream, NULL, &forked));
  WRONG(pagedkv_tracker_fork(tracker, second.request, stream, &fork, NULL));
  CHECK(pagedkv_tracker_fork(tracker, unknown, stream, &fork, &forked) == PAGEDKV_UNKNOWN_REQUEST);
  OK(pagedkv_tracker_fork(tracker, second.request, stream, &fork, &forked));
  CHECK(fork != second.request && forked != second.sequence);
  WRONG(pagedkv_tracker_cancel(NULL, fork));
  OK(pagedkv_tracker_cancel(tracker, fork));
  CHECK(pagedkv_tracker_cancel(tracker, fork) == PAGEDKV_ALREADY_ENDED);
  WRONG(pagedkv_tracker_enqueue(NULL, &options, 1, &fork));
  WRONG(pagedkv_tracker_enqueue(tracker, &options, 1, NULL));
  OK(pagedkv_tracker_enqueue(tracker, &options, 1, &fork));
  OK(pagedkv_tracker_resumable(tracker, waiting, 2, &count));
  CHECK(count == 2 && waiting[preempts ? 0 : 1] == fork && waiting[preempts ? 1 : 0] == first.request);
  OK(pagedkv_tracker_get_statistics(tracker, &statistics));
  CHECK(statistics.waiting == 1 && statistics.submitted == 3);
  OK(pagedkv_tracker_describe(tracker, fork, &info, NULL));
  CHECK(info.state == PAGEDKV_REQUEST_WAITING);
  OK(pagedkv_tracker_cancel(tracker, fork));

  WRONG(pagedkv_tracker_adopt(NULL, second.sequence, &options, 1, &fork));
  WRONG(pagedkv_tracker_adopt(tracker, second.sequence, &options, 1, NULL));
  CHECK(pagedkv_tracker_adopt(tracker, second.sequence, &options, 1, &fork) == PAGEDKV_IN_USE);
  CHECK(pagedkv_tracker_adopt(tracker, unknown, &options, 1, &fork) == PAGEDKV_UNKNOWN_SEQUENCE);
  OK(pagedkv_fork(cache, second.sequence, stream, &forked));
  OK(pagedkv_tracker_adopt(tracker, forked, &options, 1, &fork));
  OK(pagedkv_tracker_describe(tracker, fork, &info, NULL));
  CHECK(info.state == PAGEDKV_REQUEST_RUNNING && info.sequence == forked);
  OK(pagedkv_tracker_cancel(tracker, fork));
  CHECK(pagedkv_release(cache, forked, NULL) == PAGEDKV_UNKNOWN_SEQUENCE);

  CHECK(pagedkv_tracker_resume(tracker, second.request, &small, stream, &second) == PAGEDKV_NOT_PREEMPTED);
  hint.session_ended = 1;
  WRONG(pagedkv_tracker_finish(NULL, second.request, &hint));
  OK(pagedkv_tracker_finish(tracker, second.request, &hint));
  CHECK(pagedkv_tracker_finish(tracker, unknown, NULL) == PAGEDKV_UNKNOWN_REQUEST);
  WRONG(pagedkv_tracker_resume(NULL, first.request, &large, stream, &first));
  WRONG(pagedkv_tracker_resume(tracker, first.request, NULL, stream, &first));
  WRONG(pagedkv_tracker_resume(tracker, first.request, &large, stream, NULL));
  OK(pagedkv_tracker_resume(tracker, first.request, &large, stream, &first));
  WRONG(pagedkv_tracker_fail(NULL, first.request, &reason));
  WRONG(pagedkv_tracker_fail(tracker, first.request, NULL));
  WRONG(pagedkv_tracker_fail(tracker, first.request, &reason)); /* not an error */
  reason.code = PAGEDKV_BACKEND_FAILURE;
  reason.value = 700;
  OK(pagedkv_tracker_fail(tracker, first.request, &reason));
  OK(pagedkv_tracker_describe(tracker, first.request, &info, NULL));
  CHECK(info.state == PAGEDKV_REQUEST_FAILED && info.failure == PAGEDKV_BACKEND_FAILURE && info.failure_value == 700);
  CHECK(info.num_preemptions == 1);

  WRONG(pagedkv_tracker_get_statistics(NULL, &statistics));
  WRONG(pagedkv_tracker_get_statistics(tracker, NULL));
  OK(pagedkv_tracker_get_statistics(tracker, &statistics));
  CHECK(statistics.submitted == 4 && statistics.finished == 1 && statistics.cancelled == 3 && statistics.failed == 1);
  CHECK(statistics.preemptions == 1 && statistics.running == 0 && statistics.kept_records == 5);
  OK(pagedkv_advance_time(cache, config.max_age + 1));
  WRONG(pagedkv_tracker_purge(NULL));
  OK(pagedkv_tracker_purge(tracker));
  OK(pagedkv_tracker_get_statistics(tracker, &statistics));
  CHECK(statistics.kept_records == 0);
  OK(pagedkv_tracker_submit(tracker, &small, NULL, 0, stream, &second));
  pagedkv_tracker_destroy(tracker); /* releases it */
  pagedkv_tracker_destroy(NULL);
  if (stream != NULL) {
    OK(pagedkv_stream_clear(stream));
  }
  destroy_checked(cache);
}

typedef struct seen_events {
  int count[14];
  int32_t last_token;
  int wrong;
} seen_events;

static void see_event(void* context, const pagedkv_event* event) {
  seen_events* const seen = context;
  ++seen->count[event->kind];
  if (event->kind == PAGEDKV_EVENT_STORED) {
    seen->wrong += event->num_tokens != block_size || event->struct_size != sizeof *event || event->block < 0;
    seen->last_token = event->tokens[event->num_tokens - 1];
  }
}

typedef struct other_cache {
  pagedkv_cache* cache;
  pagedkv_sequence sequence;
} other_cache;

/* Appends to another cache's sequence, and to one that it does not know. */
static void append_to_another(void* context, const pagedkv_event* event) {
  const other_cache* const other = context;
  const pagedkv_batch_entry entries[] = {
      {other->sequence, run_of(counting, 1), -1, 0},
      {unknown, {NULL, 0, NULL, 0, NULL, 0}, -1, 0},
  };
  pagedkv_batch_failure failures[2];
  int64_t slots[4];
  SIZED(pagedkv_batch_buffers, buffers);
  SIZED(pagedkv_batch_outcome, outcome);
  buffers.slots = slots;
  buffers.room_for_slots = 4;
  buffers.failures = failures;
  buffers.room_for_failures = 2;
  if (event->kind == PAGEDKV_EVENT_STORED) {
    OK(pagedkv_append_batch(other->cache, entries, 2, &buffers, stream, &outcome));
    CHECK(outcome.num_failures == 1);
  }
}

static void test_batches_in_events(void) {
  pagedkv_config config = config_of(8);
  pagedkv_tiers tiers = tiers_in("weights");
  pagedkv_cache* cache = NULL;
  other_cache another = {make_cache(8), 0};
  char path[512];
  const char* const paths[] = {path};
  pagedkv_batch_entry entries[2];
  pagedkv_batch_failure failures[2];
  int64_t slots[32];
  size_t i;
  SIZED(pagedkv_batch_buffers, buffers);
  SIZED(pagedkv_batch_outcome, outcome);
  snprintf(path, sizeof path, "%s/other_records", folder);
  tiers.file_paths = paths;
  config.tiers = config.tiers == NULL ? NULL : &tiers;
  config.on_event = append_to_another;
  config.event_context = &another;
  another.sequence = create(another.cache, counting, 3);
  OK(pagedkv_create(&config, &cache));
  for (i = 0; i < 2; ++i) {
    entries[i].sequence = create(cache, i == 0 ? counting : zeros, 20);
    entries[i].run = run_of(counting, 1);
    entries[i].num_computed_tokens = 20;
    entries[i].num_ahead = 0;
  }
  buffers.slots = slots;
  buffers.room_for_slots = 32;
  buffers.failures = failures;
  buffers.room_for_failures = 2;
  OK(pagedkv_append_batch(cache, entries, 2, &buffers, stream, &outcome));
  CHECK(outcome.num_slots == 2 && outcome.num_failures == 0);
  for (i = 0; i < 2; ++i) {
    OK(pagedkv_release(cache, entries[i].sequence, NULL));
  }
  OK(pagedkv_release(another.cache, another.sequence, NULL));
  destroy_checked(cache);
  destroy_checked(another.cache);
}

static void test_events(void) {
  pagedkv_config config = config_of(8);
  pagedkv_cache* cache = NULL;
  seen_events seen = {.last_token = -1};
  pagedkv_sequence sequence;
  config.on_event = see_event;
  config.event_context = &seen;
  config.event_kinds &= ~(1U << PAGEDKV_EVENT_RELEASED);
  if (!build.has_events) {
    CHECK(pagedkv_create(&config, &cache) == PAGEDKV_UNSUPPORTED);
    return;
  }
  OK(pagedkv_create(&config, &cache));
  sequence = create(cache, counting, 40);
  CHECK(seen.count[PAGEDKV_EVENT_ADMITTED] == 1 && seen.count[PAGEDKV_EVENT_STORED] == 0);
  end(cache, sequence, 40);
  CHECK(seen.count[PAGEDKV_EVENT_STORED] == 2 && seen.last_token == 31 && seen.wrong == 0);
  CHECK(seen.count[PAGEDKV_EVENT_RELEASED] == 0);
  end(cache, create(cache, counting, 40), 40);
  CHECK(seen.count[PAGEDKV_EVENT_HIT] == 1);
  destroy_checked(cache);
  test_batches_in_events();
}

static void test_numbers(void) {
  pagedkv_cache* const cache = make_cache(8);
  const pagedkv_label label = {"model", "a \"small\" one"}, bad_labels[] = {{"model", "x"}, {"9", "x"}};
  const pagedkv_label twins[] = {{"model", "x"}, {"rank", "0"}, {"model", "y"}};
  const pagedkv_label of_metrics[] = {{"state", "x"}, {"kind", "x"}, {"purpose", "x"}, {"outcome", "x"}, {"tier", "x"}};
  SIZED(pagedkv_statistics, statistics);
  SIZED(pagedkv_memory, memory);
  SIZED(pagedkv_error, error);
  pagedkv_tracker* tracker = NULL;
  size_t needed = 0, num_bytes = 0, i;
  char* text;
  end(cache, create(cache, counting, 40), 40);
  end(cache, create(cache, counting, 40), 40);
  statistics.struct_size = offsetof(pagedkv_statistics, steals); /* as an older program would */
  statistics.steals = 77;
  WRONG(pagedkv_get_statistics(NULL, &statistics));
  WRONG(pagedkv_get_statistics(cache, NULL));
  OK(pagedkv_get_statistics(cache, &statistics));
  CHECK(statistics.steals == 77 && statistics.struct_size == offsetof(pagedkv_statistics, steals));
  CHECK(statistics.blocks_in_use == 0 && statistics.num_sequences == 0 && statistics.hit_blocks == 2);
  CHECK(statistics.blocks_free + statistics.blocks_evictable == 8 && statistics.blocks_evictable == 2);
  CHECK(statistics.prompts == 2 && statistics.hit_tokens == 32);
  WRONG(pagedkv_get_memory(NULL, &memory));
  WRONG(pagedkv_get_memory(cache, NULL));
  OK(pagedkv_get_memory(cache, &memory));
  CHECK((memory.payload > 0) == (build.has_memory != 0) && memory.pool > 0 && memory.index > 0 && memory.sequences > 0);

  OK(pagedkv_tracker_create(cache, NULL, &tracker));
  WRONG(pagedkv_metrics_text(NULL, tracker, &label, 1, NULL, 0, &needed));
  WRONG(pagedkv_metrics_text(cache, tracker, NULL, 1, NULL, 0, &needed));
  WRONG(pagedkv_metrics_text(cache, tracker, &label, 1, NULL, 1, &needed));
  WRONG(pagedkv_metrics_text(cache, tracker, &label, 1, NULL, 0, NULL));
  WRONG(pagedkv_metrics_text(cache, tracker, bad_labels, 2, NULL, 0, &needed));
  OK(pagedkv_metrics_text(cache, tracker, twins, 2, NULL, 0, &needed));
  WRONG(pagedkv_metrics_text(cache, tracker, twins, 3, NULL, 0, &needed));
  for (i = 0; i < sizeof of_metrics / sizeof of_metrics[0]; ++i) {
    WRONG(pagedkv_metrics_text(cache, tracker, &of_metrics[i], 1, NULL, 0, &needed));
  }
  OK(pagedkv_metrics_text(cache, tracker, &label, 1, NULL, 0, &needed));
  text = malloc(needed);
  CHECK(text != NULL);
  WRONG(pagedkv_metrics_text(cache, tracker, &label, 1, text, needed - 1, &num_bytes));
  OK(pagedkv_last_error(&error));
  CHECK(error.limit == (int64_t)needed && num_bytes == 0);
  OK(pagedkv_metrics_text(cache, tracker, &label, 1, text, needed, &num_bytes));
  CHECK(num_bytes == needed && strlen(text) + 1 == needed);
  CHECK(strstr(text, "pagedkv_hit_blocks_total{model=\"a \\\"small\\\" one\"} 2\n") != NULL);
  CHECK(strstr(text, "pagedkv_request_records{") != NULL);
  CHECK((strstr(text, "tier=\"host\"") != NULL) == (build.num_tiers > 0));
  OK(pagedkv_metrics_text(cache, NULL, NULL, 0, text, needed, &num_bytes));
  CHECK(num_bytes < needed && strstr(text, "pagedkv_request_records") == NULL);
  free(text);
  pagedkv_tracker_destroy(tracker);
  WRONG(pagedkv_check_invariants(NULL, NULL, 0, &needed));
  WRONG(pagedkv_check_invariants(cache, NULL, 1, &needed));
  WRONG(pagedkv_check_invariants(cache, NULL, 0, NULL));
  destroy_checked(cache);
}

int main(int argc, char** argv) {
  int32_t i;
  for (i = 0; i < max_tokens; ++i) {
    counting[i] = i;
  }
  folder = argv[1];
  test_errors_and_build(argc, argv);
  test_streams();
  test_creation();
  test_sequences();
  test_batches();
  test_slots_and_tables();
  test_prefixes();
  test_steps_and_blocks();
  test_kv();
  test_attention();
  test_groups();
  test_tiers();
  test_sessions();
  test_requests();
  test_events();
  test_numbers();
  pagedkv_stream_destroy(stream);
  return 0;
}
