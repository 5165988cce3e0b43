#include "bench/work.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/size.h"
#include "model/registry.h"
#include "weights/weights_plan.h"

namespace tandem::bench {

Work::Work(double work_bytes, double work_flops, const Ceilings& ceilings)
    : bytes(work_bytes),
      flops(work_flops),
      limit_seconds(std::max(work_bytes / ceilings.bytes_per_s(), work_flops / ceilings.flops_per_s)) {}

Work Work::times(double count) const {
  Work result = *this;
  result.bytes *= count;
  result.flops *= count;
  result.limit_seconds *= count;
  return result;
}

Work Work::operator+(const Work& other) const {
  Work result = *this;
  result.bytes += other.bytes;
  result.flops += other.flops;
  result.limit_seconds += other.limit_seconds;
  return result;
}

namespace {

// Returns the bytes of all experts' matrices.
double bytes_of_experts(const model::ModelConfig& config) {
  if (!config.experts) return 0.0;
  base::Size bytes = 0;
  for (const weights::PackedTensor& packed : model::build_layout(config).tensors) {
    if (packed.name.ends_with("experts_gate_up") || packed.name.ends_with("experts_down"))
      bytes += weights::tensor_bytes_in_store(packed, model::dtype_bytes(config.dtype));
  }
  return static_cast<double>(static_cast<int64_t>(bytes));
}

}  // namespace

ModelWork::ModelWork(const model::ModelConfig& config)
    : config_(config),
      element_(static_cast<double>(model::dtype_bytes(config.dtype))),
      parameters_(static_cast<double>(config.num_parameters())),
      experts_bytes_(bytes_of_experts(config)) {}

double ModelWork::num_parameters() const { return parameters_; }

double ModelWork::weight_bytes() const {
  if (!config_.is_quantised()) return parameters_ * element_;
  return static_cast<double>(
      static_cast<int64_t>(weights::store_bytes(model::build_layout(config_), model::dtype_bytes(config_.dtype))));
}

double ModelWork::forward_bytes(double rows) const {
  const auto hidden = static_cast<double>(config_.hidden);
  const double table = static_cast<double>(config_.vocab) * hidden * element_;
  double bytes = weight_bytes() - (config_.tied_embeddings ? 0.0 : table);
  if (config_.experts) {
    const auto count = static_cast<double>(config_.experts->count),
               chosen = static_cast<double>(config_.experts->chosen);
    bytes -= experts_bytes_ * std::pow(1 - chosen / count, rows);
  }
  return bytes;
}

double ModelWork::kv_token_bytes() const {
  return 2.0 * static_cast<double>(config_.num_layers * config_.num_kv_heads * config_.head_dim) * element_;
}

double ModelWork::flops(const model::ForwardWork& work) const { return model::forward_flops(config_, work); }

Work ModelWork::decode_step(double sequences, double context, double shared, double group,
                            const Ceilings& ceilings) const {
  const double read_tokens = sequences * (context - shared) + sequences / group * shared;
  return {forward_bytes(sequences) + read_tokens * kv_token_bytes(),
          flops({.rows = sequences, .logit_rows = sequences, .key_pairs = sequences * context}), ceilings};
}

Work ModelWork::prefill(double prompts, double prompt_tokens, double batch_tokens, const Ceilings& ceilings) const {
  const double rows = prompts * prompt_tokens;
  return {std::ceil(rows / batch_tokens) * forward_bytes(std::min(rows, batch_tokens)) + rows * kv_token_bytes(),
          flops({.rows = rows, .logit_rows = prompts, .key_pairs = rows * prompt_tokens / 2}), ceilings};
}

Work ModelWork::training(double forward_flops, double micro_batches, const Ceilings& ceilings) const {
  constexpr double kGradientBytes = 2 * sizeof(float);  // bytes read and written
  // A step runs the forward, the gradient of inputs, and the gradient of weights, which reads none of them.
  return {micro_batches * (2 * forward_bytes(std::numeric_limits<double>::infinity()) + parameters_ * kGradientBytes),
          3 * forward_flops, ceilings};
}

Work ModelWork::optimizer(const Ceilings& ceilings) const {
  // The optimizer reads the gradient twice, master and two moments. It writes the last three, and the weight if it is
  // not the master itself.
  const double floats = 2 + 3 + 3;
  const double rounded = config_.dtype == model::Dtype::kFloat32 ? 0.0 : element_;
  return {parameters_ * (floats * sizeof(float) + rounded), 0.0, ceilings};
}

}  // namespace tandem::bench
