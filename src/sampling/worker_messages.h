// What the conductor and a process that only samples (a worker) say to each other. Both are of one build: the first
// message says which, and a worker of another is refused. Where the model is spread over several devices a worker is
// the first process of an engine, which passes on to the others what they need (sampling/engine_ranks.h). No torch.
//
//   worker:    Hello                    Prepared        TookWeights     Pull .. Done .. Pull ..         Leaving |
//   Failed conductor:       Welcome | Refused           weights             Open  Task ..  Abort ..  Close  Stop
//
// Open to Close is a rollout; new weights may come before each, as Weights .. or, to a worker that maps the conductor's
// memory, as CopyWeights and WeightChecksums: of all parts of the model, one for each tensor rank. Messages name their
// rollout, because what a worker says may arrive behind
// the rollout's end.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "rl/sample.h"
#include "session/prompt_set.h"

namespace tandem::sampling {

struct Hello {
  std::string facts;        // mesh::text_of(RankFacts): version, contract, flags
  std::string weight_hash;  // WeightSpec::hash: both mean the same by the bytes of a store
  int64_t process = 0;      // its number, for messages
  std::string machine;      // mesh::machine_id(): memory is shown to processes of the same one alone
};
// What a worker cannot know, since it reads no data.
struct Welcome {
  int64_t longest_prompt = 0;
  int64_t eval_context_tokens = 0, eval_sequences = 0;
  std::set<std::string> line_types, eval_line_types;  // the rewards that lines ask for themselves
  std::string user_output;                            // the file for what user code prints, as an absolute path
  // Words by which each tensor rank may map its part of the trainers' weights (weights::show_weights), by rank: those
  // of what is trained, and of the frozen model beside an adapter. An empty word: it cannot; none: there is no adapter.
  std::vector<std::string> shown_trained = {}, shown_base = {};
};
struct Refused {
  std::string why;
};
// Its memory is there, and its processes have started.
struct Prepared {
  bool maps_weights = false;  // it has mapped all that Welcome shows
};
// A piece of new weights; its bytes follow this message. All pieces of a part come before those of the next one.
struct Weights {
  bool is_base = false;  // of the frozen model, beside an adapter
  int64_t part = 0;      // the tensor rank whose it is
  int64_t tensor = 0, first_byte = 0, num_bytes = 0;
  std::string checksum;
  bool is_last = false;  // of its part, which then has this version
  uint64_t version = 0;
};
// The weights that Welcome shows are new, and stay as they are until the worker has answered.
struct CopyWeights {
  bool is_base = false;  // as above
};
// Of each tensor of the stores that were to be copied, those of all parts: then they have this version.
struct WeightChecksums {
  bool is_base = false;
  uint64_t version = 0;
  std::vector<uint64_t> sums;  // two of each (device::Checksum), by part: each has as many tensors
};
// It samples with this version from now on.
struct TookWeights {
  uint64_t version = 0;  // of what is trained
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
  session::PromptLine line;
};
struct Done {
  uint64_t rollout = 0;
  std::string message;  // sampling/rank_message: groups, and the worker's numbers since the rollout began
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

using WorkerMessage = std::variant<Hello, Welcome, Refused, Prepared, Weights, CopyWeights, WeightChecksums,
                                   TookWeights, Open, Pull, Task, Done, Abort, Close, Alive, Leaving, Failed, Stop>;
// Of base::sealed(); changes with whatever a message is made of.
constexpr uint32_t kWorkerMessageFormat = 3;
std::string to_bytes(const WorkerMessage& message);
// EnvironmentError for bytes that are no message.
WorkerMessage worker_message(std::string_view bytes);

}  // namespace tandem::sampling
