// Decode steps that are recorded and replayed, one recording for each bucket of rows (step_input.h).
//
// A recorded step reads and writes its tensors, and the memory it allocated while it was recorded, at their addresses.
// So the tensors of all buckets lie in one allocation, the step memory: it is taken before anything else of a rollout
// and released at its end. If the next rollout's lies at the same address the recordings stay; otherwise they are
// dropped and made again. Nothing else of the engine may be allocated when a step is replayed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "device/ops.h"
#include "rollout/step_tensors.h"

namespace tandem::rollout {

class StepBuckets {
 public:
  struct Bucket {
    StepTensors tensors;
    std::unique_ptr<device::Ops::Recording> recording;
    bool has_run = false;
  };

  // Serves steps of at most that many rows; buckets end at kLargestBucket. num_kinds: of KV blocks. Ops is borrowed.
  StepBuckets(const device::Ops& ops, int64_t max_rows, int64_t num_kinds);

  // Allocates the step memory, for sequences of up to so many tokens.
  void take(int64_t context_tokens);
  void release();
  bool is_taken() const { return memory_.defined(); }
  // Returns whether the step memory is enough for sequences of so many tokens.
  bool holds(int64_t context_tokens) const;
  void drop_recordings();

  // Returns the bucket of a decode step of so many rows, made when it is first met; nullptr if they are too many. The
  // step memory must have been taken.
  Bucket* find(int64_t num_rows);
  // Fills the bucket's rows of attention with the input's.
  void fill_rows(Bucket& bucket, const StepInput& input) const;
  // `work` computes with the bucket's tensors alone. It is run for the bucket's first time, recorded at its second, and
  // replayed from then on.
  void run(Bucket& bucket, const std::function<void()>& work) const;

 private:
  void lay_out();
  at::Tensor part(int64_t begin, int64_t count, at::ScalarType dtype) const;

  const device::Ops& ops_;
  const int64_t max_rows_, num_kinds_;
  int64_t max_blocks_ = 0;                 // columns of every block table
  std::map<int64_t, BucketPlace> places_;  // by rows of the bucket
  at::Tensor memory_;
  std::byte* address_ = nullptr;                        // address of the step memory, now or when it was last taken
  std::map<int64_t, std::unique_ptr<Bucket>> buckets_;  // by rows; their tensors are views of memory at address_
};

}  // namespace tandem::rollout
