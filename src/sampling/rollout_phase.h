// Runs rollouts: completions of some prompts, scored. A group goes to the graders when its last sample has ended, while
// the tail still decodes; results come in sample order, whatever the order of arrival. Rank 0 has the pool of groups
// and lends samples to all who have an engine: itself, other ranks that train, rollout workers. All ranks ask for the
// same rollouts, and each gets all of it, the same bits as one rank alone.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "report/report.h"
#include "reward/scorer.h"
#include "rollout/engine.h"
#include "rollout/replica.h"
#include "sampling/drawing.h"
#include "sampling/live_sampling.h"
#include "sampling/processes/connections.h"
#include "sampling/processes/rank_links.h"
#include "sampling/rollout.h"
#include "sampling/rollout_request.h"
#include "session/stop_signal.h"
#include "text/text_worker.h"

namespace tandem::sampling {

class RolloutPhase {
 public:
  using IsStopped = std::function<bool()>;
  // Each rank samples with its own engine. All arguments are borrowed. All ranks create their phase together.
  RolloutPhase(rollout::Engine& engine, text::TextWorker& text, mesh::Mesh& mesh, const LinkSettings& links,
               IsStopped is_stopped = session::stop_requested);
  // Does the same for one rank.
  RolloutPhase(rollout::Engine& engine, text::TextWorker& text);
  // Rollout workers sample for rank 0, which has their connections; they are null on other ranks. A rollout may have no
  // worker for `timeout_s`.
  RolloutPhase(Connections* workers, double timeout_s, mesh::Mesh& mesh);

  // Runs a rollout. Returns nullopt if the run was asked to stop; it is so on all ranks if it is on one, and the groups
  // in flight are dropped. `graders` is null if nothing is graded, or if rollout workers do it. `report` shows the live
  // line. Throws UserError if dynamic sampling finds too few groups and, with several ranks, EnvironmentError if
  // another one is lost. Any other error ends this rank and leaves the others waiting, until the launcher ends them.
  std::optional<Rollout> run(const RolloutRequest& request, reward::Scorer* graders, report::Report& report);

  // Lets workers that sample while the run trains begin with a rollout before run() is asked for it, with the same
  // request. Call it on rank 0 alone.
  void go_on(const RolloutRequest& request);
  // Pauses workers that sample while the run trains, until the next rollout: the groups in flight rest. Call it before
  // they take new weights, and before another rollout than theirs.
  void pause();

  // Returns whether this rank prints what is printed once for all ranks.
  bool speaks() const { return mesh_.is_conductor(); }

 private:
  // The rollout that rank 0 has gathered, and the numbers of its groups.
  struct Gathered {
    std::optional<Rollout> rollout;
    std::vector<size_t> numbers;
  };
  Gathered gather(const RolloutRequest& request, uint64_t number, reward::Scorer* graders, report::Report& report);
  // Takes a rollout from workers that go on sampling.
  Gathered gather_live(const RolloutRequest& request, report::Report& report);
  Rollout rollout_of_groups(const RolloutRequest& request, TakenGroups taken, const Coordinator::Numbers& numbers);
  // Samples for rank 0 until the rollout is over, on another rank with an engine.
  void sample_for_rank0(const RolloutRequest& request, uint64_t number, reward::Scorer* graders);
  std::optional<Rollout> hear_from_rank0(const RolloutRequest& request);
  void warn_of_names(const Rollout& rollout, const std::string& title);

  const std::unique_ptr<mesh::Mesh> solo_;  // mesh of one rank; null if the caller gave a mesh
  mesh::Mesh& mesh_;
  rollout::Engine* const engine_;  // null: rollout workers sample
  text::TextWorker* const text_;   // null if the engine is
  Connections* const workers_;     // null: there are none, or another rank has them
  const double timeout_s_;
  const IsStopped is_stopped_;
  const RankLinks links_;
  const std::unique_ptr<rollout::LeadingEngine> leading_;  // null: this rank leads no tensor-parallel group
  groups::LengthHistory lengths_;                          // only rank 0 fills it in
  uint64_t num_begun_ = 0;                                 // rollouts begun so far
  bool names_are_said_ = false;
  std::unique_ptr<LiveSampling> live_;  // null until a rollout asks for it
};

}  // namespace tandem::sampling
