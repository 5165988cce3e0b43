// The promise of messages between processes of one build.
#pragma once

#include <string>
#include <string_view>

#include "base/wire.h"
#include "tests/fuzz/target.h"

namespace tandem::fuzz {

// Whatever comes with the right checksum is a message that is written as it was read, or is refused.
template <typename MessageOf>
void require_reads_back(std::string_view payload, uint32_t format, MessageOf message_of) {
  std::string written;
  try {
    written = to_bytes(message_of(base::sealed(payload, format)));
  } catch (const EnvironmentError&) {
    return;
  }
  require(to_bytes(message_of(written)) == written, "a message reads back as the same");
}

}  // namespace tandem::fuzz
