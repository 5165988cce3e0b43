// Sample dumps: what a record holds, how failures are counted.
#include "report/sample_file.h"

#include <gtest/gtest.h>

#include <sstream>

#include "base/files.h"
#include "evaluation/rollout_metrics.h"
#include "sampling/rollout_file.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"

namespace tandem::evaluation {
namespace {

sampling::Rollout two_samples() {
  sampling::Rollout rollout;
  rollout.samples.resize(2);
  rollout.grades.resize(2);
  rl::Sample& good = rollout.samples[0];
  good.sample_id = 6;
  good.group_id = 3;
  good.prompt = rl::make_prompt({1, 2}, /*text=*/"", /*label=*/"4");
  good.completion = {4, 5, 6};
  good.rollout_logprobs = {-1.0F, -2.0F, -3.0F};
  good.loss_mask = {1, 1, 1};
  good.advantages = {0.5};
  good.reward = 1.0;
  good.text = "4\n";
  good.versions = {{.begin = 0, .version = 2}, {.begin = 1, .version = 3}};
  rollout.grades[0].extras["acc"] = 1.0;
  rl::Sample& failed = rollout.samples[1];
  failed.sample_id = 7;
  failed.prompt = rl::make_prompt({1});
  failed.completion = {2};
  failed.rollout_logprobs = {-1.0F};
  failed.loss_mask = {1};
  failed.grading_failed = true;
  failed.has_reward = false;
  failed.remove = true;
  rollout.grades[1].failed = true;
  rollout.grades[1].reason = "ValueError: no";
  rollout.grades[1].reason_class = "exception";
  rollout.count_failures();
  return rollout;
}

TEST(Samples, ReadableRecordSaysWhatHappened) {
  const sampling::Rollout rollout = two_samples();
  const base::Json good =
      report::sample_record(rollout.samples[0], &rollout.grades[0], report::SampleDetail::kReadable);
  EXPECT_EQ(good["reward"], 1.0);
  EXPECT_EQ(good["reward_acc"], 1.0);
  EXPECT_EQ(good["mean_logprob"], -2.0);
  EXPECT_EQ(good["advantage"], 0.5);
  EXPECT_EQ(good["response"], "4\n");
  EXPECT_EQ(good["weight_versions"], base::Json({2, 3}));
  EXPECT_FALSE(good.contains("response_tokens"));
  const base::Json failed =
      report::sample_record(rollout.samples[1], &rollout.grades[1], report::SampleDetail::kReadable);
  EXPECT_EQ(failed["status"], "completed");
  EXPECT_TRUE(failed["reward"].is_null());
  EXPECT_EQ(failed["failure"], "ValueError: no");
  EXPECT_EQ(failed["failure_class"], "exception");
}

TEST(Samples, PiecesOfSeveralTurnsHaveSpeakerTextAndTraining) {
  sampling::Rollout rollout = two_samples();
  rl::Sample& sample = rollout.samples[0];
  sample.num_turns = 2;
  sample.loss_mask = {1, 0, 1};
  sample.pieces = {{.begin = 0, .is_sampled = true, .text = "<call>"},
                   {.begin = 1, .is_sampled = false, .text = "82"},
                   {.begin = 2, .is_sampled = true, .text = "4"}};
  const auto detail = report::SampleDetail::kFull;
  const base::Json record = report::sample_record(sample, &rollout.grades[0], detail);
  EXPECT_EQ(base::dump_json(record["pieces"]),
            "[{\"from\":\"model\",\"text\":\"<call>\",\"length\":1,\"trained_length\":1},"
            "{\"from\":\"function\",\"text\":\"82\",\"length\":1,\"trained_length\":0},"
            "{\"from\":\"model\",\"text\":\"4\",\"length\":1,\"trained_length\":1}]");
  // A file is read back as it was written, and refused where its pieces are not the response's.
  base::TemporaryDirectory folder;
  const sampling::RolloutBounds bounds = {.num_samples = 2, .vocab = 100, .context_tokens = 100};
  report::write_samples(folder / "s.jsonl", rollout.samples, rollout.grades, detail);
  const sampling::Rollout again = sampling::read_rollout(folder / "s.jsonl", bounds);
  EXPECT_EQ(report::sample_record(again.samples[0], &again.grades[0], detail)["pieces"], record["pieces"]);
  sample.pieces.back().begin = 3;
  report::write_samples(folder / "s.jsonl", rollout.samples, rollout.grades, detail);
  EXPECT_THROW(sampling::read_rollout(folder / "s.jsonl", bounds), UserError);
}

// Tokens 4 and 5 are the two halves of an e with an acute accent, 6 is special, and 7 is the model's unused id. The
// advantages are those of reinforce++ with gamma 0.5 from a reward of 1 on the last trained token.
TEST(Samples, TokensWithAdvantagesOfTheirOwnAreListed) {
  sampling::Rollout rollout = two_samples();
  rl::Sample& sample = rollout.samples[0];
  const std::vector<std::string> token_bytes = {"", "", "", "", "caf\xc3", "\xa9", "<end>"};
  const auto record_of = [&] {
    return report::sample_record(sample, &rollout.grades[0], report::SampleDetail::kReadable, token_bytes);
  };
  EXPECT_FALSE(record_of().contains("token_texts")) << "one number for all tokens";
  sample.completion = {4, 5, 7, 6};
  sample.rollout_logprobs = {-1.0F, -2.0F, -3.0F, -0.5F};
  sample.loss_mask = {1, 1, 0, 1};
  sample.advantages = {0.25, 0.5, 0.5, 1.0};
  const base::Json record = record_of();
  EXPECT_EQ(base::dump_json(record["token_texts"]), "[\"caf\",\"\u00e9\",\"\",\"<end>\"]");
  EXPECT_EQ(base::dump_json(record["token_advantages"]), "[0.25,0.5,null,1.0]");
  EXPECT_EQ(base::dump_json(record["token_log_probs"]), "[-1.0,-2.0,-3.0,-0.5]");
  EXPECT_FALSE(record.contains("advantage"));
  sample.num_turns = 2;  // the third token is a tool's, which has no log-prob
  EXPECT_EQ(base::dump_json(record_of()["token_log_probs"]), "[-1.0,-2.0,null,-0.5]");
  sample.completion.back() = 4;  // ends within a character
  EXPECT_EQ(record_of()["token_texts"].back(), "caf\ufffd");
}

TEST(Samples, FullFileHasTokensAndLogProbsOneLineEach) {
  base::TemporaryDirectory folder;
  const sampling::Rollout rollout = two_samples();
  report::write_samples(folder / "s.jsonl", rollout.samples, rollout.grades, report::SampleDetail::kFull);
  std::istringstream lines(base::read_file(folder / "s.jsonl"));
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const base::Json record = base::parse_json(line, "s.jsonl");
  EXPECT_EQ(record["response_tokens"], base::Json({4, 5, 6}));
  EXPECT_EQ(record["rollout_log_probs"].size(), 3U);
  EXPECT_EQ(record["remove_sample"], false);
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_FALSE(std::getline(lines, line));
}

TEST(Samples, FailuresAreCountedByClass) {
  const report::Metrics metrics = rollout_report(two_samples(), false, std::nullopt);
  EXPECT_EQ(metrics.at("rollout/grader_failed"), 1.0);
  EXPECT_EQ(metrics.at("rollout/grader_failed/exception"), 1.0);
  EXPECT_EQ(metrics.at("rollout/reward_acc"), 1.0);
  EXPECT_EQ(metrics.at("rollout/raw_reward"), 1.0);  // the failed one has none
}

TEST(Samples, AFullFileIsReadBackWithItsFailures) {
  base::TemporaryDirectory folder;
  sampling::Rollout rollout = two_samples();
  rollout.samples.push_back(rollout.samples[1]);  // one that was given a reward
  rollout.samples[2].sample_id = 8;
  rollout.samples[2].has_reward = true;
  rollout.samples[2].remove = false;
  rollout.samples[2].reward = -1.0;
  rollout.samples[2].status = rl::SampleStatus::kTruncated;
  rollout.grades.push_back(rollout.grades[1]);
  rollout.count_failures();
  rollout.samples[0].advantages.clear();  // they are computed anew
  report::write_samples(folder / "s.jsonl", rollout.samples, rollout.grades, report::SampleDetail::kFull);
  const sampling::Rollout read =
      sampling::read_rollout(folder / "s.jsonl", {.num_samples = 3, .vocab = 10, .context_tokens = 5});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(read.samples[i].grading_failed, rollout.samples[i].grading_failed) << i;
    EXPECT_EQ(read.samples[i].has_reward, rollout.samples[i].has_reward) << i;
    EXPECT_EQ(read.samples[i].reward, rollout.samples[i].reward) << i;
    EXPECT_EQ(read.samples[i].status, rollout.samples[i].status) << i;
    EXPECT_EQ(read.samples[i].remove, rollout.samples[i].remove) << i;
  }
  EXPECT_EQ(read.num_failed, 2);
  EXPECT_EQ(read.num_dropped, 1);
  EXPECT_EQ(read.first_failure, "sample 7: ValueError: no");
  EXPECT_EQ(rollout_report(read, false, std::nullopt), rollout_report(rollout, false, std::nullopt));
}

TEST(Samples, DebugPathNeedsThePlaceOfTheNumber) {
  EXPECT_EQ(report::rollout_path("--x", "d/{rollout_id}.jsonl", 12), "d/12.jsonl");
  EXPECT_THROW(report::rollout_path("--x", "d/all.jsonl", 0), UserError);
}

}  // namespace
}  // namespace tandem::evaluation
