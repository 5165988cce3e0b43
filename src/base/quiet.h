// Tells everything that writes to a terminal whether --quiet was given.
#pragma once

namespace tandem::base {

// Returns whether set_log_level() hides information: then only results, warnings and errors are shown.
bool is_quiet();

}  // namespace tandem::base
