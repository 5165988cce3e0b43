// The policy's reference: the weights that a KL term compares with, on the device for good, or there only while they
// score (--offload-reference). They are frozen, but for the moments at which --ref-update-interval makes them a copy of
// the policy. Of a run that trains an adapter, the reference is the base, which is there anyway; one that follows the
// policy has an adapter of its own beside it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoints.h"
#include "checkpoint/resume.h"
#include "model/model.h"
#include "session/model_session.h"
#include "session/run_memory.h"
#include "trainer/score.h"
#include "weights/offloaded_store.h"

namespace tandem::run {

// UserError unless `directory` holds a model of the session's shape, so that this is known before weights are read; ""
// is the session's own.
void check_reference(const session::ModelSession& session, const std::string& directory);

class Reference {
 public:
  struct Options {
    std::string directory;        // --ref-load; "": the weights that the session begins with
    bool follows_policy = false;  // become_policy() will be called
    bool is_offloaded = false;
    bool sequence_parallel = false;  // model::TensorShard
  };
  // The weights of the directory, in the session's shape and dtype; those of the checkpoint that the run resumes from,
  // where it holds some. UserError when the shapes differ. Borrows the session; tells the ledger what lasts.
  Reference(const session::ModelSession& session, const Options& options,
            const std::optional<checkpoint::Checkpoint>& checkpoint, session::RunMemory& memory);

  // As trainer::score(). Weights that are offloaded are on the device for the call, and gone after it however it ends.
  trainer::Scores score(const std::vector<const rl::Sample*>& samples, const trainer::BatchConfig& batch,
                        double temperature, const trainer::Ranks& ranks = trainer::no_other_ranks());

  // What the session has trained by this moment, which is behind `step` finished rollouts.
  void become_policy(int64_t step);
  // Adds the weights to what a checkpoint holds, where they are no longer those of a directory.
  void save(checkpoint::RunState& state, std::vector<checkpoint::SavedTensor>& tensors) const;

 private:
  // Whose own weights are an adapter, or none.
  void begin_at_base(bool follows_policy, const std::optional<checkpoint::Checkpoint>& checkpoint,
                     session::RunMemory& memory);
  // Where its own weights are for good.
  const weights::WeightStore& home() const { return offloaded_ ? offloaded_->host() : *resident_; }
  void fill(const std::string& directory, const std::optional<checkpoint::Checkpoint>& checkpoint,
            weights::WeightStore& store);

  const session::ModelSession& session_;
  int64_t step_ = 0;  // of the policy that they are a copy of; 0: of none
  std::unique_ptr<weights::WeightStore> resident_;
  std::unique_ptr<device::HostMemory> host_memory_;
  std::optional<weights::OffloadedStore> offloaded_;
  std::unique_ptr<model::Model> model_;
};

}  // namespace tandem::run
