// The tensors of one step of the engine on the device: its input and its results.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "device/ops.h"
#include "rollout/step_input.h"

namespace tandem::rollout {

struct StepTensors {
  // `input` is int32 [shape.num_words()], `results` int32 [3 * shape.num_draws], both on the device.
  StepTensors(const StepShape& shape, const at::Tensor& input, const at::Tensor& results);

  StepShape shape;
  at::Tensor input;                           // all of the next five tensors, as they were sent
  at::Tensor draws;                           // uint8, an array of device::Draw
  at::Tensor ids_T, positions_T;              // int32
  std::vector<at::Tensor> slots_T;            // int32, by kind of KV block
  at::Tensor logits_rows_R;                   // int32; undefined: every row has logits, in order
  at::Tensor results;                         // all of the next three tensors
  at::Tensor token_n, logprob_n, behavior_n;  // int32, float32, float32
  // These are prepared, one for each kind of KV block; their own tensors are views of a StepInput.
  std::vector<device::AttentionRows> rows;
  std::vector<DrawWindow> windows;
};

// Returns the rows of an input in the form that Ops::prepare() takes, for layers whose KV blocks are of that kind. They
// point into the input.
device::AttentionRows attention_rows(const StepInput& input, size_t kind);
// Returns all words of the input as one tensor on the host, which points into the input.
at::Tensor host_words(const StepInput& input);

// Holds the results of a step on the host: [3 * n] as StepTensors::results.
struct StepResults {
  const int32_t* tokens;  // [n]; -1: the logits were not finite
  const float* logprobs;
  const float* behavior_logprobs;
};
StepResults read_results(const at::Tensor& results);

}  // namespace tandem::rollout
