#pragma once

#include <pagedkv/policy/events/concept.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace pagedkv {

namespace detail {

/// One line of text: a word and the fields that an event sets, such as `evicted block=7 hash=c0ffee00c0ffee`.
class event_line {
 public:
  explicit event_line(const cache_event& event) noexcept {
    switch (event.kind) {
      case event_kind::stored:
        begin("stored").block("block", event.block).block("after", event.origin).hash("hash", event.hash);
        hash("parent", event.parent_hash).count("tokens", event.tokens.size());
        keys(event.keys.size()).salt(event.salt).group(event.group);
        break;
      case event_kind::evicted:
        begin("evicted").block("block", event.block).hash("hash", event.hash).group(event.group);
        break;
      case event_kind::reset: begin("reset").count("blocks", event.num_blocks); break;
      case event_kind::admitted:
        begin("admitted").id("sequence", event.sequence).count("tokens", event.num_tokens);
        count("blocks", event.num_blocks).salt(event.salt);
        break;
      case event_kind::hit:
        begin("hit").id("sequence", event.sequence).count("tokens", event.num_tokens);
        count("blocks", event.num_blocks).block("last", event.block).hash("hash", event.hash).salt(event.salt);
        break;
      case event_kind::forked: begin("forked").id("sequence", event.sequence).id("from", event.source); break;
      case event_kind::released:
        begin("released").id("sequence", event.sequence).count("tokens", event.num_tokens);
        break;
      case event_kind::copied: begin("copied").block("block", event.block).block("from", event.origin); break;
      case event_kind::refused:
        begin("refused").count("blocks", event.num_blocks).count("available", event.num_available);
        break;
      case event_kind::step_begun: begin("step_begun").id("step", event.step); break;
      case event_kind::step_retired: begin("step_retired").id("step", event.step); break;
      case event_kind::started:
        begin("started").id("request", event.request).id("sequence", event.sequence);
        break;
      case event_kind::ended: begin("ended").id("request", event.request); break;
      case event_kind::preempted:
        begin("preempted").id("request", event.request).id("sequence", event.sequence);
        break;
    }
  }

  [[nodiscard]] std::string_view text() const noexcept { return {text_.data(), size_}; }

 private:
  event_line& begin(std::string_view word) noexcept {
    add(word);
    return *this;
  }
  template <class Number>
  event_line& count(std::string_view name, Number value, int base = 10) noexcept {
    add(" ");
    add(name);
    add("=");
    auto digits = std::array<char, 24>{};
    const auto* const end = std::to_chars(digits.data(), digits.data() + digits.size(), value, base).ptr;
    add({digits.data(), static_cast<std::size_t>(end - digits.data())});
    return *this;
  }
  template <class Id>
  event_line& id(std::string_view name, Id value) noexcept {
    return count(name, static_cast<std::uint64_t>(value));
  }
  event_line& block(std::string_view name, block_id value) noexcept {
    return value == no_block ? *this : count(name, static_cast<std::int32_t>(value));
  }
  event_line& hash(std::string_view name, std::uint64_t value) noexcept { return count(name, value, 16); }
  event_line& keys(std::size_t num_keys) noexcept { return num_keys == 0 ? *this : count("keys", num_keys); }
  event_line& group(std::int32_t index) noexcept { return index < 0 ? *this : count("group", index); }
  event_line& salt(pagedkv::salt value) noexcept { return value == pagedkv::salt::none ? *this : id("salt", value); }

  void add(std::string_view part) noexcept {
    const auto size = std::min(part.size(), text_.size() - size_);
    std::copy_n(part.data(), size, text_.data() + size_);
    size_ += size;
  }

  std::array<char, 256> text_;  // the longest line has fewer than 200
  std::size_t size_ = 0;
};

}  // namespace detail

/// Writes events as lines of text, without line feeds. An empty log takes a branch per event, so a program can switch
/// logging on when it starts; with `no_events` there is not even that.
///
/// The function is called by the thread whose operation is logged, inside the locks of the cache or its tracker, and by
/// several threads at once if they use the cache. It calls neither. While it waits, so does that operation.
template <event_kinds Kinds = all_event_kinds>
class basic_event_log {
 public:
  using function = void (*)(void* context, std::string_view line) noexcept;

  static constexpr auto kinds = Kinds;

  basic_event_log() noexcept = default;
  /// `context` outlives every copy of the log.
  explicit basic_event_log(function write, void* context = nullptr) noexcept : write_(write), context_(context) {}

  void emit(const cache_event& event) noexcept {
    if (write_ != nullptr) {
      write_line(event);
    }
  }

 private:
  [[gnu::noinline]] void write_line(const cache_event& event) const noexcept {
    write_(context_, detail::event_line{event}.text());
  }

  function write_ = nullptr;
  void* context_ = nullptr;
};

/// Logs everything.
class event_log : public basic_event_log<> {
 public:
  using basic_event_log::basic_event_log;
};

static_assert(events<event_log>);

/// Two streams in one, such as queues for a router and a log: each gets the kinds that it takes. `Second` may be a tee.
template <events First, events Second>
class event_tee {
 public:
  static constexpr auto kinds = First::kinds | Second::kinds;

  event_tee(First first, Second second) : first_(std::move(first)), second_(std::move(second)) {}

  /// Passes an event on to the streams that take its kind.
  void emit(const cache_event& event) noexcept {
    if (First::kinds.contains(event.kind)) {
      first_.emit(event);
    }
    if (Second::kinds.contains(event.kind)) {
      second_.emit(event);
    }
  }

 private:
  First first_;
  Second second_;
};

}  // namespace pagedkv
