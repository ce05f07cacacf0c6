#include "tokenizer.hpp"

#include "files.hpp"

#include <nlohmann/json.hpp>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <queue>
#include <tuple>

namespace llama {

namespace {

/// A part of a word while its characters are joined. Joined to the part before, it has no size.
struct word_part {
  std::size_t begin = 0;
  std::size_t size = 0;
  std::size_t before = 0;
  std::size_t next = 0;
};

/// A byte that no piece has, because it is no UTF-8.
constexpr auto between_pieces = '\xff';

/// The words of GPT-2, which tokenizers mean where they name no pattern of their own.
constexpr auto words_of_gpt_2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string encoded(char32_t point) {
  auto text = std::string{};
  if (point < 0x80) {
    text = {static_cast<char>(point)};
  } else if (point < 0x800) {
    text = {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))};
  } else {
    text = {static_cast<char>(0xe0 | point >> 12), static_cast<char>(0x80 | (point >> 6 & 0x3f)),
            static_cast<char>(0x80 | (point & 0x3f))};
  }
  return text;
}

/// Bytes of the character that begins here; 1 where the text is no UTF-8.
std::size_t length_of_character(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  const auto length = first < 0xc0   ? std::size_t{1}
                      : first < 0xe0 ? std::size_t{2}
                      : first < 0xf0 ? std::size_t{3}
                                     : std::size_t{4};
  return std::min(length, text.size());
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  auto made = std::string{};
  auto begin = std::size_t{0};
  for (auto at = text.find(from); at != text.npos; at = text.find(from, begin)) {
    made.append(text, begin, at - begin).append(to);
    begin = at + from.size();
  }
  return made.append(text, begin);
}

/// The byte that a piece such as <0x0A> stands for.
std::optional<char> byte_of(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || !piece.ends_with('>')) {
    return {};
  }
  auto byte = std::uint8_t{0};
  const auto* const end = piece.data() + 5;
  const bool is_hexadecimal = std::from_chars(piece.data() + 3, end, byte, 16).ptr == end;
  return is_hexadecimal ? std::optional(static_cast<char>(byte)) : std::nullopt;
}

/// The library's own conversions cut off bits, and fractions.
pagedkv::token number_of(const nlohmann::json& value) {
  constexpr auto most = std::uint64_t{10'000'000};  // texts of all tokens up to the largest one are kept
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most) {
    throw bad_model("tokenizer.json: a token's number, " + value.dump() + ", is not a whole number from 0 to " +
                    std::to_string(most));
  }
  return value.get<pagedkv::token>();
}

std::string type_of(const nlohmann::json& part) { return part.is_object() ? part.value("type", "") : ""; }

}  // namespace

struct tokenizer::pattern {
  explicit pattern(const std::string& text) {
    auto error = 0;
    auto offset = PCRE2_SIZE{0};
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &offset, nullptr);
    if (code == nullptr) {
      throw bad_model("tokenizer.json: the pattern " + text + " does not compile");
    }
    // Compiled, a match reads no more of the text than it needs; otherwise each checks the rest of the text for UTF-8.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  }
  pattern(const pattern&) = delete;
  pattern& operator=(const pattern&) = delete;
  ~pattern() { pcre2_code_free(code); }

  /// The next match from a place on, which is empty at the end of the text where there is none.
  [[nodiscard]] std::string_view find(std::string_view text, std::size_t from) const {
    const auto match = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>(
        pcre2_match_data_create_from_pattern(code, nullptr), &pcre2_match_data_free);
    if (match == nullptr) {
      throw std::bad_alloc();
    }
    const auto find_with = [&](std::uint32_t options) {
      return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, options, match.get(),
                         nullptr);
    };
    auto found = find_with(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = find_with(PCRE2_NO_JIT);
    }
    const auto* const range = pcre2_get_ovector_pointer(match.get());
    const bool is_empty = found < 1 || range[0] == range[1];
    return is_empty ? text.substr(text.size()) : text.substr(range[0], range[1] - range[0]);
  }

  pcre2_code* code;
};

tokenizer::tokenizer(const std::filesystem::path& directory) {
  const auto whole = read_json(directory / "tokenizer.json");
  try {
    // GPT-2's spelling: printable characters are themselves, other bytes get characters from 256 on.
    auto next = char32_t{256};
    for (auto byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
      spelling_[static_cast<std::size_t>(byte)] = encoded(prints ? static_cast<char32_t>(byte) : next++);
      bytes_[spelling_[static_cast<std::size_t>(byte)]] = static_cast<char>(byte);
    }
    read_pieces(whole.at("model"));
    read_special(whole.at("added_tokens"));
    read_split(whole);
  } catch (const nlohmann::json::exception& error) {
    throw bad_model(std::string("tokenizer.json: a member is missing or has another type: ") + error.what());
  }
}

tokenizer::~tokenizer() = default;
tokenizer::tokenizer(tokenizer&&) noexcept = default;

void tokenizer::read_pieces(const nlohmann::json& model) {
  if (type_of(model) != "BPE") {
    throw bad_model("tokenizer.json: a model of type " + type_of(model) + " is not known; BPE is");
  }
  whole_words_ = model.value("ignore_merges", false);
  for (const auto& [piece, id] : model.at("vocab").items()) {
    const auto number = number_of(id);
    pieces_[piece] = number;
    texts_.resize(std::max(texts_.size(), static_cast<std::size_t>(number) + 1));
    texts_[static_cast<std::size_t>(number)] = piece;
  }
  for (const auto& merge : model.at("merges")) {
    auto pair = merge.is_array() ? merge.at(0).get<std::string>() + between_pieces + merge.at(1).get<std::string>()
                                 : merge.get<std::string>();
    if (!merge.is_array()) {
      const auto space = pair.find(' ', 1);
      if (space == pair.npos) {
        throw bad_model("tokenizer.json: the merge " + pair + " has no space between two pieces");
      }
      pair[space] = between_pieces;
    }
    ranks_.emplace(std::move(pair), static_cast<std::uint32_t>(ranks_.size()));
  }
}

void tokenizer::read_special(const nlohmann::json& from) {
  for (const auto& each : from) {
    const auto id = number_of(each.at("id"));
    const auto name = each.at("content").get<std::string>();
    if (name.empty()) {
      throw bad_model("tokenizer.json: added_tokens has a token without a name");
    }
    special_[name] = id;
    texts_.resize(std::max(texts_.size(), static_cast<std::size_t>(id) + 1));
    texts_[static_cast<std::size_t>(id)] = each.value("special", true) ? "" : name;
  }
}

void tokenizer::read_split(const nlohmann::json& from) {
  const auto add = [&](const nlohmann::json& part) {
    if (type_of(part) == "ByteLevel") {
      over_bytes_ = true;
      if (part.value("use_regex", true)) {
        patterns_.push_back(std::make_unique<pattern>(words_of_gpt_2));
      }
    } else if (type_of(part) == "Split" && part.at("pattern").contains("Regex")) {
      patterns_.push_back(std::make_unique<pattern>(part.at("pattern").at("Regex").get<std::string>()));
    } else if (type_of(part) != "Split") {
      throw bad_model("tokenizer.json: a pre_tokenizer of type " + type_of(part) + " is not known");
    }
  };
  const auto& split = from.at("pre_tokenizer");
  if (type_of(split) == "Sequence") {
    std::ranges::for_each(split.at("pretokenizers"), add);
  } else if (split.is_object()) {
    add(split);
  }
  const auto& normalizer = from.at("normalizer");
  if (type_of(normalizer) == "Replace" && normalizer.at("pattern").value("String", "") == " ") {
    space_ = normalizer.at("content").get<std::string>();
  } else if (!normalizer.is_null() && type_of(normalizer) != "NFC") {
    throw bad_model("tokenizer.json: a normalizer of type " + type_of(normalizer) + " is not known");
  }
}

std::vector<pagedkv::token> tokenizer::encode(std::string_view text) const {
  struct special_name {
    std::string_view name;
    pagedkv::token id;
    std::size_t next;  // where it begins again
  };
  auto names = std::vector<special_name>{};
  for (const auto& [name, id] : special_) {
    if (const auto first = text.find(name); first != text.npos) {
      names.push_back({name, id, first});
    }
  }
  auto tokens = std::vector<pagedkv::token>{};
  auto begin = std::size_t{0};
  while (!names.empty()) {
    // The next one, the longest where several begin together.
    const auto& next = *std::ranges::min_element(names, {}, [](const special_name& each) {
      return std::pair(each.next, std::numeric_limits<std::size_t>::max() - each.name.size());
    });
    encode_text(text.substr(begin, next.next - begin), tokens);
    tokens.push_back(next.id);
    begin = next.next + next.name.size();
    for (auto& each : names) {
      each.next = each.next < begin ? text.find(each.name, begin) : each.next;
    }
    std::erase_if(names, [&](const special_name& each) { return each.next == text.npos; });
  }
  encode_text(text.substr(begin), tokens);
  return tokens;
}

std::vector<pagedkv::token> tokenizer::encode_plain(std::string_view text) const {
  auto tokens = std::vector<pagedkv::token>{};
  encode_text(text, tokens);
  return tokens;
}

void tokenizer::encode_text(std::string_view text, std::vector<pagedkv::token>& out) const {
  auto words = std::vector<std::string>{space_.empty() ? std::string(text) : replaced(text, " ", space_)};
  for (const auto& each : patterns_) {
    auto split = std::vector<std::string>{};
    for (const auto& word : words) {
      for (auto from = std::size_t{0}; from < word.size();) {
        const auto found = each->find(word, from);
        const auto begin = static_cast<std::size_t>(found.data() - word.data());
        if (begin > from) {
          split.push_back(word.substr(from, begin - from));
        }
        if (!found.empty()) {
          split.emplace_back(found);
        }
        from = found.empty() ? word.size() : begin + found.size();
      }
    }
    words = std::move(split);
  }
  for (const auto& word : words) {
    encode_word(over_bytes_ ? spelled(word) : word, out);
  }
}

/// Joins the two neighbours whose merge was learnt first, of equals the ones further left, until none is left. A heap
/// of what can be joined keeps that below the square of the word's length.
void tokenizer::encode_word(std::string_view word, std::vector<pagedkv::token>& out) const {
  if (const auto whole = pieces_.find(std::string(word)); whole_words_ && whole != pieces_.end()) {
    out.push_back(whole->second);
    return;
  }
  auto parts = std::vector<word_part>{};
  for (auto begin = std::size_t{0}; begin < word.size(); begin += parts.back().size) {
    parts.push_back({begin, length_of_character(word.substr(begin)), parts.size() - 1, parts.size() + 1});
  }
  const auto none = parts.size();
  const auto text_of = [&](const word_part& part) { return std::string(word.substr(part.begin, part.size)); };
  // Rank, the part on the left, and the length of both: a part that has grown since makes it stale.
  using merge = std::tuple<std::uint32_t, std::size_t, std::size_t>;
  auto merges = std::priority_queue<merge, std::vector<merge>, std::greater<>>{};
  const auto consider = [&](std::size_t left) {
    if (left >= none || parts[left].next >= none) {
      return;
    }
    const auto& right = parts[parts[left].next];
    if (const auto found = ranks_.find(text_of(parts[left]) + between_pieces + text_of(right)); found != ranks_.end()) {
      merges.emplace(found->second, left, parts[left].size + right.size);
    }
  };
  for (auto i = std::size_t{0}; i < none; ++i) {
    consider(i);
  }
  while (!merges.empty()) {
    const auto [rank, at, size] = merges.top();
    merges.pop();
    auto& left = parts[at];
    if (left.size == 0 || left.next >= none || left.size + parts[left.next].size != size) {
      continue;
    }
    auto& right = parts[left.next];
    left.size = size;
    left.next = right.next;
    right.size = 0;
    if (left.next < none) {
      parts[left.next].before = at;
    }
    consider(left.before);
    consider(at);
  }
  for (const auto& part : parts) {
    if (part.size == 0) {
      continue;
    }
    if (const auto found = pieces_.find(text_of(part)); found != pieces_.end()) {
      out.push_back(found->second);
    } else {
      encode_unknown(text_of(part), out);
    }
  }
}

void tokenizer::encode_unknown(std::string_view character, std::vector<pagedkv::token>& out) const {
  constexpr auto digits = "0123456789ABCDEF";
  for (const auto letter : character) {
    const auto byte = static_cast<unsigned char>(letter);
    const auto name = std::string{"<0x"} + digits[byte / 16] + digits[byte % 16] + ">";
    if (const auto found = pieces_.find(name); found != pieces_.end()) {
      out.push_back(found->second);
    }
  }
}

std::string tokenizer::spelled(std::string_view bytes) const {
  auto text = std::string{};
  for (const auto byte : bytes) {
    text += spelling_[static_cast<unsigned char>(byte)];
  }
  return text;
}

std::string tokenizer::spoken(std::string_view piece) const {
  if (!over_bytes_) {
    if (const auto byte = byte_of(piece)) {
      return {*byte};
    }
    return space_.empty() ? std::string(piece) : replaced(piece, space_, " ");
  }
  auto text = std::string{};
  for (auto rest = piece; !rest.empty();) {
    const auto length = length_of_character(rest);
    const auto found = bytes_.find(std::string(rest.substr(0, length)));
    if (found == bytes_.end()) {
      return std::string(piece);  // an added token; as in the tokenizers library, those that spell bytes are bytes
    }
    text += found->second;
    rest.remove_prefix(length);
  }
  return text;
}

std::string tokenizer::bytes_of(pagedkv::token which) const {
  const auto index = static_cast<std::size_t>(which);
  return which < 0 || index >= texts_.size() ? std::string{} : spoken(texts_[index]);
}

std::string tokenizer::decode(const std::vector<pagedkv::token>& tokens) const {
  auto text = std::string{};
  for (const auto each : tokens) {
    text += bytes_of(each);
  }
  return text;
}

std::optional<pagedkv::token> tokenizer::find_special(std::string_view name) const {
  const auto found = special_.find(name);
  return found == special_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace llama
