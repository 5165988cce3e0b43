#include "model/model.h"

#include <c10/core/GradMode.h>

#include <array>
#include <string_view>

#include "base/check.h"
#include "model/llama/llama.h"
#include "model/qwen2/qwen2.h"
#include "model/qwen3/qwen3.h"
#include "model/tensor_ranks.h"

namespace tandem::model {
namespace {

// The forward of each family of model/registry.cc.
struct ForwardRow {
  std::string_view architecture;
  std::unique_ptr<Model> (*make)(const ModelConfig&, const weights::WeightsView&, const device::Ops&,
                                 const TensorRanks&);
};
constexpr std::array kForwards = {
    ForwardRow{.architecture = "Qwen3ForCausalLM", .make = qwen3::make},
    ForwardRow{.architecture = "Qwen2ForCausalLM", .make = qwen2::make},
    ForwardRow{.architecture = "LlamaForCausalLM", .make = llama::make},
};

std::unique_ptr<Model> make(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops,
                            const TensorRanks& ranks) {
  for (const ForwardRow& row : kForwards) {
    if (row.architecture == config.architecture) return row.make(config, view, ops, ranks);
  }
  // The configuration's parser refuses names that the registry does not have, so this is a row that was forgotten here.
  TANDEM_CHECK(false, "no forward for", config.architecture);
  return nullptr;
}

}  // namespace

std::unique_ptr<Model> make_model(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops) {
  return make(config, view, ops, TensorRanks(ops));
}

std::unique_ptr<Model> make_model(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops,
                                  device::Communicator& ranks) {
  return make(config, view, ops, TensorRanks(ops, ranks));
}

at::Tensor forward_hidden(const Model& model, const at::Tensor& ids_T, const at::Tensor& positions_T,
                          Attention& attention) {
  const c10::AutoGradMode off(false);
  at::Tensor hidden_TE = model.embed(ids_T);
  for (int64_t layer = 0; layer < model.config().num_layers; ++layer)
    hidden_TE = model.block(layer, hidden_TE, positions_T, attention);
  return model.final_norm(hidden_TE, ids_T.size(0));
}

}  // namespace tandem::model
