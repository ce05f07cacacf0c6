#include "audited_pool.hpp"

#include <pagedkv/core/step_set.hpp>
#include <pagedkv/pool/block_pool.hpp>
#include <pagedkv/pool/block_retirement.hpp>

namespace pagedkv::model_check {

void retire_and_release() {
  auto pool = audited_pool{1};
  const auto block = pool.allocate();
  const auto step = pool.pool().begin_step().value();
  at_once([&] { pool.release(block); },
          [&] { expect(pool.pool().retire_step(step).has_value(), "the step cannot be retired"); });
  pool.check();
}

/// Two steps that retire at once do not both leave the block to the other.
void two_retirements() {
  auto pool = audited_pool{1};
  const auto block = pool.allocate();
  const auto first = pool.pool().begin_step().value();
  const auto second = pool.pool().begin_step().value();
  pool.release(block);
  at_once([&] { expect(pool.pool().retire_step(first).has_value(), "the first step cannot be retired"); },
          [&] { expect(pool.pool().retire_step(second).has_value(), "the second step cannot be retired"); });
  pool.check();
}

void steps_alone() {
  auto steps = step_fence<atomic>{};
  const auto first = steps.begin().value();
  const auto second = steps.begin().value();
  at_once([&] { expect(steps.retire(first).has_value(), "the first step cannot be retired"); },
          [&] { expect(steps.retire(second).has_value(), "the second step cannot be retired"); });
  expect(!steps.in_flight(), "a retired step is in flight");
}

void three_steps_alone() {
  auto steps = step_fence<atomic>{};
  const auto first = steps.begin().value();
  const auto second = steps.begin().value();
  const auto third = steps.begin().value();
  at_once([&] { expect(steps.retire(first).has_value(), "the first step cannot be retired"); },
          [&] { expect(steps.retire(second).has_value(), "the second step cannot be retired"); },
          [&] { expect(steps.retire(third).has_value(), "the third step cannot be retired"); });
  expect(!steps.in_flight(), "a retired step is in flight");
}

}  // namespace pagedkv::model_check

int main() { pagedkv::model_check::PAGEDKV_SCENE(); }
