#include "run/reference.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/hub_name.h"
#include "checkpoint/resume.h"
#include "model/registry.h"
#include "weights/checkpoint_files.h"

namespace tandem::run {

void check_reference(const session::ModelSession& session, const std::string& directory) {
  if (directory.empty()) return;
  TANDEM_USER_CHECK(base::directory_exists(directory),
                    fmt::format("--ref-load {}: no such directory; name a Hugging Face model directory{}", directory,
                                base::hub_remedy(directory, base::HubKind::kModel)));
  const model::ModelConfig config = model::read_model_config(directory), &own = session.config();
  TANDEM_USER_CHECK(config.architecture == own.architecture && config.vocab == own.vocab &&
                        config.hidden == own.hidden && config.num_layers == own.num_layers,
                    fmt::format("--ref-load {}: not the shape of --hf-checkpoint {}; the reference must be the same "
                                "model",
                                directory, session.directory()));
  weights::check_hf_checkpoint(directory, model::build_layout(config));
}

Reference::Reference(const session::ModelSession& session, const Options& options,
                     const std::optional<checkpoint::Checkpoint>& checkpoint, session::RunMemory& memory)
    : session_(session) {
  if (checkpoint) step_ = checkpoint::read_state(*checkpoint).reference_step;
  model::ModelConfig config = session.config();
  if (config.lora && options.directory.empty()) {
    begin_at_base(options.follows_policy, checkpoint, memory);
    return;
  }
  config.lora.reset();
  config.shard.sequence_parallel = options.sequence_parallel;
  model_.emplace(
      session, config, options.is_offloaded,
      [&](weights::WeightStore& store) { fill(options.directory, checkpoint, store); }, memory);
}

void Reference::begin_at_base(bool follows_policy, const std::optional<checkpoint::Checkpoint>& checkpoint,
                              session::RunMemory& memory) {
  model::ModelConfig config = session_.config();
  if (!follows_policy) {
    config.lora.reset();
    model_.emplace(session_, config, session_.base().view());
    return;
  }
  auto adapter = std::make_unique<weights::WeightStore>(session_.empty_adapter());
  adapter->allocate();
  if (step_ > 0) {
    checkpoint::restore_reference(*checkpoint, *adapter);
  } else {
    // An adapter of zeros adds nothing to the base.
    for (const weights::PackedTensor& packed : adapter->layout().tensors) adapter->tensor(packed.name).zero_();
  }
  model_.emplace(session_, config, session_.base().view(), std::move(adapter), memory);
}

void Reference::fill(const std::string& directory, const std::optional<checkpoint::Checkpoint>& checkpoint,
                     weights::WeightStore& store) {
  if (step_ > 0) {
    if (!store.has_storage()) store.allocate();
    checkpoint::restore_reference(*checkpoint, store);
  } else if (directory.empty()) {
    session_.read_weights(store);
  } else {
    weights::load_hf_checkpoint(directory, store);
  }
}

void Reference::become_policy(int64_t step) {
  const weights::WeightStore& home = model_->home();
  for (const weights::PackedTensor& packed : home.layout().tensors) {
    home.tensor(packed.name).copy_(session_.trained().tensor(packed.name));
  }
  step_ = step;
}

void Reference::save(checkpoint::RunState& state, std::vector<checkpoint::SavedTensor>& tensors) const {
  if (step_ == 0) return;
  state.reference_step = step_;
  for (checkpoint::SavedTensor& tensor : checkpoint::reference_tensors(model_->home(), session_.config().shard.rank)) {
    tensors.push_back(std::move(tensor));
  }
}

}  // namespace tandem::run
