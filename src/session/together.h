// Runs a step that may fail on every rank; if it fails on one, all throw.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "device/communicator.h"

namespace tandem::session {

// Runs `work` on every rank and returns what it returned on each, by rank. If it throws on one of them all throw: that
// rank its own error, the others an EnvironmentError with the same words. `hosts` connects their hosts.
std::vector<std::string> together(device::Communicator& hosts, const std::function<std::string()>& work);

// Asks rank 0 alone and returns its answer on every rank, so that all go the same way.
bool of_conductor(device::Communicator& hosts, const std::function<bool()>& question);

// Returns the signal that asked any rank to stop, on every rank alike; 0 if none was asked. The largest wins, where
// ranks got different ones.
int stop_signal_of_any(device::Communicator& hosts);

}  // namespace tandem::session
