#include "device/cuda/products/linear_plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "device/cuda/device_buffer.h"
#include "device/cuda/products/ordered_product.h"

namespace tandem::device::cuda {
namespace {

using Bf16 = __nv_bfloat16;

// The number of kernels asked for, and of timed runs of each that is equal.
constexpr int kCandidates = 8, kTimings = 3;
// Certification runs on so many rows at most, and a part of the weight: the order of a kernel's sums does not depend on
// how many outputs there are.
constexpr int64_t kCertifiedRows = 128, kCertifiedElements = int64_t{16} << 20, kCertifiedDepth = 4096;
// So many bytes are written between timed runs, so that each reads its weight from memory: they are more than an L2
// cache holds.
constexpr int64_t kFlushBytes = int64_t{96} << 20;

void check(cudaError_t error) {
  TANDEM_ENV_CHECK(error == cudaSuccess, "a matrix product on the GPU failed:", cudaGetErrorString(error),
                   "; give --device cpu");
}
void check(cublasStatus_t status) {
  TANDEM_ENV_CHECK(status == CUBLAS_STATUS_SUCCESS, "cublasLt failed:", cublasLtGetStatusString(status),
                   "; the installed CUDA libraries are those of `make cuda`?");
}

class Event {
 public:
  Event() { check(cudaEventCreate(&event_)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream)); }
  float ms_since(const Event& begin) const {
    check(cudaEventSynchronize(event_));
    float ms = 0.0F;
    check(cudaEventElapsedTime(&ms, begin.event_, event_));
    return ms;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// The problem in cublasLt's terms: column-major, so that a row-major [T, N] is its N x T, and the weight its A.
//   forward:      D (N x T) = w^T (K x N, transposed)  x (K x T)
//   grad input:   D (K x T) = w   (K x N)              dy (N x T)
//   grad weight:  D (K x N) = x   (K x T)              dy^T (N x T, transposed)
class Problem {
 public:
  explicit Problem(const Product& p) {
    check(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t a = p.kind == ProductKind::kForward ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t b = p.kind == ProductKind::kGradWeight ? CUBLAS_OP_T : CUBLAS_OP_N;
    check(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a));
    check(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b));
    const int64_t a_columns = p.kind == ProductKind::kGradWeight ? p.T : p.N;
    const int64_t b_rows = p.kind == ProductKind::kForward ? p.K : p.N;
    const int64_t d_rows = p.kind == ProductKind::kForward ? p.N : p.K;
    const int64_t d_columns = p.kind == ProductKind::kGradWeight ? p.N : p.T;
    const cudaDataType_t out = p.is_float32 ? CUDA_R_32F : CUDA_R_16BF;
    a_ = layout(CUDA_R_16BF, p.K, a_columns);
    b_ = layout(CUDA_R_16BF, b_rows, p.T);
    d_ = layout(out, d_rows, d_columns);
  }
  ~Problem() {
    for (cublasLtMatrixLayout_t layout : {a_, b_, d_}) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(operation_);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  // Returns kernels that the library proposes where it may split a sum, each asked for without the split.
  std::vector<cublasLtMatmulAlgo_t> candidates(cublasLtHandle_t handle) const {
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference));
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(LinearPlans::kWorkspaceBytes));
    for (const auto alignment :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      set(alignment, uint32_t{16});
    }
    std::vector<cublasLtMatmulHeuristicResult_t> proposed(kCandidates);
    int count = 0;
    if (cublasLtMatmulAlgoGetHeuristic(handle, operation_, a_, b_, d_, d_, preference, kCandidates, proposed.data(),
                                       &count) != CUBLAS_STATUS_SUCCESS) {
      count = 0;
    }
    cublasLtMatmulPreferenceDestroy(preference);
    std::vector<cublasLtMatmulAlgo_t> unsplit;
    for (int i = 0; i < count; ++i) {
      cublasLtMatmulAlgo_t algorithm = proposed[static_cast<size_t>(i)].algo;
      const int32_t one = 1;
      const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
      cublasLtMatmulAlgoConfigSetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &one, sizeof one);
      cublasLtMatmulAlgoConfigSetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &none, sizeof none);
      const bool is_new = std::ranges::none_of(unsplit, [&](const cublasLtMatmulAlgo_t& other) {
        return std::memcmp(&other, &algorithm, sizeof algorithm) == 0;
      });
      if (is_new && accepts(handle, algorithm)) unsplit.push_back(algorithm);
    }
    return unsplit;
  }

  bool accepts(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm) const {
    cublasLtMatmulHeuristicResult_t result = {};
    return cublasLtMatmulAlgoCheck(handle, operation_, a_, b_, d_, d_, &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= static_cast<size_t>(LinearPlans::kWorkspaceBytes);
  }

  cublasStatus_t run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm, const Bf16* left,
                     const Bf16* right, const void* added, void* out, void* workspace, cudaStream_t stream) const {
    const float one = 1.0F, beta = added != nullptr ? 1.0F : 0.0F;
    return cublasLtMatmul(handle, operation_, &one, right, a_, left, b_, &beta, added != nullptr ? added : out, d_, out,
                          d_, &algorithm, workspace, static_cast<size_t>(LinearPlans::kWorkspaceBytes), stream);
  }

 private:
  static cublasLtMatrixLayout_t layout(cudaDataType_t type, int64_t rows, int64_t columns) {
    cublasLtMatrixLayout_t result = nullptr;
    check(cublasLtMatrixLayoutCreate(&result, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows));
    return result;
  }

  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
};

// Describes the operands in ordered_product()'s terms: out's rows and columns, and the depth of the sums.
struct Sides {
  Operand p, q;
  int64_t I, J, depth;
};
Sides sides(const Product& p, const Bf16* left, const Bf16* right) {
  switch (p.kind) {
    case ProductKind::kForward: return {{left, p.K, 1}, {right, p.K, 1}, p.T, p.N, p.K};
    case ProductKind::kGradInput: return {{left, p.N, 1}, {right, 1, p.K}, p.T, p.K, p.N};
    default: return {{left, 1, p.N}, {right, 1, p.K}, p.N, p.K, p.T};
  }
}

void multiply_in_order(const Product& p, const Bf16* left, const Bf16* right, const void* added, void* out,
                       cudaStream_t stream) {
  const Sides s = sides(p, left, right);
  check(ordered_product(s.p, s.q, added, out, p.is_float32, s.I, s.J, s.depth, stream));
}

int64_t left_elements(const Product& p) { return p.T * (p.kind == ProductKind::kForward ? p.K : p.N); }
int64_t right_elements(const Product& p) { return (p.kind == ProductKind::kGradWeight ? p.T : p.N) * p.K; }
int64_t out_elements(const Product& p) {
  return p.kind == ProductKind::kForward ? p.T * p.N : p.kind == ProductKind::kGradInput ? p.T * p.K : p.N * p.K;
}
int64_t element_bytes(const Product& p) { return p.is_float32 ? 4 : 2; }

// Returns the product whose outputs are compared: it has sums of the same length (in a weight's gradient, of at most
// kCertifiedDepth) and fewer outputs.
Product certified_product(const Product& p) {
  const auto eights = [](int64_t n) { return std::max<int64_t>(8, n / 8 * 8); };
  Product small = p;
  if (p.kind == ProductKind::kGradWeight) {
    small.T = std::min(p.T, kCertifiedDepth);
    small.N = std::min<int64_t>(p.N, 512);
    small.K = std::min<int64_t>(p.K, 512);
  } else {
    small.T = std::min(p.T, kCertifiedRows);
    if (p.kind == ProductKind::kForward) small.N = std::min(p.N, eights(kCertifiedElements / p.K));
    if (p.kind == ProductKind::kGradInput) small.K = std::min(p.K, eights(kCertifiedElements / p.N));
  }
  return small;
}

// Holds data for a certified product, and the result of ordered_product() on it.
class Certificate {
 public:
  Certificate(const Product& product, cudaStream_t stream)
      : product_(product),
        problem_(product),
        left_(left_elements(product) * 2),
        right_(right_elements(product) * 2),
        added_(out_elements(product) * element_bytes(product)),
        want_(out_elements(product) * element_bytes(product)),
        got_(out_elements(product) * element_bytes(product)),
        count_(sizeof(unsigned long long)),
        stream_(stream) {
    const Sides s = sides(product, left_.as<Bf16>(), right_.as<Bf16>());
    check(fill_cancelling(left_.as<Bf16>(), s.p.line_stride, s.p.depth_stride, s.I, s.depth, 1, 1.0F, stream));
    check(fill_cancelling(right_.as<Bf16>(), s.q.line_stride, s.q.depth_stride, s.J, s.depth, 2, -1.0F, stream));
    check(fill_small(added_.data(), product.is_float32, out_elements(product), 3, stream));
    multiply_in_order(product, left_.as<Bf16>(), right_.as<Bf16>(), added(), want_.data(), stream);
  }

  bool covers(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm, void* workspace) const {
    if (!problem_.accepts(handle, algorithm)) return false;
    const auto bytes = static_cast<size_t>(out_elements(product_) * element_bytes(product_));
    check(cudaMemsetAsync(got_.data(), 0xff, bytes, stream_));  // NaN where nothing is written
    check(cudaMemsetAsync(count_.data(), 0, sizeof(unsigned long long), stream_));
    if (problem_.run(handle, algorithm, left_.as<Bf16>(), right_.as<Bf16>(), added(), got_.data(), workspace,
                     stream_) != CUBLAS_STATUS_SUCCESS) {
      return false;
    }
    auto* const count = count_.as<unsigned long long>();
    check(count_differences(got_.data(), want_.data(), product_.is_float32, out_elements(product_), count, stream_));
    unsigned long long different = 0;
    check(cudaMemcpyAsync(&different, count, sizeof different, cudaMemcpyDeviceToHost, stream_));
    check(cudaStreamSynchronize(stream_));
    return different == 0;
  }

 private:
  const void* added() const { return product_.adds ? added_.data() : nullptr; }

  const Product product_;
  const Problem problem_;
  const DeviceBuffer left_, right_, added_, want_, got_, count_;
  const cudaStream_t stream_;
};

std::string words(const Product& p) {
  const char* const kinds[] = {"forward", "gradient of the input", "gradient of the weight"};
  return fmt::format("the {} of {} x {} for {} rows", kinds[static_cast<int>(p.kind)], p.N, p.K, bucket_of(p.T));
}

}  // namespace

int64_t bucket_of(int64_t T) {
  const auto multiple_of = [T](int64_t step) { return (T + step - 1) / step * step; };
  if (T <= 16) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(T, 1))));
  if (T <= 64) return multiple_of(T <= 32 ? 8 : 16);
  if (T <= 512) return multiple_of(32);
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(T)));
}

LinearPlans::LinearPlans() {
  check(cublasLtCreate(&handle_));
  check(cudaMalloc(&workspace_, static_cast<size_t>(kWorkspaceBytes)));
}

LinearPlans::~LinearPlans() {
  cudaFree(workspace_);
  cublasLtDestroy(handle_);
}

std::string LinearPlans::library() { return fmt::format("cublasLt {}", cublasLtGetVersion()); }

void LinearPlans::run(const Product& p, const Bf16* left, const Bf16* right, const void* added, void* out,
                      cudaStream_t stream) {
  if (out_elements(p) == 0) return;
  const auto is_aligned = [](const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; };
  if (p.N % 8 != 0 || p.K % 8 != 0 || !is_aligned(left) || !is_aligned(right) || !is_aligned(out) ||
      !is_aligned(added)) {
    multiply_in_order(p, left, right, added, out, stream);
    return;
  }
  const Key key = {p.kind, bucket_of(p.T), p.N, p.K, p.is_float32, p.adds};
  auto found = choices_.find(key);
  if (found == choices_.end()) found = choices_.emplace(key, choose(p, left, right, added, out, stream)).first;
  Choice& choice = found->second;
  if (choice.is_library) {
    const Problem problem(p);
    if (problem.run(handle_, choice.algorithm, left, right, added, out, workspace_, stream) == CUBLAS_STATUS_SUCCESS) {
      return;
    }
    base::log_warning("{} refuses a kernel that it proposed for {}: a slow one of ours computes it from now on",
                      library(), words(p));
    choice.is_library = false;
  }
  multiply_in_order(p, left, right, added, out, stream);
}

// A product that adds to the contents of `out` cannot be timed on it. It gets the kernel that was fastest where `out`
// is set, if that one is equal here too.
cublasLtMatmulAlgo_t LinearPlans::set_algorithm(const Product& p, const Candidates& equal) const {
  const auto set = choices_.find({p.kind, bucket_of(p.T), p.N, p.K, p.is_float32, /*adds=*/false});
  if (set != choices_.end()) {
    for (const auto& [algorithm, ms] : equal) {
      if (std::memcmp(&algorithm, &set->second.algorithm, sizeof algorithm) == 0) return algorithm;
    }
  }
  return equal.front().first;
}

// Returns the fastest of the kernels that are equal. Their runs all write the same bits to `out`, so the product itself
// is timed, unless it adds to the contents of `out`.
LinearPlans::Choice LinearPlans::choose(const Product& p, const Bf16* left, const Bf16* right, const void* added,
                                        void* out, cudaStream_t stream) {
  const Problem problem(p);
  Candidates equal;
  {
    const Certificate certificate(certified_product(p), stream);
    for (const cublasLtMatmulAlgo_t& algorithm : problem.candidates(handle_)) {
      if (certificate.covers(handle_, algorithm, workspace_)) equal.emplace_back(algorithm, 0.0F);
    }
  }
  if (equal.empty()) {
    base::log_warning("no kernel of {} computes {} exactly: a slow one of ours does", library(), words(p));
    return {};
  }
  if (p.adds && added == out) return {.is_library = true, .algorithm = set_algorithm(p, equal)};
  if (equal.size() == 1) return {.is_library = true, .algorithm = equal.front().first};
  const DeviceBuffer flushed(kFlushBytes);
  Event begin, end;
  for (auto& [algorithm, best_ms] : equal) {
    best_ms = 1e30F;
    for (int i = 0; i < kTimings; ++i) {
      check(cudaMemsetAsync(flushed.data(), i, static_cast<size_t>(kFlushBytes), stream));
      begin.record(stream);
      const cublasStatus_t status = problem.run(handle_, algorithm, left, right, added, out, workspace_, stream);
      end.record(stream);
      const float ms = end.ms_since(begin);
      if (status == CUBLAS_STATUS_SUCCESS) best_ms = std::min(best_ms, ms);
    }
  }
  const auto fastest = std::ranges::min_element(equal, {}, [](const auto& one) { return one.second; });
  return {.is_library = true, .algorithm = fastest->first};
}

}  // namespace tandem::device::cuda
