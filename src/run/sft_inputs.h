// All that `tandem sft` can know without reading a weight or writing a byte.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "run/checkpoints.h"
#include "run/held_out.h"
#include "run/report.h"
#include "run/run_directory.h"
#include "run/run_mode.h"
#include "run/session.h"
#include "run/sft_config.h"
#include "run/sft_samples.h"
#include "trainer/trainer.h"

namespace tandem::run {

struct SftInputs {
  // UserError for the first thing that is wrong with flags, model, tokenizer, data, --load or --save.
  SftInputs(const SftConfig& config, const RunMode& mode);

  int64_t num_samples() const { return static_cast<int64_t>(data.samples.size()); }

  SftConfig config;
  Session session;  // its weights come later
  SftSamples data;
  HeldOut held_out;
  int64_t num_steps;
  trainer::TrainerConfig trainer;
  std::optional<Checkpoint> checkpoint;        // to resume from
  std::map<std::string, std::string> numbers;  // what results depend on
  RunDirectory directory;                      // nothing is in it yet
};

// Says what the run would be, for --dry-run, which also looks at the weights' files. Returns the exit code.
int print_dry_run(const SftInputs& inputs);

// The first lines of a run that has begun: what it is, and behind which of its steps it resumes.
void print_start(const SftInputs& inputs, int64_t step, Report& report);

}  // namespace tandem::run
