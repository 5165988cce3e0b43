// What a model family states without torch: its row in model/registry.cc. One folder holds it, in the same four files
// for each family: config (parse), layout, cost (block_bytes, forward_flops), and forward, which needs torch and whose
// row is in model/model.cc.
#pragma once

#include "model/config.h"
#include "model/config_reader.h"
#include "model/model_plan.h"
#include "weights/layout.h"

namespace tandem::model {

// A forward as far as its arithmetic depends on it, counted by whoever runs it.
struct ForwardWork {
  double rows = 0;        // tokens through the blocks
  double logit_rows = 0;  // tokens through the head
  double key_pairs = 0;   // queries, each times the keys that it sees
};

struct Family {
  const char* architecture;  // the name that config.json gives the model: "Qwen3ForCausalLM"
  // The architecture of the family's sparse models, which are refused with the advice to take a dense one; or null.
  const char* sparse_architecture;

  // The shape that config.json describes. UserError, by key, for what the family has and Tandem does not compute. What
  // every family has in common (architecture, EOS and padding ids) is its caller's.
  ModelConfig (*parse)(const ConfigReader& reader);
  // The packed tensors, how each begins, and whether it decays.
  weights::Layout (*layout)(const ModelConfig& config);
  // What one decoder block allocates while it runs and is differentiated (model_plan.h).
  BlockBytes (*block_bytes)(const ModelConfig& config, Dtype dtype, const device::OpsPlan& ops, Size rows,
                            const AttentionBytes& attention);
  // Floating-point operations of one forward: two per weight of a matrix and token, and attention's two products. Of a
  // part, those of its rank alone.
  double (*forward_flops)(const ModelConfig& config, const ForwardWork& work);
};

}  // namespace tandem::model
