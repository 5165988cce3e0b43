// Checks that the weights of the best evaluation are kept, also over a resume.
#include "run/best_weights.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "base/files.h"
#include "base/log.h"
#include "tests/base/faulty_disk.h"
#include "tests/base/temporary_directory.h"
#include "tests/sampling/thread_mesh.h"

namespace tandem::run {
namespace {

constexpr const char* kMetric = "eval/math";

class BestWeightsTest : public testing::Test {
 protected:
  BestWeightsTest() {
    session_.load_weights();
    directory_.create();
    log_ = std::make_unique<RunLog>(directory_, RunLog::Options{.continues_after_save_error = true});
    base::set_log_level(base::LogLevel::kError);
  }
  ~BestWeightsTest() override { base::set_log_level(base::LogLevel::kInfo); }

  BestWeights best(const checkpoint::RunState& start = {}, const std::string& judged_by = "",
                   const std::string& metric = kMetric) {
    return {{.name = metric, .judged_by = judged_by, .asked = asked_}, session_, directory_, *mesh_, *log_, start};
  }
  // Returns the number to beat as a checkpoint would have it.
  static checkpoint::RunState saved(const BestWeights& best) {
    checkpoint::RunState state;
    best.save(state);
    return state;
  }
  static std::optional<int64_t> step_of(const BestWeights& best) {
    const std::optional<checkpoint::BestEvaluation> found = saved(best).best;
    return found ? std::optional(found->step) : std::nullopt;
  }
  bool is_written(int64_t step) const { return base::file_exists(directory_.best(step) + "/model.safetensors"); }
  std::string weights_of(const std::string& path) const { return base::read_file(path + "/model.safetensors"); }

  std::string asked_ = "held_out.jsonl";
  base::FullAtTimes disk_;
  const base::ReplacedFileCalls replaced_{disk_};
  const base::TemporaryDirectory folder_;
  checkpoint::RunDirectory directory_{folder_ / "run", checkpoint::RunFolder::kNew, 0};
  session::ModelSession session_{config::ModelOptions{.hf_checkpoint = "tests/golden/models/qwen3-tied"}};
  const std::unique_ptr<mesh::Mesh> mesh_ = mesh::solo_mesh();
  std::unique_ptr<RunLog> log_;
};

TEST_F(BestWeightsTest, AreThoseOfTheFirstLargestValue) {
  const std::string link = directory_.path() + "/hf/best";
  BestWeights best = this->best();
  best.observe(2, {{kMetric, 0.5}, {"eval/other", 0.9}});
  EXPECT_TRUE(is_written(2));
  const std::string first = weights_of(link);
  session_.trained().tensor("layers.0.qkv").zero_();
  best.observe(4, {{kMetric, 0.5}, {"eval/other", 1.0}});
  best.observe(6, {{kMetric, 0.25}});
  EXPECT_FALSE(is_written(4) || is_written(6));
  EXPECT_EQ(weights_of(link), first);
  best.observe(8, {{kMetric, 0.75}});
  EXPECT_TRUE(is_written(8));
  EXPECT_EQ(weights_of(link), weights_of(directory_.best(8)));
  EXPECT_NE(weights_of(link), first);
  EXPECT_EQ(step_of(best), 8);
  EXPECT_EQ(saved(best).best->value, 0.75);
  EXPECT_EQ(saved(best).best->metric, kMetric);
}

TEST_F(BestWeightsTest, AreNotKeptWithoutAMetric) {
  BestWeights best = this->best({}, "", "");
  best.observe(2, {{kMetric, 0.5}});
  EXPECT_FALSE(is_written(2));
  EXPECT_FALSE(step_of(best).has_value());
}

TEST_F(BestWeightsTest, AnEvaluationWithoutItsNumberIsNoneAndThatIsSaid) {
  BestWeights best = this->best();
  base::set_log_level(base::LogLevel::kWarning);
  testing::internal::CaptureStderr();
  best.observe(2, {{"eval/other", 0.5}});
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("--save-best eval/math: the evaluation behind rollout 2 has no such number"), std::string::npos)
      << said;
  EXPECT_FALSE(is_written(2));
  EXPECT_FALSE(step_of(best).has_value());
}

TEST_F(BestWeightsTest, TheModelBeforeTrainingIsToBeatAndIsNotWritten) {
  BestWeights best = this->best();
  best.observe(0, {{kMetric, 0.5}});
  EXPECT_FALSE(is_written(0));
  EXPECT_EQ(step_of(best), 0);
  best.observe(2, {{kMetric, 0.5}});
  EXPECT_FALSE(is_written(2));
  best.observe(4, {{kMetric, 0.6}});
  EXPECT_TRUE(is_written(4));
}

TEST_F(BestWeightsTest, AResumedRunBeatsTheNumberOfItsCheckpoint) {
  BestWeights before = best({}, "exact >= 0.5");
  before.observe(2, {{kMetric, 0.5}});
  const checkpoint::RunState start = saved(before);
  BestWeights resumed = best(start, "exact >= 0.5");
  resumed.observe(4, {{kMetric, 0.4}});
  EXPECT_FALSE(is_written(4));
  EXPECT_EQ(step_of(resumed), 2);
  resumed.observe(6, {{kMetric, 0.6}});
  EXPECT_TRUE(is_written(6));
}

TEST_F(BestWeightsTest, TheSearchBeginsAgainWhereTheOldNumberMeansSomethingElse) {
  BestWeights before = best({}, "exact >= 0.5");
  before.observe(2, {{kMetric, 0.5}});
  const checkpoint::RunState start = saved(before);
  EXPECT_FALSE(step_of(best(start, "exact >= 1")).has_value()) << "samples passed by another rule";
  EXPECT_FALSE(step_of(best(start, "exact >= 0.5", "eval/other")).has_value()) << "another metric";
  EXPECT_EQ(step_of(best(start, "exact >= 0.5")), 2);
  asked_ = "other.jsonl";
  EXPECT_FALSE(step_of(best(start, "exact >= 0.5")).has_value()) << "other data were sampled";
  checkpoint::RunState older = start;
  older.best->asked = "";
  EXPECT_EQ(step_of(best(older, "exact >= 0.5")), 2) << "a checkpoint that does not say what was sampled";
  asked_ = "held_out.jsonl";
  base::remove_tree(directory_.best(2));
  EXPECT_FALSE(step_of(best(start, "exact >= 0.5")).has_value()) << "its weights are in another directory";
  checkpoint::RunState untrained = start;
  untrained.best->step = 0;
  EXPECT_EQ(step_of(best(untrained, "exact >= 0.5")), 0) << "those of --hf-checkpoint are in no directory";
}

// With another metric the best weights were once forgotten without a word.
TEST_F(BestWeightsTest, AnotherMetricIsSaidWithThePlaceOfTheOldWeights) {
  BestWeights before = best();
  before.observe(2, {{kMetric, 0.5}});
  checkpoint::RunState start = saved(before);
  base::set_log_level(base::LogLevel::kWarning);
  const auto said = [&](const std::string& metric) {
    testing::internal::CaptureStderr();
    EXPECT_FALSE(step_of(best(start, "", metric)).has_value());
    return testing::internal::GetCapturedStderr();
  };
  const std::string removed = "; the best weights so far, in " + directory_.best(2) +
                              ", are removed once a checkpoint has newer ones: copy them to keep them\n";
  const std::string line = said("eval/other");
  const std::string other =
      "--save-best eval/other: the best evaluation of the checkpoint is one of eval/math (0.5, rollout 2), so the next "
      "evaluation is the one to beat";
  EXPECT_TRUE(line.ends_with(other + removed)) << line;
  EXPECT_EQ(said(""), "") << "nothing is to be beaten";
  // The weights from before training are --hf-checkpoint, which nobody removes.
  start.best->step = 0;
  const std::string untrained = said("eval/other");
  EXPECT_TRUE(untrained.ends_with("(0.5, rollout 0), so the next evaluation is the one to beat\n")) << untrained;
  start.best->step = 2;
  asked_ = "other.jsonl";
  const std::string asked = said(kMetric);
  EXPECT_TRUE(
      asked.ends_with("--save-best eval/math: the evaluation was of held_out.jsonl when the checkpoint was made, "
                      "and is of other.jsonl now, so the next evaluation is the one to beat" +
                      removed))
      << asked;
}

TEST_F(BestWeightsTest, WhatADiskRefusesIsTriedAgainByTheNextEvaluation) {
  BestWeights best = this->best();
  disk_.is_full = true;
  best.observe(2, {{kMetric, 0.5}});
  disk_.is_full = false;
  EXPECT_EQ(log_->take(), (report::Metrics{{"fault/save_errors", 1.0}}));
  EXPECT_FALSE(step_of(best).has_value());
  best.observe(4, {{kMetric, 0.4}});
  EXPECT_TRUE(is_written(4));
  EXPECT_EQ(step_of(best), 4);
}

TEST_F(BestWeightsTest, TheFirstReplicaWritesForAll) {
  sampling::ThreadRanks(2).run([this](mesh::Mesh& mesh) {
    if (mesh.rank() == 0) return;
    BestWeights other({.name = kMetric, .judged_by = "", .asked = ""}, session_, directory_, mesh, *log_, {});
    other.observe(2, {{kMetric, 0.5}});
    EXPECT_EQ(step_of(other), 2) << "all have the same number to beat";
  });
  EXPECT_FALSE(is_written(2));
}

}  // namespace
}  // namespace tandem::run
