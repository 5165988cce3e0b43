// Makes the trainer's configuration from the flags, and counts what training takes. Throws UserError if flags
// contradict each other.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/optimizer_options.h"
#include "config/train_config.h"
#include "report/report.h"
#include "rl/loss_config.h"
#include "session/model_session.h"
#include "session/run_memory.h"
#include "trainer/trainer.h"

namespace tandem::session {

trainer::TrainerConfig trainer_config(const config::OptimizerOptions& options, const rl::LossConfig& loss,
                                      int64_t num_layers, int64_t total_steps, uint64_t seed = 0);

// Returns the configuration for `tandem train`.
trainer::TrainerConfig trainer_config(const config::TrainConfig& config, int64_t num_layers, int64_t total_steps);

// Returns the metrics of an optimizer step under the names that records have: in train/*, but for moe/*.
report::Metrics recorded(const trainer::Metrics& of_step);

// Returns "LoRA: 123,456 trained parameters: rank 16, alpha 32 on q_proj, v_proj", for a configuration that has an
// adapter; "; embed_tokens whole" follows where modules are trained whole.
std::string lora_text(const model::ModelConfig& config);

// Returns what a run's results depend on of its adapter, wherever it was said: in flags or in the file of an adapter
// that is trained on (checkpoint::ResultInputs::adapter). It is empty without an adapter.
std::map<std::string, std::string> adapter_inputs(const model::ModelConfig& config);

// Records in the ledger what the optimizer takes for as long as the run lasts. One that is offloaded is not asked,
// because it may still be pinning its memory; on a device other than the CPU it takes nothing.
void account_optimizer(const ModelSession& session, const trainer::Trainer& trainer, bool is_offloaded,
                       int64_t data_ranks, RunMemory& memory);

// Returns the floating-point operations of one forward over the samples of an optimizer step, as the model's family
// counts them. Neighbours of one group share their prompt, which runs once.
double forward_flops(const model::ModelConfig& config, const std::vector<const rl::Sample*>& samples);
// Returns the operations of forward and backward: a backward has twice as many as a forward. With an adapter, whose own
// are few and not counted, there are no products for the gradients of weights, but those of a head that is trained
// whole.
double training_flops(const model::ModelConfig& config, const std::vector<const rl::Sample*>& samples);

}  // namespace tandem::session
