#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llama {

/// A file that is missing, damaged, or of a kind that the program does not know. The text names the file.
struct bad_model : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reads a file of JSON. Throws `bad_model`.
[[nodiscard]] nlohmann::json read_json(const std::filesystem::path& path);

/// The bytes of a file, mapped for reading.
class mapped_file {
 public:
  explicit mapped_file(const std::filesystem::path& path);
  mapped_file(mapped_file&& other) noexcept;
  mapped_file& operator=(mapped_file&&) = delete;
  ~mapped_file();

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

/// Float32 numbers of a tensor: those of the file where it has them in this form, otherwise converted copies.
class tensor {
 public:
  tensor() = default;
  explicit tensor(std::span<const float> in_file) : view_(in_file) {}
  explicit tensor(std::vector<float> own) : own_(std::move(own)), view_(own_) {}
  tensor(tensor&&) noexcept = default;  // moving a vector keeps its address
  tensor& operator=(tensor&&) noexcept = default;

  [[nodiscard]] bool empty() const noexcept { return view_.empty(); }
  [[nodiscard]] std::span<const float> numbers() const noexcept { return view_; }
  [[nodiscard]] const float* data() const noexcept { return view_.data(); }

 private:
  std::vector<float> own_;
  std::span<const float> view_;
};

enum class number_type : std::uint8_t { float32, float16, bfloat16 };

/// The tensors of a directory: `model.safetensors`, or the files that `model.safetensors.index.json` names.
/// The format: https://github.com/huggingface/safetensors#format.
class tensor_files {
 public:
  /// Throws `bad_model` for a missing or truncated file, a header that is no JSON, and bytes that do not match a shape.
  explicit tensor_files(const std::filesystem::path& directory);

  [[nodiscard]] bool contains(const std::string& name) const { return entries_.contains(name); }
  /// Takes the rows of a matrix, if it is there, for matrices one below the other: their names, and how many rows each
  /// has. Throws `bad_model` if it has another shape.
  void split(const std::string& name, std::int64_t num_columns,
             const std::vector<std::pair<std::string, std::int64_t>>& parts);
  /// Throws `bad_model` if the tensor is missing or has another shape.
  [[nodiscard]] tensor take(const std::string& name, const std::vector<std::int64_t>& shape) const;
  /// A tensor's numbers as they lie in its file, or nothing where they are of another type. Throws as `take` does.
  [[nodiscard]] std::span<const std::byte> bytes(const std::string& name, const std::vector<std::int64_t>& shape,
                                                 number_type type) const;

 private:
  struct entry {
    number_type type;
    std::vector<std::int64_t> shape;
    std::span<const std::byte> bytes;
  };

  [[nodiscard]] const entry& find(const std::string& name, const std::vector<std::int64_t>& shape) const;
  void add_file(const std::filesystem::path& path);
  [[nodiscard]] static entry read_entry(const std::string& name, const nlohmann::json& from,
                                        std::span<const std::byte> data);

  std::vector<mapped_file> files_;
  std::map<std::string, entry> entries_;
};

}  // namespace llama
