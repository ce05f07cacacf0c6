#include "api.hpp"

#include "../conversation.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace llama {

namespace {

using json = nlohmann::json;

std::vector<pagedkv::token> encode(const client_prompt& prompt, const tokenizer& words) {
  if (const auto* const tokens = std::get_if<std::vector<pagedkv::token>>(&prompt)) {
    return *tokens;
  }
  const auto& text = std::get<std::string>(prompt);
  const auto& start = chat_format::of(words).start;
  return words.encode(text.starts_with(start) ? text : start + text);
}

std::vector<pagedkv::token> encode(const std::vector<client_message>& messages, const tokenizer& words) {
  auto talk = conversation(words);
  auto is_asked = false;
  for (const auto& [role, text] : messages) {
    const bool is_answer = role == message_role::answer;
    if (is_asked && !is_answer) {  // questions and answers take turns
      talk.hear({});
    } else if (!is_asked && is_answer) {
      static_cast<void>(talk.ask(""));
    }
    switch (role) {
      case message_role::instruction: talk.instruct(text); break;
      case message_role::question: static_cast<void>(talk.ask(text)); break;
      case message_role::answer: talk.hear(words.encode_plain(text)); break;
    }
    is_asked = role == message_role::question;
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

}  // namespace

completion_request read_completion(const std::string& body, bool is_chat, const served_model& by, const service& with) {
  auto from = read_request(body, is_chat);
  if (from.model && *from.model != by.name) {
    throw refusal(404, "there is no model " + *from.model + "; " + by.name + " is served", "model", "model_not_found");
  }
  auto made = completion_request{};
  made.is_chat = is_chat;
  made.streams = from.streams;
  made.reports_usage = from.reports_usage;
  made.stops = std::move(from.stops);
  made.wanted.options.sampling = from.sampling;
  made.wanted.options.num_samples = from.num_samples;
  if (is_chat) {
    made.wanted.prompts.push_back(encode(from.messages, by.words));
  }
  for (const auto& prompt : from.prompts) {
    made.wanted.prompts.push_back(encode(prompt, by.words));
  }
  limit_lengths(made, is_chat ? from.max_tokens : from.max_tokens.value_or(16), by, with);
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
    throw refusal(500, failure_);
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
  if (request_.reports_usage) {
    made["usage"] = nullptr;  // it follows
  }
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

}  // namespace llama
