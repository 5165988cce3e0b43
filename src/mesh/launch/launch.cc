#include "mesh/launch/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/env.h"
#include "mesh/secret.h"

namespace tandem::mesh {

namespace {

LaunchVariables trainers_of(LaunchVariables launch, const Placement& placement) {
  launch.local_size = static_cast<int>(placement.num_trainers_among(launch.first_here(), launch.local_size));
  launch.size = static_cast<int>(placement.num_trainers());
  return launch;
}

LaunchVariables engine_of(LaunchVariables launch, const Placement& placement) {
  const int size = static_cast<int>(placement.per_engine), first_here = launch.first_here();
  const int first_worker = placement.joins ? 0 : static_cast<int>(placement.num_trainers());
  const int engine = (launch.rank - first_worker) / size, first = first_worker + engine * size;
  TANDEM_USER_CHECK(
      first + size <= launch.size,
      fmt::format("{}: the processes that only sample work in engines of {} "
                  "(--tensor-model-parallel-size), and the last engine lacks some; start a multiple of it",
                  launch.source, size));
  TANDEM_USER_CHECK(first >= first_here && first + size <= first_here + launch.local_size,
                    fmt::format("{}: the {} processes of an engine (--tensor-model-parallel-size) are on several "
                                "machines; start a multiple of {} on each",
                                launch.source, size, size));
  launch.party = fmt::format("engine {}", engine);
  launch.rank -= first;
  launch.local_rank -= first - first_here;
  launch.size = launch.local_size = size;
  return launch;
}

}  // namespace

int64_t Placement::num_trainers_among(int64_t first, int64_t count) const {
  return std::clamp<int64_t>(num_trainers() - first, 0, count);
}

void Placement::check_host(int64_t first, int64_t count, const std::string& source) const {
  const int64_t trainers = num_trainers_among(first, count);
  TANDEM_USER_CHECK(
      trainers == 0 || trainers == trainers_per_host,
      fmt::format("--actor-num-nodes {} x --actor-num-gpus-per-node {}: the first {} processes train, and on one "
                  "machine {} of its {} do ({}); the others sample, behind them: start so many on each machine that "
                  "{} train where any do",
                  num_hosts, trainers_per_host, num_trainers(), trainers, count, source, trainers_per_host));
}

LaunchVariables Launch::party() const {
  return only_samples() ? engine_of(processes, placement) : trainers_of(processes, placement);
}

std::string Launch::secret() const { return secret_file.empty() ? "" : read_secret(secret_file); }

Launch own_launch(const Placement& placement) {
  const std::optional<LaunchVariables> launched = launch_variables();
  return {.is_launched = launched.has_value(),
          .processes = launched.value_or(LaunchVariables{}),
          .placement = placement,
          .secret_file = base::secret_file()};
}

}  // namespace tandem::mesh
