#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace pagedkv::test {

enum class action : std::uint8_t {
  create,
  append_one,
  append_run,
  reserve_slots,
  append_batch,
  compute,
  write_ahead,
  fork,
  truncate,
  drop_before,
  release,
  pin,
  unpin,
  unpin_all,
  invalidate,
  find_prefix,
  begin_step,
  retire_step,
  evict,
  compact,
  resize,
  reset,
  advance_time,
  update_batches,
  ask_wrongly,
  use_dead_id,
  serve,
  number_of_actions,
};

/// One operation on a cache. The numbers say on what, relative to whatever is alive when it runs: a sequence of
/// operations stays meaningful when some of them are taken out.
struct operation {
  action what{};
  std::uint32_t a = 0;
  std::uint32_t b = 0;
  std::uint32_t c = 0;
};

/// `serves`: in two of five operations, a prompt runs from its start to its end, so that much is evicted and comes
/// back.
[[nodiscard]] std::vector<operation> random_operations(std::uint64_t seed, std::size_t count, bool serves = false);

/// One line for each.
[[nodiscard]] std::string to_string(const std::vector<operation>& operations);

/// Takes out operations, in chunks and then singly, as long as `fails` still says true.
[[nodiscard]] std::vector<operation> shrink(std::vector<operation> operations,
                                            const std::function<bool(const std::vector<operation>&)>& fails);

}  // namespace pagedkv::test
