#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/tier/record.hpp>

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pagedkv {

/// A record that a tier has from before.
struct found_record {
  std::int32_t place;
  record_identity identity;  // without contents
  std::vector<token> tokens;
  std::vector<prefix_key> keys;

  [[nodiscard]] block_contents contents() const noexcept { return {tokens, keys}; }
};

/// Records of one tier whose ancestors nobody knows, until these come, an invalidation may mean them, or their place is
/// needed. Not thread-safe; only `add` allocates.
class orphan_records {
 public:
  /// Throws `std::bad_alloc`.
  void add(found_record record) {
    auto& count = num_with_[record.identity.salt];
    const auto parent = record.identity.parent;
    num_bytes_ += bytes_of(record);
    num_tokens_ += record.tokens.size();
    behind_.emplace(parent, std::move(record));
    ++count;
  }

  [[nodiscard]] std::size_t size() const noexcept { return behind_.size(); }
  [[nodiscard]] bool empty() const noexcept { return behind_.empty(); }
  /// Tokens of all that were added.
  [[nodiscard]] std::size_t num_tokens() const noexcept { return num_tokens_; }

  /// Calls `visit(salt)` for the salt of each record, once for equal ones.
  template <class Visit>
  void for_each_salt(Visit&& visit) const {
    for (const auto& [tag, count] : num_with_) {
      visit(tag);
    }
  }

  /// Removes the records that continue a chain with this key, each after `taken(record)`.
  template <class Taken>
  void take_behind(const record_key& parent, Taken&& taken) noexcept {
    const auto [first, last] = behind_.equal_range(parent);
    for (auto each = first; each != last; ++each) {
      taken(std::as_const(each->second));
      uncount(each->second);
    }
    behind_.erase(first, last);
  }

  /// Takes those of a salt. Linear in the records, if there is one.
  template <class Taken>
  void take_with(salt tag, Taken&& taken) noexcept {
    if (!num_with_.contains(tag)) {
      return;
    }
    std::erase_if(behind_, [&](const auto& entry) {
      const auto goes = entry.second.identity.salt == tag;
      if (goes) {
        taken(entry.second);
        num_bytes_ -= bytes_of(entry.second);
      }
      return goes;
    });
    num_with_.erase(tag);
  }

  /// Takes one of them.
  template <class Taken>
  void take_any(Taken&& taken) noexcept {
    if (const auto first = behind_.begin(); first != behind_.end()) {
      taken(std::as_const(first->second));
      uncount(first->second);
      behind_.erase(first);
    }
  }

  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return num_bytes_; }

 private:
  struct key_hash {
    std::size_t operator()(const record_key& key) const noexcept { return static_cast<std::size_t>(key.low); }
  };

  [[nodiscard]] static std::size_t bytes_of(const found_record& record) noexcept {
    return sizeof(record_key) + sizeof(record) + record.tokens.size() * sizeof(token) +
           record.keys.size() * sizeof(prefix_key);
  }
  void uncount(const found_record& record) noexcept {
    num_bytes_ -= bytes_of(record);
    if (const auto at = num_with_.find(record.identity.salt); --at->second == 0) {
      num_with_.erase(at);
    }
  }

  std::unordered_multimap<record_key, found_record, key_hash> behind_;  // by the key of the chain before
  std::unordered_map<salt, std::size_t> num_with_;
  std::size_t num_bytes_ = 0;
  std::size_t num_tokens_ = 0;
};

}  // namespace pagedkv
