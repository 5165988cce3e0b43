#include "memory/ledger_events.h"

#include "base/json.h"

namespace tandem::memory {

using base::Json;

std::string timeline_line(const LedgerEvent& event) {
  Json line;
  line["time_us"] = event.time_us;
  switch (event.kind) {
    case LedgerEvent::Kind::kEnter:
      line["event"] = "enter";
      line["phase"] = to_string(event.phase);
      break;
    case LedgerEvent::Kind::kBytes:
      line["event"] = "bytes";
      line["tag"] = to_string(event.tag);
      line["bytes"] = event.bytes;
      break;
    case LedgerEvent::Kind::kNote:
      line["event"] = "note";
      line["text"] = event.text;
      break;
  }
  return base::dump_json(line);
}

std::string chrome_trace(std::span<const LedgerEvent> events) {
  Json trace_events = Json::array();
  const auto add = [&](const char* name, const char* kind, int64_t time_us) -> Json& {
    Json entry;
    entry["name"] = name;
    entry["ph"] = kind;
    entry["ts"] = time_us;
    entry["pid"] = 1;
    entry["tid"] = 1;
    return trace_events.emplace_back(std::move(entry));
  };
  const LedgerEvent* open_phase = nullptr;
  const auto end_phase = [&](int64_t time_us) {
    if (open_phase == nullptr) return;
    add(to_string(open_phase->phase), "X", open_phase->time_us)["dur"] = time_us - open_phase->time_us;
  };
  for (const LedgerEvent& event : events) {
    switch (event.kind) {
      case LedgerEvent::Kind::kEnter:
        end_phase(event.time_us);
        open_phase = &event;
        break;
      case LedgerEvent::Kind::kBytes: {
        Json bytes;
        bytes["bytes"] = event.bytes;
        add(to_string(event.tag), "C", event.time_us)["args"] = std::move(bytes);
        break;
      }
      case LedgerEvent::Kind::kNote: add(event.text.c_str(), "i", event.time_us)["s"] = "p"; break;
    }
  }
  if (!events.empty()) end_phase(events.back().time_us);
  Json trace;
  trace["traceEvents"] = std::move(trace_events);
  trace["displayTimeUnit"] = "ms";
  return base::dump_json(trace);
}

}  // namespace tandem::memory
