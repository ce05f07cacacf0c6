#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/tier/orphan_records.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_table.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace pagedkv::detail {

/// Takes note of the records that a tier has from before; has those that no chain can reach erased.
template <class Tier, class Catalog>
void find_records(Tier& tier, Catalog& catalog) {
  auto places = std::vector<std::int32_t>{};
  auto useless = std::vector<std::pair<record_key, std::int32_t>>{};
  tier.queue.tier().for_each_record([&](std::int64_t in_tier, const record_identity& identity) {
    const auto place = static_cast<std::int32_t>(in_tier);
    if (in_tier >= tier.places.num_places()) {
      return;
    }
    places.push_back(place);
    const auto [tokens, keys] = identity.contents;
    auto found = found_record{place, identity, {tokens.begin(), tokens.end()}, {keys.begin(), keys.end()}};
    found.identity.contents = block_contents{std::span<const token>{}};
    auto key = identity.parent;
    for_each_run(found.contents(), identity.position, catalog.directory().tokens_per_node(),
                 [&](const block_contents& run) { key = chained_key(key, run); });
    if (identity.key == key) {
      tier.orphans.add(std::move(found));
    } else {
      useless.emplace_back(key_in_tier(identity), place);
    }
  });
  tier.places.take_all(places);
  for (const auto& [key, place] : useless) {
    catalog.erase_place(key, place, tier);
  }
}

/// Enters the records that tiers have from before into the catalog, as far as all their ancestors are in one of the
/// tiers; the others wait for theirs. Throws `std::bad_alloc`.
template <class Catalog>
void adopt_records(Catalog& catalog) {
  auto tags = std::vector<salt>{};
  auto num_found = std::size_t{0};
  auto num_nodes = std::size_t{0};
  catalog.slower().for_each([&]<class Tier>(std::size_t, Tier& tier) {
    if constexpr (persistent_tier<std::remove_cvref_t<decltype(tier.queue.tier())>>) {
      find_records(tier, catalog);
      num_found += tier.orphans.size();
      num_nodes += tier.orphans.num_tokens() / catalog.directory().tokens_per_node();
      tier.orphans.for_each_salt([&](salt tag) { tags.push_back(tag); });
    }
  });
  catalog.reserve_adoptions(num_nodes);
  auto adopted = std::vector<std::pair<record_id, std::size_t>>{};
  adopted.reserve(num_found);
  for (const auto tag : tags) {
    catalog.adopt_behind(catalog.directory().tree().root(tag), root_key(tag), tag,
                         [&](record_id record, std::size_t number) { adopted.emplace_back(record, number); });
  }
  for (auto i = adopted.size(); i > 0; --i) {  // tails first, as the oldest
    catalog.rank_in(adopted[i - 1].first, adopted[i - 1].second);
  }
}

}  // namespace pagedkv::detail
