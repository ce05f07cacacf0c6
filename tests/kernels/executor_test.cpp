#include "run_kernel.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <numeric>

namespace {

using namespace pagedkv;
using test::device_array;
using test::run_kernel;
using test::wave_size_scope;

PAGEDKV_KERNEL void reverse(const int* in, int* out) {
  PAGEDKV_SHARED kernels::shared_array<int, 256> values;
  const auto size = kernels::workgroup_extent().x;
  values[kernels::local_index().x] = kernels::load(in + kernels::workgroup_index().x * size + kernels::local_index().x);
  kernels::barrier();
  kernels::store(out + kernels::workgroup_index().x * size + kernels::local_index().x,
                 values[size - 1 - kernels::local_index().x]);
}

PAGEDKV_KERNEL void reverse_in_dynamic_memory(const int* in, int* out) {
  const auto size = kernels::workgroup_extent().x;
  const auto padding = kernels::dynamic_shared<double>(0, 1);
  const auto values = kernels::dynamic_shared<int>(sizeof(double), size);
  if (kernels::local_index().x == 0) {
    padding[0] = 1.5;
  }
  values[kernels::local_index().x] = kernels::load(in + kernels::local_index().x);
  kernels::barrier();
  kernels::store(out + kernels::local_index().x,
                 values[size - 1 - kernels::local_index().x] + static_cast<int>(padding[0] * 2));
}

PAGEDKV_KERNEL void sum_groups(const float* in, float* out, int width) {
  auto value = kernels::load(in + kernels::local_index().x);
  for (auto distance = width / 2; distance > 0; distance /= 2) {
    value += kernels::shuffle_xor(value, distance, width);
  }
  kernels::store(out + kernels::local_index().x, value);
}

PAGEDKV_KERNEL void shuffle_every_way(long long* out, int width) {
  const auto own = 100LL + kernels::local_index().x;
  auto* const results = out + kernels::local_index().x * 4;
  kernels::store(results, kernels::shuffle(own, 1, width));
  kernels::store(results + 1, kernels::shuffle_up(own, 3, width));
  kernels::store(results + 2, kernels::shuffle_down(own, 3, width));
  kernels::store(results + 3, kernels::shuffle_xor(own, 5, width));
}

PAGEDKV_KERNEL void vote(unsigned long long* out) {
  const auto odd = static_cast<int>(kernels::local_index().x % 2);
  auto* const results = out + kernels::local_index().x * 4;
  kernels::store(results, kernels::ballot(odd));
  kernels::store(results + 1, static_cast<unsigned long long>(kernels::any(odd)));
  kernels::store(results + 2, static_cast<unsigned long long>(kernels::all(odd)));
  kernels::store(results + 3, static_cast<unsigned long long>(kernels::wave_size()));
}

PAGEDKV_KERNEL void count(int* global, int* per_workgroup) {
  PAGEDKV_SHARED kernels::shared_array<int, 1> local;
  if (kernels::local_index().x == 0) {
    local[0] = 0;
  }
  kernels::barrier();
  kernels::atomic_add(&local[0], 2);
  kernels::atomic_add(global, 1);
  kernels::atomic_max(global + 1, static_cast<int>(kernels::workgroup_index().x));
  kernels::barrier();
  if (kernels::local_index().x == 0) {
    kernels::store(per_workgroup + kernels::workgroup_index().x, local[0]);
  }
}

PAGEDKV_KERNEL void name_indices(int* out) {
  const auto workgroup = (kernels::workgroup_index().z * kernels::grid_extent().y + kernels::workgroup_index().y) *
                             kernels::grid_extent().x +
                         kernels::workgroup_index().x;
  const auto lane = (kernels::local_index().z * kernels::workgroup_extent().y + kernels::local_index().y) *
                        kernels::workgroup_extent().x +
                    kernels::local_index().x;
  const auto lanes = kernels::workgroup_extent().x * kernels::workgroup_extent().y * kernels::workgroup_extent().z;
  kernels::atomic_add(out + workgroup * lanes + lane, static_cast<int>(workgroup * lanes + lane + 1));
}

// Planted faults.

PAGEDKV_KERNEL void forget_barrier(const int* in, int* out) {
  PAGEDKV_SHARED kernels::shared_array<int, 256> values;
  values[kernels::local_index().x] = kernels::load(in + kernels::local_index().x);
  kernels::store(out + kernels::local_index().x,
                 values[kernels::local_index().x == 0 ? 0 : kernels::local_index().x - 1]);
}

PAGEDKV_KERNEL void forget_barrier_before_later_lanes(const int* in, int* out) {
  PAGEDKV_SHARED kernels::shared_array<int, 256> values;
  values[kernels::local_index().x] = kernels::load(in + kernels::local_index().x);
  kernels::store(out + kernels::local_index().x, values[kernels::workgroup_extent().x - 1 - kernels::local_index().x]);
}

PAGEDKV_KERNEL void overwrite_what_is_read(int* out) {
  PAGEDKV_SHARED kernels::shared_array<int, 256> values;
  values[kernels::local_index().x] = 1;
  kernels::barrier();
  const auto next = int{values[(kernels::local_index().x + 1) % kernels::workgroup_extent().x]};
  values[kernels::local_index().x] = next;
  kernels::store(out + kernels::local_index().x, next);
}

PAGEDKV_KERNEL void work_on_own_element(int* out) {
  PAGEDKV_SHARED kernels::shared_array<int, 256> values;
  values[kernels::local_index().x] = 1;
  values[kernels::local_index().x] += 2;
  values[kernels::local_index().x] += 3;
  kernels::store(out + kernels::local_index().x, values[kernels::local_index().x]);
}

PAGEDKV_KERNEL void add_to_what_another_lane_wrote(int* out) {
  PAGEDKV_SHARED kernels::shared_array<int, 1> sum;
  if (kernels::local_index().x == 0) {
    sum[0] = 0;
  }
  kernels::atomic_add(&sum[0], 1);
  kernels::barrier();
  kernels::store(out + kernels::local_index().x, sum[0]);
}

PAGEDKV_KERNEL void read_what_nobody_wrote(int* out) {
  PAGEDKV_SHARED kernels::shared_array<int, 8> values;
  if (kernels::local_index().x < 7) {
    values[kernels::local_index().x] = 1;
  }
  kernels::barrier();
  kernels::store(out + kernels::workgroup_index().x * 8 + kernels::local_index().x, values[kernels::local_index().x]);
}

PAGEDKV_KERNEL void one_too_far(const int* in, int* out, int size) {
  const auto i =
      static_cast<int>(kernels::workgroup_index().x * kernels::workgroup_extent().x + kernels::local_index().x);
  if (i <= size) {
    kernels::store(out + i, kernels::load(in + i));
  }
}

PAGEDKV_KERNEL void one_too_far_in_shared_memory() {
  PAGEDKV_SHARED kernels::shared_array<int, 64> values;
  values[kernels::local_index().x + 1] = 1;
}

PAGEDKV_KERNEL void one_too_far_in_dynamic_memory(std::size_t size) {
  kernels::dynamic_shared<int>(0, size)[kernels::local_index().x + 1] = 1;
}

PAGEDKV_KERNEL void shuffle_in_half_the_wave(int* out) {
  auto value = static_cast<int>(kernels::local_index().x);
  if (kernels::local_index().x < 16) {
    value += kernels::shuffle_xor(value, 1, 16);
  }
  kernels::store(out + kernels::local_index().x, value);
}

PAGEDKV_KERNEL void barrier_in_one_branch(int* out) {
  if (kernels::local_index().x != 5) {
    kernels::barrier();
  }
  kernels::store(out + kernels::workgroup_index().x * kernels::workgroup_extent().x + kernels::local_index().x, 1);
}

PAGEDKV_KERNEL void different_barriers(int* out) {
  if (kernels::local_index().x < 64) {
    kernels::barrier();
  } else {
    kernels::barrier();
  }
  kernels::store(out + kernels::local_index().x, 1);
}

PAGEDKV_KERNEL void return_before_barrier(int* out) {
  if (kernels::local_index().x == 70) {
    return;
  }
  kernels::barrier();
  kernels::store(out + kernels::local_index().x, 1);
}

PAGEDKV_KERNEL void misaligned(const float* in, float* out) {
  kernels::store_vector(out + 4 * kernels::local_index().x,
                        kernels::load_vector<4>(in + 4 * kernels::local_index().x + 1));
}

PAGEDKV_KERNEL void wrong_width(int* out) { kernels::store(out, kernels::shuffle(1, 0, 48)); }

PAGEDKV_KERNEL void absent_lane(int* out) {
  kernels::store(out + kernels::local_index().x, kernels::shuffle(1, 20, 32));
}

PAGEDKV_KERNEL void failed_check(int limit) {
  kernels::check(static_cast<int>(kernels::local_index().x) < limit, "lane below limit");
}

std::vector<int> counted(std::size_t size) {
  auto values = std::vector<int>(size);
  std::iota(values.begin(), values.end(), 1);
  return values;
}

TEST_CASE("Barriers order accesses to static shared memory in every workgroup") {
  const auto wave = GENERATE(32, 64);
  const auto device = wave_size_scope(wave);
  const auto in = device_array<int>(counted(7 * 256));
  const auto out = device_array<int>(in.size());
  REQUIRE_FALSE(run_kernel<reverse>({{7}, {256}}, static_cast<const int*>(in.data()), out.data()));
  for (auto i = std::size_t{0}; i < in.size(); ++i) {
    REQUIRE(out[i] == in[i / 256 * 256 + 255 - i % 256]);
  }
}

TEST_CASE("Dynamic shared memory holds spans of several types") {
  const auto in = device_array<int>(counted(128));
  const auto out = device_array<int>(128);
  const auto shape = kernels::launch_shape{{1}, {128}, sizeof(double) + 128 * sizeof(int)};
  REQUIRE_FALSE(run_kernel<reverse_in_dynamic_memory>(shape, static_cast<const int*>(in.data()), out.data()));
  for (auto i = std::size_t{0}; i < 128; ++i) {
    REQUIRE(out[i] == in[127 - i] + 3);
  }
}

TEST_CASE("Shuffles exchange within groups of any width") {
  const auto wave = GENERATE(32, 64);
  const auto width = GENERATE(1, 2, 4, 8, 16, 32);
  const auto device = wave_size_scope(wave);
  const auto in = device_array<float>(128);
  const auto sums = device_array<float>(128);
  std::iota(in.data(), in.data() + 128, 0.0F);
  REQUIRE_FALSE(run_kernel<sum_groups>({{1}, {128}}, static_cast<const float*>(in.data()), sums.data(), width));
  const auto results = device_array<long long>(128 * 4);
  REQUIRE_FALSE(run_kernel<shuffle_every_way>({{1}, {128}}, results.data(), width));
  for (auto i = 0; i < 128; ++i) {
    const auto first = i / width * width;
    CHECK(sums[static_cast<std::size_t>(i)] == static_cast<float>(width * first + width * (width - 1) / 2));
    const auto within = [&](int lane) { return lane >= first && lane < first + width ? 100 + lane : 100 + i; };
    const auto* const got = results.data() + i * 4;
    CHECK(got[0] == 100 + first + (1 & (width - 1)));
    CHECK(got[1] == within(i - 3));
    CHECK(got[2] == within(i + 3));
    CHECK(got[3] == within(first + ((i - first) ^ 5)));
  }
}

TEST_CASE("Ballots and votes see exactly the lanes of the wave") {
  const auto wave = GENERATE(32, 64);
  const auto device = wave_size_scope(wave);
  const auto out = device_array<unsigned long long>(80 * 4);
  REQUIRE_FALSE(run_kernel<vote>({{1}, {80}}, out.data()));
  for (auto i = std::size_t{0}; i < 80; ++i) {
    const auto whole = wave == 64 ? 0xAAAAAAAAAAAAAAAAULL : 0xAAAAAAAAULL;
    const auto partial = i >= 64;
    CHECK(out[i * 4] == (partial ? 0xAAAAULL : whole));
    CHECK(out[i * 4 + 1] == 1);
    CHECK(out[i * 4 + 2] == 0);
    CHECK(out[i * 4 + 3] == static_cast<unsigned long long>(wave));
  }
}

TEST_CASE("Atomics are atomic across lanes and workgroups") {
  const auto global = device_array<int>(2);
  const auto local = device_array<int>(40);
  REQUIRE_FALSE(run_kernel<count>({{40}, {96}}, global.data(), local.data()));
  CHECK(global[0] == 40 * 96);
  CHECK(global[1] == 39);
  CHECK(local.values() == std::vector<int>(40, 2 * 96));
}

TEST_CASE("Every lane of every workgroup runs once, in three dimensions") {
  const auto out = device_array<int>(2 * 3 * 4 * 5 * 6 * 2);
  REQUIRE_FALSE(run_kernel<name_indices>({{2, 3, 4}, {5, 6, 2}}, out.data()));
  CHECK(out.values() == counted(out.size()));
}

TEST_CASE("A missing barrier is reported") {
  const auto in = device_array<int>(counted(256));
  const auto out = device_array<int>(256);
  const auto found = run_kernel<forget_barrier>({{1}, {256}}, static_cast<const int*>(in.data()), out.data());
  REQUIRE(found);
  CHECK(found->kind == executor::fault_kind::shared_race);
  CHECK(found->kernel.find("forget_barrier") != std::string::npos);
  CHECK(found->lane == 1);
  CHECK(found->message().find("lane 0 wrote since the last barrier") != std::string::npos);
  const auto shape = kernels::launch_shape{{1}, {256}};
  const auto early =
      run_kernel<forget_barrier_before_later_lanes>(shape, static_cast<const int*>(in.data()), out.data());
  REQUIRE(early);
  CHECK(early->kind == executor::fault_kind::uninitialised_shared_read);
}

TEST_CASE("Writing shared memory that another lane still reads is reported") {
  const auto out = device_array<int>(256);
  const auto found = run_kernel<overwrite_what_is_read>({{1}, {256}}, out.data());
  REQUIRE(found);
  CHECK(found->kind == executor::fault_kind::shared_race);
}

TEST_CASE("A lane may read and write its own element as often as it likes") {
  const auto out = device_array<int>(256);
  REQUIRE_FALSE(run_kernel<work_on_own_element>({{2}, {256}}, out.data()));
  CHECK(out[0] == 6);
  CHECK(out[255] == 6);
}

TEST_CASE("An atomic on an element that another lane wrote without a barrier is reported") {
  const auto out = device_array<int>(64);
  const auto found = run_kernel<add_to_what_another_lane_wrote>({{1}, {64}}, out.data());
  REQUIRE(found);
  CHECK(found->kind == executor::fault_kind::shared_race);
}

TEST_CASE("Reading unwritten shared memory is reported, also when an earlier workgroup wrote it") {
  const auto out = device_array<int>(3 * 8);
  REQUIRE_FALSE(run_kernel<read_what_nobody_wrote>({{3}, {7}}, out.data()));
  const auto found = run_kernel<read_what_nobody_wrote>({{1}, {8}}, out.data());
  REQUIRE(found);
  CHECK(found->kind == executor::fault_kind::uninitialised_shared_read);
  CHECK(found->lane == 7);
}

TEST_CASE("An access one past the end is reported with workgroup and lane") {
  const auto in = device_array<int>(counted(200));
  const auto out = device_array<int>(201);
  const auto found = run_kernel<one_too_far>({{4}, {64}}, static_cast<const int*>(in.data()), out.data(), 200);
  REQUIRE(found);
  CHECK(found->kind == executor::fault_kind::global_out_of_bounds);
  CHECK(found->workgroup.x == 3);
  CHECK(found->lane == 200 % 64);
  CHECK(out[200] == 0);
}

TEST_CASE("An access one past the end of shared memory is reported") {
  const auto found = run_kernel<one_too_far_in_shared_memory>({{1}, {64}});
  REQUIRE(found);
  CHECK(found->kind == executor::fault_kind::shared_out_of_bounds);
  CHECK(found->lane == 63);
  const auto shape = kernels::launch_shape{{1}, {64}, 64 * sizeof(int)};
  const auto in_span = run_kernel<one_too_far_in_dynamic_memory>(shape, std::size_t{64});
  REQUIRE(in_span);
  CHECK(in_span->kind == executor::fault_kind::shared_out_of_bounds);
  const auto span_too_long = run_kernel<one_too_far_in_dynamic_memory>(shape, std::size_t{65});
  REQUIRE(span_too_long);
  CHECK(span_too_long->lane == 0);
}

TEST_CASE("A shuffle that part of the wave skips is reported") {
  const auto wave = GENERATE(32, 64);
  const auto device = wave_size_scope(wave);
  const auto out = device_array<int>(64);
  const auto found = run_kernel<shuffle_in_half_the_wave>({{1}, {64}}, out.data());
  REQUIRE(found);
  CHECK(found->kind == executor::fault_kind::divergent_wave_operation);
  CHECK(found->lane == 16);
}

TEST_CASE("A barrier that a lane skips is reported, not run on") {
  const auto out = device_array<int>(128);
  const auto found = run_kernel<barrier_in_one_branch>({{1}, {128}}, out.data());
  REQUIRE(found);
  CHECK(found->kind == executor::fault_kind::divergent_barrier);
  CHECK(found->lane == 5);
  CHECK(std::accumulate(out.data(), out.data() + 128, 0) == 1);
}

TEST_CASE("Lanes at different barriers are reported") {
  const auto out = device_array<int>(128);
  const auto found = run_kernel<different_barriers>({{1}, {128}}, out.data());
  REQUIRE(found);
  CHECK(found->kind == executor::fault_kind::divergent_barrier);
  CHECK(found->lane == 64);
}

TEST_CASE("A lane that returns before a barrier is reported") {
  const auto out = device_array<int>(128);
  const auto found = run_kernel<return_before_barrier>({{1}, {128}}, out.data());
  REQUIRE(found);
  CHECK(found->lane == 70);
  CHECK(found->message().find("lane 70 has returned") != std::string::npos);
}

TEST_CASE("Misaligned vectors, wrong widths, absent lanes and failed checks are reported") {
  const auto numbers = device_array<float>(256);
  const auto first = run_kernel<misaligned>({{1}, {32}}, static_cast<const float*>(numbers.data()), numbers.data());
  REQUIRE(first);
  CHECK(first->kind == executor::fault_kind::misaligned_access);
  const auto out = device_array<int>(64);
  const auto width = run_kernel<wrong_width>({{1}, {64}}, out.data());
  REQUIRE(width);
  CHECK(width->kind == executor::fault_kind::invalid_wave_operation);
  const auto absent = run_kernel<absent_lane>({{1}, {16}}, out.data());
  REQUIRE(absent);
  CHECK(absent->kind == executor::fault_kind::invalid_wave_operation);
  const auto check = run_kernel<failed_check>({{2}, {64}}, 63);
  REQUIRE(check);
  CHECK(check->kind == executor::fault_kind::failed_check);
  CHECK(check->lane == 63);
  CHECK(check->detail == "lane below limit");
}

TEST_CASE("The executor runs on after a fault") {
  const auto out = device_array<int>(9 * 128);
  REQUIRE(run_kernel<barrier_in_one_branch>({{9}, {128}}, out.data()));
  const auto global = device_array<int>(2);
  const auto local = device_array<int>(40);
  REQUIRE_FALSE(run_kernel<count>({{40}, {96}}, global.data(), local.data()));
  CHECK(global[0] == 40 * 96);
}

TEST_CASE("Shapes that no device takes are refused") {
  CHECK(kernels::launch<one_too_far_in_shared_memory>({{0}, {64}}, nullptr) == runtime::error_invalid_configuration);
  CHECK(kernels::launch<one_too_far_in_shared_memory>({{1}, {1025}}, nullptr) == runtime::error_invalid_configuration);
  CHECK(kernels::launch<one_too_far_in_shared_memory>({{1}, {64}, 65537}, nullptr) ==
        runtime::error_invalid_configuration);
  CHECK(kernels::launch<one_too_far_in_shared_memory>({{1, 65536}, {64}}, nullptr) ==
        runtime::error_invalid_configuration);
  CHECK(kernels::launch<one_too_far_in_shared_memory>({{1, 1, 65536}, {64}}, nullptr) ==
        runtime::error_invalid_configuration);
  CHECK(kernels::launch<one_too_far_in_shared_memory>({{1U << 26}, {64}}, nullptr) ==
        runtime::error_invalid_configuration);
}

}  // namespace
