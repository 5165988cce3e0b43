// The half of a training run that samples: prompts in, in the order of the data set, and graded samples out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "mesh/launch.h"
#include "mesh/mesh.h"
#include "report/report.h"
#include "rl/prompt_order.h"
#include "run/train_inputs.h"
#include "sampling/rewards.h"
#include "sampling/rollout_phase.h"
#include "session/own_engine.h"
#include "session/run_memory.h"

namespace tandem::run {

class Rollouts {
 public:
  // The weights are already loaded. The engine's KV cache lies in the memory's arena; if rollout workers sample, there
  // is no engine, and rank 0 listens for them. All arguments are borrowed.
  Rollouts(TrainInputs& inputs, const mesh::Launch& launch, session::RunMemory& memory, mesh::Mesh& mesh);
  ~Rollouts();
  Rollouts(const Rollouts&) = delete;
  Rollouts& operator=(const Rollouts&) = delete;

  // Returns the samples of a rollout: of the prompts that come next, scored, or with --load-debug-rollout-data as the
  // file has them. Rollouts count from 0. With dynamic sampling they are of the first prompts whose groups the filter
  // keeps, and the next rollout begins after the last of these, or after the last group looked at if a limit ended the
  // search. Returns nullopt if the run was asked to stop. All ranks ask for the same rollouts and get the same, but for
  // the time that they took.
  std::optional<sampling::Rollout> next(int64_t rollout_id, sampling::Rewards& rewards, report::Report& report);
  // Gives all samplers the weights that are in the session's store now. Returns the seconds that other processes took
  // to get them, or nullopt if this process samples. All ranks call it together.
  std::optional<double> update_weights();

  // Returns the place of the next prompts.
  const rl::PromptCursor& cursor() const { return order_.cursor(); }
  // Goes back to the state after an earlier rollout: sampling continues at `cursor`, with the weights that are in the
  // store by now. All ranks call it together.
  void restore(const rl::PromptCursor& cursor);

  // Samples anything else with the same engine.
  sampling::RolloutPhase& phase() { return *phase_; }

 private:
  class Workers;
  std::unique_ptr<sampling::RolloutPhase> make_phase(const mesh::Launch& launch, mesh::Mesh& mesh,
                                                     text::TextWorker& text);
  sampling::RolloutRequest request(sampling::Rewards& rewards);
  const session::PromptLine* next_prompt();

  const TrainInputs& inputs_;
  const std::unique_ptr<session::OwnEngine> engine_;  // null: rollout workers sample
  const std::unique_ptr<Workers> workers_;            // null: every rank samples
  rl::PromptOrder order_;
  std::vector<rl::PromptCursor> cursors_;  // cursors after each prompt that dynamic sampling has drawn for a rollout
  const std::unique_ptr<sampling::RolloutPhase> phase_;
};

}  // namespace tandem::run
