#include "sampling/processes/messages.h"

#include <utility>

#include "base/wire_fields.h"

namespace tandem::sampling {

std::string to_bytes(const Message& message) { return base::packed(base::OneOf<Message>{message}, kMessageFormat); }

Message message_of(std::string_view bytes) {
  return std::move(base::unpacked<base::OneOf<Message>>(bytes, kMessageFormat).value);
}

}  // namespace tandem::sampling
