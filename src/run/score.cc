// `tandem score` writes log-probs and entropies of given sequences.
#include "run/verbs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/message_text.h"
#include "report/json_output.h"
#include "report/report.h"
#include "run/read_paths.h"
#include "run/score_lines.h"
#include "session/conversations.h"
#include "session/model_session.h"
#include "session/open_parquet.h"
#include "session/stop_signal.h"
#include "trainer/score.h"

namespace tandem::run {

namespace {

// So many sequences are read, scored and written together.
constexpr size_t kSequencesPerBatch = 256;

std::vector<rl::Sample> load_samples(const std::vector<ScoreLine>& lines, const config::DataOptions& data,
                                     session::ModelSession& session) {
  std::vector<rl::Sample> samples(lines.size());
  std::vector<size_t> with_text;
  std::vector<session::Conversation> prompts;
  std::vector<std::string> responses;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].has_tokens()) {
      samples[i] = token_sample(lines[i], session.config().vocab);
      continue;
    }
    with_text.push_back(i);
    const base::Json prompt = prompt_of(lines[i]);
    prompts.push_back({prompt, tools_of(lines[i], data.lines.tool_key), lines[i].place, session::ending_of(prompt)});
    responses.push_back(text_of(lines[i], "response"));
    const std::string too_large = session::why_too_large(responses.back().size(), lines[i].place);
    TANDEM_USER_CHECK(too_large.empty(), too_large);
  }
  if (!with_text.empty()) {
    text::TextWorker& text = session.text();
    std::vector<std::vector<int32_t>> asked = text.encode(session::render_prompts(data, text, prompts));
    std::vector<std::vector<int32_t>> answered = text.encode(responses);
    for (size_t j = 0; j < with_text.size(); ++j) {
      if (!session::is_rendered(data, prompts[j].prompt))
        asked[j] = session::plain_text_tokens(data, text, std::move(asked[j]));
      samples[with_text[j]].prompt = rl::make_prompt(std::move(asked[j]));
      samples[with_text[j]].completion = std::move(answered[j]);
    }
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    rl::Sample& sample = samples[i];
    sample.group_id = sample.sample_id = i;
    sample.loss_mask.assign(sample.completion.size(), 1);
    const int64_t length = sample.num_tokens();
    TANDEM_USER_CHECK(!sample.prompt->tokens.empty() && !sample.completion.empty(),
                      fmt::format("{}: prompt or response has no tokens", lines[i].place));
    TANDEM_USER_CHECK(length <= session.config().max_positions,
                      fmt::format("{}: {} tokens, the model's context is {}; shorten the sequence", lines[i].place,
                                  length, session.config().max_positions));
  }
  return samples;
}

// Checks that all numbers are finite. NaN or infinity is no score: it ends the verb, with the name of the weight that
// it comes from.
void check_finite(const trainer::Scores& scores, size_t index, const std::string& place,
                  const session::ModelSession& session) {
  for (size_t t = 0; t < scores.logprobs[index].size(); ++t) {
    if (std::isfinite(scores.logprobs[index][t]) && std::isfinite(scores.entropy[index][t])) continue;
    throw EnvironmentError(
        fmt::format("{}: the score of token {} of the response is not finite: {}", place, t, session.why_not_finite()));
  }
}

}  // namespace

int score(const config::ScoreConfig& config, const config::RunMode& mode) {
  check_output(config.output, read_paths(config), mode);
  session::ModelSession session(config.model);
  const std::vector<ScoreLine> lines =
      read_score_lines(config.prompt_data, session::open_parquet, config.data.lines.tool_key);
  const std::vector<rl::Sample> samples = load_samples(lines, config.data, session);
  if (mode.dry_run) {
    session.check_weights();
    report::Report().print_result(
        fmt::format("{}; nothing was written (--dry-run)", base::counted(std::ssize(samples), "sequence")));
    return 0;
  }
  session.load_weights();
  const auto model = session.make_model();
  session::defer_stops("stopping: what is finished is written (a second signal ends the process at once)");
  report::JsonOutput output(config.output);
  for (size_t begin = 0; begin < samples.size() && !session::stop_requested(); begin += kSequencesPerBatch) {
    std::vector<const rl::Sample*> batch;
    for (size_t i = begin; i < std::min(samples.size(), begin + kSequencesPerBatch); ++i) batch.push_back(&samples[i]);
    const trainer::Scores scores = trainer::score(*model, batch, config.batch, config.temperature);
    for (size_t i = 0; i < batch.size(); ++i) {
      check_finite(scores, i, lines[begin + i].place, session);
      base::Json record = base::Json::object();
      double sum = 0.0;
      for (const float logprob : scores.logprobs[i]) sum += logprob;
      record["index"] = begin + i;
      record["tokens"] = batch[i]->completion;
      record["log_probs"] = scores.logprobs[i];
      record["entropy"] = scores.entropy[i];
      record["sum_log_prob"] = sum;
      output.write(record);
    }
  }
  output.finish();
  return session::stop_requested() ? session::cut_short_exit_code(session::stop_signal()) : 0;
}

}  // namespace tandem::run
