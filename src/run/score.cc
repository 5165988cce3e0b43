#include "run/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "run/json_output.h"
#include "run/prompt_set.h"
#include "run/report.h"
#include "run/sequence_scores.h"
#include "run/session.h"
#include "run/stop_signal.h"

namespace tandem::run {

namespace {

// Sequences that are read, scored and written together.
constexpr size_t kSequencesPerBatch = 256;

struct Line {
  std::string place;  // FILE:LINE
  base::Json record;
};

std::vector<Line> read_lines(const std::string& path) {
  const std::string text = base::read_file(path);
  std::vector<Line> lines;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view one(text.data() + begin, end - begin);
    ++number;
    begin = end + 1;
    if (one.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    lines.push_back({fmt::format("{}:{}", path, number), base::parse_json(one, path, number)});
    TANDEM_USER_CHECK(lines.back().record.is_object(),
                      fmt::format("{}: not a JSON object; each line is one sequence", lines.back().place));
  }
  TANDEM_USER_CHECK(!lines.empty(), fmt::format("{}: has no lines; each line is one sequence", path));
  return lines;
}

std::vector<int32_t> token_list(const base::Json& value, const std::string& place, int64_t vocab) {
  TANDEM_USER_CHECK(value.is_array(), fmt::format("{}: tokens is not a list of token ids", place));
  std::vector<int32_t> tokens;
  for (const base::Json& id : value) {
    TANDEM_USER_CHECK(id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < vocab,
                      fmt::format("{}: {} is no token id of this model; ids are 0 to {}", place, id.dump(), vocab - 1));
    tokens.push_back(id.get<int32_t>());
  }
  return tokens;
}

// {"tokens": [...], "prompt_length": n}: everything after the first n tokens (1 when absent) is scored.
rl::Sample token_sample(const Line& line, const model::ModelConfig& model) {
  const std::vector<int32_t> tokens = token_list(line.record["tokens"], line.place, model.vocab);
  int64_t prompt_length = 1;
  if (line.record.contains("prompt_length")) {
    const base::Json& given = line.record["prompt_length"];
    TANDEM_USER_CHECK(given.is_number_integer(), fmt::format("{}: prompt_length is not a whole number", line.place));
    prompt_length = given.get<int64_t>();
  }
  const auto length = static_cast<int64_t>(tokens.size());
  TANDEM_USER_CHECK(prompt_length >= 1 && prompt_length < length,
                    fmt::format("{}: prompt_length {} of {} tokens; at least one token comes before and one after it",
                                line.place, prompt_length, length));
  rl::Sample sample;
  sample.prompt.assign(tokens.begin(), tokens.begin() + prompt_length);
  sample.completion.assign(tokens.begin() + prompt_length, tokens.end());
  return sample;
}

const std::string& text_of(const Line& line, const char* key) {
  TANDEM_USER_CHECK(line.record.contains(key) && line.record[key].is_string(),
                    fmt::format("{}: has no text under \"{}\"; give tokens, or prompt and response", line.place, key));
  return line.record[key].get_ref<const std::string&>();
}

std::vector<rl::Sample> load_samples(const std::vector<Line>& lines, Session& session) {
  std::vector<rl::Sample> samples(lines.size());
  std::vector<size_t> with_text;
  std::vector<std::string> texts;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].record.contains("tokens")) {
      samples[i] = token_sample(lines[i], session.config());
      continue;
    }
    with_text.push_back(i);
    texts.push_back(text_of(lines[i], "prompt"));
    texts.push_back(text_of(lines[i], "response"));
  }
  std::vector<std::vector<int32_t>> tokens = encode_texts(session.text(), texts);
  for (size_t j = 0; j < with_text.size(); ++j) {
    samples[with_text[j]].prompt = std::move(tokens[2 * j]);
    samples[with_text[j]].completion = std::move(tokens[2 * j + 1]);
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    rl::Sample& sample = samples[i];
    sample.group_id = sample.sample_id = i;
    sample.loss_mask.assign(sample.completion.size(), 1);
    const auto length = static_cast<int64_t>(sample.prompt.size() + sample.completion.size());
    TANDEM_USER_CHECK(!sample.prompt.empty() && !sample.completion.empty(),
                      fmt::format("{}: prompt or response has no tokens", lines[i].place));
    TANDEM_USER_CHECK(length <= session.config().max_positions,
                      fmt::format("{}: {} tokens, the model's context is {}; shorten the sequence", lines[i].place,
                                  length, session.config().max_positions));
  }
  return samples;
}

}  // namespace

int score(const ScoreConfig& config, const RunMode& mode) {
  check_output(config.output);
  Session session(config.model);
  const std::vector<rl::Sample> samples = load_samples(read_lines(config.prompt_data), session);
  if (mode.dry_run) {
    Report(nullptr, {}).line(fmt::format("{} sequences; nothing was written (--dry-run)", samples.size()));
    return 0;
  }
  session.load_weights();
  const auto model = session.make_model();
  defer_stops("stopping: what is finished is written (a second signal ends the process at once)");
  JsonOutput output(config.output);
  for (size_t begin = 0; begin < samples.size() && !stop_requested(); begin += kSequencesPerBatch) {
    std::vector<const rl::Sample*> batch;
    for (size_t i = begin; i < std::min(samples.size(), begin + kSequencesPerBatch); ++i) batch.push_back(&samples[i]);
    const SequenceScores scores =
        score_sequences(*model, batch, config.max_tokens_per_gpu,
                        {.temperature = config.temperature, .chunk_rows = config.logprob_chunk_rows});
    for (size_t i = 0; i < batch.size(); ++i) {
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
  return stop_requested() ? kExitInterrupted : 0;
}

}  // namespace tandem::run
