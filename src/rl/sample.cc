#include "rl/sample.h"

namespace tandem::rl {

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kRunning: return "running";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAbort: return "abort";
  }
  return "unknown";
}

const char* to_string(SampleStatus status) {
  switch (status) {
    case SampleStatus::kCompleted: return "completed";
    case SampleStatus::kTruncated: return "truncated";
    case SampleStatus::kAborted: return "aborted";
  }
  return "unknown";
}

}  // namespace tandem::rl
