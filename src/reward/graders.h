// Computes rewards in worker processes. They are built in (reward/reward_rules.h), or the user's Python function in the
// TRL, verl or slime dialect (docs/REWARDS.md, python/tandem_worker/user_functions/dialects.py), or a service that is
// asked over HTTP (python/tandem_worker/rules/remote_rule.py). A Scorer puts several of them together.
//
// A call holds one sample, or the samples of one group where the function takes groups. Short calls of built-in rewards
// go to a process several at a time. Each call has a deadline and limits of memory, files and output. An exception, a
// hang, a memory bomb, a NaN, a wrong type or count, or a dead process fails the samples of its call, with the reason,
// and grading goes on. Calls of an async function run together in one process. When such a process is lost with several
// calls under way, nobody knows whose fault it was: each of them is made again, alone, so that a sample's grade depends
// on that sample only. A process that hung, died or ran out of memory is replaced, in milliseconds, by a fork of a
// forkserver that has imported the reward. As far as the kernel goes, reward code reaches no network, no secret of the
// environment and no process of ours, and writes in one scratch folder alone (tandem_worker/sandbox/sandbox.py).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "reward/grader_limits.h"
#include "worker/worker_config.h"

namespace tandem::reward {

// A program that computes rewards, asked over HTTP. The process that asks runs none of the user's code, and is the only
// one of a run that may open sockets.
struct RewardService {
  std::string url;              // http://HOST:PORT/PATH
  std::string token;            // sent as a bearer token; empty: none
  int64_t max_retries = 0;      // retries of a request that the service could not answer, >= 0
  bool try_connection = false;  // EnvironmentError at the start where nobody listens
};

// Says how rewards are computed: by exactly one of rm_types, custom_rm_path, service and group_filter.
struct GraderConfig : worker::UserCodeConfig {
  std::vector<std::string> rm_types;  // reward::find_rule() knows each; the first is that of requests that name none
  std::string custom_rm_path;         // FILE.py:function
  std::optional<RewardService> service;
  std::string group_filter;  // FILE.py:function, instead of a reward: grades are 1 (the group is kept) or 0, with the
                             // column "reason"
  std::string reward_key;    // picks a number out of a dict result ("score", "acc"); empty: "score"
  bool group_rm = false;     // a slime function takes all samples of a group at once; false: one sample a call
  std::string label_key;     // the label's column, as TRL functions name it
  std::string metadata_key;  // the key of the metadata that is a slime sample's own
  base::Json arguments = base::Json::object();  // the run's flags and their values: `args` of slime functions
  GraderLimits limits;
};

// Shows the grade of a sample to whoever judges it afterwards.
struct Graded {
  double reward = 0.0;
  std::map<std::string, double> extras;
  bool remove_sample = false;
  std::string status;  // "completed", "truncated" or "aborted"
};

// Says how far the run is for which a sample is graded. A reward function in TRL's dialect gets it as trainer_state.
struct TrainingState {
  int64_t global_step = 0;       // optimizer steps of the rollouts before this one
  int64_t max_steps = 0;         // those of the whole run
  double epoch = 0.0;            // prompts of the rollouts before this one, over those of the data
  int64_t num_train_epochs = 0;  // begun by the whole run

  static void fields(auto& wire, auto& m) { wire(m.global_step, m.max_steps, m.epoch, m.num_train_epochs); }
};

struct GradeRequest {
  uint64_t group_id = 0, sample_id = 0;
  std::string shown_as;  // to people: "sample 3 of eval held_out"; empty: "sample ID"
  base::Json prompt;     // string or message list, as the data line had it
  std::string prompt_text, response;
  base::Json label;     // as the data line had it; null: none
  base::Json metadata;  // the data line's other keys: an object, or null
  std::string rm_type;  // the line's own, which is asked in place of --rm-type; empty: none
  std::vector<int32_t> prompt_tokens;
  std::vector<int32_t> response_tokens;
  bool truncated = false;
  std::optional<Graded> graded;  // only samples of a group filter have one
  // A sample that --custom-generate-function-path made has the tokens that it says the loss is for (empty: all), and
  // what else it wrote into the sample.
  std::vector<uint8_t> loss_mask = {};
  base::Json attributes = base::Json::object();
  std::optional<TrainingState> state = {};  // unset outside of a run
};

// Holds one of several rewards of a sample.
struct RewardPart {
  std::string name;
  std::optional<double> reward;  // unset: it failed, or does not apply

  static void fields(auto& wire, auto& m) { wire(m.name, m.reward); }
};

struct Grade {
  uint64_t sample_id = 0;
  double reward = 0.0;  // 0 when failed
  bool failed = false;
  std::string reason_class;  // a key of failures(); empty when not failed
  std::string reason;        // one line: "ValueError: ... (reward.py:12)", "... the deadline of 30 s passed", ...
  std::map<std::string, double> extras;  // other numbers of a dict result
  // A slime function wrote these into its sample; unset: nothing.
  std::optional<bool> remove_sample;
  std::optional<std::vector<uint8_t>> loss_mask;  // one 0 or 1 a token of the completion
  std::optional<std::string> status;              // "completed", "truncated" or "aborted"
  // A TRL function logged these: this sample's value in each column (a JSON scalar), and, in the first grade of a call,
  // the values of each metric.
  std::map<std::string, base::Json> columns;
  std::map<std::string, std::vector<double>> metrics;
  std::vector<RewardPart> parts;  // `reward` is their weighted sum, in their order; empty: it is no sum

  static void fields(auto& wire, auto& m) {
    wire(m.sample_id, m.reward, m.failed, m.reason_class, m.reason, m.extras, m.remove_sample, m.loss_mask, m.status);
    wire(m.columns, m.metrics, m.parts);
  }

  // Returns whether the machine or the service is at fault, and not the reward or its data.
  bool is_of_environment() const { return reason_class == "not_started" || reason_class == "service"; }
  // Returns whether this sample has no reward, whatever becomes of other failures: the environment is at fault, or the
  // reward says that it does not apply.
  bool gives_none() const { return is_of_environment() || reason_class == "none"; }
};

// Any process may take any call: a reward depends on its request alone (Python's and NumPy's global generators are
// seeded with the first sample's id before each call). Process death by a signal or exit of user code costs the samples
// of that call only.
class Graders {
 public:
  // Starts the processes; UserError when the file or the function does not exist or cannot be used.
  explicit Graders(const GraderConfig& config);
  ~Graders();

  void submit(std::vector<GradeRequest> group);  // returns at once
  // Waits that long for the first grades that were not taken yet, and takes all there are, those of a call together.
  // Returns none at once where nothing was submitted that was not taken.
  std::vector<Grade> take_finished(double seconds);
  // The descriptor is readable while grades are there that were not taken.
  int descriptor() const;
  // Forgets what was submitted and is not taken.
  void discard();
  // Returns totals of the run: reason class -> samples. "exception", "deadline", "memory", "not_finite", "wrong_type",
  // "wrong_count", "status" (a slime function set FAILED), "died" (the process ended during the call, or answered
  // something else than grades) are the reward's fault. A signal that comes from outside during a call looks the same
  // as one that the reward sends itself, so it counts as the reward's. "not_started" (a new process could not be
  // started) is the machine's fault, "service" (it could not be asked, or failed itself) the service's. "http" (it
  // refused the request) counts as the reward's, and "none" is a TRL function's word that its reward does not apply to
  // the sample.
  std::map<std::string, int64_t> failures() const;
  int64_t restarts() const;                  // processes replaced so far, but for those of limits.fork_each_call
  int64_t repeated() const;                  // samples graded again, alone, after their process was lost
  std::vector<int64_t> process_ids() const;  // the processes that run
  const std::string& scratch_folder() const;
  // Returns the columns of the data that a TRL function cannot do without, beside those that every line has; none for
  // other functions.
  const std::vector<std::string>& columns() const;
  std::string dialect() const;  // "trl", "verl", "slime", "built-in", "served" or "filter"

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::reward
