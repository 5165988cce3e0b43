// --quiet, as everybody sees it who writes to a terminal.
#pragma once

namespace tandem::base {

// Whether set_log_level() left out information: then nothing but results, warnings and errors is shown.
bool is_quiet();

}  // namespace tandem::base
