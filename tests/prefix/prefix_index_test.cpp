#include "../support/full_numbers.hpp"

#include <pagedkv/policy/hash/all.hpp>
#include <pagedkv/policy/locking/single_thread.hpp>
#include <pagedkv/prefix/chain_match.hpp>
#include <pagedkv/prefix/prefix_index.hpp>

#include <catch2/catch_get_random_seed.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

using namespace pagedkv;

namespace {

/// Every lease is granted, and counted against those that have ended.
struct open_leases {
  std::set<block_id> refused;
  int num_open = 0;

  [[nodiscard]] bool take(block_id block) {
    if (refused.contains(block)) {
      return false;
    }
    ++num_open;
    return true;
  }
  void end(block_id) { --num_open; }
};

/// So few hashes that nearly every look-up meets strangers.
struct byte_hash {
  static std::uint64_t hash(std::uint64_t previous, std::span<const token> tokens) noexcept {
    return xxh3_hash::hash(previous, tokens) & 0xff;
  }
};

/// Everything collides in all 64 bits.
struct constant_hash {
  static std::uint64_t hash(std::uint64_t, std::span<const token>) noexcept { return 42; }
};

static_assert(block_hash<byte_hash> && block_hash<constant_hash>);

constexpr auto block_size = 2;

template <class Hash>
struct index_under_test {
  explicit index_under_test(std::int32_t num_blocks) : index(num_blocks, block_size, 99) {}

  void publish(block_id block, const chain_link& before, std::array<token, 2> tokens) {
    std::ranges::copy(tokens, index.tokens(block).begin());
    const auto twin = index.publish(block, before, index.hash(before.hash, tokens), leases);
    leases.num_open -= twin == no_block ? 0 : 1;
    CHECK(leases.num_open == 0);
  }
  void erase(block_id block) {
    index.detach(block);
    index.erase(block);
  }
  [[nodiscard]] block_id find(const chain_link& before, std::array<token, 2> tokens) {
    const auto found = index.find(before, index.hash(before.hash, tokens), tokens, leases);
    CHECK(leases.num_open == (found == no_block ? 0 : 1));
    leases.num_open = 0;
    return found;
  }

  prefix_index<single_thread, Hash> index;
  open_leases leases;
};

/// The node that a look-up tries first after `before`, if it has these tokens.
template <class Test>
[[nodiscard]] block_id follow(Test& test, const chain_link& before, std::array<token, 2> tokens) {
  const auto found = test.index.follow(before.node, before, tokens, test.leases);
  CHECK(test.leases.num_open == (found == no_block ? 0 : 1));
  test.leases.num_open = 0;
  return found;
}

}  // namespace

TEMPLATE_TEST_CASE("tokens, salt and ancestors must all agree", "[prefix_index]", xxh3_hash, byte_hash, constant_hash) {
  auto test = index_under_test<TestType>{4};
  const auto root = test.index.root(salt{1});
  const auto other_root = test.index.root(salt{2});
  test.publish(block_id{0}, root, {5, 6});
  test.publish(block_id{1}, test.index.link(block_id{0}), {7, 8});
  test.publish(block_id{2}, other_root, {5, 6});

  CHECK(test.find(root, {5, 6}) == block_id{0});
  CHECK(test.find(root, {5, 7}) == no_block);
  CHECK(test.find(root, {6, 5}) == no_block);
  CHECK(test.find(root, {7, 8}) == no_block);  // there, but not at the start
  CHECK(test.find(test.index.link(block_id{0}), {7, 8}) == block_id{1});
  CHECK(test.find(test.index.link(block_id{1}), {7, 8}) == no_block);
  CHECK(test.find(other_root, {5, 6}) == block_id{2});
  CHECK(test.find(test.index.link(block_id{2}), {7, 8}) == no_block);  // under the other salt
  CHECK(test.find(test.index.root(salt::none), {5, 6}) == no_block);
}

TEMPLATE_TEST_CASE("a root's salt is no identity of a block", "[prefix_index]", xxh3_hash, constant_hash) {
  auto test = index_under_test<TestType>{3};
  test.publish(block_id{0}, test.index.root(salt::none), {1, 1});
  const auto identity = test.index.link(block_id{0}).identity;
  test.publish(block_id{1}, test.index.link(block_id{0}), {2, 2});
  CHECK(test.find(test.index.root(static_cast<salt>(identity)), {2, 2}) == no_block);
  test.publish(block_id{2}, test.index.root(static_cast<salt>(identity)), {3, 3});
  CHECK(test.find(test.index.link(block_id{0}), {3, 3}) == no_block);
}

TEST_CASE("nodes that are not blocks are found like those that are", "[prefix_index]") {
  struct free_leases {
    [[nodiscard]] bool take(node_id) const noexcept { return true; }
    void end(node_id) const noexcept {}
  };
  auto index = prefix_index<single_thread, byte_hash, node_id>{3, block_size, 99};
  const auto tokens = std::array<token, 5>{5, 6, 7, 8, 9};
  auto before = index.root(salt{1});
  for (auto i = std::size_t{0}; i < 2; ++i) {
    const auto here = to_node(i + 1);
    std::ranges::copy(token_run{tokens}.block(i, block_size).tokens, index.tokens(here).begin());
    index.publish_first(here, before, index.hash(before.hash, index.tokens(here)));
    before = index.link(here);
  }
  CHECK(before.node == to_node(2));

  const auto find = [&](salt tag) {
    auto found = std::vector<node_id>{};
    match_chain(index, index.root(tag), tokens, block_size, 2, free_leases{}, [&](node_id node) {
      found.push_back(node);
    });
    return found;
  };
  CHECK(find(salt{1}) == std::vector{to_node(1), to_node(2)});
  CHECK(find(salt{2}).empty());

  index.erase(to_node(2));
  CHECK(find(salt{1}) == std::vector{to_node(1)});
}

TEMPLATE_TEST_CASE("contents are new unless an equal block, their twin, is there", "[prefix_index]", xxh3_hash,
                   constant_hash) {
  auto test = index_under_test<TestType>{4};
  const auto publish = [&](block_id block, const chain_link& before, std::array<token, 2> tokens) {
    std::ranges::copy(tokens, test.index.tokens(block).begin());
    const auto twin = test.index.publish(block, before, test.index.hash(before.hash, tokens), test.leases);
    test.leases.num_open -= twin == no_block ? 0 : 1;
    return twin;
  };
  const auto root = test.index.root(salt::none);
  CHECK(publish(block_id{0}, root, {1, 2}) == no_block);
  CHECK(publish(block_id{1}, root, {1, 2}) == block_id{0});
  CHECK(publish(block_id{2}, test.index.link(block_id{1}), {1, 2}) == no_block);
  const auto has_twin = [&](block_id block, block_id going) {
    return test.index.has_twin(block, [=](block_id twin) { return twin != going; });
  };
  CHECK(has_twin(block_id{0}, no_block));
  CHECK(has_twin(block_id{1}, no_block));
  CHECK_FALSE(has_twin(block_id{1}, block_id{0}));
  CHECK_FALSE(has_twin(block_id{2}, no_block));

  // After the newest contents there is nothing to find.
  const auto before = test.index.link(block_id{2});
  std::ranges::copy(std::array<token, 2>{5, 6}, test.index.tokens(block_id{3}).begin());
  test.index.publish_first(block_id{3}, before, test.index.hash(before.hash, test.index.tokens(block_id{3})));
  CHECK(test.find(before, {5, 6}) == block_id{3});
}

TEMPLATE_TEST_CASE("of two blocks with equal contents either keeps the chain findable", "[prefix_index]", xxh3_hash,
                   byte_hash, constant_hash) {
  auto test = index_under_test<TestType>{3};
  const auto root = test.index.root(salt::none);
  test.publish(block_id{0}, root, {1, 2});
  test.publish(block_id{1}, root, {1, 2});
  test.publish(block_id{2}, test.index.link(block_id{0}), {3, 4});
  CHECK(test.find(test.index.link(block_id{1}), {3, 4}) == block_id{2});
  test.erase(block_id{0});
  CHECK(test.find(root, {1, 2}) == block_id{1});
  CHECK(test.find(test.index.link(block_id{1}), {3, 4}) == block_id{2});
  test.publish(block_id{0}, root, {1, 2});
  test.erase(block_id{1});
  CHECK(test.find(root, {1, 2}) == block_id{0});
  CHECK(test.find(test.index.link(block_id{0}), {3, 4}) == block_id{2});
}

TEMPLATE_TEST_CASE("contents that were forgotten and return get a new identity", "[prefix_index]", xxh3_hash,
                   constant_hash) {
  auto test = index_under_test<TestType>{2};
  const auto root = test.index.root(salt::none);
  test.publish(block_id{0}, root, {1, 2});
  const auto before = test.index.link(block_id{0});
  test.publish(block_id{1}, before, {3, 4});
  CHECK(test.index.has_children(block_id{0}));
  CHECK(test.index.parent_in_index(block_id{1}) == block_id{0});
  test.erase(block_id{0});
  CHECK(test.find(root, {1, 2}) == no_block);
  CHECK(test.index.parent(block_id{1}) == block_id{0});
  CHECK(test.index.parent_in_index(block_id{1}) == no_block);

  // Other contents in the same place adopt no children.
  test.publish(block_id{0}, root, {9, 9});
  CHECK(test.index.parent_in_index(block_id{1}) == no_block);
  CHECK(test.find(test.index.link(block_id{0}), {3, 4}) == no_block);
  CHECK(test.find(before, {3, 4}) == block_id{1});  // for a sequence that went on from there
  test.erase(block_id{1});
  CHECK_FALSE(test.index.has_children(block_id{0}));
}

TEST_CASE("children are counted from publication to detachment", "[prefix_index]") {
  auto test = index_under_test<xxh3_hash>{3};
  test.publish(block_id{0}, test.index.root(salt::none), {1, 2});
  const auto before = test.index.link(block_id{0});
  CHECK_FALSE(test.index.has_children(block_id{0}));
  test.publish(block_id{1}, before, {3, 4});
  test.publish(block_id{2}, before, {5, 6});
  test.erase(block_id{1});
  CHECK(test.index.has_children(block_id{0}));
  test.index.detach(block_id{2});
  CHECK_FALSE(test.index.has_children(block_id{0}));
  test.index.attach(block_id{2});
  CHECK(test.index.has_children(block_id{0}));
}

TEST_CASE("a block that may not be leased is no hit", "[prefix_index]") {
  auto test = index_under_test<constant_hash>{2};
  const auto root = test.index.root(salt::none);
  test.publish(block_id{0}, root, {1, 2});
  test.leases.refused = {block_id{0}};
  CHECK(test.find(root, {1, 2}) == no_block);
  test.publish(block_id{1}, root, {1, 2});
  CHECK(test.find(root, {1, 2}) == block_id{1});
}

TEST_CASE("a renamed block keeps its chain", "[prefix_index]") {
  auto test = index_under_test<xxh3_hash>{6};
  const auto root = test.index.root(salt{3});
  test.publish(block_id{4}, root, {1, 2});
  test.publish(block_id{5}, test.index.link(block_id{4}), {3, 4});
  test.index.rename(block_id{5}, block_id{0}, true);
  test.index.rename(block_id{4}, block_id{1}, true);
  test.index.rename_links([](block_id block) {
    return block == block_id{4} ? block_id{1} : block == block_id{5} ? block_id{0} : block;
  });
  CHECK(test.find(root, {1, 2}) == block_id{1});
  CHECK(test.find(test.index.link(block_id{1}), {3, 4}) == block_id{0});
  CHECK(follow(test, test.index.link(block_id{1}), {3, 4}) == block_id{0});
  CHECK(test.index.parent_in_index(block_id{0}) == block_id{1});
  CHECK(test.index.has_children(block_id{1}));
  for (const auto block : {block_id{0}, block_id{1}}) {
    CHECK(test.index.reaches(block));
    CHECK(test.index.contents_agree(block));
  }
}

TEST_CASE("changed tokens and lost entries are noticed", "[prefix_index]") {
  auto test = index_under_test<xxh3_hash>{2};
  test.publish(block_id{0}, test.index.root(salt::none), {1, 2});
  test.publish(block_id{1}, test.index.link(block_id{0}), {3, 4});
  CHECK(test.index.contents_agree(block_id{1}));
  test.index.tokens(block_id{1})[1] = 5;
  CHECK_FALSE(test.index.contents_agree(block_id{1}));
  test.erase(block_id{1});
  CHECK_FALSE(test.index.reaches(block_id{1}));
}

TEMPLATE_TEST_CASE("a node links to its newest child until that one goes", "[prefix_index]", xxh3_hash, constant_hash) {
  auto test = index_under_test<TestType>{6};
  const auto root = test.index.root(salt::none);
  test.publish(block_id{0}, root, {1, 2});
  const auto before = test.index.link(block_id{0});
  CHECK(follow(test, root, {1, 2}) == no_block);
  CHECK(follow(test, before, {3, 4}) == no_block);
  test.publish(block_id{1}, before, {3, 4});
  CHECK(follow(test, before, {3, 4}) == block_id{1});
  CHECK(follow(test, before, {3, 5}) == no_block);
  test.publish(block_id{2}, before, {5, 6});
  CHECK(follow(test, before, {3, 4}) == no_block);
  CHECK(follow(test, before, {5, 6}) == block_id{2});
  test.leases.refused = {block_id{2}};
  CHECK(follow(test, before, {5, 6}) == no_block);
  test.leases.refused = {};

  test.erase(block_id{1});
  CHECK(follow(test, before, {5, 6}) == block_id{2});
  test.erase(block_id{2});
  CHECK(follow(test, before, {5, 6}) == no_block);
  test.publish(block_id{3}, before, {7, 8});
  test.index.withdraw(block_id{3});
  CHECK(follow(test, before, {7, 8}) == no_block);
  for (const auto block : {block_id{0}, block_id{1}, block_id{2}, block_id{3}}) {
    CHECK(test.index.link_agrees(block));
  }
}

TEST_CASE("a link does not outlive what its node held", "[prefix_index]") {
  auto test = index_under_test<xxh3_hash>{4};
  const auto root = test.index.root(salt::none);
  test.publish(block_id{0}, root, {1, 2});
  const auto before = test.index.link(block_id{0});
  test.publish(block_id{1}, before, {3, 4});
  test.erase(block_id{0});
  test.publish(block_id{0}, root, {9, 9});
  CHECK(follow(test, test.index.link(block_id{0}), {3, 4}) == no_block);
  test.publish(block_id{2}, before, {5, 6});  // by a sequence that went on from there
  CHECK(follow(test, test.index.link(block_id{0}), {5, 6}) == no_block);
  CHECK(test.index.link_agrees(block_id{0}));

  test.publish(block_id{3}, test.index.link(block_id{0}), {3, 4});
  test.erase(block_id{1});  // it was a child of what the block held before
  CHECK(follow(test, test.index.link(block_id{0}), {3, 4}) == block_id{3});
}

TEST_CASE("twins each link to what was published after them", "[prefix_index]") {
  auto test = index_under_test<xxh3_hash>{4};
  const auto root = test.index.root(salt::none);
  test.publish(block_id{0}, root, {1, 2});
  test.publish(block_id{1}, root, {1, 2});
  test.publish(block_id{2}, test.index.link(block_id{0}), {3, 4});
  CHECK(follow(test, test.index.link(block_id{0}), {3, 4}) == block_id{2});
  CHECK(follow(test, test.index.link(block_id{1}), {3, 4}) == no_block);
  CHECK(test.find(test.index.link(block_id{1}), {3, 4}) == block_id{2});
  test.publish(block_id{3}, test.index.link(block_id{1}), {3, 4});
  CHECK(follow(test, test.index.link(block_id{0}), {3, 4}) == block_id{2});
  CHECK(follow(test, test.index.link(block_id{1}), {3, 4}) == block_id{3});
}

TEST_CASE("a wrong link is noticed", "[prefix_index]") {
  auto test = index_under_test<xxh3_hash>{3};
  test.publish(block_id{0}, test.index.root(salt::none), {1, 2});
  test.publish(block_id{1}, test.index.link(block_id{0}), {3, 4});
  CHECK(test.index.link_agrees(block_id{0}));
  test.index.rename(block_id{1}, block_id{2}, true);  // without `rename_links`
  CHECK_FALSE(test.index.link_agrees(block_id{0}));
}

namespace {

/// Random publications, erasures and look-ups of chains against a map from whole prefixes to blocks.
template <class Hash>
void look_up_many(int num_lookups, unsigned seed) {
  constexpr auto num_blocks = 300;
  auto random = std::mt19937{seed};
  auto test = index_under_test<Hash>{num_blocks};
  using prefix = std::vector<token>;  // the salt, then tokens
  auto contents = std::map<block_id, prefix>{};
  auto hits = 0;
  for (auto i = 0; i < num_lookups; ++i) {
    const auto tag = salt{random() % 3};
    auto before = test.index.root(tag);
    auto so_far = prefix{static_cast<token>(tag)};
    for (auto depth = random() % 4 + 1; depth > 0; --depth) {
      const auto tokens = std::array{static_cast<token>(random() % 3), static_cast<token>(random() % 3)};
      so_far.insert(so_far.end(), tokens.begin(), tokens.end());
      auto found = test.index.find(before, test.index.hash(before.hash, tokens), tokens, test.leases);
      if (found != no_block) {
        ++hits;
        if (contents.at(found) != so_far) {
          FAIL("a wrong hit on block " << static_cast<int>(found));
        }
      } else {
        found = to_block(random() % num_blocks);
        if (found == before.node) {
          break;
        }
        if (contents.erase(found) != 0) {
          test.erase(found);
        }
        std::ranges::copy(tokens, test.index.tokens(found).begin());
        test.index.publish(found, before, test.index.hash(before.hash, tokens), test.leases);
        contents[found] = so_far;
      }
      before = test.index.link(found);
    }
  }
  CHECK(hits > num_lookups / 10);
}

}  // namespace

TEMPLATE_TEST_CASE("colliding hashes never give a wrong hit", "[prefix_index][random]", byte_hash, constant_hash) {
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  look_up_many<TestType>(testing::scaled(30'000, 1'000'000), seed);
}

TEST_CASE("a chain is followed as far as it agrees, however long", "[chain_match]") {
  constexpr auto num_blocks = 100;
  auto test = index_under_test<xxh3_hash>{num_blocks};
  auto tokens = std::vector<token>{};
  auto before = test.index.root(salt::none);
  for (auto i = 0; i < num_blocks; ++i) {
    test.publish(block_id{i}, before, {i, -i});
    before = test.index.link(block_id{i});
    tokens.insert(tokens.end(), {i, -i});
  }
  const auto match = [&](std::span<const token> asked, std::size_t max_blocks) {
    auto expected = 0;
    auto in_order = true;
    const auto count = match_chain(test.index, test.index.root(salt::none), asked, block_size, max_blocks, test.leases,
                                   [&](block_id block) { in_order &= block == block_id{expected++}; });
    CHECK(in_order);
    CHECK(static_cast<std::size_t>(expected) == count);
    return count;
  };
  for (const auto length : {0, 1, 15, 16, 17, 63, 99, 100}) {
    CHECK(match(tokens, static_cast<std::size_t>(length)) == static_cast<std::size_t>(length));
    auto parted = tokens;
    parted.push_back(0);
    parted[static_cast<std::size_t>(2 * length)] ^= 1;
    CHECK(match(std::span{parted}.first(2 * num_blocks), num_blocks) == static_cast<std::size_t>(length));
  }
  test.erase(block_id{40});
  CHECK(match(tokens, num_blocks) == 40);
}

TEST_CASE("a chain of long blocks ends before the first token that differs", "[chain_match]") {
  constexpr auto num_blocks = std::size_t{3};
  for (const auto size : {127, 128, 129, 159, 160, 500}) {
    auto index = prefix_index<single_thread, xxh3_hash>{num_blocks, size, 99};
    auto leases = open_leases{};
    auto tokens = std::vector<token>(num_blocks * static_cast<std::size_t>(size) + 1);
    std::iota(tokens.begin(), tokens.end(), 0);
    const auto asked = [&] { return std::span{tokens}.subspan(1); };  // off every boundary
    auto before = index.root(salt::none);
    for (auto i = std::size_t{0}; i < num_blocks; ++i) {
      const auto contents = token_run{asked()}.block(i, static_cast<std::size_t>(size));
      std::ranges::copy(contents.tokens, index.tokens(to_block(i)).begin());
      index.publish_first(to_block(i), before, index.hash(before.hash, contents));
      before = index.link(to_block(i));
    }
    const auto match = [&] {
      return match_chain(index, index.root(salt::none), asked(), static_cast<std::size_t>(size), num_blocks, leases,
                         [](block_id) {});
    };
    CHECK(match() == num_blocks);
    auto wrong = std::set<std::size_t>{};
    for (auto i = std::size_t{0}; i < asked().size(); ++i) {
      asked()[i] ^= 1 << i % 31;
      if (match() != i / static_cast<std::size_t>(size)) {
        wrong.insert(i);
      }
      asked()[i] ^= 1 << i % 31;
    }
    CAPTURE(size);
    CHECK(wrong == std::set<std::size_t>{});
  }
}

TEST_CASE("a chain is followed past newer branches, wherever they leave it", "[chain_match][random]") {
  constexpr auto length = std::size_t{60};
  const auto seed = Catch::getSeed();
  CAPTURE(seed);
  auto random = std::mt19937_64{seed};
  for (auto round = 0; round < testing::scaled(200, 5'000); ++round) {
    auto test = index_under_test<xxh3_hash>{2 * length};
    auto tokens = std::vector<token>{};
    auto before = test.index.root(salt::none);
    for (auto i = std::size_t{0}; i < length; ++i) {
      const auto number = static_cast<token>(i);
      test.publish(to_block(i), before, {number, -number});
      before = test.index.link(to_block(i));
      tokens.insert(tokens.end(), {number, -number});
    }
    const auto one_in = random() % 5 + 1;
    for (auto i = std::size_t{0}; i + 1 < length; ++i) {
      if (random() % one_in == 0) {
        test.publish(to_block(length + i), test.index.link(to_block(i)), {-1, -1});
      }
    }
    const auto max_blocks = random() % (length + 1);
    const auto parted = random() % length;
    tokens[2 * parted] ^= 1;
    auto found = std::vector<block_id>{};
    const auto count = match_chain(test.index, test.index.root(salt::none), tokens, block_size, max_blocks, test.leases,
                                   [&](block_id block) { found.push_back(block); });
    auto expected = std::vector<block_id>{};
    for (auto i = std::size_t{0}; i < std::min<std::size_t>(max_blocks, parted); ++i) {
      expected.push_back(to_block(i));
    }
    CHECK(count == found.size());
    CHECK(found == expected);
    CHECK(test.leases.num_open == static_cast<int>(count));
  }
}

TEST_CASE("with its first key, an index takes a pointer more a block", "[prefix_index]") {
  auto test = index_under_test<xxh3_hash>{100};
  const auto before = test.index.metadata_bytes();
  REQUIRE(test.index.assign_keys(block_id{3}, std::array{prefix_key{0, {1, 2}}}));
  CHECK(test.index.metadata_bytes() == before + 100 * sizeof(void*));
}

TEST_CASE("keys and known hashes are those of the block, also behind links", "[chain_match]") {
  constexpr auto num_blocks = std::size_t{20};
  auto test = index_under_test<xxh3_hash>{num_blocks};
  auto tokens = std::vector<token>(block_size * num_blocks);
  std::iota(tokens.begin(), tokens.end(), 0);
  auto keys = std::vector<prefix_key>{{0, {1, 1}}, {7, {2, 2}}, {7, {3, 3}}, {22, {4, 4}}, {39, {5, 5}}};
  auto hashes = std::vector<std::uint64_t>{};
  auto before = test.index.root(salt::none);
  for (auto i = std::size_t{0}; i < num_blocks; ++i) {
    const auto contents = token_run{tokens, keys}.block(i, block_size);
    std::ranges::copy(contents.tokens, test.index.tokens(to_block(i)).begin());
    REQUIRE((contents.keys.empty() || test.index.assign_keys(to_block(i), contents.keys)));
    hashes.push_back(test.index.hash(before.hash, contents));
    test.index.publish_first(to_block(i), before, hashes.back());
    before = test.index.link(to_block(i));
  }
  const auto match = [&](const token_run& asked) {
    return match_chain(test.index, test.index.root(salt::none), asked, block_size, num_blocks, test.leases,
                       [](block_id) {});
  };
  CHECK(match({tokens, keys}) == num_blocks);
  CHECK(match({tokens, keys, hashes}) == num_blocks);
  CHECK(match({tokens, keys, std::span{hashes}.first(7)}) == num_blocks);
  CHECK(match(tokens) == 0);
  const auto with_other_value = [&](std::size_t key) {
    auto others = keys;
    others[key].value[1] ^= 1;
    return match({tokens, others, hashes});
  };
  CHECK(with_other_value(0) == 0);
  CHECK(with_other_value(1) == 3);
  CHECK(with_other_value(2) == 3);
  CHECK(with_other_value(3) == 11);
  CHECK(with_other_value(4) == 19);
  CHECK(match({tokens, std::span{keys}.first(4)}) == 19);
  keys.push_back({39, {6, 6}});
  CHECK(match({tokens, keys}) == 19);
  keys.pop_back();
  keys.insert(keys.begin() + 3, {10, {9, 9}});
  CHECK(match({tokens, keys}) == 5);
}
