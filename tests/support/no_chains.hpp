#pragma once

#include <pagedkv/core/ids.hpp>

namespace pagedkv::testing {

/// Stands for the prefix index, of which a pool only asks that it forgets: it has nothing.
struct no_chains {
  [[nodiscard]] bool has_children(block_id) const noexcept { return false; }
  [[nodiscard]] bool has_twin(block_id, auto&&) const noexcept { return false; }
  void detach(block_id) noexcept {}
  void attach(block_id) noexcept {}
  void erase(block_id) noexcept {}
  void withdraw(block_id) noexcept {}
};

}  // namespace pagedkv::testing
