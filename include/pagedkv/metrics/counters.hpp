#pragma once

#include <pagedkv/metrics/metric.hpp>
#include <pagedkv/policy/locking/parts/tally.hpp>

#include <cstddef>
#include <cstdint>

namespace pagedkv {

/// Running sums for the counters in the table of `Statistics`: one for each row of kind `counter` that describes a
/// field of its own.
template <class Statistics, locking Locking>
class counters {
 public:
  template <std::int64_t Statistics::*Field>
  void add(std::int64_t amount) noexcept {
    constexpr auto index = index_of(Field);
    static_assert(index < num_sums(), "the table names no such counter");
    sums_.add(index, amount);
  }

  /// Writes every sum into its field.
  void write_to(Statistics& taken) const noexcept {
    auto index = std::size_t{0};
    for (const auto& row : metrics_of<Statistics>) {
      if (is_summed(row)) {
        taken.*row.field = sums_.get(index++);
      }
    }
  }

 private:
  [[nodiscard]] static constexpr bool is_summed(const metric<Statistics>& row) noexcept {
    return row.family.kind == metric_kind::counter && row.field != nullptr;
  }

  [[nodiscard]] static constexpr std::size_t num_sums() noexcept {
    auto num = std::size_t{0};
    for (const auto& row : metrics_of<Statistics>) {
      num += is_summed(row);
    }
    return num;
  }

  /// The index of a field among the sums, or their number for a field without one.
  [[nodiscard]] static constexpr std::size_t index_of(std::int64_t Statistics::*field) noexcept {
    auto index = std::size_t{0};
    for (const auto& row : metrics_of<Statistics>) {
      if (is_summed(row) && row.field == field) {
        return index;
      }
      index += is_summed(row);
    }
    return index;
  }

  tally_for<Locking, num_sums()> sums_;
};

namespace detail {

template <auto Field, class Counters>
void count(Counters& sums, std::int64_t amount) noexcept {
  sums.template add<Field>(amount);
}

}  // namespace detail

}  // namespace pagedkv
