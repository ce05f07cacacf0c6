// Decoding on a device: the engine of examples/llama over a random model of Llama 3's 8 B in bfloat16, and the share of
// the time that the bytes of weights and K/V take at the device's own read rate, measured in the same run.
//
//     device_step [figures.json [sequences...]]
//
// Exit status 77: the device has too little memory, some 30 GB.

#include "random_weights.hpp"

#include "../../examples/llama/device/engine.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace llama::bench {

using pagedkv::bfloat16;
namespace hip = pagedkv::hip;
namespace runtime = pagedkv::runtime;
namespace kernels = pagedkv::kernels;

constexpr auto context = std::size_t{1024};  // tokens of a prompt
constexpr auto num_steps = std::size_t{64};  // measured
constexpr auto most_sequences = std::size_t{64};

[[nodiscard]] model_config llama_3_8b() {
  auto config = model_config{};
  config.vocabulary = 128'256;
  config.hidden = 4096;
  config.intermediate = 14'336;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.context = 8192;
  config.norm_epsilon = 1e-5F;
  config.attention_scale = 1 / std::sqrt(128.0F);
  config.layers.assign(32, layer_kind::full);
  for (auto i = 0; i < 64; ++i) {
    config.full_rotation.frequencies.push_back(static_cast<float>(std::pow(500'000.0, -2 * i / 128.0)));
  }
  return config;
}

[[nodiscard]] engine_sizes sizes_for(std::size_t num_sequences) {
  auto sizes = engine_sizes{};
  sizes.num_blocks = static_cast<std::int32_t>(num_sequences * ((context + 2 * num_steps) / 16 + 2) + 256);
  sizes.max_rows = num_sequences;
  sizes.token_budget = 2048;
  sizes.overlaps = true;
  return sizes;
}

/// Sums `Depth` vectors for each lane and round; what it writes keeps the compiler from dropping the reads.
template <int Depth>
PAGEDKV_KERNEL void read_all(const std::uint32_t* words, std::int64_t num_rounds, std::uint32_t* sums) {
  const auto lanes = std::int64_t{kernels::grid_extent().x} * device::workgroup_size;
  const auto lane = std::int64_t{device::index_of_workgroup()} * device::workgroup_size + device::lane_of_workgroup();
  auto sum = std::uint32_t{0};
  for (auto i = lane; i < num_rounds * Depth * lanes; i += Depth * lanes) {
    kernels::vector<std::uint32_t, 4> read[Depth];
    for (auto d = 0; d < Depth; ++d) {
      read[d] = kernels::load_vector<4>(words + 4 * (i + d * lanes));
    }
    for (auto d = 0; d < Depth; ++d) {
      sum += read[d].values[0] ^ read[d].values[1] ^ read[d].values[2] ^ read[d].values[3];
    }
  }
  if (sum == 0x12345678U) {
    kernels::store(sums, sum);
  }
}

[[nodiscard]] double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

[[nodiscard]] double median(std::vector<double> all) {
  const auto middle = all.begin() + std::ssize(all) / 2;
  std::ranges::nth_element(all, middle);
  return *middle;
}

/// The most bytes a second that a kernel reads, of grids of several sizes.
[[nodiscard]] double measure_reads() {
  constexpr auto bytes = std::size_t{8} << 30;
  constexpr auto depth = 8;
  const auto words = device::device_array<std::uint32_t>(bytes / sizeof(std::uint32_t));
  const auto sums = device::device_array<std::uint32_t>(1);
  const auto stream = hip::stream();
  hip::require(kernels::launch<device::fill_randomly<pagedkv::float32>>(
                   {{1024}, {device::workgroup_size}}, stream.get(), reinterpret_cast<float*>(words.data()),
                   static_cast<std::int64_t>(words.size()), std::uint64_t{1}, 1.0F),
               "the launch of random numbers");
  stream.synchronize().value();
  auto best = 0.0;
  for (const auto workgroups : {528U, 1056U, 2112U, 4224U}) {
    const auto bytes_of_round = std::size_t{workgroups} * device::workgroup_size * depth * 16;
    const auto num_rounds = bytes / bytes_of_round;
    auto times = std::vector<double>{};
    for (auto i = 0; i < 8; ++i) {
      const auto began = std::chrono::steady_clock::now();
      hip::require(kernels::launch<read_all<depth>>({{workgroups}, {device::workgroup_size}}, stream.get(),
                                                    words.data(), static_cast<std::int64_t>(num_rounds), sums.data()),
                   "the launch of reads");
      stream.synchronize().value();
      times.push_back(seconds_since(began));
    }
    best = std::max(best, static_cast<double>(num_rounds * bytes_of_round) / median(times));
  }
  return best;
}

struct figures {
  std::size_t num_sequences;
  double seconds;           // of a step
  double seconds_in_cache;  // of these
  double bytes;             // that a step reads
};

/// Decodes `num_sequences` sequences at once, with the prompts behind them.
[[nodiscard]] figures measure_steps(device::model<bfloat16>& with, std::size_t num_sequences) {
  const auto served = device::make_engine(with, sizes_for(num_sequences));
  auto samples = std::vector<const sample*>{};
  auto options = generation_options{};
  options.max_tokens = 2 * num_steps + 40;
  options.ignores_end = true;
  for (auto i = std::size_t{0}; i < num_sequences; ++i) {
    auto prompt = std::vector<pagedkv::token>(context);
    for (auto t = std::size_t{0}; t < context; ++t) {
      prompt[t] = static_cast<pagedkv::token>((t * 7919 + i * 104'729 + 13) % 128'256);
    }
    samples.push_back(served->submit(std::move(prompt), options).value());
  }
  const auto least = [&] {
    return (*std::ranges::min_element(samples, {}, [](const sample* of) { return of->answer().size(); }))
        ->answer()
        .size();
  };
  while (least() < 6) {  // the prompts, and the first steps of all, of which two are recorded
    served->step();
  }
  auto times = std::vector<double>{};
  auto lengths = std::size_t{0};
  const auto in_cache = served->statistics().in_cache;
  for (auto i = std::size_t{0}; i < num_steps; ++i) {
    for (const auto* each : samples) {
      lengths += each->tokens.size();
    }
    const auto began = std::chrono::steady_clock::now();
    served->step();
    times.push_back(seconds_since(began));
  }
  const auto cache_time = std::chrono::duration<double>(served->statistics().in_cache - in_cache).count();
  for (const auto* each : samples) {
    served->cancel(*each);
  }
  const auto& config = with.config();
  const auto bytes_of_token =
      2.0 * sizeof(std::uint16_t) * config.num_kv_heads * config.head_dim * static_cast<double>(config.layers.size());
  const auto kv = bytes_of_token * static_cast<double>(lengths) / static_cast<double>(num_steps);
  return {num_sequences, median(times), cache_time / static_cast<double>(num_steps),
          static_cast<double>(with.weights().bytes_of_step()) + kv};
}

/// Throws `std::invalid_argument`.
[[nodiscard]] std::size_t parse_count(const char* text) {
  auto count = std::size_t{0};
  const auto* const end = text + std::strlen(text);
  const auto parsed = std::from_chars(text, end, count);
  if (parsed.ec != std::errc{} || parsed.ptr != end || count == 0 || count > most_sequences) {
    throw std::invalid_argument(std::string(text) + " is no number of sequences from 1 to 64");
  }
  return count;
}

void run(const std::string& file, const std::vector<std::size_t>& counts) {
  const auto read_rate = measure_reads();
  auto config = llama_3_8b();
  auto weights = device::random_weights<bfloat16>(config).draw();
  auto with = device::model<bfloat16>(config, std::move(weights), limits_of(sizes_for(most_sequences)));
  std::printf("reads: %.0f GB/s; contexts of %zu tokens; medians of %zu steps\n\n", read_rate / 1e9, context,
              num_steps);
  std::printf("| sequences | step, ms | GB read | share of the read rate | in the cache, us | tokens a second |\n");
  std::printf("| --- | --- | --- | --- | --- | --- |\n");
  auto rows = nlohmann::json::array();
  for (const auto num_sequences : counts) {
    const auto found = measure_steps(with, num_sequences);
    std::printf("| %zu | %.3f | %.2f | %.3f | %.1f | %.0f |\n", num_sequences, found.seconds * 1e3, found.bytes / 1e9,
                found.bytes / read_rate / found.seconds, found.seconds_in_cache * 1e6,
                static_cast<double>(num_sequences) / found.seconds);
    std::fflush(stdout);
    rows.push_back({{"sequences", num_sequences},
                    {"seconds", found.seconds},
                    {"seconds_in_cache", found.seconds_in_cache},
                    {"bytes", found.bytes}});
  }
  if (!file.empty()) {
    std::ofstream(file) << nlohmann::json{{"read_rate", read_rate}, {"context", context}, {"rows", rows}};
  }
}

}  // namespace llama::bench

int main(int argc, char** argv) {
  try {
    auto counts = std::vector<std::size_t>{1, 8, 64};
    if (argc > 2) {
      counts.clear();
      std::transform(argv + 2, argv + argc, std::back_inserter(counts), llama::bench::parse_count);
    }
    llama::bench::run(argc > 1 ? argv[1] : "", counts);
    return 0;
  } catch (const pagedkv::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return error.reason().code == pagedkv::error_code::out_of_memory ? 77 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
