#include "model/decoder/layout.h"

namespace tandem::model::decoder {

using weights::Layout;
using weights::PackedTensor;
using weights::Slice;

namespace {

PackedTensor stack(const std::string& name, const HfTensors& slices) {
  PackedTensor packed{.name = name, .shape = slices.front().shape, .slices = slices};
  packed.shape[0] = 0;
  for (Slice& slice : packed.slices) {
    slice.row_begin = packed.shape[0];
    packed.shape[0] += slice.shape[0];
  }
  return packed;
}

Slice part_of(const ModelConfig& config, const std::string& hf_name, const std::vector<int64_t>& shape, size_t dim) {
  Slice slice{.hf_name = hf_name, .shape = shape};
  if (config.shard.is_whole()) return slice;
  slice.begin.assign(shape.size(), 0);
  slice.begin[dim] = shape[dim] * config.shard.rank;
  slice.whole_shape = shape;
  slice.whole_shape[dim] *= config.shard.size;
  return slice;
}

// Returns what a model's part (ModelConfig::shard) has of a Hugging Face tensor: the rows, or the columns, of its heads
// or of its share of the MLP. `shape` is the part's own; every part has as many.
Slice rows_of_part(const ModelConfig& config, const std::string& hf_name, const std::vector<int64_t>& shape) {
  return part_of(config, hf_name, shape, 0);
}

Slice columns_of_part(const ModelConfig& config, const std::string& hf_name, const std::vector<int64_t>& shape) {
  return part_of(config, hf_name, shape, 1);
}

// Returns the rows of the embedding, or of the head, that this part of the model has. Parts may differ in size.
Slice vocabulary(const ModelConfig& config, const std::string& hf_name) {
  const VocabRows rows = vocab_rows(config);
  Slice slice{.hf_name = hf_name, .shape = {rows.count(), config.hidden}};
  if (config.shard.is_whole()) return slice;
  slice.begin = {rows.begin, 0};
  slice.whole_shape = {config.vocab, config.hidden};
  return slice;
}

// Returns a packed matrix of a module that can have an adapter: every matrix of a block but a router (model/lora.h).
PackedTensor adaptable_matrix(const std::string& packed_name, const HfTensors& slices) {
  PackedTensor packed = stack(packed_name, slices);
  packed.takes_adapter = true;
  return packed;
}

}  // namespace

LayerNames::LayerNames(int64_t layer)
    : packed("layers." + std::to_string(layer) + "."), hf("model.layers." + std::to_string(layer) + ".") {}

PackedTensor matrix(const std::string& packed_name, const HfTensors& slices) { return stack(packed_name, slices); }

PackedTensor norm(const Family& family, const std::string& packed_name, const std::string& hf_name, int64_t width) {
  PackedTensor packed = stack(packed_name, {{.hf_name = hf_name, .shape = {width}}});
  packed.init = family.norm_offset == 0.0 ? weights::Init::kOnes : weights::Init::kZeros;
  packed.decays = false;
  return packed;
}

PackedTensor bias(const std::string& packed_name, const HfTensors& slices) {
  PackedTensor packed = stack(packed_name, slices);
  packed.init = weights::Init::kZeros;
  packed.decays = false;
  return packed;
}

namespace {

// Adds a norm of the residual stream, or nothing where the family has no name for it.
void add_norm(const ModelConfig& config, const Family& family, const LayerNames& names, const std::string& packed,
              const char* hf_name, Layout& layout) {
  if (hf_name == nullptr) return;
  layout.tensors.push_back(norm(family, names.packed + packed, names.hf + hf_name + ".weight", config.hidden));
}

void add_attention(const ModelConfig& config, const Family& family, const LayerNames& names, Layout& layout) {
  const int64_t E = config.hidden, K = config.head_dim;
  const int64_t q_rows = config.num_heads * K, kv_rows = config.num_kv_heads * K;
  const std::string self_attn = names.hf + "self_attn.";
  add_norm(config, family, names, "input_norm", family.norms.attention_input, layout);
  HfTensors qkv = {rows_of_part(config, self_attn + "q_proj.weight", {q_rows, E}),
                   rows_of_part(config, self_attn + "k_proj.weight", {kv_rows, E}),
                   rows_of_part(config, self_attn + "v_proj.weight", {kv_rows, E})};
  if (family.fuses_qkv) qkv = HfTensors{{.hf_name = self_attn + "qkv_proj.weight", .shape = {q_rows + 2 * kv_rows, E}}};
  layout.tensors.push_back(adaptable_matrix(names.packed + "qkv", qkv));
  if (family.qkv_bias || config.attention_bias) {
    layout.tensors.push_back(
        bias(names.packed + "qkv_bias", {rows_of_part(config, self_attn + "q_proj.bias", {q_rows}),
                                         rows_of_part(config, self_attn + "k_proj.bias", {kv_rows}),
                                         rows_of_part(config, self_attn + "v_proj.bias", {kv_rows})}));
  }
  if (family.qk_norm != QkNorm::kNone) {
    const bool is_whole = family.qk_norm == QkNorm::kWhole;
    layout.tensors.push_back(norm(family, names.packed + "q_norm", self_attn + "q_norm.weight", is_whole ? q_rows : K));
    layout.tensors.push_back(
        norm(family, names.packed + "k_norm", self_attn + "k_norm.weight", is_whole ? kv_rows : K));
  }
  layout.tensors.push_back(
      adaptable_matrix(names.packed + "o", {columns_of_part(config, self_attn + "o_proj.weight", {E, q_rows})}));
  add_norm(config, family, names, "attention_output_norm", family.norms.attention_output, layout);
}

void add_gated_mlp(const ModelConfig& config, const Family& family, const LayerNames& names, Layout& layout) {
  const int64_t E = config.hidden, F = config.mlp;
  add_norm(config, family, names, "post_norm", family.norms.mlp_input, layout);
  HfTensors gate_up = {rows_of_part(config, names.hf + "mlp.gate_proj.weight", {F, E}),
                       rows_of_part(config, names.hf + "mlp.up_proj.weight", {F, E})};
  if (family.fuses_gate_up) gate_up = HfTensors{{.hf_name = names.hf + "mlp.gate_up_proj.weight", .shape = {2 * F, E}}};
  layout.tensors.push_back(adaptable_matrix(names.packed + "gate_up", gate_up));
  layout.tensors.push_back(
      adaptable_matrix(names.packed + "down", {columns_of_part(config, names.hf + "mlp.down_proj.weight", {E, F})}));
  add_norm(config, family, names, "mlp_output_norm", family.norms.mlp_output, layout);
}

void add_sparse_mlp(const ModelConfig& config, const Family& family, const LayerNames& names, Layout& layout) {
  const int64_t E = config.hidden, F = config.experts->width;
  layout.tensors.push_back(norm(family, names.packed + "post_norm", names.hf + "post_attention_layernorm.weight", E));
  layout.tensors.push_back(matrix(names.packed + "router",
                                  {{.hf_name = names.hf + "mlp.gate.weight", .shape = {config.experts->count, E}}}));
  layout.tensors.back().is_frozen = config.experts->router_is_frozen;
  HfTensors gate_up, down;
  for (int64_t e = 0; e < config.experts->count; ++e) {
    const std::string expert = names.hf + "mlp.experts." + std::to_string(e) + ".";
    gate_up.push_back(rows_of_part(config, expert + "gate_proj.weight", {F, E}));
    gate_up.push_back(rows_of_part(config, expert + "up_proj.weight", {F, E}));
    down.push_back(columns_of_part(config, expert + "down_proj.weight", {E, F}));
  }
  layout.tensors.push_back(adaptable_matrix(names.packed + "experts_gate_up", gate_up));
  layout.tensors.push_back(adaptable_matrix(names.packed + "experts_down", down));
}

void add_mlp(const ModelConfig& config, const Family& family, const LayerNames& names, Layout& layout) {
  switch (family.mlp) {
    case MlpKind::kGated: return add_gated_mlp(config, family, names, layout);
    case MlpKind::kSparse: return add_sparse_mlp(config, family, names, layout);
  }
}

}  // namespace

Layout layout(const ModelConfig& config, const Family& family) {
  Layout layout;
  layout.tensors.push_back(matrix("embed", {vocabulary(config, "model.embed_tokens.weight")}));
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const LayerNames names(layer);
    add_attention(config, family, names, layout);
    add_mlp(config, family, names, layout);
  }
  layout.tensors.push_back(norm(family, "final_norm", "model.norm.weight", config.hidden));
  if (config.tied_embeddings) {
    // Some publishers write the tied matrix twice.
    layout.tensors.front().slices.front().twin = "lm_head.weight";
    layout.ignored.push_back("lm_head.weight");
  } else {
    layout.tensors.push_back(matrix("head", {vocabulary(config, "lm_head.weight")}));
  }
  return layout;
}

}  // namespace tandem::model::decoder
