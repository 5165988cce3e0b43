// What rank 0 of a launch says to all processes of it, those that are no rank of its mesh too: a text in the launch's
// store, sealed where there is a secret.
#pragma once

#include <string>

#include "mesh/launch_variables.h"

namespace tandem::mesh {

struct AnnouncementSettings {
  double timeout_s = 600.0;
  std::string secret = "";
};

// Of rank 0. `launch` is the whole one, whose store is there (JoinSettings::keeps_store). EnvironmentError.
void announce(LaunchVariables launch, const AnnouncementSettings& settings, const std::string& name,
              const std::string& text);

// Waits for it. EnvironmentError: it did not come within the time, or is not rank 0's word.
std::string wait_for_announcement(const LaunchVariables& launch, const AnnouncementSettings& settings,
                                  const std::string& name);

}  // namespace tandem::mesh
