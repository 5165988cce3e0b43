// Compares what the ranks of a run have read from files that each opens by itself. With a stale file on one host they
// would train a mixture without an error.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "checkpoint/checkpoints.h"
#include "config/eval_options.h"
#include "config/model_options.h"
#include "mesh/mesh.h"
#include "session/model_session.h"

namespace tandem::run {

// Names what a rank has read and gives a checksum of each: "the weight files of --hf-checkpoint".
using ReadFiles = std::map<std::string, std::string>;

// Calls `read` on every rank, and throws EnvironmentError on all if they have not read the same, or one cannot read.
void check_read_alike(const mesh::Mesh& mesh, const std::function<ReadFiles()>& read);

// Does the same check for the checkpoint that the ranks resume from, the files among the `result_inputs`, the data sets of
// evaluations, and the weights that they are about to load, of which a part is read. Every rank calls it, before
// anything is loaded or written. A run of one rank reads nothing. A warning says which rank has other kernels than
// rank 0.
void check_same_files(const mesh::Mesh& mesh, const std::optional<checkpoint::Checkpoint>& checkpoint,
                      const std::map<std::string, std::string>& result_inputs, const session::ModelSession& session,
                      const config::ModelOptions& model, const config::EvalOptions& eval);

}  // namespace tandem::run
