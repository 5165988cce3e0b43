// The messages between us and a worker process, as bytes: four of length, little-endian, and that much UTF-8 JSON
// (python/tandem_worker/protocol.py is the other end). There is no process and no socket here: these functions judge
// whatever a child that runs user code may send, so that they can be asked about any bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/json.h"

namespace tandem::worker {

// Returns a request as the child reads it. UserError for text that is not UTF-8, or for more than a message may hold.
std::string framed_request(uint64_t id, std::string_view call, const base::Json& arguments);

// Tells how much of a reply has come. kNonsense is a length beyond the limit, or bytes after the reply.
enum class Arrival : uint8_t { kPartial, kWhole, kNonsense };
Arrival arrival_of(std::string_view bytes);

// Thrown for bytes that are no reply to our request. what() continues a sentence that begins with the worker's name.
class BadReply : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A reason that the user's code gives for a failure has at most this many bytes: 500 characters and a hint.
constexpr size_t kMaxReasonBytes = 4096;

// A value takes two bytes in a reply and up to a hundred when it is read.
constexpr int64_t kMaxReplyValues = int64_t{1} << 26;

// Returns the result in a whole reply to request `id`. UserError and EnvironmentError, on one line, for a fault that
// the child found. BadReply for what is no JSON (by the rules of base/json.h), has more than `max_values` values or
// another id, or holds neither result nor fault.
base::Json result_of(std::string_view reply, uint64_t id, int64_t max_values = kMaxReplyValues);

}  // namespace tandem::worker
