#include "rl/sample.h"

#include <algorithm>

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

void Sample::check_sequences() const {
  int64_t least = 0;
  for (const int64_t begin : sequence_begins) {
    if (begin < least || begin + 2 > std::ssize(completion))
      throw EnvironmentError(
          "a message has sequences of a completion that are out of order: start all ranks with the same build");
    least = begin + 2;
  }
}

int64_t Sample::first_token_of(uint64_t version) const {
  const auto size = static_cast<int64_t>(completion.size());
  if (is_given) return size;
  if (versions.empty()) return 0;
  return versions.back().version == version ? std::min(versions.back().begin, size) : size;
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
