#include "rl/sample_wire.h"

#include <utility>

namespace tandem::rl {

void write_sample(const Sample& sample, base::WireWriter& out) {
  out.number(sample.group_id);
  out.number(sample.sample_id);
  out.list(sample.completion);
  out.list(sample.rollout_logprobs);
  out.list(sample.behavior_logprobs);
  out.list(sample.ref_logprobs);
  out.list(sample.loss_mask);
  out.list(sample.advantages);
  out.number(sample.reward);
  out.number(sample.overlong_penalty);
  out.number(sample.kl_penalty);
  out.flag(sample.grading_failed);
  out.flag(sample.has_reward);
  out.number(sample.status);
  out.flag(sample.remove);
  out.count(sample.versions.size());
  for (const VersionSpan& span : sample.versions) {
    out.number(span.begin);
    out.number(span.version);
  }
  out.number(sample.num_turns);
  out.text(sample.text);
  out.count(sample.pieces.size());
  for (const SamplePiece& piece : sample.pieces) {
    out.number(piece.begin);
    out.flag(piece.is_sampled);
    out.text(piece.text);
  }
}

Sample read_sample(base::WireReader& in, SharedPrompt prompt) {
  constexpr uint8_t kNumStatuses = 3;
  Sample sample;
  sample.prompt = std::move(prompt);
  sample.group_id = in.number<uint64_t>();
  sample.sample_id = in.number<uint64_t>();
  sample.completion = in.list<int32_t>();
  sample.rollout_logprobs = in.list<float>();
  sample.behavior_logprobs = in.list<float>();
  sample.ref_logprobs = in.list<float>();
  sample.loss_mask = in.list<uint8_t>();
  sample.advantages = in.list<double>();
  sample.reward = in.number<double>();
  sample.overlong_penalty = in.number<double>();
  sample.kl_penalty = in.number<double>();
  sample.grading_failed = in.flag();
  sample.has_reward = in.flag();
  sample.status = in.choice<SampleStatus>(kNumStatuses);
  sample.remove = in.flag();
  sample.versions.resize(in.count(sizeof(int64_t) + sizeof(uint64_t)));
  for (VersionSpan& span : sample.versions) {
    span.begin = in.number<int64_t>();
    span.version = in.number<uint64_t>();
  }
  sample.num_turns = in.number<int64_t>();
  sample.text = in.text();
  sample.pieces.resize(in.count(sizeof(int64_t) + 1));
  for (int64_t least = 0; SamplePiece & piece : sample.pieces) {
    piece.begin = in.number<int64_t>();
    if (piece.begin < least || piece.begin >= std::ssize(sample.completion))
      base::WireReader::refuse("pieces of a completion that are out of order");
    least = piece.begin + 1;
    piece.is_sampled = in.flag();
    piece.text = in.text();
  }
  return sample;
}

}  // namespace tandem::rl
