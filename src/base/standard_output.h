// Writes results to standard output. stdio gives up where a signal interrupts the wait for a full pipe, and leaves part
// of a line there; this goes on.
#pragma once

#include <string_view>

namespace tandem::base {

// Writes all of the text, after what stdio still holds. Throws EnvironmentError.
void write_to_standard_output(std::string_view text);

}  // namespace tandem::base
