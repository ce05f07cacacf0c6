#pragma once

// Shapes of decode attention, read from a file. A line is one shape; a line that starts with # is a comment.
//
//   NAME | QUERY_HEADS/KV_HEADS | HEAD_DIM | BLOCK_SIZE | ELEMENT... | LENGTHS...
//
// ELEMENT: bfloat16, int8 or float8_e4m3. LENGTHS: `n`, `n*count`, or `first..last*count`, which are evenly spaced.

#include <charconv>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace attention_bench {

struct head_shape {
  std::int32_t query_heads;
  std::int32_t kv_heads;
};

struct decode_shape {
  std::string name;
  head_shape heads;
  std::int32_t head_dim;
  std::int32_t block_size;
  std::vector<std::string> elements;
  std::vector<std::int32_t> lengths;
};

/// Reads one line's parts; throws `std::runtime_error`, which says the line.
class shape_line {
 public:
  shape_line(std::string_view line, int number) : rest_(line), number_(number) {}

  [[nodiscard]] decode_shape read() {
    auto shape = decode_shape{};
    shape.name = std::string(next_field());
    auto heads = next_field();
    shape.heads.query_heads = take_number(heads);
    take(heads, "/");
    shape.heads.kv_heads = take_number(heads);
    auto head_dim = next_field();
    shape.head_dim = take_number(head_dim);
    auto block_size = next_field();
    shape.block_size = take_number(block_size);
    for (const auto& word : words_of(next_field())) {
      require(word == "bfloat16" || word == "int8" || word == "float8_e4m3", "an element");
      shape.elements.push_back(word);
    }
    for (const auto& word : words_of(next_field())) {
      add_lengths(word, shape.lengths);
    }
    require(!shape.elements.empty() && !shape.lengths.empty(), "elements and lengths");
    require(shape.heads.query_heads % shape.heads.kv_heads == 0, "a multiple of the KV heads");
    return shape;
  }

 private:
  void require(bool holds, const char* expected) const {
    if (!holds) {
      throw std::runtime_error("line " + std::to_string(number_) + " of the shapes: expected " + expected);
    }
  }

  [[nodiscard]] std::string_view next_field() {
    const auto end = rest_.find('|');
    auto field = rest_.substr(0, end);
    rest_ = end == std::string_view::npos ? std::string_view{} : rest_.substr(end + 1);
    while (!field.empty() && field.front() == ' ') {
      field.remove_prefix(1);
    }
    while (!field.empty() && field.back() == ' ') {
      field.remove_suffix(1);
    }
    return field;
  }

  [[nodiscard]] static std::vector<std::string> words_of(std::string_view field) {
    auto stream = std::istringstream(std::string(field));
    auto words = std::vector<std::string>{};
    for (auto word = std::string{}; stream >> word;) {
      words.push_back(word);
    }
    return words;
  }

  [[nodiscard]] std::int32_t take_number(std::string_view& text) const {
    auto number = std::int32_t{0};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    require(error == std::errc{} && number > 0, "a number above zero");
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return number;
  }

  void take(std::string_view& text, std::string_view mark) const {
    require(text.starts_with(mark), std::string(mark).c_str());
    text.remove_prefix(mark.size());
  }

  void add_lengths(std::string_view word, std::vector<std::int32_t>& lengths) const {
    const auto first = std::int64_t{take_number(word)};
    auto last = first;
    if (word.starts_with("..")) {
      take(word, "..");
      last = take_number(word);
    }
    auto count = std::int64_t{1};
    if (!word.empty()) {
      take(word, "*");
      count = take_number(word);
    }
    require(word.empty(), "the end of a length");
    for (auto i = std::int64_t{0}; i < count; ++i) {
      lengths.push_back(static_cast<std::int32_t>(count == 1 ? first : first + (last - first) * i / (count - 1)));
    }
  }

  std::string_view rest_;
  int number_;
};

[[nodiscard]] inline std::vector<decode_shape> read_shapes(const std::string& path) {
  auto file = std::ifstream(path);
  if (!file) {
    throw std::runtime_error(path + ": cannot be read");
  }
  auto shapes = std::vector<decode_shape>{};
  auto number = 0;
  for (auto line = std::string{}; std::getline(file, line);) {
    ++number;
    if (!line.empty() && line.front() != '#') {
      shapes.push_back(shape_line(line, number).read());
    }
  }
  return shapes;
}

}  // namespace attention_bench
