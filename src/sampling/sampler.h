// An engine with its graders: takes loans of samples and of gradings, and gives back what it has made of them. The same
// class works in every process that samples; who lends is not its business (sampling/coordinator.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/env.h"
#include "groups/group.h"
#include "reward/scorer.h"
#include "rollout/engine.h"
#include "sampling/group_sampler.h"
#include "sampling/processes/process_losses.h"
#include "sampling/rollout_request.h"
#include "text/text_worker.h"

namespace tandem::sampling {

class Sampler {
 public:
  // A sampler lives for one rollout. All arguments are borrowed; without graders (null) nothing is graded. It may have
  // `most_samples` in flight at once. `shares` says that others sample too. The engine's numbers begin anew.
  Sampler(const RolloutRequest& request, rollout::Engine& engine, text::TextWorker& text, reward::Scorer* graders,
          int64_t most_samples, bool shares);

  void add(const groups::SampleLoan& loan);
  void add(groups::GradeLoan loan);
  // Drops a loan, or all loans: nothing of them is given back any more. Call abort_all() at the end of a rollout.
  void abort(uint64_t key);
  void abort_all();
  // Gives back all samples on loan as they are. Gradings go on.
  void pause() { sampler_->pause_all(); }

  // Returns how many samples to ask for now. If others sample too, it asks for a quarter of what it may have at a time,
  // because samples that the engine has no room for are better left to them, but for whole groups, so that those that
  // are lent whole are not split. Samples count as asked for until add().
  int64_t num_to_ask_for();
  // Makes one forward, so that a stop signal is seen while long completions decode, and takes what graders and generate
  // functions have done. It waits for nobody.
  void advance();
  // Return what is done and was not taken before.
  std::vector<groups::SampledLoan> take_sampled() { return std::exchange(sampled_, {}); }
  std::vector<groups::GradedLoan> take_graded() { return std::exchange(graded_, {}); }

  // Returns whether advance() has something to do now, or something is done and was not taken. If not, whoever waits
  // polls descriptors(), which are readable once graders or generate functions have done something. An engine that
  // shares steps always has something to do: the others wait for it.
  bool is_busy() const {
    return sampler_->engine_works() || engine_.shares_steps() || !to_grade_.empty() || !sampled_.empty() ||
           !graded_.empty();
  }
  std::vector<int> descriptors() const;
  rollout::EngineStats stats() const { return engine_.stats(); }
  // Returns the losses since this object was made.
  ProcessLosses losses() const;

 private:
  struct Grading {
    groups::GradeLoan loan;
    std::vector<reward::Grade> grades;  // one for each sample
    size_t num_graded = 0;
    groups::GroupGrades result;
  };

  ProcessLosses total_losses() const;
  void take_from_engine();
  void take_grades();
  void judge(uint64_t key);
  void take_verdicts();
  void give_back(uint64_t key);
  // Returns whether a sample gets its text when its group is graded, so that no loan that is given back waits for the
  // tokenizer's process. Samples in pieces, and those that nobody grades, get it as they are given back.
  bool is_decoded_for_grading(const groups::Member& member) const {
    return graders_ != nullptr && member.sample.pieces.empty();
  }
  void begin_gradings();
  void begin_grading(uint64_t key);
  // Decodes the texts of samples in one call of the tokenizer's process, and those of their pieces in another.
  void decode_texts(const std::vector<groups::Member*>& members);
  void decode_pieces(const std::vector<groups::Member*>& members);
  std::vector<std::string> decode(const std::vector<std::vector<int32_t>>& tokens, bool skip_special_tokens);
  uint64_t first_group_id() const { return request_.first_sample_id / n_; }

  const RolloutRequest& request_;
  const uint64_t n_;
  rollout::Engine& engine_;
  text::TextWorker& text_;
  reward::Scorer* const graders_;
  const int64_t most_samples_;
  const bool shares_;
  const base::Redaction redaction_;  // reasons quote what user code raised, and go into samples/ as columns do
  const std::unique_ptr<GroupSampler> sampler_;
  std::map<uint64_t, int64_t> samples_;             // how many samples each loan in flight has, by key
  std::map<uint64_t, Grading> gradings_;            // by key
  std::vector<uint64_t> to_grade_;                  // keys of gradings that have not begun
  std::map<uint64_t, uint64_t> key_of_group_;       // keys of gradings, by group id
  int64_t num_samples_ = 0, num_asked_ = 0;         // samples in flight; samples asked for that have not come
  int64_t num_in_grading_ = 0, num_in_filter_ = 0;  // samples; groups; both with those that nobody wants any more
  std::vector<groups::SampledLoan> sampled_;
  std::vector<groups::GradedLoan> graded_;
  const ProcessLosses losses_before_;
};

}  // namespace tandem::sampling
