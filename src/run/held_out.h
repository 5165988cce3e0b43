// Held-out data of supervised training: measures how likely the model finds answers that it does not learn from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/eval_options.h"
#include "model/model.h"
#include "report/report.h"
#include "session/sft_samples.h"
#include "trainer/trainer_config.h"

namespace tandem::run {

class HeldOut {
 public:
  // `data` describes the training data; the file of each set takes the place of its file.
  HeldOut(const config::EvalOptions& eval, const config::DataOptions& data, bool append_eos, text::TextWorker& text,
          const model::ModelConfig& model);

  bool empty() const { return sets_.empty(); }

  // The metrics are "eval/NAME/loss", the mean negative log-probability of a set's trained tokens, each counted alike,
  // and "eval/NAME/perplexity", e to the power of it; `lines` are for people. The result is nullopt when the run was
  // asked to stop.
  struct Result {
    report::Metrics metrics;
    std::vector<std::string> lines;
  };
  std::optional<Result> evaluate(const model::Model& model, const trainer::BatchConfig& batch,
                                 report::Report& report) const;

 private:
  struct DataSet {
    std::string name;
    session::SftSamples data;
  };
  std::vector<DataSet> sets_;
};

}  // namespace tandem::run
