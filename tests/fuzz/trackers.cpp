// Operations of a request tracker over a small cache, chosen by the bytes: each request is in the state and has the
// tokens that the outcomes of its operations say, the cache's invariants hold, and nothing is in use when all have
// ended.

#include "operations.hpp"
#include "target.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/requests/request_tracker.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pagedkv::fuzz {

namespace {

template <class Cache>
class tracker_driver {
 public:
  explicit tracker_driver(input bytes)
      : bytes_(bytes), cache_(small()), tracker_(std::in_place, cache_, tracker_config{most_open, 3}) {}

  void run() {
    while (!bytes_.at_end()) {
      const auto number = bytes_.below(20);
      operate(number);
      check(number);
    }
    for (const auto step : steps_) {
      require(cache_.retire_step(step).has_value(), "an open step is not retired");
    }
    if (bytes_.below(2) == 0) {
      while (!open_.empty()) {
        require(end(open_.back().id, bytes_.below(3)), "a request does not end");
        open_.pop_back();
      }
    }
    tracker_.reset();  // releases the rest
    check_invariants(cache_, "the end");
    const auto left = cache_.statistics();
    require(left.num_sequences == 0 && left.blocks.in_use == 0, "a request's sequence is left at the end");
  }

 private:
  static constexpr auto most_open = std::int32_t{8};

  struct request {
    request_id id{};
    request_state state = request_state::running;
    std::uint8_t priority = 0;
    std::vector<token> tokens;
  };

  void check(int number) {
    const auto behind = std::to_string(number);
    check_invariants(cache_, behind);
    auto num_running = std::int64_t{0};
    auto num_preempted = std::int64_t{0};
    for (const auto& each : open_) {
      const auto found = tracker_->describe(each.id);
      require(found.has_value() && found->state == each.state, "a request has another state, behind " + behind);
      num_preempted += each.state == request_state::preempted;
      if (each.state == request_state::running) {
        ++num_running;
        const auto sequence = cache_.describe(found->sequence);
        require(sequence.has_value() && sequence->num_tokens == std::ssize(each.tokens),
                "a request has other tokens, behind " + behind);
      }
    }
    const auto counted = tracker_->statistics();
    require(counted.running == num_running && counted.preempted == num_preempted &&
                counted.waiting == std::ssize(open_) - num_running - num_preempted,
            "requests are miscounted, behind " + behind);
    require(cache_.statistics().num_sequences == num_running, "sequences are not those of requests, behind " + behind);
  }

  [[nodiscard]] request* any() {
    return open_.empty() ? nullptr : &open_[static_cast<std::size_t>(bytes_.take()) % open_.size()];
  }
  [[nodiscard]] sequence_id sequence_of(const request& of) { return tracker_->describe(of.id).value().sequence; }

  request_options options() {
    auto made = request_options{};
    made.sequence.priority = static_cast<std::uint8_t>(bytes_.below(3));
    made.sequence.salt = salt{static_cast<std::uint64_t>(bytes_.below(2))};
    made.may_preempt = bytes_.below(2) == 0;
    if (bytes_.below(4) == 0) {
      made.sequence.first_chunk = bytes_.below(8);
    }
    return made;
  }

  void note_preempted(std::span<const request_id> ids) {
    for (const auto id : ids) {
      const auto found = std::ranges::find(open_, id, &request::id);
      require(found != open_.end() && found->state == request_state::running, "a request gives way that cannot");
      found->state = request_state::preempted;
    }
  }
  void note_start(request& of, const submission& made) {
    require(made.num_cached_tokens <= std::max<std::int64_t>(std::ssize(of.tokens) - 1, 0), "all tokens are cached");
    require(made.num_tokens <= std::ssize(of.tokens), "a request has more tokens than it was given");
    of.tokens.resize(static_cast<std::size_t>(made.num_tokens));
    of.state = request_state::running;
  }

  void operate(int number) {
    switch (number) {
      case 0:
      case 1:
      case 2: return submit();
      case 3: return enqueue();
      case 4:
      case 5: return append();
      case 6:
      case 7: return commit();
      case 8: return batch();
      case 9: return fork();
      case 10: return adopt();
      case 11:
      case 12: return end_one();
      case 13: return preempt();
      case 14:
      case 15: return resume();
      case 16: return step();
      case 17: return truncate();
      case 18: return tracker_->purge();
      default: return use_ended();
    }
  }

  void submit() {
    const auto how = options();
    auto made = request{{}, request_state::running, how.sequence.priority, tokens_of(bytes_, 24)};
    const auto submitted = tracker_->submit(token_run{made.tokens}, how);
    note_preempted(submitted.preempted());
    if (submitted) {
      made.id = submitted->id;
      note_start(made, *submitted);
      open_.push_back(std::move(made));
    }
  }
  void enqueue() {
    const auto how = options();
    const auto made = tracker_->enqueue(how);
    require(made.has_value() == (std::ssize(open_) < most_open), "a tracker follows another number of requests");
    if (made) {
      open_.push_back({*made, request_state::waiting, how.sequence.priority, tokens_of(bytes_, 24)});
    }
  }
  void append() {
    auto* const to = any();
    if (to == nullptr) {
      return;
    }
    const auto more = tokens_of(bytes_, 9);
    const auto appended = tracker_->append(to->id, token_run{more});
    require(!appended || to->state == request_state::running, "a request without a sequence gets tokens");
    note_preempted(appended.preempted());
    if (appended) {
      to->tokens.insert(to->tokens.end(), more.begin(), more.end());
    }
  }
  void commit() {
    if (const auto* const of = any(); of != nullptr && of->state == request_state::running) {
      const auto all = std::ssize(of->tokens);
      const auto num_computed = bytes_.below(2) == 0 ? all : bytes_.below(static_cast<int>(all) + 2);
      static_cast<void>(cache_.commit(sequence_of(*of), num_computed));
    }
  }
  void batch() {
    const auto more = tokens_of(bytes_, 3);
    auto ids = std::vector<request_id>{};
    auto entries = std::vector<batch_entry>{};
    for (const auto& each : open_) {
      if (each.state == request_state::running) {
        ids.push_back(each.id);
        entries.push_back({.id = sequence_of(each), .run = token_run{more}, .num_ahead = bytes_.below(2)});
        if (bytes_.below(2) == 0) {
          entries.back().num_computed_tokens = std::ssize(each.tokens);
        }
      }
    }
    auto slots = std::vector<slot>(entries.size() * 4);
    auto failures = std::vector<batch_failure>(entries.size());
    const auto done = tracker_->append_batch(ids, entries, {.slots = slots, .failures = failures});
    require(done.has_value(), "a batch is refused whole");
    note_preempted(done.preempted());
    auto has_failed = std::vector<bool>(entries.size());
    for (const auto& failure : std::span{failures}.first(done->num_failures)) {
      require(!has_failed[failure.entry], "an entry fails twice");
      has_failed[failure.entry] = true;
    }
    for (auto i = std::size_t{0}; i < ids.size(); ++i) {
      auto& of = *std::ranges::find(open_, ids[i], &request::id);
      require(has_failed[i] || of.state == request_state::running, "an entry of a request that gave way succeeds");
      if (!has_failed[i]) {
        of.tokens.insert(of.tokens.end(), more.begin(), more.end());
      }
    }
  }
  void fork() {
    if (const auto* const of = any()) {
      auto copy = *of;
      if (const auto made = tracker_->fork(of->id)) {
        require(copy.state == request_state::running, "a request without a sequence is forked");
        copy.id = made->id;
        open_.push_back(std::move(copy));
      }
    }
  }
  void adopt() {
    const auto how = options();
    auto made = request{{}, request_state::running, how.sequence.priority, tokens_of(bytes_, 12)};
    const auto sequence = cache_.create_sequence(token_run{made.tokens});
    if (!sequence) {
      return;
    }
    if (const auto adopted = tracker_->adopt(sequence->id, how)) {
      require(!tracker_->adopt(sequence->id, how), "a sequence is of two requests");
      made.id = *adopted;
      open_.push_back(std::move(made));
    } else {
      require(cache_.release(sequence->id).has_value(), "a sequence that is not adopted is gone");
    }
  }
  [[nodiscard]] bool end(request_id id, int how) {
    switch (how) {
      case 0: return tracker_->finish(id).has_value();
      case 1: return tracker_->cancel(id).has_value();
      default: return tracker_->fail(id, {error_code::backend_failure, "of a test", 1}).has_value();
    }
  }
  void end_one() {
    if (const auto* const of = any()) {
      const auto id = of->id;
      require(end(id, bytes_.below(3)), "a request does not end");
      ended_.push_back(id);
      std::erase_if(open_, [&](const request& each) { return each.id == id; });
    }
  }
  void preempt() {
    if (auto* const of = any(); of != nullptr && tracker_->preempt(of->id)) {
      require(of->state == request_state::running, "a request without a sequence is preempted");
      of->state = request_state::preempted;
    }
  }
  /// Mostly the one that ranks highest.
  void resume() {
    const auto ids = tracker_->resumable().value();
    auto last = std::uint8_t{100};
    for (const auto id : ids) {
      const auto found = std::ranges::find(open_, id, &request::id);
      require(found != open_.end() && found->state != request_state::running, "a request resumes that cannot");
      require(found->priority <= last, "requests are not ranked");
      last = found->priority;
    }
    const auto waits = [](const request& each) { return each.state != request_state::running; };
    require(std::ssize(ids) == std::ranges::count_if(open_, waits), "a request cannot be resumed");
    auto* const of = bytes_.below(4) == 0 ? any()
                     : ids.empty()       ? nullptr
                                         : &*std::ranges::find(open_, ids.front(), &request::id);
    if (of == nullptr) {
      return;
    }
    const auto resumed = tracker_->resume(of->id, token_run{of->tokens});
    require(!resumed || of->state != request_state::running, "a running request is resumed");
    note_preempted(resumed.preempted());
    if (resumed) {
      note_start(*of, *resumed);
    }
  }
  void step() {
    if (!steps_.empty() && bytes_.below(2) == 0) {
      require(cache_.retire_step(steps_.front()).has_value(), "an open step is not retired");
      steps_.erase(steps_.begin());
    } else if (const auto opened = cache_.begin_step(); opened) {
      steps_.push_back(*opened);
    }
  }
  void truncate() {
    if (auto* const of = any(); of != nullptr && of->state == request_state::running) {
      const auto num_tokens = bytes_.below(static_cast<int>(of->tokens.size()) + 2);
      if (cache_.truncate(sequence_of(*of), num_tokens)) {
        of->tokens.resize(static_cast<std::size_t>(num_tokens));
      }
    }
  }
  void use_ended() {
    if (ended_.empty()) {
      return;
    }
    const auto id = ended_[static_cast<std::size_t>(bytes_.take()) % ended_.size()];
    const auto more = std::array{token{1}};
    require(!tracker_->append(id, token_run{more}) && !tracker_->fork(id) && !tracker_->preempt(id) &&
                !tracker_->resume(id, token_run{more}) && !end(id, bytes_.below(3)),
            "a request is used that has ended");
  }

  reader bytes_;
  Cache cache_;
  std::optional<request_tracker<Cache>> tracker_;
  std::vector<request> open_;
  std::vector<request_id> ended_;
  std::vector<step_id> steps_;
};

}  // namespace

const target operations_of_trackers{"operations_of_trackers", random_bytes,
                                    [](input bytes) { tracker_driver<kv_cache<>>{bytes}.run(); }};

}  // namespace pagedkv::fuzz
