// Formats a ledger's events as lines of memory_timeline.jsonl, and as a trace for chrome://tracing or Perfetto. No
// torch.
#pragma once

#include <span>
#include <string>

#include "memory/ledger.h"

namespace tandem::memory {

// Returns one line, without '\n':
//   {"time_us":12,"event":"enter","phase":"rollout"}
//   {"time_us":13,"event":"bytes","tag":"kv","bytes":1073741824}
//   {"time_us":14,"event":"note","text":"pause reference"}
std::string timeline_line(const LedgerEvent& event);

// Returns the trace-event format: a counter track per tag, phases as slices (the last one ends with the last event),
// notes as instants. `events` are all events of one ledger from its beginning, in order.
std::string chrome_trace(std::span<const LedgerEvent> events);

}  // namespace tandem::memory
