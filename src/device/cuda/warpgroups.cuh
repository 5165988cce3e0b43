// Hopper's instructions (sm_90a): products of a warpgroup on tensor cores, copies of boxes of a tensor to shared memory
// (TMA), and the barriers that both are waited for at. Operands in shared memory have rows of 128 bytes, in which piece
// p of 16 bytes of row r lies at p ^ (r % 8), and begin at multiples of 1,024 bytes.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "device/cuda/tensor_cores.cuh"

namespace tandem::device::cuda {

constexpr uint32_t kSwizzledRow = 128;                  // bytes of a row in shared memory
constexpr uint32_t kSwizzledRows = 8 * kSwizzledRow;  // bytes after which the order of pieces repeats

// A barrier in shared memory, whose phases end when `count` threads have arrived and all bytes that were announced are
// there. A wait for phase `parity` returns when the last phase of this parity has ended.
class Barrier {
 public:
  __device__ void init(uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(count) : "memory");
  }
  __device__ void arrive() {
    asm volatile("{.reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0];}" ::"r"(address()) : "memory");
  }
  // Arrives, and announces bytes that copies will bring.
  __device__ void arrive_and_expect(uint32_t bytes) {
    asm volatile("{.reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;}" ::"r"(address()),
                 "r"(bytes)
                 : "memory");
  }
  __device__ void wait(uint32_t parity) {
    asm volatile(
        "{.reg .pred done;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;}" ::"r"(address()),
        "r"(parity)
        : "memory");
  }
  __device__ uint32_t address() { return shared_address(&word_); }

 private:
  uint64_t word_;
};

// Starts the copy of a box of a tensor, whose first element is at these coordinates, innermost first.
__device__ inline void copy_box(const CUtensorMap& tensor, int32_t x, int32_t y, int32_t z, uint32_t to,
                                Barrier& arrives) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
      "[%5];" ::"r"(to),
      "l"(&tensor), "r"(x), "r"(y), "r"(z), "r"(arrives.address())
      : "memory");
}
// Makes what the thread has written to shared memory visible to products and copies.
__device__ inline void show_writes_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Blocks threads of a block at barrier `id` until `threads` of them have come; note() comes without waiting.
__device__ inline void meet(uint32_t id, uint32_t threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void note(uint32_t id, uint32_t threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Meets, and returns whether it is true for any thread.
__device__ inline bool any_of(uint32_t id, uint32_t threads, bool is_true) {
  uint32_t any;
  asm volatile(
      "{.reg .pred in, out; setp.ne.u32 in, %3, 0; barrier.cta.red.or.pred out, %1, %2, in; selp.u32 %0, 1, 0, out;}"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(is_true))
      : "memory");
  return any != 0;
}

// Returns true in one lane of a converged warp, always the same one.
__device__ inline bool is_elected() {
  uint32_t elected;
  asm volatile("{.reg .pred one; elect.sync _|one, 0xffffffff; selp.u32 %0, 1, 0, one;}" : "=r"(elected));
  return elected != 0;
}

template <uint32_t kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <uint32_t kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Names an operand in shared memory, whose rows of 128 bytes follow each other. If its rows are the sum's dimension k,
// `next_columns` is the distance from its 64 columns to the next 64.
class Operand {
 public:
  __device__ explicit Operand(uint32_t address, uint32_t next_columns = 16)
      : low_((address & 0x3ffff) >> 4 | next_columns >> 4 << 16) {}
  // Returns the operand that lies so many bytes further.
  __device__ uint64_t at(uint32_t bytes) const {
    constexpr uint32_t kSwizzle128 = 1U << 30, kHigh = kSwizzle128 | kSwizzledRows >> 4;
    uint64_t name;
    asm("mov.b64 %0, {%1, %2};" : "=l"(name) : "r"(low_ + (bytes >> 4)), "r"(kHigh));
    return name;
  }

 private:
  uint32_t low_;
};

// Products are queued in their order. Registers that they read or write belong to them from begin_products() until
// wait_for_products() says that all but the last `kMostOpen` closed groups are done.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kMostOpen>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kMostOpen) : "memory");
}
// Keeps the compiler from moving reads and writes of registers over this place.
template <uint32_t kEights>
__device__ inline void hold(float (&x)[kEights][4]) {
#pragma unroll
  for (uint32_t i = 0; i < kEights; ++i) {
#pragma unroll
    for (uint32_t r = 0; r < 4; ++r) asm volatile("" : "+f"(x[i][r])::"memory");
  }
}

#define TANDEM_FOUR(x, i) "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])
#define TANDEM_THIRTY_TWO(x, i)                                                                                   \
  TANDEM_FOUR(x, i), TANDEM_FOUR(x, i + 1), TANDEM_FOUR(x, i + 2), TANDEM_FOUR(x, i + 3), TANDEM_FOUR(x, i + 4), \
      TANDEM_FOUR(x, i + 5), TANDEM_FOUR(x, i + 6), TANDEM_FOUR(x, i + 7)
#define TANDEM_NAMES_32                                                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define TANDEM_NAMES_64                                                                                              \
  TANDEM_NAMES_32                                                                                                    \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// Queues sum [64, 128] = (kAdd ? sum : 0) + a [64, 16] b [128, 16]^T, both operands in shared memory, their rows in rows.
template <bool kAdd>
__device__ inline void multiply_rows(float (&sum)[16][4], uint64_t a, uint64_t b) {
  asm volatile("{.reg .pred add; setp.ne.b32 add, %66, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TANDEM_NAMES_64 "}, %64, %65, add, 1, 1, 0, 0;}"
               : TANDEM_THIRTY_TWO(sum, 0), TANDEM_THIRTY_TWO(sum, 8)
               : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));
}

// Queues sum [64, N] += a [64, 16] b [16, N], N = 128 or 64, where a is in registers and b in shared memory.
__device__ inline void multiply_columns(float (&sum)[16][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("{.reg .pred add; setp.eq.b32 add, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TANDEM_NAMES_64
               "}, {%64, %65, %66, %67}, %68, add, 1, 1, 1;}"
               : TANDEM_THIRTY_TWO(sum, 0), TANDEM_THIRTY_TWO(sum, 8)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ inline void multiply_columns(float (&sum)[8][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("{.reg .pred add; setp.eq.b32 add, 0, 0;\n"
               "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TANDEM_NAMES_32
               "}, {%32, %33, %34, %35}, %36, add, 1, 1, 1;}"
               : TANDEM_THIRTY_TWO(sum, 0)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef TANDEM_NAMES_64
#undef TANDEM_NAMES_32
#undef TANDEM_THIRTY_TWO
#undef TANDEM_FOUR

}  // namespace tandem::device::cuda
