// model/peft: an accepted adapter_config.json gives a rank, a scale and modules whose names a model may be asked for.
#include "model/peft.h"

#include <cmath>
#include <optional>

#include "tests/fuzz/json_mutator.h"

using namespace tandem::fuzz;
using tandem::model::AdapterFile;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::optional<AdapterFile> file;
  accepts([&] { file = tandem::model::parse_adapter_config(std::string(text_of(data, size)), "adapter_config.json"); },
          [](std::string_view message) { require_message(message, "adapter_config.json"); });
  if (!file) return 0;
  require(file->rank >= 1 && file->rank <= (int64_t{1} << 20), "the rank is in its range");
  require(std::isfinite(file->alpha) && file->alpha > 0.0, "the scale is usable");
  require(!file->base.empty() && !file->target_modules.empty(), "base and modules are named");
  // A file that Tandem writes from these values reads back as the same.
  const AdapterFile again =
      tandem::model::parse_adapter_config(tandem::model::adapter_config_text({.rank = file->rank,
                                                                              .alpha = file->alpha,
                                                                              .target_modules = file->target_modules,
                                                                              .is_rank_stabilized = file->use_rslora,
                                                                              .saved_modules = file->modules_to_save,
                                                                              .dropout = file->dropout},
                                                                             file->base),
                                          "adapter_config.json");
  require(again.rank == file->rank && again.alpha == file->alpha && again.use_rslora == file->use_rslora &&
              again.base == file->base && again.modules_to_save == file->modules_to_save &&
              again.dropout == file->dropout,
          "it is written as read");
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  return mutate_json(data, size, max_size, seed);
}
