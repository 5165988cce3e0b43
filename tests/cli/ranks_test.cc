// Checks how many processes `tandem train` needs, and what it reports when another number was started.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <regex>

#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

using Variables = std::map<std::string, std::string>;

const Variables kFourRanks = {{"RANK", "1"},
                              {"WORLD_SIZE", "4"},
                              {"LOCAL_RANK", "1"},
                              {"LOCAL_WORLD_SIZE", "4"},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", "29500"}};

// Runs the program itself, because it forks.
Captured program(const Arguments& arguments, const Variables& variables = {}) {
  const base::TemporaryDirectory folder;
  std::string command = "unset RANK WORLD_SIZE; ";
  for (const auto& [name, value] : variables) command += "export " + name + "='" + value + "'; ";
  command += std::string("exec '") + TANDEM_PROGRAM + "'";
  for (const std::string& word : arguments) command += " '" + word + "'";
  const int status = std::system((command + " > " + (folder / "out") + " 2> " + (folder / "err")).c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, base::read_file(folder / "out"),
          base::read_file(folder / "err")};
}

Arguments launched(const Arguments& options, const Arguments& train) {
  Arguments words = {"launch"};
  words.insert(words.end(), options.begin(), options.end());
  words.emplace_back("--");
  words.insert(words.end(), train.begin(), train.end());
  return words;
}

TEST(Ranks, AsManyAsAreAskedForHaveToBeStarted) {
  const base::TemporaryDirectory folder;
  expect_one_line_failure(
      program(train_arguments(folder / "run", {"--actor-num-gpus-per-node", "2"}), kFourRanks), 2,
      "--actor-num-nodes 1 x --actor-num-gpus-per-node 2: 4 processes were started, 4 of them on this machine (RANK=1 "
      "WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4); give --actor-num-nodes and --actor-num-gpus-per-node as they "
      "were started");
  expect_one_line_failure(program(train_arguments(folder / "run", {"--actor-num-nodes", "2"})), 2,
                          "--actor-num-nodes 2: start the processes on each machine: srun, torchrun, mpirun or tandem "
                          "launch (docs/MANY_DEVICES.md)");
  expect_one_line_failure(program(train_arguments(folder / "run"), {{"RANK", "0"}}), 2,
                          "RANK=0 set and WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT not");
}

TEST(Ranks, SupervisedTrainingIsOneProcess) {
  const base::TemporaryDirectory folder;
  expect_one_line_failure(program({"sft", "--hf-checkpoint", kModel, "--prompt-data", kPrompts, "--num-epoch", "1",
                                   "--global-batch-size", "2", "--save", folder / "run"},
                                  kFourRanks),
                          2, "tandem sft is one process, and a launcher has started 4 (RANK=1 ");
}

TEST(Ranks, AnEngineOfOtherSizeThanTheTrainersPartsIsRefused) {
  const base::TemporaryDirectory folder;
  const Captured spread = program(train_arguments(folder / "run", {"--rollout-num-gpus-per-engine", "2"}));
  expect_one_line_failure(
      spread, 2,
      "--rollout-num-gpus-per-engine 2 and --tensor-model-parallel-size 1: trainer and engine share "
      "their parts of the model; give both the same, or leave the first one out");
  const Arguments same = {"--rollout-num-gpus-per-engine", "1", "--update-weights-interval", "1", "--dry-run"};
  const Captured one = program(train_arguments(folder / "run", same));
  EXPECT_EQ(one.code, 0) << one.err;
}

TEST(Ranks, SupervisedTrainingMayBeToldThatItIsOfOneDevice) {
  const base::TemporaryDirectory folder;
  Arguments words = {"sft",
                     "--hf-checkpoint",
                     kModel,
                     "--prompt-data",
                     kPrompts,
                     "--label-key",
                     "label",
                     "--num-rollout",
                     "1",
                     "--global-batch-size",
                     "2",
                     "--save",
                     folder / "run",
                     "--dry-run",
                     "--actor-num-gpus-per-node=1",
                     "--tensor-model-parallel-size",
                     "1"};
  const Captured one = program(words);
  EXPECT_EQ(one.code, 0) << one.err;
  words.back() = "2";
  expect_one_line_failure(
      program(words), 2,
      "--tensor-model-parallel-size: not supported: tandem sft is one process on one device in this version");
}

// Each process reports the same: the terminal shows rank 0's report, or that of the first that failed.
TEST(Ranks, TrainStartsThemItselfAndNamesTheFirstThatFails) {
  const base::TemporaryDirectory folder;
  const Captured result = program(
      with_flag(train_arguments(folder / "run", {"--actor-num-gpus-per-node", "3"}), "--hf-checkpoint", "no-model"));
  expect_one_line_failure(result, 2, " exited with code 2; the others were ended");
  EXPECT_TRUE(std::regex_search(result.err, std::regex("error: rank [012] of 3 \\(\\S+\\) exited"))) << result.err;
  EXPECT_NE(result.err.find("no-model"), std::string::npos) << result.err;
  const Captured mistake = program(
      with_flag(train_arguments(folder / "run", {"--actor-num-gpus-per-node", "3"}), "--rollout-temperature", "0"));
  expect_one_line_failure(mistake, 2, "--rollout-temperature 0: ");
  EXPECT_EQ(std::count(mistake.err.begin(), mistake.err.end(), '\n'), 1) << "said once, before any is started";
}

TEST(Ranks, ADryRunAndAPlanStartNone) {
  const base::TemporaryDirectory folder;
  const Captured dry = program(train_arguments(folder / "run", {"--actor-num-gpus-per-node", "64", "--dry-run"}));
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_EQ(program({"plan", "--hf-checkpoint", kModel, "--actor-num-gpus-per-node", "64"}).code, 0);
}

TEST(Launch, SaysWhatItWasNotTold) {
  const base::TemporaryDirectory folder;
  const Arguments train = train_arguments(folder / "run");
  expect_one_line_failure(program({"launch", "--nproc-per-node", "2"}), 2,
                          "launch: what it is to start stands behind its options");
  expect_one_line_failure(program({"launch", "--", "eval"}), 2,
                          "launch: what it is to start stands behind its options");
  expect_one_line_failure(program(launched({"--nproc-per-node", "0"}, train)), 2, "--nproc-per-node");
  expect_one_line_failure(program(launched({"--node-rank", "1"}, train)), 2, "--node-rank 1: with --nnodes 1");
  expect_one_line_failure(program(launched({"--nnodes", "2"}, train)), 2,
                          "--master-addr 127.0.0.1: other machines do not reach it");
  expect_one_line_failure(program(launched({"--nnodes", "2", "--master-addr", "10.0.0.1"}, train)), 2,
                          "--master-port: give a free port");
  expect_one_line_failure(
      program(launched({"--nproc-per-node", "3"}, train_arguments(folder / "run", {"--actor-num-gpus-per-node", "2"}))),
      2, "train has --actor-num-nodes 1 --actor-num-gpus-per-node 2; leave those two out");
  EXPECT_EQ(program({"launch", "--help"}).code, 0);
}

TEST(Launch, SaysWhereProcessesThatOnlySampleDoNotFit) {
  const base::TemporaryDirectory folder;
  const auto says = [&](const std::string& processes, const Arguments& more, const std::string& text) {
    Arguments train = train_arguments(folder / "run", more);
    std::erase(train, "--colocate");
    expect_one_line_failure(program(launched({"--nnodes", "2", "--nproc-per-node", processes, "--master-addr",
                                              "10.0.0.1", "--master-port", "29500"},
                                             train)),
                            2, text);
  };
  says(
      "2", {"--rollout-num-gpus", "4"},
      "--nnodes 2 --nproc-per-node 2: are 4 processes, and train has --actor-num-nodes 1 x --actor-num-gpus-per-node 1 "
      "+ --rollout-num-gpus 4; start as many");
  says("4", {"--rollout-num-gpus", "4", "--actor-num-nodes", "2", "--actor-num-gpus-per-node", "2"},
       "--actor-num-nodes 2 x --actor-num-gpus-per-node 2: the first 4 processes train, and on one machine 4 of its 4 "
       "do "
       "(--nnodes 2 --nproc-per-node 4)");
}

TEST(Launch, StartsAgainAsOftenAsItMay) {
  const base::TemporaryDirectory folder;
  const Captured result =
      program(launched({"--nproc-per-node", "2", "--max-restarts", "2"}, train_arguments("/proc/none/run")));
  expect_one_line_failure(result, 3, " exited with code 3; the others were ended");
  EXPECT_NE(result.err.find("restart 1 of 2"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("restart 2 of 2"), std::string::npos) << result.err;
  const Captured mistake = program(launched({"--nproc-per-node", "2", "--max-restarts", "2"},
                                            with_flag(train_arguments(folder / "run"), "--hf-checkpoint", "no-model")));
  EXPECT_EQ(mistake.code, 2);
  EXPECT_EQ(mistake.err.find("restart"), std::string::npos) << "a mistake is not mended by trying again";
}

}  // namespace
}  // namespace tandem::cli
