#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <pagedkv/backend/concept.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/allocator/host_allocator.hpp>
#include <pagedkv/storage/view.hpp>
#include <pagedkv/tier/file_descriptor.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/session.hpp>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pagedkv {

namespace detail {

/// A file that appears under its name when it is complete and on the disk, or not at all; one of that name is replaced.
class atomic_file {
 public:
  /// May throw `std::bad_alloc`.
  [[nodiscard]] static result<atomic_file> create(const std::string& path) {
    auto file = atomic_file{path};
    file.temporary_ = path + ".XXXXXX";  // beside it, since a file cannot be renamed to another file system
    file.descriptor_ = file_descriptor{::mkostemp(file.temporary_.data(), O_CLOEXEC)};
    if (!file.descriptor_) {
      file.temporary_.clear();
      return about_file(system_error("making a file", errno), path);
    }
    return file;
  }

  atomic_file(atomic_file&& other) noexcept
      : path_(std::move(other.path_)),
        temporary_(std::exchange(other.temporary_, {})),
        descriptor_(std::move(other.descriptor_)) {}
  atomic_file& operator=(atomic_file&&) = delete;
  ~atomic_file() {
    if (!temporary_.empty()) {
      ::unlink(temporary_.c_str());
    }
  }

  [[nodiscard]] result<void> write(std::span<const std::byte> bytes) noexcept {
    return about_file(write_whole(descriptor_, bytes), path_);
  }

  /// Once, after everything was written. When the system cannot sync the folder, the file has its name already. May
  /// throw `std::bad_alloc` before it has changed anything.
  [[nodiscard]] result<void> finish() {
    const auto slash = path_.rfind('/');
    const auto folder = slash == std::string::npos ? std::string{"."} : path_.substr(0, slash + 1);
    const auto opened = file_descriptor{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (!opened) {
      return about_file(system_error("opening a folder", errno), folder);
    }
    if (::fsync(descriptor_.number()) != 0) {
      return about_file(system_error("syncing a file", errno), path_);
    }
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
      return about_file(system_error("renaming a file", errno), path_);
    }
    temporary_.clear();
    if (::fsync(opened.number()) != 0) {
      return about_file(system_error("syncing a folder", errno), folder);
    }
    return {};
  }

 private:
  explicit atomic_file(const std::string& path) : path_(path) {}

  std::string path_;
  std::string temporary_;
  file_descriptor descriptor_;
};

/// Host memory for some records on their way between a cache and a session's file.
template <allocator Memory>
class session_records {
 public:
  static constexpr auto most = std::size_t{16};

  /// May throw `std::bad_alloc`.
  session_records(record_format format, Memory memory)
      : format_(std::move(format)),
        no_tokens_(static_cast<std::size_t>(format_.block_size)),
        memory_(std::move(memory)) {
    pairs_.reserve(most);
    base_ = memory_.allocate(size(), record_alignment);  // last: nothing gives it back if this throws
  }
  session_records(const session_records&) = delete;
  session_records& operator=(const session_records&) = delete;
  ~session_records() {
    if (base_ != nullptr) {
      memory_.deallocate(base_, size());
    }
  }

  /// Errors: `out_of_memory`; then nothing else may be called.
  [[nodiscard]] result<void> check_memory() const noexcept {
    return base_ != nullptr
               ? result<void>{}
               : error{error_code::out_of_memory, "bytes of records on their way", static_cast<std::int64_t>(size())};
  }
  [[nodiscard]] const record_format& format() const noexcept { return format_; }
  [[nodiscard]] std::span<std::byte> first(std::size_t count) const noexcept {
    return {base_, count * format_.record_bytes()};
  }

  /// The n-th record of the session whose head has this checksum, with the n-th block of its tables. The head says
  /// whose tokens these are.
  [[nodiscard]] bool seal(std::size_t index, std::uint64_t checksum, std::size_t number) const noexcept {
    return seal_record(format_, identity(checksum, number), record(index));
  }
  [[nodiscard]] bool verify(std::size_t index, std::uint64_t checksum, std::size_t number) const noexcept {
    return verify_record(format_, identity(checksum, number), record(index)) == record_fault::none;
  }

  /// Copies blocks of a cache, whose storage this is, to the first records, or back, and waits; not those that are
  /// `no_block`.
  template <class Backend>
  [[nodiscard]] result<void> exchange(Backend& backend, const block_storage_view& device,
                                      std::span<const block_id> blocks, swap_direction direction,
                                      typename Backend::stream_type stream) noexcept {
    pairs_.clear();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto block = static_cast<std::int32_t>(blocks[i]);
      const auto index = static_cast<std::int32_t>(i);
      if (blocks[i] != no_block) {
        pairs_.push_back(direction == swap_direction::to_host ? block_pair{block, index} : block_pair{index, block});
      }
    }
    const auto host = format_.payloads(device, base_ + format_.header_bytes(), format_.record_bytes(),
                                       static_cast<std::int32_t>(most));
    const auto copied = direction == swap_direction::to_host
                            ? backend.swap_blocks(device, host, pairs_, direction, stream)
                            : backend.swap_blocks(host, device, pairs_, direction, stream);
    return copied ? backend.synchronize(stream) : copied;
  }

 private:
  [[nodiscard]] std::size_t size() const noexcept { return most * format_.record_bytes(); }
  [[nodiscard]] std::span<std::byte> record(std::size_t index) const noexcept {
    return {base_ + index * format_.record_bytes(), format_.record_bytes()};
  }
  [[nodiscard]] record_identity identity(std::uint64_t checksum, std::size_t number) const noexcept {
    const auto parent = record_key{checksum, number};
    return {chained_key(parent, no_tokens_), parent, salt::none, static_cast<std::int64_t>(number), no_tokens_};
  }

  record_format format_;
  std::vector<token> no_tokens_;
  std::vector<block_pair> pairs_;
  Memory memory_;
  std::byte* base_ = nullptr;
};

}  // namespace detail

/// How a session is saved. `Memory`: an allocator of host memory that the backend reaches.
template <allocator Memory = host_allocator>
struct session_options {
  std::string_view model = {};  // the engine's name for the weights, as in `make_record_format`
  token_run contents = {};      // all tokens and keys of the sequence, which a cache has not where blocks were dropped
  Memory memory = {};           // for the blocks on their way; pinned for a device
};

namespace detail {

/// Saves a sequence to a file; `for_hits`: with blocks that others need to find its tokens. May throw `std::bad_alloc`.
template <class Cache, class Memory>
[[nodiscard]] result<void> save_sequence(Cache& cache, sequence_id id, const std::string& path,
                                         const session_options<Memory>& options, typename Cache::stream_type stream,
                                         bool for_hits = true) {
  auto records = session_records<Memory>{make_record_format(cache, options.model), options.memory};
  if (const auto checked = records.check_memory(); !checked) {
    return checked;
  }
  auto session = describe_session(cache, id, options.contents);
  if (!session) {
    return session.error();
  }
  auto kept = blocks_for_hits{cache};
  if (for_hits) {
    kept.add_to(*session);
  }
  auto file = atomic_file::create(path);
  if (!file) {
    return file.error();
  }
  const auto encoded = encode_head(session->head, records.format().text);
  const auto checksum = sealed_header<session_numbers>::fields_in(encoded)->checksum;
  auto written = file->write(encoded);
  const auto blocks = std::span<const block_id>(session->blocks);
  for (std::size_t done = 0; written && done < blocks.size(); done += records.most) {
    const auto some = blocks.subspan(done, std::min(blocks.size() - done, records.most));
    written = records.exchange(cache.backend(), cache.blocks(), some, swap_direction::to_host, stream);
    for (std::size_t i = 0; written && i < some.size(); ++i) {
      [[maybe_unused]] const auto sealed = records.seal(i, checksum, done + i);
      assert(sealed && "a header has room for a block's tokens");
    }
    if (written) {
      written = file->write(records.first(some.size()));
    }
  }
  if (!written) {
    return written;
  }
  return kept.let_go() ? file->finish() : save_sequence(cache, id, path, options, stream, false);
}

/// A session's file that is whole and of this format. May throw `std::bad_alloc`.
template <class Memory>
class session_source {
 public:
  /// Reads all of it.
  [[nodiscard]] static result<session_source> open(const std::string& path, session_records<Memory>& records) {
    auto source = session_source{records};
    source.path_ = path;
    source.file_ = file_descriptor{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    struct stat about {};
    if (!source.file_ || ::fstat(source.file_.number(), &about) != 0) {
      return about_file(system_error("opening a session's file", errno), path);
    }
    auto reading = read_head(source.file_, about.st_size);
    if (!reading) {
      return about_file(reading.error(), path);
    }
    if (reading->format != records.format().text) {
      return about_file(another_format("bytes of a session's file, which is of another format,", about.st_size,
                                       reading->format, records.format().text),
                        path);
    }
    source.reading_ = std::move(*reading);
    const auto record_bytes = static_cast<std::int64_t>(records.format().record_bytes());
    const auto for_records = about.st_size - source.reading_.size;
    // One record more than the file has room for is as wrong as any number, and overflows nothing.
    const auto num_records = std::min(source.head().num_records(), for_records / record_bytes + 1);
    if (for_records != num_records * record_bytes) {
      return about_file({error_code::invalid_argument, "bytes of a session's file, which is damaged,", about.st_size,
                         source.reading_.size + num_records * record_bytes},
                        path);
    }
    const auto ignore = [](std::size_t, std::size_t) { return result<void>{}; };
    if (const auto checked = source.for_each_batch(ignore); !checked) {
      return checked.error();
    }
    return source;
  }

  [[nodiscard]] const session_head& head() const noexcept { return reading_.head; }

  /// Calls `use(first, count)` for all records in turn, when these are verified and in memory, until it fails.
  template <class Use>
  [[nodiscard]] result<void> for_each_batch(const Use& use) const {
    const auto num_records = static_cast<std::size_t>(head().num_records());
    const auto record_bytes = records_->format().record_bytes();
    for (std::size_t done = 0; done < num_records; done += records_->most) {
      const auto count = std::min(num_records - done, records_->most);
      const auto at = reading_.size + static_cast<std::int64_t>(done * record_bytes);
      if (const auto read = read_at(file_, at, records_->first(count)); !read) {
        return about_file(read.error(), path_);
      }
      for (std::size_t i = 0; i < count; ++i) {
        if (!records_->verify(i, reading_.checksum, done + i)) {
          return about_file({error_code::invalid_argument, "record of a session's file, which is damaged,",
                             static_cast<std::int64_t>(done + i)},
                            path_);
        }
      }
      if (auto used = use(done, count); !used) {
        return used;
      }
    }
    return {};
  }

 private:
  explicit session_source(session_records<Memory>& records) noexcept : records_(&records) {}

  session_records<Memory>* records_;
  std::string path_;
  file_descriptor file_;
  session_reading reading_;
};

/// Restores a sequence from a file. May throw `std::bad_alloc`, and has changed nothing then.
template <class Cache, class Memory>
[[nodiscard]] result<admission> restore_sequence(Cache& cache, const std::string& path,
                                                 const session_options<Memory>& options,
                                                 typename Cache::stream_type stream) {
  auto records = session_records<Memory>{make_record_format(cache, options.model), options.memory};
  if (const auto checked = records.check_memory(); !checked) {
    return checked.error();
  }
  const auto source = session_source<Memory>::open(path, records);
  if (!source) {
    return source.error();
  }
  return start_from(cache, source->head(), stream, [&](std::span<const block_id> blocks) {
    return source->for_each_batch([&](std::size_t first, std::size_t count) {
      return records.exchange(cache.backend(), cache.blocks(), blocks.subspan(first, count), swap_direction::from_host,
                              stream);
    });
  });
}

}  // namespace detail

/// Saves a sequence of any cache to a file, which appears when it is complete and on the disk:
/// tokens, keys, salt, options, and all blocks that it holds, those of its state included; where layers differ, also
/// cached blocks that the longest hit of its tokens needs, if the cache has room for a pin, which holds them meanwhile.
/// K/V must be written ahead of `stream`; the call waits for that. Nothing else may change the sequence meanwhile, or
/// move its blocks, as `compact` and `resize` do.
///
/// Errors: `invalid_argument` while tokens of the prompt, or others with keys, are still to be appended, and for
/// `contents` that are not the sequence's, or missing where blocks were dropped; those of `describe`; `backend_failure`
/// with the system's words; `out_of_memory`. A file of that name stays as it was then, unless the system cannot sync
/// its folder.
template <class Cache, allocator Memory = host_allocator>
  requires swaps_blocks<typename Cache::backend_type>
[[nodiscard]] result<void> save_sequence(Cache& cache, sequence_id id, const std::string& path,
                                         const session_options<Memory>& options = {},
                                         typename Cache::stream_type stream = {}) noexcept {
  const auto save = [&] { return detail::save_sequence(cache, id, path, options, stream); };
  return detail::with_memory(save, error{error_code::out_of_memory, "memory to save a session"});
}

/// Starts a sequence as it was saved, in a cache of the same shape, element and model: shares what is cached already,
/// loads the rest into blocks of its own, and commits as far as the saved one was, which publishes full blocks. Returns
/// when K/V is there. It takes blocks for all tokens, and gives those behind windows back. A sequence of a `kv_cache`
/// whose first blocks were dropped publishes nothing, then or later. Neither `compact` nor `resize` may move blocks
/// meanwhile.
///
/// Reads the file twice, or three times with a saved state: before it takes anything from the cache, all of it has been
/// verified. After a failure of the backend, the tokens up to the saved state may stay cached. Errors:
/// `invalid_argument` for a file that is damaged or of another format; those of `create_sequence`; `backend_failure`
/// with the system's words; `out_of_memory`.
template <class Cache, allocator Memory = host_allocator>
  requires swaps_blocks<typename Cache::backend_type>
[[nodiscard]] result<admission> restore_sequence(Cache& cache, const std::string& path,
                                                 const session_options<Memory>& options = {},
                                                 typename Cache::stream_type stream = {}) noexcept {
  const auto restore = [&] { return detail::restore_sequence(cache, path, options, stream); };
  return detail::with_memory(restore, error{error_code::out_of_memory, "memory to restore a session"});
}

}  // namespace pagedkv
