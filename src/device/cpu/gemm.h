// Matrix products on the CPU: blocking, packing and threads around the kernels of one instruction set.
#pragma once

#include <cstdint>
#include <vector>

#include "device/cpu/kernels.h"

namespace tandem::device::cpu {

// C[M,N] (+)= sum_k A[m,k] B[n,k], C rows `c_stride` elements apart.
struct GemmProblem {
  int64_t m, n, k;
  Matrix a, b;
  void* c;
  Elem c_elem;
  int64_t c_stride;
  bool accumulate;
};

// Keeps its packing buffers between calls (fresh pages cost more than the packing). One call at a time.
class GemmRunner {
 public:
  GemmRunner(const GemmKernels& kernels, int num_threads);
  void run(const GemmProblem& problem);

 private:
  struct ThreadScratch {
    std::vector<float> b, c;
  };
  void run_few_rows(const GemmProblem& p, bool pairs);
  void run_blocked(const GemmProblem& p, bool pairs);

  const GemmKernels& kernels_;
  const int num_threads_;
  std::vector<float> packed_a_;
  std::vector<ThreadScratch> thread_scratch_;
};

}  // namespace tandem::device::cpu
