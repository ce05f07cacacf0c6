// The step loop of a serving engine, with a model of one kernel: continuous batching, prompts in chunks, shared
// prefixes, a fork, preemption and resumption, and two steps in flight, on a stream, in memory and with a kernel of the
// engine's own. Built by hipcc or nvcc it runs on the GPU; by any other compiler, on the host executor. See
// docs/integrate.md.

#include <pagedkv/device/allocators.hpp>
#include <pagedkv/device/backend.hpp>
#include <pagedkv/device/stream.hpp>
#include <pagedkv/kernels/platform.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/policy/allocator/caller_memory.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <iterator>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace engine {

namespace hip = pagedkv::hip;
using pagedkv::token;

constexpr auto vocabulary = std::int64_t{251};
constexpr auto block_size = std::int32_t{16};
constexpr auto max_requests = std::size_t{3};  // in a step
constexpr auto max_rows = 2 * max_requests;    // sequences in a step: each request may fork
constexpr auto max_chunk = std::int64_t{32};   // tokens of one sequence in a step
constexpr auto max_blocks = std::size_t{16};   // of one sequence

/// Own memory: the cache's blocks lie in a part of a large allocation of the engine's.
using cache_type = pagedkv::kv_cache<pagedkv::float32, pagedkv::caller_memory, pagedkv::hip_backend>;

/// An array that host and device share.
template <class T>
class shared_array {
 public:
  explicit shared_array(std::size_t size)
      : bytes_(size * sizeof(T)), data_(reinterpret_cast<T*>(memory_.allocate(bytes_, alignof(T)))) {
    std::uninitialized_value_construct_n(data_, size);
  }
  shared_array(const shared_array&) = delete;
  shared_array& operator=(const shared_array&) = delete;
  ~shared_array() { memory_.deallocate(reinterpret_cast<std::byte*>(data_), bytes_); }

  [[nodiscard]] T* data() const { return data_; }

 private:
  hip::pinned_allocator memory_;
  std::size_t bytes_;
  T* data_;
};

/// The arguments of one step. Row i computes tokens `starts[i]` up to `starts[i + 1]`.
struct step_arguments {
  const std::int32_t* starts;
  const token* tokens;
  const pagedkv::slot* slots;        // of these tokens
  const pagedkv::block_id* tables;   // [row][max_blocks]
  const std::int32_t* num_computed;  // [row]: with these tokens
  std::int64_t* results;             // [row]
};

/// Own kernel: the model. Writes the key of each new token, then reads the keys of all tokens of the sequence.
PAGEDKV_KERNEL void run_model(pagedkv::block_storage_view cache, step_arguments in) {
  using namespace pagedkv::kernels;
  const auto row = workgroup_index().x;
  for (auto i = load(in.starts + row); i < load(in.starts + row + 1); ++i) {
    const auto slot = static_cast<std::int64_t>(load(in.slots + i));
    store(cache.key<float>(0, slot / cache.block_size, static_cast<std::int32_t>(slot % cache.block_size), 0),
          static_cast<float>(load(in.tokens + i)));
  }
  auto sum = std::int64_t{0};
  for (auto i = std::int32_t{0}; i < load(in.num_computed + row); ++i) {
    const auto block = load(in.tables + row * max_blocks + static_cast<std::uint32_t>(i / cache.block_size));
    sum += (i % 7 + 1) * static_cast<std::int64_t>(
                             load(cache.key<float>(0, static_cast<std::int64_t>(block), i % cache.block_size, 0)));
  }
  store(in.results + row, sum);
}

struct request {
  std::vector<token> tokens;  // the prompt, then the answer
  std::size_t final_length = 0;
  bool forks = false;  // into two samples, after the prompt
  pagedkv::request_options options = {};
  std::size_t num_given = tokens.size();  // length of the prompt
  std::int64_t variant = 0;               // number of the sample

  pagedkv::request_id id = {};
  pagedkv::sequence_id sequence = {};
  std::int64_t length = 0;                    // of the sequence; the last tokens may still be missing in it
  std::int64_t num_computed = 0;              // tokens whose K/V is written, or will be by the steps in flight
  std::vector<pagedkv::slot> new_slots = {};  // of tokens appended for the next step
  bool running = false;
  bool in_flight = false;
  bool lacks_block = false;  // for its last token

  void take_slots(std::span<const pagedkv::slot> slots) {
    new_slots.assign(slots.begin(), slots.end());
    length += static_cast<std::int64_t>(slots.size());
  }
  [[nodiscard]] bool ended() const { return tokens.size() == final_length; }
  /// The next chunk of the prompt, or the last token.
  [[nodiscard]] std::span<const token> next_tokens() const {
    const auto rest = std::span(tokens).subspan(static_cast<std::size_t>(length));
    return rest.first(num_computed < length ? 0 : std::min(rest.size(), static_cast<std::size_t>(max_chunk)));
  }
};

/// A step, from its preparation to its retirement.
struct step {
  std::vector<request*> rows;
  bool in_flight = false;
  pagedkv::step_id id = {};
  hip::event launched;
  pagedkv::padded_batch batch{max_rows, max_blocks};
  shared_array<std::int32_t> starts{max_rows + 1};
  shared_array<token> tokens{max_rows * max_chunk};
  shared_array<pagedkv::slot> slots{max_rows * max_chunk};
  shared_array<pagedkv::block_id> tables{max_rows * max_blocks};
  shared_array<std::int32_t> num_computed{max_rows};
  shared_array<std::int64_t> results{max_rows};

  [[nodiscard]] std::vector<pagedkv::sequence_id> sequences() const {
    auto ids = std::vector<pagedkv::sequence_id>{};
    std::ranges::transform(rows, std::back_inserter(ids), &request::sequence);
    return ids;
  }
};

class serving {
 public:
  explicit serving(cache_type& cache) : cache_(cache), requests_(cache) {}

  void submit(request made) {
    made.id = requests_.enqueue(made.options).value();
    all_.push_back(std::move(made));
  }

  /// Prepares one step while the other one runs.
  void run() {
    for (auto i = std::size_t{0}; some_wait() || steps_[0].in_flight || steps_[1].in_flight; ++i) {
      auto& next = steps_[i % 2];
      collect(next);
      admit(next);
      launch(next);
    }
  }

  [[nodiscard]] const std::deque<request>& all() const { return all_; }
  [[nodiscard]] std::int64_t num_cached() const { return num_cached_; }
  [[nodiscard]] std::int64_t num_preemptions() { return requests_.statistics().preemptions; }

 private:
  [[nodiscard]] bool some_wait() const {
    const auto now = requests_.statistics();
    return now.waiting + now.preempted != 0;
  }

  /// Waits for a step, retires it, and takes its tokens.
  void collect(step& done) {
    if (!done.in_flight) {
      return;
    }
    done.launched.synchronize().value();
    cache_.retire_step(done.id).value();
    done.in_flight = false;
    const auto rows = std::exchange(done.rows, {});
    for (auto i = std::size_t{0}; i < rows.size(); ++i) {
      auto& r = *rows[i];
      r.in_flight = false;
      if (r.num_computed == static_cast<std::int64_t>(r.tokens.size())) {
        take_token(r, done.results.data()[i], done);
      }
      if (r.ended()) {
        requests_.finish(r.id).value();
      } else if (r.running) {
        done.rows.push_back(&r);
      }  // or it was preempted since the launch; its last token is right all the same
    }
  }

  void take_token(request& r, std::int64_t result, step& next) {
    if (std::exchange(r.forks, false) && r.running) {
      const auto forked = requests_.fork(r.id, stream_.get()).value();
      auto& sample = all_.emplace_back(r);
      sample.id = forked.id;
      sample.sequence = forked.sequence;
      sample.variant = 1;
      sample.tokens.push_back(static_cast<token>((result + sample.variant) % vocabulary));
      next.rows.push_back(&sample);
    }
    r.tokens.push_back(static_cast<token>((result + r.variant) % vocabulary));
  }

  /// Starts requests, and resumes preempted ones, as long as they fit. Running requests get blocks first: otherwise a
  /// preempted request would take those that it has just given up.
  void admit(step& next) {
    if (std::ranges::any_of(all_, [](const request& r) { return r.running && r.lacks_block; })) {
      return;
    }
    for (const auto id : requests_.resumable().value()) {
      auto& r = *std::ranges::find(all_, id, &request::id);
      if (next.rows.size() == max_requests || r.in_flight) {
        return;  // its last token is still to come
      }
      const auto admitted = requests_.resume(id, r.tokens, stream_.get());
      put_back(admitted.preempted());
      if (!admitted) {
        return;  // another step's retirement makes room
      }
      r.sequence = admitted->sequence;
      r.length = cache_.describe(r.sequence).value().num_tokens;
      r.num_computed = admitted->num_cached_tokens;
      r.running = true;
      num_cached_ += admitted->num_cached_tokens;
      next.rows.push_back(&r);
    }
  }

  void put_back(const std::vector<pagedkv::request_id>& preempted) {
    for (const auto id : preempted) {
      auto& r = *std::ranges::find(all_, id, &request::id);
      r.running = r.lacks_block = false;
      r.new_slots.clear();
    }
  }

  void launch(step& next) {
    const auto drop_preempted = [&] { std::erase_if(next.rows, [](const request* r) { return !r->running; }); };
    drop_preempted();
    if (next.rows.empty()) {
      return;
    }
    next.id = cache_.begin_step(next.sequences()).value();
    append(next);
    drop_preempted();
    if (next.rows.empty()) {
      return cache_.retire_step(next.id).value();
    }
    cache_.update(next.batch, next.sequences()).value();
    fill_arguments(next);
    const auto arguments = step_arguments{next.starts.data(), next.tokens.data(),       next.slots.data(),
                                          next.tables.data(), next.num_computed.data(), next.results.data()};
    const auto shape = pagedkv::kernels::launch_shape{{static_cast<std::uint32_t>(next.rows.size())}, {1}};
    hip::to_result(pagedkv::kernels::launch<run_model>(shape, stream_.get(), cache_.view(), arguments), "a step")
        .value();
    next.launched.record(stream_.get()).value();
    next.in_flight = true;
    commit(next);
  }

  /// Appends chosen tokens and chunks of prompts. Sequences for which there is no block try again in their next step.
  void append(step& next) {
    auto ids = std::vector<pagedkv::request_id>{};
    auto entries = std::vector<pagedkv::batch_entry>{};
    auto appending = std::vector<request*>{};
    for (auto* r : next.rows) {
      if (const auto tokens = r->next_tokens(); !tokens.empty()) {
        ids.push_back(r->id);
        entries.push_back({r->sequence, tokens});
        appending.push_back(r);
      }
    }
    auto slots = std::array<pagedkv::slot, max_rows * max_chunk>{};
    auto failures = std::array<pagedkv::batch_failure, max_rows>{};
    const auto done = requests_.append_batch(ids, entries, {.slots = slots, .failures = failures}, stream_.get());
    auto first = std::size_t{0};
    for (std::size_t i = 0; i < appending.size(); ++i) {
      const auto appended = std::span(slots).subspan(first, entries[i].run.tokens.size());
      first += appended.size();
      appending[i]->lacks_block = appended.front() == pagedkv::skip_slot;
      if (!appending[i]->lacks_block) {
        appending[i]->take_slots(appended);
      }
    }
    put_back(done.preempted());
  }

  void fill_arguments(step& next) {
    auto num_tokens = std::int32_t{0};
    for (auto i = std::size_t{0}; i < next.rows.size(); ++i) {
      auto& r = *next.rows[i];
      const auto count = r.length - r.num_computed;
      std::copy_n(r.tokens.begin() + r.num_computed, count, next.tokens.data() + num_tokens);
      auto* const slots = next.slots.data() + num_tokens;
      if (r.new_slots.empty()) {  // admitted for this step
        cache_.slot_mapping(r.sequence, r.num_computed, {slots, static_cast<std::size_t>(count)}).value();
      } else {
        std::ranges::copy(std::exchange(r.new_slots, {}), slots);
      }
      r.num_computed += count;
      r.in_flight = true;
      next.starts.data()[i] = num_tokens;
      next.num_computed.data()[i] = static_cast<std::int32_t>(r.num_computed);
      num_tokens += static_cast<std::int32_t>(count);
    }
    next.starts.data()[next.rows.size()] = num_tokens;
    std::ranges::copy(next.batch.block_tables(), next.tables.data());
  }

  /// The kernel is enqueued ahead of all readers, so its blocks may be shared from here on. One kernel computes all
  /// layers, so prompts of one step do not share; the README's loop, which commits before the launch, has them share.
  void commit(const step& launched) {
    auto entries = std::vector<pagedkv::batch_entry>{};
    for (const auto* r : launched.rows) {
      entries.push_back({.id = r->sequence, .num_computed_tokens = r->num_computed});
    }
    auto failures = std::array<pagedkv::batch_failure, max_rows>{};
    static_cast<void>(cache_.append_batch(entries, {.failures = failures}).value());
  }

  cache_type& cache_;
  pagedkv::request_tracker<cache_type> requests_;
  hip::stream stream_;
  std::array<step, 2> steps_;
  std::deque<request> all_;
  std::int64_t num_cached_ = 0;
};

/// Whether the answer is the one that the model gives without a cache.
bool is_right(const request& r) {
  auto expected = std::vector(r.tokens.begin(), r.tokens.begin() + static_cast<std::ptrdiff_t>(r.num_given));
  while (expected.size() < r.tokens.size()) {
    auto sum = r.variant;
    for (auto i = std::size_t{0}; i < expected.size(); ++i) {
      sum += static_cast<std::int64_t>(i % 7 + 1) * expected[i];
    }
    expected.push_back(static_cast<token>(sum % vocabulary));
  }
  return expected == r.tokens && r.ended();
}

std::vector<token> make_prompt(std::size_t num_shared, std::size_t num_own, token first) {
  auto prompt = std::vector<token>(num_shared + num_own, 7);
  std::iota(prompt.begin() + static_cast<std::ptrdiff_t>(num_shared), prompt.end(), first);
  return prompt;
}

}  // namespace engine

int main() {
  if (const auto device = engine::hip::check_device(0); !device) {
    std::printf("%s\n", device.error().message().c_str());
    return 0;
  }
  auto device_memory = engine::hip::device_allocator{};
  const auto num_bytes = std::size_t{1} << 20;
  auto* const all_memory = device_memory.allocate(num_bytes, 4096);
  {
    const auto config = pagedkv::cache_config{.block_size = engine::block_size, .num_blocks = 24, .head_dim = 4};
    auto cache = engine::cache_type(config, pagedkv::caller_memory({all_memory, num_bytes}));
    auto served = engine::serving(cache);
    auto normal = pagedkv::request_options{};
    normal.may_preempt = true;
    normal.sequence.first_chunk = engine::max_chunk;
    auto urgent = normal;
    urgent.sequence.priority = 90;
    served.submit({.tokens = engine::make_prompt(40, 50, 10), .final_length = 130, .forks = true, .options = normal});
    for (auto i = 0; i < 4; ++i) {
      served.submit({.tokens = engine::make_prompt(40, 8, 20 * i), .final_length = 80, .options = normal});
    }
    served.submit({.tokens = engine::make_prompt(0, 100, 3), .final_length = 140, .options = urgent});
    served.run();

    const auto num_right = std::ranges::count_if(served.all(), engine::is_right);
    std::printf("%d of %d answers are right; %d tokens were found in the cache, %d requests were preempted\n",
                static_cast<int>(num_right), static_cast<int>(served.all().size()),
                static_cast<int>(served.num_cached()), static_cast<int>(served.num_preemptions()));
    if (cache.statistics().blocks.in_use != 0 || num_right != static_cast<std::ptrdiff_t>(served.all().size())) {
      return 1;
    }
  }
  device_memory.deallocate(all_memory, num_bytes);
  return 0;
}
