#include "worker/message.h"

#include <utility>

#include "base/check.h"
#include "base/message_text.h"

namespace tandem::worker {
namespace {

constexpr uint32_t kMaxMessageBytes = 1U << 28;  // as in protocol.py
constexpr size_t kHeaderBytes = 4;
constexpr size_t kMaxFaultBytes = 4096;  // protocol.py cuts them off at 2000 characters

const std::string* fault_of(const base::Json& reply, const char* key) {
  const auto fault = reply.find(key);
  return fault == reply.end() ? nullptr : fault->get_ptr<const std::string*>();
}

// Returns at least the number of values that a JSON text has. It is asked before the text is read, which takes the
// memory.
int64_t most_values_in(std::string_view json) {
  int64_t count = 1;
  bool in_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (c == '"') in_text = !in_text;
    if (in_text) {
      i += c == '\\' ? 1 : 0;
    } else {
      count += c == ',' || c == '[' || c == '{' ? 1 : 0;
    }
  }
  return count;
}

}  // namespace

std::string framed_request(uint64_t id, std::string_view call, const base::Json& arguments) {
  std::string body;
  try {
    body = base::Json{{"id", id}, {"call", call}, {"arguments", arguments}}.dump();
  } catch (const base::Json::type_error&) {
    throw UserError("text for a worker process is not UTF-8; convert it first");
  }
  TANDEM_USER_CHECK(body.size() <= kMaxMessageBytes, "one request to a worker process is too large:", body.size(),
                    "bytes");
  std::string frame(kHeaderBytes, '\0');
  for (size_t i = 0; i < kHeaderBytes; ++i) frame[i] = static_cast<char>(body.size() >> (8 * i));
  return frame + body;
}

Arrival arrival_of(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes) return Arrival::kPartial;
  uint32_t body_bytes = 0;
  for (size_t i = 0; i < kHeaderBytes; ++i) body_bytes |= uint32_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  if (body_bytes > kMaxMessageBytes || bytes.size() > kHeaderBytes + body_bytes) return Arrival::kNonsense;
  return bytes.size() == kHeaderBytes + body_bytes ? Arrival::kWhole : Arrival::kPartial;
}

base::Json result_of(std::string_view reply, uint64_t id, int64_t max_values) {
  TANDEM_CHECK(arrival_of(reply) == Arrival::kWhole, "a reply of", reply.size(), "bytes");
  if (most_values_in(reply.substr(kHeaderBytes)) > max_values) {
    throw BadReply("answered with more than " + std::to_string(max_values) + " values");
  }
  base::Json message;
  try {
    // parse_json() limits the depth: copying, comparing and dumping JSON take a stack frame per level.
    message = base::parse_json(reply.substr(kHeaderBytes), "reply");
  } catch (const UserError&) {
    throw BadReply("answered with something other than a reply");
  }
  if (!message.is_object() || !message.contains("id") || message["id"] != id) {
    throw BadReply("answered with something other than a reply");
  }
  if (const std::string* fault = fault_of(message, "user_fault"))
    throw UserError(base::one_line(*fault, kMaxFaultBytes));
  if (const std::string* fault = fault_of(message, "machine_fault")) {
    throw EnvironmentError(base::one_line(*fault, kMaxFaultBytes));
  }
  if (!message.contains("result")) throw BadReply("answered without a result");
  return std::move(message["result"]);
}

}  // namespace tandem::worker
