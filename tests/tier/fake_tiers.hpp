#pragma once

#include <pagedkv/policy/tiers/concept.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/remote_tier.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace pagedkv::test {

/// A store in memory, that tests look into and break.
struct fake_store {
  enum class fault {
    none,
    fails,    // some transfers fail
    tears,    // some records lose their end
    lies,     // some reads bring another record
    full,     // no write succeeds
    forgets,  // some records are gone
    all,      // of these
    denies,   // writes are done, and said to have failed
  };

  struct aligned_record {
    explicit aligned_record(std::span<const std::byte> from)
        : bytes(static_cast<std::byte*>(std::aligned_alloc(record_alignment, from.size())), &std::free),
          size(from.size()) {
      std::memcpy(bytes.get(), from.data(), from.size());
    }
    std::unique_ptr<std::byte, decltype(&std::free)> bytes;
    std::size_t size;
  };

  explicit fake_store(fault with = fault::none, std::uint32_t seed = 1) : wrong(with), random(seed) {}

  /// Makes reads wait until it is opened again.
  void close() {
    const auto lock = std::lock_guard{mutex};
    closed = true;
  }
  void open() {
    {
      const auto lock = std::lock_guard{mutex};
      closed = false;
    }
    changed.notify_all();
  }

  bool strikes(fault kind) { return (wrong == kind || wrong == fault::all) && random() % 4 == 0; }

  transfer_outcome write(std::pair<std::uint64_t, std::uint64_t> at, std::span<const std::byte> bytes) {
    const auto lock = std::lock_guard{mutex};
    ++num_writes;
    if (wrong == fault::full || strikes(fault::fails)) {
      return transfer_outcome::failed;
    }
    if (strikes(fault::forgets)) {
      return transfer_outcome::done;
    }
    auto& stored = records.insert_or_assign(at, aligned_record{bytes}).first->second;
    if (strikes(fault::tears)) {
      const auto from = random() % stored.size;
      std::memset(stored.bytes.get() + from, 0, stored.size - from);
      stored.bytes.get()[random() % stored.size] ^= std::byte{1};
    }
    return wrong == fault::denies ? transfer_outcome::failed : transfer_outcome::done;
  }
  transfer_outcome read(std::pair<std::uint64_t, std::uint64_t> at, std::span<std::byte> bytes) {
    auto lock = std::unique_lock{mutex};
    changed.wait(lock, [&] { return !closed; });
    ++num_reads;
    auto found = records.find(at);
    if (found != records.end() && strikes(fault::lies)) {
      found = std::next(records.begin(), static_cast<std::ptrdiff_t>(random() % records.size()));
    }
    if (found == records.end()) {
      return transfer_outcome::missing;
    }
    if (strikes(fault::fails) || found->second.size != bytes.size()) {
      return transfer_outcome::failed;
    }
    std::memcpy(bytes.data(), found->second.bytes.get(), bytes.size());
    return transfer_outcome::done;
  }

  transfer_outcome erase(std::pair<std::uint64_t, std::uint64_t> at) {
    const auto lock = std::lock_guard{mutex};
    ++num_erasures;
    changed.notify_all();
    if (!erases || unerasable.contains(at) || wrong == fault::full || strikes(fault::fails)) {
      return transfer_outcome::failed;
    }
    records.erase(at);
    return transfer_outcome::done;
  }
  /// Waits until somebody has tried to erase so often; false if nobody does.
  bool await_erasures(int count) {
    auto lock = std::unique_lock{mutex};
    return changed.wait_for(lock, std::chrono::minutes{1}, [&] { return num_erasures >= count; });
  }

  fault wrong;
  std::mt19937 random;
  std::mutex mutex;
  std::condition_variable changed;
  bool closed = false;
  bool erases = true;
  std::set<std::pair<std::uint64_t, std::uint64_t>> unerasable;
  std::map<std::pair<std::uint64_t, std::uint64_t>, aligned_record> records;
  int num_writes = 0;
  int num_reads = 0;
  int num_erasures = 0;  // tries
};

/// Finds records by their keys, as a remote store does.
struct keyed_tier {
  static constexpr std::string_view name = "keyed";

  void write(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      outcomes[i] = store->write({batch[i].key.low, batch[i].key.high}, batch[i].bytes);
    }
  }
  void read(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      outcomes[i] = store->read({batch[i].key.low, batch[i].key.high}, batch[i].bytes);
    }
  }

  void erase(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      outcomes[i] = store->erase({batch[i].key.low, batch[i].key.high});
    }
  }

  std::shared_ptr<fake_store> store;
};
static_assert(tier<keyed_tier> && !tier_with_places<keyed_tier>);

/// Has places, and its records when it is constructed anew, as files do.
struct placed_tier {
  static constexpr std::string_view name = "placed";

  [[nodiscard]] std::int64_t num_places() const noexcept { return count; }
  void write(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      outcomes[i] = store->write({static_cast<std::uint64_t>(batch[i].place), 0}, batch[i].bytes);
    }
  }
  void read(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      outcomes[i] = store->read({static_cast<std::uint64_t>(batch[i].place), 0}, batch[i].bytes);
    }
  }
  void erase(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      outcomes[i] = store->erase({static_cast<std::uint64_t>(batch[i].place), 0});
    }
  }
  template <class Visit>
  std::int64_t for_each_record(Visit&& visit) {
    for (const auto& [at, record] : store->records) {
      const auto reading = read_record_header(format, {record.bytes.get(), record.size});
      if (reading.fault == record_fault::none) {
        visit(static_cast<std::int64_t>(at.first), reading.identity);
      }
    }
    return 0;
  }

  std::shared_ptr<fake_store> store;
  std::int64_t count = 0;
  record_format format;
};
static_assert(persistent_tier<placed_tier>);

/// The client of a remote tier whose store is this one.
struct fake_client {
  static constexpr std::string_view name = "fake";
  using time_point = std::chrono::steady_clock::time_point;

  void set_many(std::span<const remote_value> batch, std::span<transfer_outcome> outcomes, time_point) noexcept {
    std::ranges::transform(batch, outcomes.begin(),
                           [&](const auto& each) { return store->write(place_of(each.key), each.bytes); });
  }
  void get_many(std::span<const remote_value> batch, std::span<transfer_outcome> outcomes, time_point) noexcept {
    std::ranges::transform(batch, outcomes.begin(),
                           [&](const auto& each) { return store->read(place_of(each.key), each.bytes); });
  }
  void erase_many(std::span<const remote_value> batch, std::span<transfer_outcome> outcomes, time_point) noexcept {
    std::ranges::transform(batch, outcomes.begin(), [&](const auto& each) { return store->erase(place_of(each.key)); });
  }
  [[nodiscard]] static std::pair<std::uint64_t, std::uint64_t> place_of(std::string_view key) {
    return {std::hash<std::string_view>{}(key), key.size()};
  }

  std::shared_ptr<fake_store> store;
};
static_assert(remote_client<fake_client>);

}  // namespace pagedkv::test
