// Rank 0 of a launch announces a text to every process of that launch, also to those that are in no mesh with it, by
// writing it into the launch's store. With a secret the text is sealed.
#pragma once

#include <string>

#include "mesh/launch/launch_variables.h"

namespace tandem::mesh {

struct AnnouncementSettings {
  double timeout_s = 600.0;
  std::string secret = "";
};

// Called by rank 0, whose process keeps the store by now (JoinSettings::keeps_store). `launch` has all processes of the
// launch. Throws EnvironmentError if the store is gone.
void announce(LaunchVariables launch, const AnnouncementSettings& settings, const std::string& name,
              const std::string& text);

// Waits for the announcement. Throws EnvironmentError if it did not come within the time, and UserError if rank 0 has
// another secret.
std::string wait_for_announcement(const LaunchVariables& launch, const AnnouncementSettings& settings,
                                  const std::string& name);

}  // namespace tandem::mesh
