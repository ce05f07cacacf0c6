#include "comparison_report.hpp"

#include "options.hpp"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <ostream>

namespace pagedkv::replay {

namespace {

[[nodiscard]] std::int64_t most_hits(const comparison& made, std::size_t column) {
  auto most = std::int64_t{0};
  for (const auto& row : made.policies) {
    most = std::max(most, row.results[column].hits);
  }
  return most;
}

template <class Mark>
void print_row(const comparison::row& row, Mark&& is_best) {
  fmt::print("{:<11}", row.policy);
  for (auto i = std::size_t{0}; i < row.results.size(); ++i) {
    fmt::print("{:>8.4f}{}", row.results[i].hit_ratio(), is_best(i, row.results[i]) ? '*' : ' ');
  }
  fmt::print("\n");
}

[[nodiscard]] double percentage(const comparison& made, std::int32_t capacity) {
  return made.num_distinct_blocks == 0 ? 0.0 : 100.0 * capacity / static_cast<double>(made.num_distinct_blocks);
}

[[nodiscard]] nlohmann::ordered_json points_of(const comparison& made, const comparison::row& row) {
  auto points = nlohmann::ordered_json::array();
  for (auto i = std::size_t{0}; i < row.results.size(); ++i) {
    const auto& found = row.results[i];
    points.push_back({{"blocks", made.capacities[i]},
                      {"hit_blocks", found.hits},
                      {"hit_ratio", found.hit_ratio()},
                      {"refused_requests", found.refused_requests}});
  }
  return points;
}

[[nodiscard]] nlohmann::ordered_json points_of_policy(const comparison& made, const comparison::row& row) {
  auto points = points_of(made, row);
  for (auto i = std::size_t{0}; i < row.results.size(); ++i) {
    points[i]["evictions"] = row.results[i].evictions;
  }
  return points;
}

}  // namespace

void print_table(const comparison& made, const options& chosen) {
  fmt::print("hit ratio of {}: {} requests, {} block references, {} distinct blocks\n\n", chosen.trace_name(),
             made.num_requests, made.num_references, made.num_distinct_blocks);
  fmt::print("{:<11}", "blocks");
  for (const auto capacity : made.capacities) {
    fmt::print("{:>8} ", capacity);
  }
  fmt::print("\n{:<11}", "  share");
  for (const auto capacity : made.capacities) {
    fmt::print("{:>6.1f} % ", percentage(made, capacity));
  }
  fmt::print("\n\n");
  for (const auto& row : made.policies) {
    print_row(row, [&](std::size_t column, const auto& found) { return found.hits == most_hits(made, column); });
  }
  for (const auto* row : {&made.oracle, &made.bound}) {
    print_row(*row, [](auto&&...) { return false; });
  }
  fmt::print(
      "\n* best policy of the column; share: of the distinct blocks\n"
      "oracle: knows the future and admits every request that fits; bound: no policy passes it\n");
  fmt::print("{:.1f} s, {:.1f} s of CPU time\n", made.seconds, made.cpu_seconds);
}

void write_json(std::ostream& stream, const comparison& made, const options& chosen) {
  auto policies = nlohmann::ordered_json::object();
  for (const auto& row : made.policies) {
    policies[row.policy] = points_of_policy(made, row);
  }
  const auto report = nlohmann::ordered_json{
      {"trace", chosen.trace},
      {"hash_seed", chosen.hash_seed},
      {"requests", made.num_requests},
      {"block_references", made.num_references},
      {"distinct_blocks", made.num_distinct_blocks},
      {"capacities", made.capacities},
      {"policies", std::move(policies)},
      {"oracle", points_of(made, made.oracle)},
      {"bound", points_of(made, made.bound)},
      {"threads", chosen.num_threads},
      {"seconds", made.seconds},
      {"cpu_seconds", made.cpu_seconds},
  };
  stream << report.dump(2) << '\n';
}

}  // namespace pagedkv::replay
