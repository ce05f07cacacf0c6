#pragma once

#include <pagedkv/core/error.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/detail/with_memory.hpp>
#include <pagedkv/policy/tiers/concept.hpp>
#include <pagedkv/tier/file_engine.hpp>
#include <pagedkv/tier/file_set.hpp>
#include <pagedkv/tier/file_transfers.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_format.hpp>

#include <algorithm>
#include <array>
#include <cassert>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pagedkv {

struct file_tier_options {
  std::int32_t queue_depth = 32;                      // requests in flight, of at most 1 MiB each; up to 1,024
  std::chrono::nanoseconds timeout = std::chrono::seconds{10};  // of a batch; requests in flight end later
};

/// Records in preallocated files, which a later process opens again. Transfers bypass the page cache where the file
/// system can. Each place has one record, as it was written last; a header's checksum covers the payload's, so parts
/// arrive in any order, and no write waits for the device's cache.
///
/// One thread at a time uses a tier. A timed-out batch leaves its requests to the kernel: their memory is the tier's,
/// and writes to their places fail until they have ended. Destruction waits for them as long as for a batch, then
/// leaves them their memory and their files.
///
/// `Engine`: `uring_files`, `thread_files`, or `automatic_files`, which prefers the first.
template <file_engine Engine>
class basic_file_tier {
 public:
  static constexpr std::string_view name = "file_tier";

  /// Makes the files, or opens those that hold records of this format already, in any order, and locks them.
  /// `bytes`: of all files together, allocated at once; larger files are cut to it. Makes as many places as fit.
  /// A refused call leaves all files as they were.
  ///
  /// Errors: `invalid_argument` for sizes, and for a file with records of another format or with something else, which
  /// stays as it is; `in_use` for a file of another tier or process, after as long as a batch may take, since the
  /// kernel may still complete requests of a process that died; `backend_failure` with the system's words, `ENOSPC`
  /// among them; `out_of_memory`.
  [[nodiscard]] static result<basic_file_tier> create(const std::vector<std::string>& paths, std::int64_t bytes,
                                                      const record_format& format,
                                                      const file_tier_options& options = {}) noexcept {
    constexpr auto deepest = 1'024;
    if (options.queue_depth < 1 || options.queue_depth > deepest) {
      return error{error_code::invalid_argument, "file_tier_options.queue_depth", options.queue_depth,
                   options.queue_depth < 1 ? 1 : deepest};
    }
    const auto construct = [&]() -> result<basic_file_tier> { return make(paths, bytes, format, options); };
    return detail::with_memory(construct, error{error_code::out_of_memory, "bytes of a tier's files", bytes});
  }

  [[nodiscard]] std::int64_t num_places() const noexcept { return transfers_->files().num_places(); }

  /// Whether transfers bypass the page cache. Some file systems, of memory for example, refuse that.
  [[nodiscard]] bool direct() const noexcept { return transfers_->files().direct(); }

  /// The name of the engine at work.
  [[nodiscard]] std::string_view engine() const noexcept { return transfers_->engine().name(); }

  /// Requests of timed-out batches that the kernel has not ended, as of the last batch.
  [[nodiscard]] std::size_t num_lingering() const noexcept { return transfers_->num_lingering(); }

  /// Transfers of one batch need different places: of two to one place, either may be there afterwards, or neither.
  void write(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    assert(has_record_sizes(batch) && "whole records of this tier's format");
    transfers_->execute(batch, outcomes, true);
  }

  /// A place that was never written is read, and its record does not verify. One beyond the end of a file that was cut
  /// is `missing`.
  void read(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    assert(has_record_sizes(batch) && "whole records of this tier's format");
    transfers_->execute(batch, outcomes, false);
  }

  /// Writes an empty header into each place.
  void erase(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    auto headers = std::array<record_transfer, num_erased>{};
    while (!batch.empty()) {
      const auto size = std::min(batch.size(), headers.size());
      for (std::size_t i = 0; i < size; ++i) {
        headers[i] = {batch[i].key, batch[i].place, no_header_};
      }
      transfers_->execute(std::span{headers}.first(size), outcomes.first(size), true);
      batch = batch.subspan(size);
      outcomes = outcomes.subspan(size);
    }
  }

  /// See `persistent_tier`. Reads all headers. May throw `std::bad_alloc`.
  template <class Visitor>
  std::int64_t for_each_record(const Visitor& visit) {
    const auto header_bytes = format_.header_bytes();
    const auto memory = detail::allocate_transfer_memory(std::size_t{num_scanned} * header_bytes);
    if (memory == nullptr) {
      detail::fail({error_code::out_of_memory, "bytes of headers", static_cast<std::int64_t>(header_bytes)});
    }
    auto num_unread = std::int64_t{0};
    auto transfers = std::array<record_transfer, num_scanned>{};
    auto outcomes = std::array<transfer_outcome, num_scanned>{};
    for (std::int64_t first = 0; first < num_places(); first += std::int64_t{num_scanned}) {
      const auto size = static_cast<std::size_t>(std::min<std::int64_t>(num_scanned, num_places() - first));
      for (std::size_t i = 0; i < size; ++i) {
        transfers[i] = {{}, first + static_cast<std::int64_t>(i), {memory.get() + i * header_bytes, header_bytes}};
      }
      transfers_->execute(std::span{transfers}.first(size), std::span{outcomes}.first(size), false);
      for (std::size_t i = 0; i < size; ++i) {
        num_unread += outcomes[i] == transfer_outcome::done ? 0 : 1;
        visit_record(transfers[i], outcomes[i], visit);
      }
    }
    return num_unread;
  }

 private:
  static constexpr auto num_scanned = std::int32_t{256};
  static constexpr auto num_erased = std::size_t{64};
  static constexpr auto largest_request = std::size_t{1} << 20;

  using transfers_type = detail::file_transfers<Engine>;

  basic_file_tier(std::unique_ptr<transfers_type, detail::end_transfers> transfers, record_format format)
      : transfers_(std::move(transfers)), no_header_(format.header_bytes()), format_(std::move(format)) {}

  [[nodiscard]] static result<basic_file_tier> make(const std::vector<std::string>& paths, std::int64_t bytes,
                                                    const record_format& format, const file_tier_options& options) {
    auto engine = Engine::create(options.queue_depth);
    if (!engine) {
      return engine.error();
    }
    const auto slot_bytes = std::max(std::min(format.record_bytes(), largest_request), format.header_bytes());
    auto memory = detail::allocate_transfer_memory(slot_bytes * transfers_type::num_slots(options.queue_depth));
    if (memory == nullptr) {
      return error{error_code::out_of_memory, "file_tier_options.queue_depth", options.queue_depth};
    }
    auto files = detail::file_set::open(paths, bytes, format, options.timeout);
    if (!files) {
      return files.error();
    }
    auto transfers = std::unique_ptr<transfers_type, detail::end_transfers>(new transfers_type(
        std::move(*files), std::move(*engine), std::move(memory), slot_bytes, options.queue_depth, options.timeout));
    return basic_file_tier(std::move(transfers), format);
  }

  [[nodiscard]] bool has_record_sizes(std::span<const record_transfer> batch) const noexcept {
    return std::ranges::all_of(
        batch, [&](const record_transfer& transfer) { return transfer.bytes.size() == format_.record_bytes(); });
  }

  template <class Visitor>
  void visit_record(const record_transfer& transfer, transfer_outcome outcome, const Visitor& visit) const {
    if (outcome != transfer_outcome::done) {
      return;
    }
    const auto [fault, identity] = read_record_header(format_, transfer.bytes);
    if (fault == record_fault::none) {
      visit(transfer.place, identity);
    }
  }

  std::unique_ptr<transfers_type, detail::end_transfers> transfers_;
  std::vector<std::byte> no_header_;
  record_format format_;
};

}  // namespace pagedkv
