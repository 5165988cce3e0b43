#include "rl/sample.h"

#include "tandem/error.h"

namespace tandem::rl {

void Sample::check_pieces() const {
  int64_t least = 0;
  for (const SamplePiece& piece : pieces) {
    if (piece.begin < least || piece.begin >= std::ssize(completion))
      throw EnvironmentError(
          "a message has pieces of a completion that are out of order: start all ranks with the same build");
    least = piece.begin + 1;
  }
}

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kRunning: return "running";
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kAbort: return "abort";
    case FinishReason::kPaused: return "paused";
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
