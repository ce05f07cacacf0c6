#pragma once

#include <pagedkv/tier/record.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace pagedkv::testing {

/// A format without a cache: blocks of 4 tokens in 2 layers.
[[nodiscard]] inline record_format small_record_format(std::int64_t layer_bytes = 5'000) {
  return {"records of a test", layer_bytes, 2, 4};
}

/// Memory for records, at `record_alignment`.
class record_memory {
 public:
  record_memory(const record_format& format, std::size_t num_records)
      : size_(format.record_bytes()), units_(num_records * size_ / record_alignment) {}

  [[nodiscard]] std::span<std::byte> operator[](std::size_t index) {
    return std::as_writable_bytes(std::span{units_}).subspan(index * size_, size_);
  }
  void clear() { std::ranges::fill(units_, unit{}); }

 private:
  struct alignas(record_alignment) unit {
    std::array<std::byte, record_alignment> bytes{};
  };

  std::size_t size_;
  std::vector<unit> units_;
};

/// Records whose contents follow from a number, in every process.
class known_records {
  template <class Use>
  [[nodiscard]] auto with_identity(std::uint32_t number, const Use& use) const {
    auto tokens = std::vector<token>(static_cast<std::size_t>(format_.block_size), token{7});
    tokens.front() = static_cast<token>(number);
    const auto root = root_key(salt{3});
    const auto contents = block_contents{tokens};
    const auto identity = record_identity{chained_key(root, contents), root, salt{3}, 0, contents};
    return std::invoke(use, identity);
  }

 public:
  explicit known_records(record_format format) : format_(std::move(format)) {}

  [[nodiscard]] const record_format& format() const noexcept { return format_; }

  [[nodiscard]] record_key key(std::uint32_t number) const { return with_identity(number, &record_identity::key); }

  /// Makes `record` the record of this number.
  void seal(std::uint32_t number, std::span<std::byte> record) const {
    fill_payload(number, record.subspan(format_.header_bytes(), format_.payload_bytes()));
    const auto fits =
        with_identity(number, [&](const auto& identity) { return seal_record(format_, identity, record); });
    static_cast<void>(fits);  // one short text, no keys
  }

  /// As a reader verifies it.
  [[nodiscard]] bool verify(std::uint32_t number, std::span<const std::byte> record) const {
    return with_identity(number, [&](const record_identity& identity) {
      return verify_record(format_, identity, record) == record_fault::none;
    });
  }

  /// Whether `record` has the payload of this number, checksums aside.
  [[nodiscard]] bool has_payload(std::uint32_t number, std::span<const std::byte> record) const {
    auto payload = std::vector<std::byte>(format_.payload_bytes());
    fill_payload(number, payload);
    const auto found = record.subspan(format_.header_bytes(), payload.size());
    // One call: iterators are slow where they are sanitized.
    return std::memcmp(payload.data(), found.data(), payload.size()) == 0;
  }

  /// The number of the record with this identity.
  [[nodiscard]] static std::uint32_t number_of(const record_identity& identity) {
    return static_cast<std::uint32_t>(identity.contents.tokens.front());
  }

 private:
  static void fill_payload(std::uint32_t number, std::span<std::byte> payload) {
    auto word = (number + std::uint64_t{1}) * 0x9e37'79b9'7f4a'7c15U;
    auto words = std::vector<std::uint64_t>(payload.size() / sizeof(word));
    for (auto& next : words) {
      word = (word ^ word >> 29) * 0xbf58'476d'1ce4'e5b9U;
      next = word;
    }
    const auto size = words.size() * sizeof(word);
    std::memcpy(payload.data(), words.data(), size);
    std::ranges::fill(payload.subspan(size), static_cast<std::byte>(number));
  }

  record_format format_;
};

}  // namespace pagedkv::testing
