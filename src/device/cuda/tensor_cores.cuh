// Products of bfloat16 on tensor cores by mma.sync, and the copies to shared memory that feed them: shared by the
// kernels whose outputs have one float32 accumulator each.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace tandem::device::cuda {

__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Starts a copy of 16 bytes to shared memory, or of zeros if not `inside`.
__device__ inline void copy_16(__nv_bfloat16* to, const __nv_bfloat16* from, bool inside) {
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}
// The copies that were started since the last call are a piece.
__device__ inline void close_piece() { asm volatile("cp.async.commit_group;"); }
// Waits until at most kMostOpen pieces, the last ones, are still on their way.
template <int kMostOpen>
__device__ void wait_for_pieces() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kMostOpen));
}

// Reads four matrices of 8 x 8, of which lanes 0-7, 8-15, 16-23 and 24-31 name the rows, by their address in shared
// memory or by a pointer; read_transposed() transposes them.
__device__ inline void read_matrices(uint32_t (&r)[4], uint32_t shared_address_of_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address_of_row));
}
__device__ inline void read_matrices(uint32_t (&r)[4], const __nv_bfloat16* row) {
  read_matrices(r, shared_address(row));
}
__device__ inline void read_transposed(uint32_t (&r)[4], const __nv_bfloat16* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row)));
}

// Computes sum [16, 8] += a [16, 16] b [8, 16]^T, where b points to two numbers.
__device__ inline void multiply_add(float (&sum)[4], const uint32_t (&a)[4], const uint32_t* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace tandem::device::cuda
