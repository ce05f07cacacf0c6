#pragma once

#include "../sampling.hpp"

#include <pagedkv/core/ids.hpp>

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace llama {

/// A request that is refused, with the answer's status and what OpenAI's clients read of it.
struct refusal : std::runtime_error {
  refusal(int with_status, const std::string& message, std::string of_parameter = {}, std::string with_code = {})
      : std::runtime_error(message),
        status(with_status),
        parameter(std::move(of_parameter)),
        code(std::move(with_code)) {}

  [[nodiscard]] nlohmann::json body() const;

  int status;
  std::string parameter;
  std::string code;
};

/// A text, or its tokens.
using client_prompt = std::variant<std::string, std::vector<pagedkv::token>>;

enum class message_role : std::uint8_t { instruction, question, answer };

struct client_message {
  message_role role;
  std::string text;
};

/// A request to /v1/completions or /v1/chat/completions, as far as it can be checked without a model.
struct client_request {
  std::optional<std::string> model;      // none: whichever is served
  std::vector<client_prompt> prompts;    // of a completion
  std::vector<client_message> messages;  // of a chat; the last one is a question
  std::vector<std::string> stops;
  sampling_options sampling;
  std::size_t num_samples = 1;
  std::optional<std::size_t> max_tokens;  // none: the default
  bool streams = false;
  bool reports_usage = false;  // at the end of a stream
};

/// Reads a body. Throws `refusal` for one that is no JSON, for members of another kind or outside their range, and for
/// wishes that the server does not grant.
[[nodiscard]] client_request read_request(const std::string& body, bool is_chat);

/// JSON in which bytes that are no UTF-8 have become replacement characters.
[[nodiscard]] std::string text_of(const nlohmann::json& data);

}  // namespace llama
