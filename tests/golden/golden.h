// What tests share that read the golden files.
#pragma once

#include <string>

namespace tandem::golden {

// Where the golden files lie: tests/golden, or what --golden said, so that another set in the same format can be put
// through the same tests.
inline constexpr const char* kDefaultDirectory = "tests/golden";
const std::string& directory();

}  // namespace tandem::golden
