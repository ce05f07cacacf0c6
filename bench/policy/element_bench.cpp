#include "../support/best_of.hpp"
#include "../support/over_policies.hpp"

#include <pagedkv/policy/element/all.hpp>
#include <pagedkv/policy/element/parts/row.hpp>

#include <benchmark/benchmark.h>

#include <vector>

// Rows of one token and head, best of many repetitions. `ratio` is the time over that of converting number by number
// with `encode` and `decode`, in the same run.

namespace {

using namespace pagedkv;

constexpr auto rows_per_repetition = 2'000;
constexpr auto repetitions = 50;

template <class Convert>
[[nodiscard]] double seconds_per_row(Convert convert) {
  return bench::best_seconds(repetitions,
                             [&] {
                               for (auto i = 0; i < rows_per_repetition; ++i) {
                                 convert();
                                 benchmark::ClobberMemory();
                               }
                             }) /
         rows_per_repetition;
}

template <class Element>
struct rows {
  explicit rows(std::size_t size) : numbers(size), stored(size) {
    for (auto i = std::size_t{0}; i < size; ++i) {
      numbers[i] = static_cast<float>(i) * 0.37f - 5;
    }
    scale = encode_row<Element>(numbers, stored);
  }

  std::vector<float> numbers;
  std::vector<typename Element::storage> stored;
  float scale;
};

void report(benchmark::State& state, double ours, double by_number) {
  for ([[maybe_unused]] auto once : state) {
    state.SetIterationTime(ours);
  }
  state.counters["ratio"] = ours / by_number;
}

template <class Element>
void encode(benchmark::State& state) {
  auto of = rows<Element>(static_cast<std::size_t>(state.range(0)));
  const auto by_number = seconds_per_row([&] {
    for (auto i = std::size_t{0}; i < of.numbers.size(); ++i) {
      of.stored[i] = Element::encode(of.numbers[i], of.scale);
    }
  });
  report(state, seconds_per_row([&] { benchmark::DoNotOptimize(encode_row<Element>(of.numbers, of.stored)); }),
         by_number);
}

template <class Element>
void decode(benchmark::State& state) {
  auto of = rows<Element>(static_cast<std::size_t>(state.range(0)));
  const auto by_number = seconds_per_row([&] {
    for (auto i = std::size_t{0}; i < of.stored.size(); ++i) {
      of.numbers[i] = Element::decode(of.stored[i], of.scale);
    }
  });
  report(state, seconds_per_row([&] { decode_row<Element>(of.stored, of.scale, of.numbers); }), by_number);
}

constexpr auto lengths = [](auto, benchmark::internal::Benchmark* each) {
  each->Arg(32)->Arg(128)->Iterations(1)->UseManualTime()->Unit(benchmark::kNanosecond);
};

[[maybe_unused]] const bool is_registered =
    bench::register_over(
        all_elements{}, "encode",
        []<class Element>(std::type_identity<Element>, benchmark::State& state) { encode<Element>(state); }, lengths) &&
    bench::register_over(
        all_elements{}, "decode",
        []<class Element>(std::type_identity<Element>, benchmark::State& state) { decode<Element>(state); }, lengths);

}  // namespace
