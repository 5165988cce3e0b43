// The reference of the policy: the weights that a KL term compares with. They stay on the device, or are there only
// while they score (--offload-reference, run/scoring_model.h). They are frozen, except when --ref-update-interval makes
// them a copy of the policy. If a run trains an adapter, the reference is the base, which is in memory anyway; one that
// follows the policy has an adapter of its own over that base.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoints.h"
#include "checkpoint/run_state.h"
#include "run/scoring_model.h"
#include "session/model_session.h"
#include "session/run_memory.h"
#include "trainer/score.h"
#include "weights/store.h"

namespace tandem::run {

// Throws UserError unless `directory` holds a model of the session's shape, so that a mistake is found before weights
// are read; "" names the session's own.
void check_reference(const session::ModelSession& session, const std::string& directory);

class Reference {
 public:
  struct Options {
    std::string directory;        // value of --ref-load; "": the weights that the session begins with
    bool follows_policy = false;  // true if become_policy() will be called
    bool is_offloaded = false;
    bool sequence_parallel = false;  // value of model::TensorShard's
  };
  // Loads the weights of the directory, in the session's shape and dtype; or those of the checkpoint that the run
  // resumes from, if it holds some. Throws UserError when the shapes differ. Borrows the session; the ledger records
  // what lasts.
  Reference(const session::ModelSession& session, const Options& options,
            const std::optional<checkpoint::Checkpoint>& checkpoint, session::RunMemory& memory);

  // Scores as trainer::score() does.
  trainer::Scores score(const std::vector<const rl::Sample*>& samples, const trainer::BatchConfig& batch,
                        double temperature, const trainer::Ranks& ranks = trainer::no_other_ranks()) {
    return model_->score(samples, batch, temperature, ranks);
  }

  // Copies what the session has trained up to now, after `step` finished rollouts.
  void become_policy(int64_t step);
  // Adds the weights to what a checkpoint holds, if they are no longer those of a directory.
  void save(checkpoint::RunState& state, std::vector<checkpoint::SavedTensor>& tensors) const;

 private:
  // Begins a reference whose own weights are an adapter, or none.
  void begin_at_base(bool follows_policy, const std::optional<checkpoint::Checkpoint>& checkpoint,
                     session::RunMemory& memory);
  void fill(const std::string& directory, const std::optional<checkpoint::Checkpoint>& checkpoint,
            weights::WeightStore& store);

  const session::ModelSession& session_;
  int64_t step_ = 0;  // step of the policy that the weights are a copy of; 0: they are no copy
  std::optional<ScoringModel> model_;
};

}  // namespace tandem::run
