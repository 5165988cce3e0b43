// The teachers of on-policy distillation: models that score the policy's own samples. They are frozen, of any family
// and size, and have the policy's vocabulary. Each sample has one teacher: the only one, or the one that its data line
// names under --opd-teacher-key.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "report/report.h"
#include "rl/sample.h"
#include "run/scoring_model.h"
#include "run/train_inputs.h"
#include "session/run_memory.h"
#include "trainer/ranks.h"
#include "trainer/trainer.h"

namespace tandem::run {

// Throws UserError for the first thing that is wrong with the teachers of the flags, before a weight is read: files
// that lack a tensor, a context that is shorter than the run's `context_tokens`, another tokenizer than the session's,
// or a prompt whose line names no teacher.
void check_teachers(const config::LossOptions& options, session::ModelSession& session,
                    const session::PromptSet& prompts, int64_t context_tokens);

class Teachers {
 public:
  // Loads the weights, in the session's dtype; the ledger records what lasts. Borrows the inputs.
  Teachers(const TrainInputs& inputs, session::RunMemory& memory);

  // Gives every sample its teacher's log-probs, at the temperature of training. Offloaded teachers are on the device
  // one after the other. Returns opd_samples/NAME and opd_reverse_kl/NAME of several teachers.
  report::Metrics score(std::span<rl::Sample> samples, const trainer::Ranks& ranks);

  // Returns the function that gives a trainer the teacher of a sample, for the loss of the whole distributions. It may
  // be called while a scope lives, which keeps all teachers on the device.
  trainer::TeacherOf teacher_of() const;
  using OnDeviceScope = std::deque<ScoringModel::OnDeviceScope>;
  void bring(OnDeviceScope& scope);

 private:
  size_t index_of(const rl::Sample& sample) const;

  const TrainInputs& inputs_;
  std::vector<std::string> names_;
  std::deque<ScoringModel> models_;
  std::unordered_map<const rl::Prompt*, size_t> of_prompt_;  // empty if there is one teacher alone
};

}  // namespace tandem::run
