// Checks a run's memory: the plan against what was taken, what a stray or failing call does, and what is reported.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <map>
#include <random>

#include "device/cpu/cpu_allocator_hook.h"
#include "device/cpu/cpu_host_memory.h"
#include "device/cpu/cpu_vmm.h"
#include "device/ops_aten.h"
#include "device/registry.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/memory/planned_memory.h"
#include "tests/cli/tiny_run.h"
#include "tests/device/memory/failing_vmm.h"
#include "tests/model/families.h"

namespace tandem::cli {
namespace {

// Passes calls on to a Vmm that the test keeps.
class BorrowedVmm final : public device::ForwardingVmm {
 public:
  using ForwardingVmm::ForwardingVmm;

 protected:
  device::Outcome before(const std::string&) override { return device::Outcome::kPass; }
};

device::MemoryDriver driver_over(device::Vmm& vmm) {
  device::MemoryDriver driver;
  driver.vmm = std::make_unique<BorrowedVmm>(vmm);
  driver.make_host = [] { return std::make_unique<device::CpuHostMemory>(); };
  driver.set_tensor_source = device::set_cpu_tensor_source;
  driver.used_bytes = [](int64_t vmm_bytes) { return vmm_bytes; };
  driver.synchronize = [] {};
  return driver;
}

// Expects that every phase of the run's last step is as planned.
void expect_as_planned(const std::string& run_path, const std::string& which, bool is_bound, int64_t last = 1) {
  const base::Json step = last_step(run_path);
  ASSERT_EQ(step["step"], last);
  expect_phases_as_planned(step, {"load", "rollout", "train"}, which, is_bound);
}

// Nobody has to give the tokens of a forward, and who does is heard.
TEST(Plan, AForwardHasTheTokensThatSuitTheDevice) {
  const auto plan = [](const std::string& device, const Arguments& more) {
    Arguments words = {"plan", "--hf-checkpoint", kModel, "--device", device, "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Captured result = run(words);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  for (const auto& [device, tokens, others] : {std::array{"cpu", "2048", "8192"}, std::array{"cuda", "8192", "2048"}}) {
    const std::string unset = plan(device, {});
    EXPECT_EQ(unset, plan(device, {"--rollout-max-batch-tokens", tokens})) << device;
    EXPECT_NE(unset, plan(device, {"--rollout-max-batch-tokens", others})) << device;
  }
}

TEST(Plan, OfDevicesThatNoRunCanHaveIsRefused) {
  expect_one_line_failure(
      run({"plan", "--hf-checkpoint", kModel, "--actor-num-gpus-per-node", "3", "--tensor-model-parallel-size", "2"}),
      2, "--actor-num-gpus-per-node 3 is no multiple of it");
}

// With --fit a run that would be refused starts with the change that the refusal names first, and its config.toml has
// it.
TEST(Fit, TakesTheCheapestChangeAndKeepsIt) {
  const base::TemporaryDirectory folder;
  const std::string reward = write_reward(folder);
  const auto with_bytes = [&](const std::string& save, int64_t bytes, const Arguments& more) {
    Arguments words = with_custom_reward(train_arguments(folder / save, more), reward);
    words.insert(words.end(), {"--kv-cache-bytes", "400000000", "--device-memory-bytes", std::to_string(bytes)});
    return words;
  };
  constexpr int64_t bytes = 300'000'000;
  const std::string refusal = run(with_bytes("none", bytes, {"--dry-run"})).err;
  ASSERT_NE(refusal.find("this run needs "), std::string::npos) << refusal;
  ASSERT_NE(refusal.find(": give --"), std::string::npos) << refusal;
  const size_t begin = refusal.find(": give ") + 7;
  const std::string change =
      refusal.substr(begin, refusal.find(')', begin) + 1 - begin);  // text like "--flag 3 (0.01 GiB, ...)"
  const Captured fitted = run(with_bytes("fitted", bytes, {"--fit"}));
  ASSERT_EQ(fitted.code, 0) << fitted.err;
  EXPECT_NE(fitted.err.find("--fit: this run needs "), std::string::npos) << fitted.err;
  EXPECT_NE(fitted.err.find("; it runs with " + change), std::string::npos) << fitted.err << "\nwanted " << change;
  const std::string config = base::read_file(folder / "fitted/config.toml");
  const std::string flag = change.substr(2, change.find(' ') - 2);
  EXPECT_NE(config.find("\n" + flag + " = "), std::string::npos) << flag << "\n" << config;
  EXPECT_NE(config.find("\nfit = false"), std::string::npos) << config;
  // The file repeats the run: it fits without changes.
  const Captured again = run({"train", "--config", folder / "fitted/config.toml", "--save", folder / "again"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(again.err.find("--fit"), std::string::npos) << again.err;
  EXPECT_EQ(weights_of(folder / "again"), weights_of(folder / "fitted"));
}

TEST(Fit, ARunThatFitsIsNotChangedAndOneThatNothingHelpsIsRefused) {
  const base::TemporaryDirectory folder;
  const std::string reward = write_reward(folder);
  const Captured fits = run(with_custom_reward(train_arguments(folder / "run", {"--fit", "--dry-run"}), reward));
  EXPECT_EQ(fits.code, 0) << fits.err;
  EXPECT_EQ(fits.err.find("it runs with"), std::string::npos) << fits.err;
  expect_one_line_failure(
      run(with_custom_reward(train_arguments(folder / "run", {"--fit", "--device-memory-bytes", "1000"}), reward)), 2,
      "makes it fit: take a smaller model or a larger device");
}

// Runs one rollout, which enters every phase. That the next one finds each as the first did is asked of the golden
// model's family (NoTagInNoPhaseIsAboveThePlanAndThePlanIsNear), since it is the same for all.
void expect_a_rollout_as_planned(const std::string& run_path, const Arguments& words, const std::string& which,
                                 bool is_bound = false) {
  const Captured result = run(with_flag(words, "--num-rollout", "1"));
  ASSERT_EQ(result.code, 0) << result.err;
  expect_as_planned(run_path, which, is_bound, /*last=*/0);
}

TEST(RunMemory, NoTagInNoPhaseIsAboveThePlanAndThePlanIsNear) {
  const base::TemporaryDirectory folder;
  // In the last case the plan has a bound and no number, because of what the token budget makes of micro-batches.
  const std::vector<Arguments> cases = {
      {"--dtype", "float32"},
      {"--dtype", "bfloat16"},
      {"--dtype", "bfloat16", "--recompute-granularity", "full", "--recompute-num-layers", "2"},
      {"--dtype", "float32", "--recompute-granularity", "full", "--recompute-num-layers", "4", "--entropy-coef",
       "0.01"},
      {"--dtype", "bfloat16", "--use-kl-loss", "--kl-loss-coef", "0.1", "--offload-train"},
      {"--dtype", "bfloat16", "--max-tokens-per-gpu", "100", "--logprob-chunk-rows", "40", "--use-kl-loss",
       "--kl-loss-coef", "0.1"},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string run_path = folder / std::to_string(i);
    const Captured result = run(memory_arguments(folder, run_path, cases[i]));
    ASSERT_EQ(result.code, 0) << result.err;
    expect_as_planned(run_path, "case " + std::to_string(i), i + 1 == cases.size());
  }
}

// A response behind a short prompt is longer than the longest prompt leaves room for.
TEST(RunMemory, NoTagIsAboveThePlanWhereTheContextCutsResponses) {
  const base::TemporaryDirectory folder;
  std::string text;
  for (const size_t length : {2U, 40U, 4U, 3U}) {
    std::string prompt;
    for (size_t i = 0; i < length; ++i) prompt += " a";
    const base::Json message = {{"role", "user"}, {"content", prompt}};
    text += base::Json{{"prompt", base::Json::array({message})}, {"label", "8"}}.dump() + "\n";
  }
  base::write_file_durably(folder / "lengths.jsonl", text);
  Arguments words = memory_arguments(folder, folder / "run", {"--dtype", "float32", "--ignore-eos"});
  words = with_flag(with_flag(words, "--prompt-data", folder / "lengths.jsonl"), "--rollout-max-response-len", "70");
  words.insert(words.end(), {"--rollout-max-context-len", "80"});
  expect_a_rollout_as_planned(folder / "run", words, "cut responses", /*is_bound=*/true);
}

// The teacher is the golden model, resident and offloaded, which scores, and whose distribution is compared with.
TEST(RunMemory, NoTagIsAboveThePlanWithATeacher) {
  const base::TemporaryDirectory folder;
  const std::vector<Arguments> cases = {
      {"--dtype", "bfloat16"},
      {"--dtype", "bfloat16", "--opd-loss-coef", "0.1", "--logprob-chunk-rows", "40"},
      {"--dtype", "float32", "--opd-loss-coef", "0.1", "--opd-beta", "0.5", "--offload-teacher"},
      {"--dtype", "float32", "--opd-loss-coef", "0.1", "--opd-top-k", "5", "--use-kl-loss", "--kl-loss-coef", "0.1"},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string run_path = folder / std::to_string(i);
    Arguments words = memory_arguments(folder, run_path, cases[i]);
    words.insert(words.end(), {"--use-opd", "--opd-teacher-load", kModel});
    expect_a_rollout_as_planned(run_path, words, "case " + std::to_string(i), /*is_bound=*/i > 0);
  }
}

// Layers keep their activations in the first case, and recompute them in the second. All completions are as long as
// they may be, so that the one rollout fills what is planned.
const std::vector<Arguments> kFamilyCases = {
    {"--dtype", "bfloat16", "--ignore-eos"},
    {"--dtype", "float32", "--recompute-granularity", "full", "--recompute-num-layers", "4", "--ignore-eos"}};

// A sparse model balances its experts, which takes memory of its own.
Arguments balancing(Arguments words, const std::string& architecture) {
  if (architecture == "Qwen3MoeForCausalLM") words.insert(words.end(), {"--moe-aux-loss-coeff", "0.01"});
  return words;
}

TEST(RunMemory, ThePlanIsAsNearInTheOtherFamilies) {
  const base::TemporaryDirectory folder;
  for (const std::string& architecture : model::kArchitectures) {
    if (architecture == "Qwen3ForCausalLM") continue;
    for (size_t i = 0; i < kFamilyCases.size(); ++i) {
      const std::string run_path = folder / (architecture + std::to_string(i) + "_run");
      expect_a_rollout_as_planned(
          run_path, memory_arguments(folder, run_path, balancing(kFamilyCases[i], architecture), architecture),
          architecture + " case " + std::to_string(i));
    }
  }
}

TEST(RunMemory, ThePlanIsAsNearBesideAnAdapter) {
  const base::TemporaryDirectory folder;
  const auto cases_of = [](const std::string& architecture) -> std::vector<Arguments> {
    const bool is_sparse = architecture == "Qwen3MoeForCausalLM";
    std::vector<Arguments> cases = {
        {"--dtype", "bfloat16", "--lora-rank", "16", "--target-modules",
         is_sparse ? "q_proj,gate_proj,up_proj,down_proj" : "all-linear", "--use-kl-loss", "--kl-loss-coef", "0.1",
         "--recompute-granularity", "full", "--recompute-num-layers", "2", "--ignore-eos"},
        {"--dtype", "float32", "--lora-rank", "32", "--target-modules", "q_proj,v_proj,up_proj", "--use-kl-loss",
         "--kl-loss-coef", "0.1", "--ref-update-interval", "1", "--offload-train", "--ignore-eos"},
    };
    if (is_sparse) cases.push_back({"--dtype", "nf4", "--lora-rank", "16", "--ignore-eos"});
    if (architecture != "Qwen3ForCausalLM") return cases;
    for (const char* quantised : {"nf4", "int8"}) {
      cases.push_back({"--dtype", quantised, "--lora-rank", "16", "--ignore-eos"});
    }
    const Arguments dropping = {"--dtype", "bfloat16", "--lora-rank", "16", "--lora-dropout", "0.1", "--ignore-eos"};
    cases.push_back(dropping);
    cases.push_back(dropping);
    cases.back().insert(cases.back().end(), {"--recompute-granularity", "full", "--recompute-num-layers", "4"});
    for (const char* dtype : {"float32", "bfloat16"}) {
      cases.push_back({"--dtype", dtype, "--lora-rank", "16", "--modules-to-save", "embed_tokens", "norm",
                       "--use-kl-loss", "--kl-loss-coef", "0.1", "--ignore-eos"});
    }
    return cases;
  };
  for (const std::string& architecture : model::kUnfusedArchitectures) {
    const std::vector<Arguments> cases = cases_of(architecture);
    for (size_t i = 0; i < cases.size(); ++i) {
      const std::string run_path = folder / (architecture + std::to_string(i) + "_lora");
      expect_a_rollout_as_planned(run_path, memory_arguments(folder, run_path, cases[i], architecture),
                                  architecture + " LoRA case " + std::to_string(i));
    }
  }
}

// Runs the operations that a GPU begins with, in the shapes of its calls, on the host.
void expect_gpu_as_planned(const base::TemporaryDirectory& folder, const std::string& which, const Arguments& more,
                           const std::string& architecture) {
  device::CpuVmm vmm;
  const device::ScopedFakeBackend replaced(
      {.make_ops = [] { return device::make_aten_ops(at::kCPU, "a GPU's operations", 1, {}); },
       .bytes = device::DeviceBytes{.free = int64_t{8} << 30, .total = int64_t{8} << 30},
       .open_memory = [&] { return driver_over(vmm); }});
  const std::string run_path = folder / which;
  Arguments words = memory_arguments(folder, run_path, more, architecture);
  words.insert(words.end(), {"--device", "cuda", "--ignore-eos"});
  expect_a_rollout_as_planned(run_path, words, which);
}

TEST(RunMemory, APlanForAGpuHoldsForItsOperations) {
  const base::TemporaryDirectory folder;
  const std::vector<Arguments> cases = {
      {"--dtype", "float32"},
      {"--dtype", "float32", "--recompute-granularity", "full", "--recompute-num-layers", "2", "--entropy-coef",
       "0.01"},
      {"--dtype", "float32", "--recompute-granularity", "full", "--recompute-num-layers", "4", "--use-kl-loss",
       "--kl-loss-coef", "0.1"},
  };
  for (size_t i = 0; i < cases.size(); ++i)
    expect_gpu_as_planned(folder, "GPU case " + std::to_string(i), cases[i], "Qwen3ForCausalLM");
  expect_gpu_as_planned(folder, "GPU LoRA", {"--dtype", "float32", "--lora-rank", "16"}, "Qwen3ForCausalLM");
  expect_gpu_as_planned(folder, "GPU LoRA of experts",
                        {"--dtype", "float32", "--lora-rank", "16", "--target-modules", "up_proj,down_proj"},
                        "Qwen3MoeForCausalLM");
  for (const std::string& architecture : model::kArchitectures) {
    if (architecture != "Qwen3ForCausalLM")
      expect_gpu_as_planned(folder, "GPU " + architecture, balancing(cases[1], architecture), architecture);
  }
}

TEST(RunMemory, TheTimelineAndTheTraceTellWhatHappened) {
  const base::TemporaryDirectory folder;
  const std::string run_path = folder / "run";
  ASSERT_EQ(run(memory_arguments(folder, run_path, {})).code, 0);
  std::vector<std::string> phases;
  for (const base::Json& line : json_lines(run_path + "/memory_timeline.jsonl"))
    if (line["event"] == "enter") phases.push_back(line["phase"]);
  EXPECT_EQ(phases, (std::vector<std::string>{"load", "rollout", "train", "rollout", "train", "rollout"}));
  const base::Json trace = base::read_json_file(run_path + "/memory_trace.json");
  EXPECT_GT(trace["traceEvents"].size(), phases.size());
  bool told = false;
  for (const base::Json& record : json_lines(run_path + "/metrics.jsonl")) {
    if (!record.contains("rollout/step")) continue;
    told = true;
    for (const char* phase : {"rollout", "train"}) {
      const std::string name = std::string("perf/memory_") + phase;
      EXPECT_GT(record[name + "_gib"], 0.0);
      EXPECT_GT(record[name + "_plan_gib"], 0.0);
    }
    EXPECT_LT(record["perf/memory_to_train_time"], 0.5);
  }
  EXPECT_TRUE(told);
}

// Neither unmapping what the phase does not own nor keeping the optimizer and the reference on the host changes a bit.
TEST(RunMemory, WhereThingsLieChangesNoNumber) {
  const base::TemporaryDirectory folder;
  std::string metrics, weights;
  for (const char* flag : {"--no-offload-train", "--debug-unmap-idle-view", "--offload-train"}) {
    const std::string run_path = folder / flag;
    const Captured result = run(
        memory_arguments(folder, run_path, {"--dtype", "bfloat16", "--use-kl-loss", "--kl-loss-coef", "0.1", flag}));
    ASSERT_EQ(result.code, 0) << result.err;
    if (metrics.empty()) {
      metrics = timeless_metrics(run_path);
      weights = weights_of(run_path);
    }
    EXPECT_EQ(timeless_metrics(run_path), metrics) << flag;
    EXPECT_TRUE(weights_of(run_path) == weights) << flag;
  }
}

// ---- The faults ----

// Runs a short run, over the folder of the one before.
Captured faulty_run(const base::TemporaryDirectory& folder, Arguments more) {
  more.emplace_back("--overwrite");
  Arguments words = memory_arguments(folder, folder / "run", more);
  for (const auto& [flag, value] : {std::pair{"--num-rollout", "1"},
                                    {"--rollout-batch-size", "2"},
                                    {"--global-batch-size", "8"},
                                    {"--rollout-max-response-len", "4"}})
    words = with_flag(words, flag, value);
  return run(words);
}

TEST(RunMemoryFaults, ADeviceThatWasFilledSinceThePlanIsAnErrorThatSaysSo) {
  const base::TemporaryDirectory folder;
  device::CpuVmm small(kMiB);
  const device::ScopedFakeBackend replaced({.open_memory = [&] { return driver_over(small); }});
  const Captured result = run(memory_arguments(folder, folder / "run", {}));
  expect_one_line_failure(result, 3, "bytes free, and the arena is");
  EXPECT_FALSE(base::file_exists(folder / "run/metrics.jsonl")) << "before anything is loaded or written";
  EXPECT_EQ(small.counts(), device::VmmCounts());
}

// Calls of the driver fail at moments all over a run, once and for good: the run ends with one line or continues, and
// all memory is given back (tests/memory fails every call of the arena's).
TEST(RunMemoryFaults, AFailingCallOfTheDriverEndsInOneLineOrNotAtAll) {
  const base::TemporaryDirectory folder;
  const int seed = testing::UnitTest::GetInstance()->random_seed();
  std::mt19937 random(static_cast<uint32_t>(seed));
  int64_t num_calls = 0, num_ended = 0;
  for (int i = 0; i < 13; ++i) {
    const int64_t k = i == 0 ? -1 : i < 6 ? i - 1 : static_cast<int64_t>(random() % static_cast<uint64_t>(num_calls));
    const bool for_good = i % 2 == 1;
    const device::Outcome outcome = i % 4 < 2 ? device::Outcome::kOutOfMemory : device::Outcome::kDriverError;
    device::CpuVmm real;
    device::FailingVmm failing(real);
    if (i > 0) failing.arm(k, for_good, outcome);
    const device::ScopedFakeBackend replaced({.open_memory = [&] { return driver_over(failing); }});
    const Captured result = faulty_run(folder, {"--debug-unmap-idle-view"});
    const std::string where = "seed " + std::to_string(seed) + ", call " + std::to_string(k);
    if (i == 0) {
      ASSERT_EQ(result.code, 0) << result.err;
      num_calls = failing.num_calls();
    } else if (result.code != 0) {
      EXPECT_EQ(result.code, 3) << where << "\n" << result.err;
      EXPECT_TRUE(last_line(result.err).starts_with("tandem: error: ")) << where << "\n" << result.err;
      ++num_ended;
    }
    failing.settle();
    EXPECT_EQ(real.counts(), device::VmmCounts()) << where;
  }
  std::printf("%ld calls of the driver in a run; %ld of 12 runs ended by a failing one\n", num_calls, num_ended);
  EXPECT_GT(num_ended, 0);
}

// The state that all host memories of a run share: which call fails, and what is pinned.
struct HostFaults {
  int64_t k = -1;
  bool for_good = false;
  std::atomic<int64_t> num_calls = 0, pinned_bytes = 0;
  bool has_failed = false;
  bool fails() {
    const int64_t call = num_calls++;
    if (k < 0 || call < k || (call > k && !for_good)) return false;
    return has_failed = true;
  }
  void check(const char* call) {
    if (fails()) throw EnvironmentError(std::string(call) + ": injected; take the wrapper away");
  }
};

class FaultyHostMemory final : public device::HostMemory {
 public:
  explicit FaultyHostMemory(HostFaults& faults) : faults_(faults) {}
  std::byte* allocate(int64_t bytes) override {
    if (faults_.fails()) return nullptr;
    faults_.pinned_bytes += bytes;
    return real_.allocate(bytes);
  }
  void free(std::byte* host, int64_t bytes) override {
    faults_.pinned_bytes -= bytes;
    real_.free(host, bytes);
  }
  void copy_to_host(std::byte* host, const std::byte* device, int64_t bytes) override {
    faults_.check("copy_to_host");
    real_.copy_to_host(host, device, bytes);
  }
  void copy_to_device(std::byte* device, const std::byte* host, int64_t bytes) override {
    faults_.check("copy_to_device");
    real_.copy_to_device(device, host, bytes);
  }
  void synchronize() override {
    faults_.check("synchronize");
    real_.synchronize();
  }

 private:
  HostFaults& faults_;
  device::CpuHostMemory real_;
};

// Pinning and copying fail at moments all over a run with everything offloaded (tests/trainer fails each of them).
TEST(RunMemoryFaults, OffloadingThatFailsEndsInOneLineAndLeavesNothingPinned) {
  const base::TemporaryDirectory folder;
  const int seed = testing::UnitTest::GetInstance()->random_seed();
  std::mt19937 random(static_cast<uint32_t>(seed));
  int64_t num_calls = 0;
  const auto run_with = [&](HostFaults& faults) {
    device::CpuVmm vmm;
    const device::ScopedFakeBackend replaced({.open_memory = [&] {
      device::MemoryDriver driver = driver_over(vmm);
      driver.make_host = [&] { return std::make_unique<FaultyHostMemory>(faults); };
      return driver;
    }});
    const Captured result =
        faulty_run(folder, {"--dtype", "bfloat16", "--use-kl-loss", "--kl-loss-coef", "0.1", "--offload-train"});
    EXPECT_EQ(vmm.counts(), device::VmmCounts());
    EXPECT_EQ(faults.pinned_bytes, 0);
    return result;
  };
  {
    HostFaults none;
    ASSERT_EQ(run_with(none).code, 0);
    num_calls = none.num_calls;
  }
  for (int i = 0; i < 8; ++i) {
    const int64_t k = i < 3 ? i : static_cast<int64_t>(random() % static_cast<uint64_t>(num_calls));
    HostFaults faults;
    faults.k = k;
    faults.for_good = i % 2 == 1;
    const Captured result = run_with(faults);
    EXPECT_EQ(result.code, 3) << "seed " << seed << ", call " << k << " of " << num_calls << "\n" << result.err;
    EXPECT_TRUE(last_line(result.err).starts_with("tandem: error: ")) << result.err;
  }
}

}  // namespace
}  // namespace tandem::cli
