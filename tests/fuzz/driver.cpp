// libFuzzer's entry to one target, which PAGEDKV_FUZZ_TARGET names. With PAGEDKV_FUZZ_SEEDS, writes the target's seeds
// to that folder first.

#include "target.hpp"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace {

const pagedkv::fuzz::target* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const auto* const name = std::getenv("PAGEDKV_FUZZ_TARGET");
  for (const auto* const each : pagedkv::fuzz::all_targets()) {
    if (name != nullptr && std::string{name} == each->name) {
      chosen = each;
    }
  }
  if (chosen == nullptr) {
    std::fprintf(stderr, "PAGEDKV_FUZZ_TARGET names no target; there are");
    for (const auto* const each : pagedkv::fuzz::all_targets()) {
      std::fprintf(stderr, " %s", each->name);
    }
    std::fprintf(stderr, "\n");
    std::exit(2);
  }
  if (const auto* const folder = std::getenv("PAGEDKV_FUZZ_SEEDS")) {
    auto number = 0;
    for (const auto& seed : chosen->seeds()) {
      auto file = std::ofstream(std::string{folder} + "/seed_" + std::to_string(number++), std::ios::binary);
      file.write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
    }
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  chosen->run({bytes, size});
  return 0;
}
