#include "mesh/placement.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace tandem::mesh {

namespace {

LaunchVariables trainers_of(LaunchVariables launch, int num_trainers) {
  const int first_here = launch.rank - launch.local_rank;  // ranks of a host are neighbours
  launch.local_size = std::min(num_trainers - first_here, launch.local_size);
  launch.size = num_trainers;
  return launch;
}

LaunchVariables engine_of(LaunchVariables launch, const Placement& placement) {
  const int engine = placement.engine(launch), size = placement.per_engine;
  const int first = placement.num_trainers + engine * size, first_here = launch.rank - launch.local_rank;
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

LaunchVariables party_of(const LaunchVariables& launch, const Placement& placement) {
  return placement.trains(launch) ? trainers_of(launch, placement.num_trainers) : engine_of(launch, placement);
}

}  // namespace tandem::mesh
