#include "sampling/messages.h"

#include <utility>

#include "base/wire_fields.h"

namespace tandem::sampling {

namespace {

// Changes with whatever a message is made of.
constexpr uint32_t kFormat = 0x534D0004;

}  // namespace

std::string to_bytes(const Message& message) { return base::packed(base::OneOf<Message>{message}, kFormat); }

Message message_of(std::string_view bytes) {
  return std::move(base::unpacked<base::OneOf<Message>>(bytes, kFormat).value);
}

}  // namespace tandem::sampling
