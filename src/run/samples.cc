#include "run/samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/files.h"

namespace tandem::run {

namespace {

constexpr int64_t kMaxSamplesBytes = int64_t{8} << 30;
constexpr std::string_view kRewardPrefix = "reward_";  // before the other numbers of a reward that is a dict
constexpr std::string_view kRolloutId = "{rollout_id}";

double mean(const std::vector<float>& values) {
  if (values.empty()) return 0.0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

base::Json versions_of(const rl::Sample& sample) {
  base::Json versions = base::Json::array();
  for (const rl::VersionSpan& span : sample.versions) versions.push_back(span.version);
  return versions;
}

// Numbers that JSON has not are written as words.
double number(const base::Json& value) {
  if (!value.is_string()) return value.get<double>();
  const auto word = value.get<std::string>();
  if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
  return word == "-inf" ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
}

template <typename T>
std::vector<T> numbers(const base::Json& record, const char* name) {
  std::vector<T> result;
  if (!record.contains(name)) return result;
  for (const base::Json& value : record.at(name)) result.push_back(static_cast<T>(number(value)));
  return result;
}

rl::SampleStatus status_of(const std::string& word) {
  using enum rl::SampleStatus;
  for (const rl::SampleStatus status : {kCompleted, kTruncated, kAborted}) {
    if (word == rl::to_string(status)) return status;
  }
  throw UserError(fmt::format("status {}: use completed, truncated or aborted", word));
}

text::Grade grade_of(const base::Json& record) {
  text::Grade grade;
  grade.sample_id = record.at("sample_id").get<uint64_t>();
  const base::Json& reward = record.at("reward");
  grade.reward = reward.is_null() ? 0.0 : number(reward);
  grade.failed = record.contains("failure");
  if (grade.failed) {
    grade.reason = record.at("failure").get<std::string>();
    grade.reason_class = record.at("failure_class").get<std::string>();
  }
  for (const auto& [name, value] : record.items()) {
    if (name.starts_with(kRewardPrefix)) grade.extras[name.substr(kRewardPrefix.size())] = number(value);
  }
  return grade;
}

rl::Sample sample_of(const base::Json& record) {
  rl::Sample sample;
  sample.group_id = record.at("group_id").get<uint64_t>();
  sample.sample_id = record.at("sample_id").get<uint64_t>();
  sample.prompt_text = record.at("prompt").get<std::string>();
  sample.text = record.at("response").get<std::string>();
  sample.label = record.at("label").get<std::string>();
  sample.has_reward = !record.at("reward").is_null();
  sample.reward = sample.has_reward ? number(record.at("reward")) : 0.0;
  sample.grading_failed = record.contains("failure");
  sample.status = status_of(record.at("status").get<std::string>());
  sample.prompt = numbers<int32_t>(record, "prompt_tokens");
  sample.completion = numbers<int32_t>(record, "response_tokens");
  sample.rollout_logprobs = numbers<float>(record, "rollout_log_probs");
  sample.sampled_logprobs = numbers<float>(record, "sampled_log_probs");
  sample.loss_mask = numbers<uint8_t>(record, "loss_mask");
  sample.remove = record.at("remove_sample").get<bool>();
  for (const base::Json& version : record.at("weight_versions"))
    sample.versions.push_back({.begin = 0, .version = version.get<uint64_t>()});
  return sample;
}

}  // namespace

base::Json sample_record(const rl::Sample& sample, const text::Grade* grade, SampleDetail detail) {
  base::Json record = base::Json::object();
  record["group_id"] = sample.group_id;
  record["sample_id"] = sample.sample_id;
  record["prompt"] = sample.prompt_text;
  record["response"] = sample.text;
  record["label"] = sample.label;
  if (grade != nullptr) {
    record["reward"] = sample.has_reward ? base::Json(sample.reward) : base::Json(nullptr);
    if (grade->failed) {
      record["failure"] = grade->reason;
      record["failure_class"] = grade->reason_class;
    }
    for (const auto& [name, value] : grade->extras) record[std::string(kRewardPrefix) + name] = value;
    for (const auto& [name, value] : grade->columns) record["extra"][name] = value;
  }
  record["status"] = rl::to_string(sample.status);
  record["response_length"] = sample.completion.size();
  record["mean_logprob"] = mean(sample.rollout_logprobs);
  if (sample.advantages.size() == 1) record["advantage"] = sample.advantages.front();
  record["weight_versions"] = versions_of(sample);
  if (detail == SampleDetail::kReadable) return record;
  record["prompt_tokens"] = sample.prompt;
  record["response_tokens"] = sample.completion;
  record["rollout_log_probs"] = sample.rollout_logprobs;
  if (!sample.sampled_logprobs.empty()) record["sampled_log_probs"] = sample.sampled_logprobs;
  if (!sample.ref_logprobs.empty()) record["ref_log_probs"] = sample.ref_logprobs;
  record["advantages"] = sample.advantages;
  record["loss_mask"] = sample.loss_mask;
  record["remove_sample"] = sample.remove;
  return record;
}

void write_samples(const std::string& path, const Rollout& rollout, SampleDetail detail) {
  base::DurableFile file(path);
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    const text::Grade* grade = rollout.grades.empty() ? nullptr : &rollout.grades[i];
    file.write(base::dump_json(sample_record(rollout.samples[i], grade, detail)) + "\n");
  }
  file.commit();
}

Rollout read_rollout(const std::string& path, int64_t num_samples) {
  const std::string text = base::read_file(path, kMaxSamplesBytes);
  Rollout rollout;
  int64_t line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const base::Json record = base::parse_json(std::string_view(text).substr(begin, end - begin), path, ++line);
    begin = end + 1;
    try {
      rollout.samples.push_back(sample_of(record));
      rollout.grades.push_back(grade_of(record));
    } catch (const std::exception& error) {
      throw UserError(
          fmt::format("{}:{}: is no sample as --save-debug-rollout-data writes it: {}", path, line, error.what()));
    }
  }
  TANDEM_USER_CHECK(static_cast<int64_t>(rollout.samples.size()) == num_samples,
                    fmt::format("{}: has {} samples, and a rollout of this run has {} (--rollout-batch-size x "
                                "--n-samples-per-prompt)",
                                path, rollout.samples.size(), num_samples));
  rollout.count_failures();
  return rollout;
}

std::string rollout_path(const std::string& flag, const std::string& pattern, int64_t rollout_id) {
  const size_t at = pattern.find(kRolloutId);
  TANDEM_USER_CHECK(at != std::string::npos,
                    fmt::format("{} {}: has no {{rollout_id}} in it, so all rollouts would be one file; name "
                                "DIR/{{rollout_id}}.jsonl",
                                flag, pattern));
  return pattern.substr(0, at) + std::to_string(rollout_id) + pattern.substr(at + kRolloutId.size());
}

}  // namespace tandem::run
