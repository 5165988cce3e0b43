// A process that only scores: `tandem scorer`.
#pragma once

#include "config/run_mode.h"
#include "config/verb_configs.h"

namespace tandem::scorer {

// Scores samples for the runs that ask at --listen, a piece of each in turn, until a signal stops it. Returns an exit
// code. Throws UserError and EnvironmentError for what keeps it from beginning; a run that breaks off, or asks for what
// cannot be scored, is turned away alone.
int serve_scores(const config::ScorerConfig& config, const config::RunMode& mode);

}  // namespace tandem::scorer
