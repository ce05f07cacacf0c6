#include "audited_pool.hpp"

#include <pagedkv/pool/block_pool.hpp>

#include <array>

namespace pagedkv::model_check {

/// Old contents or a miss, nothing between.
void hit_and_eviction() {
  auto pool = audited_pool{1};
  const auto block = pool.publish();
  pool.release(block);
  at_once([&] { pool.hit(block); }, [&] { pool.evict(); });
}

void two_evictions() {
  auto pool = audited_pool{1};
  pool.release(pool.publish());
  auto evicted = std::array{false, false};
  at_once([&] { evicted[0] = pool.evict(); }, [&] { evicted[1] = pool.evict(); });
  expect(evicted[0] != evicted[1], "one block is evicted twice, or not at all");
}

void lease_and_release() {
  auto pool = audited_pool{1};
  const auto block = pool.publish();
  at_once([&] { pool.release(block); },
          [&] {
            if (pool.pool().lease(block)) {
              pool.pool().end_lease(block);
            }
          });
  pool.check();
}

void hit_and_release() {
  auto pool = audited_pool{1};
  const auto block = pool.publish();
  at_once([&] { pool.release(block); }, [&] { pool.hit(block); });
  pool.check();
}

void lease_and_eviction() {
  auto pool = audited_pool{1};
  const auto block = pool.publish();
  pool.release(block);
  at_once(
      [&] {
        if (pool.pool().lease(block)) {
          pool.pool().end_lease(block);
        }
      },
      [&] { pool.evict(); });
}

void two_releases_and_a_lease() {
  auto pool = audited_pool{1};
  const auto block = pool.publish();
  expect(pool.pool().reference_published(block), "a block in use cannot be shared");
  at_once([&] { pool.release(block); }, [&] { pool.release(block); },
          [&] {
            if (pool.pool().lease(block)) {
              pool.pool().end_lease(block);
            }
          });
  pool.check();
}

}  // namespace pagedkv::model_check

int main() { pagedkv::model_check::PAGEDKV_SCENE(); }
