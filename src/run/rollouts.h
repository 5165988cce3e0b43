// The half of a training run that samples: prompts in, in the order of the data set, and graded samples out.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "checkpoint/data_position.h"
#include "checkpoint/run_state.h"
#include "data/prompt_order.h"
#include "evaluation/rewards.h"
#include "groups/in_flight.h"
#include "mesh/launch/launch.h"
#include "mesh/mesh.h"
#include "report/report.h"
#include "run/train_inputs.h"
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
  std::optional<sampling::Rollout> next(int64_t rollout_id, evaluation::Rewards& rewards, report::Report& report);
  // Tells how the processes that only sample got new weights.
  struct WeightUpdate {
    double seconds = 0.0;
    int64_t num_sent_again = 0;  // rollout workers that did not get them through another one, and were sent them again
  };
  // Gives all samplers the weights that are in the session's store now. Returns nullopt if this process samples. All
  // ranks call it together.
  std::optional<WeightUpdate> update_weights();

  // Lets workers that sample while the run trains begin with the rollout that next() is to be asked for now. Otherwise
  // next() does, and this does nothing.
  void go_on(int64_t rollout_id, evaluation::Rewards& rewards);

  // Call it when the rollout phase was left and entered again with the same weights: the engine's keys and values are
  // gone.
  void forget_kv();

  // Returns the place of the next prompts and, with --partial-rollout, the groups in flight. Call it between two
  // rollouts, before go_on().
  checkpoint::DataPosition position() const;
  // Goes back to the state that the checkpoint holds: sampling continues there, with the weights that are in the store
  // by now. All ranks call it together.
  void restore(const checkpoint::Checkpoint& checkpoint, const checkpoint::RunState& state);

  // Samples anything else with the same engine.
  sampling::RolloutPhase& phase() { return *phase_; }

 private:
  class Workers;
  std::unique_ptr<sampling::RolloutPhase> make_phase(const mesh::Launch& launch, mesh::Mesh& mesh,
                                                     text::TextWorker& text);
  std::string title(int64_t rollout_id) const;
  sampling::RolloutRequest request(int64_t rollout_id, evaluation::Rewards& rewards);
  reward::TrainingState state_before(int64_t rollout_id) const;
  sampling::InFlightRequest in_flight_request(int64_t rollout_id);
  bool is_replayed(int64_t rollout_id) const;
  void log_schedule(int64_t rollout_id, const sampling::Rollout& rollout, report::Report& report) const;
  const session::PromptLine* next_prompt();
  sampling::InFlightRequest::Drawn next_group();
  const session::PromptLine* line_of(size_t group);
  void begin_what_rank0_began(const sampling::InFlightNumbers& numbers);

  const TrainInputs& inputs_;
  const std::unique_ptr<session::OwnEngine> engine_;  // null: rollout workers sample
  const std::unique_ptr<Workers> workers_;            // null: every rank samples
  data::PromptOrder order_;
  std::vector<data::PromptCursor> cursors_;  // cursors after each prompt that dynamic sampling has drawn for a rollout
  std::unique_ptr<groups::InFlight> in_flight_;  // null: this is not rank 0, or no group is in flight between rollouts
  std::optional<sampling::RolloutRequest> begun_;       // rollout that go_on() began
  bool goes_on_by_itself_ = false;                      // a schedule was replayed to its end
  std::map<size_t, const session::PromptLine*> lines_;  // of the groups in flight, by number
  const std::unique_ptr<sampling::RolloutPhase> phase_;
};

}  // namespace tandem::run
