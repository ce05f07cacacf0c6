#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/core/block_pair.hpp>
#include <pagedkv/core/error.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/with_memory.hpp>
#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/allocator/host_allocator.hpp>
#include <pagedkv/policy/backend/concept.hpp>
#include <pagedkv/tier/atomic_file.hpp>
#include <pagedkv/tier/file_descriptor.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_format.hpp>
#include <pagedkv/tier/session_head.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pagedkv {

/// How a session is saved. `Memory`: an allocator of host memory that the backend reaches.
template <allocator Memory = host_allocator>
struct session_options {
  std::string_view model = {};  // the engine's name for the weights, as in `make_record_format`
  token_run contents = {};      // all tokens and keys of the sequence, which a cache has not where blocks were dropped
  Memory memory = {};           // for the blocks on their way; pinned for a device
};

namespace detail {

/// Host memory for some records on their way between a cache and a file.
template <allocator Memory>
class session_records {
 public:
  static constexpr auto most = std::int32_t{16};

  session_records(record_format format, Memory memory)
      : format_(std::move(format)), memory_(std::move(memory)), base_(memory_.allocate(size(), record_alignment)) {}
  session_records(const session_records&) = delete;
  session_records& operator=(const session_records&) = delete;
  ~session_records() {
    if (base_ != nullptr) {
      memory_.deallocate(base_, size());
    }
  }

  [[nodiscard]] bool has_memory() const noexcept { return base_ != nullptr; }
  [[nodiscard]] const record_format& format() const noexcept { return format_; }
  [[nodiscard]] std::span<std::byte> operator[](std::size_t index) const noexcept {
    return {base_ + index * format_.record_bytes(), format_.record_bytes()};
  }
  [[nodiscard]] std::span<std::byte> first(std::size_t count) const noexcept {
    return {base_, count * format_.record_bytes()};
  }

  /// Copies blocks of a cache to the first records, or back, and waits.
  template <class Cache>
  [[nodiscard]] result<void> exchange(Cache& cache, std::span<const block_id> blocks, swap_direction direction,
                                      typename Cache::stream on) const {
    auto pairs = std::vector<block_pair>{};
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto block = static_cast<std::int32_t>(blocks[i]);
      const auto record = static_cast<std::int32_t>(i);
      pairs.push_back(direction == swap_direction::to_host ? block_pair{block, record} : block_pair{record, block});
    }
    const auto& device = cache.view();
    const auto host = format_.payloads(device, base_, most);
    const auto copied = direction == swap_direction::to_host
                            ? cache.backend().swap_blocks(device, host, pairs, direction, on)
                            : cache.backend().swap_blocks(host, device, pairs, direction, on);
    return copied ? cache.backend().synchronize(on) : copied;
  }

 private:
  [[nodiscard]] std::size_t size() const noexcept { return std::size_t{most} * format_.record_bytes(); }

  record_format format_;
  Memory memory_;
  std::byte* base_;
};

/// The identities of a session's blocks, one after the other. The last one is filled up with tokens 0.
class session_blocks {
 public:
  session_blocks(const session_head& head, std::int32_t block_size)
      : head_(head), size_(static_cast<std::size_t>(block_size)), padded_(size_) {
    identity_.salt = head.options.salt;
    identity_.key = root_key(head.options.salt);
  }

  [[nodiscard]] std::size_t num_blocks() const noexcept { return (head_.tokens.size() + size_ - 1) / size_; }

  /// Valid until the next call.
  [[nodiscard]] const record_identity& next() {
    const auto first = next_++ * size_;
    const auto all = std::span{head_.tokens}.subspan(first);
    auto tokens = all.first(std::min(size_, all.size()));
    const auto last = static_cast<std::int64_t>(first + tokens.size());
    if (tokens.size() < size_) {
      std::ranges::fill(padded_, token{});
      std::ranges::copy(tokens, padded_.begin());
      tokens = padded_;
    }
    identity_.position = static_cast<std::int64_t>(first);
    identity_.contents = {tokens, keys_between(head_.keys, identity_.position, last)};
    identity_.parent = identity_.key;
    identity_.key = chained_key(identity_.parent, identity_.contents);
    return identity_;
  }
  void skip(std::size_t count) {
    for (; count > 0; --count) {
      static_cast<void>(next());
    }
  }

 private:
  const session_head& head_;
  std::size_t size_;
  std::size_t next_ = 0;
  std::vector<token> padded_;
  record_identity identity_;
};

/// All that a session's file says of a sequence but its K/V.
template <class Cache>
[[nodiscard]] result<session_head> describe_session(const Cache& cache, sequence_id id, const token_run& contents,
                                                    std::span<const block_id> blocks) {
  const auto info = cache.describe(id);
  if (!info) {
    return info.error();
  }
  if (info->num_prompt_tokens > info->num_tokens) {
    return error{error_code::invalid_argument, "tokens of a session whose prompt is still appended", info->num_tokens,
                 info->num_prompt_tokens};
  }
  auto head = session_head{};
  head.options = info->options;
  head.options.num_prompt_tokens = info->num_prompt_tokens;
  head.num_computed_tokens = info->num_computed_tokens;
  const auto num_dropped = std::ranges::find_if(blocks, [](auto block) { return block != no_block; }) - blocks.begin();
  head.first_token = num_dropped * cache.config().block_size;
  head.tokens.resize(static_cast<std::size_t>(info->num_tokens));
  const auto num_keys = cache.keys(id, {});
  head.keys.resize(num_keys ? *num_keys : 0);
  if (const auto copied = cache.keys(id, head.keys); !copied) {
    return copied.error();
  }
  const auto held = std::span{head.tokens}.subspan(static_cast<std::size_t>(std::min(head.first_token, info->num_tokens)));
  if (const auto copied = cache.tokens(id, info->num_tokens - std::ssize(held), held); !copied) {
    return copied.error();
  }
  if (head.first_token > 0 || !contents.tokens.empty()) {
    const auto given = contents.tokens;
    if (given.size() != head.tokens.size() || !std::ranges::equal(given.last(held.size()), held) ||
        !std::ranges::equal(contents.keys, head.keys)) {
      return error{error_code::invalid_argument, "contents of a session, which are not the sequence's: tokens",
                   std::ssize(given), info->num_tokens};
    }
    std::ranges::copy(given, head.tokens.begin());
  }
  return head;
}

template <class Cache>
[[nodiscard]] result<std::vector<block_id>> blocks_of(const Cache& cache, sequence_id id) {
  const auto info = cache.describe(id);
  if (!info) {
    return info.error();
  }
  auto blocks = std::vector<block_id>(static_cast<std::size_t>(info->num_blocks));
  if (const auto copied = cache.block_table(id, blocks); !copied) {
    return copied.error();
  }
  const auto size = std::int64_t{cache.config().block_size};
  blocks.resize(static_cast<std::size_t>((info->num_tokens + size - 1) / size));
  return blocks;
}

template <class Cache, class Memory>
[[nodiscard]] result<void> save_sequence(Cache& cache, sequence_id id, const std::string& path,
                                         const session_options<Memory>& options, typename Cache::stream on) {
  const auto records = session_records<Memory>{
      make_record_format(cache.view(), Cache::element_type::name, options.model), options.memory};
  if (!records.has_memory()) {
    return error{error_code::out_of_memory, "records on their way", records.most};
  }
  const auto blocks = blocks_of(cache, id);
  if (!blocks) {
    return blocks.error();
  }
  const auto head = describe_session(cache, id, options.contents, *blocks);
  if (!head) {
    return head.error();
  }
  auto file = atomic_file::create(path);
  if (!file) {
    return file.error();
  }
  auto written = file->write(encode_head(*head, records.format().text));
  auto identities = session_blocks{*head, cache.config().block_size};
  const auto num_dropped = static_cast<std::size_t>(head->first_token / cache.config().block_size);
  identities.skip(num_dropped);
  for (auto rest = std::span{*blocks}.subspan(num_dropped); written && !rest.empty();) {
    const auto some = rest.first(std::min(rest.size(), std::size_t{records.most}));
    rest = rest.subspan(some.size());
    written = records.exchange(cache, some, swap_direction::to_host, on);
    for (std::size_t i = 0; written && i < some.size(); ++i) {
      const auto& identity = identities.next();
      if (!seal_record(records.format(), identity, records[i])) {
        written = error{error_code::invalid_argument, "keys of one block, which no record holds,",
                        std::ssize(identity.contents.keys)};
      }
    }
    if (written) {
      written = file->write(records.first(some.size()));
    }
  }
  return written ? file->finish() : written;
}

/// A session's file that is whole and of this format.
class session_source {
 public:
  /// Reads all of it. May throw `std::bad_alloc`.
  template <class Memory>
  [[nodiscard]] static result<session_source> open(const std::string& path, const session_records<Memory>& records) {
    auto source = session_source{};
    source.file_ = file_descriptor{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    struct stat about {};
    if (!source.file_ || ::fstat(source.file_.number(), &about) != 0) {
      return system_error("opening a session's file", errno);
    }
    auto reading = read_head(source.file_, about.st_size, records.format().text);
    if (!reading) {
      return reading.error();
    }
    source.head_ = std::move(reading->head);
    source.begin_ = reading->size;
    source.block_size_ = records.format().block_size;
    const auto& head = source.head_;
    const auto num_tokens = std::ssize(head.tokens);
    const auto num_records = (num_tokens + source.block_size_ - 1) / source.block_size_ - source.num_dropped();
    const auto size = source.begin_ + num_records * static_cast<std::int64_t>(records.format().record_bytes());
    const auto has_numbers = head.first_token >= 0 && head.first_token % source.block_size_ == 0 &&
                             head.first_token <= head.num_computed_tokens && head.num_computed_tokens <= num_tokens;
    if (!has_numbers || about.st_size != size) {
      return error{error_code::invalid_argument, "bytes of a session's file, which is damaged,", about.st_size, size};
    }
    const auto ignore = [](std::size_t, std::size_t) { return result<void>{}; };
    if (const auto checked = source.for_each_batch(records, source.num_dropped(), ignore); !checked) {
      return checked.error();
    }
    return source;
  }

  [[nodiscard]] const session_head& head() const noexcept { return head_; }
  [[nodiscard]] std::int64_t num_dropped() const noexcept { return head_.first_token / block_size_; }

  /// Calls `use(first, count)` for the blocks from `first_block` on, when records with these are verified and in
  /// `records`, until it fails. May throw `std::bad_alloc`.
  template <class Memory, class Use>
  [[nodiscard]] result<void> for_each_batch(const session_records<Memory>& records, std::int64_t first_block,
                                            const Use& use) const {
    auto identities = session_blocks{head_, block_size_};
    auto done = static_cast<std::size_t>(first_block);
    identities.skip(done);
    while (done < identities.num_blocks()) {
      const auto count = std::min(identities.num_blocks() - done, std::size_t{records.most});
      const auto index = static_cast<std::int64_t>(done) - num_dropped();
      const auto at = begin_ + index * static_cast<std::int64_t>(records.format().record_bytes());
      if (const auto read = read_at(file_, at, records.first(count)); !read) {
        return read.error();
      }
      for (std::size_t i = 0; i < count; ++i) {
        if (verify_record(records.format(), identities.next(), records[i]) != record_fault::none) {
          return error{error_code::invalid_argument, "block of a session's file, which is damaged,",
                       static_cast<std::int64_t>(done + i)};
        }
      }
      if (auto used = use(done, count); !used) {
        return used;
      }
      done += count;
    }
    return {};
  }

 private:
  file_descriptor file_;
  session_head head_;
  std::int64_t begin_ = 0;  // of the records
  std::int32_t block_size_ = 1;
};

/// Loads the blocks that a new sequence does not share, and commits.
template <class Cache, class Memory>
[[nodiscard]] result<void> load_session(Cache& cache, const admission& made, const session_source& source,
                                        const session_records<Memory>& records, typename Cache::stream on) {
  const auto& head = source.head();
  const auto blocks = blocks_of(cache, made.id);
  if (!blocks) {
    return blocks.error();
  }
  const auto first = std::max(source.num_dropped(), made.num_cached_tokens / cache.config().block_size);
  const auto load = [&](std::size_t begin, std::size_t count) {
    return records.exchange(cache, std::span{*blocks}.subspan(begin, count), swap_direction::from_host, on);
  };
  if (auto loaded = source.for_each_batch(records, first, load); !loaded) {
    return loaded;
  }
  if (auto done = cache.commit(made.id, std::max(made.num_cached_tokens, head.num_computed_tokens)); !done) {
    return done;
  }
  return cache.drop_before(made.id, head.first_token);
}

template <class Cache, class Memory>
[[nodiscard]] result<admission> restore_sequence(Cache& cache, const std::string& path,
                                                 const session_options<Memory>& options, typename Cache::stream on) {
  const auto records = session_records<Memory>{
      make_record_format(cache.view(), Cache::element_type::name, options.model), options.memory};
  if (!records.has_memory()) {
    return error{error_code::out_of_memory, "records on their way", records.most};
  }
  const auto source = session_source::open(path, records);
  if (!source) {
    return source.error();
  }
  const auto& head = source->head();
  auto how = head.options;
  how.publish = how.publish && head.first_token == 0;  // nothing of blocks that are not there
  const auto made = cache.create_sequence(token_run{head.tokens, head.keys}, how);
  if (!made) {
    return made.error();
  }
  const auto load = [&] { return load_session(cache, *made, *source, records, on); };
  const auto no_memory = result<void>{error{error_code::out_of_memory, "memory to restore a session"}};
  if (const auto loaded = with_memory(load, no_memory); !loaded) {
    static_cast<void>(cache.release(made->id));
    return loaded.error();
  }
  return *made;
}

}  // namespace detail

/// Saves a sequence of a `kv_cache` to a file, which appears when it is complete and on the disk: tokens, keys, salt,
/// options, and the K/V of all blocks that it holds. K/V must be written ahead of `on`; the call waits for that. Nothing
/// else may change the sequence meanwhile.
///
/// Errors: `invalid_argument` while tokens of the prompt are still to be appended, and for `contents` that are not the
/// sequence's, or missing where blocks were dropped; those of `describe`; `backend_failure` with the system's words;
/// `out_of_memory`.
template <class Cache, allocator Memory = host_allocator>
  requires swaps_blocks<typename Cache::backend_type>
[[nodiscard]] result<void> save_sequence(Cache& cache, sequence_id id, const std::string& path,
                                         const session_options<Memory>& options = {},
                                         typename Cache::stream on = {}) noexcept {
  const auto save = [&] { return detail::save_sequence(cache, id, path, options, on); };
  return detail::with_memory(save, result<void>{error{error_code::out_of_memory, "memory to save a session"}});
}

/// Starts a sequence as it was saved, in a cache of the same shape, element and model: shares what is cached already,
/// loads the rest into blocks of its own, and commits as far as the saved one was, which publishes full blocks. Returns
/// when K/V is there. A sequence whose first blocks were dropped takes blocks for them until it is loaded, and
/// publishes nothing, then or later.
///
/// Reads the file twice: before it takes anything from the cache, all of it has been verified. Errors:
/// `invalid_argument` for a file that is damaged or of another format; those of `create_sequence`; `backend_failure` with
/// the system's words; `out_of_memory`.
template <class Cache, allocator Memory = host_allocator>
  requires swaps_blocks<typename Cache::backend_type>
[[nodiscard]] result<admission> restore_sequence(Cache& cache, const std::string& path,
                                                 const session_options<Memory>& options = {},
                                                 typename Cache::stream on = {}) noexcept {
  const auto restore = [&] { return detail::restore_sequence(cache, path, options, on); };
  return detail::with_memory(restore,
                             result<admission>{error{error_code::out_of_memory, "memory to restore a session"}});
}

}  // namespace pagedkv
