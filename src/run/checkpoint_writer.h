// The Hugging Face checkpoints of a run: hf/step_000100 and the link hf/latest.
#pragma once

#include <cstdint>

#include "run/report.h"
#include "run/run_directory.h"
#include "run/session.h"

namespace tandem::run {

// What a checkpoint takes on disk, about: weights, tokenizer and configuration.
int64_t checkpoint_bytes(const Session& session);

// Writes one and points hf/latest at it; either is whole or not there. Returns the seconds it took.
double write_checkpoint(const Session& session, const RunDirectory& directory, int64_t step, Report& report);

}  // namespace tandem::run
