// The messages between us and a worker process, as bytes: four of length, little-endian, and that much UTF-8 JSON
// (python/tandem_worker/protocol.py is the other end). No process and no socket here: whatever a child that runs user
// code may send is judged by these functions, so that they can be asked about any bytes.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/json.h"

namespace tandem::worker {

// A request as the child reads it. UserError: text that is not UTF-8, or more than a message may hold.
std::string framed_request(uint64_t id, std::string_view call, const base::Json& arguments);

// How much of a reply has come. kNonsense: a length beyond the limit, or bytes after the reply.
enum class Arrival : uint8_t { kPartial, kWhole, kNonsense };
Arrival arrival_of(std::string_view bytes);

// Bytes that are no reply to our request. what() continues a sentence that begins with the worker's name.
class BadReply : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A value takes two bytes in a reply and up to a hundred when it is read.
constexpr int64_t kMaxReplyValues = int64_t{1} << 26;

// The result in a whole reply to request `id`. UserError and EnvironmentError, on one line: a fault that the child
// found. BadReply: no JSON (by the rules of base/json.h), more than `max_values` values, another id, or neither result
// nor fault.
base::Json result_of(std::string_view reply, uint64_t id, int64_t max_values = kMaxReplyValues);

}  // namespace tandem::worker
