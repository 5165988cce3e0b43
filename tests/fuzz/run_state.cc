// checkpoint/run_state: an accepted state.json has counts that are none below 0 and can be counted on by one, and
// writing it gives what reads back as the same.
#include "checkpoint/run_state.h"

#include <optional>

#include "tests/fuzz/json_mutator.h"

using namespace tandem::fuzz;
using tandem::base::Json;
using tandem::checkpoint::RunState;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string kFile = "state.json";
  std::optional<Json> json;
  accepts([&] { json = tandem::base::parse_json(text_of(data, size), kFile); }, [](std::string_view) {});
  if (!json) return 0;
  std::optional<RunState> state;
  accepts([&] { state = RunState::from_json(*json, kFile); },
          [](std::string_view message) { require_message(message, kFile + ":"); });
  if (!state) return 0;
  const std::pair<const char*, int64_t> counts[] = {
      {"step", state->step},
      {"optimizer_updates", state->optimizer.updates},
      {"optimizer_steps", state->optimizer.steps},
      {"skipped_in_a_row", state->skipped_in_a_row},
      {"failed_in_a_row", state->failed_in_a_row},
      {"weight_version", static_cast<int64_t>(state->weight_version)},
      {"epoch", state->cursor.epoch},
      {"offset", state->cursor.offset},
  };
  for (const auto& [name, count] : counts) require(count >= 0 && count < INT64_MAX, "a count can be added to", name);
  for (const auto& [name, bytes] : state->file_bytes) require(bytes >= 0, "no file has a negative size", name);
  const Json written = state->to_json();
  const auto again = RunState::from_json(tandem::base::parse_json(tandem::base::dump_json(written), "again"), "again");
  require(again.to_json() == written, "its own text reads back to the same state");
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return mutate_json(data, size, max_size, seed);
}
