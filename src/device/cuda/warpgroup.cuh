// Products of bfloat16 that a warpgroup (four warps) starts on operands in shared memory (wgmma), and the barriers by
// which copies and products take turns. Only the code for compute capability 9.0 has them, so kernels call these within
// `if constexpr (kHasWarpgroups)`.
#pragma once

#include <cstdint>

#include "device/cuda/tensor_cores.cuh"

namespace tandem::device::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kHasWarpgroups = true;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#error "compile for sm_90a, which has wgmma: TANDEM_CUDA_ARCHS needs 90a in place of 90"
#else
constexpr bool kHasWarpgroups = false;
#endif

constexpr int kWarpgroup = 128;  // threads

// A barrier in shared memory. Its phases are numbered from 0, and each ends when a fixed number of threads has arrived.
class Barrier {
 public:
  // Other threads use the barrier after they have synchronised with this one.
  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&state_)), "r"(arrivals) : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&state_)) : "memory");
  }
  // Arrives when the copies to shared memory that this thread has started (copy_16()) are done.
  __device__ void arrive_after_copies() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&state_)) : "memory");
  }
  // Waits for the end of a phase, which is the present one or the one before it. Phase -1 has ended.
  __device__ void wait(uint32_t phase) {
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
        "@!ended bra again;\n"
        "}" ::"r"(shared_address(&state_)),
        "r"(phase & 1U)
        : "memory");
  }

 private:
  uint64_t state_;
};

// Synchronises the threads of one warpgroup. Barrier 0 is that of __syncthreads().
__device__ inline void sync_warpgroup(int barrier) { asm volatile("bar.sync %0, 128;" ::"r"(barrier) : "memory"); }

// Changes how many registers each thread of the calling warpgroup has.
template <int kRegisters>
__device__ void set_more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void set_fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Starts to bring global memory into the L2 cache. Address and bytes are multiples of 16.
__device__ inline void prefetch(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
}

// Makes what this thread sees in shared memory, written by itself or by others, visible to the products that it starts
// afterwards.
__device__ inline void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// An operand [lines, terms] whose lines lie next to each other for each term, as columns of rows do. It consists of
// boxes of 64 lines, which follow each other and begin at multiples of 1,024 bytes. In a box each term has 128 bytes,
// in which the eights of lines are permuted: see line_at().
constexpr int kBoxLines = 64;
// Returns the element of a box where lines [8 eight, 8 eight + 8) of a term begin.
__device__ inline int line_at(int term, int eight) { return term * kBoxLines + ((eight ^ (term & 7)) << 3); }
// Describes the operand that begins with this box, for start_product(). A box has `terms`.
__device__ inline uint64_t operand_by_lines(const __nv_bfloat16* box, int terms) {
  constexpr uint64_t kPermutedOver128Bytes = 1;
  const auto sixteens = [](int bytes) { return static_cast<uint64_t>(bytes) >> 4U; };
  const uint64_t next_box = sixteens(terms * 128), next_eight_terms = sixteens(8 * 128);
  return (shared_address(box) & 0x3ffffU) >> 4U | next_box << 16U | next_eight_terms << 32U |
         kPermutedOver128Bytes << 62U;
}
// A product takes so many terms. Adding kNextProduct to an operand gives that of the next ones.
constexpr int kProductTerms = 16;
constexpr uint64_t kNextProduct = kProductTerms * 128 >> 4;

// Products of a warpgroup run in the order in which they were started. They are started after begin_products(), and
// those before close_products() are a group.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most kMostOpen groups, the last ones, are still computed.
template <int kMostOpen>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kMostOpen) : "memory");
}
// Keeps the compiler from moving other uses of a sum across this point: it does not know how long a product runs.
template <int kCount>
__device__ void pin(float (&sum)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

#define TANDEM_SIXTEEN(x, i)                                                                                   \
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

}  // namespace tandem::device::cuda
