// The teachers of on-policy distillation: models that score the policy's own samples. They are frozen, of any family
// and size, and have the policy's vocabulary. Each sample has one teacher: the only one, or the one that its data line
// names under --opd-teacher-key.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/communicator.h"
#include "report/report.h"
#include "rl/sample.h"
#include "run/learning/scoring_model.h"
#include "run/train_inputs.h"
#include "scorer/messages.h"
#include "scorer/scorers.h"
#include "session/run_memory.h"
#include "trainer/ranks.h"
#include "trainer/trainer.h"

namespace tandem::run {

struct TeacherCheck {
  int64_t context_tokens = 0;   // the longest sample of the run
  double wait_s = 0.0;          // how long processes that score are waited for
  device::Communicator& hosts;  // connects the hosts of all ranks: their first asks, for all
};
// Throws UserError for the first thing that is wrong with the teachers of the flags, before a weight is read: files
// that lack a tensor, a context that is too short, another tokenizer than the session's, or a prompt whose line names
// no teacher. Throws EnvironmentError if a process that scores is not there in time. Returns what the teachers in
// processes of their own have said of themselves, in the order of the flags, on every rank.
std::vector<scorer::Welcome> check_teachers(const config::TrainConfig& config, session::ModelSession& session,
                                            const session::PromptSet& prompts, const TeacherCheck& check);

class Teachers {
 public:
  // Loads the weights, in the session's dtype; the ledger records what lasts. Rank 0 connects to the processes that
  // score. Borrows the inputs.
  Teachers(TrainInputs& inputs, session::RunMemory& memory);

  // Gives every sample its teacher's log-probs, at the temperature of training. Offloaded teachers are on the device
  // one after the other. Returns opd_samples/NAME and opd_reverse_kl/NAME of several teachers, and fault/lost_scorers.
  // Returns nullopt if the run was asked to stop while no process could score, or --stop-grace-seconds ago.
  std::optional<report::Metrics> score(std::span<rl::Sample> samples, const trainer::Ranks& ranks);

  // Returns the function that gives a trainer the teacher of a sample, for the loss of the whole distributions; no
  // teacher is elsewhere then. It may be called while a scope lives, which keeps all teachers on the device.
  trainer::TeacherOf teacher_of() const;
  using OnDeviceScope = std::deque<ScoringModel::OnDeviceScope>;
  void bring(OnDeviceScope& scope);

 private:
  using Logprobs = std::vector<std::vector<float>>;  // [sample][token]

  size_t index_of(const rl::Sample& sample) const;
  // Returns nullopt as score() does.
  std::optional<Logprobs> scores_of(size_t teacher, const std::vector<const rl::Sample*>& samples,
                                    const trainer::Ranks& ranks);
  std::optional<Logprobs> scores_from_elsewhere(size_t place, const std::vector<const rl::Sample*>& samples);

  const TrainInputs& inputs_;
  std::vector<std::string> names_;
  std::deque<ScoringModel> models_;                          // teachers that this run has loaded, which are the first
  std::deque<scorer::Scorers> scorers_;                      // the others, on rank 0
  std::unordered_map<const rl::Prompt*, size_t> of_prompt_;  // empty if there is one teacher alone
};

}  // namespace tandem::run
