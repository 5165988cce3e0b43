// sampling/rollout_file: a rollout that is accepted can be trained on: each sample has tokens, and for each token of
// the completion what rl/sample.h promises. Writing it gives what reads back as the same.
#include "sampling/rollout_file.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "report/sample_file.h"
#include "tests/fuzz/json_mutator.h"

using namespace tandem::fuzz;
using tandem::base::Json;
using tandem::rl::Sample;
using tandem::sampling::Rollout;

namespace {

bool are_ids(const std::vector<int32_t>& tokens) {
  return std::all_of(tokens.begin(), tokens.end(), [](int32_t id) { return id >= 0; });
}

void require_sample(const Sample& sample, const tandem::reward::Grade& grade) {
  const size_t n = sample.completion.size();
  require(!sample.prompt->tokens.empty() && n > 0, "a sample has a prompt and a completion");
  require(are_ids(sample.prompt->tokens) && are_ids(sample.completion), "tokens are ids");
  require(sample.rollout_logprobs.size() == n, "each token has its log-prob");
  require(sample.behavior_logprobs.empty() || sample.behavior_logprobs.size() == n, "all or no sampled log-probs");
  require(sample.loss_mask.size() == n, "each token is in the loss or not");
  require(std::all_of(sample.loss_mask.begin(), sample.loss_mask.end(), [](uint8_t bit) { return bit <= 1; }),
          "a mask is 0 or 1");
  require(!sample.has_reward || !std::isnan(sample.reward), "a reward is a number");
  require(sample.grading_failed == grade.failed, "sample and grade fail together");
  require(grade.sample_id == sample.sample_id, "a grade is its sample's");
}

std::vector<std::string> records(const Rollout& rollout) {
  std::vector<std::string> lines;
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    lines.push_back(tandem::base::dump_json(
        tandem::report::sample_record(rollout.samples[i], &rollout.grades[i], tandem::report::SampleDetail::kFull)));
  }
  return lines;
}

// Without the file, whose sync would cost more than all the rest.
std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const MemoryFile file;
  const std::string_view text = text_of(data, size);
  file.write(text);
  const int64_t num_lines = std::count(text.begin(), text.end(), '\n') + (text.empty() || text.back() == '\n' ? 0 : 1);
  std::optional<Rollout> rollout;
  accepts(
      [&] {
        rollout = tandem::sampling::read_rollout(file.path(),
                                                 {.num_samples = num_lines, .vocab = 2000, .context_tokens = 20000});
      },
      [](std::string_view message) { require_message(message, file.path()); });
  if (!rollout) return 0;
  require(rollout->samples.size() == rollout->grades.size(), "a grade for each sample");
  for (size_t i = 0; i < rollout->samples.size(); ++i) require_sample(rollout->samples[i], rollout->grades[i]);
  const std::vector<std::string> written = records(*rollout);
  file.write(joined(written));
  Rollout again;
  const bool reads_back = accepts(
      [&] {
        again = tandem::sampling::read_rollout(file.path(),
                                               {.num_samples = num_lines, .vocab = 2000, .context_tokens = 20000});
      },
      [](std::string_view message) { require(false, "its own text is accepted", message); });
  require(reads_back && records(again) == written, "its own text reads back to the same rollout");
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return mutate_json_lines(data, size, max_size, seed);
}
