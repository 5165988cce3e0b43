// Whole runs with --device npu on pretended devices, as a user types them: they are the runs of LibTorch's operations
// on the CPU, bit for bit, wherever things lie and however many ranks there are. As evidence about an NPU they are
// nothing.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>

#include <csignal>
#include <map>
#include <memory>

#include "device/kept_check.h"
#include "device/registry.h"
#include "tests/cli/memory/planned_memory.h"
#include "tests/cli/workers/worker_runs.h"
#include "tests/pretend_device/libtorch_on_the_cpu.h"

namespace tandem::cli {
namespace {

class NpuRun : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new base::TemporaryDirectory();
    // LeakSanitizer reads what looks like an address, and faults at one of a device (device_address.h).
    setenv("ASAN_OPTIONS", "detect_leaks=0:detect_odr_violation=0:malloc_context_size=0", /*overwrite=*/1);
    // These are the answers that `tandem device --check` would keep; npu_check_test asks for them.
    setenv("XDG_CACHE_HOME", (*folder_ / "cache").c_str(), /*overwrite=*/1);
    device::keep_check({{"LibTorch", TORCH_VERSION}, {"NPU", "a pretended device"}, {"fault", ""}},
                       {.rung = "best", .is_right = true, .is_exact = true}, nullptr);
    const pretend_device::LibTorchOnTheCpu replaced(/*bytes=*/int64_t{8} << 30);
    for (const char* dtype : {"float32", "bfloat16"}) {
      const Captured result = run(arguments(dtype, dtype));
      ASSERT_EQ(result.code, 0) << result.err;
    }
  }
  static void TearDownTestSuite() { delete folder_; }
  // Runs of a few sequences would mostly fill up the calls of an NPU, which compute 64 tiles.
  void SetUp() override { setenv("TANDEM_PRETEND_ATTENTION_TILES", "8", /*overwrite=*/1); }
  void TearDown() override { compute_as_many_tiles_as_an_npu(); }
  static void compute_as_many_tiles_as_an_npu() { unsetenv("TANDEM_PRETEND_ATTENTION_TILES"); }

  // LibTorch's autograd asks for devices once, so that runs on the device are processes of their own (run_program).
  static std::string path(const std::string& name) { return *folder_ / name; }

  // Returns arguments of two rollouts of two optimizer steps, each of several micro-batches, beside a KL reference.
  static Arguments arguments(const std::string& name, const std::string& dtype, const Arguments& more = {}) {
    Arguments result = with_custom_reward(
        train_arguments(path(name), {"--dtype", dtype, "--max-tokens-per-gpu", "64", "--save-interval", "1",
                                     "--use-kl-loss", "--kl-loss-coef", "0.1", "--kv-cache-bytes", "2000000",
                                     "--num-threads", "1", "--device", "npu", "--unchecked-ranks"}),
        write_reward(*folder_));
    for (const std::string& word : more) result.push_back(word);
    return result;
  }
  // The run on the CPU.
  static Results expected(const std::string& dtype) { return Results(path(dtype)); }

  static inline base::TemporaryDirectory* folder_ = nullptr;
};

TEST_F(NpuRun, IsThatOfLibTorchOnTheCpu) {
  compute_as_many_tiles_as_an_npu();
  for (const char* dtype : {"float32", "bfloat16"}) {
    const std::string name = fmt::format("npu_{}", dtype);
    const Captured result = run_program(arguments(name, dtype));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_NE(base::read_file(path(name) + "/log.txt").find("on npu/aten on a pretended device"), std::string::npos);
    expect_equal(Results(path(name)), expected(dtype), dtype);
    int64_t count = 0;
    for (const base::Json& record : json_lines(path(name) + "/metrics.jsonl")) {
      if (!record.contains("train/step") || record["train/step"].get<int64_t>() % 2 == 1) continue;
      EXPECT_EQ(record["train/train_rollout_logprob_abs_diff"], 0.0) << dtype;
      ++count;
    }
    EXPECT_EQ(count, 2) << "of steps whose weights sampled";
  }
}

// The second device cannot show memory at two addresses: its arena maps memory anew for each phase. Without a flag
// nothing is offloaded, as in IsThatOfLibTorchOnTheCpu.
TEST_F(NpuRun, IsTheSameWhereverThingsLie) {
  for (const char* device : {"npu:0", "npu:1"}) {
    for (const char* flag : {"--offload-train", "--debug-unmap-idle-view"}) {
      const std::string name = fmt::format("{}{}", device, flag);
      const Captured result = run_program(with_flag(arguments(name, "bfloat16", {flag}), "--device", device));
      ASSERT_EQ(result.code, 0) << result.err;
      expect_equal(Results(path(name)), expected("bfloat16"), name);
    }
  }
}

// A public report (verl #4726) has a trainer that cannot write its weights while they are offloaded. Here each part of
// a checkpoint is written from where it lies, and a run that goes on from it, elsewhere or not, is the same run.
TEST_F(NpuRun, ACheckpointIsWrittenWhileItsPartsAreOffloaded) {
  for (const bool stays_offloaded : {true, false}) {
    const std::string name = fmt::format("resumed_{}", stays_offloaded);
    const Captured begun =
        run_program(with_flag(arguments(name, "bfloat16", {"--offload-train"}), "--num-rollout", "1"));
    ASSERT_EQ(begun.code, 0) << begun.err;
    Arguments words = arguments(name, "bfloat16", {"--load", path(name)});
    if (stays_offloaded) words.emplace_back("--offload-train");
    const Captured result = run_program(words);
    ASSERT_EQ(result.code, 0) << result.err;
    expect_equal(Results(path(name)), expected("bfloat16"), name);
  }
}

TEST_F(NpuRun, IsTheSameOnTwoRanksAndWithRolloutWorkers) {
  const Captured ranks = run_program(with_ranks(arguments("ranks", "bfloat16"), 2));
  ASSERT_EQ(ranks.code, 0) << ranks.err;
  expect_equal(Results(path("ranks")), expected("bfloat16"), "two ranks");
  const Captured workers = run_program(with_workers(arguments("workers", "bfloat16"), 1, 1));
  ASSERT_EQ(workers.code, 0) << workers.err;
  expect_equal(Results(path("workers")), expected("bfloat16"), "a rollout worker");
}

// A model in two parts has other sums than a whole one, so that runs of one and of two such models are compared.
TEST_F(NpuRun, OfAModelInTwoPartsIsTheSameForAnyNumberOfReplicas) {
  for (const int ranks : {2, 4}) {
    const std::string name = fmt::format("parts_{}", ranks);
    const Captured result =
        run_program(with_ranks(arguments(name, "bfloat16", {"--tensor-model-parallel-size", "2"}), ranks));
    ASSERT_EQ(result.code, 0) << result.err;
    for (const base::Json& record : json_lines(path(name) + "/metrics.jsonl")) {
      if (!record.contains("train/step") || record["train/step"].get<int64_t>() % 2 == 1) continue;
      EXPECT_EQ(record["train/train_rollout_logprob_abs_diff"], 0.0) << ranks << " ranks";
    }
  }
  expect_equal(Results(path("parts_4")), Results(path("parts_2")), "two replicas");
}

TEST_F(NpuRun, ARankThatIsKilledEndsTheOthersAndTheRunGoesOn) {
  const Arguments words = with_ranks(going_on(arguments("killed", "bfloat16"), path("killed")), 2);
  {
    Program program(words);
    const std::map<int, pid_t> ranks = processes_of(program.pid(), 2);
    ASSERT_EQ(ranks.size(), 2U);
    wait_for_text(path("killed") + "/metrics.jsonl", "\"train/step\"");
    kill(ranks.at(1), SIGKILL);
    ASSERT_TRUE(program.wait_for(20.0));
    EXPECT_EQ(program.wait(), 3);
    for (const auto& [rank, pid] : ranks) EXPECT_FALSE(is_running(pid)) << rank;
  }
  const Captured result = run_program(words);
  ASSERT_EQ(result.code, 0) << result.err;
  expect_equal(Results(path("killed")), expected("bfloat16"), "a run that lost a rank");
}

// Memory that no tag counts is what libraries take. There are none here, so a tensor beside the plan would show.
TEST_F(NpuRun, TakesNoMoreMemoryThanItsPlan) {
  compute_as_many_tiles_as_an_npu();
  const std::vector<Arguments> cases = {
      {"--dtype", "float32"},
      {"--dtype", "bfloat16", "--recompute-granularity", "full", "--recompute-num-layers", "2"},
      {"--dtype", "bfloat16", "--use-kl-loss", "--kl-loss-coef", "0.1", "--offload-train"},
      // The 96 rows of logits of a step are fewer than those of a library call: computing them takes more than they do.
      {"--dtype", "float32", "--rollout-batch-size", "2", "--global-batch-size", "4"},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string which = fmt::format("case {}", i);
    Arguments words = with_flag(memory_arguments(*folder_, path(which), cases[i]), "--num-rollout", "1");
    words.insert(words.end(), {"--device", "npu", "--ignore-eos"});
    const Captured result = run_program(words);
    ASSERT_EQ(result.code, 0) << result.err;
    const base::Json step = last_step(path(which));
    expect_phases_as_planned(step, {"load", "rollout", "train"}, which, /*is_bound=*/false);
    for (const char* phase : {"load", "rollout", "train"})
      EXPECT_LE(bytes(step["phases"][phase], "most", "overhead"), 8 * kMiB) << which << ", " << phase;
  }
}

TEST_F(NpuRun, ADeviceThatIsNotThereIsRefused) {
  expect_one_line_failure(run_program(with_flag(arguments("none", "float32"), "--device", "npu:8")), 2,
                          "--device npu:8: this process sees 8 Ascend NPUs, numbered from 0; give a smaller number");
}

}  // namespace
}  // namespace tandem::cli
