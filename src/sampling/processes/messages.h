// The messages between rank 0 of a run and the processes that sample for it: rollout workers, which hold weights and
// nothing else of training, and the other ranks that train. Both ends are of one build: the first message says which,
// and a process of another build is refused. Where a model is spread over several devices, the first process of its
// tensor-parallel group talks with rank 0, and passes on to the others what they need (rollout_worker/engine_ranks.h).
//
//   rollout worker                     rank 0
//   Hello                          ->
//                                  <-  Welcome, or Refused
//   WeightLine, on a connection of its own, where the worker does not map the weights
//                                  ->
//   Prepared                       ->
//                                  <-  the weights: CopyWeights and WeightChecksums, or Chain, and then the first of
//                                      the chain gets Weights on that connection, and passes them on
//   TookWeights, or ChainBroken    ->
//                                  <-  Open
//   Pull                           ->
//                                  <-  LendSamples ..., LendGrading ..., Abort, Pause
//   Sampled, Graded ...            ->
//                                  <-  new weights that come while it samples: CopyWeights that are ahead, or Chain
//   CopiedWeights                  ->
//                                  <-  Close; then the rest of new weights and the next Open, or Stop
//   Leaving, or Failed             ->
//
// Another rank that trains says RankHello in place of all that comes before Pull: it has the weights, and knows the
// rollout. Messages name their rollout, because one may arrive when that is over. No torch.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "groups/group.h"
#include "reward/graders.h"
#include "rl/sample.h"
#include "rollout/request.h"
#include "sampling/processes/process_losses.h"
#include "session/prompt_set.h"

namespace tandem::sampling {

// The address at which a worker takes weights from another one that passes them on (Chain).
struct WeightDoor {
  std::string place;    // mesh::local_place(): who is in the same one finds the local socket
  std::string name;     // the local socket's; "": none
  std::string address;  // HOST:PORT; "": the worker is on the run's machine, and only others of it come

  bool is_none() const { return name.empty() && address.empty(); }
  static void fields(auto& wire, auto& m) { wire(m.place, m.name, m.address); }
};

struct Hello {
  std::string facts;        // mesh::text_of(RankFacts): version, contract, flags
  std::string weight_hash;  // WeightSpec::hash: equal if both ends give a store's bytes the same meaning
  int64_t process = 0;      // its number, for messages
  std::string machine;      // mesh::machine_id(): memory is shown to processes of the same one alone
  WeightDoor door = {};

  static void fields(auto& wire, auto& m) { wire(m.facts, m.weight_hash, m.process, m.machine, m.door); }
};
// Tells a worker what it cannot know, since it reads no data.
struct Welcome {
  int64_t longest_prompt = 0;
  int64_t eval_context_tokens = 0, eval_sequences = 0;
  std::set<std::string> line_types, eval_line_types;  // rewards that lines ask for themselves
  std::string user_output;                            // the file for what user code prints, as an absolute path
  // Words by which each tensor rank may map its part of the trainers' weights (weights::show_weights), by rank: of the
  // trained weights, and of the frozen model under an adapter. An empty word: that part cannot be mapped. An empty
  // shown_base: there is no adapter.
  std::vector<std::string> shown_trained = {}, shown_base = {};

  static void fields(auto& wire, auto& m) {
    wire(m.longest_prompt, m.eval_context_tokens, m.eval_sequences, m.line_types, m.eval_line_types, m.user_output);
    wire(m.shown_trained, m.shown_base);
  }
};
struct Refused {
  std::string why;

  static void fields(auto& wire, auto& m) { wire(m.why); }
};
// The worker's memory is there, and its processes have started.
struct Prepared {
  bool maps_weights = false;  // it has mapped all that Welcome shows
  // It has memory for a second copy of the trained weights, into which it copies new ones while it samples.
  bool copies_ahead = false;

  static void fields(auto& wire, auto& m) { wire(m.maps_weights, m.copies_ahead); }
};
// First and only message of a worker's second connection, on which pieces of weights come, also while it samples.
struct WeightLine {
  std::string name;  // of the worker's door

  static void fields(auto& wire, auto& m) { wire(m.name); }
};
// A piece of new weights, whose bytes follow this message. All pieces of a part come before those of the next one.
struct Weights {
  bool is_base = false;  // it belongs to the frozen model under an adapter
  int64_t part = 0;      // tensor rank that has this part
  int64_t tensor = 0, first_byte = 0, num_bytes = 0;
  std::string checksum;
  bool is_last = false;  // it is the last one of its part, which then has this version
  uint64_t version = 0;

  static void fields(auto& wire, auto& m) {
    wire(m.is_base, m.part, m.tensor, m.first_byte, m.num_bytes, m.checksum, m.is_last, m.version);
  }
};
// The worker's place in a chain of workers, by which the next Weights travel: they come from rank 0 (is_first) or from
// a worker before it, and it passes them on to `next`, if there is one. The frozen model under an adapter comes before
// the trained weights, to a worker that joins. While a rollout is open the worker only keeps them: it takes them when
// that is closed.
struct Chain {
  uint64_t number = 0;
  bool is_first = false;
  WeightDoor next = {};

  static void fields(auto& wire, auto& m) { wire(m.number, m.is_first, m.next); }
};
// The worker before is gone, and not all weights have come.
struct ChainBroken {
  static void fields(auto& /*wire*/, auto& /*m*/) {}
};
// The weights that Welcome shows are new, and stay as they are until the worker has answered.
struct CopyWeights {
  bool is_base = false;  // as in Weights
  // The worker copies them into its second copy, while it samples, and says CopiedWeights. It samples with the weights
  // before until WeightChecksums come.
  bool is_ahead = false;
  uint64_t version = 0;

  static void fields(auto& wire, auto& m) { wire(m.is_base, m.is_ahead, m.version); }
};
// The second copy has the weights that CopyWeights has announced.
struct CopiedWeights {
  uint64_t version = 0;

  static void fields(auto& wire, auto& m) { wire(m.version); }
};
// Checksums of each tensor of the stores that the worker was to copy, of all parts. If they match, the stores have this
// version.
struct WeightChecksums {
  bool is_base = false;
  uint64_t version = 0;
  std::vector<uint64_t> sums;  // two for each tensor (device::Checksum), by part; each part has as many tensors

  static void fields(auto& wire, auto& m) { wire(m.is_base, m.version, m.sums); }
};
// The worker samples with this version from now on.
struct TookWeights {
  uint64_t version = 0;  // version of the trained weights

  static void fields(auto& wire, auto& m) { wire(m.version); }
};
// The reward by which the groups of a rollout are graded.
enum class GradedBy : uint8_t { kNobody, kTraining, kEvalSet };
struct Open {
  uint64_t rollout = 0;
  GradedBy graded_by = GradedBy::kTraining;
  int64_t eval_set = 0;
  int64_t n_samples_per_prompt = 1;
  uint64_t first_sample_id = 0;
  rl::SamplingParams sampling;
  bool skip_special_tokens = false;
  bool generates = false;  // samples come from the function of --custom-generate-function-path
  bool is_evaluation = false;
  bool is_filtered = false;     // dynamic sampling judges its groups
  int64_t samples_at_once = 1;  // samples that a worker may have in flight
  std::optional<reward::TrainingState> state = {};

  static void fields(auto& wire, auto& m) {
    wire(m.rollout);
    wire.choice(m.graded_by, 3);
    wire(m.eval_set, m.n_samples_per_prompt, m.first_sample_id, m.sampling, m.skip_special_tokens, m.generates);
    wire(m.is_evaluation, m.is_filtered, m.samples_at_once, m.state);
  }
};
// Asks for at most `count` samples.
struct Pull {
  uint64_t rollout = 0;
  int64_t count = 0;

  static void fields(auto& wire, auto& m) { wire(m.rollout, m.count); }
};
// The loans of groups/group.h (SampleLoan and GradeLoan) as messages: each carries the line that the loan borrows.
struct LendSamples {
  uint64_t rollout = 0, key = 0, group = 0, first = 0, count = 0;
  session::PromptLine line;
  std::vector<rl::Completion> begun = {};
  std::vector<int64_t> budgets = {};

  static void fields(auto& wire, auto& m) {
    wire(m.rollout, m.key, m.group, m.first, m.count, m.line, m.begun, m.budgets);
  }
};
struct LendGrading {
  uint64_t rollout = 0, key = 0, group = 0;
  session::PromptLine line;
  std::vector<groups::Member> members;

  static void fields(auto& wire, auto& m) { wire(m.rollout, m.key, m.group, m.line, m.members); }
};
// Numbers that a sampler has counted since the rollout began.
struct SamplerNumbers {
  rollout::EngineStats stats;
  ProcessLosses losses;
  double still_seconds = 0.0;  // for which a sampler that was paused stood still, until its first loan after that

  SamplerNumbers& operator+=(const SamplerNumbers& other) {
    rollout::add(other.stats, stats);
    losses += other.losses;
    still_seconds += other.still_seconds;
    return *this;
  }
  // Returns what has been counted since `before`, with the peaks of now.
  SamplerNumbers operator-(const SamplerNumbers& before) const {
    return {.stats = rollout::since(before.stats, stats),
            .losses = losses - before.losses,
            .still_seconds = still_seconds - before.still_seconds};
  }
  static void fields(auto& wire, auto& m) { wire(m.stats, m.losses, m.still_seconds); }
};
struct Sampled {
  uint64_t rollout = 0, key = 0;
  std::vector<groups::Member> members;
  SamplerNumbers numbers;

  static void fields(auto& wire, auto& m) { wire(m.rollout, m.key, m.members, m.numbers); }
};
struct Graded {
  uint64_t rollout = 0, key = 0;
  groups::GroupGrades graded;
  std::vector<std::string> texts = {};  // as in groups::GradedLoan
  SamplerNumbers numbers;

  static void fields(auto& wire, auto& m) { wire(m.rollout, m.key, m.graded, m.texts, m.numbers); }
};
// The loan is not wanted any more.
struct Abort {
  uint64_t rollout = 0, key = 0;

  static void fields(auto& wire, auto& m) { wire(m.rollout, m.key); }
};
// The worker gives back all samples that it has on loan as they are: those that have not ended go on later.
struct Pause {
  uint64_t rollout = 0;

  static void fields(auto& wire, auto& m) { wire(m.rollout); }
};
struct Close {
  uint64_t rollout = 0;

  static void fields(auto& wire, auto& m) { wire(m.rollout); }
};
// First message of another rank that trains and samples.
struct RankHello {
  int64_t rank = 0;

  static void fields(auto& wire, auto& m) { wire(m.rank); }
};
// A rank that trains was asked to stop: the rollout ends for all.
struct StopAsked {
  uint64_t rollout = 0;

  static void fields(auto& wire, auto& m) { wire(m.rollout); }
};
// Sent at least once a second, by a sampler that has loans and by rank 0 while it lives.
struct Alive {
  static void fields(auto& /*wire*/, auto& /*m*/) {}
};
// The worker was asked to stop: others get its loans.
struct Leaving {
  static void fields(auto& /*wire*/, auto& /*m*/) {}
};
struct Failed {
  std::string why;
  bool is_users = false;  // it was a UserError

  static void fields(auto& wire, auto& m) { wire(m.why, m.is_users); }
};
// The run has ended.
struct Stop {
  static void fields(auto& /*wire*/, auto& /*m*/) {}
};

using Message = std::variant<Hello, Welcome, Refused, Prepared, WeightLine, Weights, Chain, ChainBroken, CopyWeights,
                             CopiedWeights, WeightChecksums, TookWeights, Open, Pull, LendSamples, LendGrading, Sampled,
                             Graded, Abort, Pause, Close, RankHello, StopAsked, Alive, Leaving, Failed, Stop>;
// The number changes with whatever a message is made of.
inline constexpr uint32_t kMessageFormat = 0x534D000C;
std::string to_bytes(const Message& message);
// Throws EnvironmentError for bytes that are no message.
Message message_of(std::string_view bytes);

}  // namespace tandem::sampling
