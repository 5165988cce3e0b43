// The cost of failures in a long run on many devices, and the settings that follow: how often to save, how many
// restarts to allow, how many hosts to have in reserve. Arithmetic on a rate of failures.
//
// Devices fail independently of each other and at a constant rate, so that failures are a Poisson process whose rate is
// that of one device times the number of devices.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"

namespace tandem::plan {

struct FailureFacts {
  int64_t hosts = 1, devices = 1;           // of the whole run
  int64_t training_devices = 1;             // a failure of another one, which only samples, does not end the run
  double run_hours = 0.0;                   // as long as the run takes, with what is lost
  double hours_between_failures = 0.0;      // of one device
  double checkpoint_seconds = 0.0;          // for which saving keeps the run from training
  double restart_seconds = 0.0;             // from a failure to training again, without the work that is done once more
  double repair_hours = 0.0;                // for which a host that failed is missing
  std::optional<double> step_seconds = {};  // of a rollout with its training
};

struct FailureBudget {
  FailureFacts facts;
  double failures = 0.0;          // expected in the run, of all devices
  double interruptions = 0.0;     // those that end it and start it again
  double seconds_between = 0.0;   // two of them
  double interval_seconds = 0.0;  // of training between two checkpoints: what loses least, or whole rollouts near it
  std::optional<int64_t> save_interval;  // in rollouts; at least 1. Nothing if it is not known how long one takes
  double share_lost = 0.0;               // of the run's time, with this interval: 0 to 1
  int64_t max_restarts = 0;              // kRestartsQuantile of such runs need no more
  int64_t spare_hosts = 0;               // at kSparesQuantile of all times no more hosts are missing
};

constexpr double kRestartsQuantile = 0.999, kSparesQuantile = 0.99;

// The smallest k for which a Poisson variable of this mean is at most k with this probability (0 < probability < 1).
// The mean is at least 0 and at most 1e12; the time is that of its square root.
int64_t poisson_quantile(double mean, double probability);

// Returns the seconds of work between two checkpoints with which a run loses least. J. T. Daly, "A higher order
// estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22 (2006),
// equation 37:
//   sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d   for d < 2M, else M
// where d is what a checkpoint costs and M the mean time between failures, both above 0. Its first term is the rule of
// J. W. Young, Communications of the ACM 17 (1974).
double best_interval(double checkpoint_seconds, double seconds_between_failures);

// Returns the share of the time that goes into saving, work that is done once more, and restarts. Daly, equation 20:
// the work W takes M e^(R/M) (e^((t + d)/M) - 1) W / t, where t is the interval and R a restart.
double share_lost(double interval, double checkpoint_seconds, double restart_seconds, double seconds_between_failures);

// A repair takes its time whatever else is down, so the number of hosts that are missing is a Poisson variable whose
// mean is failures an hour times hours of a repair (Little's law, and Palm's theorem for the distribution).
FailureBudget failure_budget(const FailureFacts& facts);

// Lines as they stand below a plan; the last has no line break. `cost_is_from` says where checkpoint_seconds come
// from: "of 12 GiB at 1 GB/s, as if training waited for all of it".
std::string budget_text(const FailureBudget& budget, const std::string& cost_is_from);
base::Json budget_json(const FailureBudget& budget);

}  // namespace tandem::plan
