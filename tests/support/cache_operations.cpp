#include "cache_operations.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <random>

namespace pagedkv::test {

namespace {

struct action_info {
  const char* name;
  int weight;  // of 100 or so
};

constexpr auto actions = std::array<action_info, static_cast<std::size_t>(action::number_of_actions)>{{
    {"create", 16},      {"append_one", 12},     {"append_run", 8},     {"reserve_slots", 4}, {"append_batch", 8},
    {"compute", 16},     {"write_ahead", 3},     {"fork", 5},           {"truncate", 5},      {"drop_before", 4},
    {"release", 13},     {"pin", 2},             {"unpin", 2},          {"unpin_all", 1},     {"invalidate", 2},
    {"find_prefix", 3},  {"begin_step", 3},      {"retire_step", 4},    {"evict", 2},         {"compact", 2},
    {"resize", 4},       {"reset", 1},           {"advance_time", 2},   {"update_batches", 4}, {"ask_wrongly", 4},
    {"use_dead_id", 2},  {"serve", 0},
}};

static_assert(actions.back().name != nullptr, "every action has a name and a weight");

}  // namespace

std::vector<operation> random_operations(std::uint64_t seed, std::size_t count, bool serves) {
  auto random = std::mt19937_64{seed};
  auto weights = std::vector<int>{};
  std::ranges::transform(actions, std::back_inserter(weights), &action_info::weight);
  weights.back() = serves ? 80 : 0;
  auto pick = std::discrete_distribution<int>{weights.begin(), weights.end()};
  const auto number = [&] { return static_cast<std::uint32_t>(random() >> 32); };
  auto operations = std::vector<operation>(count);
  for (auto& next : operations) {
    next.what = static_cast<action>(pick(random));
    next.a = number();
    next.b = number();
    next.c = number();
  }
  return operations;
}

std::string to_string(const std::vector<operation>& operations) {
  auto text = std::string{};
  for (const auto& [what, a, b, c] : operations) {
    text += std::string("  {action::") + actions[static_cast<std::size_t>(what)].name + ", " + std::to_string(a) +
            ", " + std::to_string(b) + ", " + std::to_string(c) + "},\n";
  }
  return text;
}

std::vector<operation> shrink(std::vector<operation> operations,
                              const std::function<bool(const std::vector<operation>&)>& fails) {
  for (auto chunk = operations.size() / 2; chunk > 0;) {
    auto removed_any = false;
    for (auto first = std::size_t{0}; first < operations.size();) {
      auto shorter = operations;
      const auto begin = shorter.begin() + static_cast<std::ptrdiff_t>(first);
      shorter.erase(begin, begin + static_cast<std::ptrdiff_t>(std::min(chunk, operations.size() - first)));
      if (fails(shorter)) {
        operations = std::move(shorter);
        removed_any = true;
      } else {
        first += chunk;
      }
    }
    if (!removed_any || chunk > 1) {
      chunk /= 2;
    }
  }
  return operations;
}

}  // namespace pagedkv::test
