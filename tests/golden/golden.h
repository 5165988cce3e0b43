// The place of the golden files, for the tests that read them.
#pragma once

#include <string>

namespace tandem::golden {

// The golden files lie in tests/golden, or where --golden says, so that another set in the same format can be put
// through the same tests.
inline constexpr const char* kDefaultDirectory = "tests/golden";
const std::string& directory();

}  // namespace tandem::golden
