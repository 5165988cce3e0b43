#include "run/learning/custom_advantages.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/log.h"
#include "base/utf8_stream.h"
#include "base/wire_fields.h"
#include "device/waits_for_samples.h"
#include "session/advantage_setup.h"

namespace tandem::run {

namespace {

using base::Json;

constexpr uint32_t kMessageFormat = 0x41440001;

// What rank 0 tells the others: for each sample in their order its advantages, none for one that leaves the loss.
struct AdvantageMessage {
  std::vector<std::vector<double>> advantages;
  std::string failure;

  static void fields(auto& wire, auto& m) { wire(m.advantages, m.failure); }
};

// Returns the samples of each group, by their index in the rollout: groups in the order of their first samples.
std::vector<std::vector<size_t>> groups_of(const sampling::Rollout& rollout) {
  std::vector<std::vector<size_t>> groups;
  std::map<uint64_t, size_t> places;
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    const auto [place, is_new] = places.emplace(rollout.samples[i].group_id, groups.size());
    if (is_new) groups.emplace_back();
    groups[place->second].push_back(i);
  }
  return groups;
}

// Returns where the tokens of each turn begin and end: the pieces that the engine sampled.
std::vector<std::pair<size_t, size_t>> turns_of(const rl::Sample& sample) {
  if (sample.pieces.empty()) return {{0, sample.completion.size()}};
  std::vector<std::pair<size_t, size_t>> turns;
  for (size_t p = 0; p < sample.pieces.size(); ++p) {
    const size_t end =
        p + 1 < sample.pieces.size() ? static_cast<size_t>(sample.pieces[p + 1].begin) : sample.completion.size();
    if (sample.pieces[p].is_sampled) turns.emplace_back(static_cast<size_t>(sample.pieces[p].begin), end);
  }
  return turns;
}

// Returns one number for the sample or one for each token; tokens that are of no turn have 0.
std::vector<double> spread_over_tokens(const rl::Sample& sample, const std::vector<double>& numbers) {
  if (numbers.size() == 1 || numbers.size() == sample.completion.size()) return numbers;
  const std::vector<std::pair<size_t, size_t>> turns = turns_of(sample);
  TANDEM_CHECK_EQ(numbers.size(), turns.size(), "advantages of sample", sample.sample_id);
  std::vector<double> result(sample.completion.size(), 0.0);
  for (size_t k = 0; k < turns.size(); ++k) {
    for (size_t t = turns[k].first; t < turns[k].second; ++t) result[t] = numbers[k];
  }
  return result;
}

}  // namespace

CustomAdvantages::CustomAdvantages(const TrainInputs& inputs) : inputs_(inputs), state_("{}") {
  const std::vector<session::PromptLine>& lines = inputs.prompts.prompts;
  for (size_t i = 0; i < lines.size(); ++i) lines_[lines[i].prompt.get()] = i;
  if (!inputs.checkpoint) return;
  const std::string saved = checkpoint::read_state(*inputs.checkpoint).advantage_state;
  if (!saved.empty()) state_ = saved;
}

void CustomAdvantages::assign(int64_t rollout_id, sampling::Rollout& rollout, RunLog& log) {
  const base::Clock::time_point begin = base::Clock::now();
  const std::vector<std::vector<size_t>> groups = groups_of(rollout);
  AdvantageMessage message{.advantages = std::vector<std::vector<double>>(rollout.samples.size()), .failure = ""};
  const mesh::Mesh& mesh = *inputs_.mesh;
  if (mesh.is_conductor()) {
    reward::AdvantageResult result = call(rollout_id, rollout);
    if (result.failed) message.failure = base::Redaction().apply(result.reason);
    for (size_t g = 0; g < result.groups.size(); ++g) {
      for (size_t s = 0; s < groups[g].size(); ++s) {
        const reward::SampleAdvantages& numbers = result.groups[g][s];
        const size_t i = groups[g][s];
        if (numbers) message.advantages[i] = spread_over_tokens(rollout.samples[i], *numbers);
      }
    }
    if (!result.failed) state_ = std::move(result.state);
  }
  if (!mesh.is_alone()) {
    const std::string bytes = mesh.is_conductor() ? base::packed(message, kMessageFormat) : "";
    const device::WaitsForSamples waits(mesh.host());  // rank 0 waits for the user's function as long as it may take
    message = base::unpacked<AdvantageMessage>(device::broadcast_text(mesh.host(), 0, bytes), kMessageFormat);
    TANDEM_ENV_CHECK(message.advantages.size() == rollout.samples.size(),
                     "rank 0's advantages are of another rollout: start all ranks with the same build and flags");
  }
  rollout.advantage_failure = message.failure;
  double num_none = 0.0;
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    rl::Sample& sample = rollout.samples[i];
    if (!sample.has_reward) continue;  // it has no advantage, whatever the function says
    num_none += message.advantages[i].empty() ? 1.0 : 0.0;
    sample.remove = sample.remove || message.advantages[i].empty();
    sample.advantages = message.advantages[i].empty() ? std::vector{0.0} : std::move(message.advantages[i]);
  }
  if (rollout.advantage_failure.empty()) {
    log.add({{"rollout/advantage_none", num_none}});
  } else {
    log.add({{"fault/custom_advantage", 1.0}});
    if (mesh.is_conductor()) {
      base::log_warning("rollout {}: --custom-advantage-path failed, so nothing is learnt from this rollout: {}",
                        rollout_id + 1, rollout.advantage_failure);
    }
  }
  log.add({{"perf/custom_advantage_time", base::seconds_since(begin)}});
}

reward::AdvantageResult CustomAdvantages::call(int64_t rollout_id, const sampling::Rollout& rollout) {
  if (!function_) {
    const session::RewardContext context = inputs_.reward_context();
    function_ = std::make_unique<reward::AdvantageFunction>(
        session::advantage_config(inputs_.config.loss.custom_advantage_path, inputs_.config.reward, context));
  }
  std::vector<reward::AdvantageGroup> groups;
  for (const std::vector<size_t>& members : groups_of(rollout)) {
    reward::AdvantageGroup& group = groups.emplace_back();
    for (const size_t i : members) {
      const rl::Sample& sample = rollout.samples[i];
      group.samples.push_back({.num_tokens = sample.completion.size(), .num_turns = turns_of(sample).size()});
    }
    group.message = [this, &rollout, members] { return group_message(rollout, members); };
  }
  return function_->call(static_cast<uint64_t>(rollout_id), groups, state_);
}

Json CustomAdvantages::group_message(const sampling::Rollout& rollout, const std::vector<size_t>& group) const {
  const rl::Prompt* const prompt = rollout.samples[group.front()].prompt.get();
  const auto line = lines_.find(prompt);
  Json json = {{"samples", Json::array()}};
  if (line == lines_.end()) {  // a rollout that was read from a file has no line
    json["prompt_index"] = nullptr;
    json["prompt"] = base::utf8_text(prompt->text);
    json["label"] = prompt->label.empty() ? Json() : Json(prompt->label);
    json["metadata"] = Json::object();
  } else {
    const data::PromptRecord& record = inputs_.prompts.prompts[line->second].record;
    json["prompt_index"] = line->second;
    json["prompt"] = record.prompt;
    json["label"] = record.label;
    json["metadata"] = record.metadata.is_object() ? record.metadata : Json::object();
  }
  for (const size_t i : group) json["samples"].push_back(sample_message(rollout, i));
  return json;
}

Json CustomAdvantages::sample_message(const sampling::Rollout& rollout, size_t i) const {
  const rl::Sample& sample = rollout.samples[i];
  Json rewards = Json::object(), extras = Json::object(), pieces = Json::array();
  if (!rollout.grades.empty()) {
    const reward::Grade& grade = rollout.grades[i];
    for (const reward::RewardPart& part : grade.parts) rewards[part.name] = part.reward ? Json(*part.reward) : Json();
    for (const auto& [name, value] : grade.extras) extras[name] = value;
  }
  const auto sources = inputs_.config.reward.sources();
  if (sources.size() == 1 && rewards.empty()) {  // one reward, which is no sum
    rewards[sources.front().name] = sample.has_reward && !sample.grading_failed ? Json(sample.reward) : Json();
  }
  for (const auto& source : sources) {  // where nothing was graded, nothing has a part
    if (!rewards.contains(source.name)) rewards[source.name] = nullptr;
  }
  for (const rl::SamplePiece& piece : sample.pieces) {
    pieces.push_back({{"begin", piece.begin}, {"is_sampled", piece.is_sampled}, {"text", base::utf8_text(piece.text)}});
  }
  std::string mask;
  for (const uint8_t counts : sample.loss_mask) mask += counts != 0 ? '1' : '0';
  return {{"index", sample.sample_id},
          {"reward", sample.has_reward ? Json(sample.shaped_reward()) : Json()},
          {"rewards", rewards},
          {"extras", extras},
          {"advantage", sample.advantages.size() == 1 ? Json(sample.advantages[0]) : Json(sample.advantages)},
          {"response", base::utf8_text(sample.text)},
          {"tokens", sample.completion},
          {"log_probs", sample.rollout_logprobs},
          {"ref_log_probs", sample.ref_logprobs.empty() ? Json() : Json(sample.ref_logprobs)},
          {"loss_mask", mask},
          {"status", rl::to_string(sample.status)},
          {"removed", sample.remove},
          {"pieces", pieces}};
}

}  // namespace tandem::run
