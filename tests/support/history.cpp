#include "history.hpp"

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

namespace pagedkv::testing {

bool cache_by_the_book::apply(const operation& o, std::size_t num_elsewhere) {
  switch (o.kind) {
    case action::create: return create(o, num_elsewhere);
    case action::append: return append(o, num_elsewhere);
    case action::commit: return commit(o);
    case action::fork: return fork(o);
    case action::truncate: return truncate(o);
    case action::release: return release(o);
    case action::look_up: return look_up(o);
  }
  return false;
}

cache_by_the_book::text cache_by_the_book::prefix(const text& tokens, std::size_t num_blocks) const {
  return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(num_blocks * block_size_)};
}

/// Whether some sequence holds the block with this text, published before the call, and no block up to it ever had a
/// twin.
bool cache_by_the_book::must_be_found(const operation& o, std::size_t num_blocks) const {
  for (auto i = std::size_t{1}; i <= num_blocks; ++i) {
    const auto sought = prefix(o.tokens, i);
    const auto found = std::ranges::find(blocks_, sought, &block::published);
    if (found == blocks_.end() || found->references == 0 || found->since > o.called || twinned_.contains(sought)) {
      return false;
    }
  }
  return true;
}

bool cache_by_the_book::may_miss_the_rest(const operation& o, std::size_t num_found, std::size_t num_sought) const {
  return num_found == num_sought || !must_be_found(o, num_found + 1);
}

bool cache_by_the_book::take_unused(block_id id) {
  auto& taken = at(id);
  const auto unused = taken.references == 0;
  taken = {1, {}, 0};
  return unused;
}

std::size_t cache_by_the_book::num_in_use() const {
  return static_cast<std::size_t>(std::ranges::count_if(blocks_, [](const block& b) { return b.references > 0; }));
}

bool cache_by_the_book::refusal_is_right(std::size_t num_needed, std::size_t num_elsewhere) const {
  return num_in_use() + num_needed + num_elsewhere > blocks_.size();
}

bool cache_by_the_book::create(const operation& o, std::size_t num_elsewhere) {
  const auto num_blocks = blocks_for(o.tokens.size());
  const auto max_found = o.tokens.empty() ? 0 : (o.tokens.size() - 1) / block_size_;
  if (o.refused) {
    auto num_shared = std::size_t{0};
    while (num_shared < max_found && must_be_found(o, num_shared + 1)) {
      ++num_shared;
    }
    return refusal_is_right(num_blocks - num_shared, num_elsewhere);
  }
  const auto num_found = o.num_tokens / block_size_;
  if (o.table.size() != num_blocks || num_found > max_found || !may_miss_the_rest(o, num_found, max_found)) {
    return false;
  }
  for (auto i = std::size_t{0}; i < num_found; ++i) {
    if (at(o.table[i]).published != prefix(o.tokens, i + 1)) {
      return false;
    }
    ++at(o.table[i]).references;
  }
  sequences_[o.sequence] = {o.tokens, o.table};
  return std::all_of(o.table.begin() + static_cast<std::ptrdiff_t>(num_found), o.table.end(),
                     [&](block_id id) { return take_unused(id); });
}

bool cache_by_the_book::append(const operation& o, std::size_t num_elsewhere) {
  auto& s = sequences_.at(o.sequence);
  const auto num_before = s.table.size();
  const auto partial = s.tokens.size() % block_size_ != 0;
  const auto visible = partial && (at(s.table.back()).references > 1 || !at(s.table.back()).published.empty());
  const auto num_after = blocks_for(s.tokens.size() + o.tokens.size());
  if (o.refused) {
    return o.table == s.table && refusal_is_right(num_after - num_before + (visible ? 1 : 0), num_elsewhere);
  }
  if (o.table.size() != num_after) {
    return false;
  }
  const auto num_kept = num_before - (partial ? 1 : 0);
  if (!std::equal(s.table.begin(), s.table.begin() + static_cast<std::ptrdiff_t>(num_kept), o.table.begin())) {
    return false;
  }
  auto first_new = num_before;
  if (partial && o.table[num_kept] == s.table[num_kept]) {
    if (visible) {
      return false;
    }
  } else if (partial) {
    if (!visible && num_elsewhere == 0) {
      return false;
    }
    drop(s.table[num_kept]);
    first_new = num_kept;
  }
  for (auto i = first_new; i < num_after; ++i) {
    if (!take_unused(o.table[i])) {
      return false;
    }
  }
  s.table = o.table;
  s.tokens.insert(s.tokens.end(), o.tokens.begin(), o.tokens.end());
  return true;
}

bool cache_by_the_book::commit(const operation& o) {
  const auto& s = sequences_.at(o.sequence);
  for (auto i = std::size_t{0}; (i + 1) * block_size_ <= o.num_tokens; ++i) {
    auto& full = at(s.table[i]);
    if (full.published.empty()) {
      full.published = prefix(s.tokens, i + 1);
      full.since = o.returned;
      if (std::ranges::count(blocks_, full.published, &block::published) > 1) {
        twinned_.insert(full.published);
      }
    }
  }
  return o.table == s.table;
}

bool cache_by_the_book::fork(const operation& o) {
  const auto copied = sequences_.at(o.source);
  sequences_[o.sequence] = copied;
  for (const auto id : copied.table) {
    ++at(id).references;
  }
  return o.table == copied.table;
}

bool cache_by_the_book::truncate(const operation& o) {
  auto& s = sequences_.at(o.sequence);
  const auto num_kept = blocks_for(o.num_tokens);
  std::for_each(s.table.begin() + static_cast<std::ptrdiff_t>(num_kept), s.table.end(), [&](block_id id) { drop(id); });
  s.table.resize(num_kept);
  s.tokens.resize(o.num_tokens);
  return o.table == s.table;
}

bool cache_by_the_book::release(const operation& o) {
  const auto ended = sequences_.extract(o.sequence);
  std::ranges::for_each(ended.mapped().table, [&](block_id id) { drop(id); });
  return true;
}

bool cache_by_the_book::look_up(const operation& o) const {
  const auto num_found = o.num_tokens / block_size_;
  for (auto i = std::size_t{1}; i <= num_found; ++i) {
    if (std::ranges::find(blocks_, prefix(o.tokens, i), &block::published) == blocks_.end()) {
      return false;
    }
  }
  return may_miss_the_rest(o, num_found, o.tokens.empty() ? 0 : (o.tokens.size() - 1) / block_size_);
}

namespace {

class search {
 public:
  explicit search(std::span<const operation> history) : history_(history), num_elsewhere_(history.size()) {
    for (auto i = std::size_t{0}; i < history.size(); ++i) {
      for (auto j = std::size_t{0}; j < history.size(); ++j) {
        const auto overlaps = history[j].called < history[i].returned && history[i].called < history[j].returned;
        num_elsewhere_[i] += i != j && overlaps ? history[j].num_touched : 0;
      }
    }
  }

  /// Whether the remaining operations can follow those done (a set of bits), which led to `model`.
  [[nodiscard]] bool can_follow(std::uint64_t done, const cache_by_the_book& model) {
    if (done == (history_.size() == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << history_.size()) - 1)) {
      return true;
    }
    if (!dead_ends_.insert({done, model}).second) {
      return false;
    }
    auto first_return = ~std::uint64_t{0};
    for (auto i = std::size_t{0}; i < history_.size(); ++i) {
      if ((done >> i & 1) == 0) {
        first_return = std::min(first_return, history_[i].returned);
      }
    }
    for (auto i = std::size_t{0}; i < history_.size(); ++i) {
      if ((done >> i & 1) == 0 && history_[i].called < first_return) {
        auto next = model;
        if (next.apply(history_[i], num_elsewhere_[i]) && can_follow(done | std::uint64_t{1} << i, next)) {
          return true;
        }
      }
    }
    return false;
  }

 private:
  std::span<const operation> history_;
  std::vector<std::size_t> num_elsewhere_;
  std::set<std::pair<std::uint64_t, cache_by_the_book>> dead_ends_;
};

}  // namespace

bool linearizable(std::span<const operation> history, std::size_t block_size, std::size_t num_blocks) {
  return search{history}.can_follow(0, cache_by_the_book{block_size, num_blocks});
}

std::string to_text(std::vector<operation> history) {
  static constexpr const char* names[] = {"create", "append", "commit", "fork", "truncate", "release", "look up"};
  std::ranges::sort(history, {}, &operation::called);
  auto text = std::ostringstream{};
  for (const auto& o : history) {
    text << '[' << o.called << ", " << o.returned << "] " << names[static_cast<std::size_t>(o.kind)] << " sequence "
         << o.sequence << " from " << o.source << ", tokens";
    for (const auto token : o.tokens) {
      text << ' ' << token;
    }
    text << ", number " << o.num_tokens << (o.refused ? ", refused" : "") << ", table";
    for (const auto block : o.table) {
      text << ' ' << static_cast<std::int32_t>(block);
    }
    text << '\n';
  }
  return text.str();
}

}  // namespace pagedkv::testing
