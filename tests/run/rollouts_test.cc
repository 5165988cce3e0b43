// Checks rollouts: prompts in, graded samples out, and what else is sampled and written of them.
#include "run/rollouts.h"

#include <gtest/gtest.h>

#include "evaluation/rewards.h"
#include "run/evaluator.h"
#include "run/rollout_log.h"
#include "tests/run/small_run.h"

namespace tandem::run {
namespace {

void evaluate_prompts(config::TrainConfig& config) {
  config.eval.eval_prompt_data = {"math", config.data.prompt_data.front()};
  config.eval.max_response_len = 2;
  config.eval_interval = 2;
  config.num_rollout = 5;
}

class Sampling {
 public:
  explicit Sampling(const std::function<void(config::TrainConfig&)>& change = {})
      : run_(change),
        rollouts_(run_.inputs(), mesh::Launch{}, run_.memory(), *mesh_),
        rewards_(run_.inputs().config.reward, run_.inputs().config.dynamic_sampling, run_.inputs().reward_context(),
                 run_.inputs().evaluation) {
    run_.memory().enter(memory::Phase::kRollout);
  }

  sampling::Rollout next(int64_t rollout_id) {
    return rollouts_.next(rollout_id, rewards_, run_.log().report()).value();
  }
  SmallRun& run() { return run_; }
  Rollouts& rollouts() { return rollouts_; }
  evaluation::Rewards& rewards() { return rewards_; }

 private:
  SmallRun run_;
  const std::unique_ptr<mesh::Mesh> mesh_ = mesh::solo_mesh();
  Rollouts rollouts_;
  evaluation::Rewards rewards_;
};

TEST(Rollouts, AreThePromptsThatComeNextInTheirOrder) {
  std::vector<int32_t> last;
  {
    Sampling sampling;
    const sampling::Rollout first = sampling.next(0);
    ASSERT_EQ(first.samples.size(), static_cast<size_t>(kSmallPrompts * kSmallCompletions));
    const std::vector<session::PromptLine>& prompts = sampling.run().inputs().prompts.prompts;
    for (size_t i = 0; i < first.samples.size(); ++i) {
      EXPECT_EQ(first.samples[i].sample_id, i);
      EXPECT_EQ(first.samples[i].prompt, prompts[i / kSmallCompletions].prompt) << "the same object, not a copy";
      EXPECT_TRUE(first.samples[i].has_reward);
    }
    EXPECT_EQ(sampling.rollouts().position().cursor.offset, kSmallPrompts);
    const sampling::Rollout second = sampling.next(1);
    EXPECT_EQ(second.samples.front().sample_id, first.samples.size());
    EXPECT_EQ(second.samples.front().prompt, prompts[kSmallPrompts].prompt);
    last = first.samples.back().completion;
  }
  // The same run gives the same tokens once more.
  Sampling again;
  EXPECT_EQ(again.next(0).samples.back().completion, last);
}

TEST(Rollouts, AreReadFromFilesWhereTheRunIsTold) {
  const base::TemporaryDirectory folder;
  sampling::Rollout written;
  {
    Sampling sampling;
    written = sampling.next(0);
    for (const char* name : {"rollout_0.jsonl", "rollout_1.jsonl"}) {
      report::write_samples(folder / name, written.samples, written.grades, report::SampleDetail::kFull);
    }
  }
  Sampling replay(
      [&](config::TrainConfig& config) { config.load_debug_rollout_data = folder / "rollout_{rollout_id}.jsonl"; });
  const sampling::Rollout read = replay.next(1);
  ASSERT_EQ(read.samples.size(), written.samples.size());
  EXPECT_EQ(read.samples.back().completion, written.samples.back().completion);
  EXPECT_EQ(replay.rollouts().position().cursor, data::PromptCursor());
}

TEST(Rewards, AnEvaluationSharesThemUnlessItsKeysDiffer) {
  {
    Sampling same(evaluate_prompts);
    EXPECT_EQ(same.rewards().of_evaluation().at(0), same.rewards().of_training());
  }
  Sampling other([](config::TrainConfig& config) {
    evaluate_prompts(config);
    config.eval.reward_key = "accuracy";
  });
  EXPECT_NE(other.rewards().of_evaluation().at(0), other.rewards().of_training());
}

TEST(Evaluator, IsDueAtTheStartAtItsIntervalAndAtTheEnd) {
  Sampling sampling(evaluate_prompts);
  SmallRun& run = sampling.run();
  BestWeights best({.name = "", .judged_by = "", .asked = ""}, run.inputs().session, run.inputs().directory,
                   *run.inputs().mesh, run.log(), {});
  const auto evaluator = [&](bool is_due) {
    return Evaluator(run.inputs(), sampling.rollouts().phase(), sampling.rewards(), best, run.log(), is_due, nullptr);
  };
  EXPECT_TRUE(evaluator(false).is_due_at_start(0));
  EXPECT_FALSE(evaluator(false).is_due_at_start(3));
  EXPECT_TRUE(evaluator(true).is_due_at_start(3)) << "a signal ended it";
  for (int64_t rollout_id = 1; rollout_id <= 5; ++rollout_id) {
    EXPECT_EQ(evaluator(false).is_due_after(rollout_id), rollout_id == 2 || rollout_id >= 4) << rollout_id;
  }
  run.inputs().config.skip_eval_before_train = true;
  EXPECT_FALSE(evaluator(false).is_due_at_start(0));

  Evaluator resumed = evaluator(true);
  resumed.run(3);
  EXPECT_FALSE(resumed.is_due());
  const std::vector<base::Json> records = run.records("eval/math");
  ASSERT_EQ(records.size(), 1U);
  EXPECT_EQ(records.front()["eval/step"], 3);
  EXPECT_TRUE(base::file_exists(run.inputs().directory.samples_folder() + "/eval_math_000003.jsonl"));
  EXPECT_TRUE(run.log().take().contains("perf/eval_time"));
}

TEST(RolloutLog, WritesOneRecordWithAllThatWasAdded) {
  Sampling sampling([](config::TrainConfig& config) { config.output.sample_dump_interval = 2; });
  SmallRun& run = sampling.run();
  RolloutLog rollout_log(run.inputs(), run.memory(), run.log(), /*first_rollout=*/0);
  run.log().add({{"perf/eval_time", 3.0}});
  for (int64_t rollout_id = 0; rollout_id < 2; ++rollout_id) {
    const sampling::Rollout rollout = sampling.next(rollout_id);
    rollout_log.sampled(rollout);
    rollout_log.training_begins();
    rollout_log.training_ended();
    rollout_log.weights_updated(rollout_id == 1 ? std::optional(Rollouts::WeightUpdate{.seconds = 2.0}) : std::nullopt);
    rollout_log.write(rollout_id, rollout);
    rollout_log.print(rollout_id + 1, rollout, {{"train/loss", 0.25}});
  }
  const std::vector<base::Json> records = run.records("rollout/step");
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[1]["rollout/step"], 1);
  EXPECT_EQ(records[0]["perf/eval_time"], 3.0);
  EXPECT_FALSE(records[1].contains("perf/eval_time"));
  EXPECT_FALSE(records[0].contains("perf/update_weights_time")) << "this process samples";
  EXPECT_EQ(records[1]["perf/update_weights_time"], 2.0);
  for (const base::Json& record : records) {
    const double sent = record.contains("perf/update_weights_time") ? 2.0 : 0.0;
    const double step = record["perf/step_time"].get<double>();
    EXPECT_GE(record["perf/train_wait_time"].get<double>(), record["perf/rollout_time"].get<double>());
    EXPECT_EQ(step, record["perf/train_wait_time"].get<double>() + record["perf/train_time"].get<double>() + sent);
  }
  const std::string samples = run.inputs().directory.samples_folder();
  EXPECT_TRUE(base::file_exists(samples + "/rollout_000000.jsonl"));
  EXPECT_FALSE(base::file_exists(samples + "/rollout_000001.jsonl"));
  const std::string lines = base::read_file(run.inputs().directory.log_file());
  EXPECT_NE(lines.find("rollout 2/2"), std::string::npos) << lines;
  EXPECT_NE(lines.find("loss 0.25"), std::string::npos) << lines;
  EXPECT_EQ(finish_run(run.inputs(), run.memory(), run.log(), 2, 0), 0);
  EXPECT_TRUE(base::file_exists(run.inputs().directory.memory_trace_file()));
}

}  // namespace
}  // namespace tandem::run
