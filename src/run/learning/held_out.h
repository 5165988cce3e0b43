// Held-out data of supervised training: measures how likely the model finds answers that it does not learn from.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/sft_config.h"
#include "mesh/mesh.h"
#include "model/model.h"
#include "report/report.h"
#include "run/learning/preferences.h"
#include "session/sft_samples.h"
#include "trainer/trainer_config.h"

namespace tandem::run {

class HeldOut {
 public:
  // The file of each set takes the place of the training data's. Configuration and mesh are borrowed. Every rank of the
  // mesh makes the same calls; the ranks share the forwards, and all have the results.
  HeldOut(const config::SftConfig& config, text::TextWorker& text, const model::ModelConfig& model,
          const mesh::Mesh& mesh);

  bool empty() const { return sets_.empty(); }

  // Scores all sets of preferences; the model has the reference's weights. Call it before evaluate(). Returns whether
  // all log-probs are finite, and stops at the first part where one is not.
  [[nodiscard]] bool score_reference(const model::Model& model, const trainer::BatchConfig& batch);

  // The metrics are "eval/NAME/loss", the mean negative log-probability of a set's trained tokens, each counted alike,
  // and "eval/NAME/perplexity", e to the power of it; of preferences the mean loss and the means of preference/* with
  // the set's prefix. `lines` are for people. The result is nullopt when the run was asked to stop.
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
    std::optional<Preferences> preferences = {};
  };
  // Returns whether a rank was asked to stop.
  bool is_stopped() const;
  // These add what the result says of one set; false when the run was asked to stop.
  bool add_likelihood(const DataSet& set, const model::Model& model, const trainer::BatchConfig& batch,
                      report::Report& report, Result& result) const;
  bool add_preferences(const DataSet& set, const model::Model& model, report::Report& report, Result& result) const;

  const config::SftConfig& config_;
  const mesh::Mesh& mesh_;
  std::vector<DataSet> sets_;
};

}  // namespace tandem::run
