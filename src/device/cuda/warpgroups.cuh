// Hopper's instructions (sm_90a): products of a warpgroup, four warps, on tensor cores (wgmma), copies of boxes of a
// tensor to shared memory (TMA), and the barriers at which copies and products take turns. Only files that are compiled
// for it alone (WGMMA in CMakeLists.txt) include this.
//
// Operands in shared memory have rows of 128 bytes, in which piece p of 16 bytes of row r lies at p ^ (r % 8), and
// begin at multiples of 1,024 bytes.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "device/cuda/tensor_cores.cuh"

namespace tandem::device::cuda {

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "only sm_90a has wgmma: list this file after WGMMA in src/device/cuda/CMakeLists.txt"
#endif

constexpr int kWarpgroup = 128;  // threads

constexpr uint32_t kSwizzledRow = 128;                // bytes of a row in shared memory
constexpr uint32_t kSwizzledRows = 8 * kSwizzledRow;  // bytes after which the order of pieces repeats

// A barrier in shared memory. A phase ends when `count` threads have arrived and all bytes that were announced are
// there. A wait for phase `parity`, 0 or 1, returns when the last phase of this parity has ended; a phase before the
// first has.
class Barrier {
 public:
  // Other threads use the barrier after they have synchronised with this one.
  __device__ void init(uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(count) : "memory");
  }
  __device__ void arrive() { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory"); }
  // Arrives when the copies to shared memory that this thread has started (copy_16()) are done.
  __device__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address()) : "memory");
  }
  // Arrives, and announces bytes that copies will bring.
  __device__ void arrive_and_expect(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  __device__ void wait(uint32_t parity) {
    asm volatile(
        "{.reg .pred ended;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
        "@!ended bra again;}" ::"r"(address()),
        "r"(parity)
        : "memory");
  }
  __device__ uint32_t address() { return shared_address(&state_); }

 private:
  uint64_t state_;
};

// Counts through places that are used in turn, and the phases of their barriers.
template <uint32_t kPlaces>
struct Turn {
  uint32_t index = 0, parity = 0;
  __device__ void advance() {
    if (++index == kPlaces) index = 0, parity ^= 1;
  }
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
// Starts the copy of bytes, a multiple of 16 as both addresses are.
__device__ inline void copy_bytes(const void* from, uint32_t bytes, uint32_t to, Barrier& arrives) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(arrives.address())
               : "memory");
}
// Starts to bring global memory into the L2 cache. Address and bytes are multiples of 16.
__device__ inline void prefetch(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
}

// Makes what this thread sees in shared memory, written by itself or by others, visible to the products and the copies
// of the copy engine that it, or a thread that it then meets, starts afterwards.
__device__ inline void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

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

// Synchronises the threads of one warpgroup. Barrier 0 is that of __syncthreads().
__device__ inline void sync_warpgroup(int barrier) { asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory"); }

// Changes how many registers each thread of the calling warpgroup has.
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

// An operand [lines, terms] whose lines lie next to each other for each term, as columns of rows do. It consists of
// boxes of 64 lines, which follow each other. In a box each term has a row of 128 bytes.
constexpr int kBoxLines = 64;
// Returns the element of a box where lines [8 eight, 8 eight + 8) of a term begin.
__device__ inline int line_at(int term, int eight) { return term * kBoxLines + ((eight ^ (term & 7)) << 3); }
// Returns the operand that begins with this box, as Operand names one, by arithmetic that the compiler can move out of
// a loop. A box has `terms`.
__device__ inline uint64_t operand_by_lines(const __nv_bfloat16* box, int terms) {
  constexpr uint64_t kSwizzle128 = 1;
  const auto sixteens = [](uint32_t bytes) { return static_cast<uint64_t>(bytes) >> 4U; };
  const uint64_t next_box = sixteens(terms * kSwizzledRow), next_eight_terms = sixteens(kSwizzledRows);
  return (shared_address(box) & 0x3ffffU) >> 4U | next_box << 16U | next_eight_terms << 32U | kSwizzle128 << 62U;
}
// A product takes so many terms. Adding kNextProduct to an operand gives that of the next ones.
constexpr int kProductTerms = 16;
constexpr uint64_t kNextProduct = kProductTerms * kSwizzledRow >> 4;

// Products are queued in their order. Registers that they read or write belong to them from begin_products() until
// wait_for_products() says that all but the last `kMostOpen` closed groups are done.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kMostOpen>
__device__ inline void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kMostOpen) : "memory");
}
// Keeps the compiler from moving reads and writes of a sum over this place: it does not know how long a product runs.
template <int kCount>
__device__ inline void pin(float (&sum)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}
template <uint32_t kEights>
__device__ inline void pin(float (&sum)[kEights][4]) {
#pragma unroll
  for (uint32_t i = 0; i < kEights; ++i) pin(sum[i]);
}

#define TANDEM_FOUR(x, i) "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])
#define TANDEM_THIRTY_TWO(x, i)                                                                                  \
  TANDEM_FOUR(x, i), TANDEM_FOUR(x, i + 1), TANDEM_FOUR(x, i + 2), TANDEM_FOUR(x, i + 3), TANDEM_FOUR(x, i + 4), \
      TANDEM_FOUR(x, i + 5), TANDEM_FOUR(x, i + 6), TANDEM_FOUR(x, i + 7)
#define TANDEM_NAMES_32                                                                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define TANDEM_NAMES_64                                                                                              \
  TANDEM_NAMES_32                                                                                                    \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
  "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// Queues sum [64, 128] = (kAdd ? sum : 0) + a [64, 16] b [128, 16]^T, both operands in shared memory, their rows in
// rows.
template <bool kAdd>
__device__ inline void multiply_rows(float (&sum)[16][4], uint64_t a, uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TANDEM_NAMES_64 "}, %64, %65, add, 1, 1, 0, 0;}"
      : TANDEM_THIRTY_TWO(sum, 0), TANDEM_THIRTY_TWO(sum, 8)
      : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));
}

// Queues sum [64, N] = (kAdd ? sum : 0) + a [64, 16] b [N, 16]^T, N = 64 or 32, in the same way.
template <bool kAdd>
__device__ inline void multiply_rows(float (&sum)[8][4], uint64_t a, uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TANDEM_NAMES_32 "}, %32, %33, add, 1, 1, 0, 0;}"
      : TANDEM_THIRTY_TWO(sum, 0)
      : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));
}

template <bool kAdd>
__device__ inline void multiply_rows(float (&sum)[4][4], uint64_t a, uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15}, %16, %17, add, 1, 1, 0, 0;}"
      : TANDEM_FOUR(sum, 0), TANDEM_FOUR(sum, 1), TANDEM_FOUR(sum, 2), TANDEM_FOUR(sum, 3)
      : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));
}

// Queues sum [64, N] = (kAdd ? sum : 0) + a [16, 64]^T b [16, N], N = 128, 64 or 32, both operands in shared memory.
template <bool kAdd>
__device__ inline void multiply_terms(float (&sum)[16][4], uint64_t a, uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TANDEM_NAMES_64 "}, %64, %65, add, 1, 1, 1, 1;}"
      : TANDEM_THIRTY_TWO(sum, 0), TANDEM_THIRTY_TWO(sum, 8)
      : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));
}
template <bool kAdd>
__device__ inline void multiply_terms(float (&sum)[8][4], uint64_t a, uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TANDEM_NAMES_32 "}, %32, %33, add, 1, 1, 1, 1;}"
      : TANDEM_THIRTY_TWO(sum, 0)
      : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));
}
template <bool kAdd>
__device__ inline void multiply_terms(float (&sum)[4][4], uint64_t a, uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.ne.b32 add, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15}, %16, %17, add, 1, 1, 1, 1;}"
      : TANDEM_FOUR(sum, 0), TANDEM_FOUR(sum, 1), TANDEM_FOUR(sum, 2), TANDEM_FOUR(sum, 3)
      : "l"(a), "l"(b), "n"(kAdd ? 1 : 0));
}

// Queues sum [64, N] += a [64, 16] b [16, N], N = 128 or 64, where a is in registers and b in shared memory.
__device__ inline void multiply_columns(float (&sum)[16][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.eq.b32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TANDEM_NAMES_64
      "}, {%64, %65, %66, %67}, %68, add, 1, 1, 1;}"
      : TANDEM_THIRTY_TWO(sum, 0), TANDEM_THIRTY_TWO(sum, 8)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ inline void multiply_columns(float (&sum)[8][4], const uint32_t (&a)[4], uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.eq.b32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TANDEM_NAMES_32
      "}, {%32, %33, %34, %35}, %36, add, 1, 1, 1;}"
      : TANDEM_THIRTY_TWO(sum, 0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
// Queues sum [64, N] += a [64, 16] b [16, N], N = 128 or 64, both operands in shared memory, those of a in rows.
__device__ inline void multiply_columns(float (&sum)[16][4], uint64_t a, uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.eq.b32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" TANDEM_NAMES_64 "}, %64, %65, add, 1, 1, 0, 1;}"
      : TANDEM_THIRTY_TWO(sum, 0), TANDEM_THIRTY_TWO(sum, 8)
      : "l"(a), "l"(b));
}
__device__ inline void multiply_columns(float (&sum)[8][4], uint64_t a, uint64_t b) {
  asm volatile(
      "{.reg .pred add; setp.eq.b32 add, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" TANDEM_NAMES_32 "}, %32, %33, add, 1, 1, 0, 1;}"
      : TANDEM_THIRTY_TWO(sum, 0)
      : "l"(a), "l"(b));
}
#define TANDEM_SIXTEEN(x, i)                                                                                  \
  "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3]), "+f"(x[i + 4]), "+f"(x[i + 5]), "+f"(x[i + 6]), \
      "+f"(x[i + 7]), "+f"(x[i + 8]), "+f"(x[i + 9]), "+f"(x[i + 10]), "+f"(x[i + 11]), "+f"(x[i + 12]),      \
      "+f"(x[i + 13]), "+f"(x[i + 14]), "+f"(x[i + 15])

// Starts sum [64, 256] += a [64 lines, 16 terms] b [256 lines, 16 terms]^T. Thread t of the warpgroup has parts of rows
// r = t / 32 * 16 + t % 32 / 4 and r + 8: sum[4 j + i] is in row r + i / 2 * 8 and column 8 j + t % 4 * 2 + i % 2.
__device__ inline void start_product(float (&sum)[128], uint64_t a, uint64_t b) {
  asm volatile(
      "{\n"
      ".reg .pred adds;\n"
      "setp.eq.u32 adds, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, adds, 1, 1, 1, 1;\n"
      "}"
      : TANDEM_SIXTEEN(sum, 0), TANDEM_SIXTEEN(sum, 16), TANDEM_SIXTEEN(sum, 32), TANDEM_SIXTEEN(sum, 48),
        TANDEM_SIXTEEN(sum, 64), TANDEM_SIXTEEN(sum, 80), TANDEM_SIXTEEN(sum, 96), TANDEM_SIXTEEN(sum, 112)
      : "l"(a), "l"(b));
}
#undef TANDEM_SIXTEEN
#undef TANDEM_NAMES_64
#undef TANDEM_NAMES_32
#undef TANDEM_THIRTY_TWO
#undef TANDEM_FOUR

}  // namespace tandem::device::cuda
