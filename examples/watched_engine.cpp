// An engine that can be watched: it logs each event behind the time, in microseconds, and writes its metrics as
// Prometheus text. examples/monitor/monitor.py shows the metrics in a terminal; examples/monitor/trace.py turns the log
// into a trace that Perfetto opens. The model is left out; a step takes the given time.
//
//     watched_engine LOG METRICS [STEPS [MILLISECONDS]]

#include <pagedkv/events/event_log.hpp>
#include <pagedkv/metrics/prometheus.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/requests/metrics.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

namespace {

using namespace pagedkv;

/// Where the cache's log goes.
class stamped_log {
 public:
  explicit stamped_log(const char* path) : file_(std::fopen(path, "w")) {}
  stamped_log(const stamped_log&) = delete;
  stamped_log& operator=(const stamped_log&) = delete;
  ~stamped_log() {
    if (file_ != nullptr) {
      std::fclose(file_);
    }
  }

  [[nodiscard]] bool is_open() const { return file_ != nullptr; }

  /// The function of an `event_log`. The cache's threads call it inside its locks, so it should not wait: an engine
  /// puts lines into a queue instead.
  static void add_line(void* self, std::string_view line) noexcept {
    const auto& log = *static_cast<stamped_log*>(self);
    const auto age = std::chrono::steady_clock::now() - log.start_;
    const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(age).count();
    std::fprintf(log.file_, "%lld %.*s\n", static_cast<long long>(microseconds), static_cast<int>(line.size()),
                 line.data());
  }

 private:
  std::FILE* file_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

using cache_type = kv_cache<event_log>;

/// Serves one request more every third step: a prompt of 100 tokens, 64 of which all have in common, and 40 of answer.
class engine {
 public:
  explicit engine(event_log log) : cache_({.block_size = 16, .num_blocks = 48}, log) {}

  void step(int number) {
    resume();
    if (number % 3 == 0) {
      submit(number);
    }
    auto sequences = std::vector<sequence_id>();
    for (const auto& each : running_) {
      sequences.push_back(each.sequence);
    }
    const auto step = cache_.begin_step(sequences).value();
    decode();
    cache_.retire_step(step).value();
  }

  [[nodiscard]] std::string metrics() const {
    auto text = std::string();
    append_prometheus(text, cache_.statistics());
    append_prometheus(text, cache_.memory());
    append_prometheus(text, tracker_.statistics());
    return text;
  }

 private:
  struct request {
    request_id id;
    sequence_id sequence;
    std::vector<token> tokens;
  };

  void submit(int number) {
    auto tokens = std::vector<token>(100);
    std::iota(tokens.begin(), tokens.begin() + 64, 0);
    std::fill(tokens.begin() + 64, tokens.end(), 1000 + number);
    const auto submitted = tracker_.submit(tokens);
    set_aside(submitted.preempted());
    if (submitted) {
      start({submitted->id, submitted->sequence, std::move(tokens)});
    }
  }

  void resume() {
    for (const auto id : tracker_.resumable().value()) {
      const auto place = std::ranges::find(waiting_, id, &request::id);
      const auto resumed = tracker_.resume(id, place->tokens);
      if (!resumed) {
        return;
      }
      start({id, resumed->sequence, std::move(place->tokens)});
      waiting_.erase(place);
    }
  }

  void start(request started) {
    cache_.commit(started.sequence, static_cast<std::int64_t>(started.tokens.size())).value();
    running_.push_back(std::move(started));
  }

  /// One token for each request that is not preempted meanwhile.
  void decode() {
    for (auto i = std::size_t{0}; i < running_.size();) {
      const auto id = running_[i].id;
      const auto appended = tracker_.append(id, 7);
      set_aside(appended.preempted());
      if (i == running_.size() || running_[i].id != id) {
        continue;  // those that gave way are gone from the list
      }
      if (!appended) {
        tracker_.preempt(id).value();
        set_aside(std::span(&id, 1));
        continue;
      }
      auto& each = running_[i];
      each.tokens.push_back(7);
      cache_.commit(each.sequence, static_cast<std::int64_t>(each.tokens.size())).value();
      if (each.tokens.size() == 140) {
        tracker_.finish(id).value();
        running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      ++i;
    }
  }

  void set_aside(std::span<const request_id> preempted) {
    for (const auto id : preempted) {
      const auto place = std::ranges::find(running_, id, &request::id);
      waiting_.push_back(std::move(*place));
      running_.erase(place);
    }
  }

  cache_type cache_;
  request_tracker<cache_type> tracker_{cache_};
  std::vector<request> running_;
  std::vector<request> waiting_;
};

/// A whole number from 0 on.
std::optional<int> read_count(std::string_view text) {
  auto number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_count = read.ec == std::errc{} && read.ptr == text.data() + text.size() && number >= 0;
  return is_count ? std::optional(number) : std::nullopt;
}

/// In one piece: a reader of the file gets this text or the one before.
bool write(const std::string& path, const std::string& text) {
  const auto fresh = path + ".new";
  std::ofstream(fresh) << text;
  return std::rename(fresh.c_str(), path.c_str()) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto num_steps = argc > 3 ? read_count(argv[3]) : 300;
  const auto num_milliseconds = argc > 4 ? read_count(argv[4]) : 0;
  if (argc < 3 || argc > 5 || !num_steps || !num_milliseconds) {
    std::fprintf(stderr, "usage: watched_engine LOG METRICS [STEPS [MILLISECONDS]]\n");
    return 2;
  }
  const auto pause = std::chrono::milliseconds(*num_milliseconds);
  auto log = stamped_log(argv[1]);
  if (!log.is_open()) {
    std::fprintf(stderr, "%s cannot be written\n", argv[1]);
    return 1;
  }
  auto served = engine(event_log(stamped_log::add_line, &log));
  for (auto number = 0; number < *num_steps; ++number) {
    served.step(number);
    if (!write(argv[2], served.metrics())) {
      std::fprintf(stderr, "%s cannot be written\n", argv[2]);
      return 1;
    }
    std::this_thread::sleep_for(pause);
  }
}
