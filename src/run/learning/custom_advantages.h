// Advantages from the user's function of --custom-advantage-path, in place of those of --advantage-estimator.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "checkpoint/run_state.h"
#include "reward/advantage_function.h"
#include "run/run_log.h"
#include "run/train_inputs.h"
#include "sampling/rollout.h"

namespace tandem::run {

class CustomAdvantages {
 public:
  // Borrows the inputs. The function's state is as it was when the checkpoint was made that the run resumes from.
  explicit CustomAdvantages(const TrainInputs& inputs);

  // Calls the function on rank 0, gives every rank what it returned, and writes it into the samples, which have the
  // advantages of --advantage-estimator before. A sample for which it returned None leaves the loss. If the call fails,
  // all samples do, and Rollout::advantage_failure says why. Logs fault/custom_advantage, rollout/advantage_none and
  // perf/custom_advantage_time.
  void assign(int64_t rollout_id, sampling::Rollout& rollout, RunLog& log);

  void save(checkpoint::RunState& state) const { state.advantage_state = state_; }

 private:
  reward::AdvantageResult call(int64_t rollout_id, const sampling::Rollout& rollout);
  base::Json group_message(const sampling::Rollout& rollout, const std::vector<size_t>& group) const;
  base::Json sample_message(const sampling::Rollout& rollout, size_t i) const;

  const TrainInputs& inputs_;
  std::unordered_map<const rl::Prompt*, size_t> lines_;  // the index of each prompt in the data
  std::string state_;                                    // JSON of an object, which the function keeps
  std::unique_ptr<reward::AdvantageFunction> function_;  // made with the first rollout, on rank 0
};

}  // namespace tandem::run
