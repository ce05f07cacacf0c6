#include <pagedkv/cache/groups/group_nodes.hpp>
#include <pagedkv/policy/hash/all.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

using namespace pagedkv;

namespace {

constexpr auto granularity = std::int32_t{2};
constexpr auto max_nodes = std::int32_t{20};
constexpr auto pool_size = std::int32_t{40};

// The groups: full attention, a window, states of two blocks each, and a window whose blocks hold two nodes.
constexpr auto full_group = std::size_t{0};
constexpr auto window_group = std::size_t{1};
constexpr auto state_group = std::size_t{2};
constexpr auto wide_group = std::size_t{3};
constexpr auto nodes_per_block = std::array<std::int32_t, 4>{1, 1, 0, 2};

/// The nodes from a root, each by its one token, repeated.
using path = std::vector<token>;

struct model_node {
  std::map<std::size_t, block_id> attached;
  int holders = 0;
};

[[nodiscard]] bool begins_with(const path& longer, const path& shorter) {
  return longer.size() >= shorter.size() && std::equal(shorter.begin(), shorter.end(), longer.begin());
}

/// Nodes as a map of vectors, beside those of the library.
class nodes_beside_model {
 public:
  explicit nodes_beside_model(std::uint32_t seed) : random_(seed) {
    for (auto i = std::size_t{0}; i < pool_size; ++i) {
      unused_.push_back(to_block(i));
    }
  }

  void do_something() {
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2: add(); break;
      case 3: attach(); break;
      case 4: attach(); break;
      case 5: let_go(); break;
      default: detach_any(); break;
    }
    check();
  }

  void finish() {
    while (!model_.empty()) {
      let_go();
      detach_any();
      check();
    }
    CHECK(nodes_.num_alive() == 0);
    CHECK(unused_.size() == pool_size);
  }

 private:
  [[nodiscard]] static std::vector<token> tokens_of(const path& p) {
    auto tokens = std::vector<token>{};
    for (const auto part : p) {
      tokens.insert(tokens.end(), granularity, part);
    }
    return tokens;
  }

  [[nodiscard]] std::vector<node_id> match(const path& p) const {
    auto found = std::vector<node_id>(p.size());
    found.resize(nodes_.match(nodes_.root(salt::none), tokens_of(p), granularity, found));
    return found;
  }

  [[nodiscard]] auto pick() {
    auto found = model_.begin();
    std::advance(found, static_cast<std::ptrdiff_t>(random_() % model_.size()));
    return found;
  }

  /// A node below a known one, or below the root; it may be known, too. Held.
  void add() {
    auto p = model_.empty() || random_() % 4 == 0 ? path{} : pick()->first;
    const auto before = p.empty() ? nodes_.root(salt::none) : nodes_.link(match(p).back());
    p.push_back(static_cast<token>(random_() % 3));
    const auto made = nodes_.find_or_add(before, tokens_of({p.back()}));
    const auto known = model_.contains(p);
    CHECK((made == no_node) == (!known && model_.size() == max_nodes));
    if (made != no_node) {
      nodes_.hold(made);
      ++model_[p].holders;
    }
  }

  void let_go() {
    const auto held = std::ranges::find_if(model_, [](const auto& entry) { return entry.second.holders > 0; });
    if (held != model_.end()) {
      const auto node = match(held->first).back();
      --held->second.holders;
      nodes_.let_go(node);
      prune();
    }
  }

  void attach() {
    if (model_.empty() || unused_.size() < 2) {
      return;
    }
    auto& [p, here] = *pick();
    const auto group = random_() % nodes_per_block.size();
    if (here.attached.contains(group)) {
      return;
    }
    const auto chain = match(p);
    if (group == state_group) {
      const auto blocks = std::array{take(), take()};
      nodes_.attach_state(chain.back(), group, blocks);
      here.attached[group] = blocks[0];
      second_of_[blocks[0]] = blocks[1];
      CHECK(nodes_.next_of_state(blocks[0]) == blocks[1]);
      return;
    }
    auto* above = p.size() % 2 == 0 ? &model_.at(path(p.begin(), p.end() - 1)) : nullptr;
    if (group == wide_group && (above == nullptr || above->attached.contains(group))) {
      return;
    }
    const auto block = take();
    if (group == wide_group) {
      nodes_.attach(chain[chain.size() - 2], group, block);
      above->attached[group] = block;
    }
    nodes_.attach(chain.back(), group, block);
    here.attached[group] = block;
    announce();
    CHECK(nodes_.deepest(block) == chain.back());
    CHECK(nodes_.group_of(block) == group);
    CHECK(nodes_.published_end(block, granularity) == std::ssize(p) * granularity);
  }

  /// Whether hits come as far as a node: it and all above it have a block of the group that they need.
  [[nodiscard]] bool is_reached(const path& p) const {
    return std::ranges::all_of(model_, [&](const auto& entry) {
      return !begins_with(p, entry.first) || entry.second.attached.contains(full_group);
    });
  }
  void announce() {
    for (const auto& [p, node] : model_) {
      if (const auto id = match(p).back(); is_reached(p) && !nodes_.is_announced(id)) {
        nodes_.announce(id);
      }
    }
  }

  void detach_any() {
    auto attached = std::vector<block_id>{};
    for (const auto& [p, node] : model_) {
      for (const auto& [group, block] : node.attached) {
        attached.push_back(block);
      }
    }
    if (!attached.empty()) {
      detach(attached[random_() % attached.size()]);
    }
  }

  /// With all that becomes useless, as a cache does.
  void detach(block_id block) {
    const auto group = nodes_.group_of(block);
    auto reached = std::map<path, node_id>{};
    for (const auto& [p, node] : model_) {
      if (is_reached(p)) {
        reached[p] = match(p).back();
      }
    }
    auto top = path{};
    for (auto& [p, node] : model_) {
      if (const auto found = node.attached.find(group); found != node.attached.end() && found->second == block) {
        top = top.empty() ? p : top;  // the map visits a node before those below it
        node.attached.erase(found);
      }
    }
    auto expected = std::set<block_id>{};
    auto expected_retracted = std::set<node_id>{};
    if (group == full_group) {
      for (const auto& [p, node] : model_) {
        // Blocks behind a node that hits did not reach were useless before.
        if (!begins_with(p, top) || (p != top && !reached.contains(path(p.begin(), p.end() - 1)))) {
          continue;
        }
        if (reached.contains(p)) {
          expected_retracted.insert(reached[p]);
        }
        for (const auto& [other_group, other] : node.attached) {
          if (nodes_.deepest(other) == match(p).back() && !is_above(top, other_group, other)) {
            expected.insert(other);
          }
        }
      }
    } else if (group == state_group) {
      expected.insert(second_of_.at(block));
    }
    auto useless = std::set<block_id>{};
    auto retracted = std::set<node_id>{};
    nodes_.detach(
        block, group == full_group, [&](block_id other) { CHECK(useless.insert(other).second); },
        [&](node_id node) { CHECK(retracted.insert(node).second); });
    CHECK(useless == expected);
    CHECK(retracted == expected_retracted);
    CHECK_FALSE(nodes_.is_attached(block));
    prune();
    unused_.push_back(block);
    if (group == state_group) {
      CHECK_FALSE(nodes_.is_attached(second_of_.at(block)));
      unused_.push_back(second_of_.at(block));
      second_of_.erase(block);
      return;
    }
    for (const auto other : useless) {
      if (nodes_.is_attached(other)) {  // another one may have taken it along
        detach(other);
      }
    }
  }

  /// Whether a block also holds a node above this one.
  [[nodiscard]] bool is_above(const path& top, std::size_t group, block_id block) const {
    return std::ranges::any_of(model_, [&](const auto& entry) {
      const auto& [p, node] = entry;
      const auto found = node.attached.find(group);
      return !begins_with(p, top) && found != node.attached.end() && found->second == block;
    });
  }

  void prune() {
    const auto needless = [&](const auto& entry) {
      const auto below = model_.upper_bound(entry.first);
      return entry.second.attached.empty() && entry.second.holders == 0 &&
             (below == model_.end() || !begins_with(below->first, entry.first));
    };
    for (auto found = model_.begin(); (found = std::ranges::find_if(model_, needless)) != model_.end();) {
      model_.erase(found);
    }
  }

  [[nodiscard]] block_id take() {
    const auto block = unused_.back();
    unused_.pop_back();
    return block;
  }

  void check() const {
    CHECK(nodes_.num_alive() == model_.size());
    auto ids = std::set<node_id>{};
    for (const auto& [p, node] : model_) {
      auto longer = p;
      longer.push_back(99);
      const auto found = match(longer);
      REQUIRE(found.size() == p.size());
      const auto id = found.back();
      CHECK(ids.insert(id).second);
      CHECK(nodes_.depth(id) + 1 == p.size());
      CHECK(nodes_.num_holders(id) == static_cast<std::uint32_t>(node.holders));
      CHECK(nodes_.is_announced(id) == is_reached(p));
      for (auto group = std::size_t{0}; group < nodes_per_block.size(); ++group) {
        const auto wanted = node.attached.find(group);
        CHECK(nodes_.attached(id, group) == (wanted == node.attached.end() ? no_block : wanted->second));
      }
      if (const auto block = nodes_.attached(id, full_group); block != no_block) {
        const auto num_children = std::ranges::count_if(model_, [&](const auto& entry) {
          const auto& [other, below] = entry;
          return other.size() == p.size() + 1 && begins_with(other, p) && below.attached.contains(full_group);
        });
        CHECK(nodes_.has_children(block) == (num_children != 0));
        CHECK(nodes_.num_children(block) == std::min(num_children, std::ptrdiff_t{2}));
      }
    }
  }

  std::mt19937 random_;
  group_nodes<single_thread, xxh3_hash> nodes_{max_nodes, pool_size, granularity, 7, nodes_per_block, true};
  std::map<path, model_node> model_;
  std::vector<block_id> unused_;
  std::map<block_id, block_id> second_of_;  // of a state, by its first block
};

}  // namespace

TEST_CASE("nodes apart from blocks behave as a map of paths does", "[group_nodes][random]") {
  const auto seed = Catch::getSeed();
  for (auto run = std::uint32_t{0}; run < 20; ++run) {
    CAPTURE(seed, run);
    auto nodes = nodes_beside_model{seed + run};
    for (auto i = 0; i < 300; ++i) {
      nodes.do_something();
    }
    nodes.finish();
  }
}

TEST_CASE("a node outlives its blocks as long as it is held or continued", "[group_nodes]") {
  auto nodes = group_nodes<single_thread, xxh3_hash>{max_nodes, pool_size, granularity, 7, nodes_per_block, true};
  const auto upper = nodes.find_or_add(nodes.root(salt{1}), std::array<token, 2>{1, 2});
  nodes.attach(upper, window_group, block_id{5});
  const auto lower = nodes.find_or_add(nodes.link(upper), std::array<token, 2>{3, 4});
  nodes.attach(lower, window_group, block_id{6});
  nodes.hold(lower);
  const auto found = [&] {
    auto there = std::array<node_id, 2>{};
    return nodes.match(nodes.root(salt{1}), std::array<token, 4>{1, 2, 3, 4}, granularity, there);
  };
  const auto none = [](auto) { FAIL("the blocks of a window make no other useless"); };
  nodes.detach(block_id{5}, false, none, none);
  nodes.detach(block_id{6}, false, none, none);
  CHECK(found() == 2);
  CHECK(nodes.attached(lower, window_group) == no_block);
  CHECK(nodes.find_or_add(nodes.link(upper), std::array<token, 2>{3, 4}) == lower);
  nodes.let_go(lower);
  CHECK(found() == 0);
  CHECK(nodes.num_alive() == 0);
}

TEST_CASE("a place that loses its last block is retracted from its start", "[group_nodes]") {
  constexpr auto wide_blocks = std::array<std::int32_t, 1>{2};
  auto nodes = group_nodes<single_thread, xxh3_hash>{max_nodes, pool_size, granularity, 7, wide_blocks, true};
  const auto upper = nodes.find_or_add(nodes.root(salt{1}), std::array<token, 2>{1, 2});
  const auto lower = nodes.find_or_add(nodes.link(upper), std::array<token, 2>{3, 4});
  nodes.hold(lower);
  nodes.attach(upper, 0, block_id{5});
  nodes.attach(lower, 0, block_id{6});  // holds the upper node's tokens, too
  nodes.announce(upper);
  nodes.announce(lower);
  auto retracted = std::set<node_id>{};
  const auto none = [](block_id) { FAIL("there is no other block"); };
  const auto note = [&](node_id node) { CHECK(retracted.insert(node).second); };
  nodes.detach(block_id{5}, true, none, note);
  CHECK(retracted.empty());
  nodes.detach(block_id{6}, true, none, note);
  CHECK(retracted == std::set{upper, lower});
}

TEST_CASE("a node whose block went first goes with the last one that continues it", "[group_nodes]") {
  constexpr auto one_group = std::array<std::int32_t, 1>{1};
  auto nodes = group_nodes<single_thread, xxh3_hash>{max_nodes, pool_size, granularity, 7, one_group, true};
  const auto upper = nodes.find_or_add(nodes.root(salt{1}), std::array<token, 2>{1, 2});
  const auto lower = nodes.find_or_add(nodes.link(upper), std::array<token, 2>{3, 4});
  nodes.attach(upper, 0, block_id{5});
  nodes.attach(lower, 0, block_id{6});
  const auto ignore = [](auto) {};
  nodes.detach(block_id{5}, false, ignore, ignore);
  CHECK(nodes.is_needed(upper));
  nodes.detach(block_id{6}, false, ignore, ignore);
  CHECK(nodes.num_alive() == 0);
}

TEST_CASE("without a group of full attention, nodes are told of as long as a block lies there or behind",
          "[group_nodes]") {
  constexpr auto one_group = std::array<std::int32_t, 1>{1};
  auto nodes = group_nodes<single_thread, xxh3_hash>{max_nodes, pool_size, granularity, 7, one_group, false};
  const auto upper = nodes.find_or_add(nodes.root(salt{1}), std::array<token, 2>{1, 2});
  const auto lower = nodes.find_or_add(nodes.link(upper), std::array<token, 2>{3, 4});
  const auto other = nodes.find_or_add(nodes.link(upper), std::array<token, 2>{5, 6});
  nodes.hold(other);
  nodes.attach(upper, 0, block_id{5});
  nodes.attach(lower, 0, block_id{6});
  auto told = std::vector<node_id>{};
  const auto note = [&](node_id node) { told.push_back(node); };
  nodes.announce_path(lower, note);
  CHECK(told == std::vector{upper, lower});
  nodes.attach(other, 0, block_id{7});
  nodes.announce_path(other, note);
  CHECK(told == std::vector{upper, lower, other});
  auto retracted = std::vector<node_id>{};
  const auto take_back = [&](node_id node) { retracted.push_back(node); };
  const auto none = [](block_id) { FAIL("the blocks of a window make no other useless"); };
  nodes.detach(block_id{5}, false, none, take_back);
  CHECK(retracted.empty());
  nodes.detach(block_id{6}, false, none, take_back);
  CHECK(retracted == std::vector{lower});
  nodes.detach(block_id{7}, false, none, take_back);
  CHECK(retracted == std::vector{lower, other, upper});
  CHECK(nodes.num_alive() == 2);
  nodes.let_go(other);
  CHECK(nodes.num_alive() == 0);
}
