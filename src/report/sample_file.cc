#include "report/sample_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "base/files.h"
#include "base/utf8_stream.h"

namespace tandem::report {

namespace {

constexpr std::string_view kRolloutId = "{rollout_id}";

// Returns the mean over the model's tokens: a tool's have no log-prob.
double mean_logprob(const rl::Sample& sample) {
  double sum = 0.0;
  int64_t count = 0;
  for (size_t t = 0; t < sample.rollout_logprobs.size(); ++t) {
    if (sample.num_turns > 0 && sample.loss_mask[t] == 0) continue;
    sum += double{sample.rollout_logprobs[t]};
    ++count;
  }
  return count == 0 ? 0.0 : sum / static_cast<double>(count);
}

base::Json versions_of(const rl::Sample& sample) {
  base::Json versions = base::Json::array();
  for (const rl::VersionSpan& span : sample.versions) versions.push_back(span.version);
  return versions;
}

// Returns each piece with its speaker, its text, and how many of its tokens are trained on.
base::Json pieces_of(const rl::Sample& sample) {
  base::Json pieces = base::Json::array();
  for (size_t i = 0; i < sample.pieces.size(); ++i) {
    const rl::SamplePiece& piece = sample.pieces[i];
    const auto begin = static_cast<size_t>(piece.begin);
    const size_t end =
        i + 1 < sample.pieces.size() ? static_cast<size_t>(sample.pieces[i + 1].begin) : sample.completion.size();
    int64_t num_trained = 0;
    for (size_t t = begin; t < end; ++t) num_trained += sample.is_trained(t) ? 1 : 0;
    pieces.push_back({{"from", piece.is_sampled ? kFromModel : kFromFunction},
                      {"text", piece.text},
                      {"length", end - begin},
                      {"trained_length", num_trained}});
  }
  return pieces;
}

// Adds three lists of one entry a token. A text has the characters that the token completes, so the texts joined are
// the completion with its special tokens. An advantage is null where the token is not trained on, a log-prob where the
// model did not give the token.
void add_tokens(const rl::Sample& sample, std::span<const std::string> token_bytes, base::Json& record) {
  base::Json texts = base::Json::array(), advantages = base::Json::array(), logprobs = base::Json::array();
  base::Utf8Stream stream;
  for (size_t t = 0; t < sample.completion.size(); ++t) {
    const auto id = static_cast<size_t>(sample.completion[t]);
    std::string text = id < token_bytes.size() ? stream.push(token_bytes[id]) : "";
    if (t + 1 == sample.completion.size()) text += stream.finish();
    texts.push_back(std::move(text));
    advantages.push_back(sample.is_trained(t) ? base::Json(sample.advantages[t]) : base::Json(nullptr));
    const bool is_models = !sample.is_given && (sample.num_turns == 0 || sample.loss_mask[t] != 0);
    logprobs.push_back(is_models ? base::Json(sample.rollout_logprobs[t]) : base::Json(nullptr));
  }
  record["token_texts"] = std::move(texts);
  record["token_advantages"] = std::move(advantages);
  record["token_log_probs"] = std::move(logprobs);
}

}  // namespace

base::Json sample_record(const rl::Sample& sample, const reward::Grade* grade, SampleDetail detail,
                         std::span<const std::string> token_bytes) {
  base::Json record = base::Json::object();
  record["group_id"] = sample.group_id;
  record["sample_id"] = sample.sample_id;
  record["prompt"] = sample.prompt->text;
  record["response"] = sample.text;
  record["label"] = sample.prompt->label;
  if (grade != nullptr) {
    record["reward"] = sample.has_reward ? base::Json(sample.reward) : base::Json(nullptr);
    if (sample.has_reward && sample.shaped_reward() != sample.reward) record["shaped_reward"] = sample.shaped_reward();
    if (grade->failed) {
      record["failure"] = grade->reason;
      record["failure_class"] = grade->reason_class;
    }
    for (const reward::RewardPart& part : grade->parts) {
      record["rewards"][part.name] = part.reward ? base::Json(*part.reward) : base::Json(nullptr);
    }
    for (const auto& [name, value] : grade->extras) record[std::string(kRewardPrefix) + name] = value;
    for (const auto& [name, value] : grade->columns) record["extra"][name] = value;
  }
  record["status"] = rl::to_string(sample.status);
  record["response_length"] = sample.completion.size();
  if (sample.is_given) {
    record["off_policy"] = true;
  } else {
    record["mean_logprob"] = mean_logprob(sample);
  }
  if (sample.num_turns > 0) {
    record["turns"] = sample.num_turns;
    record["trained_length"] = std::ranges::count(sample.loss_mask, uint8_t{1});
  }
  if (!sample.pieces.empty()) record["pieces"] = pieces_of(sample);
  if (!sample.sequence_begins.empty()) record["sequence_begins"] = sample.sequence_begins;
  if (sample.advantages.size() == 1) record["advantage"] = sample.advantages.front();
  if (sample.advantages.size() > 1 && !token_bytes.empty()) add_tokens(sample, token_bytes, record);
  record["weight_versions"] = versions_of(sample);
  if (detail == SampleDetail::kReadable) return record;
  if (sample.versions.size() > 1) {
    for (const rl::VersionSpan& span : sample.versions) record["weight_version_begins"].push_back(span.begin);
  }
  record["prompt_tokens"] = sample.prompt->tokens;
  record["response_tokens"] = sample.completion;
  if (!sample.is_given) record["rollout_log_probs"] = sample.rollout_logprobs;
  if (!sample.behavior_logprobs.empty()) record["sampled_log_probs"] = sample.behavior_logprobs;
  if (!sample.ref_logprobs.empty()) record["ref_log_probs"] = sample.ref_logprobs;
  if (!sample.teacher_logprobs.empty()) record["teacher_log_probs"] = sample.teacher_logprobs;
  record["advantages"] = sample.advantages;
  record["loss_mask"] = sample.loss_mask;
  record["remove_sample"] = sample.remove;
  return record;
}

void write_samples(const std::string& path, std::span<const rl::Sample> samples, std::span<const reward::Grade> grades,
                   SampleDetail detail, std::span<const std::string> sources,
                   std::span<const std::string> token_bytes) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  if (!folder.empty()) base::make_directories(folder);
  base::DurableFile file(path);
  for (size_t i = 0; i < samples.size(); ++i) {
    const reward::Grade* grade = grades.empty() ? nullptr : &grades[i];
    base::Json record = sample_record(samples[i], grade, detail, token_bytes);
    if (!sources.empty()) record["source"] = sources[i];
    file.write(base::dump_json(record) + "\n");
  }
  file.commit();
}

std::string rollout_path(const std::string& flag, const std::string& pattern, int64_t rollout_id) {
  const size_t at = pattern.find(kRolloutId);
  TANDEM_USER_CHECK(at != std::string::npos,
                    fmt::format("{} {}: has no {{rollout_id}} in it, so all rollouts would be one file; name "
                                "DIR/{{rollout_id}}.jsonl",
                                flag, pattern));
  return pattern.substr(0, at) + std::to_string(rollout_id) + pattern.substr(at + kRolloutId.size());
}

}  // namespace tandem::report
