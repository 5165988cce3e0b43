// The data sets that the flags of an evaluation name, each with its own options. No torch.
#pragma once

#include <vector>

#include "config/eval_options.h"
#include "config/eval_set.h"

namespace tandem::evaluation {

// Returns the data sets of --eval-prompt-data, or of the file of --eval-config, in their order. Throws UserError
// (FILE:LINE:COLUMN) for a file that is wrong.
std::vector<config::EvalSet> read_eval_sets(const config::EvalOptions& eval);

}  // namespace tandem::evaluation
