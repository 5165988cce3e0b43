#include "run/reference.h"

#include <fmt/format.h>

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
  if (options.is_offloaded) {
    host_memory_ = memory.make_host();
    offloaded_.emplace(model::build_layout(config), session.dtype(), session.ops().device(), *host_memory_);
    fill(options.directory, checkpoint, offloaded_->host());
    if (session.ops().is_on_host()) memory.add_persistent(memory::Tag::kReference, offloaded_->host().bytes());
    model_ = session.make_model(config, offloaded_->host().view());
    return;
  }
  resident_ = std::make_unique<weights::WeightStore>(session.empty_store());
  fill(options.directory, checkpoint, *resident_);
  memory.add_persistent(memory::Tag::kReference, resident_->bytes());
  model_ = session.make_model(config, resident_->view());
}

void Reference::begin_at_base(bool follows_policy, const std::optional<checkpoint::Checkpoint>& checkpoint,
                              session::RunMemory& memory) {
  model::ModelConfig config = session_.config();
  if (!follows_policy) {
    config.lora.reset();
    model_ = session_.make_model(config, session_.base().view());
    return;
  }
  resident_ = std::make_unique<weights::WeightStore>(session_.empty_adapter());
  resident_->allocate();
  if (step_ > 0) {
    checkpoint::restore_reference(*checkpoint, *resident_);
  } else {
    // An adapter of zeros adds nothing to the base.
    for (const weights::PackedTensor& packed : resident_->layout().tensors) resident_->tensor(packed.name).zero_();
  }
  memory.add_persistent(memory::Tag::kReference, resident_->bytes());
  model_ = session_.make_model(config, session_.base().view().with(resident_->view()));
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
  for (const weights::PackedTensor& packed : home().layout().tensors) {
    home().tensor(packed.name).copy_(session_.trained().tensor(packed.name));
  }
  step_ = step;
}

void Reference::save(checkpoint::RunState& state, std::vector<checkpoint::SavedTensor>& tensors) const {
  if (step_ == 0) return;
  state.reference_step = step_;
  for (checkpoint::SavedTensor& tensor : checkpoint::reference_tensors(home(), session_.config().shard.rank)) {
    tensors.push_back(std::move(tensor));
  }
}

trainer::Scores Reference::score(const std::vector<const rl::Sample*>& samples, const trainer::BatchConfig& batch,
                                 double temperature, const trainer::Ranks& ranks) {
  if (!offloaded_) return trainer::score(*model_, samples, batch, temperature, ranks);
  const weights::OffloadedStore::OnDeviceScope visit = offloaded_->to_device();
  // The model lets go of the device's tensors before the visit ends.
  struct Bound {
    Bound(model::Model& model, const weights::WeightStore& here, const weights::WeightStore& home)
        : model(model), home(home) {
      model.set_weights(here.view());
    }
    ~Bound() { model.set_weights(home.view()); }
    model::Model& model;
    const weights::WeightStore& home;
  } const bound(*model_, visit.store(), offloaded_->host());
  return trainer::score(*model_, samples, batch, temperature, ranks);
}

}  // namespace tandem::run
