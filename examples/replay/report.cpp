#include "report.hpp"

#include "options.hpp"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <ostream>

namespace pagedkv::replay {

namespace {

[[nodiscard]] double ratio(double part, std::int64_t whole) {
  return whole == 0 ? 0.0 : part / static_cast<double>(whole);
}

[[nodiscard]] double hit_ratio(const outcome& found) {
  return ratio(static_cast<double>(found.all_hits()), found.num_references);
}

[[nodiscard]] double bound_hit_ratio(const outcome& found) {
  return ratio(static_cast<double>(found.bound_hits), found.num_references);
}

[[nodiscard]] double waste(const outcome& found) {
  return ratio(static_cast<double>(found.unfilled_slots), found.slots);
}

/// The part of the blocks that an allocation of several gave out which lie in runs of 8 neighbours and more.
[[nodiscard]] double in_runs(const outcome& found) {
  return ratio(static_cast<double>(found.at_end.blocks_in_runs), found.at_end.blocks_together);
}

[[nodiscard]] double requests_per_second(const outcome& found) {
  return found.seconds > 0 ? static_cast<double>(found.num_requests) / found.seconds : 0.0;
}

template <class Value>
void print_row(const char* name, const Value& value, const std::string& remark = {}) {
  fmt::print("{:<20}{:>14}{}{}\n", name, value, remark.empty() ? "" : "  ", remark);
}

[[nodiscard]] std::string megabytes(std::int64_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

[[nodiscard]] nlohmann::ordered_json by_state(const block_counts& counts) {
  return {
      {"free", counts.free}, {"in_use", counts.in_use}, {"evictable", counts.evictable}, {"retiring", counts.retiring}};
}

[[nodiscard]] nlohmann::ordered_json by_tier(const outcome& found) {
  auto all = nlohmann::ordered_json::object();
  for (const auto& [name, counts] : found.tiers) {
    all[name] = {{"places", counts.num_places},
                 {"records", counts.num_records},
                 {"hit_blocks", counts.hit_blocks},
                 {"written", counts.written},
                 {"adopted", counts.adopted},
                 {"loaded_into", counts.loaded_into},
                 {"evictions", counts.evictions},
                 {"dropped", counts.dropped},
                 {"handed_over", counts.handed_over},
                 {"owed", counts.num_owed},
                 {"lost_writes", counts.lost_writes},
                 {"orphans", counts.num_orphans},
                 {"loads", counts.loads},
                 {"missing_loads", counts.missing_loads},
                 {"failed_loads", counts.failed_loads},
                 {"refused_loads", counts.refused_loads}};
  }
  return all;
}

}  // namespace

void print_table(const outcome& found, const workload& work, const options& chosen) {
  const auto& at_end = found.at_end;
  fmt::print("workload {}\neviction {}, locking {}, element {}, free list {}, {} thread{}, {} alive at once\n\n",
             chosen.trace_name(), chosen.eviction, chosen.locking, chosen.element, chosen.free_list, chosen.num_threads,
             chosen.num_threads == 1 ? "" : "s", chosen.concurrency);
  print_row("requests", found.num_requests);
  print_row("  refused", found.refused_requests, "no room for the prompt");
  print_row("  failed", found.failed_requests, "no room for an output token");
  print_row("block references", found.num_references, fmt::format("of {} tokens each", work.block_size));
  print_row("  prefix hits", found.all_hits(), fmt::format("{:.4f} of the references", hit_ratio(found)));
  if (!found.tiers.empty()) {
    print_row("    device", at_end.hit_blocks);
  }
  for (const auto& [name, counts] : found.tiers) {
    print_row(fmt::format("    {}", name).c_str(), counts.hit_blocks,
              fmt::format("{} records; {} written, {} lost, {} evicted, {} loads failed", counts.num_records,
                          counts.written, counts.lost_writes, counts.evictions,
                          counts.failed_loads + counts.missing_loads + counts.refused_loads));
  }
  print_row("  bound", found.bound_hits, fmt::format("{:.4f}, which no eviction passes", bound_hit_ratio(found)));
  print_row("output tokens", found.output_tokens);
  print_row("evictions", at_end.evictions, "blocks");
  print_row("in runs", at_end.blocks_in_runs,
            fmt::format("{:.4f} of the blocks taken together: 8 neighbours and more", in_runs(found)));
  print_row("waste", fmt::format("{:.2f} %", 100 * waste(found)), "slots behind the last token");
  print_row("speed", fmt::format("{:.0f}", requests_per_second(found)),
            fmt::format("requests/s; {:.2f} s, {:.2f} s of CPU time", found.seconds, found.cpu_seconds));
  print_row("memory", megabytes(found.memory.payload), "K and V");
  print_row("", megabytes(found.memory.metadata()),
            fmt::format("metadata: {:.0f} bytes a block",
                        ratio(static_cast<double>(found.memory.metadata()), chosen.blocks.front())));

  const auto& peak = found.peak;
  const auto& last = at_end.blocks;
  fmt::print("\n{:<10}{:>12}{:>12}{:>12}{:>12}\n", "blocks", "free", "in use", "evictable", "retiring");
  fmt::print("{:<10}{:>12}{:>12}{:>12}{:>12}\n", "  peak", peak.free, peak.in_use, peak.evictable, peak.retiring);
  fmt::print("{:<10}{:>12}{:>12}{:>12}{:>12}\n", "  at end", last.free, last.in_use, last.evictable, last.retiring);
}

void write_json(std::ostream& stream, const outcome& found, const workload& work, const options& chosen) {
  const auto& at_end = found.at_end;
  const auto report = nlohmann::ordered_json{
      {"requests", found.num_requests},
      {"block_references", found.num_references},
      {"hit_blocks", found.all_hits()},
      {"device_hit_blocks", at_end.hit_blocks},
      {"tiers", by_tier(found)},
      {"hit_ratio", hit_ratio(found)},
      {"bound_hit_ratio", bound_hit_ratio(found)},
      {"evictions", at_end.evictions},
      {"blocks_together", at_end.blocks_together},
      {"blocks_in_runs", at_end.blocks_in_runs},
      {"in_runs", in_runs(found)},
      {"refused_requests", found.refused_requests},
      {"failed_requests", found.failed_requests},
      {"output_tokens", found.output_tokens},
      {"waste", waste(found)},
      {"blocks_in_use_at_end", found.blocks_in_use_at_end()},
      {"invariant_violations", found.num_violations},
      {"seconds", found.seconds},
      {"cpu_seconds", found.cpu_seconds},
      {"requests_per_second", requests_per_second(found)},
      {"peak_blocks", by_state(found.peak)},
      {"final_blocks", by_state(at_end.blocks)},
      {"memory_bytes",
       {{"payload", found.memory.payload},
        {"pool", found.memory.pool},
        {"index", found.memory.index},
        {"sequences", found.memory.sequences}}},
      {"options",
       {{"trace", chosen.trace},
        {"block_size", work.block_size},
        {"blocks", chosen.blocks.front()},
        {"eviction", chosen.eviction},
        {"locking", chosen.locking},
        {"element", chosen.element},
        {"free_list", chosen.free_list},
        {"hash_seed", chosen.hash_seed},
        {"threads", chosen.num_threads},
        {"concurrency", chosen.concurrency},
        {"decode", chosen.decode}}},
  };
  stream << report.dump(2) << '\n';
}

}  // namespace pagedkv::replay
