// The number of times that a test repeats what it does: 1, or what --repeat says, for the counts that soak tests want.
#pragma once

namespace tandem::reward {

int repeat();

}  // namespace tandem::reward
