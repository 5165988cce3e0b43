// Computes matrix products of bfloat16 by cuBLASLt, every one with the bits of ordered_product(): one float32
// accumulator an output, terms in ascending order, one rounding. So a row's bits depend neither on how many rows there
// are nor on which kernel the library has for them.
//
// For each product and number of rows (in steps, bucket_of()) the kernel is chosen when it is first asked for, which
// takes some tens of milliseconds. Of the kernels that the library proposes, without a split of the sum, those are kept
// that give ordered_product()'s bits on data whose sums leave nothing but rounding, and the fastest of those is used.
// All that are kept are equal in their bits, so the choice changes no result, and nothing has to be remembered on disk.
// Where none is equal, ordered_product() itself computes, and a warning says so.
//
// One thread at a time. No torch.
#pragma once

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace tandem::device::cuda {

enum class ProductKind : uint8_t {
  kForward,     // out [T, N] = x [T, K] w [N, K]^T
  kGradInput,   // out [T, K] = dy [T, N] w [N, K]
  kGradWeight,  // out [N, K] = dy [T, N]^T x [T, K]
};

struct Product {
  ProductKind kind = ProductKind::kForward;
  int64_t T = 0, N = 0, K = 0;
  bool is_float32 = false;  // dtype of out; else bfloat16
  bool adds = false;  // true: `added`, of out's shape and dtype, which may be out itself, is added before the rounding
};

// Returns the largest row count that shares T's kernel. Up to 512 the steps are as fine as the engine's recorded steps
// (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, ...), so that they match; above, they are powers of two.
int64_t bucket_of(int64_t T);

class LinearPlans {
 public:
  LinearPlans();
  ~LinearPlans();
  LinearPlans(const LinearPlans&) = delete;
  LinearPlans& operator=(const LinearPlans&) = delete;

  // These bytes of the device's memory are taken for life.
  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;

  // `left` and `right` are x and w, dy and w, or dy and x, as the kind has them; both are contiguous. Throws
  // EnvironmentError where the library fails. A choice must not happen during the capture of a graph.
  void run(const Product& product, const __nv_bfloat16* left, const __nv_bfloat16* right, const void* added, void* out,
           cudaStream_t stream);

  // Returns the library's version, for the operations' name: "cublasLt 130101".
  static std::string library();

 private:
  struct Choice {
    bool is_library = false;  // false: ordered_product()
    cublasLtMatmulAlgo_t algorithm = {};
  };
  // A key is kind, bucket_of(T), N, K, is_float32 and adds.
  using Key = std::tuple<ProductKind, int64_t, int64_t, int64_t, bool, bool>;

  using Candidates = std::vector<std::pair<cublasLtMatmulAlgo_t, float>>;  // algorithms and their milliseconds

  cublasLtMatmulAlgo_t set_algorithm(const Product& product, const Candidates& equal) const;
  Choice choose(const Product& product, const __nv_bfloat16* left, const __nv_bfloat16* right, const void* added,
                void* out, cudaStream_t stream);

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Key, Choice> choices_;
};

}  // namespace tandem::device::cuda
