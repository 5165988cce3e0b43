// The user's function of --custom-advantage-path, which computes the advantages of a rollout
// (python/tandem_worker/advantage.py). It runs in a worker process that is confined like those of rewards
// (reward/graders.h). Each rollout has a process of its own, a fork of one that has imported the function: nothing that
// the function leaves in Python outlives a rollout, but for its state, which is JSON and part of a checkpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "worker/worker_config.h"

namespace tandem::reward {

struct AdvantageConfig : worker::UserCodeConfig {
  std::string function;                         // FILE.py:function
  std::string metadata_key;                     // the key of the line's metadata object
  base::Json arguments = base::Json::object();  // the run's flags and their values: `args`
  double deadline_s = 30.0;                     // the limit of a rollout, for each sample that it holds, > 0
  int64_t memory_bytes = int64_t{2} << 30;      // the limit of the process
};

// The numbers of one sample to which those that the function returns belong.
struct AdvantageShape {
  size_t num_tokens = 0, num_turns = 0;
};

struct AdvantageGroup {
  std::vector<AdvantageShape> samples;
  std::function<base::Json()> message;  // makes what the process reads of the group, when it is sent
};

// One sample's advantages: one number, one for each turn, or one for each token. Unset: the function returned None.
using SampleAdvantages = std::optional<std::vector<double>>;

// Either the function's result, or a failure with its class and reason.
struct AdvantageResult {
  std::vector<std::vector<SampleAdvantages>> groups;  // finite numbers, in the order of groups and samples
  std::string state;                                  // JSON of what the next rollout's call is given

  bool failed = false;
  // "exception", "deadline", "memory", "not_finite", "wrong_type", "wrong_count", "died" (the process ended, or
  // answered something else than advantages) or "not_started" (no process could be made, which is the machine's fault).
  std::string reason_class;
  std::string reason;  // one line: "ZeroDivisionError: division by zero (advantage.py:12)"
};

class AdvantageFunction {
 public:
  // Imports the function in a process of its own. Throws UserError if it cannot be used, EnvironmentError for what the
  // machine lacks.
  explicit AdvantageFunction(const AdvantageConfig& config);
  ~AdvantageFunction();

  // Calls the function on a rollout, whose number seeds Python's and NumPy's global generators. `state` is JSON of an
  // object. Throws nothing for what user code does.
  AdvantageResult call(uint64_t rollout, const std::vector<AdvantageGroup>& groups, const std::string& state);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::reward
