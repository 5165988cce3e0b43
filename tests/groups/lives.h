// The number of drawn lives that the tests of groups go through.
#pragma once

#include <cstdint>

namespace tandem::groups {

// Under a sanitizer a life takes ten times as long, and what it watches for is found in the first ones. Lives have one
// thread, so ThreadSanitizer has least to find in them.
#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kNumLives = 500;
#elif defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kNumLives = 2'000;
#else
constexpr uint64_t kNumLives = 10'000;
#endif

}  // namespace tandem::groups
