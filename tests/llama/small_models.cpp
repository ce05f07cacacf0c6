#include "small_models.hpp"

#include "../../examples/llama/files.hpp"

#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>

#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace llama::test {

namespace {

const nlohmann::json& reference_file() {
  static const auto all = read_json(std::filesystem::path(LLAMA_SOURCE_ROOT) / "tests" / "llama" / "reference.json");
  return all;
}

std::vector<reference> read_references() {
  auto made = std::vector<reference>{};
  for (const auto& each : reference_file().at("models")) {
    auto& added = made.emplace_back();
    added.name = each.at("name");
    added.config = each.at("config");
    added.shapes = each.at("shapes");
    for (const auto& run : each.at("cases")) {
      added.cases.push_back({run.at("prompt"), run.at("tokens"), run.at("logits")});
    }
  }
  return made;
}

/// Numbers in [-1, 1): SplitMix64, seeded with the FNV-1a hash of the tensor's name, as in make_reference.py.
std::vector<float> draw(const std::string& name, std::size_t count) {
  auto seed = std::uint64_t{0xcbf29ce484222325};
  for (const auto letter : name) {
    seed = (seed ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  }
  auto numbers = std::vector<float>(count);
  for (auto& number : numbers) {
    auto z = seed += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    number = static_cast<float>(z >> 40) / 8388608.0f - 1;
  }
  return numbers;
}

std::vector<float> weights(const std::string& name, const std::vector<std::int64_t>& shape) {
  auto count = std::size_t{1};
  for (const auto size : shape) {
    count *= static_cast<std::size_t>(size);
  }
  auto numbers = draw(name, count);
  const auto gain = name.find("embed") == std::string::npos ? 3.0 : 0.5;
  const auto scale = static_cast<float>(gain / std::sqrt(static_cast<double>(shape.back())));
  for (auto& number : numbers) {
    number = shape.size() == 1 ? 1 + number * 0.25f : number * scale;
  }
  return numbers;
}

template <class Element>
std::string encoded(const std::vector<float>& numbers) {
  auto bytes = std::string(numbers.size() * sizeof(typename Element::storage), '\0');
  for (auto i = std::size_t{0}; i < numbers.size(); ++i) {
    const auto stored = Element::encode(numbers[i], 1);
    std::memcpy(bytes.data() + i * sizeof stored, &stored, sizeof stored);
  }
  return bytes;
}

std::string encoded(const std::vector<float>& numbers, const std::string& type) {
  if (type == "F16") {
    return encoded<pagedkv::float16>(numbers);
  }
  if (type == "BF16") {
    return encoded<pagedkv::bfloat16>(numbers);
  }
  auto bytes = std::string(numbers.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

}  // namespace

const std::vector<reference>& references() {
  static const auto all = read_references();
  return all;
}

const reference& reference_of(const std::string& name) {
  return *std::ranges::find(references(), name, &reference::name);
}

std::filesystem::path trained_model() {
  return std::filesystem::path(LLAMA_SOURCE_ROOT) / "examples" / "llama" / "model";
}
const nlohmann::json& trained_reference() { return reference_file().at("trained"); }

test_folder::test_folder(const std::map<std::string, std::string>& files) {
  static auto count = std::atomic<int>{0};
  path_ = std::filesystem::temp_directory_path() /
          ("pagedkv_llama_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
  std::filesystem::create_directories(path_);
  for (const auto& [name, contents] : files) {
    std::ofstream(path_ / name) << contents;
  }
}

test_folder::~test_folder() {
  auto ignored = std::error_code{};
  std::filesystem::remove_all(path_, ignored);
}

model_folder::model_folder(const reference& of, const std::string& number_type) {
  std::ofstream(path() / "config.json") << of.config;
  auto header = nlohmann::json::object();
  auto data = std::string{};
  for (const auto& [name, shape] : of.shapes.items()) {
    const auto bytes = encoded(weights(name, shape), number_type);
    header[name] = {
        {"dtype", number_type}, {"shape", shape}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  }
  auto text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const auto size = static_cast<std::uint64_t>(text.size());
  auto file = std::ofstream(path() / "model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), sizeof size) << text << data;
  if (!file) {
    throw std::runtime_error("cannot write " + path().string());
  }
}

test_folder changed_tokenizer(const std::function<void(nlohmann::json&)>& change) {
  auto whole = read_json(trained_model() / "tokenizer.json");
  change(whole);
  return test_folder({{"tokenizer.json", whole.dump()}});
}

}  // namespace llama::test
