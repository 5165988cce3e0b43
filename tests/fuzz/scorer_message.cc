// scorer/messages: whatever a run and a process that scores for it send with the right checksum is a message that is
// written as it was read, or is refused.
#include "scorer/messages.h"

#include "base/wire.h"
#include "tests/fuzz/target.h"

using namespace tandem::fuzz;
using namespace tandem::scorer;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view payload = text_of(data, size);
  std::string written;
  try {
    written = to_bytes(message_of(tandem::base::sealed(payload, kMessageFormat)));
  } catch (const tandem::EnvironmentError&) {
    return 0;
  }
  require(to_bytes(message_of(written)) == written, "a message reads back as the same");
  return 0;
}
