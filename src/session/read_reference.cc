#include "session/read_reference.h"

#include <fmt/format.h>

#include "base/check.h"
#include "session/read_model.h"

namespace tandem::session {

namespace {

// Refuses a reference of another shape.
template <typename T>
void demand_same_shape(const std::string& directory, const char* key, const T& reference, const T& policy) {
  TANDEM_USER_CHECK(
      reference == policy,
      fmt::format("--ref-load {}: not the shape of --hf-checkpoint: {} is {} in its config.json and {} in "
                  "that of --hf-checkpoint; name a model of the same shape",
                  directory, key, reference, policy));
}

}  // namespace

model::ModelConfig read_reference(const std::string& directory, const model::ModelConfig& policy) {
  check_model_directory("--ref-load " + directory, directory);
  const model::ModelConfig own = model::read_model_config(directory);
  demand_same_shape(directory, "architectures", own.architecture, policy.architecture);
  demand_same_shape(directory, "vocab_size", own.vocab, policy.vocab);
  demand_same_shape(directory, "hidden_size", own.hidden, policy.hidden);
  demand_same_shape(directory, "num_hidden_layers", own.num_layers, policy.num_layers);
  model::ModelConfig reference = policy;
  reference.lora.reset();
  reference.attention = own.attention;
  reference.rotary_dims = own.rotary_dims;
  reference.rms_norm_eps = own.rms_norm_eps;
  if (reference.experts && own.experts) reference.experts->normalises = own.experts->normalises;
  return reference;
}

void check_reference_shape(const std::string& directory, const model::ModelConfig& policy) {
  const model::ModelConfig own = model::read_model_config(directory), whole = model::whole_of(policy);
  demand_same_shape(directory, "num_attention_heads", own.num_heads, whole.num_heads);
  demand_same_shape(directory, "num_key_value_heads", own.num_kv_heads, whole.num_kv_heads);
  demand_same_shape(directory, "head_dim", own.head_dim, whole.head_dim);
  demand_same_shape(directory, "intermediate_size", own.mlp, whole.mlp);
  demand_same_shape(directory, "attention_bias", own.attention_bias, whole.attention_bias);
  if (!own.experts || !whole.experts) return;
  demand_same_shape(directory, "num_experts", own.experts->count, whole.experts->count);
  demand_same_shape(directory, "moe_intermediate_size", own.experts->width, whole.experts->width);
  demand_same_shape(directory, "num_experts_per_tok", own.experts->chosen, whole.experts->chosen);
}

void check_reference_forward(const std::string& directory, const model::ModelConfig& policy) {
  const model::ModelConfig own = read_reference(directory, policy);
  const auto demand = [&](const char* key, bool is_same) {
    TANDEM_USER_CHECK(is_same,
                      fmt::format("--ref-load {}: {} of its config.json is not that of --hf-checkpoint, whose weights "
                                  "--ref-update-interval gives the reference; make them the same, or leave one of the "
                                  "two flags out",
                                  directory, key));
  };
  demand("rms_norm_eps", own.rms_norm_eps == policy.rms_norm_eps);
  demand("partial_rotary_factor", own.rotated_dims() == policy.rotated_dims());
  demand("norm_topk_prob", own.experts == policy.experts);
  for (int64_t layer = 0; layer < policy.num_layers; ++layer) {
    const model::LayerAttention &a = own.attention_of(layer), &b = policy.attention_of(layer);
    demand("sliding_window", a.window == b.window);
    demand("rope_theta", a.rope_theta == b.rope_theta);
    demand("rope_scaling", a.rope_factors == b.rope_factors);
    demand("query_pre_attn_scalar or rope_scaling", a.query_scale == b.query_scale);
  }
}

}  // namespace tandem::session
