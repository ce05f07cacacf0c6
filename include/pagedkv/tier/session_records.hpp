#pragma once

#include <pagedkv/core/block_pair.hpp>
#include <pagedkv/core/error.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/policy/allocator/concept.hpp>
#include <pagedkv/policy/backend/concept.hpp>
#include <pagedkv/storage/view.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_format.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv::detail {

/// Host memory for some records on their way between a cache and a session's file.
template <allocator Memory>
class session_records {
 public:
  static constexpr auto most = std::size_t{16};

  /// May throw `std::bad_alloc`.
  session_records(record_format format, Memory memory)
      : format_(std::move(format)),
        no_tokens_(static_cast<std::size_t>(format_.block_size)),
        memory_(std::move(memory)),
        base_(memory_.allocate(size(), record_alignment)) {
    pairs_.reserve(most);
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
                                      typename Backend::stream on) noexcept {
    pairs_.clear();
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto block = static_cast<std::int32_t>(blocks[i]);
      const auto index = static_cast<std::int32_t>(i);
      if (blocks[i] != no_block) {
        pairs_.push_back(direction == swap_direction::to_host ? block_pair{block, index} : block_pair{index, block});
      }
    }
    const auto host = format_.payloads(device, base_, static_cast<std::int32_t>(most));
    const auto copied = direction == swap_direction::to_host ? backend.swap_blocks(device, host, pairs_, direction, on)
                                                             : backend.swap_blocks(host, device, pairs_, direction, on);
    return copied ? backend.synchronize(on) : copied;
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
  std::byte* base_;
};

}  // namespace pagedkv::detail
