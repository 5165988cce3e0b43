// sampling/processes/messages: what rank 0 of a run and the processes that sample for it send.
#include "sampling/processes/messages.h"

#include "tests/fuzz/message_target.h"

using namespace tandem;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::require_reads_back(fuzz::text_of(data, size), sampling::kMessageFormat, sampling::message_of);
  return 0;
}
