// Reads the teachers of on-policy distillation that the flags name, and refuses those that cannot teach this model. No
// weight is read.
#pragma once

#include <vector>

#include "config/loss_options.h"
#include "model/config.h"

namespace tandem::session {

// Returns the configuration of each teacher that the run loads, in the order of --opd-teacher-load: `student`'s dtype
// and, where the student is one rank's part, the part of that rank. Empty without --use-opd. Throws UserError for a
// directory that is no model's, and for a vocabulary that is smaller than the student's; a larger one may be padded.
std::vector<model::ModelConfig> read_teachers(const config::LossOptions& options, const model::ModelConfig& student);

}  // namespace tandem::session
