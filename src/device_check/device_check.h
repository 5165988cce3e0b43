// `tandem device`: which device a run would have, and with --check whether it keeps what Tandem promises of a device, a
// line for each question and a report that says no more of its machine than what computes there.
#pragma once

#include "config/device_config.h"
#include "config/run_mode.h"

namespace tandem::device_check {

// Returns 0 if every answer is yes, else 3.
int check_device(const config::DeviceConfig& config, const config::RunMode& mode);

}  // namespace tandem::device_check
