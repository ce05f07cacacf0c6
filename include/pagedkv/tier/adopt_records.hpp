#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/tier/persistent_tier.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_key.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pagedkv::detail {

/// A record that a tier has from before.
struct found_record {
  std::int32_t place;
  record_identity identity;  // without contents
  std::vector<token> tokens;
  std::vector<prefix_key> keys;
};

struct record_key_hash {
  std::size_t operator()(const record_key& key) const noexcept { return static_cast<std::size_t>(key.low); }
};
using known_nodes = std::unordered_map<record_key, node_id, record_key_hash>;

/// Ancestors before descendants.
template <class Tier>
[[nodiscard]] std::vector<found_record> find_records(Tier& tier) {
  auto found = std::vector<found_record>{};
  tier.queue.tier().for_each_record([&](std::int64_t place, const record_identity& identity) {
    if (place < tier.places.num_places()) {
      const auto& contents = identity.contents;
      found.push_back({static_cast<std::int32_t>(place),
                       identity,
                       {contents.tokens.begin(), contents.tokens.end()},
                       {contents.keys.begin(), contents.keys.end()}});
    }
  });
  std::ranges::stable_sort(found, {}, [](const found_record& record) { return record.identity.position; });
  return found;
}

/// The node of a record whose ancestors are all known, or `no_node`.
template <class Directory>
[[nodiscard]] node_id node_for(Directory& directory, const found_record& record, const known_nodes& known) noexcept {
  const auto& identity = record.identity;
  const auto contents = block_contents{record.tokens, record.keys};
  if (identity.key != chained_key(identity.parent, contents)) {
    return no_node;
  }
  auto before = directory.root(identity.salt);
  if (identity.position != 0) {
    const auto above = known.find(identity.parent);
    const auto follows = above != known.end() && directory.at(above->second).salt == identity.salt &&
                         (directory.at(above->second).depth + 1) * record.tokens.size() ==
                             static_cast<std::size_t>(identity.position);
    if (!follows) {
      return no_node;
    }
    before = directory.link(above->second);
  } else if (identity.parent != root_key(identity.salt)) {
    return no_node;
  }
  return directory.find_or_add(before, Directory::hash(before.hash, contents), contents, identity.salt);
}

/// Enters the records that tiers have from before into the catalog, as far as all their ancestors are there; has the
/// others erased. Throws `std::bad_alloc`.
template <class Catalog>
void adopt_records(Catalog& catalog) {
  catalog.slower().for_each([&]<class Tier>(std::size_t number, Tier& tier) {
    if constexpr (persistent_tier<std::remove_cvref_t<decltype(tier.queue.tier())>>) {
      auto known = known_nodes{};
      auto adopted = std::vector<node_id>{};
      auto orphans = std::vector<found_record>{};
      for (auto& record : find_records(tier)) {
        const auto node = node_for(catalog.directory(), record, known);
        if (node != no_node && catalog.directory().place(node, number) < 0) {
          adopted.push_back(node);
          known[record.identity.key] = node;
          catalog.claim(node, number, record.place, tier);
        } else {
          tier.places.claim(record.place, to_node(0));
          orphans.push_back(std::move(record));
        }
      }
      tier.places.end_claims();
      for (const auto& orphan : orphans) {  // no invalidation would know of them, and a later cache might adopt them
        catalog.erase_place(orphan.identity.key, orphan.place, tier);
      }
      for (auto i = adopted.size(); i > 0; --i) {  // tails first, as the oldest
        catalog.rank_in(adopted[i - 1], number, tier);
      }
    }
  });
}

}  // namespace pagedkv::detail
