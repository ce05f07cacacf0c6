#include "files.hpp"

#include "json.hpp"

#include <pagedkv/policy/element/bfloat16.hpp>
#include <pagedkv/policy/element/float16.hpp>
#include <pagedkv/policy/element/float32.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

namespace llama {

namespace {

template <class Element>
std::vector<float> converted(std::span<const std::byte> bytes) {
  auto numbers = std::vector<float>(bytes.size() / sizeof(typename Element::storage));
  for (auto i = std::size_t{0}; i < numbers.size(); ++i) {
    auto stored = typename Element::storage{};
    std::memcpy(&stored, bytes.data() + i * sizeof stored, sizeof stored);
    numbers[i] = Element::decode(stored, 1);
  }
  return numbers;
}

/// The library's own conversions cut off signs and fractions.
std::uint64_t size_of(const nlohmann::json& value, const std::string& name) {
  if (!value.is_number_unsigned()) {
    throw bad_model("tensor " + name + " has " + value.dump() + " in shape or data_offsets, which is no size");
  }
  return value.get<std::uint64_t>();
}

std::string text_of(const std::vector<std::int64_t>& shape) {
  auto text = std::string{"["};
  for (const auto size : shape) {
    text += (text.size() == 1 ? "" : ", ") + std::to_string(size);
  }
  return text + "]";
}

/// `text`: of the file, or of its header.
nlohmann::json parse(const std::filesystem::path& path, std::string_view text) {
  try {
    return parse_json(text);
  } catch (const nlohmann::json::exception&) {
    throw bad_model(path.string() + ": is not JSON");
  } catch (const deep_json& error) {
    throw bad_model(path.string() + ": " + error.what());
  }
}

}  // namespace

nlohmann::json read_json(const std::filesystem::path& path) {
  const auto file = mapped_file(path);
  return parse(path, {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()});
}

mapped_file::mapped_file(const std::filesystem::path& path) {
  const auto descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe may have no writer
  struct ::stat status = {};
  const bool is_file = descriptor >= 0 && ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  const auto size = is_file ? static_cast<std::size_t>(status.st_size) : 0;
  auto* const address = size == 0 ? nullptr : ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (descriptor >= 0) {
    ::close(descriptor);
  }
  if (!is_file) {
    throw bad_model(path.string() + ": cannot be read");
  }
  if (address == MAP_FAILED) {
    throw bad_model(path.string() + ": cannot be mapped");
  }
  bytes_ = {static_cast<const std::byte*>(address), size};
}

mapped_file::mapped_file(mapped_file&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

mapped_file::~mapped_file() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

tensor_files::tensor_files(const std::filesystem::path& directory) {
  const auto index = directory / "model.safetensors.index.json";
  if (!std::filesystem::exists(index)) {
    add_file(directory / "model.safetensors");
    return;
  }
  const auto parsed = read_json(index);
  if (!parsed.is_object() || !parsed.contains("weight_map") || !parsed["weight_map"].is_object()) {
    throw bad_model(index.string() + ": has no weight_map");
  }
  auto names = std::set<std::string>{};
  for (const auto& name : parsed["weight_map"]) {
    if (!name.is_string() || std::filesystem::path(name.get<std::string>()).has_parent_path()) {
      throw bad_model(index.string() + ": weight_map names something else than a file beside it");
    }
    names.insert(name.get<std::string>());
  }
  for (const auto& name : names) {
    add_file(directory / name);
  }
}

void tensor_files::add_file(const std::filesystem::path& path) {
  const auto all = files_.emplace_back(path).bytes();
  auto header_size = std::uint64_t{0};
  if (all.size() < sizeof header_size) {
    throw bad_model(path.string() + ": is too short for a safetensors file");
  }
  static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");
  std::memcpy(&header_size, all.data(), sizeof header_size);
  if (header_size > all.size() - sizeof header_size) {
    throw bad_model(path.string() + ": ends inside its header");
  }
  const auto* const text = reinterpret_cast<const char*>(all.data() + sizeof header_size);
  const auto header = parse(path, {text, header_size});
  if (!header.is_object()) {
    throw bad_model(path.string() + ": its header is not a JSON object");
  }
  const auto data = all.subspan(sizeof header_size + static_cast<std::size_t>(header_size));
  for (const auto& [name, described] : header.items()) {
    if (name != "__metadata__") {
      try {
        entries_.insert_or_assign(name, read_entry(name, described, data));
      } catch (const nlohmann::json::exception&) {
        throw bad_model(path.string() + ": tensor " + name + " is not described by dtype, shape and data_offsets");
      } catch (const bad_model& error) {
        throw bad_model(path.string() + ": " + error.what());
      }
    }
  }
}

tensor_files::entry tensor_files::read_entry(const std::string& name, const nlohmann::json& from,
                                             std::span<const std::byte> data) {
  static const auto types = std::map<std::string, number_type>{
      {"F32", number_type::float32}, {"F16", number_type::float16}, {"BF16", number_type::bfloat16}};
  const auto type = types.find(from.at("dtype").get<std::string>());
  if (type == types.end()) {
    throw bad_model("tensor " + name + " has numbers of type " + from.at("dtype").get<std::string>() +
                    "; F32, F16 and BF16 are read");
  }
  auto shape = std::vector<std::int64_t>{};
  auto size = std::uint64_t{type->second == number_type::float32 ? sizeof(float) : sizeof(std::uint16_t)};
  for (const auto& each : from.at("shape")) {
    const auto extent = size_of(each, name);
    if (__builtin_mul_overflow(size, extent, &size) || extent > std::numeric_limits<std::int64_t>::max()) {
      throw bad_model("tensor " + name + " has an impossible shape, with an extent of " + each.dump());
    }
    shape.push_back(static_cast<std::int64_t>(extent));
  }
  const auto begin = size_of(from.at("data_offsets").at(0), name);
  const auto end = size_of(from.at("data_offsets").at(1), name);
  if (begin > end || end > data.size() || end - begin != size) {
    throw bad_model("the bytes of tensor " + name + " lie outside the file, or do not match its shape");
  }
  return {type->second, shape, data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size))};
}

void tensor_files::split(const std::string& name, std::int64_t num_columns,
                         const std::vector<std::pair<std::string, std::int64_t>>& parts) {
  if (!contains(name)) {
    return;
  }
  auto num_rows = std::int64_t{0};
  for (const auto& [part, rows] : parts) {
    num_rows += rows;
  }
  const auto& whole = find(name, {num_rows, num_columns});
  const auto bytes_of_row = whole.bytes.size() / static_cast<std::size_t>(num_rows);
  auto rest = whole.bytes;
  for (const auto& [part, rows] : parts) {
    const auto size = static_cast<std::size_t>(rows) * bytes_of_row;
    entries_.insert_or_assign(part, entry{whole.type, {rows, num_columns}, rest.first(size)});
    rest = rest.subspan(size);
  }
}

const tensor_files::entry& tensor_files::find(const std::string& name, const std::vector<std::int64_t>& shape) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw bad_model("tensor " + name + " is missing");
  }
  if (found->second.shape != shape) {
    throw bad_model("tensor " + name + " has the shape " + text_of(found->second.shape) + "; config.json asks for " +
                    text_of(shape));
  }
  return found->second;
}

std::span<const std::byte> tensor_files::bytes(const std::string& name, const std::vector<std::int64_t>& shape,
                                               number_type type) const {
  const auto& found = find(name, shape);
  return found.type == type ? found.bytes : std::span<const std::byte>{};
}

tensor tensor_files::take(const std::string& name, const std::vector<std::int64_t>& shape) const {
  const auto& [type, stored_shape, bytes] = find(name, shape);
  switch (type) {
    case number_type::float16: return tensor(converted<pagedkv::float16>(bytes));
    case number_type::bfloat16: return tensor(converted<pagedkv::bfloat16>(bytes));
    case number_type::float32: break;
  }
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % alignof(float) == 0) {
    return tensor(std::span(reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)));
  }
  return tensor(converted<pagedkv::float32>(bytes));
}

}  // namespace llama
