// What operations take beside their arguments and results: buffers that the CPU's keep for good, temporaries that
// LibTorch's make. No torch.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::device {

// Who computes. The CPU's own operations allocate their results and nothing else that grows with a batch; those in
// plain ATen (ops_aten.h), which a GPU begins with, make float32 temporaries for every step of their formulas.
enum class OpsFamily : uint8_t { kCpu, kAten };
OpsFamily ops_family(const std::string& device);  // of what --device says

// Shapes of what is run, in elements.
struct OpsShape {
  int64_t hidden = 0, q_width = 0, kv_width = 0, mlp = 0, vocab = 0;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t rows = 0;         // of a batch, at most
  int64_t logits_rows = 0;  // of a chunk of logits
  int64_t context = 0;      // keys of a sequence
  bool trains = false;      // backward too
};

// kCpu: what GemmRunner packs rows into, each thread's attention scratch, the table of rotations. Kept from the first
// large batch on.
int64_t cpu_kernel_bytes(const OpsShape& shape, int64_t num_threads);

// kAten: the most temporaries that are alive in one decoder block, in chunks of logits, and in the optimizer. Read off
// ops_aten.cc, rounded up; 0 for kCpu.
int64_t block_temporary_bytes(OpsFamily family, const OpsShape& shape);
int64_t logits_temporary_bytes(OpsFamily family, const OpsShape& shape, bool has_entropy_gradient);
int64_t optimizer_temporary_bytes(OpsFamily family, int64_t largest_parameter);

}  // namespace tandem::device
