#pragma once

#include <pagedkv/backend/concept.hpp>
#include <pagedkv/cache/outcomes.hpp>
#include <pagedkv/core/ids.hpp>
#include <pagedkv/core/result.hpp>
#include <pagedkv/core/token_run.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/storage/view.hpp>
#include <pagedkv/tier/session.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pagedkv {

/// How a sequence is offered.
struct offer_options {
  std::string_view model = {};  // the engine's name for the weights, as in `make_record_format`
  token_run contents = {};      // all tokens and keys of the sequence, which a cache has not where blocks were dropped
};

/// All that another cache needs to take over a sequence, but its K/V.
struct sequence_offer {
  std::string format;  // of blocks: equal in caches that exchange them
  detail::session_head head;
  std::vector<block_id> blocks;  // that hold the K/V, table by table
};

namespace detail {

template <class Cache>
[[nodiscard]] result<sequence_offer> offer_sequence(const Cache& cache, sequence_id id, const offer_options& options) {
  auto session = describe_session(cache, id, options.contents);
  if (!session) {
    return session.error();
  }
  return sequence_offer{make_record_format(cache, options.model).text, std::move(session->head),
                        std::move(session->blocks)};
}

template <class Cache>
[[nodiscard]] result<admission> accept_sequence(Cache& cache, const sequence_offer& offer,
                                                const block_storage_view& from, std::string_view model,
                                                typename Cache::stream_type stream) {
  if (const auto format = make_record_format(cache, model).text; format != offer.format) {
    return another_format("characters of an offer's format, which is not the cache's,", std::ssize(offer.format),
                          offer.format, format);
  }
  if (std::ssize(offer.blocks) != offer.head.num_records()) {
    return error{error_code::invalid_argument, "number of blocks offered", std::ssize(offer.blocks),
                 offer.head.num_records()};
  }
  return start_from(cache, offer.head, stream, [&](std::span<const block_id> blocks) {
    auto pairs = std::vector<block_pair>{};
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i] != no_block) {
        pairs.push_back({static_cast<std::int32_t>(offer.blocks[i]), static_cast<std::int32_t>(blocks[i])});
      }
    }
    return cache.backend().swap_blocks(from, cache.blocks(), pairs, swap_direction::from_peer, stream);
  });
}

}  // namespace detail

/// An offer as bytes, for another process on this host, and back. Errors: `invalid_argument` for bytes that are
/// damaged; `out_of_memory`.
[[nodiscard]] inline result<std::vector<std::byte>> encode_offer(const sequence_offer& offer) noexcept {
  const auto encode = [&]() -> result<std::vector<std::byte>> {
    return detail::encode_head(offer.head, offer.format, offer.blocks);
  };
  return detail::with_memory(encode, error{error_code::out_of_memory, "memory to encode an offer"});
}
[[nodiscard]] inline result<sequence_offer> decode_offer(std::span<const std::byte> bytes) noexcept {
  const auto decode = [&]() -> result<sequence_offer> {
    auto read = detail::decode_head(bytes);
    if (!read) {
      return error{error_code::invalid_argument, "bytes of an offer, which is damaged,", std::ssize(bytes)};
    }
    return sequence_offer{std::move(read->format), std::move(read->head), std::move(read->blocks)};
  };
  return detail::with_memory(decode, error{error_code::out_of_memory, "memory to decode an offer"});
}

/// Describes a sequence of any cache for another one, of this process or of another one. Its blocks must stay as they
/// are until the other cache has copied them: keep the sequence. Errors: those of `save_sequence`.
template <class Cache>
[[nodiscard]] result<sequence_offer> offer_sequence(const Cache& cache, sequence_id id,
                                                    const offer_options& options = {}) noexcept {
  const auto offer = [&] { return detail::offer_sequence(cache, id, options); };
  return detail::with_memory(offer, error{error_code::out_of_memory, "memory to offer a sequence"});
}

/// Starts a sequence as it was offered: shares what the cache has already, copies other blocks from `from`, the other
/// cache's storage as this device reaches it, on `stream`, and commits as far as the offered one was. K/V of the
/// offered sequence must be written ahead of `stream`; the call does not wait for the copy. A sequence of a `kv_cache`
/// whose first blocks were dropped publishes nothing, then or later. Neither `compact` nor `resize` of the two caches
/// may move blocks meanwhile.
///
/// Errors: `invalid_argument` for an offer of another format; those of `create_sequence`; `backend_failure`;
/// `out_of_memory`. Then the cache is as it was.
template <class Cache>
  requires swaps_blocks<typename Cache::backend_type>
[[nodiscard]] result<admission> accept_sequence(Cache& cache, const sequence_offer& offer,
                                                const block_storage_view& from, std::string_view model = {},
                                                typename Cache::stream_type stream = {}) noexcept {
  const auto accept = [&] { return detail::accept_sequence(cache, offer, from, model, stream); };
  return detail::with_memory(accept, error{error_code::out_of_memory, "memory to take over a sequence"});
}

/// Copies a sequence to another cache of this process, for example from the device that prefilled to the one that
/// decodes: `accept_sequence` of its offer. The stream is the receiving cache's. Release the first sequence when the
/// copy has run. Errors: those of `offer_sequence` and `accept_sequence`.
template <class From, class To>
  requires swaps_blocks<typename To::backend_type>
[[nodiscard]] result<admission> hand_over(const From& from, sequence_id id, To& to, const offer_options& options = {},
                                          typename To::stream_type stream = {}) noexcept {
  const auto offer = offer_sequence(from, id, options);
  return offer ? accept_sequence(to, *offer, from.blocks(), options.model, stream) : offer.error();
}

}  // namespace pagedkv
