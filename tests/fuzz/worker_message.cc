// sampling/worker_messages: whatever a process sends behind the right checksum is a message that is written as it was
// read, or is refused.
#include "sampling/worker_messages.h"

#include "base/wire.h"
#include "tests/fuzz/target.h"

using namespace tandem::fuzz;
using namespace tandem::sampling;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view payload = text_of(data, size);
  std::string written;
  try {
    written = to_bytes(worker_message(tandem::base::sealed(payload, kWorkerMessageFormat)));
  } catch (const tandem::EnvironmentError&) {
    return 0;
  }
  require(to_bytes(worker_message(written)) == written, "a message reads back as the same");
  return 0;
}
