// One rollout: completions of some prompts, scored. Groups go to the graders as they end, while the tail still decodes;
// what comes back is in sample order, whatever the order of arrival. Where a run has several ranks, all of them ask for
// the same rollout, each samples and grades a share of its groups, and each gets all of it, the same bits as one rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "mesh/mesh.h"
#include "report/report.h"
#include "reward/scorer.h"
#include "rollout/engine.h"
#include "sampling/local_group_work.h"
#include "sampling/rollout.h"
#include "sampling/rollout_request.h"
#include "session/stop_signal.h"
#include "text/text_worker.h"

namespace tandem::sampling {

// Tokens of a prompt's longest completion when it was sampled last: the same on all ranks.
using KnownLengths = std::unordered_map<const rl::Prompt*, int64_t>;

class RolloutPhase {
 public:
  using IsStopped = std::function<bool()>;
  // Both borrowed. A mesh of several ranks has one phase.
  RolloutPhase(GroupSource& source, mesh::Mesh& mesh, IsStopped is_stopped = session::stop_requested)
      : source_(source), mesh_(mesh), is_stopped_(std::move(is_stopped)) {}
  // Of this process's engine, which is borrowed as all else.
  RolloutPhase(rollout::Engine& engine, text::TextWorker& text, mesh::Mesh& mesh,
               IsStopped is_stopped = session::stop_requested)
      : own_(std::make_unique<EngineSource>(engine, text, mesh)),
        source_(*own_),
        mesh_(mesh),
        is_stopped_(std::move(is_stopped)) {}
  // Of one rank.
  RolloutPhase(rollout::Engine& engine, text::TextWorker& text) : RolloutPhase(engine, text, mesh::solo_mesh()) {}

  // nullopt when the run was asked to stop, which is so on all ranks when it is on one: the groups in flight are
  // dropped. `graders`: null where nothing is graded, or others do it. `report` shows the live line. UserError when
  // dynamic sampling finds too few groups; with several ranks, EnvironmentError when another one is lost. Another
  // error ends this rank, and leaves the others waiting: the launcher ends them.
  std::optional<Rollout> run(const RolloutRequest& request, reward::Scorer* graders, report::Report& report);

  // Whether this rank is the one that says what is to be said once.
  bool speaks() const { return mesh_.is_conductor(); }

 private:
  RolloutPhase(rollout::Engine& engine, text::TextWorker& text, std::unique_ptr<mesh::Mesh> solo)
      : solo_(std::move(solo)),
        own_(std::make_unique<EngineSource>(engine, text, *solo_)),
        source_(*own_),
        mesh_(*solo_),
        is_stopped_(session::stop_requested) {}
  void warn_of_names(const Rollout& rollout, const std::string& title);

  const std::unique_ptr<mesh::Mesh> solo_;   // or null
  const std::unique_ptr<EngineSource> own_;  // or null
  GroupSource& source_;
  mesh::Mesh& mesh_;
  const IsStopped is_stopped_;
  KnownLengths lengths_;   // with several ranks
  int64_t num_begun_ = 0;  // rollouts
  bool names_are_said_ = false;
};

}  // namespace tandem::sampling
