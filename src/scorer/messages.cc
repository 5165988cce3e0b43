#include "scorer/messages.h"

#include <algorithm>
#include <utility>

#include "base/sha256.h"
#include "base/wire_fields.h"

namespace tandem::scorer {

std::string to_bytes(const Message& message) { return base::packed(base::OneOf<Message>{message}, kMessageFormat); }

Message message_of(std::string_view bytes) {
  return std::move(base::unpacked<base::OneOf<Message>>(bytes, kMessageFormat).value);
}

std::string digest_of(const std::vector<std::string>& token_bytes, int64_t num_ids) {
  std::string all;
  const auto count = std::min(static_cast<int64_t>(token_bytes.size()), num_ids);
  for (int64_t id = 0; id < count; ++id) {
    const std::string& text = token_bytes[static_cast<size_t>(id)];
    all += std::to_string(text.size()) + ":" + text;
  }
  return base::sha256(all);
}

}  // namespace tandem::scorer
