// Checks how many processes `tandem train` or `tandem sft` needs, and what it reports when another number was started.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <sstream>
#include <string>
#include <tuple>

#include "base/clock.h"
#include "tests/cli/ranks/rank_processes.h"
#include "tests/cli/ranks/rank_runs.h"
#include "tests/cli/ranks/without_ranks.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

const LauncherVariables kFourRanks = {{"RANK", "1"},
                                      {"WORLD_SIZE", "4"},
                                      {"LOCAL_RANK", "1"},
                                      {"LOCAL_WORLD_SIZE", "4"},
                                      {"MASTER_ADDR", "127.0.0.1"},
                                      {"MASTER_PORT", "29500"}};

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
      run_without_ranks(train_arguments(folder / "run", {"--actor-num-gpus-per-node", "2"}), kFourRanks), 2,
      "--actor-num-nodes 1 x --actor-num-gpus-per-node 2: 4 processes were started, 4 of them on this machine (RANK=1 "
      "WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4); give --actor-num-nodes and --actor-num-gpus-per-node as they "
      "were started");
  expect_one_line_failure(run_without_ranks(train_arguments(folder / "run", {"--actor-num-nodes", "2"})), 2,
                          "--actor-num-nodes 2: start the processes on each machine: srun, torchrun, mpirun or tandem "
                          "launch (docs/MANY_DEVICES.md)");
  expect_one_line_failure(run_without_ranks(train_arguments(folder / "run"), {{"RANK", "0"}}), 2,
                          "RANK=0 set and WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT not");
}

TEST(Ranks, SeveralOnNpusHaveToBeAskedFor) {
  const base::TemporaryDirectory folder;
  Arguments flags = {"--device", "npu", "--actor-num-gpus-per-node", "2"};
  expect_one_line_failure(run_without_ranks(train_arguments(folder / "run", flags)), 2,
                          "--device npu with 2 processes: no run on several NPUs has been reported yet");
  flags.emplace_back("--unchecked-ranks");
  const Captured asked_for = run_program(train_arguments(folder / "run", flags));
  EXPECT_EQ(asked_for.code, 3) << asked_for.err;  // there is no module here
  EXPECT_NE(asked_for.err.find("make npu"), std::string::npos) << asked_for.err;
}

TEST(Ranks, SupervisedTrainingHasAsManyAsAreAskedFor) {
  const base::TemporaryDirectory folder;
  Arguments words = {"sft",         "--hf-checkpoint", kModel,  "--prompt-data",       kPrompts, "--num-epoch",
                     "1",           "--label-key",     "label", "--global-batch-size", "2",      "--save",
                     folder / "run"};
  expect_one_line_failure(run_without_ranks(words, kFourRanks), 2,
                          "--actor-num-nodes 1 x --actor-num-gpus-per-node 1: 4 processes were started, 4 of them on "
                          "this machine (RANK=1 ");
  words.insert(words.end(), {"--actor-num-gpus-per-node", "64", "--dry-run"});
  const Captured dry = run_without_ranks(words);
  EXPECT_EQ(dry.code, 0) << dry.err;
  words.insert(words.end(), {"--rollout-num-gpus", "1"});
  expect_one_line_failure(run_without_ranks(words), 2, "--rollout-num-gpus");
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
  const Captured one = run_without_ranks(words);
  EXPECT_EQ(one.code, 0) << one.err;
  words.back() = "2";
  expect_one_line_failure(run_without_ranks(words), 2,
                          "--tensor-model-parallel-size 2: a copy of the model lies on devices of one machine, and "
                          "--actor-num-gpus-per-node 1 is no multiple of it");
}

// Each process reports the same: the terminal shows rank 0's report, or that of the first that failed.
TEST(Ranks, TrainStartsThemItselfAndNamesTheFirstThatFails) {
  const base::TemporaryDirectory folder;
  const Captured result = run_program(
      with_flag(train_arguments(folder / "run", {"--actor-num-gpus-per-node", "3"}), "--hf-checkpoint", "no-model"));
  expect_one_line_failure(result, 2, " exited with code 2; the others were ended");
  EXPECT_TRUE(std::regex_search(result.err, std::regex("error: rank [012] of 3 \\(\\S+\\) exited"))) << result.err;
  EXPECT_NE(result.err.find("no-model"), std::string::npos) << result.err;
  const Arguments words = train_arguments(folder / "run", {"--actor-num-gpus-per-node", "3"});
  for (const auto& [flag, value, says] : {std::tuple{"--rollout-temperature", "0", "--rollout-temperature 0: "},
                                          {"--lr-decay-style", "no-such", "no-such"}}) {
    const Captured mistake = run_without_ranks(with_flag(words, flag, value));
    expect_one_line_failure(mistake, 2, says);
    EXPECT_EQ(std::count(mistake.err.begin(), mistake.err.end(), '\n'), 1) << "said once, before any is started";
    EXPECT_FALSE(base::directory_exists(folder / "run"));
  }
}

TEST(Ranks, ADryRunAndAPlanStartNone) {
  const base::TemporaryDirectory folder;
  const Captured dry =
      run_without_ranks(train_arguments(folder / "run", {"--actor-num-gpus-per-node", "64", "--dry-run"}));
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_EQ(run_without_ranks({"plan", "--hf-checkpoint", kModel, "--actor-num-gpus-per-node", "64"}).code, 0);
}

// The first machine of a job may get its name after the others have started. A scheduler that reads exit code 2 does
// not start them again.
TEST(Ranks, AFirstMachineWithoutANameIsWaitedForAndIsNotTheUsersMistake) {
  const base::TemporaryDirectory folder;
  Arguments words = train_arguments(folder / "run", {"--trust-network"});
  words = with_flag(with_flag(words, "--actor-num-nodes", "2"), "--distributed-timeout-minutes", "0.05");
  const base::Clock::time_point begin = base::Clock::now();
  const Captured result = run_without_ranks(words, {{"RANK", "1"},
                                                    {"WORLD_SIZE", "2"},
                                                    {"LOCAL_RANK", "0"},
                                                    {"LOCAL_WORLD_SIZE", "1"},
                                                    {"MASTER_ADDR", "nobody.invalid"},
                                                    {"MASTER_PORT", "29500"}});
  EXPECT_EQ(result.code, 3) << result.err;
  EXPECT_GE(base::seconds_since(begin), 3.0);
  EXPECT_NE(result.err.find("warning: host nobody.invalid: this machine does not know the name yet ("),
            std::string::npos)
      << result.err;
  EXPECT_NE(result.err.find("error: host nobody.invalid: this machine does not know the name ("), std::string::npos)
      << result.err;
}

TEST(Launch, SaysWhatItWasNotTold) {
  const base::TemporaryDirectory folder;
  const Arguments train = train_arguments(folder / "run");
  expect_one_line_failure(run_without_ranks({"launch", "--nproc-per-node", "2"}), 2,
                          "launch: what it is to start comes after its options");
  expect_one_line_failure(run_without_ranks({"launch", "--", "eval"}), 2,
                          "launch: what it is to start comes after its options");
  expect_one_line_failure(run_without_ranks(launched({"--nproc-per-node", "0"}, train)), 2, "--nproc-per-node");
  expect_one_line_failure(run_without_ranks(launched({"--node-rank", "1"}, train)), 2,
                          "--node-rank 1: with --nnodes 1");
  expect_one_line_failure(run_without_ranks(launched({"--nnodes", "2"}, train)), 2,
                          "--master-addr 127.0.0.1: other machines do not reach it");
  expect_one_line_failure(run_without_ranks(launched({"--nnodes", "2", "--master-addr", "10.0.0.1"}, train)), 2,
                          "--master-port: give a free port");
  expect_one_line_failure(
      run_without_ranks(
          launched({"--nproc-per-node", "3"}, train_arguments(folder / "run", {"--actor-num-gpus-per-node", "2"}))),
      2, "train has --actor-num-nodes 1 --actor-num-gpus-per-node 2; leave those two out");
  EXPECT_EQ(run_without_ranks({"launch", "--help"}).code, 0);
  Arguments bare = {"launch", "--nproc-per-node", "2"};
  bare.insert(bare.end(), train.begin(), train.end());
  const Captured result = run_without_ranks(bare);
  expect_one_line_failure(result, 2,
                          "launch: train and its flags come after --: tandem launch --nproc-per-node 2 -- train ...");
  EXPECT_EQ(result.err.find("unknown option"), std::string::npos) << result.err;
}

TEST(Launch, SaysWhereProcessesThatOnlySampleDoNotFit) {
  const base::TemporaryDirectory folder;
  const auto says = [&](const std::string& processes, const Arguments& more, const std::string& text) {
    Arguments train = train_arguments(folder / "run", more);
    std::erase(train, "--colocate");
    expect_one_line_failure(run_without_ranks(launched({"--nnodes", "2", "--nproc-per-node", processes, "--master-addr",
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
      run_program(launched({"--nproc-per-node", "2", "--max-restarts", "2"}, train_arguments("/proc/none/run")));
  expect_one_line_failure(result, 3, " exited with code 3; the others were ended");
  EXPECT_NE(result.err.find("restart 1 of 2"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("restart 2 of 2"), std::string::npos) << result.err;
  const Captured mistake = run_program(
      launched({"--max-restarts", "2"}, with_flag(train_arguments(folder / "run"), "--hf-checkpoint", "no-model")));
  EXPECT_EQ(mistake.code, 2);
  EXPECT_EQ(mistake.err.find("restart"), std::string::npos) << "a mistake is not mended by trying again";
}

// Starts a run, kills a rank when the log has that text, and returns what the launch said at its end.
Captured launched_and_killed_once(const Arguments& train, const std::string& save, const std::string& wait_for) {
  const base::TemporaryDirectory folder;
  const Program launcher(launched({"--nproc-per-node", "2", "--max-restarts", "1"}, train), 0, folder / "err");
  const pid_t rank = processes_of(launcher.pid(), 2).at(1);
  wait_for_text(save + "/log.txt", wait_for);
  kill(rank, SIGKILL);
  const int code = launcher.wait();
  return {code, "", base::read_file(folder / "err")};
}

Arguments saving_run(const std::string& save, int num_rollouts, const Arguments& more = {}) {
  Arguments words = train_arguments(
      save, {"--save-interval", "1", "--keep-latest", "1000", "--num-threads", "1", "--actor-num-gpus-per-node", "2"});
  words = with_flag(words, "--num-rollout", std::to_string(num_rollouts));
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// The step may be named by a flag or in a file: either way a second start would take the run back once more.
TEST(Launch, ARestartGoesOnFromTheLastCheckpointAndNotFromTheNamedStep) {
  const base::TemporaryDirectory folder;
  const std::string run_path = folder / "run";
  ASSERT_EQ(run_program(saving_run(run_path, 2)).code, 0);
  base::write_file_durably(folder / "job.toml", "ckpt-step = 1\n");
  const Captured result = launched_and_killed_once(
      saving_run(run_path, 6, {"--config", folder / "job.toml", "--load", run_path}), run_path, "rollout 4/6");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("restart 1 of 1"), std::string::npos) << result.err;
  EXPECT_EQ(count_in_file(run_path + "/log.txt", "rollout 2/6 "), 1) << base::read_file(run_path + "/log.txt");
}

// A user who stops a run does not want it back because a rank failed meanwhile.
TEST(Launch, WhatWasToldToStopIsNotStartedAgain) {
  const base::TemporaryDirectory folder;
  const std::string run_path = folder / "run";
  const Program launcher(launched({"--nproc-per-node", "2", "--max-restarts", "3"},
                                  saving_run(run_path, 20'000, {"--save-interval", "20000"})),
                         0, folder / "err");
  wait_for_text(run_path + "/log.txt", "rollout 1/");
  const pid_t rank = processes_of(launcher.pid(), 2).at(1);
  launcher.signal(SIGTERM);
  kill(rank, SIGKILL);
  EXPECT_EQ(launcher.wait(), 3);
  const std::string said = base::read_file(folder / "err");
  EXPECT_NE(said.find("was killed by signal 9"), std::string::npos) << said;
  EXPECT_EQ(said.find("restart"), std::string::npos) << said;
}

// Runs lines of a shell in which $tandem is the program.
int shell(const std::string& lines) {
  const int status = std::system(("tandem='" TANDEM_PROGRAM "'; " + lines).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string typed(const Arguments& words) {
  std::string line;
  for (const std::string& word : words) line += " '" + word + "'";
  return line;
}

// The next files that are opened would get their numbers, such as the memory that tensors lie in, and lines be written
// there.
TEST(Ranks, StandardDescriptorsThatAreClosedAreNoFilesOfOurs) {
  for (const std::string ranks : {"1", "2"}) {
    const base::TemporaryDirectory folder;
    const Arguments train =
        train_arguments(folder / "run", {"--num-rollout", "20000", "--actor-num-gpus-per-node", ranks});
    const std::string opened = folder / "opened";
    EXPECT_EQ(
        shell("(exec 0<&- 1>&- 2>&-; exec $tandem" + typed(train) + ") & run=$!; until grep -q 'rollout 1/' " +
              (folder / "run/log.txt") +
              " 2> /dev/null || ! kill -0 $run; do sleep 0.1; done; for p in $run $(cat "
              "/proc/$run/task/$run/children); do for fd in 0 1 2; do echo $(tr '\\0' ' ' < /proc/$p/cmdline | cut "
              "-d ' ' -f 1,2): $(readlink /proc/$p/fd/$fd); done; done | grep 'tandem train:' > " +
              opened + "; kill -TERM $run; wait $run"),
        0)
        << ranks;
    const std::string text = base::read_file(opened);
    EXPECT_NE(text, "");
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const std::string file = line.substr(line.find(": ") + 2);
      EXPECT_TRUE(file == "/dev/null" || file.starts_with("pipe:")) << ranks << ": " << line;
    }
  }
}

TEST(Launch, EndsWithStandardInputIfItIsAsked) {
  const base::TemporaryDirectory folder;
  const std::string errors = folder / "err";
  // More rollouts than the test has time for, and few enough that the bytes of their records fit on a small disk.
  const auto command = [&](const std::string& name) {
    return "$tandem" +
           typed(launched({"--nproc-per-node", "2", "--end-with-stdin"},
                          train_arguments(folder / name, {"--num-rollout", "20000"}))) +
           " > /dev/null 2> " + errors;
  };
  EXPECT_EQ(shell("sleep 3 | " + command("killed")), 3);
  EXPECT_NE(base::read_file(errors).find("was killed by signal 9"), std::string::npos) << base::read_file(errors);
  // Who was told to stop before may save.
  const std::string fifo = folder / "fifo", log = folder / "stopped/log.txt";
  EXPECT_EQ(shell("mkfifo " + fifo + "; " + command("stopped") + " < " + fifo + " & launcher=$!; exec 3> " + fifo +
                  "; until grep -q 'rollout 1/' " + log +
                  " 2> /dev/null || ! kill -0 $launcher; do sleep 0.1; done; kill -TERM $launcher; "
                  "exec 3>&-; wait $launcher"),
            0);
  EXPECT_NE(base::read_file(log).find("stopped after"), std::string::npos) << base::read_file(errors);
}

TEST(Launch, StartsOneEngineThatJoins) {
  const base::TemporaryDirectory folder;
  const auto joining = [&](const Arguments& options) {
    Arguments train = train_arguments(folder / "run", {"--rollout-num-gpus", "2", "--rollout-join"});
    std::erase(train, "--colocate");
    return run_without_ranks(launched(options, train));
  };
  expect_one_line_failure(joining({"--nproc-per-node", "2"}), 2, "an engine that joins a run has one process");
  expect_one_line_failure(joining({"--max-restarts", "2"}), 2, "--max-restarts: is for a run");
}

base::Json placement(const Arguments& options, const Arguments& train) {
  Arguments words = {"placement"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), train.begin(), train.end());
  const Captured result = run_without_ranks(words);
  EXPECT_EQ(result.code, 0) << result.err;
  return base::parse_json(result.out, "placement");
}

TEST(Placement, SaysWhatAClusterHasToReserve) {
  const base::TemporaryDirectory folder;
  const std::string save = folder / "run";
  const base::Json together =
      placement({}, train_arguments(save, {"--actor-num-nodes", "2", "--actor-num-gpus-per-node", "8"}));
  EXPECT_EQ(together["resource"], "CPU");
  EXPECT_EQ(together["visible_devices"], "");
  EXPECT_EQ(together["hosts"], 2);
  EXPECT_EQ(together["devices_per_host"], 8);
  EXPECT_EQ(together["engines"], 0);
  EXPECT_EQ(together["max_restarts"], 0);
  EXPECT_EQ(together["train"], together["join"]);
  const base::Json parted = placement({"--max-restarts", "3", "--"}, train_arguments(save));
  EXPECT_EQ(parted["max_restarts"], 3);
  EXPECT_EQ(parted["train"], placement({}, train_arguments(save))["train"]) << "a -- stands before the run";

  Arguments train = train_arguments(save, {"--actor-num-gpus-per-node", "4", "--rollout-num-gpus", "6",
                                           "--tensor-model-parallel-size", "2", "--device", "cuda"});
  std::erase(train, "--colocate");
  const base::Json apart = placement({"--max-restarts", "3", "--wait-minutes", "2.5"}, train);
  EXPECT_EQ(apart["resource"], "GPU");
  EXPECT_EQ(apart["visible_devices"], "CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(apart["hosts"], 1);
  EXPECT_EQ(apart["devices_per_host"], 4);
  EXPECT_EQ(apart["engines"], 3);
  EXPECT_EQ(apart["devices_per_engine"], 2);
  EXPECT_EQ(apart["max_restarts"], 3);
  EXPECT_EQ(apart["wait_minutes"], 2.5);
  Arguments words(train.begin() + 1, train.end());
  EXPECT_EQ(apart["join"], words);
  words.insert(words.end(), {"--rollout-num-gpus", "0"});
  EXPECT_EQ(apart["train"], words);
}

TEST(Placement, CountsAnNpuAsItsScheduler) {
  const base::TemporaryDirectory folder;
  const base::Json npus = placement(
      {}, train_arguments(folder / "run", {"--actor-num-gpus-per-node", "8", "--device", "npu", "--unchecked-ranks"}));
  EXPECT_EQ(npus["resource"], "NPU");
  EXPECT_EQ(npus["visible_devices"], "ASCEND_RT_VISIBLE_DEVICES");
  EXPECT_EQ(npus["devices_per_host"], 8);
}

// Preferences are trained by the same verb.
TEST(Placement, KnowsSupervisedTrainingAndPreferences) {
  const base::TemporaryDirectory folder;
  EXPECT_EQ(placement({}, train_arguments(folder / "run"))["verb"], "train");
  base::write_file_durably(folder / "pairs.jsonl", R"({"prompt": "1+1=", "chosen": "2", "rejected": "3"})");
  Arguments sft = {"sft",
                   "--hf-checkpoint",
                   kModel,
                   "--prompt-data",
                   folder / "pairs.jsonl",
                   "--global-batch-size",
                   "1",
                   "--num-rollout",
                   "1",
                   "--preference-loss",
                   "sigmoid",
                   "--device",
                   "cuda",
                   "--actor-num-nodes",
                   "2",
                   "--actor-num-gpus-per-node",
                   "8",
                   "--save",
                   folder / "run"};
  Arguments words(sft.begin() + 1, sft.end());
  const base::Json first = placement({"--max-restarts", "2"}, sft);
  EXPECT_EQ(first["verb"], "sft");
  EXPECT_EQ(first["resource"], "GPU");
  EXPECT_EQ(first["hosts"], 2);
  EXPECT_EQ(first["devices_per_host"], 8);
  EXPECT_EQ(first["engines"], 0);
  EXPECT_EQ(first["max_restarts"], 2);
  EXPECT_EQ(first["train"], words);
  std::filesystem::create_directories(folder / "run/checkpoints/step_000002");
  words.insert(words.end(), {"--load", folder / "run"});
  EXPECT_EQ(placement({"--restart"}, sft)["train"], words);
  sft.insert(sft.begin(), "placement");
  sft.insert(sft.end(), {"--rollout-num-gpus", "1"});
  expect_one_line_failure(run_without_ranks(sft), 2, "--rollout-num-gpus");
}

TEST(Placement, OfARestartGoesOnWhereTheRunWas) {
  const base::TemporaryDirectory folder;
  const Arguments train = train_arguments(folder / "run");
  Arguments words(train.begin() + 1, train.end());
  Arguments anew = words;
  anew.insert(anew.end(), {"--load", folder / "run", "--allow-fresh-start"});
  EXPECT_EQ(placement({"--restart"}, train)["train"], anew) << "there is no checkpoint yet";
  std::filesystem::create_directories(folder / "run/checkpoints/step_000002");
  words.insert(words.end(), {"--load", folder / "run"});
  EXPECT_EQ(placement({"--restart"}, train)["train"], words);
}

TEST(Placement, OfARestartGoesBackToNoNamedStep) {
  const base::TemporaryDirectory folder;
  const Arguments train = train_arguments(folder / "run", {"--load", folder / "other", "--ckpt-step", "1"});
  Arguments words(train.begin() + 1, train.end());
  Arguments anew = words;
  anew.emplace_back("--overwrite");
  std::filesystem::create_directories(folder / "run");
  EXPECT_EQ(placement({"--restart"}, train)["train"], anew) << "what is there is the beginning of this run";
  std::filesystem::create_directories(folder / "run/checkpoints/step_000002");
  words.insert(words.end(), {"--load", folder / "run", "--ckpt-step", "-1"});
  EXPECT_EQ(placement({"--restart"}, train)["train"], words);
}

// With --overwrite it would also replace what another process has saved there meanwhile.
TEST(Placement, OfARestartInPlaceReplacesNothing) {
  const base::TemporaryDirectory folder;
  const Arguments train = train_arguments(folder / "run", {"--load", folder / "run/", "--allow-fresh-start"});
  const Arguments words(train.begin() + 1, train.end());
  EXPECT_EQ(placement({"--restart"}, train)["train"], words);
  base::make_directories(folder / "run/checkpoints");
  EXPECT_EQ(placement({"--restart"}, train)["train"], words);
}

// A folder that cannot be looked at is not taken for an empty one.
TEST(Placement, OfARestartWhoseFolderCannotBeReadIsRefused) {
  const base::TemporaryDirectory folder;
  std::filesystem::create_symlink("loop", folder / "loop");
  Arguments train = train_arguments(folder / "loop/run", {"--load", folder / "other"});
  train.insert(train.begin(), {"placement", "--restart"});
  expect_one_line_failure(run_without_ranks(train), 2, "loop/run");
}

// The run that --overwrite replaces may still be there after a failure.
TEST(Placement, OfARestartDoesNotGoOnFromTheRunThatItReplaces) {
  const base::TemporaryDirectory folder;
  const Arguments train = train_arguments(folder / "run", {"--overwrite"});
  Arguments words(train.begin() + 1, train.end());
  EXPECT_EQ(placement({}, train)["saved"], "nothing");
  const std::string latest = folder / "run/checkpoints/latest";
  base::make_directories(folder / "run/checkpoints/step_000002");
  base::write_file_durably(latest, "step_000002\n");
  const std::string saved = placement({}, train)["saved"].get<std::string>();
  EXPECT_EQ(placement({"--restart", "--saved-before", saved}, train)["train"], words);
  std::filesystem::remove(latest);
  EXPECT_EQ(placement({"--restart", "--saved-before", saved}, train)["train"], words) << "it began to replace it";
  base::write_file_durably(latest, "step_000002\n");
  std::filesystem::last_write_time(latest, std::filesystem::last_write_time(latest) + std::chrono::seconds(1));
  words.insert(words.end(), {"--load", folder / "run"});
  EXPECT_EQ(placement({"--restart", "--saved-before", saved}, train)["train"], words) << "it has saved one of its own";
}

TEST(Placement, RefusesWhatTrainWould) {
  const base::TemporaryDirectory folder;
  expect_one_line_failure(run_without_ranks({"placement"}), 2, "placement: the run comes after the options");
  expect_one_line_failure(run_without_ranks({"placement", "--max-restarts", "-1", "train"}), 2, "--max-restarts");
  expect_one_line_failure(run_without_ranks({"placement", "--max-restarts", "1", "dpo"}), 2,
                          "placement: dpo: here it is sft --preference-loss sigmoid ...");
  Arguments train =
      train_arguments(folder / "run", {"--actor-num-gpus-per-node", "3", "--tensor-model-parallel-size", "2"});
  train.insert(train.begin(), "placement");
  expect_one_line_failure(run_without_ranks(train), 2,
                          "--tensor-model-parallel-size 2: a copy of the model lies on devices of one");
  train = train_arguments(folder / "run", {"--rollout-num-gpus", "1", "--rollout-join"});
  std::erase(train, "--colocate");
  train.insert(train.begin(), "placement");
  expect_one_line_failure(run_without_ranks(train), 2, "placement: --rollout-join");
}

TEST(Placement, OfARunThatAllJoinHasTrainersAndWorkersInItsPlan) {
  const Captured plan = run_without_ranks({"plan", "--hf-checkpoint", kModel, "--rollout-num-gpus", "0"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_NE(plan.out.find("a process that trains"), std::string::npos) << plan.out;
  EXPECT_NE(plan.out.find("a process that only samples"), std::string::npos) << plan.out;
}

}  // namespace
}  // namespace tandem::cli
