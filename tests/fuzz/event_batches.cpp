// Batches of events from workers.

#include "target.hpp"

#include <pagedkv/wire/batch_writer.hpp>
#include <pagedkv/wire/read_batch.hpp>

#include <vector>

namespace pagedkv::fuzz {

const target event_batches{
    "event_batches",
    [] {
      auto made = std::vector<std::vector<std::uint8_t>>{};
      const auto tokens = std::vector<token>{1, 2, 3, 4};
      for (const auto encoding : {wire_encoding::arrays, wire_encoding::maps}) {
        auto writer = batch_writer{encoding};
        auto event = cache_event{};
        event.hash = 7;
        event.tokens = tokens;
        for (const auto kind : {event_kind::stored, event_kind::evicted, event_kind::reset}) {
          event.kind = kind;
          writer.add(event);
        }
        const auto bytes = writer.finish(1);
        made.emplace_back(bytes.begin(), bytes.end());
      }
      return made;
    },
    [](input bytes) {
      const auto copy = std::vector<char>(bytes.begin(), bytes.end());
      if (const auto batch = read_batch({copy.data(), copy.size()})) {
        for (const auto& event : batch->events) {
          require(event.tokens.size() <= bytes.size() && event.hashes.size() <= bytes.size(),
                  "more is read than was sent");
        }
      }
    },
};

}  // namespace pagedkv::fuzz
