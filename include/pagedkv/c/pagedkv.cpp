// The functions of pagedkv/c/pagedkv.h, which has the macros that choose the cache. Its user compiles this file.

#include <pagedkv/c/pagedkv.h>

#include <pagedkv/detail/deadline.hpp>
#include <pagedkv/metrics/prometheus.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/locking/parts/mutexes.hpp>
#include <pagedkv/requests/metrics.hpp>
#include <pagedkv/tier/hand_over.hpp>
#include <pagedkv/tier/session_file.hpp>
#include <pagedkv/tier/tier_config.hpp>
#include <pagedkv/tier/tier_statistics.hpp>

#if !defined(PAGEDKV_C_ELEMENT)
  #define PAGEDKV_C_ELEMENT float16
#endif
#if !defined(PAGEDKV_C_LOCKING)
  #define PAGEDKV_C_LOCKING rw_lock
#endif
#if !defined(PAGEDKV_C_EVICTION)
  #define PAGEDKV_C_EVICTION lru
#endif
#if !defined(PAGEDKV_C_BACKEND)
  #define PAGEDKV_C_BACKEND host_backend
#endif
#if !defined(PAGEDKV_C_PREEMPTION)
  #define PAGEDKV_C_PREEMPTION recompute
#endif
#if !defined(PAGEDKV_C_EVENTS)
  #define PAGEDKV_C_EVENTS 1
#endif
#if !defined(PAGEDKV_C_ATTENTION)
  #define PAGEDKV_C_ATTENTION 1
#endif

// The library's policies that `pagedkv.hpp` leaves out have headers of their names, in which no spaces may come; others
// come with PAGEDKV_C_HEADER.
// clang-format off
#define PAGEDKV_C_QUOTE(...) #__VA_ARGS__
#define PAGEDKV_C_QUOTED(...) PAGEDKV_C_QUOTE(__VA_ARGS__)
#if __has_include(PAGEDKV_C_QUOTED(pagedkv/policy/locking/PAGEDKV_C_LOCKING.hpp))
  #include PAGEDKV_C_QUOTED(pagedkv/policy/locking/PAGEDKV_C_LOCKING.hpp)
#endif
#if __has_include(PAGEDKV_C_QUOTED(pagedkv/policy/eviction/PAGEDKV_C_EVICTION.hpp))
  #include PAGEDKV_C_QUOTED(pagedkv/policy/eviction/PAGEDKV_C_EVICTION.hpp)
#endif
#if __has_include(PAGEDKV_C_QUOTED(pagedkv/backend/PAGEDKV_C_BACKEND.hpp))
  #include PAGEDKV_C_QUOTED(pagedkv/backend/PAGEDKV_C_BACKEND.hpp)
#endif
// clang-format on
#if PAGEDKV_C_HOST_TIER || PAGEDKV_C_FILE_TIER || PAGEDKV_C_REMOTE_TIER
  #include <pagedkv/tier/tiered_cache.hpp>
#endif
#if PAGEDKV_C_FILE_TIER
  #include <pagedkv/tier/file_tier.hpp>
#endif
#if PAGEDKV_C_REMOTE_TIER
  #include <pagedkv/tier/redis_client.hpp>
  #include <pagedkv/tier/remote_tier.hpp>
#endif
#if PAGEDKV_C_ATTENTION
  #include <pagedkv/host/attend.hpp>
#endif
#if defined(PAGEDKV_C_HEADER)
  #include PAGEDKV_C_HEADER
#endif
#include <pagedkv/host/thread_pool.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using namespace pagedkv;

// The kind of cache.

#if PAGEDKV_C_EVENTS
/// The policies have a namespace of their own, so that calls inside the cache do not find the functions below.
namespace policy {

struct event_function {
  static constexpr auto kinds = all_event_kinds;

  void emit(const cache_event& event) noexcept;

  decltype(pagedkv_config::on_event) function = nullptr;
  void* context = nullptr;
  std::uint32_t wanted = 0;
};

}  // namespace policy
#endif

/// Host memory that a backend reaches.
template <class Backend>
struct host_memory_of {
  using type = host_allocator;
};
template <class Backend>
  requires requires { typename Backend::host_memory; }
struct host_memory_of<Backend> {
  using type = typename Backend::host_memory;
};
using host_memory = host_memory_of<PAGEDKV_C_BACKEND>::type;

using cache_type = kv_cache<
#if PAGEDKV_C_GROUPS
    layer_groups,
#endif
#if PAGEDKV_C_HOST_TIER || PAGEDKV_C_FILE_TIER || PAGEDKV_C_REMOTE_TIER
    host_tier<host_memory>,
#endif
#if PAGEDKV_C_FILE_TIER
    file_tier,
#endif
#if PAGEDKV_C_REMOTE_TIER
    remote_tier<redis_client>,
#endif
#if PAGEDKV_C_EVENTS
    policy::event_function,
#endif
#if defined(PAGEDKV_C_POLICIES)
    PAGEDKV_C_POLICIES,
#endif
    PAGEDKV_C_ELEMENT, PAGEDKV_C_LOCKING, PAGEDKV_C_EVICTION, PAGEDKV_C_BACKEND>;
using tracker_type = request_tracker<cache_type, PAGEDKV_C_PREEMPTION>;
using backend_type = cache_type::backend_type;
using element_type = cache_type::element_type;
using stream_type = cache_type::stream_type;

constexpr auto is_host = std::is_same_v<backend_type, host_backend>;
constexpr auto lists_copies = !uses_storage<backend_type>;
constexpr auto layers_differ = cache_type::layers_differ;
constexpr auto has_memory = cache_type::has_memory;
constexpr auto swaps = swaps_blocks<backend_type>;
constexpr bool attends = is_host && has_memory && PAGEDKV_C_ATTENTION;

template <class Cache>
constexpr auto num_tiers_of = std::size_t{0};
template <class Cache>
  requires requires { Cache::num_tiers; }
constexpr auto num_tiers_of<Cache> = Cache::num_tiers;
constexpr auto has_tiers = num_tiers_of<cache_type> > 0;

/// Sentences for PAGEDKV_UNSUPPORTED.
constexpr auto needs_groups = "layers do not differ; compile pagedkv.cpp with PAGEDKV_C_GROUPS";
constexpr auto needs_one_group = "groups with a window release their blocks by themselves; give them a window";
constexpr auto needs_memory = "the cache has no memory for K and V; they are in the engine's";
constexpr auto needs_tiers = "the cache has no tiers; compile pagedkv.cpp with PAGEDKV_C_HOST_TIER";
constexpr auto needs_streams = "streams are the runtime's; cast one to pagedkv_stream*";
constexpr auto needs_list = "only copy_list lists the blocks to copy";
constexpr auto needs_events = "events were left out; compile pagedkv.cpp with PAGEDKV_C_EVENTS=1";
constexpr auto needs_attention =
    "attention is for host_backend with memory of the cache's; compile pagedkv.cpp with PAGEDKV_C_ATTENTION=1";

}  // namespace

struct pagedkv_cache {
  std::unique_ptr<cache_type> cache;
  std::array<pagedkv_group, group_list::max_size> groups;
};

struct pagedkv_tracker {
  tracker_type tracker;
};

struct pagedkv_batch {
  std::unique_ptr<padded_batch> padded;
  std::unique_ptr<compressed_batch> compressed;
};

/// The stream of the backend: one of the two members.
struct pagedkv_stream {
  std::unique_ptr<host::thread_pool> threads;
  std::vector<block_pair> copies;
};

namespace {

static_assert(std::is_same_v<token, std::int32_t>);
static_assert(sizeof(pagedkv_key) == sizeof(prefix_key) && offsetof(pagedkv_key, value) == offsetof(prefix_key, value));
static_assert(sizeof(pagedkv_block_pair) == sizeof(block_pair));
static_assert(static_cast<int>(listed_blocks::of_rows) == PAGEDKV_LISTS_OF_ROWS &&
              static_cast<int>(listed_blocks::of_heads) == PAGEDKV_LISTS_OF_HEADS);
static_assert(sizeof(pagedkv_new_block) == sizeof(new_block) &&
              offsetof(pagedkv_new_block, group) == offsetof(new_block, group));
static_assert(PAGEDKV_EVENT_ENDED == static_cast<int>(event_kind::ended));
static_assert(PAGEDKV_STATE == static_cast<int>(group_kind::state));
static_assert(PAGEDKV_WRITE_HITS == static_cast<int>(write_policy::through_hits));
static_assert(PAGEDKV_REQUEST_WAITING == static_cast<int>(request_state::waiting));

/// Structures with a padding at their end could not grow: what an older program has there is not the new field.
template <class... Structures>
constexpr bool can_grow = (std::has_unique_object_representations_v<Structures> && ...);
static_assert(can_grow<pagedkv_error, pagedkv_build, pagedkv_event, pagedkv_tiers, pagedkv_config, pagedkv_group_info>);
static_assert(can_grow<pagedkv_sequence_options, pagedkv_admission, pagedkv_release_hint, pagedkv_sequence_info>);
static_assert(can_grow<pagedkv_batch_buffers, pagedkv_batch_outcome, pagedkv_batch_view, pagedkv_release_gain>);
static_assert(can_grow<pagedkv_storage, pagedkv_load_progress, pagedkv_tier_statistics, pagedkv_session_options>);
static_assert(can_grow<pagedkv_tracker_config, pagedkv_submission, pagedkv_request_info, pagedkv_tracker_statistics>);
static_assert(can_grow<pagedkv_statistics, pagedkv_memory>);

// Errors.

thread_local char last_message[256] = "";
thread_local pagedkv_error last_error = {sizeof(pagedkv_error), PAGEDKV_OK, 0, error::no_limit, 0, ""};
thread_local std::vector<block_pair> last_moves;
thread_local std::vector<request_id> last_preempted;

struct code_pair {
  error_code code;
  int number;
};
constexpr auto codes = std::array{
    code_pair{error_code::invalid_argument, PAGEDKV_INVALID_ARGUMENT},
    code_pair{error_code::size_overflow, PAGEDKV_SIZE_OVERFLOW},
    code_pair{error_code::out_of_memory, PAGEDKV_OUT_OF_MEMORY},
    code_pair{error_code::capacity_exhausted, PAGEDKV_CAPACITY_EXHAUSTED},
    code_pair{error_code::never_fits, PAGEDKV_NEVER_FITS},
    code_pair{error_code::unknown_sequence, PAGEDKV_UNKNOWN_SEQUENCE},
    code_pair{error_code::sequence_busy, PAGEDKV_SEQUENCE_BUSY},
    code_pair{error_code::unknown_pin, PAGEDKV_UNKNOWN_PIN},
    code_pair{error_code::unknown_step, PAGEDKV_UNKNOWN_STEP},
    code_pair{error_code::unknown_request, PAGEDKV_UNKNOWN_REQUEST},
    code_pair{error_code::already_ended, PAGEDKV_ALREADY_ENDED},
    code_pair{error_code::preempted, PAGEDKV_PREEMPTED},
    code_pair{error_code::not_preempted, PAGEDKV_NOT_PREEMPTED},
    code_pair{error_code::in_use, PAGEDKV_IN_USE},
    code_pair{error_code::limit_reached, PAGEDKV_LIMIT_REACHED},
    code_pair{error_code::backend_failure, PAGEDKV_BACKEND_FAILURE},
};
static_assert(codes.size() == static_cast<std::size_t>(error_code::backend_failure) + 1, "the last code has a number");

[[nodiscard]] int number_of(error_code code) noexcept { return codes[static_cast<std::size_t>(code)].number; }

[[nodiscard]] int fail(const error& reason) noexcept {
  const auto number = number_of(reason.code);
  last_error = {sizeof(pagedkv_error), number, reason.value, reason.limit, static_cast<pagedkv_step>(reason.step),
                reason.subject};
  const auto compose = [&] {
    std::snprintf(last_message, sizeof(last_message), "%s", reason.message().c_str());
    return true;
  };
  if (!detail::with_memory(compose, false)) {
    std::snprintf(last_message, sizeof(last_message), "%s", describe(reason.code));
  }
  return number;
}

/// A refusal of this interface's own.
[[nodiscard]] int refuse(int number, const char* subject, const char* problem) noexcept {
  last_error = {sizeof(pagedkv_error), number, 0, error::no_limit, 0, subject};
  std::snprintf(last_message, sizeof(last_message), "%s: %s%s",
                number == PAGEDKV_UNSUPPORTED ? "unsupported" : "invalid argument", subject, problem);
  return number;
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
/// A number, or an id as a number.
template <class T, class To>
[[nodiscard]] int give(To* to, const T& value) noexcept {
  *to = static_cast<To>(value);
  return PAGEDKV_OK;
}
template <class T, class To>
[[nodiscard]] int finish(const result<T>& outcome, To* to) noexcept {
  return outcome ? give(to, *outcome) : fail(outcome.error());
}

// Arguments.

struct argument {
  const char* name;
  const char* problem;  // null if there is none
};

template <class T>
concept sized_structure = requires(const T& structure) { structure.struct_size; };

[[nodiscard]] argument pointer(const char* name, const void* given) noexcept {
  return {name, given == nullptr ? " is NULL" : nullptr};
}
[[nodiscard]] argument array(const char* name, const void* given, std::size_t size) noexcept {
  return {name, given == nullptr && size > 0 ? " is NULL" : nullptr};
}
template <sized_structure Structure>
[[nodiscard]] argument output(const char* name, const Structure* given) noexcept {
  if (given == nullptr) {
    return pointer(name, given);
  }
  return {name, given->struct_size < sizeof(std::size_t) ? " has no struct_size" : nullptr};
}
template <sized_structure Structure>
[[nodiscard]] argument optional_output(const char* name, const Structure* given) noexcept {
  return given == nullptr ? argument{name, nullptr} : output(name, given);
}
template <sized_structure Structure>
[[nodiscard]] argument input(const char* name, const Structure* given) noexcept {
  if (const auto checked = output(name, given); checked.problem != nullptr) {
    return checked;
  }
  return {name, given->struct_size > sizeof(Structure) ? " is longer than this library's" : nullptr};
}
template <sized_structure Structure>
[[nodiscard]] argument optional_input(const char* name, const Structure* given) noexcept {
  return given == nullptr ? argument{name, nullptr} : input(name, given);
}
[[nodiscard]] bool is_whole(const pagedkv_run& run) noexcept {
  return (run.tokens != nullptr || run.num_tokens == 0) && (run.keys != nullptr || run.num_keys == 0) &&
         (run.hashes != nullptr || run.num_hashes == 0);
}
[[nodiscard]] argument whole_run(const char* name, const pagedkv_run* given) noexcept {
  if (given == nullptr) {
    return pointer(name, given);
  }
  return {name, is_whole(*given) ? nullptr : " has an array that is NULL"};
}
[[nodiscard]] argument optional_run(const char* name, const pagedkv_run* given) noexcept {
  return given == nullptr ? argument{name, nullptr} : whole_run(name, given);
}
[[nodiscard]] argument copies(const pagedkv_stream* given) noexcept {
  return {"stream", lists_copies && given == nullptr ? " is NULL, and lists the blocks to copy" : nullptr};
}
[[nodiscard]] argument rows(const char* name, const pagedkv_rows& given) noexcept {
  if (given.type < PAGEDKV_FLOAT32 || given.type > PAGEDKV_BFLOAT16) {
    return {name, " has no type of numbers"};
  }
  return {name, given.data == nullptr && given.num_tokens > 0 ? " has no data" : nullptr};
}
[[nodiscard]] argument optional_rows(const char* name, const pagedkv_rows* given) noexcept {
  return given == nullptr ? argument{name, nullptr} : rows(name, *given);
}

template <class Operation>
[[nodiscard]] int call(std::initializer_list<argument> arguments, Operation operation) noexcept {
  for (const auto& each : arguments) {
    if (each.problem != nullptr) {
      return refuse(PAGEDKV_INVALID_ARGUMENT, each.name, each.problem);
    }
  }
  return operation();
}

/// Calls `operation(cache)`, a template that is compiled only if this kind of cache supports it.
template <bool Supported = true, class Operation>
[[nodiscard]] int with_cache(pagedkv_cache* cache, std::initializer_list<argument> arguments, Operation operation,
                             [[maybe_unused]] const char* needed = "") noexcept {
  if constexpr (!Supported) {
    return refuse(PAGEDKV_UNSUPPORTED, needed, "");
  } else if (cache == nullptr) {
    return refuse(PAGEDKV_INVALID_ARGUMENT, "cache", " is NULL");
  } else {
    return call(arguments, [&] { return operation(*cache->cache); });
  }
}

template <class Operation>
[[nodiscard]] int with_tracker(pagedkv_tracker* tracker, std::initializer_list<argument> arguments,
                               Operation operation) noexcept {
  if (tracker == nullptr) {
    return refuse(PAGEDKV_INVALID_ARGUMENT, "tracker", " is NULL");
  }
  return call(arguments, [&] { return operation(tracker->tracker); });
}

// Structures.

/// Fills the part of a structure that its caller knows.
template <sized_structure Structure>
int fill(Structure* to, Structure from) noexcept {
  from.struct_size = std::min(to->struct_size, sizeof(Structure));
  std::memcpy(to, &from, from.struct_size);
  return PAGEDKV_OK;
}

/// A structure of the caller's; the defaults are the rest of it.
template <sized_structure Structure>
[[nodiscard]] Structure read(const Structure* from, Structure defaults) noexcept {
  if (from != nullptr) {
    std::memcpy(&defaults, from, from->struct_size);
  }
  return defaults;
}

[[nodiscard]] sequence_id id_of(pagedkv_sequence sequence) noexcept { return static_cast<sequence_id>(sequence); }
[[nodiscard]] request_id request_of(pagedkv_request request) noexcept { return static_cast<request_id>(request); }
[[nodiscard]] salt salt_of(std::uint64_t given) noexcept { return static_cast<salt>(given); }

[[nodiscard]] std::span<const sequence_id> ids_of(const pagedkv_sequence* sequences, std::size_t count) noexcept {
  return {reinterpret_cast<const sequence_id*>(sequences), count};
}
[[nodiscard]] std::span<block_id> blocks_of(std::int32_t* blocks, std::size_t count) noexcept {
  return {reinterpret_cast<block_id*>(blocks), count};
}
[[nodiscard]] [[maybe_unused]] std::span<const slot> slots_of(const std::int64_t* slots, std::size_t count) noexcept {
  return {reinterpret_cast<const slot*>(slots), count};
}
[[nodiscard]] token_run run_of(const pagedkv_run& run) noexcept {
  return {std::span{run.tokens, run.num_tokens}, std::span{reinterpret_cast<const prefix_key*>(run.keys), run.num_keys},
          std::span{run.hashes, run.num_hashes}};
}
[[nodiscard]] token_run run_of(const pagedkv_run* run) noexcept { return run == nullptr ? token_run{} : run_of(*run); }

template <class Backend = backend_type>
[[nodiscard]] typename Backend::stream_type stream_of(pagedkv_stream* given) noexcept {
  if constexpr (is_host) {
    return given == nullptr ? typename Backend::stream_type{} : typename Backend::stream_type{*given->threads};
  } else if constexpr (lists_copies) {
    return given->copies;
  } else {
    return reinterpret_cast<typename Backend::stream_type>(given);
  }
}

// Fields that have the same name on both sides, in either direction.

template <class From, class To>
void copy_sizes(const From& from, To& to) noexcept {
  to.block_size = from.block_size;
  to.num_blocks = from.num_blocks;
  to.max_blocks = from.max_blocks;
  to.num_layers = from.num_layers;
  to.num_kv_heads = from.num_kv_heads;
  to.head_dim = from.head_dim;
  to.max_sequences = from.max_sequences;
  to.hash_seed = from.hash_seed;
  to.scales = from.scales;
}

template <class From, class To>
void copy_tier_settings(const From& from, To& to) noexcept {
  to.exclusive = from.exclusive != 0;
  to.prefill_tokens_per_second = from.prefill_tokens_per_second;
  to.known_records = from.known_records;
  to.ask_ahead = from.ask_ahead;
  to.queue_records = from.queue_records;
  to.threads = from.threads != 0;
}

template <class From, class To>
void copy_lengths(const From& from, To& to) noexcept {
  to.retention = from.retention;
  to.expected_return = from.expected_return;
  to.expected_tokens = from.expected_tokens;
  to.max_cached_tokens = from.max_cached_tokens;
  to.first_chunk = from.first_chunk;
  to.num_prompt_tokens = from.num_prompt_tokens;
  to.publish = from.publish != 0;
}

[[nodiscard]] pagedkv_config config_of(const cache_config& from,
                                       const std::array<pagedkv_group, group_list::max_size>& groups) noexcept {
  auto config = pagedkv_config{};
  config.struct_size = sizeof config;
  copy_sizes(from, config);
  config.event_kinds = all_event_kinds.bits;
  config.groups = from.groups.empty() ? nullptr : groups.data();
  config.num_groups = from.groups.size();
  return config;
}

/// Errors: `invalid_argument` for a kind of layers that there is not.
[[nodiscard]] result<cache_config> config_of(const pagedkv_config& from) noexcept {
  auto config = cache_config{};
  copy_sizes(from, config);
  auto groups = std::array<group_config, group_list::max_size>{};
  if (from.num_groups > groups.size()) {
    return error{error_code::invalid_argument, "number of cache_config.groups",
                 static_cast<std::int64_t>(from.num_groups), static_cast<std::int64_t>(groups.size())};
  }
  for (auto i = std::size_t{0}; i < from.num_groups; ++i) {
    const auto& group = from.groups[i];
    if (group.kind < PAGEDKV_FULL || group.kind > PAGEDKV_STATE) {
      return detail::bad_index("group_config.kind", group.kind, PAGEDKV_STATE + 1);
    }
    groups[i] = {static_cast<group_kind>(group.kind),
                 group.num_layers,
                 group.num_kv_heads,
                 group.key_dim,
                 group.value_dim,
                 group.window,
                 group.num_sinks,
                 group.state_bytes,
                 group.scales};
  }
  config.groups = group_list{std::span<const group_config>{groups}.first(from.num_groups)};
  return config;
}

[[nodiscard]] pagedkv_tiers tiers_of(const tier_config& from) noexcept {
  auto tiers = pagedkv_tiers{};
  tiers.struct_size = sizeof tiers;
  tiers.model = "";
  tiers.write = static_cast<std::int32_t>(from.write);
  tiers.hits_before_write = static_cast<std::int32_t>(from.hits_before_write);
  copy_tier_settings(from, tiers);
  tiers.remote_timeout = 1'000'000'000;
  return tiers;
}

[[nodiscard]] pagedkv_sequence_options options_of(const sequence_options& from) noexcept {
  auto options = pagedkv_sequence_options{};
  options.struct_size = sizeof options;
  options.salt = static_cast<std::uint64_t>(from.salt);
  copy_lengths(from, options);
  options.save_every = from.saving.every;
  options.save_at_branches = from.saving.at_branches;
  options.save_at_prompt_end = from.saving.at_prompt_end;
  options.save_at_end = from.saving.at_end;
  options.priority = from.priority;
  options.has_answer = from.answer.has_value();
  options.answer_priority = from.answer.value_or(block_retention{}).priority;
  options.answer_retention = from.answer.value_or(block_retention{}).duration;
  for (auto i = std::size_t{0}; i < from.ranges.size(); ++i) {
    const auto& range = from.ranges[i];
    options.ranges[i] = {range.first, range.last, range.retention.priority, range.retention.duration};
  }
  return options;
}

/// Errors: `invalid_argument` for priorities that their type does not hold; the cache checks the rest.
[[nodiscard]] result<sequence_options> options_of(const pagedkv_sequence_options* given) noexcept {
  const auto from = read(given, options_of(sequence_options{}));
  auto options = sequence_options{};
  constexpr auto highest = std::int64_t{100};
  auto wrong = std::optional<error>{};
  const auto priority_of = [&](const char* subject, std::int64_t priority) {
    if (priority < 0 || priority > highest) {
      wrong = error{error_code::invalid_argument, subject, priority, priority < 0 ? 0 : highest};
    }
    return static_cast<std::uint8_t>(priority);
  };
  options.salt = salt_of(from.salt);
  options.priority = priority_of("sequence_options.priority", from.priority);
  copy_lengths(from, options);
  options.saving = {from.save_at_branches != 0, from.save_at_prompt_end != 0, from.save_every, from.save_at_end != 0};
  for (auto i = std::size_t{0}; i < options.ranges.size(); ++i) {
    const auto& range = from.ranges[i];
    const auto priority = priority_of("range_retention.retention.priority", range.priority);
    options.ranges[i] = {range.first, range.last, {priority, range.retention}};
  }
  if (from.has_answer != 0) {
    options.answer =
        block_retention{priority_of("sequence_options.answer->priority", from.answer_priority), from.answer_retention};
  }
  return wrong ? result<sequence_options>{*wrong} : result<sequence_options>{options};
}

/// Calls `use(options)` with valid ones.
template <class Use>
[[nodiscard]] int with_options(const pagedkv_sequence_options* given, Use use) noexcept {
  const auto options = options_of(given);
  return options ? use(*options) : fail(options.error());
}

[[nodiscard]] release_hint hint_of(const pagedkv_release_hint* given) noexcept {
  const auto from = read(given, pagedkv_release_hint{});
  return {from.session_ended != 0, from.branch_complete != 0, from.expected_return};
}

[[nodiscard]] pagedkv_admission admission_of(const admission& made) noexcept {
  return {0,
          static_cast<pagedkv_sequence>(made.id),
          made.num_cached_tokens,
          made.num_tokens,
          made.num_blocks,
          made.num_new_blocks,
          made.num_loading_tokens};
}

[[nodiscard]] pagedkv_pieces pieces_of(const piece_order& order) noexcept {
  return {order.piece, order.holds_tokens, order.head_stride, order.token_stride, order.dim_stride};
}

[[nodiscard]] [[maybe_unused]] pagedkv_storage storage_of(const block_storage_view& view) noexcept {
  auto storage = pagedkv_storage{};
  storage.base = view.base;
  storage.block_stride = view.block_stride;
  storage.layer_stride = view.layer_stride;
  storage.value_offset = view.value_offset;
  storage.token_stride = view.token_stride;
  storage.head_stride = view.head_stride;
  storage.value_token_stride = view.has_own_values() ? view.value_token_stride : view.token_stride;
  storage.value_head_stride = view.has_own_values() ? view.value_head_stride : view.head_stride;
  storage.key_scale_offset = view.key_scale_offset;
  storage.value_scale_offset = view.value_scale_offset;
  storage.scale_token_stride = view.scale_token_stride;
  storage.scale_head_stride = view.scale_head_stride;
  storage.num_blocks = view.num_blocks;
  storage.num_layers = view.num_layers;
  storage.block_size = view.block_size;
  storage.num_kv_heads = view.num_kv_heads;
  storage.head_dim = view.head_dim;
  storage.value_dim = view.dim_of_values();
  storage.static_scales = view.static_scales;
  storage.static_layer_stride = view.static_layer_stride;
  storage.static_head_stride = view.static_head_stride;
  storage.static_value_offset = view.static_value_offset;
  storage.element_bytes = static_cast<std::int32_t>(sizeof(element_type::storage));
  storage.key_pieces = pieces_of(view.key_pieces);
  storage.value_pieces = pieces_of(view.value_pieces);
  return storage;
}

/// Errors: `invalid_argument` for a group that there is not, or of the other kind.
template <class Cache>
[[nodiscard]] result<void> check_group(const Cache& cache, std::size_t group, bool holds_tokens = true) noexcept {
  const auto& groups = cache.config().groups;
  const auto num_groups = layers_differ && !groups.empty() ? groups.size() : 1;
  if (group >= num_groups) {
    return detail::bad_index("index of a group", static_cast<std::int64_t>(group),
                             static_cast<std::int64_t>(num_groups));
  }
  if ((!layers_differ || groups.empty() || groups[group].holds_tokens()) != holds_tokens) {
    return error{error_code::invalid_argument,
                 holds_tokens ? "index of a group, which holds no tokens," : "index of a group, which has no state,",
                 static_cast<std::int64_t>(group)};
  }
  return {};
}

/// Writes a text and its end, if there is room.
[[nodiscard]] int write_text(const std::string& from, char* text, std::size_t room, std::size_t* num_bytes) noexcept {
  const auto needed = from.size() + 1;
  if (text == nullptr && room == 0) {
    return give(num_bytes, needed);
  }
  if (room < needed) {
    return fail({error_code::invalid_argument, "room for a text", static_cast<std::int64_t>(room),
                 static_cast<std::int64_t>(needed)});
  }
  std::memcpy(text, from.c_str(), needed);
  return give(num_bytes, needed);
}

// Creation.

#if PAGEDKV_C_EVENTS
void policy::event_function::emit(const cache_event& event) noexcept {
  if (function == nullptr || (wanted >> static_cast<unsigned>(event.kind) & 1) == 0) {
    return;
  }
  auto seen = pagedkv_event{};
  seen.struct_size = sizeof seen;
  seen.kind = static_cast<std::int32_t>(event.kind);
  seen.block = static_cast<std::int32_t>(event.block);
  seen.origin = static_cast<std::int32_t>(event.origin);
  seen.group = event.group;
  seen.group_kind = static_cast<std::int32_t>(event.layers);
  seen.hash = event.hash;
  seen.parent_hash = event.parent_hash;
  seen.salt = static_cast<std::uint64_t>(event.salt);
  seen.sequence = static_cast<pagedkv_sequence>(event.sequence);
  seen.source = static_cast<pagedkv_sequence>(event.source);
  seen.request = static_cast<pagedkv_request>(event.request);
  seen.step = static_cast<pagedkv_step>(event.step);
  seen.num_sequence_tokens = event.num_tokens;
  seen.num_blocks = event.num_blocks;
  seen.num_available = event.num_available;
  seen.tokens = event.tokens.data();
  seen.num_tokens = event.tokens.size();
  seen.keys = reinterpret_cast<const pagedkv_key*>(event.keys.data());
  seen.num_keys = event.keys.size();
  const auto ranks = held_ranks::of_another{};
  function(context, &seen);
}
#endif

template <class Events>
[[nodiscard]] Events events_of(const pagedkv_config& config) noexcept {
  if constexpr (PAGEDKV_C_EVENTS) {
    return {config.on_event, config.event_context, config.event_kinds};
  } else {
    return {};
  }
}

constexpr auto takes_device = std::is_constructible_v<backend_type, int> && !is_host && !lists_copies;

/// May throw `exception`.
template <class Allocator>
[[nodiscard]] Allocator allocator_of(const pagedkv_config& config) {
  if constexpr (std::is_constructible_v<Allocator, std::span<std::byte>>) {
    return Allocator{std::span{static_cast<std::byte*>(config.memory), config.memory_bytes}};
  } else if constexpr (takes_device && std::is_constructible_v<Allocator, int>) {
    return Allocator{static_cast<int>(config.device)};
  } else {
    return {};
  }
}
template <class Backend>
[[nodiscard]] Backend backend_of([[maybe_unused]] const pagedkv_config& config) {
  if constexpr (takes_device) {
    return Backend{static_cast<int>(config.device)};
  } else {
    return {};
  }
}

template <class Tier>
struct tier_maker;
#if PAGEDKV_C_FILE_TIER
template <>
struct tier_maker<file_tier> {
  static result<file_tier> make(const pagedkv_tiers& tiers, const record_format& format) {
    auto paths = std::vector<std::string>{};
    for (auto i = std::size_t{0}; i < tiers.num_file_paths; ++i) {
      if (tiers.file_paths == nullptr || tiers.file_paths[i] == nullptr) {
        return error{error_code::invalid_argument, "index of a path that is NULL", static_cast<std::int64_t>(i)};
      }
      paths.emplace_back(tiers.file_paths[i]);
    }
    return file_tier::create(paths, tiers.file_bytes, format);
  }
};
#endif
#if PAGEDKV_C_REMOTE_TIER
template <>
struct tier_maker<remote_tier<redis_client>> {
  static result<remote_tier<redis_client>> make(const pagedkv_tiers& tiers, const record_format& format) {
    if (tiers.remote_url == nullptr) {
      return error{error_code::invalid_argument, "characters of pagedkv_tiers.remote_url", 0, 1};
    }
    const auto config = parse_redis_url(tiers.remote_url);
    if (!config) {
      return config.error();
    }
    const auto timeout =
        std::chrono::ceil<std::chrono::milliseconds>(std::chrono::nanoseconds{tiers.remote_timeout});
    return remote_tier<redis_client>{redis_client{*config}, format, {.timeout = timeout}};
  }
};
#endif

/// Makes one tier after the other, up to the first that fails.
template <class... Tiers>
[[nodiscard]] result<std::tuple<Tiers...>> slower_tiers_of(const std::tuple<Tiers...>*, const pagedkv_tiers& tiers,
                                                           const record_format& format) {
  auto made = std::tuple<std::optional<Tiers>...>{};
  auto refused = std::optional<error>{};
  [[maybe_unused]] const auto make = [&]<class Tier>(std::optional<Tier>& tier) {
    auto one = tier_maker<Tier>::make(tiers, format);
    if (one) {
      tier.emplace(std::move(*one));
    } else {
      refused = one.error();
    }
    return one.has_value();
  };
  std::apply([&](auto&... each) { static_cast<void>((make(each) && ...)); }, made);
  if (refused) {
    return *refused;
  }
  return std::apply([](auto&... each) { return std::tuple<Tiers...>{std::move(*each)...}; }, made);
}

/// Errors: those of a cache whose blocks cannot be laid out, and so have no records.
template <class Layout>
[[nodiscard]] result<void> plan_records(const cache_config& wanted) noexcept {
  constexpr auto element = size_of_element<element_type>;
  if constexpr (!layers_differ) {
    const auto planned = plan_storage<Layout>(wanted, element);
    return planned ? result<void>{} : planned.error();
  } else {
    const auto plan = plan_memory(wanted.groups, element, wanted.block_size);
    if (!plan) {
      return plan.error();
    }
    for (auto g = std::size_t{0}; g < wanted.groups.size(); ++g) {
      if (wanted.groups[g].holds_tokens()) {
        const auto view =
            plan_view<Layout>(wanted.groups[g], plan->groups[g], element, plan->block_bytes, wanted.capacity());
        if (!view) {
          return view.error();
        }
      }
    }
    return {};
  }
}

/// May throw `exception` and `std::bad_alloc`.
template <class Cache>
[[nodiscard]] result<std::unique_ptr<Cache>> make_cache(const pagedkv_config& config, const cache_config& wanted) {
  auto memory = allocator_of<typename Cache::allocator_type>(config);
  auto backend = backend_of<typename Cache::backend_type>(config);
  auto events = events_of<typename Cache::events_type>(config);
  if constexpr (has_tiers) {
    const auto given = read(config.tiers, tiers_of(tier_config{}));
    if (given.write < PAGEDKV_WRITE_ON_EVICTION || given.write > PAGEDKV_WRITE_HITS) {
      return detail::bad_index("tier_config.write", given.write, PAGEDKV_WRITE_HITS + 1);
    }
    auto tiers = tier_config{};
    tiers.model = given.model == nullptr ? "" : given.model;
    tiers.write = static_cast<write_policy>(given.write);
    tiers.hits_before_write = static_cast<std::uint32_t>(std::max(given.hits_before_write, 0));
    copy_tier_settings(given, tiers);
    if (given.host_records < 1) {
      return error{error_code::invalid_argument, "host_tier.num_records", given.host_records, 1};
    }
    if (const auto valid = validate(tiers, layers_differ); !valid) {  // before there are files, too
      return valid.error();
    }
    if (const auto planned = plan_records<typename Cache::layout_type>(wanted); !planned) {
      return planned.error();
    }
    using slower = typename Cache::slower_tiers_type;
    auto made = slower_tiers_of(static_cast<const slower*>(nullptr), given, Cache::format_of(wanted, tiers.model));
    if (!made) {
      return made.error();
    }
    return Cache::create(wanted, tiers, {given.host_records, {}}, std::move(*made), std::move(memory),
                         std::move(backend), std::move(events));
  } else {
    return Cache::create(wanted, std::move(memory), std::move(backend), std::move(events));
  }
}

/// Whether all that the configuration asks for was compiled.
[[nodiscard]] int check_support(const pagedkv_config& config) noexcept {
  constexpr auto takes_memory = std::is_constructible_v<cache_type::allocator_type, std::span<std::byte>>;
  const auto faults = std::array{
      std::pair{!layers_differ && config.num_groups > 0, needs_groups},
      std::pair{!has_tiers && config.tiers != nullptr, needs_tiers},
      std::pair{!PAGEDKV_C_EVENTS && config.on_event != nullptr, needs_events},
      std::pair{!takes_memory && config.memory != nullptr,
                "only caller_memory takes memory; add it to PAGEDKV_C_POLICIES"},
      std::pair{!takes_device && config.device != 0, "only hip_backend has devices"},
  };
  for (const auto& [is_there, needed] : faults) {
    if (is_there) {
      return refuse(PAGEDKV_UNSUPPORTED, needed, "");
    }
  }
  return PAGEDKV_OK;
}

[[nodiscard]] int create(const pagedkv_config& config, pagedkv_cache** cache) noexcept {
  if (const auto code = check_support(config); code != PAGEDKV_OK) {
    return code;
  }
  const auto wanted = config_of(config);
  if (!wanted) {
    return fail(wanted.error());
  }
  if (const auto valid = validate(*wanted); !valid) {  // before there are files for records of this shape
    return fail(valid.error());
  }
  const auto exhausted = error{error_code::out_of_memory, "caches", 1};
  auto made = detail::with_errors([&] { return make_cache<cache_type>(config, *wanted); }, exhausted);
  if (!made) {
    return fail(made.error());
  }
  auto* const created = new (std::nothrow) pagedkv_cache{std::move(*made), {}};
  if (created == nullptr) {
    return fail(exhausted);
  }
  std::copy_n(config.groups, config.num_groups, created->groups.begin());
  return give(cache, created);
}

// Rows.

template <class Use>
[[nodiscard]] int with_type(std::int32_t type, Use use) noexcept {
  switch (type) {
    case PAGEDKV_FLOAT16: return use(float16{});
    case PAGEDKV_BFLOAT16: return use(bfloat16{});
    default: return use(float32{});
  }
}

template <class Type>
[[nodiscard]] token_rows<typename Type::storage> rows_of(const pagedkv_rows* from) noexcept {
  if (from == nullptr) {
    return {};
  }
  return {static_cast<typename Type::storage*>(from->data),
          from->token_stride,
          from->head_stride,
          from->num_tokens,
          from->num_heads,
          from->head_dim};
}

/// Calls `move(type, keys, values)`; `values` may be null.
template <class Move>
[[nodiscard]] int move_rows(const pagedkv_rows& keys, const pagedkv_rows* values, Move move) noexcept {
  if (values != nullptr && values->type != keys.type) {
    return refuse(PAGEDKV_INVALID_ARGUMENT, "values", " have another type than keys");
  }
  return with_type(keys.type, [&](auto type) {
    using rows_type = decltype(type);
    return finish(move(type, rows_of<rows_type>(&keys), rows_of<rows_type>(values)));
  });
}

[[nodiscard]] [[maybe_unused]] attention_batch batch_of(const pagedkv_attention& from) noexcept {
  auto batch = attention_batch{};
  const auto num_pointers = from.num_rows + 1;
  batch.indptr = {from.indptr, from.indptr == nullptr ? 0 : num_pointers};
  batch.indices = {reinterpret_cast<const block_id*>(from.indices), from.num_indices};
  batch.last_block_len = {from.last_block_len, from.num_rows};
  batch.query_indptr = {from.query_indptr, from.query_indptr == nullptr ? 0 : num_pointers};
  batch.tree_masks = {from.tree_masks, from.tree_masks == nullptr ? 0 : from.num_tree_masks};
  batch.shares_prefixes = from.shares_prefixes != 0;
  if (from.lists != PAGEDKV_LISTS_NONE) {
    batch.lists = {static_cast<listed_blocks>(from.lists),
                   {from.list_indptr, from.list_indptr == nullptr ? 0 : num_pointers},
                   {from.list_blocks, from.list_blocks == nullptr ? 0 : from.num_list_blocks}};
  }
  return batch;
}

template <class Cache>
[[nodiscard]] int attend(Cache& cache, const pagedkv_attention& from, const stream_type& stream) noexcept {
  if (const auto checked = check_group(cache, from.group); !checked) {
    return fail(checked.error());
  }
  if (from.lists < PAGEDKV_LISTS_NONE || from.lists > PAGEDKV_LISTS_OF_HEADS) {
    return fail(detail::bad_index("pagedkv_attention.lists", from.lists, PAGEDKV_LISTS_OF_HEADS + 1));
  }
  const auto options = attention_options{from.scale, from.soft_cap, from.window, from.alibi_slopes, from.sinks};
  return with_type(from.queries.type, [&](auto query_type) {
    return with_type(from.outputs.type, [&](auto output_type) {
      using input_type = decltype(query_type);
      using result_type = decltype(output_type);
      const auto queries = rows_of<input_type>(&from.queries);
      const auto outputs =
          attention_output<typename result_type::storage>{rows_of<result_type>(&from.outputs), from.log_sum_exp};
      return finish(cache.template attend<input_type, result_type>(from.layer, batch_of(from), queries, outputs,
                                                                   options, stream, from.group));
    });
  });
}

// Batches.

/// A batch, converted. Each thread keeps the memory of its latest.
struct converted_batch {
  std::vector<batch_entry> entries;
  std::vector<batch_failure> failures;
};
thread_local converted_batch converted;

/// Errors: `out_of_memory`.
[[nodiscard]] result<void> convert(std::span<const pagedkv_batch_entry> entries, std::size_t num_failures,
                                   converted_batch& to) noexcept {
  const auto copy = [&]() -> result<void> {
    to.entries.resize(entries.size());
    to.failures.resize(num_failures);
    std::ranges::transform(entries, to.entries.begin(), [](const pagedkv_batch_entry& from) {
      return batch_entry{id_of(from.sequence), run_of(from.run), from.num_computed_tokens, from.num_ahead};
    });
    return {};
  };
  return detail::with_memory(copy, error{error_code::out_of_memory, "entries of a batch", std::ssize(entries)});
}

/// Gives `append(entries, buffers)` what C gave; `report(outcome)` fills the outcome in.
template <class Append>
[[nodiscard]] int append_batch(std::span<const pagedkv_batch_entry> entries, const pagedkv_batch_buffers& out,
                               pagedkv_batch_outcome* outcome, Append&& append) noexcept {
  if (!std::ranges::all_of(entries, [](const auto& entry) { return is_whole(entry.run); })) {
    return refuse(PAGEDKV_INVALID_ARGUMENT, "run of an entry", " has an array that is NULL");
  }
  auto batch = std::exchange(converted, {});  // a function that hears of it may append to another cache
  if (const auto copied = convert(entries, std::min(out.room_for_failures, entries.size()), batch); !copied) {
    return fail(copied.error());
  }
  const auto buffers = batch_buffers{{reinterpret_cast<slot*>(out.slots), out.room_for_slots},
                                     batch.failures,
                                     {reinterpret_cast<new_block*>(out.new_blocks), out.room_for_new_blocks}};
  const auto code = append(batch.entries, buffers, [&](const batch_outcome& done) {
    for (auto i = std::size_t{0}; i < done.num_failures; ++i) {
      const auto& [entry, reason] = batch.failures[i];
      out.failures[i] = {
          entry,         number_of(reason.code), reason.value, reason.limit, static_cast<pagedkv_step>(reason.step),
          reason.subject};
    }
    fill(outcome, {0, done.num_slots, done.num_failures, done.num_new_blocks, done.num_groups});
  });
  converted = std::move(batch);
  return code;
}

/// Calls `append(buffers)` if they are there.
template <class Append>
[[nodiscard]] int with_buffers(const pagedkv_batch_buffers* buffers, Append&& append) noexcept {
  const auto out = read(buffers, pagedkv_batch_buffers{});
  return call({array("buffers.slots", out.slots, out.room_for_slots),
               array("buffers.failures", out.failures, out.room_for_failures),
               array("buffers.new_blocks", out.new_blocks, out.room_for_new_blocks)},
              [&] { return append(out); });
}

/// Makes a batch with `make(sizes)`. Errors: `invalid_argument` for sizes that an int32 does not hold.
template <class Batch>
[[nodiscard]] int make_batch(std::size_t max_rows, std::size_t room, const char* subject, pagedkv_batch** batch,
                             std::unique_ptr<Batch> pagedkv_batch::*kind) noexcept {
  constexpr auto most = static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max());
  if (max_rows > most || room > most) {
    return fail({error_code::invalid_argument, subject,
                 static_cast<std::int64_t>(std::min(std::max(max_rows, room), most + 1)),
                 static_cast<std::int64_t>(most)});
  }
  const auto make = [&]() -> result<std::unique_ptr<pagedkv_batch>> {
    auto made = std::make_unique<pagedkv_batch>();
    (*made).*kind = std::make_unique<Batch>(max_rows, room);
    return made;
  };
  auto made = detail::with_memory(make, error{error_code::out_of_memory, subject, static_cast<std::int64_t>(room)});
  return made ? give(batch, made->release()) : fail(made.error());
}

/// Moves of a resize or a compaction, which the thread keeps.
[[nodiscard]] int keep_moves(result<std::vector<block_pair>> moves) noexcept {
  if (!moves) {
    return fail(moves.error());
  }
  last_moves = std::move(*moves);
  return PAGEDKV_OK;
}

// Requests.

/// The requests that an operation preempted are the thread's until the next.
template <class T, class Use>
[[nodiscard]] int keep_preempted(tracker_result<T> outcome, Use use) noexcept {
  const auto code = outcome ? (use(outcome), int{PAGEDKV_OK}) : fail(outcome.error());
  last_preempted = std::move(outcome).preempted();
  return code;
}

[[nodiscard]] pagedkv_submission submission_of(const submission& made) noexcept {
  return {0,
          static_cast<pagedkv_request>(made.id),
          static_cast<pagedkv_sequence>(made.sequence),
          made.num_cached_tokens,
          made.num_tokens,
          made.num_blocks,
          made.num_new_blocks,
          made.num_loading_tokens};
}

[[nodiscard]] tracker_config tracker_config_of(const pagedkv_tracker_config* given) noexcept {
  const auto defaults = tracker_config{};
  const auto from = read(given, pagedkv_tracker_config{0, defaults.max_open, defaults.max_ended, defaults.max_age});
  return {from.max_open, from.max_ended, from.max_age};
}

// Numbers.

[[nodiscard]] bool is_label_name(const char* name) noexcept {
  const auto text = std::string_view{name == nullptr ? "" : name};
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; };
  return !text.empty() && is_letter(text[0]) && !text.starts_with("__") &&
         std::ranges::all_of(text, [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); });
}

/// Whether each has a name and a value, and its name neither another one nor a metric has: else Prometheus refuses all.
[[nodiscard]] bool are_labels(std::span<const pagedkv_label> given) noexcept {
  const auto is_of_metrics = [](std::string_view name) {
    const auto has_name = [&](const auto& row) { return row.label.name == name; };
    return name == "tier" || std::ranges::any_of(metrics_of<cache_statistics>, has_name) ||
           std::ranges::any_of(metrics_of<memory_profile>, has_name) ||
           std::ranges::any_of(metrics_of<tracker_statistics>, has_name);
  };
  return std::ranges::all_of(given, [&](const pagedkv_label& label) {
    return is_label_name(label.name) && label.value != nullptr && !is_of_metrics(label.name) &&
           std::ranges::none_of(given, [&](const pagedkv_label& other) {
             return &other < &label && std::string_view{other.name} == label.name;
           });
  });
}

/// May throw `std::bad_alloc`.
template <class Cache>
void append_tier_metrics(std::string& text, Cache& cache, const std::vector<metric_label>& labels) {
  if constexpr (has_tiers) {
    auto own = std::vector<std::vector<metric_label>>(Cache::num_tiers, labels);
    auto all = std::vector<labelled_statistics<tier_statistics>>{};
    for (auto number = std::size_t{0}; number < Cache::num_tiers; ++number) {
      own[number].push_back({"tier", Cache::tier_names[number]});
      all.push_back({own[number], cache.tier(number)});
    }
    append_prometheus(text, all);
  }
}

/// May throw `std::bad_alloc`.
[[nodiscard]] std::string metrics_text(cache_type& cache, const pagedkv_tracker* tracker,
                                       std::span<const pagedkv_label> given) {
  auto labels = std::vector<metric_label>{};
  for (const auto& label : given) {
    labels.push_back({label.name, label.value});
  }
  auto text = std::string{};
  append_prometheus(text, cache.statistics(), labels);
  append_prometheus(text, cache.memory(), labels);
  append_tier_metrics(text, cache, labels);
  if (tracker != nullptr) {
    append_prometheus(text, tracker->tracker.statistics(), labels);
  }
  return text;
}

/// Calls `compose`, which may throw `std::bad_alloc`, and writes its text.
template <class Compose>
[[nodiscard]] int write_composed(char* text, std::size_t room, std::size_t* num_bytes, Compose compose) noexcept {
  const auto composed = detail::with_memory([&]() -> result<std::string> { return compose(); },
                                            error{error_code::out_of_memory, "memory for a text"});
  return composed ? write_text(*composed, text, room, num_bytes) : fail(composed.error());
}

/// The latest time where nanoseconds from now on are more than the clock holds, or negative.
[[nodiscard]] [[maybe_unused]] std::chrono::steady_clock::time_point deadline_of(std::int64_t timeout) noexcept {
  return timeout < 0 ? std::chrono::steady_clock::time_point::max()
                     : detail::deadline_in(std::chrono::nanoseconds{timeout});
}

}  // namespace

// Errors, and what was compiled.

const char* pagedkv_last_message(void) { return last_message; }

int pagedkv_last_error(pagedkv_error* error) {
  return call({output("error", error)}, [&] { return fill(error, last_error); });
}

int pagedkv_get_build(pagedkv_build* build) {
  return call({output("build", build)}, [&] {
    auto all = pagedkv_build{};
    all.element = element_type::name.data();
    all.locking = cache_type::locking_type::name.data();
    all.eviction = cache_type::eviction_type::name.data();
    all.backend = backend_type::name.data();
    all.preemption = tracker_type::preemption_type::name.data();
    all.element_bytes = static_cast<std::int32_t>(sizeof(element_type::storage));
    all.scale_bytes = static_cast<std::int32_t>(size_of_element<element_type>.scale_bytes);
    all.layers_differ = layers_differ;
    all.num_tiers = static_cast<std::int32_t>(num_tiers_of<cache_type>);
    all.has_memory = has_memory;
    all.has_events = PAGEDKV_C_EVENTS;
    all.computes_attention = attends;
    all.uses_priority = cache_type::uses_priority;
    return fill(build, all);
  });
}

// Caches.

int pagedkv_config_init(pagedkv_config* config) {
  return call({output("config", config)}, [&] { return fill(config, config_of(cache_config{}, {})); });
}

int pagedkv_tiers_init(pagedkv_tiers* tiers) {
  return call({output("tiers", tiers)}, [&] { return fill(tiers, tiers_of(tier_config{})); });
}

int pagedkv_create(const pagedkv_config* config, pagedkv_cache** cache) {
  return call({input("config", config), pointer("cache", cache)}, [&] {
    const auto known = read(config, config_of(cache_config{}, {}));
    return call({array("config.groups", known.groups, known.num_groups), optional_input("config.tiers", known.tiers)},
                [&] { return create(known, cache); });
  });
}

void pagedkv_destroy(pagedkv_cache* cache) { delete cache; }

int pagedkv_get_config(pagedkv_cache* cache, pagedkv_config* config) {
  return with_cache(cache, {output("config", config)},
                    [&](auto& c) { return fill(config, config_of(c.config(), cache->groups)); });
}

int pagedkv_get_group(pagedkv_cache* cache, size_t group, pagedkv_group_info* info) {
  return with_cache<layers_differ>(
      cache, {output("info", info)},
      [&](auto& c) {
        const auto& groups = c.config().groups;
        if (group >= groups.size()) {
          return fail(detail::bad_index("index of a group", static_cast<std::int64_t>(group),
                                        static_cast<std::int64_t>(groups.size())));
        }
        const auto& plan = c.plan().groups[group];
        return fill(info, {0, static_cast<std::int32_t>(groups[group].kind), plan.block_size, plan.parts_per_block,
                           plan.blocks_per_state, plan.part_bytes, c.plan().block_bytes});
      },
      needs_groups);
}

// Streams.

int pagedkv_stream_create(int32_t num_threads, pagedkv_stream** stream) {
  if constexpr (!is_host && !lists_copies) {
    return refuse(PAGEDKV_UNSUPPORTED, needs_streams, "");
  }
  return call({pointer("stream", stream)}, [&] {
    if (const auto most = is_host ? std::int32_t{1'024} : 0; num_threads < 0 || num_threads > most) {
      return fail({error_code::invalid_argument, "number of threads", num_threads, num_threads < 0 ? 0 : most});
    }
    const auto make = [&]() -> result<std::unique_ptr<pagedkv_stream>> {
      auto made = std::make_unique<pagedkv_stream>();
      if (is_host) {
        made->threads = std::make_unique<host::thread_pool>(num_threads > 0 ? num_threads : host::usable_processors());
      }
      return made;
    };
    auto made = detail::with_errors(make, error{error_code::out_of_memory, "number of threads", num_threads});
    return made ? give(stream, made->release()) : fail(made.error());
  });
}

void pagedkv_stream_destroy(pagedkv_stream* stream) { delete stream; }

int pagedkv_stream_copies(pagedkv_stream* stream, const pagedkv_block_pair** copies, size_t* num_copies) {
  if constexpr (!lists_copies) {
    return refuse(PAGEDKV_UNSUPPORTED, needs_list, "");
  }
  return call({pointer("stream", stream), pointer("copies", copies), pointer("num_copies", num_copies)}, [&] {
    *copies = reinterpret_cast<const pagedkv_block_pair*>(stream->copies.data());
    return give(num_copies, stream->copies.size());
  });
}

int pagedkv_stream_clear(pagedkv_stream* stream) {
  if constexpr (!lists_copies) {
    return refuse(PAGEDKV_UNSUPPORTED, needs_list, "");
  }
  return call({pointer("stream", stream)}, [&] {
    stream->copies.clear();
    return int{PAGEDKV_OK};
  });
}

// Sequences.

int pagedkv_sequence_options_init(pagedkv_sequence_options* options) {
  return call({output("options", options)}, [&] { return fill(options, options_of(sequence_options{})); });
}

int pagedkv_create_sequence(pagedkv_cache* cache, const pagedkv_run* prompt, const pagedkv_sequence_options* options,
                            pagedkv_stream* stream, pagedkv_admission* admission) {
  return with_cache(
      cache,
      {whole_run("prompt", prompt), optional_input("options", options), copies(stream), output("admission", admission)},
      [&](auto& c) {
        return with_options(options, [&](const sequence_options& valid) {
          return finish(c.create_sequence(run_of(prompt), valid, stream_of(stream)),
                        [&](const auto& made) { fill(admission, admission_of(made)); });
        });
      });
}

int pagedkv_append(pagedkv_cache* cache, pagedkv_sequence sequence, const pagedkv_run* run, pagedkv_stream* stream) {
  return with_cache(cache, {whole_run("run", run), copies(stream)},
                    [&](auto& c) { return finish(c.append(id_of(sequence), run_of(run), stream_of(stream))); });
}

int pagedkv_reserve_slots(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t num_ahead, pagedkv_stream* stream) {
  return with_cache(cache, {copies(stream)},
                    [&](auto& c) { return finish(c.reserve_slots(id_of(sequence), num_ahead, stream_of(stream))); });
}

int pagedkv_commit(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t num_tokens, pagedkv_stream* stream) {
  return with_cache(cache, {copies(stream)},
                    [&](auto& c) { return finish(c.commit(id_of(sequence), num_tokens, stream_of(stream))); });
}

int pagedkv_fork(pagedkv_cache* cache, pagedkv_sequence sequence, pagedkv_stream* stream, pagedkv_sequence* fork) {
  return with_cache(cache, {copies(stream), pointer("fork", fork)},
                    [&](auto& c) { return finish(c.fork(id_of(sequence), stream_of(stream)), fork); });
}

int pagedkv_truncate(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t num_tokens) {
  return with_cache(cache, {}, [&](auto& c) { return finish(c.truncate(id_of(sequence), num_tokens)); });
}

int pagedkv_drop_before(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t num_tokens) {
  return with_cache<!layers_differ>(
      cache, {}, [&](auto& c) { return finish(c.drop_before(id_of(sequence), num_tokens)); }, needs_one_group);
}

int pagedkv_drop_behind_windows(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t num_tokens) {
  return with_cache<layers_differ>(
      cache, {}, [&](auto& c) { return finish(c.drop_behind_windows(id_of(sequence), num_tokens)); }, needs_groups);
}

int pagedkv_next_saved_length(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t* num_tokens) {
  return with_cache<layers_differ>(
      cache, {pointer("num_tokens", num_tokens)},
      [&](auto& c) { return finish(c.next_saved_length(id_of(sequence)), num_tokens); }, needs_groups);
}

int pagedkv_release(pagedkv_cache* cache, pagedkv_sequence sequence, const pagedkv_release_hint* hint) {
  return with_cache(cache, {optional_input("hint", hint)},
                    [&](auto& c) { return finish(c.release(id_of(sequence), hint_of(hint))); });
}

int pagedkv_describe(pagedkv_cache* cache, pagedkv_sequence sequence, pagedkv_sequence_info* info,
                     pagedkv_sequence_options* options) {
  return with_cache(cache, {output("info", info), optional_output("options", options)}, [&](auto& c) {
    return finish(c.describe(id_of(sequence)), [&](const sequence_info& found) {
      fill(info, {0, found.num_tokens, found.num_computed_tokens, found.num_prompt_tokens, found.num_cached_tokens,
                  found.num_blocks, found.num_slots, static_cast<std::int64_t>(found.created),
                  static_cast<std::int64_t>(found.last_access)});
      if (options != nullptr) {
        fill(options, options_of(found.options));
      }
    });
  });
}

int pagedkv_tokens(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t first_token, int32_t* tokens,
                   size_t num_tokens) {
  return with_cache(cache, {array("tokens", tokens, num_tokens)}, [&](auto& c) {
    return finish(c.tokens(id_of(sequence), first_token, std::span{tokens, num_tokens}));
  });
}

int pagedkv_keys(pagedkv_cache* cache, pagedkv_sequence sequence, pagedkv_key* keys, size_t room, size_t* num_keys) {
  return with_cache(cache, {array("keys", keys, room), pointer("num_keys", num_keys)}, [&](auto& c) {
    return finish(c.keys(id_of(sequence), {reinterpret_cast<prefix_key*>(keys), room}), num_keys);
  });
}

// Batches.

int pagedkv_append_batch(pagedkv_cache* cache, const pagedkv_batch_entry* entries, size_t num_entries,
                         const pagedkv_batch_buffers* buffers, pagedkv_stream* stream, pagedkv_batch_outcome* outcome) {
  return with_cache(
      cache,
      {array("entries", entries, num_entries), input("buffers", buffers), copies(stream), output("outcome", outcome)},
      [&](auto& c) {
        const auto append = [&](const auto& converted_entries, const batch_buffers& to, auto report) {
          return finish(c.append_batch(converted_entries, to, stream_of(stream)), report);
        };
        return with_buffers(buffers, [&](const pagedkv_batch_buffers& out) {
          return append_batch({entries, num_entries}, out, outcome, append);
        });
      });
}

int pagedkv_batch_create_padded(size_t max_rows, size_t max_blocks, pagedkv_batch** batch) {
  return call({pointer("batch", batch)}, [&] {
    return make_batch(max_rows, max_blocks, "rows, or blocks in a row, of a batch", batch, &pagedkv_batch::padded);
  });
}

int pagedkv_batch_create_compressed(size_t max_rows, size_t max_indices, pagedkv_batch** batch) {
  return call({pointer("batch", batch)}, [&] {
    return make_batch(max_rows, max_indices, "rows, or blocks, of a batch", batch, &pagedkv_batch::compressed);
  });
}

void pagedkv_batch_destroy(pagedkv_batch* batch) { delete batch; }

int pagedkv_batch_update(pagedkv_cache* cache, pagedkv_batch* batch, const pagedkv_sequence* sequences,
                         size_t num_sequences, size_t group, int64_t num_ahead) {
  return with_cache(cache, {pointer("batch", batch), array("sequences", sequences, num_sequences)}, [&](auto& c) {
    const auto ids = ids_of(sequences, num_sequences);
    return finish(batch->padded ? c.update(*batch->padded, ids, group, num_ahead)
                                : c.update(*batch->compressed, ids, group, num_ahead));
  });
}

int pagedkv_batch_get_view(pagedkv_batch* batch, pagedkv_batch_view* view) {
  return call({pointer("batch", batch), output("view", view)}, [&] {
    const auto numbers_of = [](std::span<const block_id> ids) {
      return reinterpret_cast<const std::int32_t*>(ids.data());
    };
    auto all = pagedkv_batch_view{};
    if (const auto* const padded = batch->padded.get()) {
      all.num_rows = padded->num_rows();
      all.row_stride = padded->row_stride();
      all.block_tables = numbers_of(padded->block_tables());
      all.lengths = padded->lengths().data();
    } else {
      const auto& compressed = *batch->compressed;
      all.num_rows = compressed.num_rows();
      all.indptr = compressed.indptr().data();
      all.indices = numbers_of(compressed.indices());
      all.last_block_len = compressed.last_block_len().data();
    }
    return fill(view, all);
  });
}

// Slots and tables.

int pagedkv_slot_mapping(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t first_token, int64_t* slots,
                         size_t num_slots, size_t group) {
  return with_cache(cache, {array("slots", slots, num_slots)}, [&](auto& c) {
    return finish(c.slot_mapping(id_of(sequence), first_token, {reinterpret_cast<slot*>(slots), num_slots}, group));
  });
}

int pagedkv_block_table(pagedkv_cache* cache, pagedkv_sequence sequence, size_t first_block, int32_t* blocks,
                        size_t room, size_t group, size_t* num_blocks) {
  return with_cache(cache, {array("blocks", blocks, room), pointer("num_blocks", num_blocks)}, [&](auto& c) {
    return finish(c.block_table(id_of(sequence), blocks_of(blocks, room), first_block, group), num_blocks);
  });
}

int pagedkv_num_skipped_tokens(pagedkv_cache* cache, pagedkv_sequence sequence, size_t group, int64_t* num_tokens) {
  return with_cache<layers_differ>(
      cache, {pointer("num_tokens", num_tokens)},
      [&](auto& c) { return finish(c.num_skipped_tokens(id_of(sequence), group), num_tokens); }, needs_groups);
}

int pagedkv_common_prefix(pagedkv_cache* cache, const pagedkv_sequence* sequences, size_t num_sequences, size_t group,
                          int64_t* num_blocks) {
  return with_cache(
      cache, {array("sequences", sequences, num_sequences), pointer("num_blocks", num_blocks)},
      [&](auto& c) { return finish(c.common_prefix(ids_of(sequences, num_sequences), group), num_blocks); });
}

// Prefixes.

int pagedkv_find_prefix(pagedkv_cache* cache, const pagedkv_run* run, uint64_t salt, int64_t* num_tokens) {
  return with_cache(cache, {whole_run("run", run), pointer("num_tokens", num_tokens)},
                    [&](auto& c) { return give(num_tokens, c.find_prefix(run_of(run), salt_of(salt))); });
}

int pagedkv_would_fit(pagedkv_cache* cache, const pagedkv_run* prompt, const pagedkv_sequence_options* options,
                      int64_t* num_cached_tokens, int64_t* num_new_blocks) {
  return with_cache(cache,
                    {whole_run("prompt", prompt), optional_input("options", options),
                     pointer("num_cached_tokens", num_cached_tokens), pointer("num_new_blocks", num_new_blocks)},
                    [&](auto& c) {
                      return with_options(options, [&](const sequence_options& valid) {
                        return finish(c.would_fit(run_of(prompt), valid), [&](const prompt_fit& fit) {
                          *num_cached_tokens = fit.num_cached_tokens;
                          *num_new_blocks = fit.num_new_blocks;
                        });
                      });
                    });
}

int pagedkv_hash_blocks(pagedkv_cache* cache, const pagedkv_run* prompt, uint64_t salt, uint64_t* hashes, size_t room,
                        size_t* num_hashes) {
  return with_cache(
      cache, {whole_run("prompt", prompt), array("hashes", hashes, room), pointer("num_hashes", num_hashes)},
      [&](auto& c) { return give(num_hashes, c.hash_blocks(run_of(prompt), std::span{hashes, room}, salt_of(salt))); });
}

int pagedkv_pin_prefix(pagedkv_cache* cache, const pagedkv_run* run, uint64_t salt, pagedkv_pin* pin,
                       int64_t* num_tokens) {
  return with_cache(cache, {whole_run("run", run), pointer("pin", pin), pointer("num_tokens", num_tokens)},
                    [&](auto& c) {
                      return finish(c.pin(run_of(run), salt_of(salt)), [&](const pinning& pinned) {
                        *pin = static_cast<pagedkv_pin>(pinned.id);
                        *num_tokens = pinned.num_tokens;
                      });
                    });
}

int pagedkv_pin_block_table(pagedkv_cache* cache, pagedkv_pin pin, size_t first_block, int32_t* blocks, size_t room,
                            size_t group, size_t* num_blocks) {
  return with_cache(cache, {array("blocks", blocks, room), pointer("num_blocks", num_blocks)}, [&](auto& c) {
    return finish(c.block_table(static_cast<pin_id>(pin), blocks_of(blocks, room), first_block, group), num_blocks);
  });
}

int pagedkv_unpin(pagedkv_cache* cache, pagedkv_pin pin) {
  return with_cache(cache, {}, [&](auto& c) { return finish(c.unpin(static_cast<pin_id>(pin))); });
}

int pagedkv_unpin_all(pagedkv_cache* cache, int64_t* num_pins) {
  return with_cache(cache, {pointer("num_pins", num_pins)}, [&](auto& c) { return give(num_pins, c.unpin_all()); });
}

int pagedkv_invalidate_prefix(pagedkv_cache* cache, const pagedkv_run* run, uint64_t salt, int64_t* num_blocks) {
  return with_cache(cache, {whole_run("run", run), pointer("num_blocks", num_blocks)},
                    [&](auto& c) { return give(num_blocks, c.invalidate_prefix(run_of(run), salt_of(salt))); });
}

int pagedkv_invalidate_salt(pagedkv_cache* cache, uint64_t salt, int64_t* num_blocks) {
  return with_cache(cache, {pointer("num_blocks", num_blocks)},
                    [&](auto& c) { return give(num_blocks, c.invalidate_salt(salt_of(salt))); });
}

int pagedkv_invalidate_blocks(pagedkv_cache* cache, const int32_t* blocks, size_t size, int64_t* num_blocks) {
  return with_cache(cache, {array("blocks", blocks, size), pointer("num_blocks", num_blocks)}, [&](auto& c) {
    return finish(c.invalidate_blocks({reinterpret_cast<const block_id*>(blocks), size}), num_blocks);
  });
}

int pagedkv_withdraw(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t* num_blocks) {
  return with_cache(cache, {pointer("num_blocks", num_blocks)},
                    [&](auto& c) { return finish(c.withdraw(static_cast<sequence_id>(sequence)), num_blocks); });
}

int pagedkv_reset_prefix_cache(pagedkv_cache* cache, int64_t* num_blocks) {
  return with_cache(cache, {pointer("num_blocks", num_blocks)},
                    [&](auto& c) { return finish(c.reset_prefix_cache(), num_blocks); });
}

// Steps and blocks.

int pagedkv_begin_step(pagedkv_cache* cache, const pagedkv_sequence* sequences, size_t num_sequences,
                       pagedkv_step* step) {
  return with_cache(cache, {array("sequences", sequences, num_sequences), pointer("step", step)}, [&](auto& c) {
    const auto begun = sequences == nullptr ? c.begin_step() : c.begin_step(ids_of(sequences, num_sequences));
    return finish(begun, step);
  });
}

int pagedkv_retire_step(pagedkv_cache* cache, pagedkv_step step) {
  return with_cache(cache, {}, [&](auto& c) { return finish(c.retire_step(static_cast<step_id>(step))); });
}

int pagedkv_evict(pagedkv_cache* cache, pagedkv_step step, int32_t* blocks, size_t room, pagedkv_stream* stream,
                  size_t* num_blocks) {
  return with_cache(cache, {array("blocks", blocks, room), copies(stream), pointer("num_blocks", num_blocks)},
                    [&](auto& c) {
                      const auto open = static_cast<step_id>(step);
                      if constexpr (has_tiers) {
                        return finish(c.evict(blocks_of(blocks, room), open, stream_of(stream)), num_blocks);
                      } else {
                        return finish(c.evict(blocks_of(blocks, room), open), num_blocks);
                      }
                    });
}

int pagedkv_num_blocks(pagedkv_cache* cache, int64_t* num_blocks) {
  return with_cache(cache, {pointer("num_blocks", num_blocks)},
                    [&](auto& c) { return give(num_blocks, c.num_blocks()); });
}

int pagedkv_num_free_blocks(pagedkv_cache* cache, int64_t* num_blocks) {
  return with_cache(cache, {pointer("num_blocks", num_blocks)},
                    [&](auto& c) { return give(num_blocks, c.num_free_blocks()); });
}

int pagedkv_num_available_blocks(pagedkv_cache* cache, int64_t* num_blocks) {
  return with_cache(cache, {pointer("num_blocks", num_blocks)},
                    [&](auto& c) { return give(num_blocks, c.num_available_blocks()); });
}

int pagedkv_gain_of_releasing(pagedkv_cache* cache, const pagedkv_sequence* sequences, size_t num_sequences,
                              const pagedkv_run* prompt, uint64_t salt, pagedkv_release_gain* gain) {
  return with_cache(
      cache, {array("sequences", sequences, num_sequences), optional_run("prompt", prompt), output("gain", gain)},
      [&](auto& c) {
        return finish(c.gain_of_releasing(ids_of(sequences, num_sequences), run_of(prompt), salt_of(salt)),
                      [&](const release_gain& found) { fill(gain, {0, found.at_once, found.with_steps}); });
      });
}

int pagedkv_fewest_to_release(pagedkv_cache* cache, const pagedkv_sequence* sequences, size_t num_sequences,
                              int64_t num_blocks, const pagedkv_run* prompt, uint64_t salt, size_t* positions,
                              size_t* num_positions) {
  return with_cache(cache,
                    {array("sequences", sequences, num_sequences), optional_run("prompt", prompt),
                     array("positions", positions, num_sequences), pointer("num_positions", num_positions)},
                    [&](auto& c) {
                      const auto ids = ids_of(sequences, num_sequences);
                      return finish(c.fewest_to_release(ids, num_blocks, run_of(prompt), salt_of(salt)),
                                    [&](const std::vector<std::size_t>& chosen) {
                                      std::ranges::copy(chosen, positions);
                                      *num_positions = chosen.size();
                                    });
                    });
}

int pagedkv_resize(pagedkv_cache* cache, int32_t num_blocks, pagedkv_stream* stream) {
  return with_cache(cache, {copies(stream)},
                    [&](auto& c) { return keep_moves(c.resize(num_blocks, stream_of(stream))); });
}

int pagedkv_compact(pagedkv_cache* cache, pagedkv_stream* stream) {
  return with_cache(cache, {copies(stream)}, [&](auto& c) { return keep_moves(c.compact(stream_of(stream))); });
}

int pagedkv_last_moves(const pagedkv_block_pair** moves, size_t* num_moves) {
  return call({pointer("moves", moves), pointer("num_moves", num_moves)}, [&] {
    *moves = reinterpret_cast<const pagedkv_block_pair*>(last_moves.data());
    return give(num_moves, last_moves.size());
  });
}

int pagedkv_advance_time(pagedkv_cache* cache, int64_t now) {
  return with_cache(cache, {}, [&](auto& c) {
    c.advance_time(static_cast<timestamp>(now));
    return int{PAGEDKV_OK};
  });
}

int pagedkv_time(pagedkv_cache* cache, int64_t* now) {
  return with_cache(cache, {pointer("now", now)}, [&](auto& c) { return give(now, c.time()); });
}

// K and V.

int pagedkv_get_storage(pagedkv_cache* cache, size_t group, pagedkv_storage* storage) {
  return with_cache<has_memory>(
      cache, {output("storage", storage)},
      [&](auto& c) {
        const auto checked = check_group(c, group);
        return checked ? fill(storage, storage_of(c.view(group))) : fail(checked.error());
      },
      needs_memory);
}

int pagedkv_get_blocks(pagedkv_cache* cache, pagedkv_storage* storage) {
  return with_cache<has_memory>(
      cache, {output("storage", storage)}, [&](auto& c) { return fill(storage, storage_of(c.blocks())); },
      needs_memory);
}

int pagedkv_state_part(pagedkv_cache* cache, size_t group, int32_t block, int32_t part, void** address) {
  return with_cache<layers_differ && has_memory>(
      cache, {pointer("address", address)},
      [&](auto& c) {
        if (const auto checked = check_group(c, group, false); !checked) {
          return fail(checked.error());
        }
        if (const auto end = c.config().capacity(); block < 0 || block >= end) {
          return fail(detail::bad_index("block of a state", block, end));
        }
        if (const auto end = c.plan().groups[group].parts_per_block; part < 0 || part >= end) {
          return fail(detail::bad_index("part of a state", part, end));
        }
        return give(address, static_cast<void*>(c.state_part(group, static_cast<block_id>(block), part)));
      },
      has_memory ? needs_groups : needs_memory);
}

int pagedkv_write(pagedkv_cache* cache, int32_t layer, const int64_t* slots, size_t num_slots, const pagedkv_rows* keys,
                  const pagedkv_rows* values, pagedkv_stream* stream, size_t group) {
  return with_cache<has_memory>(
      cache,
      {array("slots", slots, num_slots), pointer("keys", keys), optional_rows("keys", keys),
       optional_rows("values", values)},
      [&](auto& c) {
        const auto write = [&]<class Type>(Type, const auto& key_rows, const auto& value_rows) -> result<void> {
          const auto checked = check_group(c, group);
          return checked ? c.template write<Type>(layer, slots_of(slots, num_slots), key_rows, value_rows,
                                                  stream_of(stream), group)
                         : checked;
        };
        return move_rows(*keys, values, write);
      },
      needs_memory);
}

int pagedkv_read(pagedkv_cache* cache, int32_t layer, const int64_t* slots, size_t num_slots, const pagedkv_rows* keys,
                 const pagedkv_rows* values, pagedkv_stream* stream, size_t group) {
  return with_cache<has_memory>(
      cache,
      {array("slots", slots, num_slots), pointer("keys", keys), optional_rows("keys", keys), pointer("values", values),
       optional_rows("values", values)},
      [&](auto& c) {
        const auto read = [&]<class Type>(Type, const auto& key_rows, const auto& value_rows) -> result<void> {
          const auto checked = check_group(c, group);
          return checked ? c.template read<Type>(layer, slots_of(slots, num_slots), key_rows, value_rows,
                                                 stream_of(stream), group)
                         : checked;
        };
        return move_rows(*keys, values, read);
      },
      needs_memory);
}

int pagedkv_attend(pagedkv_cache* cache, const pagedkv_attention* attention, pagedkv_stream* stream) {
  return with_cache<attends>(
      cache, {input("attention", attention)},
      [&](auto& c) {
        const auto known = read(attention, pagedkv_attention{});
        return call({array("attention.indptr", known.indptr, known.num_rows),
                     array("attention.indices", known.indices, known.num_indices),
                     array("attention.last_block_len", known.last_block_len, known.num_rows),
                     rows("attention.queries", known.queries), rows("attention.outputs", known.outputs)},
                    [&] { return attend(c, known, stream_of(stream)); });
      },
      needs_attention);
}

int pagedkv_synchronize(pagedkv_cache* cache, pagedkv_stream* stream) {
  return with_cache(cache, {copies(stream)},
                    [&](auto& c) { return finish(c.backend().synchronize(stream_of(stream))); });
}

// Tiers.

int pagedkv_settle(pagedkv_cache* cache, pagedkv_sequence sequence, pagedkv_stream* stream, int64_t* num_tokens) {
  return with_cache<has_tiers>(
      cache, {pointer("num_tokens", num_tokens)},
      [&](auto& c) { return finish(c.settle(id_of(sequence), stream_of(stream)), num_tokens); }, needs_tiers);
}

int pagedkv_find_prefix_in_tiers(pagedkv_cache* cache, const pagedkv_run* run, uint64_t salt, int64_t* on_device,
                                 int64_t* with_host_memory, int64_t* with_slower_tiers) {
  return with_cache<has_tiers>(
      cache,
      {whole_run("run", run), pointer("on_device", on_device), pointer("with_host_memory", with_host_memory),
       pointer("with_slower_tiers", with_slower_tiers)},
      [&](auto& c) {
        const auto reach = c.find_prefix_in_tiers(run_of(run), salt_of(salt));
        *on_device = reach.on_device;
        *with_host_memory = reach.with_host_memory;
        return give(with_slower_tiers, reach.with_slower_tiers);
      },
      needs_tiers);
}

int pagedkv_poll(pagedkv_cache* cache, pagedkv_sequence sequence, pagedkv_load_progress* progress) {
  return with_cache<has_tiers>(
      cache, {output("progress", progress)},
      [&](auto& c) {
        const auto found = c.poll(id_of(sequence));
        return fill(progress, {0, found.num_loaded_tokens, found.num_loading_tokens});
      },
      needs_tiers);
}

int pagedkv_poll_all(pagedkv_cache* cache) {
  return with_cache<has_tiers>(
      cache, {},
      [&](auto& c) {
        c.poll();
        return int{PAGEDKV_OK};
      },
      needs_tiers);
}

int pagedkv_wait(pagedkv_cache* cache, pagedkv_sequence sequence, int64_t timeout, pagedkv_load_progress* progress) {
  return with_cache<has_tiers>(
      cache, {output("progress", progress)},
      [&](auto& c) {
        const auto found = c.wait(id_of(sequence), deadline_of(timeout));
        return fill(progress, {0, found.num_loaded_tokens, found.num_loading_tokens});
      },
      needs_tiers);
}

int pagedkv_wait_idle(pagedkv_cache* cache, int64_t timeout, int32_t* is_idle) {
  return with_cache<has_tiers>(
      cache, {pointer("is_idle", is_idle)},
      [&](auto& c) { return give(is_idle, std::int32_t{c.wait_idle(deadline_of(timeout))}); }, needs_tiers);
}

int pagedkv_run_transfers(pagedkv_cache* cache, size_t* num_transfers) {
  return with_cache<has_tiers>(
      cache, {pointer("num_transfers", num_transfers)}, [&](auto& c) { return give(num_transfers, c.run_transfers()); },
      needs_tiers);
}

int pagedkv_get_tier(pagedkv_cache* cache, size_t number, pagedkv_tier_statistics* statistics) {
  return with_cache<has_tiers>(
      cache, {output("statistics", statistics)},
      [&](auto& c) {
        if (number >= c.num_tiers) {
          return fail(detail::bad_index("number of a tier", static_cast<std::int64_t>(number),
                                        static_cast<std::int64_t>(c.num_tiers)));
        }
        const auto of = c.tier(number);
        return fill(statistics, {0,
                                 c.tier_names[number].data(),
                                 of.num_places,
                                 of.num_records,
                                 of.hit_blocks,
                                 of.hit_tokens,
                                 of.written,
                                 of.adopted,
                                 of.loaded_into,
                                 of.evictions,
                                 of.dropped,
                                 of.handed_over,
                                 of.num_owed,
                                 of.lost_writes,
                                 of.failed_writes,
                                 of.late_writes,
                                 of.loads,
                                 of.missing_loads,
                                 of.failed_loads,
                                 of.refused_loads,
                                 of.num_erasing,
                                 of.num_orphans});
      },
      needs_tiers);
}

int pagedkv_host_bytes(pagedkv_cache* cache, size_t* num_bytes) {
  return with_cache<has_tiers>(
      cache, {pointer("num_bytes", num_bytes)}, [&](auto& c) { return give(num_bytes, c.host_bytes()); }, needs_tiers);
}

// Sessions.

namespace {

/// The parts of a session's options, and `call` with them.
template <class Options, class Use>
[[nodiscard]] int with_session(const pagedkv_session_options* given, Use use) noexcept {
  const auto from = read(given, pagedkv_session_options{});
  return call({optional_run("options.contents", from.contents)}, [&] {
    auto options = Options{};
    options.model = from.model == nullptr ? "" : from.model;
    options.contents = run_of(from.contents);
    return use(options);
  });
}

}  // namespace

int pagedkv_save_sequence(pagedkv_cache* cache, pagedkv_sequence sequence, const char* path,
                          const pagedkv_session_options* options, pagedkv_stream* stream) {
  return with_cache<swaps>(
      cache, {pointer("path", path), optional_input("options", options)},
      [&](auto& c) {
        return with_session<session_options<host_memory>>(options, [&](const auto& valid) {
          const auto save = [&] { return save_sequence(c, id_of(sequence), path, valid, stream_of(stream)); };
          return finish(detail::with_memory(save, error{error_code::out_of_memory, "memory for a path"}));
        });
      },
      needs_memory);
}

int pagedkv_restore_sequence(pagedkv_cache* cache, const char* path, const pagedkv_session_options* options,
                             pagedkv_stream* stream, pagedkv_admission* admission) {
  return with_cache<swaps>(
      cache, {pointer("path", path), optional_input("options", options), output("admission", admission)},
      [&](auto& c) {
        return with_session<session_options<host_memory>>(options, [&](const auto& valid) {
          const auto restore = [&] { return restore_sequence(c, path, valid, stream_of(stream)); };
          return finish(detail::with_memory(restore, error{error_code::out_of_memory, "memory for a path"}),
                        [&](const auto& made) { fill(admission, admission_of(made)); });
        });
      },
      needs_memory);
}

int pagedkv_hand_over(pagedkv_cache* from, pagedkv_sequence sequence, pagedkv_cache* to,
                      const pagedkv_session_options* options, pagedkv_stream* stream, pagedkv_admission* admission) {
  return with_cache<swaps>(
      from, {pointer("to", to), optional_input("options", options), output("admission", admission)},
      [&](auto& c) {
        return with_session<offer_options>(options, [&](const auto& valid) {
          return finish(
              hand_over(c, id_of(sequence), *static_cast<decltype(&c)>(to->cache.get()), valid, stream_of(stream)),
              [&](const auto& made) { fill(admission, admission_of(made)); });
        });
      },
      needs_memory);
}

// Requests.

int pagedkv_tracker_config_init(pagedkv_tracker_config* config) {
  return call({output("config", config)}, [&] {
    const auto defaults = tracker_config{};
    return fill(config, {0, defaults.max_open, defaults.max_ended, defaults.max_age});
  });
}

int pagedkv_tracker_create(pagedkv_cache* cache, const pagedkv_tracker_config* config, pagedkv_tracker** tracker) {
  return with_cache(cache, {optional_input("config", config), pointer("tracker", tracker)}, [&](cache_type& c) {
    const auto wanted = tracker_config_of(config);
    if (const auto checked = validate(wanted); !checked) {
      return fail(checked.error());
    }
    const auto make = [&]() -> result<pagedkv_tracker*> { return new pagedkv_tracker{tracker_type{c, wanted}}; };
    return finish(detail::with_errors(make, error{error_code::out_of_memory, "records of requests", wanted.max_open}),
                  tracker);
  });
}

void pagedkv_tracker_destroy(pagedkv_tracker* tracker) { delete tracker; }

int pagedkv_tracker_submit(pagedkv_tracker* tracker, const pagedkv_run* prompt, const pagedkv_sequence_options* options,
                           int32_t may_preempt, pagedkv_stream* stream, pagedkv_submission* submission) {
  last_preempted.clear();  // also where the call does not get as far as the tracker
  return with_tracker(tracker,
                      {whole_run("prompt", prompt), optional_input("options", options), copies(stream),
                       output("submission", submission)},
                      [&](tracker_type& t) {
                        return with_options(options, [&](const sequence_options& valid) {
                          return keep_preempted(t.submit(run_of(prompt), {valid, may_preempt != 0}, stream_of(stream)),
                                                [&](const auto& made) { fill(submission, submission_of(*made)); });
                        });
                      });
}

int pagedkv_tracker_enqueue(pagedkv_tracker* tracker, const pagedkv_sequence_options* options, int32_t may_preempt,
                            pagedkv_request* request) {
  return with_tracker(tracker, {optional_input("options", options), pointer("request", request)},
                      [&](tracker_type& t) {
                        return with_options(options, [&](const sequence_options& valid) {
                          return finish(t.enqueue({valid, may_preempt != 0}), request);
                        });
                      });
}

int pagedkv_tracker_resume(pagedkv_tracker* tracker, pagedkv_request request, const pagedkv_run* tokens,
                           pagedkv_stream* stream, pagedkv_submission* submission) {
  last_preempted.clear();  // also where the call does not get as far as the tracker
  return with_tracker(tracker, {whole_run("tokens", tokens), copies(stream), output("submission", submission)},
                      [&](tracker_type& t) {
                        return keep_preempted(t.resume(request_of(request), run_of(tokens), stream_of(stream)),
                                              [&](const auto& made) { fill(submission, submission_of(*made)); });
                      });
}

int pagedkv_tracker_append(pagedkv_tracker* tracker, pagedkv_request request, const pagedkv_run* run,
                           pagedkv_stream* stream) {
  last_preempted.clear();  // also where the call does not get as far as the tracker
  return with_tracker(tracker, {whole_run("run", run), copies(stream)}, [&](tracker_type& t) {
    return keep_preempted(t.append(request_of(request), run_of(run), stream_of(stream)), [](const auto&) {});
  });
}

int pagedkv_tracker_append_batch(pagedkv_tracker* tracker, const pagedkv_request* requests,
                                 const pagedkv_batch_entry* entries, size_t num_entries,
                                 const pagedkv_batch_buffers* buffers, pagedkv_stream* stream,
                                 pagedkv_batch_outcome* outcome) {
  last_preempted.clear();  // also where the call does not get as far as the tracker
  return with_tracker(tracker,
                      {array("requests", requests, num_entries), array("entries", entries, num_entries),
                       input("buffers", buffers), copies(stream), output("outcome", outcome)},
                      [&](tracker_type& t) {
                        const auto ids = std::span{reinterpret_cast<const request_id*>(requests), num_entries};
                        const auto append = [&](const auto& converted_entries, const batch_buffers& to, auto report) {
                          return keep_preempted(t.append_batch(ids, converted_entries, to, stream_of(stream)),
                                                [&](const auto& done) { report(*done); });
                        };
                        return with_buffers(buffers, [&](const pagedkv_batch_buffers& out) {
                          return append_batch({entries, num_entries}, out, outcome, append);
                        });
                      });
}

int pagedkv_last_preempted(const pagedkv_request** requests, size_t* num_requests) {
  return call({pointer("requests", requests), pointer("num_requests", num_requests)}, [&] {
    *requests = reinterpret_cast<const pagedkv_request*>(last_preempted.data());
    return give(num_requests, last_preempted.size());
  });
}

int pagedkv_tracker_fork(pagedkv_tracker* tracker, pagedkv_request request, pagedkv_stream* stream,
                         pagedkv_request* fork, pagedkv_sequence* sequence) {
  return with_tracker(tracker, {copies(stream), pointer("fork", fork), pointer("sequence", sequence)},
                      [&](tracker_type& t) {
                        return finish(t.fork(request_of(request), stream_of(stream)), [&](const request_fork& made) {
                          *fork = static_cast<pagedkv_request>(made.id);
                          *sequence = static_cast<pagedkv_sequence>(made.sequence);
                        });
                      });
}

int pagedkv_tracker_adopt(pagedkv_tracker* tracker, pagedkv_sequence sequence, const pagedkv_sequence_options* options,
                          int32_t may_preempt, pagedkv_request* request) {
  return with_tracker(tracker, {optional_input("options", options), pointer("request", request)}, [&](tracker_type& t) {
    return with_options(options, [&](const sequence_options& valid) {
      return finish(t.adopt(id_of(sequence), {valid, may_preempt != 0}), request);
    });
  });
}

int pagedkv_tracker_finish(pagedkv_tracker* tracker, pagedkv_request request, const pagedkv_release_hint* hint) {
  return with_tracker(tracker, {optional_input("hint", hint)},
                      [&](tracker_type& t) { return finish(t.finish(request_of(request), hint_of(hint))); });
}

int pagedkv_tracker_cancel(pagedkv_tracker* tracker, pagedkv_request request) {
  return with_tracker(tracker, {}, [&](tracker_type& t) { return finish(t.cancel(request_of(request))); });
}

int pagedkv_tracker_fail(pagedkv_tracker* tracker, pagedkv_request request, const pagedkv_error* reason) {
  return with_tracker(tracker, {input("reason", reason)}, [&](tracker_type& t) {
    const auto from = read(reason, pagedkv_error{0, 0, 0, error::no_limit, 0, ""});
    const auto known = std::ranges::find(codes, from.code, &code_pair::number);
    if (known == codes.end()) {
      return fail(detail::bad_index("pagedkv_error.code", from.code, PAGEDKV_UNSUPPORTED));
    }
    return finish(t.fail(request_of(request), {known->code, "number that the engine gave", from.value, from.limit}));
  });
}

int pagedkv_tracker_preempt(pagedkv_tracker* tracker, pagedkv_request request, pagedkv_stream* stream) {
  return with_tracker(tracker, {copies(stream)},
                      [&](tracker_type& t) { return finish(t.preempt(request_of(request), stream_of(stream))); });
}

int pagedkv_tracker_resumable(pagedkv_tracker* tracker, pagedkv_request* requests, size_t room, size_t* num_requests) {
  return with_tracker(
      tracker, {array("requests", requests, room), pointer("num_requests", num_requests)}, [&](tracker_type& t) {
        const auto waiting = t.resumable();
        if (!waiting) {
          return fail(waiting.error());
        }
        if (waiting->size() > room) {
          return fail({error_code::invalid_argument, "room for waiting and preempted requests",
                       static_cast<std::int64_t>(room), std::ssize(*waiting)});
        }
        std::ranges::transform(*waiting, requests, [](request_id id) { return static_cast<pagedkv_request>(id); });
        return give(num_requests, waiting->size());
      });
}

int pagedkv_tracker_describe(pagedkv_tracker* tracker, pagedkv_request request, pagedkv_request_info* info,
                             pagedkv_sequence_options* options) {
  return with_tracker(tracker, {output("info", info), optional_output("options", options)}, [&](tracker_type& t) {
    return finish(t.describe(request_of(request)), [&](const request_info& found) {
      const auto failure = found.failure.value_or(error{});
      fill(info, {0, static_cast<std::int32_t>(found.state), found.options.may_preempt,
                  static_cast<pagedkv_sequence>(found.sequence), found.arrival, found.num_preemptions,
                  static_cast<std::int64_t>(found.submitted), static_cast<std::int64_t>(found.ended),
                  found.failure ? number_of(failure.code) : PAGEDKV_OK, failure.value, failure.limit});
      if (options != nullptr) {
        fill(options, options_of(found.options.sequence));
      }
    });
  });
}

int pagedkv_tracker_purge(pagedkv_tracker* tracker) {
  return with_tracker(tracker, {}, [&](tracker_type& t) {
    t.purge();
    return int{PAGEDKV_OK};
  });
}

int pagedkv_tracker_get_statistics(pagedkv_tracker* tracker, pagedkv_tracker_statistics* statistics) {
  return with_tracker(tracker, {output("statistics", statistics)}, [&](tracker_type& t) {
    const auto of = t.statistics();
    return fill(statistics, {0, of.submitted, of.refused, of.running, of.preempted, of.finished, of.cancelled,
                             of.failed, of.preemptions, of.kept_records, of.waiting});
  });
}

// Numbers.

int pagedkv_get_statistics(pagedkv_cache* cache, pagedkv_statistics* statistics) {
  return with_cache(cache, {output("statistics", statistics)}, [&](auto& c) {
    const auto of = c.statistics();
    return fill(statistics, {0,
                             of.blocks.free,
                             of.blocks.in_use,
                             of.blocks.evictable,
                             of.blocks.retiring,
                             of.peak_in_use,
                             of.num_sequences,
                             of.num_pins,
                             of.num_tokens,
                             of.unfilled_slots,
                             of.prompts,
                             of.prompt_blocks,
                             of.hit_blocks,
                             of.hit_tokens,
                             of.evictions,
                             of.invalidations,
                             of.copies,
                             of.refusals,
                             of.blocks_together,
                             of.runs_together,
                             of.blocks_in_runs,
                             of.contention.waits,
                             of.contention.retries,
                             of.contention.steals});
  });
}

int pagedkv_get_memory(pagedkv_cache* cache, pagedkv_memory* memory) {
  return with_cache(cache, {output("memory", memory)}, [&](auto& c) {
    const auto of = c.memory();
    return fill(memory, {0, of.payload, of.pool, of.index, of.sequences});
  });
}

int pagedkv_metrics_text(pagedkv_cache* cache, pagedkv_tracker* tracker, const pagedkv_label* labels, size_t num_labels,
                         char* text, size_t room, size_t* num_bytes) {
  return with_cache(
      cache, {array("labels", labels, num_labels), array("text", text, room), pointer("num_bytes", num_bytes)},
      [&](auto& c) {
        const auto given = std::span{labels, num_labels};
        if (!are_labels(given)) {
          return refuse(PAGEDKV_INVALID_ARGUMENT, "labels", " have a name that is none or is taken, or no value");
        }
        return write_composed(text, room, num_bytes, [&] { return metrics_text(c, tracker, given); });
      });
}

int pagedkv_check_invariants(pagedkv_cache* cache, char* text, size_t room, size_t* num_bytes) {
  return with_cache(cache, {array("text", text, room), pointer("num_bytes", num_bytes)}, [&](auto& c) {
    return write_composed(text, room, num_bytes, [&] {
      auto lines = std::string{};
      for (const auto& sentence : c.check_invariants()) {
        lines.append(sentence).append("\n");
      }
      return lines;
    });
  });
}
