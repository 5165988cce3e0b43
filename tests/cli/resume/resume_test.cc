// Checks that a run that was ended at any moment and resumes equals the run that was not: the same weights, metrics and
// samples, bit for bit.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "base/clock.h"
#include "tests/base/soak.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

// There are six optimizer steps, and a checkpoint after each rollout of two.
constexpr int kRollouts = 3;

Arguments arguments(const std::string& run, const std::string& reward, const Arguments& more = {}) {
  Arguments result = with_custom_reward(train_arguments(run, {"--save-interval", "1", "--rollout-shuffle"}), reward);
  result = with_flag(result, "--num-rollout", std::to_string(kRollouts));
  result.insert(result.end(), more.begin(), more.end());
  return result;
}

Arguments go_on(Arguments arguments, const std::string& run) {
  arguments.insert(arguments.end(), {"--load", run, "--allow-fresh-start"});
  return arguments;
}

// Returns all that must be equal.
std::string everything_of(const std::string& run) {
  std::string text = timeless_metrics(run) + weights_of(run);
  for (const std::string& name : base::list_directory(run + "/samples"))
    text += name + base::read_file(run + "/samples/" + name);
  const std::string shard = "/checkpoints/step_00000" + std::to_string(kRollouts) + "/shard_00000.safetensors";
  return text + base::read_file(run + shard);
}

class Resume : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new base::TemporaryDirectory();
    undisturbed_run_ = *shared_ / "undisturbed";
    const base::Clock::time_point begin = base::Clock::now();
    const Program program(arguments(undisturbed_run_, write_reward(*shared_)));
    ASSERT_EQ(program.wait(), 0);
    run_seconds_ = base::seconds_since(begin);
    undisturbed_ = everything_of(undisturbed_run_);
  }
  static void TearDownTestSuite() { delete shared_; }

  void SetUp() override { reward_ = write_reward(folder_); }
  std::string run_dir(const std::string& name) const { return folder_ / name; }

  // The run that nothing happened to, and all that it left.
  static inline base::TemporaryDirectory* shared_ = nullptr;
  static inline std::string undisturbed_run_, undisturbed_;
  static inline double run_seconds_ = 0.0;

  base::TemporaryDirectory folder_;
  std::string reward_;
};

TEST_F(Resume, IsBitwise) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    const Arguments more = {"--dtype", dtype};
    const std::string whole_path = dtype == "float32" ? undisturbed_run_ : run_dir("whole"), run_path = run_dir(dtype);
    if (dtype != "float32") {
      ASSERT_EQ(run(arguments(whole_path, reward_, more)).code, 0);
    }
    const Arguments whole = arguments(run_path, reward_, more);
    ASSERT_EQ(run(with_flag(whole, "--num-rollout", "1")).code, 0);
    // The run looks as if it had been killed after the checkpoint: records and samples of the next step are there, and
    // half a line.
    base::write_file_durably(run_path + "/metrics.jsonl",
                             base::read_file(run_path + "/metrics.jsonl") + "{\"rollout/st");
    base::write_file_durably(run_path + "/samples/rollout_000001.jsonl", "{}\n");
    const Captured result = run(go_on(whole, run_path));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(everything_of(run_path) == everything_of(whole_path)) << dtype;
  }
}

TEST_F(Resume, SurvivesKillAtRandomMoments) {
  const int64_t wanted = base::short_or_full(4, 1000);
  const int seed = testing::UnitTest::GetInstance()->random_seed();  // set with --gtest_shuffle --gtest_random_seed=N
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  int64_t kills = 0, runs = 0, corrupt = 0, different = 0;
  while (kills < wanted && !HasFailure()) {
    const std::string run_path = run_dir("killed" + std::to_string(runs++));
    const Arguments words = go_on(arguments(run_path, reward_), run_path);
    for (bool finished = false; !finished;) {
      const Program program(words);
      const double seconds =
          kills < wanted ? std::exponential_distribution<double>(1.0 / (0.7 * run_seconds_))(random) : 1e9;
      if (!program.wait_for(seconds)) program.signal(SIGKILL);
      const int code = program.wait();
      finished = code == 0;
      if (code == 1 || code == 2 || code == 3) ++corrupt;
      kills += code == -SIGKILL ? 1 : 0;
      ASSERT_EQ(corrupt, 0) << "after " << kills << " kills: " << run(words).err;
    }
    if (everything_of(run_path) != undisturbed_) ++different;
    std::printf("seed %d: %ld kills in %ld runs: %ld corrupt, %ld different\n", seed, kills, runs, corrupt, different);
    EXPECT_EQ(different, 0) << run_path << " after " << kills << " kills";
    fs::remove_all(run_path);
  }
}

TEST_F(Resume, SigtermSavesAndExitsWith0) {
  const int64_t wanted = base::short_or_full(1, 200);
  std::mt19937_64 random(7);
  for (int64_t i = 0; i < wanted && !HasFailure(); ++i) {
    const std::string run_path = run_dir("terminated");
    fs::remove_all(run_path);
    const Arguments words = go_on(arguments(run_path, reward_), run_path);
    Program program(words);
    for (int k = 0; k < 600 && !base::file_exists(run_path + "/samples/rollout_000000.jsonl"); ++k) usleep(50'000);
    usleep(static_cast<useconds_t>(random() % 1'000'000));
    program.signal(SIGTERM);
    EXPECT_EQ(program.wait(), 0);
    ASSERT_EQ(run(words).code, 0);
    EXPECT_TRUE(everything_of(run_path) == undisturbed_) << "round " << i;
    if (base::soaking() && !HasFailure()) std::printf("%ld SIGTERMs: all exit 0 and go on bitwise\n", i + 1);
  }
}

TEST_F(Resume, ChangedFlagsAndInputsAreNamed) {
  const std::string run_path = run_dir("run");
  const Arguments words = arguments(run_path, reward_);
  ASSERT_EQ(run(with_flag(words, "--num-rollout", "1")).code, 0);
  Arguments load = words;
  load.insert(load.end(), {"--load", run_path});
  expect_one_line_failure(run(with_flag(load, "--lr", "2e-3")), 2, "--lr was 0.001 and is 0.002");
  // Flags that change no number may change.
  EXPECT_EQ(run(with_flag(with_flag(load, "--num-rollout", "2"), "--num-threads", "1")).code, 0);
  base::write_file_durably(folder_ / "reward.py",
                           "def reward(prompts, completions, **kwargs):\n    return [1.0] * 12\n");
  expect_one_line_failure(run(load), 2, "the file of --custom-rm-path was ");
  load.push_back("--allow-changed-config");
  const Captured allowed = run(load);
  EXPECT_EQ(allowed.code, 0) << allowed.err;
  EXPECT_NE(allowed.err.find("--custom-rm-path"), std::string::npos);
}

// config.toml repeats a run that was resumed, and does not resume, rewind or replace anything by itself.
TEST_F(Resume, TheConfigurationOfAResumedRunRepeatsIt) {
  const std::string run_path = run_dir("run"), again = run_dir("again");
  Arguments words = arguments(run_path, reward_);
  words.insert(words.end(), {"--save-interval", "1", "--keep-latest", "5"});
  ASSERT_EQ(run(with_flag(words, "--num-rollout", "2")).code, 0);
  words = with_flag(words, "--num-rollout", "3");
  words.insert(words.end(), {"--load", run_path, "--ckpt-step", "1"});
  ASSERT_EQ(run(words).code, 0);
  const Captured result = run({"train", "--config", run_path + "/config.toml", "--save", again});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(weights_of(again), weights_of(run_path));
  expect_one_line_failure(run({"train", "--config", run_path + "/config.toml"}), 2, "give --load");
}

TEST_F(Resume, WhatCannotBeResumedSaysWhatToGive) {
  const std::string run_path = run_dir("run");
  const Arguments words = arguments(run_path, reward_);
  ASSERT_EQ(run(with_flag(words, "--num-rollout", "2")).code, 0);
  const auto loading = [&](const std::string& path, const std::string& rollouts = "3") {
    Arguments load = with_flag(arguments(run_dir("other"), reward_), "--num-rollout", rollouts);
    load.insert(load.end(), {"--load", path});
    return run(load);
  };
  expect_one_line_failure(loading(run_path + "/checkpoints/step_000002"), 2,
                          "give --load " + run_path + " --ckpt-step 2");
  expect_one_line_failure(loading(run_path + "/hf/latest/"), 2, "give --load " + run_path);
  expect_one_line_failure(loading(run_path, "1"), 2, "has trained 2 already, and this run is to train 1");
  const Captured finished = loading(run_path, "2");
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.out.find("nothing is left to do: raise --num-rollout"), std::string::npos) << finished.out;
}

std::vector<base::Json> values_of(const std::string& run, const std::string& key) {
  std::vector<base::Json> values;
  for (const base::Json& record : json_lines(run + "/metrics.jsonl"))
    if (record.contains(key)) values.push_back(record.at(key));
  return values;
}

// The checkpoint counts steps and prompts; how many a rollout had before is nothing that today's flags know.
TEST_F(Resume, WithOtherBatchesGoesOnCountingStepsAndPasses) {
  const std::string run_path = run_dir("run"), slice = kPrompts + "@[0:6]";
  Arguments words = with_flag(arguments(run_path, reward_, {"--num-epoch", "2"}), "--prompt-data", slice);
  const auto length = std::find(words.begin(), words.end(), "--num-rollout");
  words.erase(length, length + 2);
  words = with_flag(words, "--keep-latest", "5");
  ASSERT_EQ(run(words).code, 0);  // 4 rollouts of 3 prompts, with 2 steps each
  EXPECT_EQ(values_of(run_path, "train/step"), (std::vector<base::Json>{0, 1, 2, 3, 4, 5, 6, 7}));
  words = with_flag(with_flag(words, "--rollout-batch-size", "2"), "--global-batch-size", "8");
  words.insert(words.end(), {"--load", run_path, "--ckpt-step", "2", "--allow-changed-config"});
  const Captured result = run(words);
  ASSERT_EQ(result.code, 0) << result.err;
  // One of the two passes was over after 2 rollouts; the other one is 3 rollouts of 2 prompts, with 1 step each.
  EXPECT_EQ(values_of(run_path, "rollout/step"), (std::vector<base::Json>{0, 1, 2, 3, 4}));
  EXPECT_EQ(values_of(run_path, "train/step"), (std::vector<base::Json>{0, 1, 2, 3, 4, 5, 6}));
  const auto state = base::parse_json(base::read_file(run_path + "/checkpoints/step_000005/state.json"), "state.json");
  EXPECT_EQ(state.at("epoch"), 2);
  EXPECT_EQ(state.at("offset"), 0);
}

// With --num-epoch, a group in flight counts as not trained on, though its prompt has been drawn already.
TEST_F(Resume, GroupsInFlightAreOfThePassesToCome) {
  const std::string run_path = run_dir("run"), slice = kPrompts + "@[0:6]";
  const Arguments in_flight = {"--num-epoch", "2", "--partial-rollout", "--over-sampling-batch-size", "5"};
  Arguments words = with_flag(arguments(run_path, reward_, in_flight), "--prompt-data", slice);
  const auto length = std::find(words.begin(), words.end(), "--num-rollout");
  words.erase(length, length + 2);
  words = with_flag(words, "--keep-latest", "5");
  ASSERT_EQ(run(words).code, 0);
  const std::vector<base::Json> rollouts = {0, 1, 2, 3};
  EXPECT_EQ(values_of(run_path, "rollout/step"), rollouts);
  words.insert(words.end(), {"--load", run_path, "--ckpt-step", "2"});
  const Captured result = run(words);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(values_of(run_path, "rollout/step"), rollouts);
}

TEST_F(Resume, ByAnotherCommandIsRefusedBeforeTheLengthIs) {
  const std::string run_path = run_dir("run");
  ASSERT_EQ(run(with_flag(arguments(run_path, reward_), "--num-rollout", "2")).code, 0);
  base::write_file_durably(folder_ / "data.jsonl", "{\"prompt\": \"1 + 1 =\", \"response\": \" 2\"}\n");
  expect_one_line_failure(
      run({"sft", "--hf-checkpoint", kModel, "--prompt-data", folder_ / "data.jsonl", "--global-batch-size", "1",
           "--num-rollout", "1", "--save", run_dir("other"), "--load", run_path}),
      2, "is of a run of `tandem train`, which `tandem sft` cannot resume");
}

// Nothing is made, and with --overwrite nothing is lost.
TEST_F(Resume, WithOtherTrainedTensorsIsRefusedBeforeAnythingIsWritten) {
  const std::string first = run_dir("first"), second = run_dir("second");
  ASSERT_EQ(run(with_flag(arguments(first, reward_), "--num-rollout", "1")).code, 0);
  Arguments words = arguments(second, reward_, {"--load", first, "--allow-changed-config", "--lora-rank", "4"});
  const std::string says = "was trained, and with these flags it is not";
  Arguments dry = words;
  dry.push_back("--dry-run");
  expect_one_line_failure(run(dry), 2, says);
  expect_one_line_failure(run(words), 2, says);
  EXPECT_FALSE(base::directory_exists(second));
  ASSERT_EQ(run(with_flag(arguments(second, reward_), "--num-rollout", "1")).code, 0);
  const std::string metrics = base::read_file(second + "/metrics.jsonl");
  words.push_back("--overwrite");
  expect_one_line_failure(run(words), 2, says);
  EXPECT_EQ(base::read_file(second + "/metrics.jsonl"), metrics) << "a refused run changes nothing";
  const std::string adapter = run_dir("adapter"), other = run_dir("other");
  const Arguments small = {"--lora-rank", "4", "--target-modules", "q_proj"};
  ASSERT_EQ(run(with_flag(arguments(adapter, reward_, small), "--num-rollout", "1")).code, 0);
  const Arguments load = {"--load", adapter, "--allow-changed-config", "--lora-rank", "4", "--target-modules",
                          "q_proj", "v_proj"};
  expect_one_line_failure(
      run(arguments(other, reward_, load)), 2,
      "has no state of tensor base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight, which these flags train");
  expect_one_line_failure(
      run(arguments(other, reward_,
                    {"--load", adapter, "--allow-changed-config", "--lora-rank", "8", "--target-modules", "q_proj"})),
      2, "has shape [4, 64] there and [8, 64] here");
  EXPECT_FALSE(base::directory_exists(other));
}

TEST_F(Resume, NeverBeginsAfreshUnasked) {
  const std::string run_path = run_dir("run");
  Arguments load = arguments(run_path, reward_);
  load.insert(load.end(), {"--load", run_path});
  expect_one_line_failure(
      run(load), 2,
      "no such directory; name the --save directory of a run, or give --allow-fresh-start to begin a new one");
  EXPECT_FALSE(base::directory_exists(run_path));
  base::make_directories(run_dir("empty"));
  load.back() = run_dir("empty");
  expect_one_line_failure(run(load), 2, "nothing is saved there yet (there is no good checkpoint in ");
  load.back() = run_path;
  ASSERT_EQ(run(with_flag(arguments(run_path, reward_), "--num-rollout", "2")).code, 0);
  expect_one_line_failure(run(arguments(run_path, reward_)), 2, "give --load");
  // The newest checkpoint is damaged: never use the older one silently, and never begin a new run.
  const std::string shard = run_path + "/checkpoints/step_000002/shard_00000.safetensors";
  std::string bytes = base::read_file(shard);
  bytes[bytes.size() / 2] ^= 1;
  base::write_file_durably(shard, bytes);
  expect_one_line_failure(run(load), 2, "give --ckpt-step 1");
  const std::string metrics = base::read_file(run_path + "/metrics.jsonl");
  load.push_back("--allow-fresh-start");
  expect_one_line_failure(run(load), 2, "give --ckpt-step 1");
  EXPECT_EQ(base::read_file(run_path + "/metrics.jsonl"), metrics) << "a refused run changes nothing";
  load.insert(load.end(), {"--ckpt-step", "1"});
  EXPECT_EQ(run(load).code, 0);
  EXPECT_TRUE(everything_of(run_path) == undisturbed_);
}

TEST_F(Resume, GoesOnInAnotherDirectoryAndLeavesTheFirst) {
  const std::string first = run_dir("first"), second = run_dir("second");
  ASSERT_EQ(run(with_flag(arguments(first, reward_), "--num-rollout", "1")).code, 0);
  const std::string before = base::read_file(first + "/metrics.jsonl");
  Arguments words = arguments(second, reward_);
  words.insert(words.end(), {"--load", first});
  ASSERT_EQ(run(words).code, 0);
  EXPECT_TRUE(weights_of(second) == weights_of(undisturbed_run_));
  EXPECT_EQ(base::read_file(first + "/metrics.jsonl"), before);
}

TEST_F(Resume, TwoRunsInOneDirectoryAreRefused) {
  const std::string run_path = run_dir("run");
  Arguments load = with_flag(arguments(run_path, reward_), "--num-rollout", "200");
  const Program program(load);
  for (int i = 0; i < 600 && !base::file_exists(run_path + "/checkpoints/latest"); ++i) usleep(100'000);
  load.insert(load.end(), {"--load", run_path});
  expect_one_line_failure(run(load), 3, "another run is writing here");
  load.emplace_back("--dry-run");
  expect_one_line_failure(run(load), 3, "another run is writing here");
  program.signal(SIGKILL);
  program.wait();
}

TEST_F(Resume, SkippedStepsEndTheRunWithABatchToReplay) {
  const std::string run_path = run_dir("run");
  const Arguments skip = {"--max-grad-norm-skip", "1e-9", "--max-skipped-steps", "3"};
  expect_one_line_failure(run(arguments(run_path, reward_, skip)), 2, "3 optimizer steps in a row were skipped");
  ASSERT_TRUE(base::file_exists(run_path + "/fault/1.jsonl"));
  EXPECT_TRUE(base::directory_exists(run_path + "/checkpoints/step_000002")) << "it is saved as it is";
  EXPECT_NE(base::read_file(run_path + "/log.txt").find("error: 3 optimizer steps in a row"), std::string::npos);
  int64_t skipped = 0;
  for (const base::Json& record : json_lines(run_path + "/metrics.jsonl"))
    skipped += record.value("fault/skipped_steps", 0.0) > 0 ? 1 : 0;
  EXPECT_EQ(skipped, 4) << "the rollout of the third is brought to its end";
  fs::copy(run_path + "/fault/1.jsonl", run_path + "/fault/0.jsonl");
  const std::string replay = run_dir("replay");
  Arguments words = with_flag(arguments(replay, reward_), "--num-rollout", "1");
  words.insert(words.end(), {"--load-debug-rollout-data", run_path + "/fault/{rollout_id}.jsonl"});
  const Captured result = run(words);
  EXPECT_EQ(result.code, 0) << result.err;
  for (const base::Json& record : json_lines(replay + "/metrics.jsonl")) {
    if (!record.contains("train/step")) continue;
    EXPECT_GT(record.at("train/grad_norm").get<double>(), 1e-9);
  }
}

TEST_F(Resume, FullDiskStopsOrGoesOnAsAsked) {
  // A file size limit stands for the disk: metrics, weights and the extents of memory fit, the optimizer does not.
  for (const std::string policy : {"stop", "continue"}) {
    const std::string run_path = run_dir(policy);
    Arguments words = arguments(run_path, reward_, {"--on-save-error", policy, "--sample-dump-interval", "0"});
    const Program program(words, /*max_file_bytes=*/2'100'000);
    EXPECT_EQ(program.wait(), 3);
    EXPECT_FALSE(base::file_exists(run_path + "/checkpoints/latest"));
    int64_t rollouts = 0;
    for (const base::Json& record : json_lines(run_path + "/metrics.jsonl"))
      rollouts += record.contains("rollout/step") ? 1 : 0;
    EXPECT_EQ(rollouts, policy == "stop" ? 1 : kRollouts);
    for (const auto& entry : fs::recursive_directory_iterator(run_path))
      EXPECT_EQ(entry.path().string().find(".tmp-"), std::string::npos) << entry.path();
  }
}

}  // namespace
}  // namespace tandem::cli
