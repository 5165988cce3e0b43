// Computes the gradient of attention by cuDNN, deterministically, on GPUs of compute capability 9.x. Where
// FlashAttention-2 takes 31 ms, of one sequence of 16,640 tokens and 32 heads, it takes 15; at 1,280 tokens it saves a
// quarter (bench/results/attention.md). attention_parts.h says how it is cut into calls.
//
// For each shape of a call there is a plan, made when the shape is first asked for. It takes some 60 ms, and up to a
// second where cuDNN compiles a kernel; those of one gradient's calls are built in several threads. A plan is used if, on drawn data, it gives the same bits twice and is near the
// gradient in float64 (attention_check.h). The data do not depend on the run, so all ranks decide alike.
//
// One thread at a time. No torch. The heavy headers of cuDNN's frontend are in the .cc file alone.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/attention/attention_parts.h"

struct cudnnContext;

namespace tandem::device::cuda {

// Holds pointers to contiguous bfloat16 tensors on the device, n: expanded keys. lse is the forward's, float32.
struct PartsOperands {
  const void *q_THK, *k_nGK, *v_nGK, *out_THK, *dout_THK;
  const float* lse_TH;
  void *dq_THK, *dk_nGK, *dv_nGK;
};

// Returns the number of int32 words that say where the parts of such a call lie.
int64_t num_place_words(int64_t parts);
// Appends them. They go to the device, aligned to 16 bytes.
void append_place_words(const PartsCall& call, std::vector<int32_t>& words);

class CudnnAttention {
 public:
  // Returns null where the current device is none for which this is meant. It takes no memory before covers().
  static std::unique_ptr<CudnnAttention> make();
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // Returns whether there is a good plan for each of the calls; makes and checks those that are missing first. If there is
  // none for a call, a warning says why, once. `workspace` has workspace_bytes() of each. Throws EnvironmentError where
  // the GPU fails.
  bool covers(const std::vector<PartsCall>& calls, void* workspace, cudaStream_t stream);
  // Computes the parts of one of those calls, of all KV heads: it writes dq of their rows, and dk and dv of their
  // keys. `places` are the words of append_place_words(), on the device.
  void run(const PartsShape& shape, const PartsOperands& operands, const int32_t* places, void* workspace,
           cudaStream_t stream);

  // Returns the library's version, for the operations' name: "cuDNN 91900".
  static std::string library();

 private:
  class Plan;
  struct Before {
    bool operator()(const PartsShape& a, const PartsShape& b) const;
  };

  CudnnAttention();
  // Builds the plans in several threads at once, because each may compile a kernel.
  struct NewPlan {
    std::unique_ptr<Plan> plan;
    std::string why;  // it cannot be used; empty: it can
  };
  using NewPlans = std::map<PartsShape, NewPlan, Before>;
  void build(NewPlans& made);
  std::string check(const PartsShape& shape, Plan& plan, void* workspace, cudaStream_t stream);

  std::vector<cudnnContext*> handles_;  // one for each thread that has built plans; the first one also runs them
  std::map<PartsShape, std::unique_ptr<Plan>, Before> plans_;  // null: refused
};

}  // namespace tandem::device::cuda
