// `tandem device --check` on pretended devices, as a user types it, and what `tandem train` makes of its answers: each
// planted fault is found, names itself, and has the end that docs/NPU.md says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>

#include <cstdlib>
#include <filesystem>

#include "device/kept_check.h"
#include "tests/cli/workers/worker_runs.h"

namespace tandem::cli {
namespace {

using testing::HasSubstr;

class NpuCheck : public testing::Test {
 protected:
  void SetUp() override {
    // LeakSanitizer reads what looks like an address, and faults at one of a device (device_address.h).
    setenv("ASAN_OPTIONS", "detect_leaks=0:detect_odr_violation=0:malloc_context_size=0", /*overwrite=*/1);
    setenv("XDG_CACHE_HOME", (folder_ / "cache").c_str(), /*overwrite=*/1);
    // Calls that compute 64 tiles, as an NPU's do, would mostly be filled up.
    setenv("TANDEM_PRETEND_ATTENTION_TILES", "8", /*overwrite=*/1);
  }
  void TearDown() override {
    unsetenv("TANDEM_PRETEND_ATTENTION_TILES");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("TANDEM_PRETEND_FAULT");
  }
  static void plant(const char* fault) { setenv("TANDEM_PRETEND_FAULT", fault, /*overwrite=*/1); }

  static Captured check(const Arguments& more = {}) {
    Arguments words = {"device", "--device", "npu", "--num-threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program(words);
  }
  Arguments training(const std::string& name, const Arguments& more = {}) {
    Arguments words = with_custom_reward(
        train_arguments(folder_ / name, {"--device", "npu", "--num-threads", "1", "--num-rollout", "1"}),
        write_reward(folder_));
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // The kept answers; null where there are none.
  base::Json kept() {
    if (!std::filesystem::exists(folder_ / "cache/tandem")) return nullptr;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "cache/tandem")) {
      if (entry.path().extension() == ".json") return base::parse_json(base::read_file(entry.path()), "kept");
    }
    return nullptr;
  }

  const base::TemporaryDirectory folder_;
};

TEST_F(NpuCheck, ShowsTheDeviceAndAsksNothing) {
  const Captured shown = check();
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, HasSubstr("NPU: a pretended device"));
  EXPECT_TRUE(kept().is_null());
}

// The first run asks, once, and trains in the first way that is exact; the next one finds the answers. A check takes
// more than a minute here, so this is the only one that comes to its end.
TEST_F(NpuCheck, IsMadeByTheFirstRunAndGoesDownToTheFirstWayThatIsExact) {
  plant("rows");
  const Captured first = run_program(training("first"));
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_THAT(first.err, HasSubstr("`tandem device --check` runs"));
  EXPECT_THAT(first.err, HasSubstr("NO   rows     a product"));
  EXPECT_EQ(kept()["rung"], "rows128");
  EXPECT_EQ(kept()["is_exact"], true);
  const Captured second = run_program(training("second"));
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_THAT(second.err, testing::Not(HasSubstr("--check` runs")));
  EXPECT_THAT(base::read_file(folder_ / "second/log.txt"), HasSubstr("pretended device, rows128"));
  for (const base::Json& record : json_lines(folder_ / "second/metrics.jsonl")) {
    EXPECT_FALSE(record.contains("train/inexact_device"));
  }
}

TEST_F(NpuCheck, RefusesADeviceThatIsExactInNoWayUnlessItIsCorrectedFor) {
  plant("all_rows");
  // The check takes minutes to refuse, because it asks all ways to compute; this is the answer that it keeps.
  device::keep_check({{"LibTorch", TORCH_VERSION}, {"NPU", "a pretended device"}, {"fault", "all_rows"}},
                     {.rung = "host", .is_right = true, .is_exact = false, .first_no = "rows: rms_norm"}, nullptr);
  const Captured refused = run_program(training("refused"));
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, HasSubstr("a row's bits depend on its batch"));
  EXPECT_THAT(refused.err, HasSubstr("--allow-inexact"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "refused/metrics.jsonl"));
  const Captured allowed = run_program(training("allowed", {"--allow-inexact"}));
  ASSERT_EQ(allowed.code, 0) << allowed.err;
  int num_steps = 0;
  for (const base::Json& record : json_lines(folder_ / "allowed/metrics.jsonl")) {
    if (!record.contains("train/step")) continue;
    ++num_steps;
    EXPECT_EQ(record["train/inexact_device"], 1.0);
    EXPECT_TRUE(record.contains("train/tis")) << record.dump();
  }
  EXPECT_GT(num_steps, 0);
}

TEST_F(NpuCheck, RefusesADeviceThatComputesSomethingElse) {
  plant("numbers");
  const Captured checked = check({"--check", "--report", folder_ / "report.json"});
  EXPECT_EQ(checked.code, 3);
  EXPECT_THAT(checked.out, HasSubstr("NO   numbers  rms_norm, float32"));
  const std::string report = base::read_file(folder_ / "report.json");
  EXPECT_THAT(report, HasSubstr("pretended device"));
  EXPECT_THAT(report, testing::Not(HasSubstr(std::string(folder_.path())))) << "a report has no paths";
  EXPECT_EQ(kept()["is_right"], false);
  const Captured refused = run_program(training("refused", {"--allow-inexact"}));
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, HasSubstr("numbers: rms_norm, float32"));
}

}  // namespace
}  // namespace tandem::cli
