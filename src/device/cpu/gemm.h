// Multiplies matrices on the CPU: blocking, packing and threads around the kernels of one instruction set.
#pragma once

#include <cstdint>
#include <vector>

#include "device/cpu/kernels.h"
#include "device/thread_pool.h"

namespace tandem::device::cpu {

// Computes C[M,N] (+)= sum_k A[m,k] B[n,k]; C rows are `c_stride` elements apart.
struct GemmProblem {
  int64_t m, n, k;
  Matrix a, b;
  void* c;
  Elem c_elem;
  int64_t c_stride;
  bool accumulate;
};

// Keeps its packing buffers between calls, because fresh pages cost more than the packing. One call runs at a time.
class GemmRunner {
 public:
  GemmRunner(const KernelTable& table, ThreadPool& threads);
  void run(const GemmProblem& problem);

 private:
  struct ThreadScratch {
    std::vector<float> b, c;
  };
  // A superblock of rows, cut into micro-kernel blocks of nearly equal height and chunks of k.
  struct Cut {
    int64_t row0, rows;
    int64_t blocks;
    int64_t chunk, chunks, k;
    int64_t block_floats;  // packed size of one block
    int64_t row_unit;
    int64_t first_row(int64_t block) const { return rows * block / blocks; }
    int64_t rows_of(int64_t block) const { return first_row(block + 1) - first_row(block); }
    int64_t k0(int64_t c) const { return c * chunk; }
    int64_t length(int64_t c) const { return chunk < k - k0(c) ? chunk : k - k0(c); }
    int64_t packed_rows(int64_t block) const { return (rows_of(block) + row_unit - 1) / row_unit * row_unit; }
    int64_t offset(int64_t block, int64_t c) const {
      return block * block_floats + k0(c) * packed_rows(block) + c * 16;
    }
  };
  void run_few_rows(const GemmProblem& p, const GemmKernels& kernels);
  void run_blocked(const GemmProblem& p, const GemmKernels& kernels);
  void pack_rows(const GemmProblem& p, const GemmKernels& kernels, const Cut& cut);
  void multiply(const GemmProblem& p, const GemmKernels& kernels, const Cut& cut);

  const KernelTable& table_;
  ThreadPool& threads_;
  std::vector<float> packed_a_;
  std::vector<ThreadScratch> thread_scratch_;
};

}  // namespace tandem::device::cpu
