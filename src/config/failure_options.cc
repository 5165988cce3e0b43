#include "config/failure_options.h"

#include <fmt/format.h>

#include "base/byte_count.h"
#include "base/check.h"

namespace tandem::config {

namespace {

constexpr int64_t kMaxHosts = 4096;
constexpr double kMaxDays = 3650.0, kMaxHours = 1e9, kMaxRepairHours = 1e4;
constexpr double kMaxSeconds = 1e7, kMaxMinutes = 1e5, kLeastStepSeconds = 1e-3;
constexpr int64_t kMaxBytesPerSecond = int64_t{1} << 50;

}  // namespace

void FailureOptions::visit(options::Options& options) {
  const char* const group = "failures";
  options
      .option(hosts, "hosts", group,
              "hosts of the run: say how often it will fail, and what to set for it (docs/RUNS.md); the flags of this "
              "group are without effect where this one is not given")
      .at_least(1)
      .at_most(kMaxHosts)
      .does_not_affect_results();
  options.option(run_days, "run-days", group, "days that the run takes")
      .greater_than(0.0)
      .at_most(kMaxDays)
      .does_not_affect_results();
  options
      .option(hours_between_failures, "hours-between-failures", group,
              "hours of one device between two failures that end a run; the default is what Llama 3 405B saw")
      .at_least(1.0)
      .at_most(kMaxHours)
      .does_not_affect_results();
  options
      .option(
          checkpoint_seconds, "checkpoint-seconds", group,
          "seconds by which a checkpoint delays the run: what perf/save_model_wait_time has after one; unset: as if "
          "the run waited for all of it, at --save-bytes-per-second")
      .greater_than(0.0)
      .at_most(kMaxSeconds)
      .does_not_affect_results();
  options
      .option(
          save_bytes_per_second, "save-bytes-per-second", group,
          "bytes a second with which all hosts together write a checkpoint, where --checkpoint-seconds is not given")
      .bytes()
      .at_least(1)
      .at_most(kMaxBytesPerSecond)
      .does_not_affect_results();
  options
      .option(restart_minutes, "restart-minutes", group,
              "minutes from a failure until the run trains again, beside the work that is done once more")
      .at_least(0.0)
      .at_most(kMaxMinutes)
      .does_not_affect_results();
  options.option(repair_hours, "repair-hours", group, "hours for which a host that has failed is missing")
      .at_least(0.0)
      .at_most(kMaxRepairHours)
      .does_not_affect_results();
  options
      .option(step_seconds, "step-seconds", group,
              "seconds of a rollout with its training (perf/step_time), to say the interval in rollouts")
      .at_least(kLeastStepSeconds)
      .at_most(kMaxSeconds)
      .does_not_affect_results();
}

void FailureOptions::check(int64_t processes) const {
  TANDEM_USER_CHECK(
      !hosts || processes % *hosts == 0,
      fmt::format("--hosts {}: the run has {} {}, one for each device, which is no whole number a host; "
                  "give --actor-num-nodes {} and --actor-num-gpus-per-node as on the cluster, or with "
                  "--rollout-num-gpus a number that makes it whole",
                  hosts.value_or(0), processes, processes == 1 ? "process" : "processes", hosts.value_or(0)));
}

}  // namespace tandem::config
