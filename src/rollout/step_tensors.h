// The tensors of one step of the engine on the device: what it is sent, and what it answers.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "device/ops.h"
#include "rollout/step_input.h"

namespace tandem::rollout {

struct StepTensors {
  // input: int32 [shape.num_words()], results: int32 [3 * shape.num_draws], both on the device.
  StepTensors(const StepShape& shape, const at::Tensor& input, const at::Tensor& results);

  StepShape shape;
  at::Tensor input;                           // all of the next five, as they were sent
  at::Tensor draws;                           // uint8, an array of device::Draw
  at::Tensor ids_T, positions_T, slots_T;     // int32
  at::Tensor logits_rows_R;                   // int32; undefined: every row, in order
  at::Tensor results;                         // all of the next three
  at::Tensor token_n, logprob_n, behavior_n;  // int32, float32, float32
  device::AttentionRows rows;                 // prepared; its own tensors are views of a StepInput
  std::vector<DrawWindow> windows;
};

// The rows of an input as Ops::prepare() takes them. They point into the input.
device::AttentionRows attention_rows(const StepInput& input);
// All that is sent, as one tensor on the host, which points into the input.
at::Tensor host_words(const StepInput& input);

// The results of a step on the host: [3 * n] as StepTensors::results.
struct StepResults {
  const int32_t* tokens;  // [n]; -1: the logits were not finite
  const float* logprobs;
  const float* behavior_logprobs;
};
StepResults read_results(const at::Tensor& results);

}  // namespace tandem::rollout
