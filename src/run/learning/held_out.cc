#include "run/learning/held_out.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/message_text.h"
#include "session/ranks.h"
#include "session/stop_signal.h"
#include "trainer/score.h"

namespace tandem::run {

namespace {

// The stop signal is polled after so many samples. The result does not depend on the number.
constexpr int64_t kSamplesAtOnce = 64;

// Returns [0, count) in parts of so many.
std::vector<Preferences::Part> parts(int64_t count) {
  std::vector<Preferences::Part> result;
  for (int64_t begin = 0; begin < count; begin += kSamplesAtOnce)
    result.push_back({begin, std::min(count, begin + kSamplesAtOnce)});
  return result;
}

std::vector<int64_t> all_of(int64_t count) {
  std::vector<int64_t> items(static_cast<size_t>(count));
  std::iota(items.begin(), items.end(), 0);
  return items;
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

bool HeldOut::score_reference(const model::Model& model, const trainer::BatchConfig& batch) {
  for (DataSet& set : sets_) {
    set.preferences.emplace(config_.preference, set.data, batch, session::training_ranks(mesh_));
    const std::vector<int64_t> items = all_of(set.preferences->num_items());
    for (const Preferences::Part part : parts(std::ssize(items))) {
      if (!set.preferences->score_reference(model, items, part)) return false;
    }
  }
  return true;
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
  for (const auto [begin, end] : parts(std::ssize(samples))) {
    if (is_stopped()) return false;
    report.progress("eval " + set.name, begin, std::ssize(samples), "samples");
    std::vector<const rl::Sample*> part;
    for (int64_t i = begin; i < end; ++i) part.push_back(&samples[static_cast<size_t>(i)]);
    loss += trained_loss(part, trainer::score(model, part, batch, /*temperature=*/1.0, session::training_ranks(mesh_)));
  }
  loss /= static_cast<double>(set.data.num_trained_tokens);
  const std::string prefix = "eval/" + set.name;
  result.metrics[prefix + "/loss"] = loss;
  result.metrics[prefix + "/perplexity"] = std::exp(loss);
  result.lines.push_back(fmt::format("eval {}: loss {}  perplexity {}  ({}, {})", set.name,
                                     report::number_text(loss, 4), report::number_text(std::exp(loss), 4),
                                     base::counted(std::ssize(samples), "sample"),
                                     base::counted(set.data.num_trained_tokens, "trained token")));
  return true;
}

bool HeldOut::add_preferences(const DataSet& set, const model::Model& model, report::Report& report,
                              Result& result) const {
  const std::string prefix = "eval/" + set.name + "/";
  const std::vector<int64_t> items = all_of(set.preferences->num_items());
  Preferences::Judged judged;
  for (const Preferences::Part part : parts(std::ssize(items))) {
    if (is_stopped()) return false;
    report.progress("eval " + set.name, part.begin, std::ssize(items), "items");
    judged.add(set.preferences->judge(model, items, part).judged);
  }
  const Preferences::Outcome outcome = set.preferences->outcome(judged);
  std::string line = fmt::format("eval {}: loss {}", set.name, report::number_text(outcome.terms.loss, 4));
  result.metrics[prefix + "loss"] = outcome.terms.loss;
  for (const auto& [name, value] : outcome.metrics) {
    const std::string own = name.substr(name.find('/') + 1);
    result.metrics[prefix + own] = value;
    if (own == (config_.preference.takes_pairs() ? "accuracy" : "margin"))
      line += fmt::format("  {} {}", own, report::number_text(value, 4));
  }
  result.lines.push_back(
      fmt::format("{}  ({} {})", line, items.size(), config_.preference.takes_pairs() ? "pairs" : "labelled answers"));
  return true;
}

}  // namespace tandem::run
