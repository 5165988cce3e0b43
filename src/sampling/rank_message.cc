#include "sampling/rank_message.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/wire.h"
#include "reward/grade_wire.h"
#include "rl/sample_wire.h"

namespace tandem::sampling {

namespace {

using rollout::EngineStats;
using Losses = GroupWork::Losses;

// Changes with whatever is written here, in rl/sample_wire or in reward/grade_wire.
constexpr uint32_t kFormat = 1;

constexpr std::array kSums = {&EngineStats::generated_tokens,     &EngineStats::prefill_tokens,
                              &EngineStats::shared_prompt_tokens, &EngineStats::recomputed_tokens,
                              &EngineStats::kept_tokens,          &EngineStats::kept_dropped,
                              &EngineStats::wasted_rows,          &EngineStats::forwards,
                              &EngineStats::preemptions,          &EngineStats::copies_on_write};
constexpr std::array kPeaks = {&EngineStats::peak_running, &EngineStats::peak_blocks, &EngineStats::num_blocks};
static_assert(sizeof(EngineStats) == (kSums.size() + kPeaks.size()) * sizeof(int64_t), "a number is not sent");

constexpr std::array kLosses = {&Losses::grader_restarts, &Losses::repeated_grades, &Losses::generator_restarts,
                                &Losses::repeated_generations};
static_assert(sizeof(Losses) == kLosses.size() * sizeof(int64_t), "a number is not sent");

std::string checksum_of(const rl::Prompt& prompt) {
  return base::checksum({reinterpret_cast<const char*>(prompt.tokens.data()), prompt.tokens.size() * sizeof(int32_t)});
}

void write_group(const GradedGroup& group, base::WireWriter& out) {
  out.count(group.samples.size());
  for (const rl::Sample& sample : group.samples) rl::write_sample(sample, out);
  out.count(group.grades.size());
  for (const reward::Grade& grade : group.grades) reward::write_grade(grade, out);
  out.flag(group.verdict.is_kept);
  out.text(group.verdict.reason);
  out.text(group.verdict.failure);
  out.flag(group.is_judged);
  out.number(group.reward_sum);
  out.number(group.num_rewarded);
  out.number(group.longest);
}

GradedGroup read_group(base::WireReader& in, const rl::SharedPrompt& prompt) {
  GradedGroup group;
  for (size_t left = in.count(1); left > 0; --left) group.samples.push_back(rl::read_sample(in, prompt));
  for (size_t left = in.count(1); left > 0; --left) group.grades.push_back(reward::read_grade(in));
  group.verdict.is_kept = in.flag();
  group.verdict.reason = in.text();
  group.verdict.failure = in.text();
  group.is_judged = in.flag();
  group.reward_sum = in.number<double>();
  group.num_rewarded = in.number<int64_t>();
  group.longest = in.number<int64_t>();
  return group;
}

}  // namespace

std::string to_bytes(const RankMessage& message, const PromptOf& prompt_of) {
  base::WireWriter out;
  out.flag(message.is_stopped);
  out.count(message.groups.size());
  for (const auto& [index, group] : message.groups) {
    out.number(uint64_t{index});
    out.text(checksum_of(*prompt_of(index)));
    write_group(group, out);
  }
  for (const auto member : kSums) out.number(message.stats.*member);
  for (const auto member : kPeaks) out.number(message.stats.*member);
  for (const auto member : kLosses) out.number(message.losses.*member);
  out.number(message.seconds);
  return base::sealed(out.payload(), kFormat);
}

RankMessage rank_message(std::string_view bytes, const PromptOf& prompt_of) {
  base::WireReader in(base::unsealed(bytes, kFormat));
  RankMessage message;
  message.is_stopped = in.flag();
  for (size_t left = in.count(1); left > 0; --left) {
    const auto index = static_cast<size_t>(in.number<uint64_t>());
    const rl::SharedPrompt prompt = prompt_of(index);
    TANDEM_ENV_CHECK(in.text() == checksum_of(*prompt),
                     "another rank has another prompt for group " + std::to_string(index) +
                         " of this rollout: give all ranks the same --prompt-data and the same tokenizer");
    GradedGroup group = read_group(in, prompt);
    if (!message.groups.emplace(index, std::move(group)).second) base::WireReader::refuse("a group twice");
  }
  for (const auto member : kSums) message.stats.*member = in.number<int64_t>();
  for (const auto member : kPeaks) message.stats.*member = in.number<int64_t>();
  for (const auto member : kLosses) message.losses.*member = in.number<int64_t>();
  message.seconds = in.number<double>();
  in.finish();
  return message;
}

void add(const EngineStats& of_rank, EngineStats& sum) {
  for (const auto member : kSums) sum.*member += of_rank.*member;
  for (const auto member : kPeaks) sum.*member = std::max(sum.*member, of_rank.*member);
}

void add(const Losses& of_rank, Losses& sum) {
  for (const auto member : kLosses) sum.*member += of_rank.*member;
}

}  // namespace tandem::sampling
