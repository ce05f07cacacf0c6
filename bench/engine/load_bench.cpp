// Replays a trace's arrivals, lengths and shared prefixes against the engine of examples/llama, at several speeds, and
// reports throughput, latencies, hits and the share of time in cache management. `--help` lists the options.

#include "files.hpp"
#include "load.hpp"

#include "../../examples/llama/options.hpp"
#include "../../examples/support/trace.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <limits>
#include <string>
#include <vector>

namespace {

using json = nlohmann::json;

struct settings {
  std::string model = LLAMA_MODEL;
  std::string trace;
  std::size_t limit = std::numeric_limits<std::size_t>::max();
  std::vector<double> speeds{1};
  llama::bench::trace_scale scale;
  llama::engine_sizes sizes{.num_blocks = 2048};
  std::string json_file;
  std::string plot;
};

json report(llama::bench::load_figures made, double speed) {
  const auto per_second = [&](auto count) { return made.seconds == 0 ? 0 : static_cast<double>(count) / made.seconds; };
  const auto share = [](auto part, auto whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  const auto milliseconds = [](llama::bench::times& of) {
    return json{{"p50", of.quantile(0.5) * 1e3}, {"p99", of.quantile(0.99) * 1e3}};
  };
  const auto& engine = made.engine;
  return {{"speed", speed},
          {"requests", made.requests},
          {"refused", made.refused},
          {"failed", made.failed},
          {"output_tokens", made.output_tokens},
          {"seconds", made.seconds},
          {"offered_requests_per_second", share(made.requests, made.offered_seconds)},
          {"requests_per_second", per_second(made.requests - made.refused)},
          {"output_tokens_per_second", per_second(made.output_tokens)},
          {"computed_tokens_per_second", per_second(engine.computed_tokens)},
          {"first_token_ms", milliseconds(made.to_first_token)},
          {"between_tokens_ms", milliseconds(made.between_tokens)},
          {"hit_ratio", share(engine.cached_tokens, engine.prompt_tokens)},
          {"preemptions", engine.preemptions},
          {"steps", engine.steps},
          {"tokens_per_step", share(engine.computed_tokens, engine.steps)},
          {"cache_share", share(engine.in_cache.count(), engine.in_steps.count())},
          {"cache_us_per_step", share(engine.in_cache.count(), engine.steps) / 1e3},
          {"cache_median_us", made.in_cache.quantile(0.5) * 1e6},
          {"blocks_in_use_at_end", made.cache.blocks.in_use}};
}

void print(const json& row) {
  const auto number = [&](const char* name) { return row.at(name).get<double>(); };
  const auto quantiles = [&](const char* name) {
    return fmt::format("{:.1f}/{:.1f}", row.at(name).at("p50").get<double>(), row.at(name).at("p99").get<double>());
  };
  fmt::print("{:>7} {:>9.2f} {:>9.2f} {:>9.0f} {:>17} {:>15} {:>6.3f} {:>6.0f} {:>8.2f} {:>9.1f} {:>9.1f}\n",
             number("speed"), number("offered_requests_per_second"), number("requests_per_second"),
             number("output_tokens_per_second"), quantiles("first_token_ms"), quantiles("between_tokens_ms"),
             number("hit_ratio"), number("preemptions"), 100 * number("cache_share"), number("cache_us_per_step"),
             number("cache_median_us"));
  std::fflush(stdout);
}

/// A script that draws latencies and throughput against the offered load: `gnuplot FILE` writes FILE.svg.
std::string plot_of(const json& rows, const std::string& file) {
  auto data = std::string{};
  for (const auto& row : rows) {
    const auto& first = row.at("first_token_ms");
    const auto& between = row.at("between_tokens_ms");
    data +=
        fmt::format("{} {} {} {} {} {}\n", row.at("offered_requests_per_second").get<double>(),
                    row.at("requests_per_second").get<double>(), first.at("p50").get<double>(),
                    first.at("p99").get<double>(), between.at("p50").get<double>(), between.at("p99").get<double>());
  }
  return fmt::format(R"($load << END
{}END
set terminal svg size 760,620 font 'sans,12'
set output '{}.svg'
set multiplot layout 2,1
set grid
set key outside bottom center horizontal
set xlabel 'offered requests a second'
set ylabel 'milliseconds'
set logscale y
plot $load using 1:3 with linespoints title 'time to first token, p50', '' using 1:4 with linespoints title 'p99', \
     '' using 1:5 with linespoints title 'time between tokens, p50', '' using 1:6 with linespoints title 'p99'
unset logscale y
set ylabel 'answered requests a second'
plot $load using 1:2 with linespoints notitle
)",
                     data, file);
}

void run(const settings& chosen) {
  const auto requests = pagedkv::support::read_trace(chosen.trace, chosen.limit);
  auto loaded = llama::model(chosen.model);
  fmt::print("{:>7} {:>9} {:>9} {:>9} {:>17} {:>15} {:>6} {:>6} {:>8} {:>9} {:>9}\n", "speed", "offered/s", "served/s",
             "tokens/s", "first ms p50/99", "next ms p50/99", "hits", "preem.", "cache %", "cache us", "median");
  auto rows = json::array();
  for (const auto speed : chosen.speeds) {
    auto scale = chosen.scale;
    scale.speed = speed;
    rows.push_back(report(llama::bench::load(loaded, chosen.sizes, scale).run(requests), speed));
    print(rows.back());
  }
  if (!chosen.json_file.empty()) {
    llama::bench::write_file(chosen.json_file, rows.dump(2) + "\n");
  }
  if (!chosen.plot.empty()) {
    llama::bench::write_file(chosen.plot, plot_of(rows, chosen.plot));
  }
}

}  // namespace

int main(int argc, char** argv) {
  auto chosen = settings{};
  auto app = CLI::App{"Replays a trace's arrivals, lengths and shared prefixes against the engine of examples/llama."};
  app.add_option("--trace", chosen.trace, "file in the format of the Mooncake traces")->required();
  app.add_option("--model", chosen.model, "folder with config.json and *.safetensors")->capture_default_str();
  app.add_option("--limit", chosen.limit, "requests of the trace")->check(CLI::PositiveNumber);
  app.add_option("--speed", chosen.speeds, "of arrivals, for one in the trace; several, divided by commas")
      ->delimiter(',')
      ->check(llama::finite_number(false))
      ->capture_default_str();
  app.add_option("--tokens-per-block", chosen.scale.tokens_per_block, "for 512 of the trace; scales answers, too")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  llama::add_sizes_to(app, chosen.sizes);
  app.add_option("--rows", chosen.sizes.max_rows, "requests in a step")
      ->check(CLI::Range(1, 65'535))
      ->capture_default_str();
  app.add_option("--budget", chosen.sizes.token_budget, "tokens in a step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--json", chosen.json_file, "file for all figures");
  app.add_option("--plot", chosen.plot, "file for a script for gnuplot, which draws the figures");
  CLI11_PARSE(app, argc, argv);
  try {
    run(chosen);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
