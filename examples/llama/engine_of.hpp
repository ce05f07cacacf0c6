#pragma once

#include "drafts.hpp"
#include "engine.hpp"
#include "step.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/tier/session_file.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <future>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace llama {

/// A cache that may find K/V in slower memory than the device's.
template <class Cache>
concept has_tiers = requires(Cache& cache, pagedkv::sequence_id id) { cache.settle(id); };

template <class Cache>
class paged_memory;

/// The model that computes the passes of an engine over one kind of cache, the memory where they find K and V, and the
/// allocator of host memory that the cache's backend reaches.
template <class Cache>
struct passes_over {
  using model = llama::model;
  using memory = paged_memory<Cache>;
  using host_allocator = pagedkv::host_allocator;
};

/// An engine over one kind of cache.
///
/// The step's order: running requests commit what the step before computed and append their last token, in one call, so
/// that blocks go to them first; waiting ones are admitted while they fit; the model runs. Prompts of a model whose
/// layers all attend to all tokens are committed before the model runs, so that those admitted later in the same step
/// share them: the pass writes K and V of a layer for all rows before any row reads them. Windows and states are
/// released and saved by commits, after the pass has read and written them, and a commit copies to tiers what the pass
/// wrote.
///
/// With two steps in flight, all this happens while the pass before computes: a row gets a slot ahead for the token that
/// this one is to choose. Blocks that are released meanwhile wait for the passes that may touch them.
///
/// A request whose K/V comes from a slow tier runs from the step on in which it is there.
template <class Cache>
class engine_of final : public engine {
 public:
  using model = typename passes_over<Cache>::model;
  using memory_type = typename passes_over<Cache>::memory;
  using options_of_session = pagedkv::session_options<typename passes_over<Cache>::host_allocator>;
  using stream = typename Cache::stream;

  /// `name`: of the model, in sessions. Blocks are copied on the stream.
  engine_of(model& with, const engine_sizes& sizes, std::unique_ptr<Cache> cache, std::string name, stream on = {});
  engine_of(const engine_of&) = delete;
  engine_of& operator=(const engine_of&) = delete;
  /// Waits until tiers have what they are to keep.
  ~engine_of() override;

  [[nodiscard]] pagedkv::result<void> check(std::span<const pagedkv::token> prompt,
                                            const generation_options& options) const override;
  [[nodiscard]] bool fits(std::size_t num_prompt_tokens, std::size_t max_tokens,
                          std::size_t num_samples) const override;
  pagedkv::result<const sample*> submit(std::vector<pagedkv::token> prompt, const generation_options& options,
                                        listener on_token) override;
  void cancel(const sample& which) override;
  void forget(const sample& which) override;
  pagedkv::result<std::vector<pagedkv::token>> restore(const std::string& file) override;
  bool step() override;

  [[nodiscard]] std::vector<const sample*> samples() const override;
  [[nodiscard]] std::size_t num_waiting() const noexcept override { return waiting_.size(); }
  [[nodiscard]] const engine_statistics& statistics() const noexcept override { return statistics_; }
  [[nodiscard]] pagedkv::tracker_statistics request_statistics() const noexcept override {
    return requests_.statistics();
  }
  [[nodiscard]] pagedkv::cache_statistics cache_statistics() const noexcept override { return cache_.statistics(); }
  [[nodiscard]] pagedkv::memory_profile cache_memory() const noexcept override { return cache_.memory(); }
  [[nodiscard]] std::vector<std::string> check_invariants() override { return cache_.check_invariants(); }

 private:
  using clock = std::chrono::steady_clock;
  using token = pagedkv::token;

  /// Adds its life to a sum.
  struct stopwatch {
    std::chrono::nanoseconds& sum;
    clock::time_point began = clock::now();
    ~stopwatch() { sum += clock::now() - began; }
  };
  template <class Part>
  struct timed_call {
    Part* called;
    stopwatch watch;
    Part* operator->() const noexcept { return called; }
  };
  /// A part of cache management for one call, whose time is added up.
  template <class Part>
  [[nodiscard]] timed_call<Part> timed(Part& called) {
    return {&called, {statistics_.in_cache}};
  }

  struct row : sample {
    pagedkv::request_id id = {};
    pagedkv::sequence_id sequence = {};
    bool submitted = false;
    std::int64_t length = 0;     // of the sequence
    std::int64_t scheduled = 0;  // tokens whose K/V passes write, those under way included
    std::int64_t computed = 0;   // tokens whose K/V is written
    std::int64_t committed = 0;
    bool is_loading = false;  // more of them are on their way from a tier
    draft_tree drafts;        // appended behind the tokens in this step
    random_numbers random;
    listener on_token;

    void tell(std::optional<token> next) const {
      if (on_token) {
        on_token(*this, next);
      }
    }
    void lose_sequence() {
      state = generation_state::waiting;
      length = scheduled = computed = committed = 0;
      is_loading = false;
      drafts = {};
    }
    /// Rows in a step, those of forks that are still to come included.
    [[nodiscard]] std::size_t num_rows() const { return index == 0 && answer().empty() ? options.num_samples : 1; }
    [[nodiscard]] std::int64_t num_tokens() const noexcept { return static_cast<std::int64_t>(tokens.size()); }
    [[nodiscard]] std::span<const token> from(std::int64_t first, std::int64_t end) const {
      return std::span(tokens).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first));
    }
  };

  /// A row's tokens in a pass.
  struct part {
    row* of;  // none: it has ended or given way
    std::int64_t begin;
    std::int64_t end;
    bool is_ahead;           // the last token is what the pass before chooses
    std::size_t num_wanted;  // logits
  };

  /// A step: its rows, and how they lie in the cache.
  struct pass {
    memory_type memory;
    std::vector<part> parts = {};
    step_tokens tokens = {};
    std::vector<pagedkv::sequence_id> ids = {};
    std::optional<pagedkv::step_id> opened = {};  // from its preparation until it has landed
    std::chrono::nanoseconds in_model = {};
  };

  [[nodiscard]] bool compute_step();
  /// Waits for the pass under way, and forgets both passes, of which one failed.
  void abandon_passes();

  /// Where the row's next chunk ends: within the budget and, with states, where the cache saves one.
  [[nodiscard]] std::int64_t end_of_chunk(const row& r) const;

  /// Commits what the step before computed, and appends the last token of every running request or the next chunk of
  /// its prompt, at the cost of requests that rank below. Those without success wait for the next step.
  void extend_running();

  /// Of all entries, in all groups.
  [[nodiscard]] std::size_t num_slots() const;

  /// Whether the row has what tiers loaded for it, and goes on.
  [[nodiscard]] bool has_arrived(row& r);
  /// Whether the step waited a little for a row that is still loading.
  [[nodiscard]] bool wait_for_loads();

  /// Guesses that the tokens repeat what followed their last two before, the latest time or, as a tree, several times.
  [[nodiscard]] draft_tree guess(const row& r) const;

  /// The row computes the tokens up to this one in the next pass.
  void take_part(row& r, std::int64_t end, bool is_ahead);

  /// Requests wait in the order of their priority: one that starts behind another never takes that one's blocks in the
  /// same step, which has published them and is still to compute them. Preempted ones are ahead of equal ones.
  void put_back(const std::vector<pagedkv::request_id>& preempted);

  /// Rows that the running requests take in a step, those of forks that are still to come included.
  [[nodiscard]] std::size_t num_rows() const;

  /// Starts requests, and resumes preempted ones, while they fit.
  void admit();

  [[nodiscard]] pagedkv::result<void> start(row& r);

  /// Whether the next pass can be prepared while one is under way: all that run go on, and need no other's blocks.
  [[nodiscard]] bool may_overlap() const;
  /// Finds the rows of the next pass, and where they lie.
  void prepare();
  void add(const part& of, bool with_masks);
  /// Begins the pass that was prepared: on a device, or in a thread if it is to overlap.
  void launch();
  /// Waits for the pass under way, and does what follows from its predictions.
  void land();
  /// The row is no longer in passes.
  void leave(const row& r);
  void commit(row& r, std::int64_t num_tokens);

  /// Takes the predicted tokens: one, and one more for each draft that was right. Wrong ones are cut off.
  void finish_row(const part& of, const predictions& predicted);

  /// Leaves these drafts of a row, and moves their K/V to where it would be without the others.
  void keep_drafts(row& r, const draft_tree& drafts, std::span<const std::int32_t> right);

  /// Starts the other answers to a prompt, on its blocks.
  void fork(row& r, const predictions& predicted);

  void take_tokens(row& r, std::span<const token> chosen);

  void fail(row& r, const pagedkv::error& reason);
  /// Publishes what the row computed, and saves it if that is wished.
  void keep(row& r);
  void end(row& r, generation_state how);

  model& model_;
  engine_sizes sizes_;
  std::string name_;
  std::unique_ptr<Cache> owned_cache_;
  Cache& cache_ = *owned_cache_;
  stream stream_;
  pagedkv::request_tracker<Cache> requests_;
  std::ptrdiff_t num_groups_ =
      std::ranges::count_if(model_.config().groups().all(), &pagedkv::group_config::holds_tokens);
  bool overlaps_ = sizes_.overlaps && sizes_.num_drafts == 0 && !model_.config().has(layer_kind::state);
  bool has_trees_ = memory_type::takes_trees && sizes_.num_branches > 1 && !model_.config().has(layer_kind::window);
  bool has_states_ = model_.config().has(layer_kind::state);
  bool commits_early_ = !has_states_ && !model_.config().has(layer_kind::window) && !has_tiers<Cache>;

  std::list<row> all_;
  std::deque<row*> waiting_;
  std::list<row*> running_;
  std::array<pass, 2> passes_;
  pass* next_ = &passes_[0];
  pass* flying_ = nullptr;  // the one under way
  std::future<predictions> predictions_;
  std::int64_t budget_ = 0;
  std::vector<std::vector<token>> runs_;
  std::vector<pagedkv::batch_entry> entries_;  // of running requests, with these runs
  std::vector<pagedkv::request_id> ids_of_requests_;
  std::vector<part> extended_;  // of these entries
  std::vector<pagedkv::batch_failure> failures_;
  std::vector<pagedkv::slot> slots_;
  engine_statistics statistics_;
};

/// An engine with host memory behind the cache, and what else is asked for behind that. Throws what `make_engine` does.
[[nodiscard]] std::unique_ptr<engine> make_tiered_engine(model& with, const engine_sizes& sizes, stored_as stored,
                                                         const tier_sizes& tiers);

}  // namespace llama
