#include "run/held_out.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "session/stop_signal.h"
#include "trainer/score.h"

namespace tandem::run {

namespace {

// The stop signal is polled after so many samples. The result does not depend on the number.
constexpr size_t kSamplesAtOnce = 64;

double trained_loss(const std::vector<const rl::Sample*>& samples, const trainer::Scores& scores) {
  double loss = 0.0;
  for (size_t i = 0; i < samples.size(); ++i) {
    for (size_t t = 0; t < samples[i]->completion.size(); ++t) {
      if (samples[i]->loss_mask[t] != 0) loss -= static_cast<double>(scores.logprobs[i][t]);
    }
  }
  return loss;
}

}  // namespace

HeldOut::HeldOut(const config::EvalOptions& eval, const config::DataOptions& data, bool append_eos,
                 text::TextWorker& text, const model::ModelConfig& model) {
  for (const auto& [name, path] : eval.data_sets()) {
    config::DataOptions own = data;
    own.lines.path = path;
    sets_.push_back({name, session::load_sft_samples(own, append_eos, text, model)});
  }
}

std::optional<HeldOut::Result> HeldOut::evaluate(const model::Model& model, const trainer::BatchConfig& batch,
                                                 report::Report& report) const {
  Result result;
  for (const DataSet& set : sets_) {
    const std::vector<rl::Sample>& samples = set.data.samples;
    double loss = 0.0;
    for (size_t begin = 0; begin < samples.size(); begin += kSamplesAtOnce) {
      if (session::stop_requested()) return std::nullopt;
      report.progress("eval " + set.name, static_cast<int64_t>(begin), static_cast<int64_t>(samples.size()), "samples");
      std::vector<const rl::Sample*> part;
      for (size_t i = begin; i < std::min(samples.size(), begin + kSamplesAtOnce); ++i) part.push_back(&samples[i]);
      loss += trained_loss(part, trainer::score(model, part, batch, /*temperature=*/1.0));
    }
    loss /= static_cast<double>(set.data.num_trained_tokens);
    const std::string prefix = "eval/" + set.name;
    result.metrics[prefix + "/loss"] = loss;
    result.metrics[prefix + "/perplexity"] = std::exp(loss);
    result.lines.push_back(fmt::format("eval {}: loss {}  perplexity {}  ({} samples, {} trained tokens)", set.name,
                                       report::number_text(loss, 4), report::number_text(std::exp(loss), 4),
                                       samples.size(), set.data.num_trained_tokens));
  }
  return result;
}

}  // namespace tandem::run
