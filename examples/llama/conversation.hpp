#pragma once

#include "tokenizer.hpp"

#include <pagedkv/core/ids.hpp>

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llama {

/// How a model was taught to tell questions and answers apart, recognised by its special tokens.
struct chat_format {
  std::string start;     // of a conversation
  std::string system;    // before instructions; empty: they are a part of the first question
  std::string question;  // before a question
  std::string answer;    // between question and answer
  std::string end;       // token behind an answer
  std::string between;   // behind that, before the next question

  [[nodiscard]] static const chat_format& of(const tokenizer& model) {
    static const auto formats = std::array{
        chat_format{"<|start|>", "", "<|user|>", "<|end|><|answer|>", "<|end|>", ""},
        chat_format{"<|begin_of_text|>", "<|start_header_id|>system<|end_header_id|>\n\n",
                    "<|start_header_id|>user<|end_header_id|>\n\n",
                    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>", ""},
        chat_format{"", "<|im_start|>system\n", "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n",
                    "<|im_end|>", "\n"},
        chat_format{"<bos>", "", "<start_of_turn>user\n", "<end_of_turn>\n<start_of_turn>model\n", "<end_of_turn>",
                    "\n"},
        chat_format{"", "", "", "\n", "", "\n"},
    };
    for (const auto& each : formats) {
      if (each.end.empty() || model.find_special(each.end)) {
        return each;
      }
    }
    return formats.back();
  }
};

/// The tokens of a conversation so far. Each turn's prompt continues the one before, so a cache computes only what is
/// new.
class conversation {
 public:
  explicit conversation(const tokenizer& model)
      : model_(&model), format_(&chat_format::of(model)), tokens_(model.encode(format_->start)) {}

  /// Goes on behind these tokens, which end with an answer.
  void resume(std::vector<pagedkv::token> tokens) { tokens_ = std::move(tokens); }

  [[nodiscard]] const std::vector<pagedkv::token>& tokens() const noexcept { return tokens_; }

  /// Instructions for the model, ahead of a question.
  void instruct(std::string_view text) {
    if (format_->system.empty()) {
      instructions_.append(text).append("\n\n");
    } else {
      add(format_->system);
      add_plain(text);
      add(format_->end + format_->between);
    }
  }
  /// The prompt of the next turn. The words of a question are never taken for special tokens' names.
  [[nodiscard]] const std::vector<pagedkv::token>& ask(std::string_view question) {
    add(format_->question);
    add_plain(std::exchange(instructions_, {}).append(question));
    add(format_->answer);
    return tokens_;
  }
  /// `answer` with or without its end token.
  void hear(std::span<const pagedkv::token> answer) {
    tokens_.insert(tokens_.end(), answer.begin(), answer.end());
    const auto end = model_->find_special(format_->end);
    if (end && (answer.empty() || answer.back() != *end)) {
      tokens_.push_back(*end);
    }
    add(format_->between);
  }

 private:
  void add(std::string_view text) {
    const auto more = model_->encode(text);
    tokens_.insert(tokens_.end(), more.begin(), more.end());
  }

  void add_plain(std::string_view text) {
    const auto more = model_->encode_plain(text);
    tokens_.insert(tokens_.end(), more.begin(), more.end());
  }

  const tokenizer* model_;
  const chat_format* format_;
  std::vector<pagedkv::token> tokens_;
  std::string instructions_;  // for the next question
};

}  // namespace llama
