// Holds what names this program: two processes that speak to each other are of one version.
#pragma once

namespace tandem::base {

extern const char* const kVersion;    // "0.1.0", of CMakeLists.txt
extern const char* const kBuildType;  // "Release", "Dev"

}  // namespace tandem::base
