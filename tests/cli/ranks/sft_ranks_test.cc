// Checks supervised training and learning from preferences on several ranks: weights, masters, moments, metrics and
// held-out losses have the same bytes for any number of ranks, also if a run resumes with another number.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <string>

#include "tests/base/soak.h"
#include "tests/cli/ranks/rank_runs.h"
#include "tests/cli/ranks/started_ranks.h"
#include "tests/cli/ranks/without_ranks.h"

namespace tandem::cli {
namespace {

class SftRanks : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new base::TemporaryDirectory();
    std::string lines, pairs, labelled;
    for (int i = 0; i < 20; ++i) {
      const std::string prompt = fmt::format("\"prompt\": \"{} + {} =\"", 3 * i, 40 - i),
                        sum = std::to_string(40 + 2 * i);
      const std::string longer = i % 3 == 0 ? ", that is the sum of both" : "";
      lines += fmt::format("{{{}, \"response\": \" {}{}\"}}\n", prompt, sum, longer);
      pairs += fmt::format("{{{}, \"chosen\": \" {}{}\", \"rejected\": \" {}\"}}\n", prompt, sum, longer, i);
      labelled += fmt::format("{{{}, \"completion\": \" {}{}\", \"label\": {}}}\n", prompt, sum, longer, i % 3 == 0);
    }
    base::write_file_durably(*folder_ / "answers.jsonl", lines);
    base::write_file_durably(*folder_ / "pairs.jsonl", pairs);
    base::write_file_durably(*folder_ / "labelled.jsonl", labelled);
    const Captured alone = run(arguments("alone"));
    ASSERT_EQ(alone.code, 0) << alone.err;
    alone_ = new Results(*folder_ / "alone");
  }
  static void TearDownTestSuite() {
    delete alone_;
    delete folder_;
  }

  // Returns the arguments of four steps, each of several micro-batches, with held-out losses between them.
  static Arguments arguments(const std::string& name, const std::string& data = "answers") {
    return {"sft",
            "--hf-checkpoint",
            kModel,
            "--prompt-data",
            *folder_ / (data + ".jsonl"),
            "--global-batch-size",
            "7",
            "--max-tokens-per-gpu",
            "32",
            "--num-rollout",
            "4",
            "--lr",
            "1e-3",
            "--eval-prompt-data",
            "same",
            *folder_ / (data + ".jsonl"),
            "--eval-interval",
            "2",
            "--num-threads",
            "1",
            "--no-use-tensorboard",
            "--save",
            *folder_ / name};
  }
  static Arguments preferring(const std::string& name, const std::string& loss) {
    Arguments words = arguments(name, loss == "kto" ? "labelled" : "pairs");
    words.insert(words.end(), {"--preference-loss", loss, "--preference-beta", "0.3"});
    return words;
  }
  static Results results(const std::string& name) { return Results(*folder_ / name); }

  // Runs these arguments on so many ranks, and compares what is left with `want`.
  static void expect_same(const Arguments& words, int ranks, const Results& want) {
    const Captured result = run_program(with_ranks(words, ranks));
    ASSERT_EQ(result.code, 0) << ranks << " ranks: " << result.err;
    const std::string run = *(std::find(words.begin(), words.end(), "--save") + 1);
    expect_equal(Results(run), want, fmt::format("{}, {} ranks", run, ranks));
  }

  static inline base::TemporaryDirectory* folder_ = nullptr;
  static inline Results* alone_ = nullptr;  // results of one process
};

TEST_F(SftRanks, AnyNumberGivesTheSameRun) {
  EXPECT_NE(alone_->metrics.find("eval/same/loss"), std::string::npos);
  for (const int ranks : {2, 3, 4, 8}) {
    if (!base::soaking() && ranks > 3) continue;
    const std::string name = fmt::format("run_{}", ranks);
    expect_same(arguments(name), ranks, *alone_);
    const std::string shard = fmt::format("checkpoints/step_000004/shard_{:05}.safetensors", ranks - 1);
    EXPECT_TRUE(base::file_exists(*folder_ / name + "/" + shard)) << "each rank writes its own part";
    const base::Json last = json_lines(*folder_ / name + "/metrics.jsonl").at(2);
    EXPECT_GT(last.at("perf/train_comm_gib").get<double>(), 0.0) << last;
  }
}

// The KL term of KTO, the means of preference/* and those of held-out pairs are of all answers, whoever scored them.
TEST_F(SftRanks, PreferencesAreLearntAlike) {
  ASSERT_EQ(run(with_flag(arguments("reference"), "--num-rollout", "1")).code, 0);
  for (const std::string loss : {"sigmoid", "kto"}) {
    const auto words = [&](const std::string& name) {
      Arguments result = preferring(loss + name, loss);
      if (loss == "sigmoid") result.insert(result.end(), {"--ref-load", *folder_ / "reference/hf/latest"});
      return result;
    };
    const Captured alone = run(words("_alone"));
    ASSERT_EQ(alone.code, 0) << alone.err;
    const Results want = results(loss + "_alone");
    if (loss == "kto") {
      double kl = 0.0;
      for (const base::Json& record : json_lines(*folder_ / "kto_alone/metrics.jsonl"))
        kl = std::max(kl, record.value("preference/kl", 0.0));
      EXPECT_GT(kl, 0.0) << "nothing was tested";
    }
    expect_same(words("_2"), 2, want);
    expect_same(words("_3"), 3, want);
  }
}

TEST_F(SftRanks, AnAdapterIsLearntAlike) {
  const auto words = [](const std::string& name) {
    Arguments result = arguments(name);
    result.insert(result.end(), {"--lora-rank", "4", "--dtype", "bfloat16"});
    return result;
  };
  const Captured alone = run(words("adapter_alone"));
  ASSERT_EQ(alone.code, 0) << alone.err;
  const auto adapter = [](const std::string& name) {
    return base::read_file(*folder_ / name + "/hf/latest/adapter_model.safetensors");
  };
  const Captured two = run_program(with_ranks(words("adapter_2"), 2));
  ASSERT_EQ(two.code, 0) << two.err;
  EXPECT_TRUE(adapter("adapter_2") == adapter("adapter_alone"));
  EXPECT_EQ(metrics_of(*folder_ / "adapter_2"), metrics_of(*folder_ / "adapter_alone"));
  EXPECT_TRUE(optimizer_state(*folder_ / "adapter_2") == optimizer_state(*folder_ / "adapter_alone"));
}

TEST_F(SftRanks, ARunGoesOnWithAnotherNumber) {
  int steps = 1;
  for (const int ranks : {3, 1, 2}) {
    Arguments words = with_flag(arguments("changing"), "--num-rollout", std::to_string(++steps));
    words.insert(words.end(), {"--load", *folder_ / "changing", "--allow-fresh-start"});
    const Captured result = run_program(with_ranks(words, ranks));
    ASSERT_EQ(result.code, 0) << ranks << " ranks: " << result.err;
  }
  // Metrics are not compared: this run was evaluated once more, where its second part ended.
  EXPECT_TRUE(results("changing").weights == alone_->weights);
  EXPECT_TRUE(results("changing").optimizer == alone_->optimizer);
}

// The signal reaches the ranks at different moments: in a step, or in the evaluation, which all of them leave together.
TEST_F(SftRanks, ASignalSavesWhatIsFinishedOnAllOfThem) {
  Arguments words = with_ranks(arguments("stopped"), 2);
  words.insert(words.end(), {"--load", *folder_ / "stopped", "--allow-fresh-start"});
  const Program program(words);
  const std::string metrics = *folder_ / "stopped/metrics.jsonl";
  for (int i = 0; i < 3000 && !base::file_exists(metrics); ++i) usleep(10'000);
  program.signal(SIGINT);
  EXPECT_TRUE(program.wait_for(60.0));
  const int code = program.wait();
  EXPECT_TRUE(code == 130 || code == 0) << code;
  const Captured rest = run_program(words);
  ASSERT_EQ(rest.code, 0) << rest.err;
  expect_equal(results("stopped"), *alone_, "a run that was stopped");
}

// A scheduler that takes one machine back tells that machine's rank alone. The run stops on all, and was once called
// finished by rank 0, whose exit code job scripts look at.
TEST_F(SftRanks, AStopThatOneRankIsToldIsAStopForAll) {
  const Arguments words = with_flag(with_ranks(arguments("told"), 2), "--num-rollout", "4000");
  const StartedRanks ranks({words, words});
  const std::string metrics = *folder_ / "told/metrics.jsonl";
  for (int i = 0; i < 3000 && !base::file_exists(metrics); ++i) usleep(10'000);
  ranks[1].signal(SIGINT);
  for (const size_t rank : {size_t{0}, size_t{1}}) {
    EXPECT_TRUE(ranks[rank].wait_for(60.0));
    EXPECT_EQ(ranks[rank].wait(), 130) << ranks.said(rank);
  }
  const std::string log = base::read_file(*folder_ / "told/log.txt");
  EXPECT_NE(log.find("stopped after "), std::string::npos) << log;
  EXPECT_EQ(log.find("done after "), std::string::npos) << log;
}

TEST_F(SftRanks, ALauncherMayStartThem) {
  Arguments words = {"launch", "--nproc-per-node", "2", "--"};
  const Arguments own = arguments("launched");
  words.insert(words.end(), own.begin(), own.end());
  const Captured result = run_program(words);
  ASSERT_EQ(result.code, 0) << result.err;
  expect_equal(results("launched"), *alone_, "tandem launch");
}

// Each rank opens its files by itself: with a stale one on a host, the ranks trained a mixture and said nothing.
TEST_F(SftRanks, FilesThatDifferBetweenRanksAreRefused) {
  const auto flip_last_byte = [](const std::string& path) {
    std::string bytes = base::read_file(path);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    base::write_file_durably(path, bytes);
  };
  const std::string model = *folder_ / "other_model", data = *folder_ / "other.jsonl";
  std::filesystem::copy(kModel, model);
  flip_last_byte(model + "/model.safetensors");
  std::string lines = base::read_file(*folder_ / "answers.jsonl");
  base::write_file_durably(data, lines.insert(lines.size() - 1, " "));
  const std::string older = *folder_ / "older";
  ASSERT_EQ(run(with_flag(arguments("older"), "--num-rollout", "3")).code, 0);
  const auto expect_refused = [&](const Arguments& words, const Arguments& of_rank_1, const std::string& what) {
    const StartedRanks ranks({with_ranks(words, 2), with_ranks(of_rank_1, 2)});
    for (const size_t rank : {size_t{0}, size_t{1}}) {
      EXPECT_EQ(ranks[rank].wait(), 3) << rank;
      const std::string said = ranks.said(rank);
      EXPECT_NE(said.find(what + ": differs between rank 1 ("), std::string::npos) << said;
      EXPECT_NE(said.find("; give all hosts the same files"), std::string::npos) << said;
    }
    EXPECT_FALSE(base::directory_exists(*folder_ / "mixture")) << "nothing is written before";
  };
  expect_refused(arguments("mixture"), with_flag(arguments("mixture"), "--hf-checkpoint", model),
                 "the weight files of --hf-checkpoint");
  expect_refused(arguments("mixture"), with_flag(arguments("mixture"), "--prompt-data", data),
                 "the file of --prompt-data");
  Arguments held_out = arguments("mixture");
  *(std::ranges::find(held_out, "--eval-prompt-data") + 2) = data;
  expect_refused(arguments("mixture"), held_out, "the file of data set same of the evaluation");
  Arguments on = with_flag(arguments("mixture"), "--num-rollout", "6");
  on.insert(on.end(), {"--load", *folder_ / "alone"});
  expect_refused(on, with_flag(on, "--load", older), "the checkpoint of --load");
}

// A model that is spread over devices adds up their parts, so the number of devices in a replica changes the last bits;
// the number of replicas changes none. It is so in `tandem train` too.
TEST_F(SftRanks, AModelThatIsSpreadIsTrainedToo) {
  for (const std::string loss : {"none", "sigmoid"}) {
    const auto words = [&](const std::string& name) {
      Arguments result = loss == "none" ? arguments(loss + name) : preferring(loss + name, loss);
      result.insert(result.end(), {"--tensor-model-parallel-size", "2", "--sequence-parallel"});
      return result;
    };
    const Captured one = run_program(with_ranks(words("_spread"), 2));
    ASSERT_EQ(one.code, 0) << one.err;
    expect_same(words("_spread_4"), 4, results(loss + "_spread"));
  }
  const auto loss_of = [](const std::string& name) {
    return json_lines(*folder_ / name + "/metrics.jsonl").at(0).at("eval/same/loss").get<double>();
  };
  EXPECT_NEAR(loss_of("none_spread"), loss_of("alone"), 1e-2);
}

TEST_F(SftRanks, AMistakeIsSaidOnce) {
  const auto refuses = [](const Captured& result, const std::string& text) {
    expect_one_line_failure(result, 2, text);
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_FALSE(base::directory_exists(*folder_ / "refused"));
  };
  const Arguments words = with_ranks(arguments("refused"), 3);
  refuses(run_program(with_flag(words, "--preference-beta", "0.3")), "--preference-beta: needs --preference-loss");
  refuses(run_without_ranks(with_flag(words, "--tensor-model-parallel-size", "2")),
          "--actor-num-gpus-per-node 3 is no multiple of it");
  refuses(run_without_ranks(with_flag(words, "--actor-num-nodes", "2")),
          "--actor-num-nodes 2: start the processes on each machine");
  Arguments dry = words;
  dry.push_back("--dry-run");
  EXPECT_EQ(run_without_ranks(dry).code, 0);
  dry.insert(dry.end(), {"--lora-rank", "4", "--actor-num-gpus-per-node", "2", "--tensor-model-parallel-size", "2"});
  refuses(run_without_ranks(dry), "with an adapter: adapters are not spread over devices");
}

}  // namespace
}  // namespace tandem::cli
