// scorer/messages: what a run and a process that scores for it send.
#include "scorer/messages.h"

#include "tests/fuzz/message_target.h"

using namespace tandem;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::require_reads_back(fuzz::text_of(data, size), scorer::kMessageFormat, scorer::message_of);
  return 0;
}
