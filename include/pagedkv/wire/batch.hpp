#pragma once

#include <pagedkv/core/ids.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pagedkv {

/// Kinds of events on the wire.
enum class wire_kind : std::uint8_t {
  stored,   // blocks that a worker has
  removed,  // blocks that it has lost
  cleared,  // all that it had
};

/// A low-rank adapter (LoRA), as an engine names it.
struct wire_adapter {
  std::int64_t id = 0;
  std::string name;
};

/// How events are written: as tagged arrays, which vLLM wrote until June 2026 and every router of that time reads, or
/// as maps with a "type", which it writes since.
enum class wire_encoding : std::uint8_t { arrays, maps };

/// One change of a worker's cache, as vLLM's KV events tell it.
struct wire_event {
  wire_kind kind = wire_kind::cleared;
  std::vector<std::uint64_t> hashes;    // stored, removed: of consecutive blocks, in order
  std::optional<std::uint64_t> parent;  // stored: the block before the first one; none at the start of a sequence
  std::vector<token> tokens;            // stored: of all blocks; empty when the worker sends hashes only
  std::int64_t block_size = 0;          // stored: tokens
  std::string medium;                   // where the blocks are, "GPU" for example; empty when the worker does not say
  std::int64_t group = 0;               // of layers

  std::optional<std::int64_t> adapter_id = {};  // stored: of the adapter that computed the blocks, if any
  std::string adapter = {};                     // stored: its name; empty also when the worker does not say
  std::vector<std::uint64_t> extras = {};       // stored: of each block, a hash of its extra keys but the adapter; or 0

  friend bool operator==(const wire_event&, const wire_event&) = default;
};

/// Events that were published together.
struct wire_batch {
  double timestamp = 0;  // seconds since 1970
  std::vector<wire_event> events;
  std::optional<std::int64_t> rank;  // data-parallel
  std::int64_t num_unknown = 0;      // events left out: of other kinds, or with other values than vLLM writes

  friend bool operator==(const wire_batch&, const wire_batch&) = default;
};

}  // namespace pagedkv
