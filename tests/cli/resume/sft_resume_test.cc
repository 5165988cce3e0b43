// Checks that a supervised run that was ended at any moment and resumes equals the run that was not, bit for bit.
#include <filesystem>
#include <random>

#include "base/clock.h"
#include "tests/base/soak.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

constexpr int kSteps = 6;

class SftResume : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new base::TemporaryDirectory();
    std::string lines;
    for (int i = 0; i < 5; ++i) {
      lines += R"({"messages": [{"role": "user", "content": "1 + )" + std::to_string(i) +
               R"(?"}, {"role": "assistant", "content": ")" + std::to_string(i + 1) + "\"}]}\n";
    }
    base::write_file_durably(*shared_ / "data.jsonl", lines);
    base::write_file_durably(*shared_ / "held_out.jsonl", "{\"prompt\": \"1 + 7 =\", \"response\": \" 8\"}\n");
    undisturbed_run_ = *shared_ / "undisturbed";
    const base::Clock::time_point begin = base::Clock::now();
    ASSERT_EQ(Program(arguments(undisturbed_run_)).wait(), 0);
    run_seconds_ = base::seconds_since(begin);
    undisturbed_ = everything_of(undisturbed_run_);
  }
  static void TearDownTestSuite() { delete shared_; }

  // Shuffled epochs have 5 samples in steps of 2: the cursor lies within an epoch at every checkpoint.
  static Arguments arguments(const std::string& run, const Arguments& more = {}) {
    Arguments result = {"sft",
                        "--hf-checkpoint",
                        kModel,
                        "--prompt-data",
                        *shared_ / "data.jsonl",
                        "--save",
                        run,
                        "--no-use-tensorboard",
                        "--num-rollout",
                        std::to_string(kSteps),
                        "--global-batch-size",
                        "2",
                        "--lr",
                        "1e-3",
                        "--save-interval",
                        "2",
                        "--eval-interval",
                        "2",
                        "--eval-prompt-data",
                        "sums",
                        *shared_ / "held_out.jsonl"};
    result.insert(result.end(), more.begin(), more.end());
    return result;
  }
  static Arguments go_on(const std::string& run) { return arguments(run, {"--load", run, "--allow-fresh-start"}); }
  static std::string everything_of(const std::string& run) {
    return timeless_metrics(run) + weights_of(run) +
           base::read_file(run + "/checkpoints/step_00000" + std::to_string(kSteps) + "/shard_00000.safetensors");
  }

  static inline base::TemporaryDirectory* shared_ = nullptr;
  static inline std::string undisturbed_run_, undisturbed_;
  static inline double run_seconds_ = 0.0;
  base::TemporaryDirectory folder_;
};

TEST_F(SftResume, IsBitwise) {
  const std::string run_path = folder_ / "run";
  ASSERT_EQ(run(with_flag(arguments(run_path), "--num-rollout", "4")).code, 0);
  // The run looks as if it had been killed after the checkpoint, in the middle of a line.
  base::write_file_durably(run_path + "/metrics.jsonl", base::read_file(run_path + "/metrics.jsonl") + "{\"train/st");
  const Captured result = run(go_on(run_path));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("resumes after step 4"), std::string::npos) << result.out;
  EXPECT_TRUE(everything_of(run_path) == undisturbed_);
  // An earlier checkpoint can be resumed as often as one likes.
  Arguments earlier = arguments(run_path, {"--load", run_path, "--ckpt-step", "4"});
  ASSERT_EQ(run(earlier).code, 0);
  EXPECT_TRUE(everything_of(run_path) == undisturbed_);
  EXPECT_EQ(base::list_directory(run_path + "/checkpoints").size(), 3U) << "--keep-latest 2, and the pointer";
}

TEST_F(SftResume, SurvivesKillAtRandomMoments) {
  const int64_t wanted = base::short_or_full(3, 500);
  std::mt19937_64 random(static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed()));
  int64_t kills = 0, runs = 0;
  while (kills < wanted && !HasFailure()) {
    const std::string run_path = folder_ / ("killed" + std::to_string(runs++));
    for (bool finished = false; !finished && !HasFailure();) {
      const Program program(go_on(run_path));
      const double seconds =
          kills < wanted ? std::exponential_distribution<double>(1.0 / (0.7 * run_seconds_))(random) : 1e9;
      if (!program.wait_for(seconds)) program.signal(SIGKILL);
      const int code = program.wait();
      finished = code == 0;
      kills += code == -SIGKILL ? 1 : 0;
      EXPECT_TRUE(code == 0 || code == -SIGKILL) << code << ": " << run(go_on(run_path)).err;
    }
    EXPECT_TRUE(everything_of(run_path) == undisturbed_) << run_path << " after " << kills << " kills";
    std::filesystem::remove_all(run_path);
  }
}

TEST_F(SftResume, SigtermSavesAndExitsWith0) {
  const std::string run_path = folder_ / "terminated";
  const Arguments keeping = {"--keep-latest", "100"};
  const Program program(with_flag(arguments(run_path, keeping), "--num-rollout", "60"));
  for (int i = 0; i < 3000 && !base::directory_exists(run_path + "/checkpoints/step_000002"); ++i) usleep(20'000);
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 0);
  const std::string log = base::read_file(run_path + "/log.txt"), said = "  stopped after ";
  const size_t at = log.find(said);
  ASSERT_NE(at, std::string::npos) << log;
  const int step = std::stoi(log.substr(at + said.size()));
  char name[32];
  std::snprintf(name, sizeof(name), "step_%06d\n", step);
  EXPECT_EQ(base::read_file(run_path + "/checkpoints/latest"), name);
  // The learning rate is constant, so the length of the run is no part of its numbers.
  Arguments words = arguments(run_path, keeping);
  words.insert(words.end(), {"--load", run_path, "--ckpt-step", "2"});
  ASSERT_EQ(run(words).code, 0) << log;
  EXPECT_TRUE(everything_of(run_path) == undisturbed_);
}

// A step of 60 micro-batches does not end at once. What was finished before it is saved, though no save was due.
TEST_F(SftResume, ASignalThatGivesUpAStepSavesThoseBefore) {
  const std::string run_path = folder_ / "cut", other = folder_ / "whole";
  const auto words = [&](const std::string& path, int steps) {
    Arguments result = with_flag(with_flag(arguments(path), "--num-rollout", std::to_string(steps)), "--save-interval",
                                 std::to_string(steps));
    result.insert(result.end(), {"--max-tokens-per-gpu", "40", "--stop-grace-seconds", "0"});
    return with_flag(result, "--global-batch-size", "60");
  };
  {
    const Program program(words(run_path, 50));
    wait_for_text(run_path + "/metrics.jsonl", "\"train/step\":2");
    program.signal(SIGTERM);
    EXPECT_EQ(program.wait(), 0);
  }
  int step = 0;
  for (const base::Json& record : json_lines(run_path + "/metrics.jsonl")) step += record.contains("train/step");
  EXPECT_GE(step, 3);
  char name[32];
  std::snprintf(name, sizeof(name), "step_%06d\n", step);
  EXPECT_EQ(base::read_file(run_path + "/checkpoints/latest"), name);
  Arguments rest = words(run_path, step + 1);
  rest.insert(rest.end(), {"--load", run_path});
  ASSERT_EQ(run(rest).code, 0);
  ASSERT_EQ(run(words(other, step + 1)).code, 0);
  EXPECT_TRUE(weights_of(run_path) == weights_of(other));
}

TEST_F(SftResume, MakesAnEvaluationAgainThatASignalEnded) {
  std::string lines;
  for (int i = 0; i < 3000; ++i)
    lines += R"({"prompt": "1 + 7 =", "response": " 8"})"
             "\n";
  base::write_file_durably(folder_ / "many.jsonl", lines);
  const std::string run_path = folder_ / "run";
  Arguments words = with_flag(arguments(run_path), "--num-rollout", "2");
  *(std::find(words.begin(), words.end(), "sums") + 1) = folder_ / "many.jsonl";
  words.push_back("--skip-eval-before-train");
  const Program program(words);
  const auto metrics = [&run_path] {
    const std::string path = run_path + "/metrics.jsonl";
    return base::file_exists(path) ? base::read_file(path) : "";
  };
  for (int i = 0; i < 3000 && metrics().find("{\"train/step\":1,") == std::string::npos; ++i) usleep(10'000);
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(metrics().find("eval/"), std::string::npos) << "the evaluation was faster than the signal";
  words.insert(words.end(), {"--load", run_path});
  ASSERT_EQ(run(words).code, 0);
  EXPECT_NE(metrics().find("{\"eval/step\":2,"), std::string::npos) << metrics();
}

// A stop before the first step ended with 0 and nothing saved, which a scheduler took for success.
TEST_F(SftResume, ASignalBeforeTheFirstStepIsNoSuccess) {
  std::string lines;
  for (int i = 0; i < 3000; ++i)
    lines += R"({"prompt": "1 + 7 =", "response": " 8"})"
             "\n";
  base::write_file_durably(folder_ / "many.jsonl", lines);
  const std::string run_path = folder_ / "run";
  Arguments words = arguments(run_path);
  *(std::find(words.begin(), words.end(), "sums") + 1) = folder_ / "many.jsonl";
  const Program program(words);
  for (int i = 0; i < 3000 && !base::file_exists(run_path + "/metrics.jsonl"); ++i) usleep(10'000);
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
  const std::string log = base::read_file(run_path + "/log.txt");
  EXPECT_NE(log.find("; nothing is saved yet: --overwrite, or --load " + run_path +
                     " --allow-fresh-start, begins again in " + run_path),
            std::string::npos)
      << log;
  ASSERT_EQ(run(go_on(run_path)).code, 0);
  EXPECT_TRUE(everything_of(run_path) == undisturbed_);
}

// The learning rate's decay ends with the run unless a flag says otherwise. A longer run names the step at which it
// ended.
TEST_F(SftResume, IsExtendedWithTheDecayThatItHad) {
  const std::string run_path = folder_ / "run";
  const Arguments decaying = arguments(run_path, {"--lr-decay-style", "linear", "--min-lr", "1e-4"});
  ASSERT_EQ(run(with_flag(decaying, "--num-rollout", "2")).code, 0);
  Arguments longer = with_flag(decaying, "--num-rollout", "3");
  longer.insert(longer.end(), {"--load", run_path});
  expect_one_line_failure(run(longer), 2, "optimizer steps until --min-lr was 2 and is 3");
  expect_one_line_failure(run(longer), 2, "(--lr-decay-iters 2 ends the decay where it ended), or --allow-changed");
  expect_one_line_failure(run(with_flag(longer, "--lr-decay-iters", "3")), 2, "until --min-lr was 2 and is 3");
  const Captured extended = run(with_flag(longer, "--lr-decay-iters", "2"));
  ASSERT_EQ(extended.code, 0) << extended.err;
  EXPECT_EQ(json_lines(run_path + "/metrics.jsonl").back().at("eval/step"), 3);
}

TEST_F(SftResume, WithOtherBatchesEndsAfterThePassesAskedFor) {
  const std::string run_path = folder_ / "run";
  Arguments words = arguments(run_path, {"--num-epoch", "2", "--keep-latest", "9"});
  const auto length = std::find(words.begin(), words.end(), "--num-rollout");
  words.erase(length, length + 2);
  ASSERT_EQ(run(words).code, 0);  // 5 steps of 2 samples
  words = with_flag(words, "--global-batch-size", "1");
  words.insert(words.end(), {"--load", run_path, "--ckpt-step", "2", "--allow-changed-config"});
  const Captured result = run(words);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(json_lines(run_path + "/metrics.jsonl").back().at("eval/step"), 8);  // 2 steps of 2 samples, 6 of 1
}

TEST_F(SftResume, ChangedFlagsAndInputsAreNamed) {
  const std::string run_path = folder_ / "run";
  expect_one_line_failure(run(arguments(run_path, {"--load", run_path})), 2,
                          "no such directory; name the --save directory of a run");
  EXPECT_FALSE(base::directory_exists(run_path));
  const Arguments from = {"--load", undisturbed_run_};
  expect_one_line_failure(run(with_flag(arguments(run_path, from), "--lr", "2e-3")), 2, "--lr was 0.001 and is 0.002");
  Arguments unshuffled = arguments(run_path, from);
  unshuffled.push_back("--no-rollout-shuffle");
  expect_one_line_failure(run(unshuffled), 2, "--rollout-shuffle was true and is false");
  base::write_file_durably(folder_ / "other.jsonl", "{\"prompt\": \"a\", \"response\": \"b\"}\n");
  const Arguments other = with_flag(arguments(run_path, from), "--prompt-data", folder_ / "other.jsonl");
  expect_one_line_failure(run(other), 2, "the file of --prompt-data was ");
  expect_one_line_failure(run(arguments(undisturbed_run_)), 2, "give --load");
}

}  // namespace
}  // namespace tandem::cli
