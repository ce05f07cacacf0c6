#include "replay.hpp"

#include "contents.hpp"
#include "live_requests.hpp"
#include "options.hpp"
#include "progress.hpp"
#include "replayed_trace.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <future>
#include <mutex>
#include <type_traits>
#include <utility>

namespace pagedkv::replay {

namespace {

/// A permit for a live request, returned unless a request enters.
class permit {
 public:
  explicit permit(live_requests& live) : live_(live) {}
  permit(const permit&) = delete;
  permit& operator=(const permit&) = delete;
  ~permit() {
    if (!entered_) {
      live_.leave();
    }
  }

  void enter(const live_request& request) {
    live_.enter(request);
    entered_ = true;
  }

 private:
  live_requests& live_;
  bool entered_ = false;
};

/// Collects the results of all workers.
class collector {
 public:
  void add_violation(std::string sentence) {
    constexpr auto num_kept = std::size_t{10};
    const auto lock = std::lock_guard{mutex_};
    ++found_.num_violations;
    if (found_.violations.size() < num_kept) {
      found_.violations.push_back(std::move(sentence));
    }
  }

  void add(const outcome& part) {
    const auto lock = std::lock_guard{mutex_};
    found_.num_requests += part.num_requests;
    found_.num_references += part.num_references;
    found_.refused_requests += part.refused_requests;
    found_.failed_requests += part.failed_requests;
    found_.output_tokens += part.output_tokens;
    found_.slots += part.slots;
    found_.unfilled_slots += part.unfilled_slots;
    raise_peak(part.peak);
  }

  void raise_peak(const block_counts& counts) { raise(found_.peak, counts); }

  static void raise(block_counts& peak, const block_counts& counts) {
    peak.free = std::max(peak.free, counts.free);
    peak.in_use = std::max(peak.in_use, counts.in_use);
    peak.evictable = std::max(peak.evictable, counts.evictable);
    peak.retiring = std::max(peak.retiring, counts.retiring);
  }

  [[nodiscard]] outcome& found() { return found_; }

 private:
  std::mutex mutex_;
  outcome found_;
};

template <class Rows>
[[nodiscard]] auto view_of(Rows& rows) {
  constexpr auto stride = static_cast<std::int64_t>(row_dim);
  return token_rows<std::remove_pointer_t<decltype(rows.front().data())>>{
      rows.empty() ? nullptr : rows.front().data(), stride, stride,
      static_cast<std::int64_t>(rows.size()),       1,      static_cast<std::int32_t>(row_dim)};
}

/// One thread's part: requests taken in order from the queue that all workers share.
[[nodiscard]] bool is_refusal(const error& reason) {
  return reason.code == error_code::capacity_exhausted || reason.code == error_code::never_fits;
}

class worker {
 public:
  struct shared_state {
    engine& served;
    const workload& work;
    const options& chosen;
    progress& shown;
    live_requests live;
    collector collected;
    std::atomic<std::size_t> next_request{0};
  };

  explicit worker(shared_state& shared)
      : shared_(shared),
        block_size_(static_cast<std::size_t>(shared.work.block_size)),
        tokens_(num_tokens_of_prompt(shared.work.longest_prompt, shared.work.block_size)),
        slots_(shared.work.longest_prompt),
        keys_(shared.work.longest_prompt),
        values_(shared.work.longest_prompt) {}

  void run() {
    for (;;) {
      const auto index = shared_.next_request.fetch_add(1, std::memory_order_relaxed);
      if (index >= shared_.work.requests.size()) {
        break;
      }
      serve(index);
      if ((index + 1) % check_interval == 0 && can_check()) {
        check_invariants(shared_);
      }
      shared_.shown.advance();
    }
    shared_.collected.add(part_);
  }

  static void check_invariants(shared_state& shared) {
    for (auto& sentence : shared.served.check_invariants()) {
      shared.collected.add_violation(std::move(sentence));
    }
  }

  static void end(shared_state& shared, const live_request& request) {
    expect(shared, shared.served.finish(request.id, request.num_answer_tokens), "finish");
  }

 private:
  static constexpr auto check_interval = std::size_t{1000};

  [[nodiscard]] bool can_check() const {
    return shared_.chosen.num_threads == 1 || shared_.served.can_check_any_time();
  }

  /// Reports operations that should not have failed.
  static bool expect(shared_state& shared, const result<void>& done, const char* operation) {
    if (!done) {
      shared.collected.add_violation(std::string{operation} + ": " + done.error().message());
    }
    return done.has_value();
  }

  void serve(std::size_t index) {
    const auto& request = shared_.work.requests[index];
    ++part_.num_requests;
    part_.num_references += static_cast<std::int64_t>(request.blocks.size());
    const auto tokens = prompt_of(request, index);

    if (const auto oldest = shared_.live.take_permit()) {
      end(shared_, *oldest);
    }
    auto taken = permit{shared_.live};
    shared_.served.advance_time(static_cast<timestamp>(request.arrival_ms * 1'000'000));
    const auto submitted = shared_.served.submit(tokens);
    if (!submitted) {
      ++part_.refused_requests;
      if (!is_refusal(submitted.error())) {
        shared_.collected.add_violation("submit: " + submitted.error().message());
      }
      return;
    }
    prefill(request, *submitted, static_cast<std::int64_t>(tokens.size()));
    if (!shared_.chosen.decode || decode(*submitted, tokens.size(), request.num_output_tokens, index)) {
      note_sizes(submitted->sequence);
      taken.enter({submitted->id, shared_.chosen.decode ? 0 : request.num_output_tokens});
    }
  }

  [[nodiscard]] std::span<const token> prompt_of(const support::trace_request& request, std::size_t index) {
    const auto all = std::span{tokens_};
    for (std::size_t i = 0; i < request.blocks.size(); ++i) {
      fill_tokens(request.blocks[i], all.subspan(i * block_size_, block_size_));
    }
    const auto num_tokens = num_tokens_of_prompt(request.blocks.size(), shared_.work.block_size);
    tokens_[num_tokens - 1] = static_cast<token>(index);
    return all.first(num_tokens);
  }

  /// Compares the cached blocks with the contents of their ids, writes the others, and commits.
  void prefill(const support::trace_request& request, const submission& submitted, std::int64_t num_tokens) {
    const auto num_blocks = request.blocks.size();
    for (std::size_t i = 0; i < num_blocks; ++i) {
      const auto first_token = static_cast<std::int64_t>(i * block_size_);
      expect(shared_, shared_.served.slot_mapping(submitted.sequence, first_token, {&slots_[i], 1}), "slot_mapping");
    }
    const auto num_cached = static_cast<std::size_t>(submitted.num_cached_tokens) / block_size_;
    expect(shared_, shared_.served.read(std::span{slots_}.first(num_cached), view_of(keys_), view_of(values_)), "read");
    for (std::size_t i = 0; i < num_cached; ++i) {
      const auto expected = shared_.served.stored_and_read(rows_of(request.blocks[i]));
      if (keys_[i] != expected.key || values_[i] != expected.value) {
        shared_.collected.add_violation("a prefix hit served other contents than block " +
                                        std::to_string(request.blocks[i]));
      }
    }
    for (std::size_t i = num_cached; i < num_blocks; ++i) {
      const auto [key, value] = rows_of(request.blocks[i]);
      keys_[i - num_cached] = key;
      values_[i - num_cached] = value;
    }
    const auto computed = std::span{slots_}.first(num_blocks).subspan(num_cached);
    expect(shared_, shared_.served.write(computed, view_of(std::as_const(keys_)), view_of(std::as_const(values_))),
           "write");
    expect(shared_, shared_.served.commit(submitted.sequence, num_tokens), "commit");
  }

  /// False when the pool was exhausted, so that the request has failed.
  [[nodiscard]] bool decode(const submission& submitted, std::size_t num_tokens, std::uint32_t num_output_tokens,
                            std::size_t index) {
    auto output = static_cast<std::uint32_t>(mix(index));
    for (auto i = std::uint32_t{0}; i < num_output_tokens; ++i) {
      const auto appended = shared_.served.append(submitted.id, static_cast<token>(++output & 0x7fff'ffff));
      if (!appended) {
        if (!is_refusal(appended.error())) {
          shared_.collected.add_violation("append: " + appended.error().message());
        }
        note_sizes(submitted.sequence);
        expect(shared_, shared_.served.fail(submitted.id, appended.error()), "fail");
        ++part_.failed_requests;
        return false;
      }
      ++part_.output_tokens;
    }
    const auto total = static_cast<std::int64_t>(num_tokens) + num_output_tokens;
    expect(shared_, shared_.served.commit(submitted.sequence, total), "commit");
    return true;
  }

  void note_sizes(sequence_id id) {
    if (const auto held = shared_.served.describe(id)) {
      const auto slots = held->num_blocks * shared_.work.block_size;
      part_.slots += slots;
      part_.unfilled_slots += slots - held->num_tokens;
    }
    collector::raise(part_.peak, shared_.served.statistics().blocks);
  }

  shared_state& shared_;
  std::size_t block_size_;
  std::vector<token> tokens_;
  std::vector<slot> slots_;
  std::vector<row> keys_;
  std::vector<row> values_;
  outcome part_;
};

void run_workers(worker::shared_state& shared) {
  auto workers = std::vector<std::future<void>>{};
  for (auto i = 1; i < shared.chosen.num_threads; ++i) {
    workers.push_back(std::async(std::launch::async, [&] { worker{shared}.run(); }));
  }
  worker{shared}.run();
  for (auto& each : workers) {
    each.get();
  }
}

}  // namespace

outcome run(engine& served, const workload& work, const options& chosen, progress& shown) {
  auto shared = worker::shared_state{
      served, work, chosen, shown, live_requests{static_cast<std::size_t>(chosen.concurrency)}, {}};
  const auto start = std::chrono::steady_clock::now();
  const auto cpu_start = std::clock();
  shared.collected.raise_peak(served.statistics().blocks);
  worker::check_invariants(shared);
  run_workers(shared);
  worker::check_invariants(shared);
  while (const auto oldest = shared.live.remove_oldest()) {
    worker::end(shared, *oldest);
  }
  worker::check_invariants(shared);

  auto& found = shared.collected.found();
  found.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  found.cpu_seconds = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
  found.at_end = served.statistics();
  found.tiers = served.tiers();
  found.memory = served.memory();
  shared.collected.raise_peak(found.at_end.blocks);
  found.peak.in_use = found.at_end.peak_in_use;
  return found;
}

}  // namespace pagedkv::replay
