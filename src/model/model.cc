#include "model/model.h"

#include <c10/core/GradMode.h>

#include "model/decoder/forward.h"
#include "model/registry.h"
#include "model/tensor_ranks.h"

namespace tandem::model {
std::unique_ptr<Model> make_model(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops) {
  return decoder::make_decoder(config, family_of(config), view, ops, TensorRanks(ops));
}

std::unique_ptr<Model> make_model(const ModelConfig& config, const weights::WeightsView& view, const device::Ops& ops,
                                  device::Communicator& ranks) {
  return decoder::make_decoder(config, family_of(config), view, ops, TensorRanks(ops, ranks));
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
