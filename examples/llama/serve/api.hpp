#pragma once

#include "../tokenizer.hpp"
#include "client_request.hpp"
#include "service.hpp"
#include "text.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace llama {

/// The model that answers.
struct served_model {
  std::string name;
  const model_config& config;
  const tokenizer& words;
};

/// A client's request in the model's tokens, as far as it can be checked without an engine.
struct completion_request {
  bool is_chat = false;
  job wanted;
  std::vector<std::string> stops;
  bool streams = false;
  bool reports_usage = false;  // at the end of a stream
};

/// Reads a body. Throws `refusal` where `read_request` does, for another model, and for requests that are longer than
/// the model's context or than the pool.
[[nodiscard]] completion_request read_completion(const std::string& body, bool is_chat, const served_model& by,
                                                 const service& with);

/// Turns the news of a request into the bodies of OpenAI's interface.
class completion {
 public:
  completion(completion_request request, const served_model& by, std::int64_t number, std::int64_t created);
  completion(const completion&) = delete;  // answers point to the request
  completion& operator=(const completion&) = delete;

  /// The events at the start of a stream.
  [[nodiscard]] std::string begin() const;
  /// A stream's events for the news. Calls `cancel(answer)` for answers that one of the stops has ended.
  template <class Cancel>
  [[nodiscard]] std::string add(const std::vector<news>& latest, Cancel&& cancel) {
    auto events = std::string{};
    for (const auto& each : latest) {
      if (add(each, events)) {
        cancel(each.answer);
      }
    }
    return events;
  }
  [[nodiscard]] bool is_complete() const noexcept { return num_open_ == 0; }
  /// The events at the end of a stream.
  [[nodiscard]] std::string end() const;
  /// The whole answer to a request that does not stream. Throws `refusal` if one of the answers has failed.
  [[nodiscard]] std::string body() const;

 private:
  struct answer {
    explicit answer(const std::vector<std::string>& stops) : growing(stops) {}

    growing_text growing;
    std::string text;  // empty where the answer streams
    std::string reason = {};
    std::size_t num_tokens = 0;
  };

  /// Returns whether a stop has ended the answer.
  bool add(const news& latest, std::string& events);
  [[nodiscard]] nlohmann::json header() const;
  /// `contents`: the delta of a chat, otherwise text. `reason`: empty while the answer goes on.
  [[nodiscard]] nlohmann::json chunk(std::size_t index, const nlohmann::json& contents,
                                     const std::string& reason) const;
  [[nodiscard]] nlohmann::json usage() const;

  completion_request request_;
  std::string model_name_;
  const tokenizer& words_;
  std::string id_;
  std::int64_t created_;
  std::vector<answer> answers_;
  std::size_t num_open_;
  std::int64_t num_cached_tokens_ = 0;
  std::string failure_;
};

/// The body of /v1/models.
[[nodiscard]] std::string list_models(const served_model& served);

/// An event of a stream of server-sent events.
[[nodiscard]] std::string event_of(const nlohmann::json& data);

}  // namespace llama
