#include "run/held_out.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "session/ranks.h"
#include "session/stop_signal.h"
#include "trainer/score.h"

namespace tandem::run {

namespace {

// The stop signal is polled after so many samples. The result does not depend on the number.
constexpr int64_t kSamplesAtOnce = 64;

// Returns 0 ... count - 1 in parts of so many.
std::vector<std::vector<int64_t>> parts(int64_t count) {
  std::vector<std::vector<int64_t>> result;
  for (int64_t begin = 0; begin < count; begin += kSamplesAtOnce) {
    std::vector<int64_t>& part = result.emplace_back(static_cast<size_t>(std::min(count - begin, kSamplesAtOnce)));
    std::iota(part.begin(), part.end(), begin);
  }
  return result;
}

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

HeldOut::HeldOut(const config::SftConfig& config, text::TextWorker& text, const model::ModelConfig& model,
                 const mesh::Mesh& mesh)
    : config_(config), mesh_(mesh) {
  for (const auto& [name, path] : config.eval.data_sets()) {
    config::DataOptions own = config.data;
    own.lines.path = path;
    sets_.push_back({name, session::load_sft_samples(own, config.answers(), config.append_eos, text, model)});
  }
}

void HeldOut::score_reference(const model::Model& model, const trainer::BatchConfig& batch) {
  for (DataSet& set : sets_) {
    set.preferences.emplace(config_.preference, set.data, batch, session::training_ranks(mesh_));
    for (const std::vector<int64_t>& items : parts(set.preferences->num_items())) {
      set.preferences->score_reference(model, items);
    }
  }
}

std::optional<HeldOut::Result> HeldOut::evaluate(const model::Model& model, const trainer::BatchConfig& batch,
                                                 report::Report& report) const {
  Result result;
  for (const DataSet& set : sets_) {
    const bool is_whole = set.preferences ? add_preferences(set, model, report, result)
                                          : add_likelihood(set, model, batch, report, result);
    if (!is_whole) return std::nullopt;
  }
  return result;
}

bool HeldOut::is_stopped() const { return device::any_of(mesh_.host(), session::stop_requested()); }

bool HeldOut::add_likelihood(const DataSet& set, const model::Model& model, const trainer::BatchConfig& batch,
                             report::Report& report, Result& result) const {
  const std::vector<rl::Sample>& samples = set.data.samples;
  double loss = 0.0;
  for (const std::vector<int64_t>& items : parts(std::ssize(samples))) {
    if (is_stopped()) return false;
    report.progress("eval " + set.name, items.front(), std::ssize(samples), "samples");
    std::vector<const rl::Sample*> part;
    for (const int64_t item : items) part.push_back(&samples[static_cast<size_t>(item)]);
    loss += trained_loss(part, trainer::score(model, part, batch, /*temperature=*/1.0, session::training_ranks(mesh_)));
  }
  loss /= static_cast<double>(set.data.num_trained_tokens);
  const std::string prefix = "eval/" + set.name;
  result.metrics[prefix + "/loss"] = loss;
  result.metrics[prefix + "/perplexity"] = std::exp(loss);
  result.lines.push_back(fmt::format("eval {}: loss {}  perplexity {}  ({} samples, {} trained tokens)", set.name,
                                     report::number_text(loss, 4), report::number_text(std::exp(loss), 4),
                                     samples.size(), set.data.num_trained_tokens));
  return true;
}

bool HeldOut::add_preferences(const DataSet& set, const model::Model& model, report::Report& report,
                              Result& result) const {
  const std::string prefix = "eval/" + set.name + "/";
  const int64_t num_items = set.preferences->num_items();
  report::Metrics means;
  for (const std::vector<int64_t>& items : parts(num_items)) {
    if (is_stopped()) return false;
    report.progress("eval " + set.name, items.front(), num_items, "items");
    const Preferences::Step step = set.preferences->step(model, items);
    const double share = static_cast<double>(items.size()) / static_cast<double>(num_items);
    means["loss"] += share * step.loss;
    for (const auto& [name, value] : step.metrics) means[name.substr(name.find('/') + 1)] += share * value;
  }
  for (const auto& [name, value] : means) result.metrics[prefix + name] = value;
  const bool has_accuracy = means.contains("accuracy");
  const char* const second = has_accuracy ? "accuracy" : "margin";
  result.lines.push_back(
      fmt::format("eval {}: loss {}  {} {}  ({} {})", set.name, report::number_text(means.at("loss"), 4), second,
                  report::number_text(means.at(second), 4), num_items, has_accuracy ? "pairs" : "labelled answers"));
  return true;
}

}  // namespace tandem::run
