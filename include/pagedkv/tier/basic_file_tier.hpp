#pragma once

#include <pagedkv/core/result.hpp>
#include <pagedkv/detail/deadline.hpp>
#include <pagedkv/detail/memory.hpp>
#include <pagedkv/policy/tiers/concept.hpp>
#include <pagedkv/tier/file_engine.hpp>
#include <pagedkv/tier/file_set.hpp>
#include <pagedkv/tier/record.hpp>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pagedkv {

namespace detail {

/// Executes batches of transfers through an engine, in parts, `depth` at once. A slot owns the memory that the kernel
/// reads and writes, so a request that outlives its batch touches nothing of the caller's: its slot lingers until the
/// request completes. One slot more than requests lets the calling thread copy while all requests are in flight.
template <file_engine Engine>
class file_transfers {
 public:
  using clock = std::chrono::steady_clock;

  file_transfers(std::unique_ptr<Engine> engine, transfer_memory memory, std::size_t slot_bytes, std::int32_t depth,
                 std::chrono::nanoseconds timeout)
      : memory_(std::move(memory)),
        slot_bytes_(slot_bytes),
        timeout_(timeout),
        depth_(static_cast<std::size_t>(depth)),
        slots_(num_slots(depth)),
        engine_(std::move(engine)) {
    for (auto slot = slots_.size(); slot-- > 0;) {
      free_.push_back(slot);
    }
  }

  file_transfers(const file_transfers&) = delete;
  file_transfers& operator=(const file_transfers&) = delete;
  ~file_transfers() { assert(num_lingering_ == 0 && "the kernel still uses the memory"); }

  [[nodiscard]] static std::size_t num_slots(std::int32_t depth) noexcept {
    return static_cast<std::size_t>(depth) + 1;
  }

  /// Before the first batch.
  void use(file_set files) noexcept { files_ = std::move(files); }

  [[nodiscard]] const file_set& files() const noexcept { return files_; }
  [[nodiscard]] Engine& engine() noexcept { return *engine_; }
  [[nodiscard]] std::size_t num_lingering() const noexcept { return num_lingering_; }

  /// Transfers the first bytes of records, as many as each transfer has, and sets all outcomes.
  void execute(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes, bool is_write) noexcept {
    assert(outcomes.size() == batch.size() && "an outcome for each transfer");
    const auto deadline = deadline_in(timeout_);
    std::ranges::fill(outcomes, transfer_outcome::done);
    batch_ = batch;
    outcomes_ = outcomes;
    next_ = {};
    is_write_ = is_write;
    reap_lingering(clock::now());
    while (start_parts(), num_running_ > 0) {
      const auto completion = engine_->next(deadline);
      if (completion) {
        end_request(*completion);
      }
      if (!completion || clock::now() >= deadline) {
        give_up();
      }
    }
    fail_rest();
    batch_ = {};
    outcomes_ = {};
  }

  /// Waits until no request lingers; false if one does so beyond the timeout.
  [[nodiscard]] bool settle() noexcept {
    reap_lingering(deadline_in(timeout_));
    return num_lingering_ == 0;
  }

 private:
  enum class slot_state : std::uint8_t { free, prepared, running, lingering };

  struct slot_use {
    std::size_t transfer = 0;  // in the batch
    std::int64_t place = 0;
    std::size_t begin = 0;  // in the record
    std::size_t size = 0;
    std::size_t num_done = 0;
    bool is_write = false;
    slot_state state = slot_state::free;
  };

  struct position {
    std::size_t transfer = 0;
    std::size_t begin = 0;
  };

  [[nodiscard]] std::span<std::byte> memory_of(std::size_t slot) const noexcept {
    return {memory_.get() + slot * slot_bytes_, slots_[slot].size};
  }

  /// Starts as many as may be in flight, and prepares one more.
  void start_parts() noexcept {
    while (prepare_part() && num_running_ + num_lingering_ < depth_) {
      ++num_running_;
      slots_[*prepared_].state = slot_state::running;
      request(*prepared_);
      prepared_.reset();
    }
  }

  /// Gives the next part of the batch a slot, unless one has been prepared. False if there is no part, or no slot.
  [[nodiscard]] bool prepare_part() noexcept {
    while (!prepared_ && next_.transfer < batch_.size() && !free_.empty()) {
      if (outcomes_[next_.transfer] != transfer_outcome::done || is_overtaken()) {
        next_ = {next_.transfer + 1, 0};
      } else {
        prepare(free_.back());
      }
    }
    return prepared_.has_value();
  }

  void prepare(std::size_t slot) noexcept {
    const auto& transfer = batch_[next_.transfer];
    assert(transfer.place >= 0 && transfer.place < files_.num_places() && "a place of this tier");
    assert(transfer.bytes.size() <= files_.record_bytes() && "a record of this tier's format");
    free_.pop_back();
    prepared_ = slot;
    const auto size = std::min(slot_bytes_, transfer.bytes.size() - next_.begin);
    slots_[slot] = {next_.transfer, transfer.place, next_.begin, size, 0, is_write_, slot_state::prepared};
    if (is_write_) {
      std::memcpy(memory_of(slot).data(), transfer.bytes.data() + next_.begin, size);
    }
    next_.begin += size;
    if (next_.begin == transfer.bytes.size()) {
      next_ = {next_.transfer + 1, 0};
    }
  }

  /// Fails a transfer to a place where an earlier write may still arrive, and replace what is written now.
  [[nodiscard]] bool is_overtaken() noexcept {
    if (!is_write_ || num_lingering_ == 0) {
      return false;
    }
    const auto place = batch_[next_.transfer].place;
    const auto found = std::ranges::any_of(slots_, [&](const slot_use& other) {
      return other.state == slot_state::lingering && other.is_write && other.place == place;
    });
    if (found) {
      outcomes_[next_.transfer] = transfer_outcome::failed;
    }
    return found;
  }

  void request(std::size_t slot) noexcept {
    const auto& part = slots_[slot];
    const auto [descriptor, offset] = files_.locate(part.place);
    const auto begin = static_cast<std::int64_t>(part.begin + part.num_done);
    engine_->start({slot, descriptor, offset + begin, memory_of(slot).subspan(part.num_done), part.is_write});
  }

  void end_request(const file_completion& completion) noexcept {
    if (slots_[completion.slot].state == slot_state::running) {
      complete(completion.slot, completion.outcome);
    } else {
      end_lingering(completion.slot);
    }
  }

  void complete(std::size_t slot, std::int64_t outcome) noexcept {
    auto& part = slots_[slot];
    // The end of a file may be anywhere, but transfers without the page cache go on only at these.
    const auto progress =
        outcome < 0 ? std::size_t{0} : static_cast<std::size_t>(outcome) / record_alignment * record_alignment;
    part.num_done += progress;
    const auto is_interrupted = outcome == -EINTR || outcome == -EAGAIN;
    if (is_interrupted || (progress > 0 && part.num_done < part.size)) {
      request(slot);
      return;
    }
    --num_running_;
    if (part.num_done < part.size) {
      const auto is_beyond_end = !part.is_write && outcome >= 0;
      outcomes_[part.transfer] = is_beyond_end ? transfer_outcome::missing : transfer_outcome::failed;
    } else if (!part.is_write) {
      start_parts();  // before the copy, so that the disk does not wait for it
      std::memcpy(batch_[part.transfer].bytes.data() + part.begin, memory_of(slot).data(), part.size);
    }
    free_slot(slot);
  }

  void free_slot(std::size_t slot) noexcept {
    slots_[slot].state = slot_state::free;
    free_.push_back(slot);
  }

  void end_lingering(std::size_t slot) noexcept {
    --num_lingering_;
    free_slot(slot);
  }

  void reap_lingering(file_deadline deadline) noexcept {
    while (num_lingering_ > 0) {
      const auto completion = engine_->next(deadline);
      if (!completion) {
        return;
      }
      end_lingering(completion->slot);
    }
  }

  /// Fails transfers that have not been started.
  void fail_rest() noexcept {
    if (prepared_) {
      outcomes_[slots_[*prepared_].transfer] = transfer_outcome::failed;
      free_slot(*prepared_);
      prepared_.reset();
    }
    std::ranges::fill(outcomes_.subspan(next_.transfer), transfer_outcome::failed);
    next_ = {batch_.size(), 0};
  }

  /// Fails all transfers that have not ended.
  void give_up() noexcept {
    fail_rest();
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      if (auto& part = slots_[slot]; part.state == slot_state::running) {
        outcomes_[part.transfer] = transfer_outcome::failed;
        part.state = slot_state::lingering;
        ++num_lingering_;
        engine_->cancel(slot);
      }
    }
    num_running_ = 0;
    reap_lingering(clock::now());
  }

  file_set files_;
  transfer_memory memory_;
  std::size_t slot_bytes_;
  std::chrono::nanoseconds timeout_;
  std::size_t depth_;
  std::vector<slot_use> slots_;
  std::vector<std::size_t> free_;
  std::size_t num_running_ = 0;
  std::size_t num_lingering_ = 0;
  std::span<const record_transfer> batch_;  // that is executed
  std::span<transfer_outcome> outcomes_;
  bool is_write_ = false;
  position next_;                        // not yet prepared
  std::optional<std::size_t> prepared_;  // a slot
  std::unique_ptr<Engine> engine_;       // last, so that it ends first
};

/// Ends transfers, or leaves them and their memory to the kernel when it does not complete them.
struct end_transfers {
  template <class Transfers>
  void operator()(Transfers* transfers) const noexcept {
    if (transfers->settle()) {
      delete transfers;
    }
  }
};

}  // namespace detail

/// How a tier in files transfers records.
struct file_tier_options {
  std::int32_t queue_depth = 32;                      // requests in flight, of at most 1 MiB each; up to 1,024
  std::chrono::nanoseconds timeout = std::chrono::seconds{10};  // of a batch; requests in flight end later
};

/// Records in preallocated files, which a later process opens again. Transfers bypass the page cache where the file
/// system can. Each place has one record, as it was written last; a header's checksum covers the payload's, so parts
/// arrive in any order, and no write waits for the device's cache.
///
/// One thread at a time uses a tier. A timed-out batch leaves its requests to the kernel: their memory is the tier's,
/// and writes to their places fail until they have ended. Destruction waits for them as long as for a batch, then
/// leaves them their memory and their files.
///
/// `Engine`: `uring_files`, `thread_files`, or `automatic_files`, which prefers the first.
template <file_engine Engine>
class basic_file_tier {
 public:
  static constexpr std::string_view name = "file_tier";

  /// Makes the files, or opens those that hold records of this format already, in any order, and locks them.
  /// `bytes`: of all files together, allocated at once; larger files are cut to it. Makes as many places as fit.
  /// A refused call leaves all files as they were.
  ///
  /// Errors: `invalid_argument` for sizes, and for a file with records of another format or with something else, which
  /// stays as it is; `in_use` for a file of another tier or process, after as long as a batch may take, since the
  /// kernel may still complete requests of a process that died; `backend_failure` with the system's words, `ENOSPC`
  /// among them; `out_of_memory`.
  [[nodiscard]] static result<basic_file_tier> create(const std::vector<std::string>& paths, std::int64_t bytes,
                                                      const record_format& format,
                                                      const file_tier_options& options = {}) noexcept {
    constexpr auto deepest = 1'024;
    if (options.queue_depth < 1 || options.queue_depth > deepest) {
      return error{error_code::invalid_argument, "file_tier_options.queue_depth", options.queue_depth,
                   options.queue_depth < 1 ? 1 : deepest};
    }
    const auto construct = [&]() -> result<basic_file_tier> { return make(paths, bytes, format, options); };
    return detail::with_memory(construct, error{error_code::out_of_memory, "bytes of a tier's files", bytes});
  }

  /// Records that the files have room for.
  [[nodiscard]] std::int64_t num_places() const noexcept { return transfers_->files().num_places(); }

  /// Whether transfers bypass the page cache. Some file systems, of memory for example, refuse that.
  [[nodiscard]] bool direct() const noexcept { return transfers_->files().direct(); }

  /// The name of the engine at work.
  [[nodiscard]] std::string_view engine() const noexcept { return transfers_->engine().name(); }

  /// Requests of timed-out batches that the kernel has not ended, as of the last batch.
  [[nodiscard]] std::size_t num_lingering() const noexcept { return transfers_->num_lingering(); }

  /// Writes the records of a batch, with an outcome for each. They need different places: of two to one place, either
  /// may be there afterwards, or neither.
  void write(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    assert(has_record_sizes(batch) && "whole records of this tier's format");
    transfers_->execute(batch, outcomes, true);
  }

  /// Reads the records of a batch, with an outcome for each. A place that was never written is read, and its record
  /// does not verify. One beyond the end of a file that was cut is `missing`.
  void read(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    assert(has_record_sizes(batch) && "whole records of this tier's format");
    transfers_->execute(batch, outcomes, false);
  }

  /// Writes an empty header into the place of each record of a batch, with an outcome for each.
  void erase(std::span<const record_transfer> batch, std::span<transfer_outcome> outcomes) noexcept {
    auto headers = std::array<record_transfer, num_erased>{};
    while (!batch.empty()) {
      const auto size = std::min(batch.size(), headers.size());
      for (std::size_t i = 0; i < size; ++i) {
        headers[i] = {batch[i].key, batch[i].place, no_header_};
      }
      transfers_->execute(std::span{headers}.first(size), outcomes.first(size), true);
      batch = batch.subspan(size);
      outcomes = outcomes.subspan(size);
    }
  }

  /// See `persistent_tier`. Reads all headers. May throw `std::bad_alloc`.
  template <class Visitor>
  std::int64_t for_each_record(const Visitor& visit) {
    const auto header_bytes = format_.header_bytes();
    const auto memory = detail::allocate_transfer_memory(std::size_t{num_scanned} * header_bytes);
    if (memory == nullptr) {
      detail::fail({error_code::out_of_memory, "bytes of headers", static_cast<std::int64_t>(header_bytes)});
    }
    auto num_unread = std::int64_t{0};
    auto transfers = std::array<record_transfer, num_scanned>{};
    auto outcomes = std::array<transfer_outcome, num_scanned>{};
    for (std::int64_t first = 0; first < num_places(); first += std::int64_t{num_scanned}) {
      const auto size = static_cast<std::size_t>(std::min<std::int64_t>(num_scanned, num_places() - first));
      for (std::size_t i = 0; i < size; ++i) {
        transfers[i] = {{}, first + static_cast<std::int64_t>(i), {memory.get() + i * header_bytes, header_bytes}};
      }
      transfers_->execute(std::span{transfers}.first(size), std::span{outcomes}.first(size), false);
      for (std::size_t i = 0; i < size; ++i) {
        num_unread += outcomes[i] == transfer_outcome::done ? 0 : 1;
        visit_record(transfers[i], outcomes[i], visit);
      }
    }
    return num_unread;
  }

 private:
  static constexpr auto num_scanned = std::int32_t{256};
  static constexpr auto num_erased = std::size_t{64};
  static constexpr auto largest_request = std::size_t{1} << 20;

  using transfers_type = detail::file_transfers<Engine>;

  basic_file_tier(std::unique_ptr<transfers_type, detail::end_transfers> transfers, record_format format)
      : transfers_(std::move(transfers)), no_header_(format.header_bytes()), format_(std::move(format)) {}

  [[nodiscard]] static result<basic_file_tier> make(const std::vector<std::string>& paths, std::int64_t bytes,
                                                    const record_format& format, const file_tier_options& options) {
    auto engine = Engine::create(options.queue_depth);
    if (!engine) {
      return engine.error();
    }
    const auto slot_bytes = std::max(std::min(format.record_bytes(), largest_request), format.header_bytes());
    auto memory = detail::allocate_transfer_memory(slot_bytes * transfers_type::num_slots(options.queue_depth));
    if (memory == nullptr) {
      return error{error_code::out_of_memory, "file_tier_options.queue_depth", options.queue_depth};
    }
    auto transfers = std::unique_ptr<transfers_type, detail::end_transfers>(
        new transfers_type(std::move(*engine), std::move(memory), slot_bytes, options.queue_depth, options.timeout));
    auto tier = basic_file_tier(std::move(transfers), format);
    auto files = detail::file_set::open(paths, bytes, format, options.timeout);  // last: nothing takes it back
    if (!files) {
      return files.error();
    }
    tier.transfers_->use(std::move(*files));
    return result<basic_file_tier>{std::move(tier)};
  }

  [[nodiscard]] bool has_record_sizes(std::span<const record_transfer> batch) const noexcept {
    return std::ranges::all_of(
        batch, [&](const record_transfer& transfer) { return transfer.bytes.size() == format_.record_bytes(); });
  }

  template <class Visitor>
  void visit_record(const record_transfer& transfer, transfer_outcome outcome, const Visitor& visit) const {
    if (outcome != transfer_outcome::done) {
      return;
    }
    const auto [fault, identity] = read_record_header(format_, transfer.bytes);
    if (fault == record_fault::none) {
      visit(transfer.place, identity);
    }
  }

  std::unique_ptr<transfers_type, detail::end_transfers> transfers_;
  std::vector<std::byte> no_header_;
  record_format format_;
};

}  // namespace pagedkv
