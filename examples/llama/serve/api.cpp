#include "api.hpp"

#include "../conversation.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <random>
#include <utility>

namespace llama {

namespace {

using json = nlohmann::json;

constexpr auto most_answers = std::size_t{128};  // to one request

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
  static const auto granted = std::array<std::pair<const char*, json>, 12>{{
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
      {"functions", json::array()},
      {"response_format", {{"type", "text"}}},
  }};
  for (const auto& [name, value] : granted) {
    if (const auto* const found = find(from, name); found != nullptr && *found != value) {
      throw refusal(400, std::string(name) + " other than " + value.dump() + " is not supported", name);
    }
  }
}

std::vector<pagedkv::token> encode_prompt(const json& from, const tokenizer& words) {
  if (from.is_string()) {
    const auto& text = from.get_ref<const std::string&>();
    const auto& start = chat_format::of(words).start;
    return words.encode(text.starts_with(start) ? text : start + text);
  }
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
std::vector<std::vector<pagedkv::token>> read_prompts(const json& from, const tokenizer& words) {
  const auto* const found = find(from, "prompt");
  if (found == nullptr || !(found->is_string() || found->is_array()) || found->empty()) {
    refuse("prompt", "a text, tokens, or an array of these");
  }
  const bool is_one = found->is_string() || found->front().is_number();
  auto prompts = std::vector<std::vector<pagedkv::token>>{};
  for (const auto& each : is_one ? json::array({*found}) : *found) {
    if (!each.is_string() && !each.is_array()) {
      refuse("prompt", "a text, tokens, or an array of these");
    }
    prompts.push_back(encode_prompt(each, words));
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

std::vector<pagedkv::token> read_messages(const json& from, const tokenizer& words) {
  const auto* const messages = find(from, "messages");
  if (messages == nullptr || !messages->is_array()) {
    refuse("messages", "an array");
  }
  auto talk = conversation(words);
  auto is_asked = false;
  for (const auto& message : *messages) {
    if (!message.is_object()) {
      refuse("messages", "objects with role and content");
    }
    const auto role = read_string(message, "role");
    const auto text = read_content(message);
    const bool is_answer = role == "assistant";
    if (is_asked && !is_answer) {  // questions and answers take turns
      talk.hear({});
    } else if (!is_asked && is_answer) {
      static_cast<void>(talk.ask(""));
    }
    if (role == "user") {
      static_cast<void>(talk.ask(text));
    } else if (is_answer) {
      talk.hear(words.encode_plain(text));
    } else if (role == "system" || role == "developer") {
      talk.instruct(text);
    } else {
      refuse("messages", "by system, developer, user or assistant; " + role + " is not supported");
    }
    is_asked = role == "user";
  }
  if (!is_asked) {
    refuse("messages", "an array that ends with a message of the user's");
  }
  return talk.tokens();
}

/// The longest answers to a prompt that the model's context and the pool leave room for.
std::size_t room_behind(std::size_t num_prompt_tokens, std::size_t num_samples, const served_model& by,
                        const service& with) {
  const auto context = static_cast<std::size_t>(by.config.context);
  auto room = std::size_t{0};
  for (auto too_much = context - std::min(context, num_prompt_tokens) + 1; too_much - room > 1;) {
    const auto between = room + (too_much - room) / 2;
    (with.fits(num_prompt_tokens, between, num_samples) ? room : too_much) = between;
  }
  return room;
}

void limit_lengths(completion_request& made, std::optional<std::size_t> max_tokens, const served_model& by,
                   const service& with) {
  auto room = std::numeric_limits<std::size_t>::max();
  for (const auto& prompt : made.wanted.prompts) {
    room = std::min(room, room_behind(prompt.size(), made.wanted.options.num_samples, by, with));
    if (room < max_tokens.value_or(1)) {
      throw refusal(400,
                    std::to_string(prompt.size()) + " tokens of the prompt and " +
                        std::to_string(max_tokens.value_or(1)) +
                        " of each answer are more than the model's context of " + std::to_string(by.config.context) +
                        " tokens or the server's pool holds",
                    made.is_chat ? "messages" : "prompt", "context_length_exceeded");
    }
  }
  made.wanted.options.max_tokens = max_tokens.value_or(room);
}

json parse_object(const std::string& body) {
  try {
    if (auto parsed = json::parse(body); parsed.is_object()) {
      return parsed;
    }
  } catch (const json::exception& error) {
    throw refusal(400, std::string("the body is no JSON: ") + error.what());
  }
  throw refusal(400, "the body is no JSON object");
}

}  // namespace

json refusal::body() const {
  const auto or_null = [](const std::string& text) { return text.empty() ? json() : json(text); };
  return {{"error",
           {{"message", what()},
            {"type", status < 500 ? "invalid_request_error" : "server_error"},
            {"param", or_null(parameter)},
            {"code", or_null(code)}}}};
}

completion_request read_completion(const std::string& body, bool is_chat, const served_model& by, const service& with) {
  const auto from = parse_object(body);
  auto made = completion_request{};
  made.is_chat = is_chat;
  if (find(from, "model") != nullptr && read_string(from, "model") != by.name) {
    throw refusal(404, "there is no model " + read_string(from, "model") + "; " + by.name + " is served", "model",
                  "model_not_found");
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
  auto& options = made.wanted.options;
  options.sampling = read_sampling(from);
  options.num_samples = read_count(from, "n").value_or(1);
  if (is_chat) {
    made.wanted.prompts.push_back(read_messages(from, by.words));
  } else {
    made.wanted.prompts = read_prompts(from, by.words);
  }
  if (options.num_samples > most_answers || made.wanted.num_answers() > most_answers) {
    throw refusal(400, "more than " + std::to_string(most_answers) + " answers to one request", "n");
  }
  const auto max_tokens = read_count(from, "max_tokens");
  if (is_chat) {
    const auto newer = read_count(from, "max_completion_tokens");
    limit_lengths(made, newer ? newer : max_tokens, by, with);
  } else {
    limit_lengths(made, max_tokens.value_or(16), by, with);
  }
  return made;
}

completion::completion(completion_request request, const served_model& by, std::int64_t number, std::int64_t created)
    : request_(std::move(request)),
      model_name_(by.name),
      words_(by.words),
      id_((request_.is_chat ? "chatcmpl-" : "cmpl-") + std::to_string(number)),
      created_(created),
      answers_(request_.wanted.num_answers(), answer(request_.stops)),
      num_open_(answers_.size()) {}

std::string completion::begin() const {
  auto events = std::string{};
  for (auto i = std::size_t{0}; request_.is_chat && i < answers_.size(); ++i) {
    events += event_of(chunk(i, {{"role", "assistant"}, {"content", ""}}, {}));
  }
  return events;
}

bool completion::add(const news& latest, std::string& events) {
  auto& to = answers_[latest.answer];
  if (!to.reason.empty()) {
    return false;  // the token came behind a stop
  }
  auto text = std::string{};
  if (latest.token) {
    ++to.num_tokens;
    text = to.growing.add(words_.bytes_of(*latest.token));
  }
  const bool goes_on = latest.state == generation_state::running && !to.growing.is_stopped();
  if (!goes_on) {
    text += to.growing.finish();
    to.reason = latest.state == generation_state::cut && !to.growing.is_stopped() ? "length" : "stop";
    --num_open_;
    failure_ = latest.failure.empty() ? failure_ : latest.failure;
    if (latest.state == generation_state::cancelled && !to.growing.is_stopped() && failure_.empty()) {
      failure_ = "the server stops";
    }
  }
  if (latest.answer % request_.wanted.options.num_samples == 0 && to.num_tokens == 1) {
    num_cached_tokens_ += latest.num_cached_tokens;
  }
  if (!request_.streams) {
    to.text += text;
    return to.growing.is_stopped();
  }
  if (!text.empty()) {
    events += event_of(chunk(latest.answer, request_.is_chat ? json{{"content", text}} : json(text), {}));
  }
  if (!goes_on && failure_.empty()) {
    events += event_of(chunk(latest.answer, request_.is_chat ? json::object() : json(""), to.reason));
  }
  return to.growing.is_stopped();
}

std::string completion::end() const {
  auto events = std::string{};
  if (!failure_.empty()) {
    events += event_of(refusal(500, failure_).body());
  } else if (request_.reports_usage) {
    auto last = header();
    last["choices"] = json::array();
    last["usage"] = usage();
    events += event_of(last);
  }
  return events + "data: [DONE]\n\n";
}

std::string completion::body() const {
  if (!failure_.empty()) {
    return text_of(refusal(500, failure_).body());
  }
  auto made = header();
  auto& choices = made["choices"] = json::array();
  for (auto i = std::size_t{0}; i < answers_.size(); ++i) {
    const auto& [growing, text, reason, num_tokens] = answers_[i];
    auto choice = json{{"index", i}, {"finish_reason", reason}, {"logprobs", nullptr}};
    if (request_.is_chat) {
      choice["message"] = {{"role", "assistant"}, {"content", text}};
    } else {
      choice["text"] = text;
    }
    choices.push_back(std::move(choice));
  }
  made["usage"] = usage();
  return text_of(made);
}

json completion::header() const {
  const auto* const kind = !request_.is_chat  ? "text_completion"
                           : request_.streams ? "chat.completion.chunk"
                                              : "chat.completion";
  return {{"id", id_}, {"object", kind}, {"created", created_}, {"model", model_name_}};
}

json completion::chunk(std::size_t index, const json& contents, const std::string& reason) const {
  auto made = header();
  made["choices"] = json::array({{{"index", index},
                                  {request_.is_chat ? "delta" : "text", contents},
                                  {"finish_reason", reason.empty() ? json() : json(reason)},
                                  {"logprobs", nullptr}}});
  return made;
}

json completion::usage() const {
  auto num_prompt_tokens = std::size_t{0};
  for (const auto& prompt : request_.wanted.prompts) {
    num_prompt_tokens += prompt.size();
  }
  auto num_tokens = std::size_t{0};
  for (const auto& each : answers_) {
    num_tokens += each.num_tokens;
  }
  return {{"prompt_tokens", num_prompt_tokens},
          {"completion_tokens", num_tokens},
          {"total_tokens", num_prompt_tokens + num_tokens},
          {"prompt_tokens_details", {{"cached_tokens", num_cached_tokens_}}}};
}

std::string list_models(const served_model& served) {
  const auto each = json{{"id", served.name}, {"object", "model"}, {"created", 0}, {"owned_by", "pagedkv"}};
  return text_of({{"object", "list"}, {"data", json::array({each})}});
}

std::string event_of(const json& data) { return "data: " + text_of(data) + "\n\n"; }

std::string text_of(const json& data) { return data.dump(-1, ' ', false, json::error_handler_t::replace); }

}  // namespace llama
