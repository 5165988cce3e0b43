// How far the user's code is confined (docs/REWARDS.md).
#pragma once

#include <cstdint>

namespace tandem::text {

// kAuto: as far as the kernel goes, with one warning that names what it lacks. kRequire: EnvironmentError when it lacks
// anything. kOff: limits only; the code may do what we may and sees our environment.
enum class Sandbox : uint8_t { kAuto, kRequire, kOff };

}  // namespace tandem::text
