#include <pagedkv/metrics/prometheus.hpp>
#include <pagedkv/pagedkv.hpp>
#include <pagedkv/requests/metrics.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace {

using namespace pagedkv;

using label_set = std::map<std::string, std::string>;

struct family {
  std::string help;
  std::string type;
  std::map<label_set, std::int64_t> samples;
};

/// Reads the text exposition format, version 0.0.4, by its grammar, as far as pagedkv writes it: HELP, TYPE and then
/// all samples of each name, integers only, no timestamps. Throws on everything else.
class exposition_parser {
 public:
  explicit exposition_parser(std::string_view text) : rest_(text) {}

  std::map<std::string, family> parse() {
    while (!rest_.empty()) {
      const auto end = rest_.find('\n');
      expect(end != std::string_view::npos, "the last line ends with a line feed");
      line_ = rest_.substr(0, end);
      rest_.remove_prefix(end + 1);
      parse_line();
    }
    for (const auto& [name, each] : found_) {
      expect(!each.type.empty() && !each.samples.empty(), "every name has a type and a sample");
    }
    return std::move(found_);
  }

 private:
  static void expect(bool holds, const char* rule) {
    if (!holds) {
      throw std::runtime_error(rule);
    }
  }

  void parse_line() {
    if (skip("# HELP ")) {
      current_ = take_name(true);
      expect(skip(" "), "a space follows the name");
      const auto [place, is_new] = found_.try_emplace(current_);
      expect(is_new, "all lines of a name are in one group");
      place->second.help = take_text("");
    } else if (skip("# TYPE ")) {
      expect(take_name(true) == current_ && skip(" "), "the type follows the help of the same name");
      auto& type = found_.at(current_).type;
      expect(type.empty(), "a name has one type");
      expect(line_ == "counter" || line_ == "gauge", "the type is a known one");
      expect(line_ != "counter" || current_.ends_with("_total"), "a counter's name ends with _total");
      expect(line_ != "gauge" || !current_.ends_with("_total"), "a gauge's name does not");
      type = line_;
    } else {
      parse_sample();
    }
  }

  void parse_sample() {
    expect(take_name(true) == current_, "a sample belongs to the name above it");
    auto& here = found_.at(current_);
    expect(!here.type.empty(), "samples follow the type");
    auto labels = label_set{};
    if (skip("{")) {
      do {
        const auto name = take_name(false);
        expect(!name.starts_with("__"), "a label's name is not reserved");
        expect(skip("=\""), "a quoted value follows a label's name");
        expect(labels.try_emplace(name, take_text("\"")).second, "a label occurs once");
      } while (skip(","));
      expect(skip("}"), "a brace ends the labels");
    }
    expect(skip(" "), "a space precedes the value");
    auto value = std::int64_t{0};
    const auto* const end = line_.data() + line_.size();
    const auto [stop, problem] = std::from_chars(line_.data(), end, value);
    expect(problem == std::errc{} && stop == end, "the value is a number, and ends the line");
    expect(here.samples.try_emplace(labels, value).second, "a sample occurs once");
  }

  bool skip(std::string_view prefix) {
    const auto there = line_.starts_with(prefix);
    line_.remove_prefix(there ? prefix.size() : 0);
    return there;
  }

  std::string take_name(bool colons) {
    auto size = std::size_t{0};
    while (size < line_.size() && (line_[size] == '_' || (colons && line_[size] == ':') ||
                                   (std::isalnum(static_cast<unsigned char>(line_[size])) != 0))) {
      ++size;
    }
    const auto name = std::string{line_.substr(0, size)};
    expect(size != 0 && std::isdigit(static_cast<unsigned char>(name[0])) == 0, "a name begins with a letter");
    line_.remove_prefix(size);
    return name;
  }

  /// Up to the delimiter, which is taken too, or to the end of the line.
  std::string take_text(std::string_view delimiter) {
    auto text = std::string{};
    while (!line_.empty() && (delimiter.empty() || !line_.starts_with(delimiter))) {
      auto c = line_.front();
      line_.remove_prefix(1);
      if (c == '\\') {
        expect(!line_.empty(), "an escape has two characters");
        c = line_.front();
        expect(c == '\\' || c == 'n' || (c == '"' && !delimiter.empty()), "an escape is a known one");
        c = c == 'n' ? '\n' : c;
        line_.remove_prefix(1);
      }
      text += c;
    }
    expect(skip(delimiter), "a quote ends a value");
    return text;
  }

  std::string_view rest_;
  std::string_view line_;
  std::string current_;
  std::map<std::string, family> found_;
};

std::map<std::string, family> parse(std::string_view text) { return exposition_parser{text}.parse(); }

TEST_CASE("the parser of these tests refuses what is not the format", "[prometheus]") {
  const auto head = std::string{"# HELP a_total h\n# TYPE a_total counter\n"};
  CHECK(parse(head + "a_total{x=\"\\\\\\n\\\"\"} 1\n").at("a_total").samples.at({{"x", "\\\n\""}}) == 1);
  for (const auto* const wrong : {"a_total 1", "a_total 1 \n", "b_total 1\n", "a_total{} 1\n", "a_total{x=\"1\"}1\n",
                                  "a_total{x=\"1\",x=\"2\"} 1\n", "a_total{x=\"\\t\"} 1\n", "a_total 1\na_total 2\n",
                                  "a_total{__x=\"\"} 1\n", "a_total{1=\"\"} 1\n", ""}) {
    CHECK_THROWS_AS(parse(head + wrong), std::runtime_error);
  }
  CHECK_THROWS_AS(parse("# HELP a h\n# TYPE a counter\na 1\n"), std::runtime_error);
  CHECK_THROWS_AS(parse(head + "a_total 1\n" + head + "a_total{x=\"1\"} 1\n"), std::runtime_error);
}

TEST_CASE("the text has every field of the statistics, once, under its name and labels", "[prometheus]") {
  auto cache = kv_cache<float32>{{.block_size = 2, .num_blocks = 4, .head_dim = 1}};
  const auto prompt = std::array<token, 5>{1, 2, 3, 4, 5};
  const auto first = cache.create_sequence(prompt).value().id;
  REQUIRE(cache.commit(first, 5).has_value());
  const auto second = cache.create_sequence(prompt).value().id;
  REQUIRE(cache.commit(second, 5).has_value());
  CHECK_FALSE(cache.fork(second).value() == first);
  CHECK_FALSE(cache.append(second, 6).has_value());
  REQUIRE(cache.release(first).has_value());
  REQUIRE(cache.append(second, 6).has_value());

  auto text = std::string{"# HELP before h\n# TYPE before gauge\nbefore 1\n"};
  append_prometheus(text, cache.statistics());
  append_prometheus(text, cache.memory());
  const auto found = parse(text);
  const auto expect = [&](const char* name, const char* type, const std::map<label_set, std::int64_t>& samples) {
    INFO(name);
    REQUIRE(found.contains(name));
    CHECK(found.at(name).type == type);
    CHECK(found.at(name).help.ends_with("."));
    CHECK(found.at(name).samples == samples);
  };
  const auto blocks = cache.statistics().blocks;
  expect("pagedkv_pool_blocks", "gauge",
         {{{{"state", "free"}}, blocks.free},
          {{{"state", "in_use"}}, blocks.in_use},
          {{{"state", "evictable"}}, blocks.evictable},
          {{{"state", "retiring"}}, 0}});
  expect("pagedkv_peak_in_use_blocks", "gauge", {{{}, 4}});
  expect("pagedkv_sequences", "gauge", {{{}, 2}});
  expect("pagedkv_pins", "gauge", {{{}, 0}});
  expect("pagedkv_sequence_tokens", "gauge", {{{}, 11}});
  expect("pagedkv_unfilled_slots", "gauge", {{{}, 1}});
  expect("pagedkv_prompts_total", "counter", {{{}, 2}});
  expect("pagedkv_prompt_blocks_total", "counter", {{{}, 4}});
  expect("pagedkv_hit_blocks_total", "counter", {{{}, 2}});
  expect("pagedkv_hit_tokens_total", "counter", {{{}, 4}});
  expect("pagedkv_evicted_blocks_total", "counter", {{{}, 0}});
  expect("pagedkv_invalidated_blocks_total", "counter", {{{}, 0}});
  expect("pagedkv_copied_blocks_total", "counter", {{{}, 1}});
  expect("pagedkv_refusals_total", "counter", {{{}, 1}});
  expect("pagedkv_allocated_together_blocks_total", "counter", {{{}, 3}});
  expect("pagedkv_allocated_runs_total", "counter", {{{}, 1}});
  expect("pagedkv_allocated_in_runs_blocks_total", "counter", {{{}, 0}});
  expect("pagedkv_contention_total", "counter",
         {{{{"kind", "wait"}}, 0}, {{{"kind", "retry"}}, 0}, {{{"kind", "steal"}}, 0}});
  const auto memory = cache.memory();
  expect("pagedkv_memory_bytes", "gauge",
         {{{{"purpose", "payload"}}, memory.payload},
          {{{"purpose", "pool"}}, memory.pool},
          {{{"purpose", "index"}}, memory.index},
          {{{"purpose", "sequences"}}, memory.sequences}});
  CHECK(found.size() == 20);
}

TEST_CASE("the text has the statistics of a request tracker", "[prometheus]") {
  auto cache = kv_cache<float32>{{.block_size = 2, .num_blocks = 4, .head_dim = 1}};
  auto tracker = request_tracker{cache};
  const auto prompt = std::array<token, 3>{1, 2, 3};
  const auto first = tracker.submit(prompt).value().id;
  const auto second = tracker.submit(prompt).value().id;
  CHECK_FALSE(tracker.submit(std::array<token, 9>{}).has_value());
  REQUIRE(tracker.preempt(first).has_value());
  REQUIRE(tracker.finish(second).has_value());

  auto text = std::string{};
  append_prometheus(text, tracker.statistics());
  const auto found = parse(text);
  CHECK(found.at("pagedkv_submitted_requests_total").samples.at({}) == 2);
  CHECK(found.at("pagedkv_refused_requests_total").samples.at({}) == 1);
  CHECK(found.at("pagedkv_requests").samples.at({{"state", "running"}}) == 0);
  CHECK(found.at("pagedkv_requests").samples.at({{"state", "preempted"}}) == 1);
  CHECK(found.at("pagedkv_ended_requests_total").samples.at({{"outcome", "finished"}}) == 1);
  CHECK(found.at("pagedkv_ended_requests_total").samples.at({{"outcome", "cancelled"}}) == 0);
  CHECK(found.at("pagedkv_ended_requests_total").samples.at({{"outcome", "failed"}}) == 0);
  CHECK(found.at("pagedkv_preemptions_total").samples.at({}) == 1);
  CHECK(found.at("pagedkv_request_records").samples.at({}) == 1);
}

TEST_CASE("caches of one text differ in labels, whose values are escaped", "[prometheus]") {
  const auto odd = std::string{"a\\b\"c\nd, e=\"f\"} \xc3\xa9"};
  const auto first_labels = std::array{metric_label{"model", odd}, metric_label{"cache", "0"}};
  const auto second_labels = std::array{metric_label{"model", ""}, metric_label{"cache", "1"}};
  auto all = std::array{labelled_statistics<cache_statistics>{first_labels, {}},
                        labelled_statistics<cache_statistics>{second_labels, {}}};
  all[0].values.hit_tokens = INT64_MAX;
  all[1].values.hit_tokens = 7;
  all[1].values.blocks.free = 3;
  auto text = std::string{};
  append_prometheus(text, std::span<const labelled_statistics<cache_statistics>>{all});
  auto from_vector = std::string{};
  append_prometheus(from_vector, std::vector(all.begin(), all.end()));
  CHECK(from_vector == text);
  const auto found = parse(text);
  const auto& hits = found.at("pagedkv_hit_tokens_total").samples;
  CHECK(hits.size() == 2);
  CHECK(hits.at({{"model", odd}, {"cache", "0"}}) == INT64_MAX);
  CHECK(hits.at({{"model", ""}, {"cache", "1"}}) == 7);
  const auto& blocks = found.at("pagedkv_pool_blocks").samples;
  CHECK(blocks.size() == 8);
  CHECK(blocks.at({{"model", ""}, {"cache", "1"}, {"state", "free"}}) == 3);
}

}  // namespace
