// The class under which a call of the user's code is counted whose process was lost.
#pragma once

#include "worker/child_process.h"

namespace tandem::reward {

// Returns "memory", "deadline" or "died", as in the metrics' names.
inline const char* reason_class(worker::LossCause cause) {
  if (cause == worker::LossCause::kMemory) return "memory";
  return cause == worker::LossCause::kDeadline ? "deadline" : "died";
}

}  // namespace tandem::reward
