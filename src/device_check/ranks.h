// Asks whether several devices train to the bits of one, and end together.
#pragma once

#include "config/device_config.h"
#include "device_check/answers.h"

namespace tandem::device_check {

// Section "ranks". Runs `tandem train` of the checkpoint as one process and as several, in a folder of its own.
void ask_ranks(const config::DeviceConfig& config, Answers& answers);

}  // namespace tandem::device_check
