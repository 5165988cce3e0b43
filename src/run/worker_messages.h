// What the conductor and a process that only samples (a worker) say to each other. Both are of one build: the first
// message says which, and a worker of another is refused. No torch.
//
//   worker:    Hello                       Prepared                 Pull .. Done .. Pull ..           Leaving | Failed
//   conductor:        Welcome | Refused               Weights ..  Open  Task ..  Abort ..  Close    Stop
//
// Open to Close is a rollout; Weights may come before each. Messages name their rollout, because what a worker says may
// arrive behind the rollout's end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>

#include "rl/sample.h"
#include "run/prompt_set.h"

namespace tandem::run {

struct Hello {
  std::string facts;        // mesh::text_of(RankFacts): version, contract, flags
  std::string weight_hash;  // WeightSpec::hash: both mean the same by the bytes of a store
  int64_t process = 0;      // its number, for messages
};
// What a worker cannot know, since it reads no data.
struct Welcome {
  int64_t longest_prompt = 0;
  int64_t eval_context_tokens = 0, eval_sequences = 0;
  std::set<std::string> line_types, eval_line_types;  // the rewards that lines ask for themselves
  std::string user_output;                            // the file for what user code prints
};
struct Refused {
  std::string why;
};
struct Prepared {};  // its memory is there, and its processes have started
// A piece of new weights; its bytes follow this message.
struct Weights {
  bool is_base = false;  // of the frozen model, beside an adapter
  int64_t tensor = 0, first_byte = 0, num_bytes = 0;
  std::string checksum;
  bool is_last = false;  // of its store: then it has this version
  uint64_t version = 0;
};
// Who grades the groups of a rollout.
enum class GradedBy : uint8_t { kNobody, kTraining, kEvalSet };
struct Open {
  uint64_t rollout = 0;
  GradedBy graded_by = GradedBy::kTraining;
  int64_t eval_set = 0;
  int64_t n_samples_per_prompt = 1;
  uint64_t first_sample_id = 0;
  rl::SamplingParams sampling;
  bool skip_special_tokens = false;
  bool generates = false;  // with the function of --custom-generate-function-path
  bool is_evaluation = false;
  bool is_filtered = false;    // by dynamic sampling
  int64_t groups_at_once = 1;  // that a worker is to have
};
struct Pull {
  uint64_t rollout = 0;
  int64_t count = 0;
};
struct Task {
  uint64_t rollout = 0;
  uint64_t index = 0;
  PromptLine line;
};
struct Done {
  uint64_t rollout = 0;
  std::string message;  // run/rank_message: groups, and the worker's numbers since the rollout began
};
struct Abort {
  uint64_t rollout = 0;
  uint64_t index = 0;
};
struct Close {
  uint64_t rollout = 0;
};
struct Alive {};    // at least once a second, while it has groups
struct Leaving {};  // it was asked to stop: others get its groups
struct Failed {
  std::string why;
  bool is_users = false;  // a UserError
};
struct Stop {};  // the run has ended

using WorkerMessage = std::variant<Hello, Welcome, Refused, Prepared, Weights, Open, Pull, Task, Done, Abort, Close,
                                   Alive, Leaving, Failed, Stop>;
std::string to_bytes(const WorkerMessage& message);
// EnvironmentError for bytes that are no message.
WorkerMessage worker_message(std::string_view bytes);

}  // namespace tandem::run
