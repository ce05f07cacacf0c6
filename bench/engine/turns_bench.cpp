// A conversation of several turns: the time to the first token of each, where K/V of the history is in the pool, where
// a restarted engine finds it in a file, and where nothing is cached. `--help` lists the options.

#include "files.hpp"

#include "../../examples/llama/engine.hpp"
#include "../../examples/llama/model.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace {

using json = nlohmann::json;
using pagedkv::token;

struct settings {
  std::string model = LLAMA_MODEL;
  std::size_t num_turns = 10;
  std::size_t question = 24;
  std::size_t answer = 40;
  std::size_t repeats = 5;
  llama::engine_sizes sizes{.num_blocks = 2048};
  std::string file;
  std::string json_file;
  std::string plot;
};

struct first_token {
  double milliseconds = 0;
  double in_model = 0;  // of these
  double in_cache = 0;  // of these: in calls of the cache
  std::int64_t num_cached_tokens = 0;
  std::vector<token> answer;
};

/// Answers a prompt.
first_token ask(llama::engine& engine, const std::vector<token>& prompt, std::size_t num_tokens) {
  using clock = std::chrono::steady_clock;
  auto options = llama::generation_options{};
  options.max_tokens = num_tokens;
  options.ignores_end = true;
  using milliseconds = std::chrono::duration<double, std::milli>;
  const auto before = engine.statistics();
  const auto began = clock::now();
  auto made = first_token{};
  const auto* const sample =
      engine
          .submit(prompt, options,
                  [&](const llama::sample& of, std::optional<token>) {
                    if (of.answer().size() == 1) {
                      made.milliseconds = milliseconds(clock::now() - began).count();
                      made.in_model = milliseconds(engine.statistics().in_model - before.in_model).count();
                      made.in_cache = milliseconds(engine.statistics().in_cache - before.in_cache).count();
                    }
                  })
          .value();
  engine.run();
  made.answer.assign(sample->answer().begin(), sample->answer().end());
  made.num_cached_tokens = sample->num_cached_tokens;
  engine.forget(*sample);
  return made;
}

struct turn_of_conversation {
  std::vector<token> prompt;
  first_token cached;     // the engine answered the turns before
  first_token restarted;  // a new engine with the file of the one before
  first_token computed;   // nothing is cached
};

class conversation {
 public:
  explicit conversation(const settings& chosen) : chosen_(chosen), model_(chosen.model) {}

  /// Each figure is the fastest of the repeats.
  std::vector<turn_of_conversation> run() {
    auto turns = once();
    for (auto i = std::size_t{1}; i < chosen_.repeats; ++i) {
      const auto again = once();
      for (auto t = std::size_t{0}; t < turns.size(); ++t) {
        for (const auto part :
             {&turn_of_conversation::cached, &turn_of_conversation::restarted, &turn_of_conversation::computed}) {
          auto& best = turns[t].*part;
          best = (again[t].*part).milliseconds < best.milliseconds ? again[t].*part : best;
        }
      }
    }
    return turns;
  }

 private:
  [[nodiscard]] std::unique_ptr<llama::engine> with_file() {
    const auto tiers = llama::tier_sizes{
        .host_blocks = chosen_.sizes.num_blocks, .file = chosen_.file, .file_bytes = 1 << 28, .model = chosen_.model};
    return llama::make_engine(model_, chosen_.sizes, llama::stored_as::float32, tiers);
  }

  std::vector<turn_of_conversation> once() {
    std::filesystem::remove(chosen_.file);
    auto random = std::mt19937{1};
    auto word = std::uniform_int_distribution<token>{0, model_.config().vocabulary - 1};
    const auto kept = llama::make_engine(model_, chosen_.sizes);
    auto turns = std::vector<turn_of_conversation>{};
    auto talk = std::vector<token>{};
    for (auto i = std::size_t{0}; i < chosen_.num_turns; ++i) {
      std::generate_n(std::back_inserter(talk), chosen_.question, [&] { return word(random); });
      auto& turn = turns.emplace_back();
      turn.prompt = talk;
      turn.cached = ask(*kept, talk, chosen_.answer);
      turn.restarted = ask(*with_file(), talk, chosen_.answer);
      turn.computed = ask(*llama::make_engine(model_, chosen_.sizes), talk, chosen_.answer);
      talk.insert(talk.end(), turn.cached.answer.begin(), turn.cached.answer.end());
    }
    return turns;
  }

  const settings& chosen_;
  llama::model model_;
};

json report(const std::vector<turn_of_conversation>& turns) {
  auto rows = json::array();
  for (const auto& turn : turns) {
    const auto figures = [&](const first_token& of) {
      return json{{"first_token_ms", of.milliseconds},
                  {"in_model_ms", of.in_model},
                  {"in_cache_ms", of.in_cache},
                  {"other_ms", of.milliseconds - of.in_model - of.in_cache},
                  {"cached_tokens", of.num_cached_tokens},
                  {"same_answer", of.answer == turn.computed.answer}};
    };
    rows.push_back({{"prompt_tokens", turn.prompt.size()},
                    {"cached", figures(turn.cached)},
                    {"restarted", figures(turn.restarted)},
                    {"computed", figures(turn.computed)}});
  }
  return rows;
}

/// Calls `cell(part, name)` for the three figures of a row.
template <class Cell>
void for_each_part(const json& row, Cell&& cell) {
  for (const auto* const name : {"cached", "restarted", "computed"}) {
    cell(row.at(name));
  }
}

void print(const json& rows) {
  fmt::print("{:>4} {:>8} {:>22} {:>22} {:>14}\n", "turn", "prompt", "in the pool: ms, hits", "in a file: ms, hits",
             "computed: ms");
  for (auto i = std::size_t{0}; i < rows.size(); ++i) {
    fmt::print("{:>4} {:>8}", i + 1, rows[i].at("prompt_tokens").get<std::size_t>());
    for_each_part(rows[i], [](const json& part) {
      fmt::print(" {:>14.2f} {:>7}", part.at("first_token_ms").get<double>(), part.at("cached_tokens").get<int>());
    });
    fmt::print("\n");
  }
}

/// A script that draws the times against the turn: `gnuplot FILE` writes FILE.svg.
std::string plot_of(const json& rows, const std::string& file) {
  auto data = std::string{};
  for (auto i = std::size_t{0}; i < rows.size(); ++i) {
    data += std::to_string(i + 1);
    for_each_part(rows[i],
                  [&](const json& part) { data += fmt::format(" {}", part.at("first_token_ms").get<double>()); });
    data += '\n';
  }
  return fmt::format(R"($turns << END
{}END
set terminal svg size 760,360 font 'sans,12'
set output '{}.svg'
set grid
set key outside bottom center horizontal
set xlabel 'turn'
set ylabel 'milliseconds to the first token'
set yrange [0:*]
plot $turns using 1:4 with linespoints title 'nothing cached', '' using 1:3 with linespoints title 'in a file, after a restart', \
     '' using 1:2 with linespoints title 'in the pool'
)",
                     data, file);
}

}  // namespace

int main(int argc, char** argv) {
  auto chosen = settings{};
  auto app = CLI::App{"The time to the first token of each turn of a conversation."};
  app.add_option("--file", chosen.file, "for K/V between restarts; replaced")->required();
  app.add_option("--model", chosen.model, "folder with config.json and *.safetensors")->capture_default_str();
  app.add_option("--turns", chosen.num_turns, "questions")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--question", chosen.question, "tokens of each")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--answer", chosen.answer, "tokens of each")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--repeats", chosen.repeats, "conversations; the fastest counts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--json", chosen.json_file, "file for all figures");
  app.add_option("--plot", chosen.plot, "file for a script for gnuplot, which draws the figures");
  CLI11_PARSE(app, argc, argv);
  try {
    const auto rows = report(conversation(chosen).run());
    print(rows);
    if (!chosen.json_file.empty()) {
      llama::bench::write_file(chosen.json_file, rows.dump(2) + "\n");
    }
    if (!chosen.plot.empty()) {
      llama::bench::write_file(chosen.plot, plot_of(rows, chosen.plot));
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
