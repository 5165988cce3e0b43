// What was sampled, as JSONL: one line a sample, for people and for scripts.
#pragma once

#include <string>

#include "run/rollout_phase.h"

namespace tandem::run {

// "readable": prompt, response, label, reward (null: dropped), failure (why grading failed) and failure_class, status,
// length, mean log-prob, advantage, weight versions. "full": also tokens, log-probs (policy, sampled, reference),
// advantages and the loss mask.
enum class SampleDetail : uint8_t { kReadable, kFull };

base::Json sample_record(const rl::Sample& sample, const text::Grade* grade, SampleDetail detail);

// Writes all samples of a rollout, durably.
void write_samples(const std::string& path, const Rollout& rollout, SampleDetail detail);

// The rollout of a file of kFull, to train on it again. UserError "FILE:LINE: what", or when it has not `num_samples`.
Rollout read_rollout(const std::string& path, int64_t num_samples);

// "dir/{rollout_id}.jsonl" with the number in its place. UserError when the braces are missing; `flag` names
// where the pattern is from.
std::string rollout_path(const std::string& flag, const std::string& pattern, int64_t rollout_id);

}  // namespace tandem::run
