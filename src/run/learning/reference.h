// The reference of the policy: the weights that a KL term compares with. They stay on the device, or are there only
// while they score (--offload-reference, run/learning/scoring_model.h). They are frozen, except when
// --ref-update-interval makes them a copy of the policy, or with --ref-mixup-alpha an average of its weights over time.
// If a run trains an adapter, the reference is the base, which is in memory anyway; one that follows the policy has an
// adapter of its own over that base.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoints.h"
#include "checkpoint/run_state.h"
#include "run/learning/scoring_model.h"
#include "session/model_session.h"
#include "session/run_memory.h"
#include "trainer/score.h"
#include "weights/store.h"

namespace tandem::run {

// Throws UserError unless `directory` holds a model of the session's shape, and where the reference will follow the
// policy one that computes as the policy does, so that a mistake is found before weights are read; "" names the
// session's own.
void check_reference(const session::ModelSession& session, const std::string& directory, bool follows_policy);

// Throws EnvironmentError for a reference, that of --ref-load or else of --hf-checkpoint, whose log-probs are not
// finite, with the reason.
[[noreturn]] void refuse_reference(const session::ModelSession& session, const std::string& directory,
                                   const std::string& why_not_finite);

class Reference {
 public:
  struct Options {
    std::string directory;        // value of --ref-load; "": the weights that the session begins with
    bool follows_policy = false;  // true if follow_policy() will be called
    double mixup_alpha = 1.0;     // what follow_policy() takes of the policy: (0, 1]
    bool is_offloaded = false;
    bool sequence_parallel = false;  // value of model::TensorShard's
  };
  // Loads the model of the directory, in the session's shape and dtype; or the weights of the checkpoint that the run
  // resumes from, if it holds some. Throws UserError when the shapes differ. Borrows the session; the ledger records
  // what lasts.
  Reference(const session::ModelSession& session, const Options& options,
            const std::optional<checkpoint::Checkpoint>& checkpoint, session::RunMemory& memory);

  // Scores as trainer::score() does. Throws EnvironmentError for a log-prob that is not finite.
  trainer::Scores score(const std::vector<const rl::Sample*>& samples, const trainer::BatchConfig& batch,
                        double temperature, const trainer::Ranks& ranks = trainer::no_other_ranks());

  // Makes every weight (1 - alpha) times itself and alpha times what the session has trained up to now, after `step`
  // finished rollouts (TRL's sync_ref_model with ref_model_mixup_alpha). Computed in float32, each weight on its own.
  void follow_policy(int64_t step);
  // Adds the weights to what a checkpoint holds, if they are no longer those of a directory.
  void save(checkpoint::RunState& state, std::vector<checkpoint::SavedTensor>& tensors) const;

 private:
  // Begins a reference whose own weights are an adapter, or none.
  void begin_at_base(bool has_adapter, const std::optional<checkpoint::Checkpoint>& checkpoint,
                     session::RunMemory& memory);
  void fill(const std::string& directory, const std::optional<checkpoint::Checkpoint>& checkpoint,
            weights::WeightStore& store);
  // Fills a store that has memory with what the checkpoint holds.
  void restore(const checkpoint::Checkpoint& checkpoint, weights::WeightStore& store);
  bool keeps_average(const weights::WeightStore& own) const;
  std::string why_not_finite() const;
  const weights::WeightStore& saved() const { return average_ ? *average_ : model_->home(); }

  const session::ModelSession& session_;
  const std::string directory_;
  const double mixup_alpha_;
  int64_t step_ = 0;  // step of the policy that the weights followed last; 0: they never did
  // The average in float32 on the host: the weights in bfloat16 are this, rounded. A step of training moves most
  // weights by less than bfloat16 can show, so an average of rounded numbers would stand still.
  std::optional<weights::WeightStore> average_;
  std::optional<ScoringModel> model_;
};

}  // namespace tandem::run
