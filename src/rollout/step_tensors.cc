#include "rollout/step_tensors.h"

#include <ATen/ops/from_blob.h>

#include "base/check.h"

namespace tandem::rollout {

namespace {

at::Tensor int32_view(const std::vector<int32_t>& values, int64_t offset, at::IntArrayRef shape) {
  return at::from_blob(const_cast<int32_t*>(values.data()) + offset, shape, at::TensorOptions().dtype(at::kInt));
}

}  // namespace

StepTensors::StepTensors(const StepShape& step, const at::Tensor& step_input, const at::Tensor& step_results)
    : shape(step), input(step_input), results(step_results) {
  TANDEM_CHECK_EQ(input.numel(), shape.num_words());
  TANDEM_CHECK_EQ(results.numel(), 3 * shape.num_draws);
  draws = input.narrow(0, 0, shape.ids_begin()).view(at::kByte);
  ids_T = input.narrow(0, shape.ids_begin(), shape.num_rows);
  positions_T = input.narrow(0, shape.positions_begin(), shape.num_rows);
  for (int64_t kind = 0; kind < shape.num_kinds; ++kind) {
    slots_T.push_back(input.narrow(0, shape.slots_begin(kind), shape.num_rows));
  }
  if (shape.num_logits_rows > 0) {
    logits_rows_R = input.narrow(0, shape.logits_rows_begin(), shape.num_logits_rows);
  }
  const auto third = [&](int64_t i) { return results.narrow(0, i * shape.num_draws, shape.num_draws); };
  token_n = third(0);
  logprob_n = third(1).view(at::kFloat);
  behavior_n = third(2).view(at::kFloat);
}

device::AttentionRows attention_rows(const StepInput& input, size_t kind) {
  const StepShape& shape = input.shape();
  device::AttentionRows rows;
  rows.sequence_of_row = int32_view(input.sequence_of_row(), 0, {shape.num_rows});
  rows.row_position = int32_view(input.words(), shape.positions_begin(), {shape.num_rows});
  rows.block_table = int32_view(input.block_table(kind), 0, {shape.num_sequences, shape.max_blocks});
  return rows;
}

at::Tensor host_words(const StepInput& input) { return int32_view(input.words(), 0, {input.shape().num_words()}); }

StepResults read_results(const at::Tensor& results) {
  const int64_t num_draws = results.numel() / 3;
  const auto* words = results.const_data_ptr<int32_t>();
  const auto* numbers = reinterpret_cast<const float*>(words);
  return {.tokens = words, .logprobs = numbers + num_draws, .behavior_logprobs = numbers + 2 * num_draws};
}

}  // namespace tandem::rollout
