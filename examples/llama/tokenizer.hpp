#pragma once

#include <pagedkv/core/ids.hpp>

#include <nlohmann/json_fwd.hpp>

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace llama {

/// Turns text into tokens and back, as a `tokenizer.json` says: byte-pair encoding over bytes (Llama 3, Qwen) or over
/// characters with bytes for those that are not in the vocabulary (Gemma). Any number of threads may use one at once.
class tokenizer {
 public:
  /// Reads `tokenizer.json`. Throws `bad_model` for a file that is missing or damaged, and for parts that are not
  /// known.
  explicit tokenizer(const std::filesystem::path& directory);
  ~tokenizer();
  tokenizer(tokenizer&&) noexcept;

  /// The names of special tokens in the text become these tokens.
  [[nodiscard]] std::vector<pagedkv::token> encode(std::string_view text) const;
  /// The same without special tokens: their names are text.
  [[nodiscard]] std::vector<pagedkv::token> encode_plain(std::string_view text) const;
  /// The bytes of a token; none of a special one. Characters may be cut between tokens.
  [[nodiscard]] std::string bytes_of(pagedkv::token which) const;
  [[nodiscard]] std::string decode(const std::vector<pagedkv::token>& tokens) const;
  [[nodiscard]] std::optional<pagedkv::token> find_special(std::string_view name) const;

 private:
  struct pattern;

  void read_pieces(const nlohmann::json& model);
  void read_special(const nlohmann::json& from);
  void read_split(const nlohmann::json& from);
  void encode_text(std::string_view text, std::vector<pagedkv::token>& out) const;
  void encode_word(std::string_view word, std::vector<pagedkv::token>& out) const;
  void encode_unknown(std::string_view character, std::vector<pagedkv::token>& out) const;
  [[nodiscard]] std::string spelled(std::string_view bytes) const;
  [[nodiscard]] std::string spoken(std::string_view piece) const;

  bool over_bytes_ = false;   // pieces spell bytes as printable characters
  bool whole_words_ = false;  // a word that is a piece is not merged from smaller ones
  std::string space_;         // in place of a space, where pieces spell characters
  std::unordered_map<std::string, pagedkv::token> pieces_;
  std::vector<std::string> texts_;
  std::unordered_map<std::string, std::uint32_t> ranks_;  // of merges: both pieces, with a byte between
  std::map<std::string, pagedkv::token, std::less<>> special_;
  std::vector<std::unique_ptr<pattern>> patterns_;  // words are their matches, and the text between
  std::array<std::string, 256> spelling_;
  std::unordered_map<std::string, char> bytes_;
};

}  // namespace llama
