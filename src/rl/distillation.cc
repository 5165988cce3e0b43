#include "rl/distillation.h"

#include <cmath>

#include "base/check.h"
#include "base/rng.h"

namespace tandem::rl {
namespace {

// This keeps the draws of groups apart from other streams under the same seed (prompt_order.cc), whose highest two bits
// are 00, 10 or 11.
constexpr uint64_t kAnswerStream = uint64_t{1} << 62;

}  // namespace

bool takes_answer(const OpdConfig& config, uint64_t seed, uint64_t group) {
  return config.has_given_answers() && base::uniform(seed, kAnswerStream, group) >= config.on_policy_share;
}

double teacher_kl(const Sample& sample, size_t token) {
  TANDEM_CHECK_EQ(sample.teacher_logprobs.size(), sample.completion.size(), "teacher log-probs of sample",
                  sample.sample_id);
  return double{sample.rollout_logprobs[token]} - double{sample.teacher_logprobs[token]};
}

AdvantageParts add_teacher(const OpdConfig& config, std::span<Sample> samples) {
  AdvantageParts parts;
  double num_tokens = 0.0;
  for (Sample& sample : samples) {
    if (!config.use_task_rewards) sample.advantages.assign(1, 0.0);
    if (config.kl_coef == 0.0 || sample.remove || sample.is_given) continue;
    if (sample.advantages.size() == 1) sample.advantages.assign(sample.completion.size(), sample.advantages[0]);
    for (size_t t = 0; t < sample.completion.size(); ++t) {
      if (!sample.is_trained(t)) continue;
      const double kl = teacher_kl(sample, t);
      TANDEM_ENV_CHECK(std::isfinite(kl), "sample", sample.sample_id,
                       "has a log-prob that is not finite under the teacher, so it can teach nothing: look at the "
                       "weights of --opd-teacher-load");
      parts.task += std::abs(sample.advantages[t]);
      parts.teacher += std::abs(config.kl_coef * kl);
      num_tokens += 1.0;
      sample.advantages[t] -= config.kl_coef * kl;
    }
  }
  if (num_tokens > 0.0) parts = {.task = parts.task / num_tokens, .teacher = parts.teacher / num_tokens};
  return parts;
}

}  // namespace tandem::rl
