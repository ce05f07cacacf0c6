// The functions of pagedkv/c/pagedkv.h, compiled by the program that uses them.

#include <pagedkv/c/pagedkv.h>

#include <pagedkv/pagedkv.hpp>

#if defined(PAGEDKV_C_HEADER)
  #include PAGEDKV_C_HEADER
#endif

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#if !defined(PAGEDKV_C_CACHE)
  #define PAGEDKV_C_CACHE pagedkv::kv_cache<pagedkv::float16, pagedkv::rw_lock>
#endif

struct pagedkv_cache {
  std::unique_ptr<PAGEDKV_C_CACHE> cache;
};

namespace {

using namespace pagedkv;

static_assert(std::is_same_v<token, std::int32_t>);

thread_local char last_message[256] = "";
thread_local pagedkv_error last_error = {sizeof(pagedkv_error), PAGEDKV_OK, 0, error::no_limit, 0};

[[nodiscard]] int code_of(error_code code) noexcept {
  switch (code) {
    case error_code::invalid_argument: return PAGEDKV_INVALID_ARGUMENT;
    case error_code::size_overflow: return PAGEDKV_SIZE_OVERFLOW;
    case error_code::out_of_memory: return PAGEDKV_OUT_OF_MEMORY;
    case error_code::capacity_exhausted: return PAGEDKV_CAPACITY_EXHAUSTED;
    case error_code::never_fits: return PAGEDKV_NEVER_FITS;
    case error_code::unknown_sequence: return PAGEDKV_UNKNOWN_SEQUENCE;
    case error_code::sequence_busy: return PAGEDKV_SEQUENCE_BUSY;
    case error_code::unknown_step: return PAGEDKV_UNKNOWN_STEP;
    case error_code::in_use: return PAGEDKV_IN_USE;
    case error_code::limit_reached: return PAGEDKV_LIMIT_REACHED;
    case error_code::backend_failure: return PAGEDKV_BACKEND_FAILURE;
    default: return PAGEDKV_OTHER_ERROR;
  }
}

[[nodiscard]] int fail(const error& reason) noexcept {
  const auto code = code_of(reason.code);
  last_error = {sizeof(pagedkv_error), code, reason.value, reason.limit, static_cast<pagedkv_step>(reason.step)};
  const auto compose = [&] {
    std::snprintf(last_message, sizeof(last_message), "%s", reason.message().c_str());
    return true;
  };
  if (!detail::with_memory(compose, false)) {
    std::snprintf(last_message, sizeof(last_message), "%s", describe(reason.code));
  }
  return code;
}

/// The code of an outcome whose value, if there is one, goes to `use`.
template <class T, class Use>
[[nodiscard]] int finish(const result<T>& outcome, Use use) noexcept {
  if (!outcome) {
    return fail(outcome.error());
  }
  use(*outcome);
  return PAGEDKV_OK;
}

[[nodiscard]] int finish(const result<void>& outcome) noexcept {
  return outcome ? int{PAGEDKV_OK} : fail(outcome.error());
}

/// Fills the part of a structure that its caller knows.
template <class Structure>
void fill(Structure* to, Structure from) noexcept {
  from.struct_size = std::min(to->struct_size, sizeof(Structure));
  std::memcpy(to, &from, from.struct_size);
}

[[nodiscard]] sequence_id id_of(pagedkv_sequence sequence) noexcept { return static_cast<sequence_id>(sequence); }

[[nodiscard]] std::span<const token> tokens_of(const std::int32_t* tokens, std::size_t count) noexcept {
  return {tokens, count};
}

}  // namespace

const char* pagedkv_last_message(void) { return last_message; }

void pagedkv_last_error(pagedkv_error* error) { fill(error, last_error); }

void pagedkv_config_init(pagedkv_config* config) {
  const auto defaults = cache_config{};
  *config = {sizeof(pagedkv_config), defaults.block_size, defaults.num_blocks,    defaults.num_layers,
             defaults.num_kv_heads,  defaults.head_dim,   defaults.max_sequences, defaults.hash_seed};
}

int pagedkv_create(const pagedkv_config* config, pagedkv_cache** cache) {
  return pagedkv_create_with_scales(config, nullptr, cache);
}

int pagedkv_create_with_scales(const pagedkv_config* config, const float* scales, pagedkv_cache** cache) {
  if (config->struct_size < sizeof(pagedkv_config)) {
    return fail({error_code::invalid_argument, "pagedkv_config.struct_size",
                 static_cast<std::int64_t>(config->struct_size), static_cast<std::int64_t>(sizeof(pagedkv_config))});
  }
  auto wanted = cache_config{};
  wanted.block_size = config->block_size;
  wanted.num_blocks = config->num_blocks;
  wanted.num_layers = config->num_layers;
  wanted.num_kv_heads = config->num_kv_heads;
  wanted.head_dim = config->head_dim;
  wanted.max_sequences = config->max_sequences;
  wanted.hash_seed = config->hash_seed;
  wanted.scales = scales;
  auto made = PAGEDKV_C_CACHE::create(wanted);
  if (!made) {
    return fail(made.error());
  }
  auto* const created = new (std::nothrow) pagedkv_cache{std::move(*made)};
  if (created == nullptr) {
    return fail({error_code::out_of_memory, "caches", 1});
  }
  *cache = created;
  return PAGEDKV_OK;
}

void pagedkv_destroy(pagedkv_cache* cache) { delete cache; }

int pagedkv_create_sequence(pagedkv_cache* cache, const int32_t* tokens, size_t num_tokens, uint64_t salt,
                            pagedkv_sequence* sequence, int64_t* num_cached_tokens) {
  auto options = sequence_options{};
  options.salt = static_cast<pagedkv::salt>(salt);
  return finish(cache->cache->create_sequence(tokens_of(tokens, num_tokens), options), [&](const admission& made) {
    *sequence = static_cast<pagedkv_sequence>(made.id);
    *num_cached_tokens = made.num_cached_tokens;
  });
}

int pagedkv_append(pagedkv_cache* cache, pagedkv_sequence sequence, const int32_t* tokens, size_t num_tokens) {
  return finish(cache->cache->append(id_of(sequence), tokens_of(tokens, num_tokens)));
}

int pagedkv_commit(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t num_tokens) {
  return finish(cache->cache->commit(id_of(sequence), num_tokens));
}

int pagedkv_fork(pagedkv_cache* cache, pagedkv_sequence sequence, pagedkv_sequence* fork) {
  return finish(cache->cache->fork(id_of(sequence)),
                [&](sequence_id made) { *fork = static_cast<pagedkv_sequence>(made); });
}

int pagedkv_truncate(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t num_tokens) {
  return finish(cache->cache->truncate(id_of(sequence), num_tokens));
}

int pagedkv_release(pagedkv_cache* cache, pagedkv_sequence sequence) {
  return finish(cache->cache->release(id_of(sequence)));
}

int pagedkv_describe(pagedkv_cache* cache, pagedkv_sequence sequence, pagedkv_sequence_info* info) {
  return finish(cache->cache->describe(id_of(sequence)), [&](const sequence_info& found) {
    fill(info, {0, found.num_tokens, found.num_computed_tokens, found.num_cached_tokens, found.num_blocks});
  });
}

int pagedkv_slot_mapping(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t first_token, int64_t* slots,
                         size_t num_slots) {
  return finish(cache->cache->slot_mapping(id_of(sequence), first_token, {reinterpret_cast<slot*>(slots), num_slots}));
}

int pagedkv_block_table(pagedkv_cache* cache, pagedkv_sequence sequence, int32_t* blocks, size_t room,
                        size_t* num_blocks) {
  return finish(cache->cache->block_table(id_of(sequence), {reinterpret_cast<block_id*>(blocks), room}),
                [&](std::size_t size) { *num_blocks = size; });
}

int64_t pagedkv_find_prefix(pagedkv_cache* cache, const int32_t* tokens, size_t num_tokens, uint64_t salt) {
  return cache->cache->find_prefix(tokens_of(tokens, num_tokens), static_cast<pagedkv::salt>(salt));
}

int pagedkv_begin_step(pagedkv_cache* cache, const pagedkv_sequence* sequences, size_t num_sequences,
                       pagedkv_step* step) {
  const auto begun = sequences == nullptr
                         ? cache->cache->begin_step()
                         : cache->cache->begin_step({reinterpret_cast<const sequence_id*>(sequences), num_sequences});
  return finish(begun, [&](step_id id) { *step = static_cast<pagedkv_step>(id); });
}

int pagedkv_retire_step(pagedkv_cache* cache, pagedkv_step step) {
  return finish(cache->cache->retire_step(static_cast<step_id>(step)));
}

void pagedkv_get_storage(pagedkv_cache* cache, pagedkv_storage* storage) {
  const auto& view = cache->cache->view();
  fill(storage, {0, view.base, view.block_stride, view.layer_stride, view.value_offset, view.token_stride,
                 view.head_stride, view.key_scale_offset, view.value_scale_offset, view.scale_token_stride,
                 view.scale_head_stride});
}

void pagedkv_get_statistics(pagedkv_cache* cache, pagedkv_statistics* statistics) {
  const auto taken = cache->cache->statistics();
  fill(statistics, {0, taken.blocks.free, taken.blocks.in_use, taken.blocks.evictable, taken.blocks.retiring,
                    taken.num_sequences, taken.hit_blocks, taken.evictions});
}
