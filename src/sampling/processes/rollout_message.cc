#include "sampling/processes/rollout_message.h"

#include "base/check.h"
#include "base/checksum.h"
#include "base/wire_fields.h"

namespace tandem::sampling {

namespace {

struct RolloutMessage {
  std::optional<Rollout> rollout;
  std::vector<uint64_t> groups;
  std::vector<std::string> checksums;  // one for each group's prompt

  static void fields(auto& wire, auto& m) { wire(m.rollout, m.groups, m.checksums); }
};
// Has the fields of a RolloutMessage, and borrows its rollout.
struct SentMessage {
  const std::optional<Rollout>& rollout;
  std::vector<uint64_t> groups;
  std::vector<std::string> checksums;

  static void fields(auto& wire, auto& m) { RolloutMessage::fields(wire, m); }
};

std::string checksum_of(const rl::Prompt& prompt) {
  return base::checksum({reinterpret_cast<const char*>(prompt.tokens.data()), prompt.tokens.size() * sizeof(int32_t)});
}

}  // namespace

std::string to_bytes(const std::optional<Rollout>& rollout, const std::vector<size_t>& groups) {
  SentMessage message = {.rollout = rollout, .groups = {groups.begin(), groups.end()}, .checksums = {}};
  if (rollout) {
    const size_t n = groups.empty() ? 0 : rollout->samples.size() / groups.size();
    for (size_t i = 0; i < groups.size(); ++i)
      message.checksums.push_back(checksum_of(*rollout->samples[i * n].prompt));
  }
  return base::packed(message, kRolloutMessageFormat);
}

std::optional<Rollout> rollout_of(std::string_view bytes, const PromptOf& prompt_of) {
  auto message = base::unpacked<RolloutMessage>(bytes, kRolloutMessageFormat);
  if (!message.rollout) return std::nullopt;
  std::vector<rl::Sample>& samples = message.rollout->samples;
  const size_t num_groups = message.groups.size();
  const size_t n = num_groups == 0 ? 0 : samples.size() / num_groups;
  TANDEM_ENV_CHECK(message.checksums.size() == num_groups && samples.size() == num_groups * n,
                   "rank 0's message has not as many samples as groups: start all ranks with the same build");
  for (size_t i = 0; i < num_groups; ++i) {
    const rl::SharedPrompt prompt = prompt_of(message.groups[i]);
    TANDEM_ENV_CHECK(message.checksums[i] == checksum_of(*prompt),
                     "another rank has another prompt for group " + std::to_string(message.groups[i]) +
                         " of this rollout: give all ranks the same --prompt-data and the same tokenizer");
    for (size_t s = 0; s < n; ++s) samples[i * n + s].prompt = prompt;
  }
  return std::move(message.rollout);
}

}  // namespace tandem::sampling
