#pragma once

#include "../engine.hpp"
#include "statistics.hpp"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace llama {

/// Prompts that are answered together, each as often as the options say.
struct job {
  std::vector<std::vector<pagedkv::token>> prompts;
  generation_options options;

  [[nodiscard]] std::size_t num_answers() const noexcept { return prompts.size() * options.num_samples; }
};

/// News of one answer of a job: a token, its end, or both.
struct news {
  std::size_t answer = 0;  // those to the first prompt come first
  std::optional<pagedkv::token> token = {};
  generation_state state = generation_state::running;
  std::string failure = {};
  std::int64_t num_cached_tokens = 0;  // of the prompt
};

/// An engine on a thread of its own. Any number of threads submit jobs, and wait for news of them. Where the engine
/// throws, it computes no more: all answers fail with that error's message, those of later jobs at once.
class service {
  struct open_job;

 public:
  /// A submitted job. Its end cancels the answers that are still open. One thread at a time uses it.
  class ticket {
   public:
    ticket(service& from, std::shared_ptr<open_job> of) : service_(&from), job_(std::move(of)) {}
    ticket(ticket&&) = default;
    ticket& operator=(ticket&&) = delete;
    ~ticket();

    /// Takes the news since the last call; waits up to `longest` for some, and returns none if none came.
    [[nodiscard]] std::vector<news> take(std::chrono::milliseconds longest);
    void cancel(std::size_t answer);

   private:
    service* service_;
    std::shared_ptr<open_job> job_;  // none: moved from
  };

  /// `on_failure`: called once, on the engine's thread, when the engine has thrown. Does not throw.
  explicit service(std::unique_ptr<engine> from, std::function<void()> on_failure = {});
  service(const service&) = delete;
  service& operator=(const service&) = delete;
  ~service();

  /// Errors: those of `engine::check`. Behind `stop`, or when the engine has thrown, all answers fail.
  [[nodiscard]] pagedkv::result<ticket> submit(job wanted);
  /// Whether the pool holds that many answers to each prompt of such a length at once.
  [[nodiscard]] bool fits(std::size_t num_prompt_tokens, std::size_t max_tokens, std::size_t num_samples) const {
    return engine_->fits(num_prompt_tokens, max_tokens, num_samples);
  }

  /// Cancels all jobs, and ends the thread. Returns what is wrong then: a sentence for each fault of the cache, or the
  /// one of an engine that has thrown.
  std::vector<std::string> stop();

  /// As they were behind the last step.
  [[nodiscard]] service_statistics statistics() const;

 private:
  struct dropped_answer {
    std::shared_ptr<open_job> of;
    std::optional<std::size_t> answer;  // none: all
  };

  void drop(dropped_answer which);
  void work();
  void compute_jobs();
  /// Ends every open answer, and those of jobs to come.
  void fail(const std::string& reason);
  void start(const std::shared_ptr<open_job>& added);
  void hear(open_job& of, std::size_t prompt, const sample& from, std::optional<pagedkv::token> next);
  void cancel(const dropped_answer& which);
  void publish();

  std::unique_ptr<engine> engine_;
  std::function<void()> on_failure_;
  // Of the engine's thread:
  std::list<std::shared_ptr<open_job>> open_;
  std::vector<const sample*> ended_;  // to be forgotten behind the step

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable came_;
  bool stops_ = false;
  std::string failure_;  // of the engine; empty: none
  std::list<std::shared_ptr<open_job>> added_;
  std::vector<dropped_answer> dropped_;
  service_statistics statistics_;
  std::thread thread_;
};

}  // namespace llama
