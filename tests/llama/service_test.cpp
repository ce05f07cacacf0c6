#include "../../examples/llama/serve/service.hpp"

#include <catch2/catch_test_macros.hpp>

#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace llama;
using pagedkv::token;

namespace {

/// A step of a scripted engine.
enum class in_step { answer, wait, throw_error };

/// An engine without a model or a cache, whose steps a test writes down.
class scripted_engine final : public engine {
 public:
  struct script {
    std::vector<in_step> steps;
    std::counting_semaphore<> released{0};  // each step waits for one release
    bool throws_on_submission = false;
  };

  explicit scripted_engine(script& by) : script_(by) {}

  pagedkv::result<void> check(std::span<const token>, const generation_options&) const override { return {}; }
  bool fits(std::size_t, std::size_t, std::size_t) const override { return true; }
  pagedkv::result<const sample*> submit(std::vector<token> prompt, const generation_options& options,
                                        listener on_token) override {
    if (script_.throws_on_submission) {
      throw std::bad_alloc();
    }
    auto& added = requests_.emplace_back(std::make_unique<request>());
    added->num_prompt_tokens = prompt.size();
    added->tokens = std::move(prompt);
    added->options = options;
    added->on_token = std::move(on_token);
    return static_cast<const sample*>(added.get());
  }
  void cancel(const sample& which) override {
    for (const auto& each : requests_) {
      if (each.get() == &which && each->is_open()) {
        each->state = generation_state::cancelled;
        each->on_token(*each, {});
      }
    }
  }
  void forget(const sample& which) override {
    std::erase_if(requests_, [&](const auto& each) { return each.get() == &which; });
  }
  pagedkv::result<std::vector<token>> restore(const std::string&) override { return std::vector<token>{}; }
  bool step() override {
    if (next_ == script_.steps.size()) {
      return false;
    }
    script_.released.acquire();
    switch (script_.steps[next_++]) {
      case in_step::throw_error: throw std::runtime_error("the device burns");
      case in_step::wait: break;
      case in_step::answer:
        for (const auto& each : requests_) {
          answer(*each);
        }
    }
    return true;
  }
  std::vector<const sample*> samples() const override {
    auto all = std::vector<const sample*>{};
    for (const auto& each : requests_) {
      all.push_back(each.get());
    }
    return all;
  }
  std::size_t num_waiting() const noexcept override { return 0; }
  const engine_statistics& statistics() const noexcept override { return statistics_; }
  pagedkv::tracker_statistics request_statistics() const noexcept override { return {}; }
  pagedkv::cache_statistics cache_statistics() const noexcept override { return {}; }
  pagedkv::memory_profile cache_memory() const noexcept override { return {}; }
  std::vector<std::string> check_invariants() override { return {"the cache of a failed engine was asked"}; }

 private:
  struct request : sample {
    listener on_token;
  };

  static void answer(request& to) {
    if (to.is_open()) {
      to.tokens.push_back(7);
      to.state = to.answer().size() == to.options.max_tokens ? generation_state::cut : generation_state::running;
      to.on_token(to, 7);
    }
  }

  script& script_;
  std::size_t next_ = 0;
  std::vector<std::unique_ptr<request>> requests_;
  engine_statistics statistics_;
};

job wanted(std::size_t num_prompts, std::size_t max_tokens, std::size_t num_samples = 1) {
  auto made = job{};
  made.prompts.assign(num_prompts, {1, 2, 3});
  made.options.max_tokens = max_tokens;
  made.options.num_samples = num_samples;
  return made;
}

/// News until every answer of a job has ended: the last one of each, and that there is one end to each.
std::vector<news> ends_of(service::ticket& of, std::size_t num_answers) {
  auto ends = std::vector<std::optional<news>>(num_answers);
  for (auto num_open = num_answers; num_open > 0;) {
    for (const auto& each : of.take(std::chrono::hours(1))) {
      if (each.state != generation_state::running) {
        CHECK_FALSE(ends[each.answer].has_value());
        ends[each.answer] = each;
        --num_open;
      }
    }
  }
  auto all = std::vector<news>{};
  for (const auto& each : ends) {
    all.push_back(each.value());
  }
  return all;
}

void check_failed(const std::vector<news>& ends, const std::string& reason) {
  for (const auto& each : ends) {
    CHECK(each.state == generation_state::failed);
    CHECK(each.failure == reason);
  }
}

}  // namespace

TEST_CASE("all answers fail with the error of an engine that throws", "[llama]") {
  const auto reason = std::string("the engine failed: the device burns");
  auto script = scripted_engine::script{};
  script.steps = {in_step::answer, in_step::wait, in_step::throw_error};
  auto failures = std::counting_semaphore<>(0);
  auto served = service(std::make_unique<scripted_engine>(script), [&] { failures.release(); });
  auto whole = served.submit(wanted(1, 1)).value();
  script.released.release();
  CHECK(ends_of(whole, 1).front().state == generation_state::cut);
  auto several = served.submit(wanted(2, 10, 3)).value();
  auto other = served.submit(wanted(1, 10)).value();
  script.released.release(2);
  check_failed(ends_of(several, 6), reason);
  check_failed(ends_of(other, 1), reason);
  failures.acquire();
  auto later = served.submit(wanted(1, 1, 2)).value();
  check_failed(ends_of(later, 2), reason);
  CHECK(whole.take(std::chrono::milliseconds(0)).empty());
  CHECK(served.stop() == std::vector{reason});
  CHECK_FALSE(failures.try_acquire());
}

TEST_CASE("a job that an engine throws on fails, and those behind it", "[llama]") {
  auto script = scripted_engine::script{};
  script.throws_on_submission = true;
  auto served = service(std::make_unique<scripted_engine>(script));
  auto first = served.submit(wanted(1, 1)).value();
  auto second = served.submit(wanted(2, 1)).value();
  const auto reason = "the engine failed: " + std::string(std::bad_alloc().what());
  check_failed(ends_of(first, 1), reason);
  check_failed(ends_of(second, 2), reason);
}
