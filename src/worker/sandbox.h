// The levels to which the user's code is confined (docs/REWARDS.md).
#pragma once

#include <cstdint>

namespace tandem::worker {

// kAuto confines as far as the kernel can, with one warning that names what it lacks. kRequire throws EnvironmentError
// when the kernel lacks anything. kOff sets limits only; the code may do what we may and sees our environment.
enum class Sandbox : uint8_t { kAuto, kRequire, kOff };

}  // namespace tandem::worker
