#include "sampling/rollout_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/message_text.h"
#include "data/lines.h"
#include "report/sample_file.h"

namespace tandem::sampling {

namespace {

using base::Json;

constexpr int64_t kMaxFileBytes = int64_t{8} << 30;
constexpr size_t kMaxNameBytes = 800;  // the bound of reward/grade_messages.cc

// Reads one line of the file. Every mistake names its place and key.
class SampleReader {
 public:
  SampleReader(const data::Place& place, const RolloutBounds& bounds)
      : place_(place), bounds_(bounds), record_(data::parse_object(place)) {}

  rl::Sample sample() const {
    rl::Sample sample;
    sample.group_id = id("group_id");
    sample.sample_id = id("sample_id");
    rl::Prompt prompt;
    prompt.text = text("prompt");
    sample.text = text("response");
    prompt.label = text("label");
    if (record_.contains("off_policy")) {
      fail("off_policy",
           "the response is an answer of the data and was not sampled (--opd-on-policy-share), so it has no log-probs; "
           "leave this rollout out");
    }
    sample.grading_failed = record_.contains("failure");
    sample.has_reward = !member("reward").is_null();
    if (!sample.has_reward && !sample.grading_failed) fail("reward", "is null, and no failure says why; give a number");
    sample.reward = sample.has_reward ? number("reward", member("reward"), kMax) : 0.0;
    sample.status = status();
    prompt.tokens = tokens("prompt_tokens");
    sample.prompt = std::make_shared<const rl::Prompt>(std::move(prompt));
    sample.completion = tokens("response_tokens");
    check_length(sample);
    const size_t length = sample.completion.size();
    sample.rollout_logprobs = floats("rollout_log_probs", length);
    if (record_.contains("sampled_log_probs")) sample.behavior_logprobs = floats("sampled_log_probs", length);
    sample.loss_mask = mask("loss_mask", length);
    const Json& remove = member("remove_sample");
    if (!remove.is_boolean()) fail("remove_sample", "must be true or false, not " + shown(remove));
    sample.remove = remove.get<bool>();
    if (const auto turns = record_.find("turns"); turns != record_.end())
      sample.num_turns = static_cast<int64_t>(unsigned_number("turns", *turns));
    if (record_.contains("pieces")) sample.pieces = pieces(length);
    sample.versions = versions(length);
    if (record_.contains("sequence_begins")) sample.sequence_begins = sequence_begins(length);
    return sample;
  }

  reward::Grade grade(const rl::Sample& sample) const {
    reward::Grade grade;
    grade.sample_id = sample.sample_id;
    grade.reward = sample.reward;
    grade.failed = sample.grading_failed;
    if (grade.failed) {
      grade.reason = base::one_line(text("failure"), 4096);
      grade.reason_class = text("failure_class");
      // The class becomes part of a metric's name.
      const bool is_class = !grade.reason_class.empty() && grade.reason_class.size() <= 40 &&
                            grade.reason_class.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == std::string::npos;
      if (!is_class) fail("failure_class", "must be a word such as exception, not " + shown(member("failure_class")));
    }
    if (const auto parts = record_.find("rewards"); parts != record_.end()) {
      if (!parts->is_object()) fail("rewards", "must be an object of numbers, not " + shown(*parts));
      if (parts->size() > kMaxRewardNames) fail("rewards", fmt::format("has more than {} rewards", kMaxRewardNames));
      for (const auto& [name, value] : parts->items()) {
        if (name.size() > kMaxNameBytes) fail("rewards", base::one_line(name) + " is too long a name; shorten it");
        grade.parts.push_back({name, value.is_null() ? std::nullopt : std::optional(number(name, value, kMax))});
      }
    }
    for (const auto& [name, value] : record_.items()) {
      if (!name.starts_with(report::kRewardPrefix)) continue;
      if (name.size() > kMaxNameBytes) fail("", base::one_line(name) + " is too long a name; shorten it");
      grade.extras[name.substr(report::kRewardPrefix.size())] = number(name, value, kMax);
    }
    return grade;
  }

  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    place_.fail(key, (key.empty() ? "" : base::one_line(key) + ": ") + what);
  }

 private:
  static constexpr double kMax = std::numeric_limits<double>::max();

  static std::string shown(const Json& value) { return base::one_line(base::dump_json(value), 40); }

  const Json& member(const std::string& key) const {
    const auto found = record_.find(key);
    if (found == record_.end()) fail(key, "is missing; write the file with --save-debug-rollout-data");
    return *found;
  }

  std::string text(const std::string& key) const {
    const Json& value = member(key);
    if (!value.is_string()) fail(key, "must be a text, not " + shown(value));
    return value.get<std::string>();
  }

  const Json& list(const std::string& key) const {
    const Json& value = member(key);
    if (!value.is_array()) fail(key, "must be a list, not " + shown(value));
    return value;
  }

  uint64_t unsigned_number(const std::string& key, const Json& value) const {
    constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kLargest)
      fail(key, "must be a whole number of 0 or more, below 2^63, not " + shown(value));
    return value.get<uint64_t>();
  }

  uint64_t id(const std::string& key) const { return unsigned_number(key, member(key)); }

  // JSON has no NaN and no infinity: such numbers are written as texts ("nan", "inf").
  double number(const std::string& key, const Json& value, double largest) const {
    const bool is_finite = value.is_number() && std::abs(value.get<double>()) <= largest;
    if (!is_finite)
      fail(key, fmt::format("must be a finite number, not {}; mend it, or leave this rollout out", shown(value)));
    return value.get<double>();
  }

  // Returns a list that is as long as the response.
  const Json& list_of(const std::string& key, size_t length) const {
    const Json& values = list(key);
    if (values.size() != length) {
      fail(key, fmt::format("has {} numbers for the {} of response_tokens; write the file with "
                            "--save-debug-rollout-data",
                            values.size(), length));
    }
    return values;
  }

  std::vector<int32_t> tokens(const std::string& key) const {
    const Json& values = list(key);
    if (values.empty()) fail(key, "is empty, and a sample has a token at least; leave the sample's group out");
    std::vector<int32_t> result;
    result.reserve(values.size());
    for (const Json& value : values) {
      const bool is_token = value.is_number_unsigned() && value.get<uint64_t>() < static_cast<uint64_t>(bounds_.vocab);
      if (!is_token) {
        fail(key, fmt::format("{} is no token id of this model; ids are 0 to {}", shown(value), bounds_.vocab - 1));
      }
      result.push_back(value.get<int32_t>());
    }
    return result;
  }

  void check_length(const rl::Sample& sample) const {
    const int64_t length = sample.num_tokens();
    if (length <= bounds_.context_tokens) return;
    fail("response_tokens", fmt::format("prompt and response are {} tokens, and sequences of this run have at most {}; "
                                        "give the lengths of the run that wrote the file (--rollout-max-response-len)",
                                        length, bounds_.context_tokens));
  }

  std::vector<float> floats(const std::string& key, size_t length) const {
    std::vector<float> result;
    result.reserve(length);
    for (const Json& value : list_of(key, length))
      result.push_back(static_cast<float>(number(key, value, std::numeric_limits<float>::max())));
    return result;
  }

  std::vector<uint8_t> mask(const std::string& key, size_t length) const {
    std::vector<uint8_t> result;
    result.reserve(length);
    for (const Json& value : list_of(key, length)) {
      if (!value.is_number_unsigned() || value.get<uint64_t>() > 1) fail(key, "must hold 0 and 1, not " + shown(value));
      result.push_back(value.get<uint8_t>());
    }
    return result;
  }

  // A sample of several versions says at which token each begins.
  std::vector<rl::VersionSpan> versions(size_t length) const {
    constexpr const char* kBegins = "weight_version_begins";
    std::vector<rl::VersionSpan> spans;
    for (const Json& version : list("weight_versions"))
      spans.push_back({.begin = 0, .version = unsigned_number("weight_versions", version)});
    if (spans.size() < 2) return spans;
    const Json& begins = list(kBegins);
    if (begins.size() != spans.size())
      fail(kBegins, fmt::format("has {} numbers for the {} of weight_versions", begins.size(), spans.size()));
    for (size_t i = 0; i < spans.size(); ++i) {
      const uint64_t begin = unsigned_number(kBegins, begins[i]);
      const bool is_in_order = i == 0 ? begin == 0 : begin > static_cast<uint64_t>(spans[i - 1].begin);
      if (!is_in_order || begin >= length)
        fail(kBegins, fmt::format("must be 0 and then larger numbers below {}, not {}", length, shown(begins)));
      spans[i].begin = static_cast<int64_t>(begin);
    }
    return spans;
  }

  std::vector<int64_t> sequence_begins(size_t length) const {
    std::vector<int64_t> begins;
    for (const Json& value : list("sequence_begins")) {
      const uint64_t begin = unsigned_number("sequence_begins", value);
      const uint64_t least = begins.empty() ? 0 : static_cast<uint64_t>(begins.back()) + 2;
      if (begin < least || begin + 2 > length)
        fail("sequence_begins", fmt::format("must be ascending numbers of sequences of two tokens or more, in the {} "
                                            "of response_tokens; {} is none",
                                            length, begin));
      begins.push_back(static_cast<int64_t>(begin));
    }
    if (std::ssize(begins) > bounds_.further_sequences)
      fail("sequence_begins",
           fmt::format("a sample has {} sequences besides the prompt's, and may have {} in this run; "
                       "give the flags of the run that wrote the file "
                       "(--custom-generate-max-sequences)",
                       begins.size(), bounds_.further_sequences));
    return begins;
  }

  // The number of a piece's tokens that are trained on is not read: the mask says so.
  std::vector<rl::SamplePiece> pieces(size_t length) const {
    std::vector<rl::SamplePiece> result;
    size_t begin = 0;
    for (const Json& value : list("pieces")) {
      const auto has = [&](const char* key, Json::value_t type) {
        const auto found = value.is_object() ? value.find(key) : value.end();
        return value.is_object() && found != value.end() && found->type() == type;
      };
      const bool is_whole = has("from", Json::value_t::string) && has("text", Json::value_t::string) &&
                            has("length", Json::value_t::number_unsigned) && value["length"].get<uint64_t>() > 0 &&
                            value["length"].get<uint64_t>() <= length - begin;
      const std::string from = is_whole ? value["from"].get<std::string>() : "";
      if (from != report::kFromModel && from != report::kFromFunction)
        fail("pieces", fmt::format("{} is no piece: write from ({} or {}), text and length, which add up to the {} "
                                   "tokens of the response",
                                   shown(value), report::kFromModel, report::kFromFunction, length));
      result.push_back({.begin = static_cast<int64_t>(begin),
                        .is_sampled = from == report::kFromModel,
                        .text = value["text"].get<std::string>()});
      begin += value["length"].get<size_t>();
    }
    if (!result.empty() && begin != length)
      fail("pieces", fmt::format("have {} tokens in all, and the response has {}", begin, length));
    return result;
  }

  rl::SampleStatus status() const {
    using enum rl::SampleStatus;
    const std::string word = text("status");
    for (const rl::SampleStatus status : {kCompleted, kTruncated, kAborted}) {
      if (word == rl::to_string(status)) return status;
    }
    fail("status", base::one_line(word, 40) + " is none: use completed, truncated or aborted");
  }

  const data::Place& place_;
  const RolloutBounds& bounds_;
  const Json record_;
};

}  // namespace

Rollout read_rollout(const std::string& path, const RolloutBounds& bounds) {
  const std::string text = base::read_file(path, kMaxFileBytes);
  Rollout rollout;
  std::unordered_set<uint64_t> sample_ids;
  std::map<uint64_t, size_t> first_of_group;
  int64_t line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const data::Place place{path, ++line, std::string_view(text).substr(begin, end - begin)};
    begin = end + 1;
    const SampleReader reader(place, bounds);
    rl::Sample sample = reader.sample();
    if (!sample_ids.insert(sample.sample_id).second)
      reader.fail("sample_id",
                  fmt::format("{} is that of an earlier line too; each sample has its own", sample.sample_id));
    const size_t first = first_of_group.try_emplace(sample.group_id, rollout.samples.size()).first->second;
    if (first < rollout.samples.size()) {
      const rl::SharedPrompt& prompt = rollout.samples[first].prompt;
      if (prompt->tokens != sample.prompt->tokens)
        reader.fail("prompt_tokens",
                    fmt::format("are others than in line {}, which has the same group_id {}; give each "
                                "prompt a group of its own",
                                first + 1, sample.group_id));
      sample.prompt = prompt;
    }
    rollout.grades.push_back(reader.grade(sample));
    rollout.samples.push_back(std::move(sample));
  }
  TANDEM_USER_CHECK(static_cast<int64_t>(rollout.samples.size()) == bounds.num_samples,
                    fmt::format("{}: has {} samples, and a rollout of this run has {} (--rollout-batch-size x "
                                "--n-samples-per-prompt)",
                                path, rollout.samples.size(), bounds.num_samples));
  rollout.num_unnamed = limit_reward_names(rollout.grades);
  rollout.count_failures();
  return rollout;
}

}  // namespace tandem::sampling
