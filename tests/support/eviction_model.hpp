#pragma once

#include <pagedkv/policy/eviction/concept.hpp>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace pagedkv::test {

/// A cache reduced to what an eviction policy sees of it, kept obviously right and slow: requests walk down a random
/// tree of contents, share the blocks that are cached, take free or evicted blocks for the rest, and give all back
/// later. `complaints` collects the errors of a policy.
template <eviction_policy Policy>
class eviction_model {
 public:
  eviction_model(std::int32_t num_blocks, std::uint64_t seed)
      : policy(num_blocks), blocks_(static_cast<std::size_t>(num_blocks)), random_(seed) {}

  Policy policy;
  std::vector<std::string> complaints;
  int victims = 0;
  int refusals = 0;

  void step() {
    now_ += 1'000'000;
    switch (below(8)) {
      case 0:
      case 1:
      case 2: start_request(); break;
      case 3:
      case 4:
      case 5: finish_request(); break;
      case 6: below(4) == 0 ? erase_block() : finish_request(); break;
      default: below(4) == 0 ? rename_block() : start_request(); break;
    }
  }

  void finish_all() {
    while (!requests_.empty()) {
      finish_request();
    }
  }

  /// Takes blocks until the policy has none left; every evictable one must come up, exactly once.
  void drain() {
    const auto expected = count_evictable();
    auto taken = std::size_t{0};
    while (take_victim() != no_block) {
      ++taken;
    }
    check(taken == expected, "victim gave up before every evictable block was taken");
  }

  [[nodiscard]] std::size_t count_evictable() const {
    return static_cast<std::size_t>(std::ranges::count_if(blocks_, [](const auto& b) { return evictable(b); }));
  }

 private:
  struct block_state {
    bool published = false;
    int references = 0;
    int children = 0;
    block_id parent = no_block;
    int branch = 0;
  };

  [[nodiscard]] static bool evictable(const block_state& b) { return b.published && b.references == 0; }

  [[nodiscard]] std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }

  void check(bool right, const char* complaint) {
    if (!right) {
      complaints.emplace_back(complaint);
    }
  }

  [[nodiscard]] block_state& at(block_id block) { return blocks_[to_index(block)]; }

  [[nodiscard]] block_id find_child(block_id parent, int branch) {
    for (auto i = std::size_t{0}; i < blocks_.size(); ++i) {
      const auto& b = blocks_[i];
      if (b.published && b.parent == parent && b.branch == branch) {
        return to_block(i);
      }
    }
    return no_block;
  }

  void start_request() {
    auto chain = std::vector<block_id>{};
    const auto length = 1 + below(8);
    auto parent = no_block;
    while (chain.size() < length) {
      const auto branch = static_cast<int>(below(chain.size() < 2 ? 3 : 2));
      auto block = find_child(parent, branch);
      if (block != no_block) {
        if (at(block).references++ == 0) {
          policy.remove(block);
        }
      } else {
        block = take_free();
        if (block == no_block) {
          ++refusals;
          check(count_evictable() == 0, "refused while a block was evictable");
          release(chain);
          return;
        }
        at(block) = {true, 1, 0, parent, branch};
        if (parent != no_block) {
          ++at(parent).children;
        }
      }
      chain.push_back(block);
      parent = block;
    }
    requests_.push_back(chain);
  }

  void finish_request() {
    if (!requests_.empty()) {
      const auto chosen = requests_.begin() + static_cast<std::ptrdiff_t>(below(requests_.size()));
      const auto chain = std::move(*chosen);
      requests_.erase(chosen);
      release(chain);
    }
  }

  void release(const std::vector<block_id>& chain) {
    for (auto i = chain.size(); i-- > 0;) {
      if (--at(chain[i]).references == 0) {
        auto release = block_release{};
        release.hash = random_();
        release.parent = at(chain[i]).parent;
        release.depth = static_cast<std::uint32_t>(i);
        release.num_prompt_tokens = static_cast<std::uint32_t>(chain.size());
        release.priority = static_cast<std::uint8_t>(below(101));
        release.retain_until = static_cast<timestamp>(below(2) == 0 ? 0 : now_ + 5'000'000);
        release.expected_return = static_cast<std::int64_t>(below(3) == 0 ? below(20'000'000) : 0);
        release.released_at = static_cast<timestamp>(now_);
        policy.insert(chain[i], release);
      }
    }
  }

  [[nodiscard]] block_id take_free() {
    for (auto i = std::size_t{0}; i < blocks_.size(); ++i) {
      if (!blocks_[i].published) {
        return to_block(i);
      }
    }
    return take_victim();
  }

  /// Offers of a policy that tells them are those that it told.
  [[nodiscard]] block_id take_victim() {
    auto told = std::vector<block_id>{};
    if constexpr (foresees_victims<Policy>) {
      const auto next = policy.next_victims();
      told.assign(next.rbegin(), next.rend());
      check(count_evictable() >= 2 || next[1] == no_block, "told a second victim that there is not");
    }
    auto taken = no_block;
    const auto take = [&](block_id block) {
      check(taken == no_block, "a second block was offered after one was taken");
      taken = block;
      if (const auto parent = at(block).parent; parent != no_block) {
        --at(parent).children;
      }
      for (auto& b : blocks_) {
        b.parent = b.parent == block ? no_block : b.parent;
      }
      at(block) = {};
      return eviction_answer::taken;
    };
    const auto block = policy.victim(offer{*this, take, told}, static_cast<timestamp>(now_));
    check(block == taken, "victim returned another block than was taken");
    victims += block != no_block;
    return block;
  }

  template <class Take>
  struct offer {
    eviction_model& model;
    Take& take;
    std::vector<block_id>& told;  // the next one behind the others

    eviction_answer operator()(block_id block) const {
      if (!told.empty()) {
        model.check(told.back() == block, "offered another block than it told");
        told.pop_back();
      }
      model.check(evictable(model.at(block)), "offered a block that is not evictable");
      return model.at(block).children == 0 ? take(block) : eviction_answer::has_children;
    }

    eviction_answer operator()(block_id block, evict_anyway_t) const {
      model.check(evictable(model.at(block)), "offered a block that is not evictable");
      const auto leaf = [](const block_state& b) { return evictable(b) && b.children == 0; };
      model.check(std::ranges::none_of(model.blocks_, leaf), "evicted a parent while a leaf was evictable");
      return take(block);
    }
  };
  template <class Take>
  offer(eviction_model&, Take&, std::vector<block_id>&) -> offer<Take>;

  void erase_block() {
    const auto block = to_block(below(blocks_.size()));
    if (evictable(at(block)) && at(block).children == 0) {
      if (at(block).parent != no_block) {
        --at(at(block).parent).children;
      }
      at(block) = {};
      policy.erase(block);
    }
  }

  void rename_block() {
    const auto from = to_block(below(blocks_.size()));
    const auto to = to_block(below(blocks_.size()));
    if (at(from).published && !at(to).published) {
      at(to) = std::exchange(at(from), {});
      for (auto& b : blocks_) {
        b.parent = b.parent == from ? to : b.parent;
      }
      for (auto& chain : requests_) {
        std::ranges::replace(chain, from, to);
      }
      policy.rename(from, to);
    }
  }

  std::vector<block_state> blocks_;
  std::vector<std::vector<block_id>> requests_;
  std::mt19937_64 random_;
  std::int64_t now_ = 0;
};

}  // namespace pagedkv::test
