// The meeting of the ranks of a launch, before they know each other: through a store, which all of them reach. Rank 0
// reads what every rank says of itself and answers all of them with one digest, so that no rank reads what 4,095 others
// say.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mesh/agreement.h"

namespace tandem::mesh {

struct MeetingSettings {
  int rank = 0, size = 1;
  bool has_secret = false;   // whether the store is sealed
  double timeout_s = 600.0;  // timeout until all have come
  std::string party = "";    // LaunchVariables::party
  std::string remedy = "";   // what a rank that has not come should do: "share /tmp"
};

// Every rank calls it with its own facts, whose random digits nobody else has. Ends on every rank with the same error,
// or on none. Returns a text that these ranks alone have: it is made of the random digits of all, and each rank has
// looked for its own among them, so that an answer to other ranks, or to an earlier launch, is not taken for theirs.
// Throws UserError if the ranks were not started alike, other secrets included, and EnvironmentError if some are
// missing or a value was not written by a rank.
//
// With N ranks, rank 0 reads N values and each other rank reads one; each rank writes one, and rank 0 the answer too.
std::string meet(c10d::Store& store, const RankFacts& facts, const MeetingSettings& settings);

}  // namespace tandem::mesh
