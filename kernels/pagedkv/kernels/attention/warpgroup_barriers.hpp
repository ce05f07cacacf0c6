#pragma once

// Barriers between warpgroups with different jobs, for code compiled for sm_90a. Empty for other compilers.

#include <pagedkv/kernels/attention/warpgroup_nvidia.hpp>

#if defined(PAGEDKV_HAS_WARPGROUP_PRODUCTS)

namespace pagedkv::kernels {

/// A barrier in shared memory with phases that alternate in parity. A phase ends when `count` arrivals have happened.
class phase_barrier {
 public:
  static constexpr unsigned bytes = 8;

  explicit PAGEDKV_DEVICE phase_barrier(unsigned address) : address_(address) {}

  /// By one lane. A barrier of the workgroup follows.
  PAGEDKV_DEVICE void begin(unsigned count) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_), "r"(count) : "memory");
  }

  /// Earlier reads and writes of this lane happen before the end of the phase.
  PAGEDKV_DEVICE void arrive() const {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address_) : "memory");
  }

  /// Arrives when the copies that this lane has started are complete.
  PAGEDKV_DEVICE void arrive_after_copies() const {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address_) : "memory");
  }

  /// Waits for the end of a phase, the first of which has parity 0.
  PAGEDKV_DEVICE void wait(unsigned parity) const {
    asm volatile(
        "{.reg .pred ended;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
        "@!ended bra again;}" ::"r"(address_),
        "r"(parity)
        : "memory");
  }

 private:
  unsigned address_;
};

/// A ring of buffers in shared memory, each with a barrier for its producer's writes and one for its consumers' reads.
/// Producer and consumers use the buffers in the same order and count their uses from 0.
template <unsigned Buffers>
class buffer_ring {
 public:
  static constexpr unsigned bytes = 2 * Buffers * phase_barrier::bytes;

  explicit PAGEDKV_DEVICE buffer_ring(unsigned barriers) : barriers_(barriers) {}

  PAGEDKV_DEVICE void begin(unsigned writes, unsigned reads) const {
    for (auto buffer = 0U; buffer < Buffers; ++buffer) {
      full(buffer).begin(writes);
      empty(buffer).begin(reads);
    }
  }

  [[nodiscard]] static PAGEDKV_DEVICE unsigned buffer_of(unsigned use) { return use % Buffers; }
  [[nodiscard]] static PAGEDKV_DEVICE unsigned parity_of(unsigned use) { return use / Buffers % 2; }

  PAGEDKV_DEVICE void wait_until_empty(unsigned use) const { empty(use).wait((use / Buffers + 1) % 2); }
  PAGEDKV_DEVICE void wait_until_full(unsigned use) const { full(use).wait(parity_of(use)); }

  [[nodiscard]] PAGEDKV_DEVICE phase_barrier full(unsigned use) const {
    return phase_barrier(barriers_ + use % Buffers * phase_barrier::bytes);
  }
  [[nodiscard]] PAGEDKV_DEVICE phase_barrier empty(unsigned use) const {
    return phase_barrier(barriers_ + (Buffers + use % Buffers) * phase_barrier::bytes);
  }

 private:
  unsigned barriers_;
};

/// A barrier of the lanes that compute: neither of those that copy nor of those that expand.
template <int Lanes>
PAGEDKV_DEVICE void wait_for_consumers() {
  asm volatile("barrier.cta.sync.aligned 1, %0;" ::"n"(Lanes) : "memory");
}

/// A barrier of the lanes of one of these warpgroups.
PAGEDKV_DEVICE inline void wait_for_warpgroup(int index) {
  if (index == 0) {
    asm volatile("barrier.cta.sync.aligned 2, %0;" ::"n"(warpgroup_lanes) : "memory");
  } else {
    asm volatile("barrier.cta.sync.aligned 3, %0;" ::"n"(warpgroup_lanes) : "memory");
  }
}

/// This wave has used a buffer, or written one: its lanes' reads and writes happen before the end of the phase.
PAGEDKV_DEVICE inline void arrive_by_wave(const phase_barrier& phase, int lane) {
  __syncwarp();
  if (lane == 0) {
    phase.arrive();
  }
}

/// Gives up registers, or waits for them. By all lanes of a warpgroup; `Count` is a multiple of 8.
template <int Count>
PAGEDKV_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
PAGEDKV_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}

/// Returns the number. The compiler computes its uses again here, and keeps none in registers from before.
[[nodiscard]] PAGEDKV_DEVICE inline int compute_again(int number) {
  asm volatile("" : "+r"(number));
  return number;
}

/// A number that all lanes of a wave have. The compiler then knows it, and keeps what depends on it in uniform
/// registers.
[[nodiscard]] PAGEDKV_DEVICE inline unsigned of_wave(unsigned number) { return shuffle(number, 0); }

/// Keeps the compiler from moving uses of sums before the wait for their products.
template <std::size_t N>
PAGEDKV_DEVICE void settle(float (&sums)[N]) {
  PAGEDKV_UNROLL
  for (auto i = std::size_t{0}; i < N; ++i) {
    asm volatile("" : "+f"(sums[i])::"memory");
  }
}

}  // namespace pagedkv::kernels

#endif
