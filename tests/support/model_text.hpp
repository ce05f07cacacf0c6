#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/token_run.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pagedkv::test {

/// Distinct inputs give distinct outputs for all that a test will see (the finaliser of splitmix64).
[[nodiscard]] constexpr std::uint64_t mix(std::uint64_t before, std::uint64_t next) {
  auto x = before * 0x9e3779b97f4a7c15 + next + 0x632be59bd9b4e019;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

/// Tokens with their keys, and a name for each prefix: the salt, and the tokens and keys up to there.
struct named_text {
  pagedkv::salt salt{};
  std::vector<prefix_key> keys;  // also of tokens that are still to be added
  std::vector<token> tokens;
  std::vector<std::uint64_t> names;  // element i is of the first i tokens

  named_text() : named_text(pagedkv::salt::none) {}
  explicit named_text(pagedkv::salt tag, std::vector<prefix_key> with = {})
      : salt(tag), keys(std::move(with)), names{mix(0, static_cast<std::uint64_t>(tag))} {}

  void add(std::span<const token> more) {
    for (const auto next : more) {
      auto name = names.back();
      for (const auto& [position, value] : keys) {
        if (position == size()) {
          name = mix(mix(name + 1, value[0]), value[1]);
        }
      }
      tokens.push_back(next);
      names.push_back(mix(name, static_cast<std::uint64_t>(next)));
    }
  }
  /// Keeps all keys: the other tokens are to be added again.
  void take_back_to(std::int64_t length) {
    tokens.resize(static_cast<std::size_t>(length));
    names.resize(tokens.size() + 1);
  }
  void cut(std::int64_t length) {
    take_back_to(length);
    std::erase_if(keys, [&](const prefix_key& key) { return key.position >= length; });
  }

  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(tokens.size()); }
  [[nodiscard]] std::uint64_t name(std::int64_t length) const { return names.at(static_cast<std::size_t>(length)); }
  [[nodiscard]] token_run run() const {
    const auto later = std::ranges::lower_bound(keys, size(), {}, &prefix_key::position);
    return {tokens, std::span{keys.begin(), later}};
  }
};

}  // namespace pagedkv::test
