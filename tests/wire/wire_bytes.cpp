#include <pagedkv/wire/batch_writer.hpp>
#include <pagedkv/wire/read_batch.hpp>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Batches of events as bytes, for a test that has the decoder of routers: `wire_bytes write arrays|maps` writes one
/// that has every field, `wire_bytes read` prints the one that it is given, as JSON.
namespace {

using namespace pagedkv;
using nlohmann::json;

void write(wire_encoding encoding) {
  const auto adapter_of = [](salt tag) {
    return tag == salt{42} ? std::optional{wire_adapter{3, "french"}} : std::nullopt;
  };
  auto writer = batch_writer{encoding, "GPU", 5, adapter_of};
  const auto tokens = std::vector<token>{7, 70'000};
  const auto keys = std::vector<prefix_key>{{1, {7, 8}}};
  auto first = cache_event{.kind = event_kind::stored, .hash = 1, .tokens = tokens};
  auto second = cache_event{
      .kind = event_kind::stored, .origin = block_id{0}, .hash = ~std::uint64_t{0}, .parent_hash = 1, .tokens = tokens};
  writer.add(first);
  writer.add(second);
  first.salt = second.salt = salt{42};
  second.keys = keys;
  writer.add(first);
  writer.add(second);
  first.salt = salt{9};
  first.group = 1;
  first.layers = group_kind::latent;
  writer.add(first);
  writer.add({.kind = event_kind::evicted, .hash = 1});
  writer.add({.kind = event_kind::reset});
  writer.add({.kind = event_kind::evicted, .hash = 2, .group = 1});
  std::cout << writer.finish(0.5);
}

template <class T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json(nullptr);
}

int read() {
  const auto bytes = std::string{std::istreambuf_iterator<char>{std::cin}, {}};
  const auto batch = read_batch(bytes);
  if (!batch) {
    return 1;
  }
  auto events = json::array();
  for (const auto& event : batch->events) {
    const auto* const kind = event.kind == wire_kind::stored    ? "stored"
                             : event.kind == wire_kind::removed ? "removed"
                                                                : "cleared";
    events.push_back({{"kind", kind},
                      {"hashes", event.hashes},
                      {"parent", or_null(event.parent)},
                      {"tokens", event.tokens},
                      {"block_size", event.block_size},
                      {"medium", event.medium},
                      {"group", event.group},
                      {"adapter", event.adapter}});
  }
  std::cout << json{{"timestamp", batch->timestamp},
                    {"rank", or_null(batch->rank)},
                    {"unknown", batch->num_unknown},
                    {"events", events}};
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const auto arguments = std::vector<std::string_view>(argv + 1, argv + argc);
  if (arguments == std::vector<std::string_view>{"read"}) {
    return read();
  }
  if (arguments.size() == 2 && arguments[0] == "write") {
    write(arguments[1] == "maps" ? wire_encoding::maps : wire_encoding::arrays);
    return 0;
  }
  return 2;
}
