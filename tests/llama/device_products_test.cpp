// Products of few rows with a matrix on a device, against sums in float64.

#include "../../examples/llama/device/arrays.hpp"
#include "../../examples/llama/device/clusters.hpp"
#include "../../examples/llama/device/tiles.hpp"

#include <pagedkv/device/device.hpp>
#include <pagedkv/device/stream.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float32.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace llama::test {
namespace {

namespace kernels = device::kernels;
using device::storage_of;
using pagedkv::bfloat16;
using pagedkv::float32;

constexpr auto epsilon_of_norm = 1e-5F;
/// Results have this value before a product, and keep it where the product has none.
constexpr auto untouched = 77.0F;
/// Of a sum in float32, in shares of its products' magnitudes. One missing product is more.
constexpr auto error_of_sums = 1e-6;

device::runtime::device_properties require_properties() {
  if (const auto found = pagedkv::hip::check_device(0); !found) {
    SKIP("a device is absent: " << found.error().message());
  }
  auto properties = device::runtime::device_properties{};
  device::hip::require(device::runtime::get_device_properties(&properties, 0), "the properties of a device");
  return properties;
}

template <class Number>
Number encoded(float number) {
  if constexpr (sizeof(Number) == 2) {
    return bfloat16::encode(number, 1);
  } else {
    return number;
  }
}

template <class Number>
double decoded(Number number) {
  if constexpr (sizeof(Number) == 2) {
    return bfloat16::decode(number, 1);
  } else {
    return number;
  }
}

/// Numbers between minus one and one.
std::vector<float> random_numbers(std::int32_t rows, std::int32_t width) {
  auto made = std::vector<float>(static_cast<std::size_t>(rows) * static_cast<std::size_t>(width));
  auto random = std::minstd_rand(static_cast<std::minstd_rand::result_type>(made.size()));
  for (auto& each : made) {
    each = static_cast<float>(static_cast<std::int32_t>(random() / 1024 % 2048) - 1024) / 1024;
  }
  return made;
}

template <class Number>
std::vector<Number> all_encoded(const std::vector<float>& numbers) {
  auto made = std::vector<Number>(numbers.size());
  std::ranges::transform(numbers, made.begin(), encoded<Number>);
  return made;
}

template <class T>
void upload(const device::device_array<T>& to, const std::vector<T>& from, device::runtime::stream stream) {
  device::copy(to.data(), from.data(), from.size(), device::runtime::host_to_device, stream);
  device::hip::require(device::runtime::synchronize_stream(stream), "the wait for a stream");
}

template <class T>
std::vector<T> downloaded(const device::device_array<T>& from, device::runtime::stream stream) {
  auto made = std::vector<T>(from.size());
  device::copy(made.data(), static_cast<const T*>(from.data()), from.size(), device::runtime::device_to_host, stream);
  device::hip::require(device::runtime::synchronize_stream(stream), "the wait for a stream");
  return made;
}

std::size_t place(std::int32_t row, std::int32_t width, std::int32_t i) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(width) + static_cast<std::size_t>(i);
}

/// A sum, and the sum of the magnitudes of what is added.
struct known_sum {
  double value = 0;
  double magnitude = 0;
};

/// Counts numbers that are not what they should be.
class comparison {
 public:
  void add(double number, double wanted, double allowed) {
    if (!(std::abs(number - wanted) <= allowed)) {  // also without a number
      ++num_different_;
    }
  }
  [[nodiscard]] std::int64_t num_different() const { return num_different_; }

 private:
  std::int64_t num_different_ = 0;
};

/// Up to `most_rows` rows and a matrix on a device, and their products. Behind the matrix is no number.
template <class Element>
class known_products {
 public:
  using number = storage_of<Element>;
  static constexpr auto largest_read = 1024;

  known_products(std::int32_t num_in, std::int32_t num_out, std::int32_t most_rows = device::tile_rows)
      : num_in_(num_in),
        num_out_(num_out),
        most_rows_(most_rows),
        host_rows_(all_encoded<number>(random_numbers(most_rows, num_in))),
        rows_(host_rows_.size()),
        weights_(place(num_out, num_in, largest_read)),
        sums_(place(most_rows, num_out, 0)) {
    auto weights = random_numbers(num_out, num_in);
    auto encoded_weights = all_encoded<number>(weights);
    std::ranges::transform(encoded_weights, weights.begin(), [](number w) { return static_cast<float>(decoded(w)); });
    encoded_weights.resize(weights_.size(), encoded<number>(std::numeric_limits<float>::quiet_NaN()));
    upload(weights_, encoded_weights, stream());
    for (auto row = std::int32_t{0}; row < most_rows; ++row) {
      auto numbers = std::vector<double>(static_cast<std::size_t>(num_in));
      for (auto i = std::int32_t{0}; i < num_in; ++i) {
        numbers[static_cast<std::size_t>(i)] = decoded(host_rows_[place(row, num_in, i)]);
      }
      for (auto out = std::int32_t{0}; out < num_out; ++out) {
        sums_[place(row, num_out, out)] = sum_of(numbers.data(), &weights[place(out, num_in, 0)]);
      }
    }
  }

  [[nodiscard]] std::int32_t num_in() const { return num_in_; }
  [[nodiscard]] std::int32_t num_out() const { return num_out_; }
  [[nodiscard]] std::int32_t most_rows() const { return most_rows_; }
  [[nodiscard]] device::runtime::stream stream() const { return stream_.get(); }
  [[nodiscard]] const number* weights() const { return weights_.data(); }
  [[nodiscard]] known_sum sum(std::int32_t row, std::int32_t out) const { return sums_[place(row, num_out_, out)]; }
  /// The first rows; behind them is no number.
  [[nodiscard]] device::step_rows<Element> rows(std::int32_t num_rows) const {
    auto numbers = host_rows_;
    std::fill(numbers.begin() + std::ptrdiff_t{num_rows} * num_in_, numbers.end(),
              encoded<number>(std::numeric_limits<float>::quiet_NaN()));
    upload(rows_, numbers, stream());
    return {rows_.data(), num_rows};
  }

 private:
  [[nodiscard]] known_sum sum_of(const double* numbers, const float* weights) const {
    auto sum = known_sum{};
    for (auto i = std::int32_t{0}; i < num_in_; ++i) {
      const auto product = numbers[i] * static_cast<double>(weights[i]);
      sum.value += product;
      sum.magnitude += std::abs(product);
    }
    return sum;
  }

  std::int32_t num_in_;
  std::int32_t num_out_;
  std::int32_t most_rows_;
  pagedkv::hip::stream stream_;
  std::vector<number> host_rows_;
  device::device_array<number> rows_;
  device::device_array<number> weights_;
  std::vector<known_sum> sums_;
};

/// The product of a step's rows, which are divided or not, as each kind of pairs puts it. `start` launches a kernel.
template <class Element, class Start>
class checked_product {
 public:
  using number = storage_of<Element>;

  checked_product(const known_products<Element>& known, std::int32_t num_rows, bool divides, Start start)
      : known_(known),
        rows_(known.rows(num_rows)),
        start_(start),
        factors_(static_cast<std::size_t>(known.most_rows()), 1.0) {
    if (!divides) {
      return;
    }
    rows_.num_parts = device::parts_of_squares(known.num_in());
    rows_.epsilon = epsilon_of_norm;
    auto squares = random_numbers(known.most_rows(), rows_.num_parts);
    std::ranges::transform(squares, squares.begin(), [](float each) { return each * each + 1; });
    squares_ = device::device_array<float>(squares.size());
    upload(squares_, squares, known.stream());
    rows_.squares = squares_.data();
    for (auto row = std::int32_t{0}; row < num_rows; ++row) {
      auto sum = 0.0;
      for (auto part = std::int32_t{0}; part < rows_.num_parts; ++part) {
        sum += static_cast<double>(squares[place(row, rows_.num_parts, part)]);
      }
      factors_[static_cast<std::size_t>(row)] =
          1 / std::sqrt(sum / known.num_in() + static_cast<double>(epsilon_of_norm));
    }
  }

  template <class Stored, class Number>
  void check_stored() {
    const auto results = filled<Number>(known_.num_out());
    start_(known_, rows_, device::stored_pairs<Stored, Number>{results.data(), known_.num_out()});
    check<Number>(results, known_.num_out(), [&](std::int32_t row, std::int32_t i) {
      const auto [value, error] = result(row, i);
      return std::pair(value, error + std::abs(value) * (sizeof(Number) == 2 ? 0x1p-8 : 0));
    });
  }

  void check_added() {
    const auto hidden = random_numbers(known_.most_rows(), known_.num_out());
    const auto results = device::device_array<float>(hidden.size());
    upload(results, hidden, known_.stream());
    start_(known_, rows_, device::added_pairs{results.data(), known_.num_out()});
    check_hidden(downloaded(results, known_.stream()), hidden);
  }

  void check_gated() {
    const auto width = known_.num_out() / 2;
    const auto results = filled<number>(width);
    start_(known_, rows_, device::gated_pairs<Element>{results.data(), width});
    check<number>(results, width, [&](std::int32_t row, std::int32_t i) {
      const auto [gate, error_of_gate] = result(row, i);
      const auto [up, error_of_up] = result(row, width + i);
      const auto opened = gate / (1 + std::exp(-gate));
      const auto error = std::abs(opened) * error_of_up + 1.1 * error_of_gate * (std::abs(up) + error_of_up) +
                         std::abs(opened * up) * (sizeof(number) == 2 ? 0x1p-8 : 1e-5);
      return std::pair(opened * up, error + 1e-30);
    });
  }

  /// The new hidden rows are those of the sums; what is made of them is compared with what it is made of.
  template <template <class> class Pairs>
  void check_added_and_weighted(std::int32_t num_parts) {
    const auto width = known_.num_out();
    const auto hidden = random_numbers(known_.most_rows(), width);
    const auto weights = random_numbers(1, width);
    const auto new_hidden = device::device_array<float>(hidden.size());
    const auto weights_of_norm = device::device_array<float>(weights.size());
    const auto weighted = filled<number>(width);
    const auto squares = filled<float>(num_parts);
    upload(new_hidden, hidden, known_.stream());
    upload(weights_of_norm, weights, known_.stream());
    start_(
        known_, rows_,
        Pairs<Element>{new_hidden.data(), width, weights_of_norm.data(), weighted.data(), squares.data(), num_parts});
    const auto found = downloaded(new_hidden, known_.stream());
    check_hidden(found, hidden);
    check<number>(weighted, width, [&](std::int32_t row, std::int32_t i) {
      const auto wanted = encoded<number>(found[place(row, width, i)] * weights[static_cast<std::size_t>(i)]);
      return std::pair(decoded(wanted), 0.0);
    });
    check<float>(squares, num_parts, [&](std::int32_t row, std::int32_t part) {
      const auto each = width / num_parts;
      auto sum = 0.0;
      for (auto i = part * each; i < (part + 1) * each; ++i) {
        sum += std::pow(static_cast<double>(found[place(row, width, i)]), 2);
      }
      return std::pair(sum, 1e-6 * sum);
    });
  }

 private:
  template <class Number>
  [[nodiscard]] device::device_array<Number> filled(std::int32_t width) const {
    auto made = device::device_array<Number>(place(known_.most_rows(), width, 0));
    upload(made, std::vector<Number>(made.size(), encoded<Number>(untouched)), known_.stream());
    return made;
  }

  /// A number of the product, and its largest error.
  [[nodiscard]] std::pair<double, double> result(std::int32_t row, std::int32_t out) const {
    const auto sum = known_.sum(row, out);
    const auto error = error_of_sums * sum.magnitude + 1e-6 * std::abs(sum.value);
    const auto factor = factors_[static_cast<std::size_t>(row)];
    return {sum.value * factor, error * factor};
  }

  void check_hidden(const std::vector<float>& found, const std::vector<float>& before) const {
    const auto width = known_.num_out();
    auto compared = comparison{};
    for (auto row = std::int32_t{0}; row < known_.most_rows(); ++row) {
      for (auto i = std::int32_t{0}; i < width; ++i) {
        const auto at = place(row, width, i);
        const auto [value, error] = row < rows_.num_rows ? result(row, i) : std::pair(0.0, 0.0);
        const auto wanted = static_cast<double>(before[at]) + value;
        compared.add(static_cast<double>(found[at]), wanted,
                     row < rows_.num_rows ? error + 0x1p-22 * std::abs(wanted) : 0);
      }
    }
    CHECK(compared.num_different() == 0);
  }

  /// `wanted` returns a result and its largest error.
  template <class Number, class Wanted>
  void check(const device::device_array<Number>& results, std::int32_t width, Wanted wanted) const {
    const auto found = downloaded(results, known_.stream());
    auto compared = comparison{};
    for (auto row = std::int32_t{0}; row < known_.most_rows(); ++row) {
      for (auto i = std::int32_t{0}; i < width; ++i) {
        const auto [value, error] = row < rows_.num_rows ? wanted(row, i) : std::pair(double{untouched}, 0.0);
        compared.add(decoded(found[place(row, width, i)]), value, error);
      }
    }
    CHECK(compared.num_different() == 0);
  }

  const known_products<Element>& known_;
  device::step_rows<Element> rows_;
  Start start_;
  device::device_array<float> squares_;
  std::vector<double> factors_;  // of rows
};

template <class Element>
void check_single_rows(std::int32_t wave_size) {
  const auto num_in = GENERATE(8, 264, 1056, 4128);
  CAPTURE(num_in);
  const auto known = known_products<Element>(num_in, 36);
  const auto start = [=]<class Pairs>(const known_products<Element>& of, const device::step_rows<Element>& rows,
                                      const Pairs& pairs) {
    const auto each = device::workgroup_size / wave_size;
    const auto num_workgroups = static_cast<std::uint32_t>((pairs.count() + each - 1) / each);
    device::hip::require(kernels::launch_following<device::multiply_row<Element, Pairs>>(
                             {{num_workgroups}, {device::workgroup_size}}, of.stream(), rows.numbers, of.weights(),
                             of.num_in(), pairs.count(), pairs),
                         "the launch of a kernel");
  };
  auto product = checked_product(known, 1, false, start);
  product.template check_stored<Element, storage_of<Element>>();
  product.template check_stored<float32, float>();
  product.check_added();
  product.check_gated();
}

TEST_CASE("products of a row on a device are those of float64", "[llama]") {
  const auto wave_size = require_properties().wave_size;
  SECTION("float32") { check_single_rows<float32>(wave_size); }
  SECTION("bfloat16") { check_single_rows<bfloat16>(wave_size); }
}

TEST_CASE("products of few rows in tiles are those of float64", "[llama]") {
  const auto properties = require_properties();
  if (properties.matrices != device::runtime::matrix_instructions::mma || !device::has_room_for_tiles()) {
    SKIP("the device, or the compiler for it, multiplies no tiles");
  }
#if defined(__CUDACC__) && !defined(__HIPCC__)
  // Runs of a tile: one, one and a part, as many as stay in registers, one part more, and many.
  const auto num_in = GENERATE(32, 1056, 2080, 4096, 4128, 14336);
  // For each workgroup none or one, or several, so that places of the ring are taken again and shares are claimed.
  const bool has_many = GENERATE(false, true);
  const auto num_processors = properties.num_processors;
  const auto tiles_of_each = num_in > 4128 ? 2 : 7;
  const auto num_tiles = has_many ? tiles_of_each * num_processors + 3 : 5;
  CAPTURE(num_in, num_tiles);
  const auto known = known_products<bfloat16>(num_in, 2 * device::tile_pairs * num_tiles);
  const auto num_claimed = device::device_array<unsigned>(1);
  upload(num_claimed, std::vector{0U}, known.stream());
  const auto start = [&]<class Pairs>(const known_products<bfloat16>& of, const device::step_rows<bfloat16>& rows,
                                      const Pairs& pairs) {
    const auto num_workgroups = static_cast<std::uint32_t>(std::min(num_tiles, num_processors));
    device::hip::require(kernels::launch_following<device::multiply_tiles<bfloat16, Pairs>>(
                             {{num_workgroups}, {device::tile_lanes}, device::tile_ring_bytes},
                             of.stream(), rows, of.weights(), of.num_in(), pairs, pairs.count() / device::tile_pairs,
                             num_claimed.data()),
                         "the launch of a kernel");
    CHECK(downloaded(num_claimed, of.stream()) == std::vector{0U});
  };
  for (auto num_rows = std::int32_t{1}; num_rows <= known.most_rows(); ++num_rows) {
    for (const bool divides : {false, true}) {
      CAPTURE(num_rows, divides);
      auto product = checked_product(known, num_rows, divides, start);
      product.check_stored<bfloat16, storage_of<bfloat16>>();
      product.check_stored<float32, float>();
      product.check_added();
      product.check_gated();
      product.check_added_and_weighted<device::added_and_weighted_pairs>(device::parts_of_squares(known.num_out()));
    }
  }
#endif
}

#if defined(__CUDACC__) && !defined(__HIPCC__)
template <std::int32_t Workgroups>
void check_clusters(std::int32_t num_in) {
  const auto most_clusters = device::clusters_at_once<bfloat16, Workgroups>();
  if (most_clusters == 0) {
    SKIP("the device has no room for clusters, or the kernel was not compiled for it");
  }
  // For each cluster none or one, or several, so that places of sums are taken again.
  const auto num_tiles = GENERATE_COPY(2, 5 * most_clusters + 1);
  CAPTURE(num_in, num_tiles);
  const auto known = known_products<bfloat16>(num_in, 2 * device::cluster_pairs * num_tiles, device::cluster_rows);
  const auto start = [=]<class Pairs>(const known_products<bfloat16>& of, const device::step_rows<bfloat16>& rows,
                                      const Pairs& pairs) {
    device::hip::require(device::launch_clusters<bfloat16, Workgroups>(rows, of.weights(), of.num_in(), pairs,
                                                                       most_clusters, of.stream()),
                         "the launch of a kernel");
  };
  for (const auto num_rows : {9, 16, 33, 64}) {
    for (const bool divides : {false, true}) {
      CAPTURE(num_rows, divides);
      auto product = checked_product(known, num_rows, divides, start);
      product.template check_stored<bfloat16, storage_of<bfloat16>>();
      product.template check_stored<float32, float>();
      product.check_added();
      product.check_gated();
      product.template check_added_and_weighted<device::added_and_weighted_pairs>(
          device::parts_by_clusters(known.num_out()));
    }
  }
}
#endif

TEST_CASE("products of up to 64 rows in clusters are those of float64", "[llama]") {
  static_cast<void>(require_properties());
#if defined(__CUDACC__) && !defined(__HIPCC__)
  // Runs of a row: a part, as many as there are warpgroups, one part more, and as many as stay in registers.
  SECTION("small") { check_clusters<device::small_cluster>(GENERATE(72, 1024, 1032, 4096)); }
  SECTION("large") { check_clusters<device::large_cluster>(GENERATE(2056, 14'336)); }
#else
  SKIP("the compiler is for devices without clusters");
#endif
}

}  // namespace
}  // namespace llama::test
