// Collects all that `tandem sft` can know without reading a weight or writing a byte.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/checkpoints.h"
#include "checkpoint/run_directory.h"
#include "config/run_mode.h"
#include "config/sft_config.h"
#include "mesh/mesh.h"
#include "report/report.h"
#include "run/learning/held_out.h"
#include "session/model_session.h"
#include "session/sft_samples.h"
#include "trainer/trainer.h"

namespace tandem::run {

struct SftInputs {
  // Throws UserError for the first thing that is wrong with flags, model, tokenizer, data, --load or --save. Every rank
  // reads all of it. `config` is the configuration of this rank, with its own device.
  SftInputs(const config::SftConfig& config, const config::RunMode& mode, std::unique_ptr<mesh::Mesh> ranks);

  // Returns the number of samples; of preferences: pairs, or labelled answers.
  int64_t num_samples() const { return std::ssize(data.samples) / config.preference.answers_of_item(); }

  std::unique_ptr<mesh::Mesh> mesh;
  config::SftConfig config;
  session::ModelSession session;  // weights are loaded later
  session::SftSamples data;
  HeldOut held_out;
  std::optional<checkpoint::Checkpoint> checkpoint;  // checkpoint to resume from
  config::RunProgress done;                          // what the run had done by that checkpoint
  int64_t num_steps;
  trainer::TrainerConfig trainer;
  std::map<std::string, std::string> result_inputs;  // everything that results depend on
  checkpoint::RunDirectory directory;                // empty so far
};

// Prints what the run would be, for --dry-run, which also looks at the weights' files. Returns the exit code.
int print_dry_run(const SftInputs& inputs);

// Prints the first lines of a run that has begun: what it is, and after which of its steps it resumes.
void print_start(const SftInputs& inputs, int64_t step, report::Report& report);

}  // namespace tandem::run
