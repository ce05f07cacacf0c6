// Bytes that are written to be read back: damaged ones, and ones that are sealed although their contents make no sense.
// A refusal leaves a cache as it was.

#include "../support/small_config.hpp"
#include "target.hpp"

#include <pagedkv/pagedkv.hpp>
#include <pagedkv/tier/hand_over.hpp>
#include <pagedkv/tier/record.hpp>
#include <pagedkv/tier/session_file.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <numeric>
#include <string>

namespace pagedkv::fuzz {

namespace {

using cache_type = kv_cache<>;
constexpr auto num_blocks = 12;

/// The first byte of an input says whether it gets the checksum that it needs.
template <class Header>
std::vector<std::byte> sealed(input bytes) {
  const auto body = bytes.subspan(std::min<std::size_t>(bytes.size(), 1));
  auto made = std::vector<std::byte>{};
  std::ranges::transform(body, std::back_inserter(made), [](std::uint8_t each) { return std::byte{each}; });
  auto first = typename Header::fields{};
  if (bytes.empty() || bytes[0] % 2 == 0 || made.size() < sizeof(first)) {
    return made;
  }
  const auto right = first;
  std::memcpy(&first, made.data(), sizeof(first));
  first.magic = right.magic;
  first.version = right.version;
  first.size = std::clamp<std::uint64_t>(first.size, sizeof(first), made.size());
  first.checksum = 0;
  const auto rest = static_cast<std::size_t>(first.size) - sizeof(first);
  first.checksum = XXH3_64bits_withSeed(&first, sizeof(first), XXH3_64bits(made.data() + sizeof(first), rest));
  std::memcpy(made.data(), &first, sizeof(first));
  return made;
}

std::vector<std::vector<std::uint8_t>> unsealed_and_sealed(std::span<const std::byte> bytes) {
  auto both = std::vector<std::vector<std::uint8_t>>(2);
  for (auto how = std::uint8_t{0}; how < 2; ++how) {
    both[how].push_back(how);
    for (const auto each : bytes) {
      both[how].push_back(static_cast<std::uint8_t>(each));
    }
  }
  return both;
}

sequence_id make_sequence(cache_type& cache) {
  auto tokens = std::vector<token>(19);
  std::iota(tokens.begin(), tokens.end(), 1);
  const auto id = cache.create_sequence(tokens).value().id;
  cache.commit(id, 17).value();
  return id;
}

void check_answer(cache_type& cache, const result<admission>& answer) {
  if (answer) {
    cache.release(answer->id).value();
  }
  require(cache.statistics().blocks.in_use == 0 && cache.statistics().num_sequences == 0,
          "a refusal leaves blocks in use");
  for (const auto& sentence : cache.check_invariants()) {
    require(false, sentence);
  }
}

/// A file without a name on a disk.
class memory_file {
 public:
  explicit memory_file(std::span<const std::byte> bytes) : number_(::memfd_create("session", 0)) {
    require(number_ >= 0 && ::write(number_, bytes.data(), bytes.size()) == std::ssize(bytes), "no file in memory");
  }
  memory_file(const memory_file&) = delete;
  memory_file& operator=(const memory_file&) = delete;
  ~memory_file() { ::close(number_); }

  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(number_); }

 private:
  int number_;
};

std::vector<std::byte> file_of_session() {
  auto cache = cache_type{test::small_config(num_blocks)};
  const auto folder = std::string{"/tmp/pagedkv_fuzz_"} + std::to_string(::getpid());
  save_sequence(cache, make_sequence(cache), folder).value();
  auto bytes = std::vector<std::byte>(1 << 16);
  auto* const file = std::fopen(folder.c_str(), "rb");
  bytes.resize(std::fread(bytes.data(), 1, bytes.size(), file));
  std::fclose(file);
  std::remove(folder.c_str());
  return bytes;
}

record_format format_of_records() {
  static const auto cache = cache_type{test::small_config(num_blocks)};
  return make_record_format(cache.view(), "float32", "fuzz");
}

/// As long as a record.
std::vector<std::byte> as_record(std::vector<std::byte> bytes) {
  bytes.resize(format_of_records().record_bytes());
  return bytes;
}

}  // namespace

const target records{
    "records",
    [] {
      const auto format = format_of_records();
      const auto tokens = std::vector<token>{1, 2, 3, 4};
      auto record = as_record({});
      auto identity = record_identity{};
      identity.position = 4;
      identity.contents = block_contents{tokens};
      require(seal_record(format, identity, record), "a record is not sealed");
      return unsealed_and_sealed(record);
    },
    [](input bytes) {
      const auto format = format_of_records();
      const auto record = as_record(sealed<detail::record_header>(bytes));
      const auto read = read_record_header(format, record);
      if (read.fault == record_fault::none) {
        require(read.identity.contents.tokens.size() == 4, "a record has another number of tokens");
        const auto answer = verify_record(format, read.identity, record);
        require(answer == record_fault::none || answer == record_fault::damaged, "a record differs from itself");
      }
    },
};

const target sessions{
    "sessions",
    [] { return unsealed_and_sealed(file_of_session()); },
    [](input bytes) {
      const auto file = memory_file(sealed<detail::sealed_header<detail::session_numbers>>(bytes));
      auto cache = cache_type{test::small_config(num_blocks)};
      check_answer(cache, restore_sequence(cache, file.path()));
    },
};

const target offers{
    "offers",
    [] {
      auto cache = cache_type{test::small_config(num_blocks)};
      const auto offer = offer_sequence(cache, make_sequence(cache)).value();
      return unsealed_and_sealed(encode_offer(offer).value());
    },
    [](input bytes) {
      const auto offer = decode_offer(sealed<detail::sealed_header<detail::session_numbers>>(bytes));
      if (offer) {
        const auto from = cache_type{test::small_config(num_blocks)};
        auto cache = cache_type{test::small_config(num_blocks)};
        check_answer(cache, accept_sequence(cache, *offer, from.blocks()));
      }
    },
};

}  // namespace pagedkv::fuzz
