// Text from outside: URLs of stores and lines of traces.

#include "../../examples/support/trace.hpp"
#include "target.hpp"

#include <pagedkv/tier/redis_config.hpp>

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace pagedkv::fuzz {

namespace {

std::string text_of(input bytes) { return {bytes.begin(), bytes.end()}; }

std::vector<std::vector<std::uint8_t>> inputs(std::initializer_list<std::string_view> texts) {
  auto made = std::vector<std::vector<std::uint8_t>>{};
  for (const auto text : texts) {
    made.emplace_back(text.begin(), text.end());
  }
  return made;
}

}  // namespace

const target redis_urls{
    "redis_urls",
    [] {
      return inputs({"redis://engine:pass%20word@10.0.0.5:6379/2", "redis://[::1]:7000,10.0.0.5:7001",
                     "unix://:x@/run/valkey.sock", "redis://localhost", "rediss://localhost"});
    },
    [](input bytes) {
      const auto text = text_of(bytes);
      const auto read = parse_redis_url(text);
      if (!read) {
        require(!read.error().message().empty(), "a refusal says nothing");
      }
    },
};

const target trace_lines{
    "trace_lines",
    [] {
      return inputs({R"({"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]})",
                     R"({"hash_ids": []})"});
    },
    [](input bytes) {
      try {
        const auto request = support::parse_trace_line(text_of(bytes));
        require(request.arrival_ms >= 0, "a request came before the first");
      } catch (const support::trace_error&) {
      } catch (const nlohmann::json::exception&) {
      }
    },
};

}  // namespace pagedkv::fuzz
