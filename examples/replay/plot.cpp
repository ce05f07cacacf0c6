#include "plot.hpp"

#include <fmt/core.h>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <span>

namespace pagedkv::replay {

namespace {

/// Quotes a string for gnuplot.
[[nodiscard]] std::string gnuplot_string(std::string_view text) {
  auto out = std::string{"'"};
  for (const auto c : text) {
    out += c;
    if (c == '\'') {
      out += c;
    }
  }
  return out + "'";
}

/// No two lines have equal points or dashes, so that a print without colours is readable. Open points differ in size,
/// so that coinciding lines are all visible.
struct line_style {
  int point;
  double size;
  const char* dashes;
  const char* colour;
};

constexpr auto line_styles = std::array<line_style, 14>{{
    {6, 1.6, "solid", "#0072b2"},               // circle
    {4, 1.0, "(10,5)", "#d55e00"},              // square
    {2, 0.8, "(1.5,4)", "#777777"},             // cross
    {9, 1.0, "(12,4,2,4)", "#009e73"},          // full triangle
    {12, 1.3, "(20,6)", "#cc79a7"},             // diamond
    {11, 1.0, "(8,3,2,3,2,3)", "#7a5c00"},      // full triangle, upside down
    {5, 0.8, "(5,3)", "#3399dd"},               // full square
    {7, 0.8, "(14,4,7,4)", "#882255"},          // full circle
    {13, 1.1, "(3,3,9,3)", "#e69f00"},          // full diamond
    {8, 1.2, "(16,3,2,3,2,3,2,3)", "#332288"},  // triangle
    {1, 1.7, "(2,2)", "#117733"},               // plus
    {15, 1.1, "(24,4,4,4)", "#cc0000"},         // full pentagon
    {10, 1.2, "(7,7)", "#44aa99"},              // triangle, upside down
    {3, 1.1, "(3,8)", "#994455"},               // star
}};

[[nodiscard]] double sum_of_hit_ratios(const comparison::row& row) {
  return std::transform_reduce(row.results.begin(), row.results.end(), 0.0, std::plus<>{},
                               [](const auto& found) { return found.hit_ratio(); });
}

void write_data(std::ostream& script, const comparison& made) {
  script << "$hits << END\n";
  for (auto i = std::size_t{0}; i < made.capacities.size(); ++i) {
    script << made.capacities[i]
           << fmt::format(" {:.6f} {:.6f}", made.bound.results[i].hit_ratio(), made.oracle.results[i].hit_ratio());
    for (const auto& row : made.policies) {
      script << fmt::format(" {:.6f}", row.results[i].hit_ratio());
    }
    script << '\n';
  }
  script << "END\n";
}

/// 1, 2 and 5 times powers of ten, from the last not above the smallest capacity to the first above the largest.
[[nodiscard]] std::vector<std::int64_t> marks_around(const std::vector<std::int32_t>& capacities) {
  auto marks = std::vector<std::int64_t>{};
  for (auto power = std::int64_t{1};; power *= 10) {
    for (const auto digit : {1, 2, 5}) {
      const auto mark = digit * power;
      if (mark <= capacities.front()) {
        marks.clear();
      }
      marks.push_back(mark);
      if (mark > capacities.back()) {
        return marks;
      }
    }
  }
}

void write_axes(std::ostream& script, const comparison& made, const std::string& trace_name) {
  const auto title = fmt::format("Prefix hits by eviction policy: {}", trace_name);
  const auto capacity =
      fmt::format("capacity of the pool (blocks; the trace has {} distinct ones)", made.num_distinct_blocks);
  const auto marks = marks_around(made.capacities);
  script << "set title " << gnuplot_string(title) << " noenhanced\n"
         << "set xlabel " << gnuplot_string(capacity) << "\n"
         << "set ylabel 'hit ratio (of all block references)'\n"
         << "set logscale x\n"
         << fmt::format("set xrange [{0}:{1}]\nset xtics ({0}", marks.front(), marks.back());
  for (const auto mark : std::span{marks}.subspan(1)) {
    script << ", " << mark;
  }
  script << ")\n"
         << fmt::format("set yrange [0:{}]\n", made.bound.results.back().hits == 0 ? "1" : "*")
         << "set format x '%.0s%c'\n"
         << "set format y '%.2f'\n"
         << "set grid xtics ytics linetype 1 linecolor '#dddddd'\n"
         << "set border 3\n"
         << "set tics nomirror\n"
         << "set key outside right center vertical Left reverse noenhanced samplen 7 spacing 1.4\n";
}

/// The legend has the order of the lines: the highest first.
void write_lines(std::ostream& script, const comparison& made) {
  auto order = std::vector<std::size_t>(made.policies.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>{}, [&](std::size_t i) { return sum_of_hit_ratios(made.policies[i]); });
  script << "plot $hits using 1:2 with lines linewidth 2.5 linecolor 'black' title "
         << gnuplot_string(made.bound.policy)
         << ", \\\n  '' using 1:3 with lines linewidth 2.5 dashtype (4,3) linecolor 'black' title "
         << gnuplot_string(made.oracle.policy);
  for (const auto i : order) {
    const auto& style = line_styles[i % line_styles.size()];
    script << fmt::format(", \\\n  '' using 1:{} with linespoints", i + 4)
           << fmt::format(" pointtype {} pointsize {} dashtype {}", style.point, style.size, style.dashes)
           << fmt::format(" linecolor '{}' title {}", style.colour, gnuplot_string(made.policies[i].policy));
  }
  script << '\n';
}

void write_script(std::ostream& script, const comparison& made, const std::string& trace_name,
                  const std::string& prefix) {
  write_data(script, made);
  script << "set terminal svg size 960,600 font 'sans,13' linewidth 1.5 background 'white'\n"
         << "set output " << gnuplot_string(prefix + ".svg") << '\n';
  write_axes(script, made, trace_name);
  write_lines(script, made);
  script << "set terminal pngcairo size 1920,1200 font 'sans,13' fontscale 2 linewidth 2.5 pointscale 2 dashlength 2\n"
         << "set output " << gnuplot_string(prefix + ".png") << '\n'
         << "replot\n";
}

void run_gnuplot(const std::string& script) {
  auto program = std::string{"gnuplot"};
  auto without_users_settings = std::string{"-d"};
  auto path = std::filesystem::absolute(script).string();  // never looks like an option
  const auto arguments = std::array<char*, 4>{program.data(), without_users_settings.data(), path.data(), nullptr};
  auto process = pid_t{};
  const auto failure = posix_spawnp(&process, program.c_str(), nullptr, nullptr, arguments.data(), environ);
  if (failure == ENOENT) {
    throw plot_error("--plot needs gnuplot, which is not installed (on Debian: gnuplot-nox); " + script + " awaits it");
  }
  if (failure != 0) {
    throw plot_error(std::string{"gnuplot cannot be run: "} + std::strerror(failure));
  }
  auto status = 0;
  while (waitpid(process, &status, 0) == -1 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw plot_error("gnuplot could not draw " + script);
  }
}

}  // namespace

void draw_plot(const comparison& made, const std::string& trace_name, const std::string& prefix) {
  const auto path = prefix + ".gnuplot";
  auto script = std::ofstream{path};
  write_script(script, made, trace_name, prefix);
  script.close();
  if (!script) {
    throw plot_error(path + ": cannot be written");
  }
  run_gnuplot(path);
}

}  // namespace pagedkv::replay
