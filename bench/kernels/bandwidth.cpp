// Bandwidth of every kernel as a share of the device's own copy, measured in the same run. scripts/device-test builds
// it for a device. Built for the host, where bandwidth is meaningless, it only checks that every operation runs, and
// reports in TAP.
//
//   kernel_bandwidth [FILE]
//
// prints the table; writes the same as JSON to FILE.

#include "records.hpp"
#include "timer.hpp"

#include <pagedkv/core/ids.hpp>
#include <pagedkv/device/allocators.hpp>
#include <pagedkv/device/backend.hpp>
#include <pagedkv/device/stream.hpp>
#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float8.hpp>
#include <pagedkv/policy/element/int8.hpp>
#include <pagedkv/policy/layout/all.hpp>
#include <pagedkv/storage/block_storage.hpp>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace pagedkv;

using device_bench::on_device;
using layout = nhd_layer_major;

/// Memory of one allocator until the end of the scope.
template <class Allocator>
class buffer {
 public:
  explicit buffer(std::int64_t bytes)
      : bytes_(static_cast<std::size_t>(bytes)), data_(allocator_.allocate(bytes_, block_alignment)) {
    if (data_ == nullptr) {
      throw exception(error{error_code::out_of_memory, "bytes of a benchmark's buffer", bytes});
    }
  }
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;
  ~buffer() { allocator_.deallocate(data_, bytes_); }

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return bytes_; }

 private:
  Allocator allocator_;
  std::size_t bytes_;
  std::byte* data_;
};

using device_buffer = buffer<hip::device_allocator>;
using pinned_buffer = buffer<hip::pinned_allocator>;

/// Random bytes, repeated: zeros may move faster than ordinary data.
void fill(std::byte* data, std::int64_t size, runtime::stream stream) {
  static const auto pattern = [] {
    auto words = std::vector<std::uint32_t>(1 << 20);
    auto random = std::mt19937(3);
    std::ranges::generate(words, random);
    return words;
  }();
  constexpr auto period = static_cast<std::int64_t>(sizeof(std::uint32_t)) << 20;
  for (auto at = std::int64_t{0}; at < size; at += period) {
    hip::require(runtime::copy_async(data + at, pattern.data(), static_cast<std::size_t>(std::min(period, size - at)),
                                     runtime::host_to_device, stream),
                 "the copy of memory");
  }
  hip::require(runtime::synchronize_stream(stream), "the wait for a stream");
}

void fill(const device_buffer& buffer, runtime::stream stream) {
  fill(buffer.data(), static_cast<std::int64_t>(buffer.size()), stream);
}

class bench {
 public:
  bench(std::int64_t bytes, device_bench::records& records) : bytes_(bytes), records_(&records) {}

  [[nodiscard]] runtime::stream stream() const { return stream_.get(); }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] int num_reports() const { return num_reports_; }

  /// Median bytes per second; see `timer::measure`.
  template <class Operation>
  [[nodiscard]] double measure(std::int64_t moved, Operation operation) {
    const auto seconds = timer_.measure(stream(), [&] { operation().value(); });
    hip::require(runtime::synchronize_stream(stream()), "the wait for a stream");
    return static_cast<double>(moved) / seconds;
  }

  /// One line of the table. `baseline` is in bytes per second.
  template <class Operation>
  void report(const std::string& name, double baseline, std::int64_t moved, Operation operation) {
    const auto rate = measure(moved, operation);
    char line[256];
    std::snprintf(line, sizeof(line),
                  R"({"operation": "%s", "mebibytes": %.6g, "bytes_per_second": %.4g, "ratio": %.4f})", name.c_str(),
                  static_cast<double>(bytes_) / 0x1p20, rate, rate / baseline);
    records_->add(line);
    if (on_device) {
      std::printf("| %-34s | %6.0f | %8.1f | %6.3f |\n", name.c_str(), static_cast<double>(bytes_) / 0x1p20, rate / 1e9,
                  rate / baseline);
    } else {
      std::printf("ok %d - %s at %lld bytes\n", ++num_reports_, name.c_str(), static_cast<long long>(bytes_));
    }
    std::fflush(stdout);
  }

 private:
  std::int64_t bytes_;
  device_bench::records* records_;
  int num_reports_ = 0;
  hip::stream stream_;
  device_bench::timer timer_;
};

/// A layer-major storage with one layer whose payload is about as large as the bench asks for.
template <class Element>
[[nodiscard]] cache_config make_config(const bench& b, std::int32_t num_layers) {
  auto config = cache_config{};
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.num_layers = num_layers;
  config.num_blocks = 2;
  const auto pair_bytes = plan_storage<layout>(config, size_of_element<Element>).value().bytes;
  config.num_blocks = static_cast<std::int32_t>(std::max<std::int64_t>(4, b.bytes() / (pair_bytes / 2)));
  return config;
}

template <class Element, class Layout = layout>
using device_storage = block_storage<Element, Layout, hip::device_allocator>;

/// After the name of an operation; nothing for the layout of most measurements.
template <class Layout>
inline constexpr auto layout_suffix = "";
template <>
inline constexpr auto layout_suffix<transposed_layer_major> = ", V transposed";
template <>
inline constexpr auto layout_suffix<shuffled_layer_major> = ", V shuffled";

/// Every slot of a storage, blocks in random order, as in a cache in use.
[[nodiscard]] std::vector<slot> scattered_slots(const cache_config& config) {
  auto blocks = std::vector<std::int64_t>(static_cast<std::size_t>(config.num_blocks));
  std::iota(blocks.begin(), blocks.end(), std::int64_t{0});
  auto random = std::mt19937(1);
  std::shuffle(blocks.begin(), blocks.end(), random);
  auto slots = std::vector<slot>();
  for (const auto block : blocks) {
    for (auto offset = 0; offset < config.block_size; ++offset) {
      slots.push_back(slot{block * config.block_size + offset});
    }
  }
  return slots;
}

template <class Element, class Rows, class Layout = layout>
void report_rows(bench& b, double copy_rate) {
  using number = typename Rows::storage;
  const auto config = make_config<Element>(b, 1);
  const auto storage = device_storage<Element, Layout>::create(config).value();
  const auto slots = scattered_slots(config);
  const auto num_tokens = static_cast<std::int64_t>(slots.size());
  const auto rows_per_token = std::int64_t{config.num_kv_heads};
  const auto row_bytes = num_tokens * rows_per_token * config.head_dim * static_cast<std::int64_t>(sizeof(number));
  const auto mapping = device_buffer(num_tokens * static_cast<std::int64_t>(sizeof(slot)));
  const auto keys = device_buffer(row_bytes);
  const auto values = device_buffer(row_bytes);
  hip::require(runtime::copy_async(mapping.data(), slots.data(), mapping.size(), runtime::host_to_device, b.stream()),
               "the copy of memory");
  fill(keys, b.stream());
  fill(values, b.stream());

  const auto span = std::span<const slot>(reinterpret_cast<const slot*>(mapping.data()), slots.size());
  const auto rows_of = [&]<class Number>(std::byte* data, Number*) {
    return token_rows<Number>{reinterpret_cast<Number*>(data),
                              rows_per_token * config.head_dim,
                              config.head_dim,
                              num_tokens,
                              config.num_kv_heads,
                              config.head_dim};
  };
  const auto in = static_cast<const number*>(nullptr);
  const auto out = static_cast<number*>(nullptr);
  const auto stored = num_tokens * rows_per_token * 2 *
                      (config.head_dim * size_of_element<Element>.bytes + size_of_element<Element>.scale_bytes);
  const auto moved = stored + 2 * row_bytes + static_cast<std::int64_t>(mapping.size());
  const auto suffix = " " + std::string(Rows::name) + " to " + std::string(Element::name) + layout_suffix<Layout>;
  b.report("append" + suffix, copy_rate, moved, [&] {
    return hip::append<Element, Rows>(storage.view(), 0, span, rows_of(keys.data(), in), rows_of(values.data(), in),
                                      b.stream());
  });
  const auto gathered = " " + std::string(Element::name) + " to " + std::string(Rows::name) + layout_suffix<Layout>;
  b.report("gather" + gathered, copy_rate, moved, [&] {
    return hip::gather<Element, Rows>(storage.view(), 0, span, rows_of(keys.data(), out), rows_of(values.data(), out),
                                      b.stream());
  });
  if constexpr (!strided_layout<Layout>) {
    return;
  }
  const auto num_positions = std::int64_t{4096};
  const auto table = device_buffer(num_positions * config.head_dim * static_cast<std::int64_t>(sizeof(float)));
  const auto positions = device_buffer(num_tokens * static_cast<std::int64_t>(sizeof(std::int64_t)));
  fill(table, b.stream());
  auto position_of = std::vector<std::int64_t>(slots.size());
  for (auto i = std::size_t{0}; i < position_of.size(); ++i) {
    position_of[i] = static_cast<std::int64_t>(i) % num_positions;
  }
  hip::require(
      runtime::copy_async(positions.data(), position_of.data(), positions.size(), runtime::host_to_device, b.stream()),
      "the copy of memory");
  b.report("rope append" + suffix, copy_rate, moved + static_cast<std::int64_t>(positions.size()), [&] {
    return hip::rope_append<Element, Rows, kernels::rope_pairing::halves>(
        storage.view(), 0, span, rows_of(keys.data(), in), rows_of(values.data(), in),
        {reinterpret_cast<const std::int64_t*>(positions.data()), slots.size()},
        {reinterpret_cast<const float*>(table.data()), num_positions, config.head_dim}, {}, b.stream());
  });
}

/// Pairs that copy the lower half of the blocks to the upper half, in random order.
[[nodiscard]] std::vector<block_pair> scattered_pairs(const cache_config& config) {
  const auto half = config.num_blocks / 2;
  auto pairs = std::vector<block_pair>();
  for (auto i = 0; i < half; ++i) {
    pairs.push_back({i, half + i});
  }
  auto random = std::mt19937(2);
  for (auto i = half - 1; i > 0; --i) {
    std::swap(pairs[static_cast<std::size_t>(i)].destination,
              pairs[random() % static_cast<std::size_t>(i + 1)].destination);
  }
  return pairs;
}

void report_blocks(bench& b, double copy_rate) {
  constexpr auto num_layers = 32;
  auto config = make_config<float16>(b, num_layers);
  config.num_blocks *= 2;  // half is copied to the other half
  const auto storage = device_storage<float16>::create(config).value();
  fill(storage.view().base, storage.bytes(), b.stream());
  const auto pairs = scattered_pairs(config);
  const auto block_bytes = storage.view().layer_bytes() * num_layers;
  const auto moved = 2 * static_cast<std::int64_t>(pairs.size()) * block_bytes;
  b.report("copy blocks", copy_rate, moved, [&] { return hip::copy_blocks(storage.view(), pairs, b.stream()); });
  b.report("move blocks, independent", copy_rate, moved,
           [&] { return hip::move_blocks(storage.view(), pairs, b.stream()); });
  auto chain = std::vector<block_pair>();
  for (auto i = 0; i + 1 < config.num_blocks; ++i) {
    chain.push_back({i, i + 1});
  }
  b.report("move blocks, one chain", copy_rate, 2 * static_cast<std::int64_t>(chain.size()) * block_bytes,
           [&] { return hip::move_blocks(storage.view(), chain, b.stream()); });
}

/// To another element, or to another engine's layout.
template <class To, class From, class Layout = layout>
void report_conversion(bench& b, const std::string& name, double copy_rate) {
  const auto config = make_config<From>(b, 32);
  const auto from = device_storage<From>::create(config).value();
  const auto to = device_storage<To, Layout>::create(config).value();
  fill(from.view().base, from.bytes(), b.stream());
  auto pairs = std::vector<block_pair>();
  for (auto i = 0; i < config.num_blocks; ++i) {
    pairs.push_back({i, config.num_blocks - 1 - i});
  }
  b.report("convert " + std::string(From::name) + name, copy_rate, from.bytes() + to.bytes(),
           [&] { return hip::convert_blocks<To, From>(from.view(), to.view(), pairs, b.stream()); });
}

template <class To, class From>
void report_conversion(bench& b, double copy_rate) {
  report_conversion<To, From>(b, " to " + std::string(To::name), copy_rate);
}

template <class Element, class Layout>
void report_layout_conversion(bench& b, double copy_rate) {
  report_conversion<Element, Element, Layout>(b, layout_suffix<Layout>, copy_rate);
}

/// Blocks of 32 layers, or of 16 KiB, the least that engines have with tensor parallelism.
void report_swaps(bench& b, bool small_blocks) {
  auto config = make_config<float16>(b, small_blocks ? 1 : 32);
  if (small_blocks) {
    config.num_kv_heads = 2;
    config.num_blocks *= 4;
  }
  const auto device = device_storage<float16>::create(config).value();
  const auto host = pinned_buffer(device.bytes());
  const auto bytes = static_cast<std::size_t>(device.bytes());
  std::memset(host.data(), 0, bytes);
  fill(device.view().base, device.bytes(), b.stream());
  auto host_view = device.view();
  host_view.base = host.data();
  auto run = std::vector<block_pair>();
  auto scattered = std::vector<block_pair>();
  for (auto i = 0; i < config.num_blocks; ++i) {
    run.push_back({i, i});
    scattered.push_back({i, config.num_blocks - 1 - i});
  }
  for (const auto out : {true, false}) {
    const auto kind = out ? runtime::device_to_host : runtime::host_to_device;
    const auto& from = out ? device.view() : host_view;
    const auto& to = out ? host_view : device.view();
    const auto rate = b.measure(device.bytes(), [&] {
      return hip::to_result(runtime::copy_async(to.base, from.base, bytes, kind, b.stream()), "the copy of memory");
    });
    const auto name = std::string(out ? "swap out" : "swap in") + (small_blocks ? ", 16 KiB" : "");
    b.report(name + ", one run (of pinned copy)", rate, device.bytes(),
             [&] { return hip::swap_blocks(from, to, run, kind, b.stream()); });
    b.report(name + ", scattered (of pinned copy)", rate, device.bytes(),
             [&] { return hip::swap_blocks(from, to, scattered, kind, b.stream()); });
  }
}

/// Copies runs of neighbouring blocks with the device's copy engine, and all blocks with one launch: `swap_blocks`
/// switches between them where both take the same time.
void report_runs(bench& b) {
  const auto config = make_config<float16>(b, 32);
  const auto device = device_storage<float16>::create(config).value();
  const auto host = pinned_buffer(device.bytes());
  fill(device.view().base, device.bytes(), b.stream());
  auto host_view = device.view();
  host_view.base = host.data();
  const auto launched = b.measure(device.bytes(), [&] {
    auto pairs = std::vector<block_pair>();
    for (auto i = 0; i < config.num_blocks; ++i) {
      pairs.push_back({i, config.num_blocks - 1 - i});
    }
    return hip::to_result(kernels::copy_blocks(device.view(), host_view, pairs, b.stream()), "copy_blocks");
  });
  for (auto length = 1; length <= 16 && length <= config.num_blocks; length *= 2) {
    const auto num_runs = config.num_blocks / length;
    const auto bytes = std::int64_t{num_runs} * length * config.num_layers * device.view().layer_bytes();
    b.report("copied runs of " + std::to_string(length) + " blocks (of launch)", launched, bytes, [&] {
      auto status = runtime::success;
      for (auto run = 0; run < num_runs && status == runtime::success; ++run) {
        const auto first = block_pair{run * length, (num_runs - 1 - run) * length};
        status = kernels::copy_run(device.view(), host_view, {first, length}, runtime::device_to_host, b.stream());
      }
      return hip::to_result(status, "copy_run");
    });
  }
}

void report_all(std::int64_t bytes, device_bench::records& records) {
  auto b = bench(bytes, records);
  const auto from = device_buffer(bytes);
  const auto to = device_buffer(bytes);
  fill(from, b.stream());
  const auto copy_device = [&] {
    return hip::to_result(
        runtime::copy_async(to.data(), from.data(), from.size(), runtime::device_to_device, b.stream()),
        "the copy of memory");
  };
  const auto copy_rate = b.measure(2 * bytes, copy_device);
  b.report("device copy", copy_rate, 2 * bytes, copy_device);
  report_rows<float32, float32>(b, copy_rate);
  report_rows<float16, float16>(b, copy_rate);
  report_rows<bfloat16, bfloat16>(b, copy_rate);
  report_rows<int8, float16>(b, copy_rate);
  report_rows<int8, float32>(b, copy_rate);
  report_rows<float8_e4m3, bfloat16>(b, copy_rate);
  report_rows<float16, float32>(b, copy_rate);
  report_rows<float16, float16, transposed_layer_major>(b, copy_rate);
  report_rows<float16, float16, shuffled_layer_major>(b, copy_rate);
  report_rows<int8, float16, transposed_layer_major>(b, copy_rate);
  report_rows<int8, float16, shuffled_layer_major>(b, copy_rate);
  report_layout_conversion<float16, transposed_layer_major>(b, copy_rate);
  report_layout_conversion<int8, shuffled_layer_major>(b, copy_rate);
  report_blocks(b, copy_rate);
  report_conversion<int8, float16>(b, copy_rate);
  report_conversion<float16, int8>(b, copy_rate);
  report_conversion<float8_e4m3, bfloat16>(b, copy_rate);
  report_conversion<bfloat16, float8_e4m3>(b, copy_rate);
  report_swaps(b, false);
  report_swaps(b, true);
  report_runs(b);
  if (!on_device) {
    std::printf("1..%d\n", b.num_reports());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto found = hip::check_device(0); !found) {
    std::fprintf(stderr, "%s\n", found.error().message().c_str());
    return 77;
  }
  try {
    auto records = device_bench::records{};
    auto properties = runtime::device_properties{};
    hip::require(runtime::get_device_properties(&properties, 0), "the properties of a device");
    if (!on_device) {
      std::printf("# built for the host: no bandwidth, only whether every operation runs\n");
      report_all(std::int64_t{1} << 18, records);
    } else {
      std::printf("device: %s\n\n", properties.name.c_str());
      std::printf("| operation                          |    MiB |     GB/s |  ratio |\n|---|---|---|---|\n");
      for (const auto mebibytes : {64, 256, 1024}) {
        report_all(std::int64_t{mebibytes} << 20, records);
      }
    }
    if (argc > 1) {
      device_bench::write_file(argv[1], records.list() + "\n");
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
