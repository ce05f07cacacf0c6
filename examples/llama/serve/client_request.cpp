#include "client_request.hpp"

#include "../json.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <string_view>
#include <utility>

namespace llama {

namespace {

using json = nlohmann::json;

constexpr auto most_answers = std::size_t{128};      // to one request
constexpr auto longest_message = std::size_t{1000};  // bytes; it may quote megabytes of a client's

/// A member that is there and not null.
const json* find(const json& from, const char* name) {
  const auto found = from.find(name);
  return found == from.end() || found->is_null() ? nullptr : &*found;
}

[[noreturn]] void refuse(const char* name, const std::string& wanted) {
  throw refusal(400, std::string(name) + " must be " + wanted, name);
}

std::string read_string(const json& from, const char* name) {
  const auto* const found = find(from, name);
  if (found == nullptr || !found->is_string()) {
    refuse(name, "a string");
  }
  return found->get<std::string>();
}

bool read_flag(const json& from, const char* name) {
  const auto* const found = find(from, name);
  if (found != nullptr && !found->is_boolean()) {
    refuse(name, "true or false");
  }
  return found != nullptr && found->get<bool>();
}

std::optional<std::size_t> read_count(const json& from, const char* name) {
  const auto* const found = find(from, name);
  if (found == nullptr) {
    return {};
  }
  constexpr auto most = std::uint64_t{std::numeric_limits<std::int32_t>::max()};
  if (!found->is_number_unsigned() || found->get<std::uint64_t>() == 0 || found->get<std::uint64_t>() > most) {
    refuse(name, "a whole number from 1 to " + std::to_string(most));
  }
  return found->get<std::size_t>();
}

sampling_options read_sampling(const json& from) {
  auto sampling = sampling_options{.temperature = 1, .seed = 0};
  if (const auto* const found = find(from, "temperature"); found != nullptr) {
    if (!found->is_number() || found->get<double>() < 0 || found->get<double>() > 2) {
      refuse("temperature", "a number from 0 to 2");
    }
    sampling.temperature = found->get<float>();
  }
  if (const auto* const found = find(from, "seed"); found == nullptr) {
    sampling.seed = std::random_device{}();
  } else if (found->is_number_integer()) {
    sampling.seed = found->get<std::uint64_t>();
  } else {
    refuse("seed", "a whole number");
  }
  return sampling;
}

std::vector<std::string> read_stops(const json& from) {
  const auto* const found = find(from, "stop");
  auto stops = std::vector<std::string>{};
  if (found == nullptr) {
    return stops;
  }
  for (const auto& each : found->is_array() ? *found : json::array({*found})) {
    if (!each.is_string() || each.get_ref<const std::string&>().empty() || stops.size() == 4) {
      refuse("stop", "a string, or up to four, none of them empty");
    }
    stops.push_back(each);
  }
  return stops;
}

/// Members that would change an answer if they were granted, and the values that change nothing.
void refuse_what_is_not_granted(const json& from) {
  static const auto granted = std::array<std::pair<const char*, json>, 19>{{
      {"best_of", 1},
      {"echo", false},
      {"suffix", ""},
      {"logprobs", false},
      {"top_logprobs", 0},
      {"logit_bias", json::object()},
      {"presence_penalty", 0},
      {"frequency_penalty", 0},
      {"top_p", 1},
      {"tools", json::array()},
      {"tool_choice", "none"},
      {"functions", json::array()},
      {"function_call", "none"},
      {"response_format", {{"type", "text"}}},
      {"modalities", json::array({"text"})},
      {"audio", nullptr},
      {"reasoning_effort", "none"},
      {"verbosity", "medium"},
      {"web_search_options", nullptr},
  }};
  for (const auto& [name, value] : granted) {
    if (const auto* const found = find(from, name); found != nullptr && *found != value) {
      throw refusal(400, std::string(name) + " other than " + value.dump() + " is not supported", name);
    }
  }
}

std::vector<pagedkv::token> read_tokens(const json& from) {
  auto tokens = std::vector<pagedkv::token>{};
  for (const auto& each : from) {
    if (!each.is_number_unsigned() || each.get<std::uint64_t>() > std::numeric_limits<pagedkv::token>::max()) {
      refuse("prompt", "a text, tokens, or an array of these");
    }
    tokens.push_back(each);
  }
  return tokens;
}

/// One text, the tokens of one, or an array of either.
std::vector<client_prompt> read_prompts(const json& from) {
  const auto* const found = find(from, "prompt");
  if (found == nullptr || !(found->is_string() || found->is_array()) || found->empty()) {
    refuse("prompt", "a text, tokens, or an array of these");
  }
  const bool is_one = found->is_string() || found->front().is_number();
  auto prompts = std::vector<client_prompt>{};
  for (const auto& each : is_one ? json::array({*found}) : *found) {
    if (each.is_string()) {
      prompts.emplace_back(each.get<std::string>());
    } else if (each.is_array() && !each.empty()) {
      prompts.emplace_back(read_tokens(each));
    } else {
      refuse("prompt", "a text, tokens, or an array of these");
    }
  }
  return prompts;
}

/// Text, or an array of parts of text.
std::string read_content(const json& message) {
  const auto* const content = find(message, "content");
  if (content != nullptr && content->is_string()) {
    return content->get<std::string>();
  }
  auto text = std::string{};
  if (content == nullptr || !content->is_array()) {
    refuse("messages", "objects whose content is text");
  }
  for (const auto& part : *content) {
    if (!part.is_object() || part.value("type", json()) != "text") {
      refuse("messages", "objects whose content is text");
    }
    text += read_string(part, "text");
  }
  return text;
}

message_role read_role(const json& message) {
  const auto role = read_string(message, "role");
  if (role == "system" || role == "developer") {
    return message_role::instruction;
  }
  if (role != "user" && role != "assistant") {
    refuse("messages", "by system, developer, user or assistant; " + role + " is not supported");
  }
  return role == "user" ? message_role::question : message_role::answer;
}

std::vector<client_message> read_messages(const json& from) {
  const auto* const found = find(from, "messages");
  if (found == nullptr || !found->is_array()) {
    refuse("messages", "an array");
  }
  auto messages = std::vector<client_message>{};
  for (const auto& message : *found) {
    if (!message.is_object()) {
      refuse("messages", "objects with role and content");
    }
    messages.push_back({read_role(message), read_content(message)});
  }
  if (messages.empty() || messages.back().role != message_role::question) {
    refuse("messages", "an array that ends with a message of the user's");
  }
  return messages;
}

json parse_object(const std::string& body) {
  try {
    if (auto parsed = parse_json(body); parsed.is_object()) {
      return parsed;
    }
  } catch (const json::exception& error) {
    throw refusal(400, std::string("the body is no JSON: ") + error.what());
  } catch (const deep_json& error) {
    throw refusal(400, std::string("the body is not read: ") + error.what());
  }
  throw refusal(400, "the body is no JSON object");
}

}  // namespace

json refusal::body() const {
  const auto or_null = [](const std::string& text) { return text.empty() ? json() : json(text); };
  return {{"error",
           {{"message", std::string_view(what()).substr(0, longest_message)},
            {"type", status < 500 ? "invalid_request_error" : "server_error"},
            {"param", or_null(parameter)},
            {"code", or_null(code)}}}};
}

std::string text_of(const json& data) { return data.dump(-1, ' ', false, json::error_handler_t::replace); }

client_request read_request(const std::string& body, bool is_chat) {
  const auto from = parse_object(body);
  auto made = client_request{};
  if (find(from, "model") != nullptr) {
    made.model = read_string(from, "model");
  }
  refuse_what_is_not_granted(from);
  made.streams = read_flag(from, "stream");
  if (const auto* const options = find(from, "stream_options"); options != nullptr) {
    if (!options->is_object()) {
      refuse("stream_options", "an object");
    }
    made.reports_usage = read_flag(*options, "include_usage");
  }
  made.stops = read_stops(from);
  made.sampling = read_sampling(from);
  made.num_samples = read_count(from, "n").value_or(1);
  if (is_chat) {
    made.messages = read_messages(from);
  } else {
    made.prompts = read_prompts(from);
  }
  if (made.num_samples > most_answers || made.prompts.size() * made.num_samples > most_answers) {
    throw refusal(400, "more than " + std::to_string(most_answers) + " answers to one request", "n");
  }
  made.max_tokens = read_count(from, "max_tokens");
  if (is_chat) {
    const auto newer = read_count(from, "max_completion_tokens");
    made.max_tokens = newer ? newer : made.max_tokens;
  }
  return made;
}

}  // namespace llama
