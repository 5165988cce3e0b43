// Trains the golden model with --device npu, through torch_npu's own wheel over the stand-ins for CANN, and once more
// with the same operations on the CPU: the log-probs that sampling and training see are equal, and so are the two
// checkpoints. LD_LIBRARY_PATH names the stand-ins; tests/device/npu/npu_wheel_test.py runs this.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/files.h"
#include "base/json.h"
#include "base/sha256.h"
#include "device/kept_check.h"
#include "device/registry.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/tiny_run.h"
#include "tests/pretend_device/libtorch_on_the_cpu.h"

namespace tandem::cli {
namespace {

std::string checkpoint(const std::string& save) {
  return base::sha256(base::read_file(save + "/hf/step_000002/model.safetensors"));
}

void expect_on_policy(const std::string& save) {
  int64_t num_first_steps = 0;
  for (const base::Json& record : json_lines(save + "/metrics.jsonl")) {
    if (!record.contains("train/step") || record["train/step"].get<int64_t>() % 2 != 0) continue;
    EXPECT_EQ(record["train/train_rollout_logprob_abs_diff"], 0.0) << record["train/step"];
    ++num_first_steps;
  }
  EXPECT_EQ(num_first_steps, 2);
}

class NpuWheelTrain : public testing::TestWithParam<std::string> {};

TEST_P(NpuWheelTrain, GivesTheCheckpointOfTheCpu) {
  const base::TemporaryDirectory folder;
  // These are the answers of a check that says yes to all; npu_wheel_test.py runs the check itself.
  setenv("XDG_CACHE_HOME", (folder / "cache").c_str(), /*overwrite=*/1);
  device::keep_check(device::stack(device::parse_device("npu")), {.rung = "best", .is_right = true, .is_exact = true},
                     nullptr);
  const std::string reward = write_reward(folder);
  const auto arguments = [&](const std::string& save) {
    return with_custom_reward(
        train_arguments(save, {"--dtype", GetParam(), "--save-interval", "1", "--device", "npu", "--num-threads", "1"}),
        reward);
  };
  const Captured result = run(arguments(folder / "npu"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("npu/aten on Ascend910B1, CANN 9.1.0, torch_npu 2.11.0"), std::string::npos) << result.out;
  {  // in this order: LibTorch's backward pass counts the devices when it first runs
    const pretend_device::LibTorchOnTheCpu replaced(/*bytes=*/int64_t{4} << 30);
    const Captured on_cpu = run(arguments(folder / "cpu"));
    ASSERT_EQ(on_cpu.code, 0) << on_cpu.err;
  }
  expect_on_policy(folder / "npu");
  EXPECT_EQ(checkpoint(folder / "npu"), checkpoint(folder / "cpu"));
  EXPECT_NE(checkpoint(folder / "npu"), base::sha256(base::read_file(kModel + "/model.safetensors")));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, NpuWheelTrain, testing::Values("float32", "bfloat16"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tandem::cli
