#include <pagedkv/policy/hash/all.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>
#include <pagedkv/prefix/node_tree.hpp>

#include <catch2/catch_test_macros.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

using namespace pagedkv;

namespace {

constexpr auto node_size = std::int32_t{2};

/// A tree of nodes that each hold one token twice, and which of them are used.
struct tree_under_test {
  node_tree<single_thread, xxh3_hash> tree{40, node_size, 7};
  std::set<node_id> used;

  [[nodiscard]] auto is_used() const {
    return [this](node_id node) { return used.contains(node); };
  }
  [[nodiscard]] auto link(node_id node) const { return node == no_node ? tree.root(salt::none) : tree.link(node); }
  [[nodiscard]] node_id find(node_id before, token next) const {
    const auto tokens = std::array{next, next};
    return tree.find(link(before), tree.index().hash(link(before).hash, tokens), tokens);
  }
  node_id add(node_id before, token next) {
    const auto tokens = std::array{next, next};
    const auto node = tree.find_or_add(link(before), tree.index().hash(link(before).hash, tokens), tokens);
    used.insert(node);
    return node;
  }
  void drop(node_id node) {
    used.erase(node);
    tree.prune(node, is_used());
  }
  [[nodiscard]] std::vector<node_id> below(node_id top) const {
    auto seen = std::vector<node_id>{};
    tree.for_each_below(top, [&](node_id node) { seen.push_back(node); });
    return seen;
  }
};

}  // namespace

TEST_CASE("contents have one node, which stays while it is used, held or continued", "[node_tree]") {
  auto test = tree_under_test{};
  const auto first = test.add(no_node, 1);
  const auto second = test.add(first, 2);
  const auto third = test.add(second, 3);
  CHECK(test.add(first, 2) == second);
  CHECK(test.tree.depth(third) == 2);
  CHECK(test.tree.num_alive() == 3);

  test.drop(second);
  CHECK(test.find(first, 2) == second);
  test.tree.hold(third);
  test.drop(third);
  CHECK(test.find(second, 3) == third);
  test.tree.let_go(third);
  test.tree.prune(third, test.is_used());
  CHECK(test.find(first, 2) == no_node);
  CHECK(test.tree.num_alive() == 1);
  test.drop(first);
  CHECK(test.tree.num_alive() == 0);
  CHECK(test.find(no_node, 1) == no_node);
}

TEST_CASE("a mark goes with its node", "[node_tree]") {
  auto test = tree_under_test{};
  const auto node = test.add(no_node, 1);
  CHECK_FALSE(test.tree.is_marked(node));
  test.tree.hold(node);
  test.tree.mark(node, true);
  CHECK(test.tree.is_marked(node));
  CHECK(test.tree.num_holders(node) == 1);
  test.tree.mark(node, false);
  CHECK_FALSE(test.tree.is_marked(node));
  test.tree.mark(node, true);
  test.tree.let_go(node);
  test.drop(node);
  CHECK_FALSE(test.tree.is_marked(test.add(no_node, 2)));
}

TEST_CASE("children are visited in any order of their removal", "[node_tree]") {
  for (auto removed = token{0}; removed < 3; ++removed) {
    auto test = tree_under_test{};
    const auto top = test.add(no_node, 9);
    auto left = std::set{top};
    for (auto i = token{0}; i < 3; ++i) {
      left.insert(test.add(top, i));
    }
    const auto gone = test.find(top, removed);
    test.drop(gone);
    left.erase(gone);
    const auto seen = test.below(top);
    CHECK(seen.front() == top);
    CHECK(std::set(seen.begin(), seen.end()) == left);
    CHECK(test.add(top, removed) == gone);
  }
}

TEST_CASE("a withdrawn node is not found, and stays while it is needed", "[node_tree]") {
  auto test = tree_under_test{};
  const auto top = test.add(no_node, 1);
  const auto below = test.add(top, 2);
  CHECK(test.tree.withdraw(top));
  CHECK_FALSE(test.tree.withdraw(top));
  CHECK(test.find(no_node, 1) == no_node);
  CHECK(test.below(top) == std::vector{top, below});
  const auto again = test.add(no_node, 1);
  CHECK(again != top);
  CHECK(test.find(no_node, 1) == again);

  test.used = {again};
  test.tree.prune_below(top, test.is_used());
  CHECK(test.tree.num_alive() == 1);
}

TEST_CASE("delayed removals end with their scope", "[node_tree]") {
  auto test = tree_under_test{};
  auto nodes = std::vector<node_id>{};
  for (auto i = token{0}; i < 40; ++i) {
    nodes.push_back(test.add(no_node, i));
  }
  CHECK(test.tree.is_full());
  CHECK(test.add(no_node, 40) == no_node);
  {
    const auto removals = test.tree.delay_removals();
    for (const auto node : nodes) {
      test.drop(node);
    }
  }
  CHECK(test.tree.num_alive() == 0);
  for (auto i = token{0}; i < 40; ++i) {
    CHECK(test.find(no_node, i) == no_node);
  }
  CHECK(test.add(no_node, 40) != no_node);
}
