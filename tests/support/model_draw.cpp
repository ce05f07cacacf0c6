#include "model_draw.hpp"

#include <algorithm>
#include <array>

namespace pagedkv::test {

namespace {

/// Up to three, mostly none, somewhere in so many tokens.
void add_keys(std::vector<prefix_key>& keys, std::uint32_t number, std::size_t num_tokens) {
  const auto count = num_tokens != 0 && number % 8 < 4 ? number % 4 : 0;
  for (auto i = std::uint32_t{0}; i < count; ++i) {
    const auto position = static_cast<std::int64_t>((number / 16 + 7 * i) % num_tokens);
    keys.push_back({position, {number / 32 % 2, i % 2}});
  }
  std::ranges::stable_sort(keys, {}, &prefix_key::position);
}

}  // namespace

salt draw_salt(std::uint32_t number) { return std::array{salt::none, salt{1}, make_salt(1, 7)}[number % 3]; }

named_text draw_prompt(const operation& next, std::span<const named_text* const> sources, const draw_sizes& sizes) {
  const auto most = static_cast<std::size_t>(next.b % 16 == 0 ? sizes.room + sizes.granularity : sizes.room / 2);
  const auto size = next.b / 16 % (most + 1);
  auto tokens = std::vector<token>{};
  auto keys = std::vector<prefix_key>{};
  auto tag = draw_salt(next.c / 4);
  auto parting = next.a / 4 % (2 * most + 1);
  auto end = size;
  if (next.a % 3 != 0 && !sources.empty()) {
    const auto& from = *sources[next.a / 4 % sources.size()];
    tokens = from.tokens;
    if (next.a / 64 % 2 == 0) {
      tokens.resize(std::min(size, tokens.size()));
    }
    std::ranges::copy_if(from.keys, std::back_inserter(keys),
                         [&](const prefix_key& key) { return key.position < std::ssize(tokens); });
    tag = next.c % 4 == 0 ? tag : from.salt;
    parting = 0;
    end = tokens.size() + (next.a / 128 % 2 == 0 ? 0 : size % 12);
  }
  while (tokens.size() < end) {
    const auto i = tokens.size();
    tokens.push_back(static_cast<token>((i * i + (i < parting ? 0 : next.a / 64)) % 3));
  }
  add_keys(keys, next.a / 128, tokens.size());
  auto text = named_text{tag, std::move(keys)};
  text.add(tokens);
  return text;
}

sequence_options draw_options(const operation& next, salt tag, const draw_sizes& sizes) {
  const auto around = static_cast<std::uint32_t>(2 * sizes.granularity);
  auto options = sequence_options{};
  options.salt = tag;
  options.priority = static_cast<std::uint8_t>(next.c / 8 % 101);
  options.retention = next.c % 5 == 0 ? std::numeric_limits<std::int64_t>::max() : next.c % 5;
  options.expected_tokens = next.c % 7;
  switch (next.c / 1024 % 8) {
    case 0: options.max_cached_tokens = next.c / 8192 % (around + 15); break;
    case 1: options.publish = false; break;
    case 2: options.answer = block_retention{static_cast<std::uint8_t>(next.c / 8192 % 101), next.c % 3}; break;
    case 3: options.ranges[next.c % 4] = {next.c / 64 % 30, next.c / 64 % 30 + next.c / 512 % 30, {90, 5}}; break;
    default: break;
  }
  if (next.c % 7 == 0) {
    options.num_prompt_tokens = next.c / 16 % (around + 25);
  }
  if (next.c / 65536 % 3 == 0) {
    options.first_chunk = next.c / 262144 % (around + 10);
  }
  options.saving =
      state_saving{next.b % 3 != 0, next.b % 5 != 0, next.b % 7 == 0 ? around + next.b % 3 : 0, next.b / 8 % 2 == 0};
  return options;
}

model_growth draw_growth(const model_sequence& s, std::uint32_t b, std::uint32_t c, bool run, const draw_sizes& sizes) {
  auto growth = model_growth{};
  auto& [tokens, keys, num_ahead] = growth;
  tokens.resize(run ? b % static_cast<std::uint32_t>(sizes.run) : 1);
  for (auto i = std::size_t{0}; i < tokens.size(); ++i) {
    tokens[i] = i < s.rest.size() ? s.rest[i] : static_cast<token>((c + i) % 3);
  }
  if (run && c % 4 == 0 && !tokens.empty()) {
    const auto position = s.text.size() + static_cast<std::int64_t>(c / 8 % tokens.size());
    if (s.text.keys.empty() || s.text.keys.back().position <= position) {
      keys.push_back({position, {c / 256 % 2, 0}});
    }
  }
  num_ahead = c % 5 == 0 ? c / 16 % static_cast<std::uint32_t>(sizes.ahead) : 0;
  return growth;
}

}  // namespace pagedkv::test
