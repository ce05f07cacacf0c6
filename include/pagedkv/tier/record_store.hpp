#pragma once

#include <pagedkv/core/ids.hpp>
#include <pagedkv/policy/backend/concept.hpp>
#include <pagedkv/storage/view.hpp>
#include <pagedkv/tier/adopt_records.hpp>
#include <pagedkv/tier/host_tier.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/record_catalog.hpp>
#include <pagedkv/tier/record_pipeline.hpp>
#include <pagedkv/tier/record_table.hpp>
#include <pagedkv/tier/tier_config.hpp>
#include <pagedkv/tier/tier_statistics.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace pagedkv {

/// Everything that a cache with tiers knows beyond its device: which contents have records where, and what is under way.
/// One of two models hears of the blocks that the device's cache gets and loses: `tier_store` behind one group, or
/// `group_tier_store`. One thread at a time; a failed transfer is a lost write or a miss.
template <swaps_blocks Backend, class Directory, class Host, tier... Slower>
class record_store {
 public:
  using directory_type = Directory;
  using catalog_type = record_catalog<Directory, typename Host::eviction_type, Slower...>;
  using pipeline_type = record_pipeline<Backend, typename Host::allocator_type, catalog_type>;
  using stream = typename Backend::stream;
  static constexpr auto host = catalog_type::host;
  static constexpr auto num_tiers = catalog_type::num_tiers;

  record_store(const record_store&) = delete;
  record_store& operator=(const record_store&) = delete;

  [[nodiscard]] pipeline_type& transfers() noexcept { return pipeline_; }
  [[nodiscard]] const pipeline_type& transfers() const noexcept { return pipeline_; }
  [[nodiscard]] const directory_type& directory() const noexcept { return catalog_.directory(); }

  /// Before the device's cache itself writes to blocks that were evicted, or gives back their memory.
  void flush(stream on) noexcept { pipeline_.flush(on); }

  /// Whether a look-up could find anything.
  [[nodiscard]] bool may_know() const noexcept {
    return catalog_.has_records() || pipeline_.num_loading() != 0 || config_.ask_ahead != 0;
  }
  void let_go(record_id record) noexcept { catalog_.let_go(record); }
  [[nodiscard]] bool in_host_memory(record_id record) const noexcept { return catalog_.in_host_memory(record); }
  [[nodiscard]] bool is_loading(record_id record) const noexcept { return catalog_.at(record).loading; }
  /// Whether a load that began earlier can be taken: contents that were invalidated since then are not served.
  [[nodiscard]] bool is_ready(record_id record) const noexcept {
    return in_host_memory(record) && !catalog_.directory().is_withdrawn(record);
  }
  [[nodiscard]] bool is_awaited(record_id record) const noexcept {
    return is_loading(record) && !catalog_.directory().is_withdrawn(record);
  }
  /// The tier that a record comes from, for the counts.
  [[nodiscard]] std::int8_t source(record_id record) const noexcept { return catalog_.at(record).source; }

  /// Counts blocks that a sequence took from a tier, and tokens that it need not compute for that.
  void count_hit(std::int8_t from, std::int64_t num_blocks, std::int64_t num_tokens) noexcept {
    auto& counts = catalog_.counts_of(static_cast<std::size_t>(from));
    counts.hit_blocks += num_blocks;
    counts.hit_tokens += num_tokens;
  }

  /// Statistics of a tier by its number; 0 is host memory.
  [[nodiscard]] tier_statistics statistics(std::size_t number) noexcept {
    auto counts = catalog_.counts_of(number);
    catalog_.slower().for_each([&](std::size_t each, auto& tier) {
      if (each == number) {
        counts.num_erasing = static_cast<std::int64_t>(tier.queue.num_erasing());
        counts.num_orphans = static_cast<std::int64_t>(tier.orphans.size());
      }
    });
    return counts;
  }
  [[nodiscard]] std::size_t metadata_bytes() const noexcept { return catalog_.metadata_bytes(); }

  /// A sentence for each broken invariant. For tests; may throw `std::bad_alloc`. `num_held`: records that loads of the
  /// caller hold, each once for each load.
  [[nodiscard]] std::vector<std::string> check_invariants(std::size_t num_held) const {
    auto broken = std::vector<std::string>{};
    if (pipeline_.has_pending()) {
      broken.emplace_back("tiers: blocks wait to be copied after an operation");
    }
    catalog_.check_invariants(num_held + pipeline_.num_held(), pipeline_.num_loading(),
                              [&](const char* sentence) { broken.emplace_back(sentence); });
    return broken;
  }

 protected:
  /// Throws `exception`, `std::bad_alloc`.
  template <class MakeDirectory>
  record_store(const tier_config& config, std::int32_t num_blocks, Backend& backend, const block_storage_view& device,
               const record_format& format, Host host_tier, std::tuple<Slower...> slower,
               MakeDirectory&& make_directory)
      : config_(config),
        catalog_(config, host_tier.num_records, format, std::move(slower), make_directory),
        pipeline_(config, num_blocks, backend, device, format, std::move(host_tier.memory), host_tier.num_records,
                  catalog_) {
    detail::adopt_records(catalog_);
  }
  /// Waits for batches under way; they use memory of all parts. Records that were invalidated while they were written
  /// are erased.
  ~record_store() {
    catalog_.slower().stop();
    pipeline_.end_executed();
    catalog_.slower().stop();
  }

  /// Has device blocks written to host memory: `path` from its last one on, so that no tier gets a record before those
  /// that begin it. At most so many.
  void want_path_written(std::vector<std::pair<record_id, block_id>>& path, std::size_t most) noexcept {
    for (; !path.empty() && most != 0; --most) {
      pipeline_.want_written(path.back().first, path.back().second);
      path.pop_back();
    }
  }

  tier_config config_;
  catalog_type catalog_;
  pipeline_type pipeline_;
};

}  // namespace pagedkv
