// base/json: what it accepts nlohmann's own parser accepts as the same value, and dumping loses nothing; what it alone
// refuses breaks one of the rules that it adds.
#include "base/json.h"

#include <optional>

#include "tests/fuzz/json_mutator.h"

using tandem::base::Json;
using namespace tandem::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = text_of(data, size);
  std::optional<Json> value;
  std::string refusal;
  const bool accepted = accepts([&] { value = tandem::base::parse_json(text, "input.json"); },
                                [&](std::string_view message) {
                                  require_placed_message(message, "input.json");
                                  refusal = message;
                                });
  if (!accepted) {
    const bool own_rule = refusal.find("appears twice") != std::string::npos ||
                          refusal.find("nested deeper") != std::string::npos ||
                          refusal.find("NUL byte") != std::string::npos;
    require(own_rule || !Json::accept(text), "no valid JSON is refused without a rule", refusal);
    return 0;
  }
  require(Json::parse(text) == *value, "the value is the text's");
  const std::string dumped = tandem::base::dump_json(*value);
  const Json again = tandem::base::parse_json(dumped, "dumped");
  require(again == *value, "a dump reads back as the same value", dumped);
  require(tandem::base::dump_json(again) == dumped, "a dump of a dump is itself", dumped);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return mutate_json(data, size, max_size, seed);
}
