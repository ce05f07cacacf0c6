// Bodies of requests from HTTP clients, as the server in examples/llama reads them. A library parses what precedes a
// body.

#include "../../examples/llama/serve/client_request.hpp"
#include "target.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <variant>

namespace pagedkv::fuzz {

namespace {

/// The first byte says whether the body is a chat's.
std::vector<std::uint8_t> input_of(bool is_chat, std::string_view body) {
  auto bytes = std::vector<std::uint8_t>{static_cast<std::uint8_t>(is_chat)};
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

void check(const llama::client_request& read, bool is_chat) {
  require(read.num_samples >= 1 && read.num_samples <= 128, "so many answers are not granted");
  require(!read.max_tokens || *read.max_tokens >= 1, "answers are empty");
  require(read.sampling.temperature >= 0 && read.sampling.temperature <= 2, "a temperature is out of its range");
  require(read.stops.size() <= 4 && std::ranges::none_of(read.stops, &std::string::empty), "a stop stops nothing");
  if (is_chat) {
    require(
        read.prompts.empty() && !read.messages.empty() && read.messages.back().role == llama::message_role::question,
        "a chat asks nothing");
  } else {
    require(read.messages.empty() && !read.prompts.empty(), "there is nothing to complete");
    for (const auto& prompt : read.prompts) {
      const auto* const tokens = std::get_if<std::vector<token>>(&prompt);
      require(tokens == nullptr || std::ranges::none_of(*tokens, [](token each) { return each < 0; }),
              "a token is negative");
    }
  }
}

}  // namespace

const target http_requests{
    "http_requests",
    [] {
      return std::vector{
          input_of(false,
                   R"({"model": "m", "prompt": "A cat", "max_tokens": 5, "temperature": 0.5, "seed": 7, "n": 2})"),
          input_of(false, R"({"prompt": [[1, 2], [3]], "stop": ["\n", "."], "stream": true, "logprobs": null})"),
          input_of(false, R"({"prompt": [5, 6], "stream_options": {"include_usage": true}, "top_p": 1, "tools": []})"),
          input_of(true, R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
                             {"role": "assistant", "content": [{"type": "text", "text": "\u00e9"}]},
                             {"role": "user", "content": "Why?"}], "max_completion_tokens": 9, "stop": "x"})"),
          input_of(true, R"({"messages": [{"role": "tool", "content": "1"}]})"),
          input_of(false, R"({"prompt": "a", "response_format": {"type": "json_object"}})"),
      };
    },
    [](input bytes) {
      const bool is_chat = !bytes.empty() && bytes[0] % 2 == 1;
      const auto body = bytes.subspan(std::min<std::size_t>(bytes.size(), 1));
      try {
        check(llama::read_request({body.begin(), body.end()}, is_chat), is_chat);
      } catch (const llama::refusal& reason) {
        require(reason.status == 400 && *reason.what() != '\0', "a refusal says nothing");
        require(!llama::text_of(reason.body()).empty(), "a refusal has no body");
      }
    },
};

}  // namespace pagedkv::fuzz
