#include "base/version.h"

namespace tandem::base {

const char* const kVersion = TANDEM_VERSION;
const char* const kBuildType = TANDEM_BUILD_TYPE;

}  // namespace tandem::base
