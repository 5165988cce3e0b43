// Writes samples as JSONL: one line a sample, for people and for scripts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "reward/graders.h"
#include "rl/sample.h"

namespace tandem::report {

// "readable" has prompt, response, label, reward (null: dropped), rewards (each one's value, if they are added up),
// failure (why grading failed) and failure_class, status, length, mean log-prob, advantage, weight versions; with
// several turns also the pieces of the response, each with its speaker and how much of it is trained on; where each
// token has an advantage of its own also the tokens: their texts, advantages and log-probs. "full" adds tokens,
// log-probs (policy, sampled, reference), advantages and the loss mask.
enum class SampleDetail : uint8_t { kReadable, kFull };

// This prefix stands before the names of the other numbers of a reward that is a dict.
inline constexpr std::string_view kRewardPrefix = "reward_";
// The speaker of a piece is named by these of a response: the engine, or the user's generate function.
inline constexpr std::string_view kFromModel = "model", kFromFunction = "function";

// `token_bytes`: the bytes of each token id, for the texts of tokens; empty: the record has none.
base::Json sample_record(const rl::Sample& sample, const reward::Grade* grade, SampleDetail detail,
                         std::span<const std::string> token_bytes = {});

// Writes all samples of a rollout, durably, and makes the folders of `path`. `grades`: one a sample, or none at all.
// `sources`: the line of the data that each is of, FILE:LINE, or none at all. `token_bytes`: the bytes of
// each token id, for the texts of tokens; empty: the records have none.
void write_samples(const std::string& path, std::span<const rl::Sample> samples, std::span<const reward::Grade> grades,
                   SampleDetail detail, std::span<const std::string> sources = {},
                   std::span<const std::string> token_bytes = {});

// Returns "dir/{rollout_id}.jsonl" with the number in its place. Throws UserError when the braces are missing; `flag`
// names the source of the pattern.
std::string rollout_path(const std::string& flag, const std::string& pattern, int64_t rollout_id);

}  // namespace tandem::report
