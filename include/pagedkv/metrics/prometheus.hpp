#pragma once

#include <pagedkv/metrics/counters.hpp>

#include <algorithm>
#include <array>
#include <cassert>
#include <charconv>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pagedkv {

/// Statistics of one cache or tracker, with the labels that tell it from others, such as {"model", "…"}.
template <class Statistics>
struct labelled_statistics {
  std::span<const metric_label> labels;  // [label]
  Statistics values;
};

namespace detail {

class prometheus_writer {
 public:
  explicit prometheus_writer(std::string& text) : text_(text) {}

  void begin_family(const metric_family& family) {
    write_line_start("# HELP ", family);
    write_escaped(family.help, false);
    write_line_start("\n# TYPE ", family);
    text_ += family.kind == metric_kind::counter ? "counter\n" : "gauge\n";
  }

  void write_sample(const metric_family& family, std::span<const metric_label> labels, const metric_label& own,
                    std::int64_t value) {
    write_name(family);
    first_label_ = true;
    std::ranges::for_each(labels, [&](const metric_label& label) { write_label(label); });
    if (!own.name.empty()) {
      write_label(own);
    }
    text_ += first_label_ ? " " : "} ";
    auto digits = std::array<char, 24>{};
    text_.append(digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr);
    text_ += '\n';
  }

 private:
  [[nodiscard]] static bool is_label_name(std::string_view name) noexcept {
    const auto allowed = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    };
    return !name.empty() && !(name[0] >= '0' && name[0] <= '9') && !name.starts_with("__") &&
           std::ranges::all_of(name, allowed);
  }

  void write_name(const metric_family& family) {
    text_ += "pagedkv_";
    text_ += family.name;
    if (!family.unit.empty()) {
      text_ += '_';
      text_ += family.unit;
    }
    if (family.kind == metric_kind::counter) {
      text_ += "_total";
    }
  }
  void write_line_start(std::string_view keyword, const metric_family& family) {
    text_ += keyword;
    write_name(family);
    text_ += ' ';
  }
  void write_label(const metric_label& label) {
    assert(is_label_name(label.name) && "a label's name has letters, digits and single leading underscores only");
    text_ += first_label_ ? '{' : ',';
    first_label_ = false;
    text_ += label.name;
    text_ += "=\"";
    write_escaped(label.value, true);
    text_ += '"';
  }
  void write_escaped(std::string_view raw, bool quoted) {
    for (const auto c : raw) {
      if (c == '\n') {
        text_ += "\\n";
      } else {
        if (c == '\\' || (quoted && c == '"')) {
          text_ += '\\';
        }
        text_ += c;
      }
    }
  }

  std::string& text_;
  bool first_label_ = true;
};

}  // namespace detail

/// Appends statistics of any number of caches or trackers to a text in Prometheus' exposition format 0.0.4. The format
/// has each name in one place, so pass all of one type in one call. Labels have unique names, which differ from those
/// of the table (docs/metrics.md). May throw `std::bad_alloc`.
template <class Statistics>
void append_prometheus(std::string& text, std::span<const labelled_statistics<Statistics>> all) {
  auto writer = detail::prometheus_writer{text};
  const auto& rows = metrics_of<Statistics>;
  for (auto first = rows.begin(); first != rows.end();) {
    const auto same_family = [&](const auto& row) {
      return row.family.name == first->family.name && row.family.unit == first->family.unit;
    };
    const auto last = std::find_if_not(first, rows.end(), same_family);
    writer.begin_family(first->family);
    for (const auto& each : all) {
      std::for_each(first, last, [&](const auto& row) {
        writer.write_sample(row.family, each.labels, row.label, row.read(each.values));
      });
    }
    first = last;
  }
}

template <class Statistics>
void append_prometheus(std::string& text, const std::vector<labelled_statistics<Statistics>>& all) {
  append_prometheus(text, std::span{all});
}

/// Appends the metrics of one cache or tracker.
template <class Statistics>
void append_prometheus(std::string& text, const Statistics& values, std::span<const metric_label> labels = {}) {
  const auto one = labelled_statistics<Statistics>{labels, values};
  append_prometheus(text, std::span<const labelled_statistics<Statistics>>{&one, 1});
}

}  // namespace pagedkv
