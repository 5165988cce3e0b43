// Whether the machine gives a process its threads.
#pragma once

namespace tandem::device {

// OpenMP ends the process where a thread cannot be started. So as many are started here first and ended again.
// EnvironmentError says which limits to raise.
void probe_threads(int num_threads);

}  // namespace tandem::device
