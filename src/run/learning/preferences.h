// Steps on preferences (rl/preference_loss.h): the samples of a step, each with the number by which the loss changes
// with its log-probs as its advantage.
//
// The reference is the weights that the run begins with, or others (--ref-load). Its log-probs are computed once,
// before the first step, of what the steps will ask for, so that its weights are nowhere beside the policy's; a run
// that resumes computes them again, with the same bits.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "model/model.h"
#include "report/report.h"
#include "rl/preference_loss.h"
#include "session/sft_samples.h"
#include "trainer/ranks.h"
#include "trainer/trainer_config.h"

namespace tandem::run {

class Preferences {
 public:
  // `data` has pairs or labelled answers, as the loss takes them. All is borrowed. Several ranks are given the same
  // items and share the forwards; each has all log-probs, so that a step's means are those of all its answers.
  Preferences(const rl::PreferenceConfig& config, const session::SftSamples& data, const trainer::BatchConfig& batch,
              const trainer::Ranks& ranks)
      : config_(config), data_(data), batch_(batch), ranks_(ranks) {}

  // Returns the number of pairs, or of labelled answers.
  int64_t num_items() const { return std::ssize(data_.samples) / config_.answers_of_item(); }

  // Items [begin, end) of those over which one loss is taken.
  struct Part {
    int64_t begin = 0, end = 0;
  };

  // Scores what a loss over these items asks for of a part, if it is not known yet. The model has the reference's
  // weights. Returns whether all numbers are finite.
  bool score_reference(const model::Model& model, std::span<const int64_t> items, Part part);
  bool score_reference(const model::Model& model, std::span<const int64_t> items) {
    return score_reference(model, items, {0, std::ssize(items)});
  }

  // Answers as a model judges them.
  struct Judged {
    std::vector<rl::JudgedAnswer> answers;
    double mismatched = 0.0;  // "kto": the sum of log ratios of answers under prompts that they do not belong to
    int64_t num_mismatched = 0;

    void add(const Judged& more);
  };
  struct JudgedPart {
    Judged judged;
    std::vector<rl::Sample> samples;  // the answers, with the model's log-probs
  };
  // Judges a part with the weights that the model has now. The sum of all parts does not depend on the cut. Throws
  // BugError for items whose reference was not scored.
  JudgedPart judge(const model::Model& model, std::span<const int64_t> items, Part part) const;

  // The metrics are preference/*, as docs/METRICS.md says.
  struct Outcome {
    rl::PreferenceTerms terms;
    report::Metrics metrics;
  };
  Outcome outcome(const Judged& judged) const;

  // Returns the samples of a step over these items, with their advantages, and what comes of it.
  struct Step {
    std::vector<rl::Sample> samples;
    double loss = 0.0;
    report::Metrics metrics;
  };
  Step step(const model::Model& model, std::span<const int64_t> items) const;

 private:
  // Names a text: the prompt of one sample, and the completion of the same or of another.
  using Text = std::pair<int64_t, int64_t>;

  // Returns the answers of a part, and after them for "kto" each of their prompts with the completion before it among
  // all items, before the first the last (as TRL). A prompt whose completion comes before it, where an epoch ends in a
  // step, has none.
  std::vector<Text> texts_of(std::span<const int64_t> items, Part part) const;
  // A completion under a prompt that it does not belong to ends with the context (as TRL).
  std::vector<rl::Sample> samples_of(std::span<const Text> texts) const;
  report::Metrics metrics(std::span<const rl::JudgedAnswer> answers, double kl) const;

  const rl::PreferenceConfig& config_;
  const session::SftSamples& data_;
  const trainer::BatchConfig& batch_;
  const trainer::Ranks ranks_;
  std::map<Text, double> reference_;  // summed log-probs
};

}  // namespace tandem::run
