// `tandem export`: a checkpoint rewritten as a plain Hugging Face directory.
#include "run/verbs.h"

#include <fmt/format.h>

#include "base/files.h"
#include "checkpoint/run_directory.h"
#include "model/dtype.h"
#include "model/registry.h"
#include "report/report.h"
#include "run/read_model.h"
#include "run/stop_signal.h"
#include "weights/store.h"

namespace tandem::run {

int export_checkpoint(const config::ExportConfig& config, const config::RunMode& mode) {
  config.check();
  const std::string source =
      config.run.empty() ? config.hf_checkpoint : checkpoint::find_checkpoint(config.run, config.step);
  config::ModelOptions model;
  model.hf_checkpoint = source;
  model.dtype = config.dtype;
  const model::ModelConfig shape = read_model(model);
  const int64_t bytes = shape.num_parameters() * model::dtype_bytes(shape.dtype);
  base::check_writable_directory(config.output, bytes);
  report::Report report;
  if (mode.dry_run) {
    report.print(fmt::format("{} -> {}: {} bytes in {}; nothing was written (--dry-run)", source, config.output, bytes,
                             model::to_string(shape.dtype)));
    return 0;
  }
  weights::WeightStore store(model::build_layout(shape), model::scalar_type(shape.dtype));
  weights::load_hf_checkpoint(source, store);
  defer_stops("stopping when the export is written (a second signal ends it at once)");
  weights::ExportOptions files = config.files;
  files.source_directory = source;
  weights::export_hf_checkpoint(config.output, store, files);
  report.print(fmt::format("wrote {}: {} parameters in {}", config.output, shape.num_parameters(),
                           model::to_string(shape.dtype)));
  return 0;
}

}  // namespace tandem::run
