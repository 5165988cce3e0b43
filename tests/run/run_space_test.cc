// A run's space on disk is estimated by what it keeps, not by what it writes.
#include "run/run_space.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/files.h"
#include "model/lora.h"
#include "model/registry.h"
#include "tests/base/temporary_directory.h"

namespace tandem::run {
namespace {

constexpr int64_t kCopied = 1000;

model::ModelConfig golden() { return model::read_model_config("tests/golden/models/qwen3-tied"); }

// The headers of files are a few hundred KiB, which is more than the small model's weights.
TEST(RunSpace, EveryExportStaysAndOneCheckpointMoreThanAreKept) {
  const model::ModelConfig model = golden();
  const auto space = [&](int64_t exports, int64_t checkpoints, int64_t keep_latest, int64_t reference_element_bytes = 0,
                         int64_t num_there = 0) {
    return checkpoint_space(model, kCopied, exports, checkpoints, keep_latest, reference_element_bytes, num_there);
  };
  const int64_t parameters = model::trained_layout(model).num_elements();
  const int64_t one_export = space(1, 0, 2).exports, one_checkpoint = space(0, 1, 2).checkpoints;
  EXPECT_GE(one_export, parameters * model::dtype_bytes(model.dtype) + kCopied);
  EXPECT_GE(one_checkpoint, parameters * 12) << "a float32 master and two moments";
  EXPECT_EQ(space(0, 0, 2).bytes(), 0);
  EXPECT_EQ(space(7, 0, 2).exports, 7 * one_export);
  EXPECT_EQ(space(0, 3, 2).checkpoints, 3 * one_checkpoint);
  EXPECT_EQ(space(0, 9, 2).checkpoints, 3 * one_checkpoint) << "the oldest goes when the newest is there";
  const auto further = [&](int64_t checkpoints, int64_t num_there) {
    return space(0, checkpoints, 2, 0, num_there).checkpoints / one_checkpoint;
  };
  EXPECT_EQ(further(9, 1), 2) << "a run that goes on has one there";
  EXPECT_EQ(further(9, 2), 1) << "each new one takes the place of an old one";
  EXPECT_EQ(further(9, 7), 1) << "a run that kept more lets them go once a new one is written";
  EXPECT_EQ(further(0, 7), 0);
  EXPECT_EQ(space(0, 1, 2, /*reference_element_bytes=*/2).checkpoints, one_checkpoint + parameters * 2);
  EXPECT_FALSE(space(1, 2, 2).has_several_exports || space(1, 2, 2).keeps_several) << "no flag would lower anything";
  EXPECT_TRUE(space(2, 3, 2).has_several_exports && space(2, 3, 2).keeps_several);
  EXPECT_FALSE(space(2, 9, 1).keeps_several) << "it keeps one";
}

// A run that went on in place was asked for the space of what it had already.
TEST(RunSpace, WhatIsThereIsNotCountedAgain) {
  const base::TemporaryDirectory folder;
  const std::string run = folder / "run";
  for (const char* step : {"step_000002", "step_000004", "step_000006"})
    base::make_directories(run + "/checkpoints/" + step);
  config::CheckpointOptions in_place;
  in_place.load = run + "/";
  EXPECT_EQ(num_checkpoints_there(in_place, run, 6), 3);
  EXPECT_EQ(num_checkpoints_there(in_place, run, 4), 2) << "later ones are taken back";
  EXPECT_EQ(num_checkpoints_there(in_place, folder / "other", 6), 0) << "the other folder has none";
  EXPECT_EQ(num_checkpoints_there({}, run, 6), 0);
  config::OutputOptions output;
  output.save = run;
  EXPECT_EQ(num_further_bests(in_place, output), 0);
  output.save_best = "eval/x";
  EXPECT_EQ(num_further_bests(in_place, output), 2);
  base::make_directories(run + "/hf/best_000004");
  base::link_durably("best_000004", run + "/hf/best");
  EXPECT_EQ(num_further_bests(in_place, output), 1);
  EXPECT_EQ(num_further_bests({}, output), 2);
}

// Each rank asks with the configuration of its part, and all of them write the whole model.
TEST(RunSpace, IsThatOfTheWholeModel) {
  const model::ModelConfig model = golden(), part = model::shard_of(model, {.rank = 1, .size = 2});
  EXPECT_EQ(checkpoint_space(part, kCopied, 2, 2, 2, 4).bytes(), checkpoint_space(model, kCopied, 2, 2, 2, 4).bytes());
}

TEST(RunSpace, AReferenceThatIsAnAverageIsSavedInFloat32) {
  config::LossOptions loss;
  EXPECT_EQ(saved_reference_element_bytes(loss, model::Dtype::kBFloat16), 0);
  loss.ref_update_interval = 3;
  EXPECT_EQ(saved_reference_element_bytes(loss, model::Dtype::kBFloat16), 2);
  loss.ref_mixup_alpha = 0.5;
  EXPECT_EQ(saved_reference_element_bytes(loss, model::Dtype::kBFloat16), 4);
}

TEST(RunSpace, SamplesAreThoseThatAreDumped) {
  session::PromptSet prompts;
  prompts.prompts.push_back({.record = {}, .prompt = rl::make_prompt({1, 2, 3, 4}, "twelve bytes", "")});
  const auto records = [&](int64_t interval, int64_t num_rollouts) {
    config::TrainConfig config;
    config.rollout_batch_size = 4;
    config.rollout.n_samples_per_prompt = 2;
    config.rollout.max_response_len = 100;
    config.output.sample_dump_interval = interval;
    RunSpace space{.exports = 5};
    add_records(space, config, prompts, num_rollouts);
    EXPECT_EQ(space.exports, 5) << "it adds to what is there";
    return space;
  };
  EXPECT_EQ(records(0, 10).samples, 0);
  EXPECT_EQ(records(1, 0).bytes(), 5);
  EXPECT_EQ(records(1, -3).bytes(), 5) << "a run that has more rollouts behind it than it makes";
  const int64_t of_one = records(1, 1).samples;
  // 8 samples: half of the longest completion of 3 bytes a token, the prompt, and names and numbers.
  EXPECT_EQ(of_one, 8 * (150 + 12 + 400));
  EXPECT_EQ(records(1, 10).samples, 10 * of_one);
  EXPECT_EQ(records(4, 9).samples, 3 * of_one);
  EXPECT_EQ(records(1, 10).logs, 10 * records(1, 1).logs);
}

TEST(RunSpace, NamesTheFlagsThatLowerIt) {
  RunSpace space{.exports = int64_t{31} << 20,
                 .checkpoints = (int64_t{24} << 20) - 5,
                 .samples = 0,
                 .logs = 1,
                 .has_several_exports = true,
                 .keeps_several = true};
  EXPECT_EQ(space.what_for(),
            " (hf/ 31 MiB, which a longer --save-interval lowers; checkpoints/ 24: --keep-latest; logs 1)");
  space.has_several_exports = space.keeps_several = false;
  EXPECT_EQ(space.what_for(), " (hf/ 31 MiB; checkpoints/ 24; logs 1)");
  space.samples = int64_t{2} << 20;
  EXPECT_NE(space.what_for().find("samples/ 2: a longer --sample-dump-interval; "), std::string::npos);
}

}  // namespace
}  // namespace tandem::run
