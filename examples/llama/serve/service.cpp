#include "service.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

namespace llama {

struct service::open_job {
  explicit open_job(job of) : wanted(std::move(of)), answers(wanted.num_answers()), num_open(answers.size()) {}

  struct answer {
    const sample* running = nullptr;
    bool is_open = true;
  };
  job wanted;
  // Of the engine's thread, once the job is submitted:
  std::vector<answer> answers;
  std::size_t num_open;

  std::mutex mutex;  // guards what follows
  std::condition_variable came;
  std::vector<news> arrived;

  void put(news latest) {
    if (latest.state != generation_state::running) {
      answers[latest.answer].is_open = false;
      --num_open;
    }
    const auto lock = std::lock_guard(mutex);
    arrived.push_back(std::move(latest));
    came.notify_one();
  }
  void fail(const std::string& reason) {
    for (auto i = std::size_t{0}; i < answers.size(); ++i) {
      if (answers[i].is_open) {
        put({.answer = i, .state = generation_state::failed, .failure = reason});
      }
    }
  }
};

service::ticket::~ticket() {
  if (job_) {
    service_->drop({job_, {}});
  }
}

std::vector<news> service::ticket::take(std::chrono::milliseconds longest) {
  auto lock = std::unique_lock(job_->mutex);
  job_->came.wait_for(lock, longest, [&] { return !job_->arrived.empty(); });
  return std::exchange(job_->arrived, {});
}

void service::ticket::cancel(std::size_t answer) { service_->drop({job_, answer}); }

service::service(std::unique_ptr<engine> from, std::function<void()> on_failure)
    : engine_(std::move(from)), on_failure_(std::move(on_failure)) {
  publish();
  thread_ = std::thread([this] { work(); });
}

service::~service() { stop(); }

pagedkv::result<service::ticket> service::submit(job wanted) {
  for (const auto& prompt : wanted.prompts) {
    if (const auto checked = engine_->check(prompt, wanted.options); !checked) {
      return checked.error();
    }
  }
  const auto added = std::make_shared<open_job>(std::move(wanted));
  const auto lock = std::lock_guard(mutex_);
  if (!failure_.empty()) {
    added->fail(failure_);
  } else if (stops_) {
    added->fail("the server stops");
  } else {
    added_.push_back(added);
    came_.notify_one();
  }
  return ticket(*this, added);
}

std::vector<std::string> service::stop() {
  {
    const auto lock = std::lock_guard(mutex_);
    stops_ = true;
    came_.notify_one();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
  if (!failure_.empty()) {
    return {failure_};  // a pass was lost: the cache says nothing any more
  }
  auto faults = engine_->check_invariants();
  if (const auto in_use = engine_->cache_statistics().blocks.in_use; in_use != 0) {
    faults.push_back(std::to_string(in_use) + " blocks are in use");
  }
  return faults;
}

service_statistics service::statistics() const {
  const auto lock = std::lock_guard(mutex_);
  return statistics_;
}

void service::drop(dropped_answer which) {
  const auto lock = std::lock_guard(mutex_);
  dropped_.push_back(std::move(which));
  came_.notify_one();
}

void service::work() {
  try {
    compute_jobs();
  } catch (const std::exception& error) {
    fail("the engine failed: " + std::string(error.what()));
  }
}

void service::compute_jobs() {
  for (auto is_busy = false, stops = false; !stops;) {
    auto added = std::list<std::shared_ptr<open_job>>{};
    auto dropped = std::vector<dropped_answer>{};
    {
      auto lock = std::unique_lock(mutex_);
      came_.wait(lock, [&] { return is_busy || stops_ || !added_.empty() || !dropped_.empty(); });
      added.swap(added_);
      dropped.swap(dropped_);
      stops = stops_;
    }
    const auto num_before = std::ssize(open_);
    open_.splice(open_.end(), added);  // all before one starts, as that may throw
    std::for_each(std::next(open_.begin(), num_before), open_.end(), [&](const auto& each) { start(each); });
    std::ranges::for_each(dropped, [&](const auto& each) { cancel(each); });
    if (stops) {
      std::ranges::for_each(engine_->samples(), [&](const sample* each) { engine_->cancel(*each); });
    }
    is_busy = engine_->step();
    std::ranges::for_each(std::exchange(ended_, {}), [&](const sample* each) { engine_->forget(*each); });
    open_.remove_if([](const auto& each) { return each->num_open == 0; });
    publish();
  }
}

void service::fail(const std::string& reason) {
  {
    const auto lock = std::lock_guard(mutex_);
    failure_ = reason;
    open_.splice(open_.end(), added_);
  }
  std::ranges::for_each(open_, [&](const auto& each) { each->fail(reason); });
  open_.clear();
  if (on_failure_) {
    on_failure_();
  }
}

void service::start(const std::shared_ptr<open_job>& added) {
  const auto& wanted = added->wanted;
  for (auto prompt = std::size_t{0}; prompt < wanted.prompts.size(); ++prompt) {
    const auto listener = [this, added, prompt](const sample& from, std::optional<pagedkv::token> next) {
      hear(*added, prompt, from, next);
    };
    added->answers[prompt * wanted.options.num_samples].running =
        engine_->submit(wanted.prompts[prompt], wanted.options, listener).value();
  }
}

void service::hear(open_job& of, std::size_t prompt, const sample& from, std::optional<pagedkv::token> next) {
  const auto first = prompt * of.wanted.options.num_samples;
  auto latest = news{.answer = first + from.index,
                     .token = next,
                     .state = from.state,
                     .failure = from.failure ? from.failure->message() : "",
                     .num_cached_tokens = from.num_cached_tokens};
  of.answers[latest.answer].running = from.is_open() ? &from : nullptr;
  if (!from.is_open()) {
    ended_.push_back(&from);
  }
  // The other answers begin with the first token of this one: without a token there will be none.
  const bool ends_all = from.index == 0 && from.answer().empty();
  const auto last = ends_all ? first + of.wanted.options.num_samples - 1 : latest.answer;
  for (; latest.answer <= last; ++latest.answer) {
    of.put(latest);
  }
}

void service::cancel(const dropped_answer& which) {
  const auto answers = which.of->answers;
  for (auto i = std::size_t{0}; i < answers.size(); ++i) {
    if (answers[i].running != nullptr && which.answer.value_or(i) == i) {
      engine_->cancel(*answers[i].running);
    }
  }
}

void service::publish() {
  const auto& made = engine_->statistics();
  const auto microseconds = [](auto time) {
    return std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  };
  const auto counts = engine_counts{.waiting = static_cast<std::int64_t>(engine_->num_waiting()),
                                    .steps = made.steps,
                                    .computed_tokens = made.computed_tokens,
                                    .in_model = microseconds(made.in_model),
                                    .in_cache = microseconds(made.in_cache),
                                    .elsewhere = microseconds(made.in_steps - made.in_model - made.in_cache)};
  auto taken = service_statistics{engine_->cache_statistics(), engine_->cache_memory(), engine_->tiers(),
                                  engine_->request_statistics(), counts};
  const auto lock = std::lock_guard(mutex_);
  statistics_ = std::move(taken);
}

}  // namespace llama
