#pragma once

#include <pagedkv/policy/locking/parts/tally.hpp>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace pagedkv {

/// Kinds of metrics, as Prometheus has them.
enum class metric_kind : std::uint8_t {
  counter,  // only grows
  gauge,    // the value now
};

/// A name and a value of the caller's, or of a table of metrics. The name matches `[a-zA-Z_][a-zA-Z0-9_]*` and does not
/// begin with two underscores; the value is any text in UTF-8.
struct metric_label {
  std::string_view name{};
  std::string_view value{};
};

/// A name, whose values differ in labels only.
struct metric_family {
  metric_kind kind{};
  std::string_view name{};  // without prefix, unit and suffix
  std::string_view unit{};  // plural, such as "blocks"; empty for one without
  std::string_view help{};  // a sentence
};

/// Describes one field of `Statistics`.
template <class Statistics>
struct metric {
  metric_family family;
  metric_label label{};  // tells the fields of one family apart; empty for a family of one
  std::int64_t (*read)(const Statistics&){};
  std::int64_t Statistics::*field{};  // null for a field of a member
};

/// The table of all fields of `Statistics`: `metrics_of<cache_statistics>`, for example. Fields of one family are
/// neighbours. Specialised where the fields are declared.
template <class Statistics>
inline constexpr auto metrics_of = nullptr;

namespace detail {

template <class Statistics>
struct metrics_builder {
  /// A row for a field of `Statistics`, or for a field of its member.
  template <auto Member, auto... Field>
  [[nodiscard]] static constexpr metric<Statistics> row(const metric_family& family, const metric_label& label = {}) {
    auto described = metric<Statistics>{family, label};
    described.read = [](const Statistics& from) { return ((from.*Member).*....*Field); };
    if constexpr (sizeof...(Field) == 0) {
      described.field = Member;
    }
    return described;
  }
};

}  // namespace detail

/// Running sums for the counters in the table of `Statistics`: one for each row of kind `counter` that describes a
/// field of its own.
template <class Statistics, locking Locking>
class counters {
 public:
  /// Adds to the sum of a field, in its unit.
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
