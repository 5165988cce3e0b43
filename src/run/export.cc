// `tandem export` rewrites a checkpoint as a plain Hugging Face directory.
#include "run/verbs.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/check.h"
#include "base/files.h"
#include "checkpoint/run_directory.h"
#include "model/dtype.h"
#include "model/lora.h"
#include "model/registry.h"
#include "report/report.h"
#include "session/read_model.h"
#include "session/stop_signal.h"
#include "weights/checkpoint_files.h"
#include "weights/export_target.h"
#include "weights/store.h"

namespace tandem::run {

namespace {

// Adds scale B A to each weight W that has an adapter, which is float32, and rounds once to the store's dtype. Modules
// that were trained whole take the place of the base's.
void merge(const weights::WeightStore& adapter, const model::ModelConfig& config, weights::WeightStore& store) {
  weights::copy_common(adapter, store);
  for (const model::AdaptedMatrix& m : model::adapted_matrices(config)) {
    const at::Tensor weight = store.tensor(m.packed_name).narrow(0, m.row, m.num_rows);
    const at::Tensor a_RK = adapter.tensor(m.packed_name + model::kLoraA).narrow(0, m.a_row, config.lora->rank);
    const at::Tensor b_NR = adapter.tensor(m.packed_name + model::kLoraB).narrow(0, m.b_row, m.num_rows);
    weight.copy_(at::mm(b_NR, a_RK).mul_(config.lora->scale()).add_(weight));
  }
}

// Returns the weights of a model in a dtype, with its adapter merged into them if it has one.
weights::WeightStore read_merged(const session::ModelPlace& place, const model::ModelConfig& shape) {
  const at::ScalarType dtype = model::scalar_type(shape.dtype);
  if (!shape.lora) {
    weights::WeightStore store(model::build_layout(shape), dtype);
    weights::load_hf_checkpoint(place.directory, store);
    return store;
  }
  // The wider of the two dtypes is used until the adapter is merged, so that each weight is rounded once.
  const at::ScalarType source = model::scalar_type(model::read_model_config(place.directory).dtype);
  weights::WeightStore store(model::build_layout(shape), source == at::kFloat ? at::kFloat : dtype);
  weights::load_hf_checkpoint(place.directory, store);
  weights::WeightStore adapter(model::adapter_layout(shape), at::kFloat);
  weights::load_adapter(place.adapter, adapter);
  merge(adapter, shape, store);
  if (store.dtype() == dtype) return store;
  weights::WeightStore rounded(model::build_layout(shape), dtype);
  for (const weights::PackedTensor& packed : store.layout().tensors) {
    rounded.tensor(packed.name).copy_(store.tensor(packed.name));
  }
  return rounded;
}

// Returns the folder to write, where --output is a link the one that it leads to: a folder is put in place whole, and
// no folder takes the place of a link.
std::string output_folder(const std::string& given) {
  const std::string path = base::without_trailing_slashes(given);
  TANDEM_USER_CHECK(!base::file_exists(path), fmt::format("--output {}: is a file; name a directory", given));
  std::error_code error;
  if (!std::filesystem::is_symlink(std::filesystem::symlink_status(path, error))) return path;
  const std::string target = std::filesystem::canonical(path, error).string();
  TANDEM_USER_CHECK(!error, fmt::format("--output {}: is a symbolic link that leads to no directory; make that "
                                        "directory, or name another one",
                                        given));
  return target;
}

// Throws UserError for a folder that nothing can take the place of: one that the process stands in by name, and one
// where a file system begins.
void check_is_replaceable(const std::string& output, const std::string& given) {
  const std::string name = std::filesystem::path(output).filename().string();
  struct stat here = {};
  struct stat above = {};
  const bool is_there = ::stat(output.c_str(), &here) == 0 && ::stat((output + "/..").c_str(), &above) == 0;
  // A mount point is on another device than the folder above it; "/" is its own folder above.
  const bool is_mount = is_there && (here.st_dev != above.st_dev || here.st_ino == above.st_ino);
  TANDEM_USER_CHECK(
      name != "." && name != ".." && !is_mount,
      fmt::format("--output {}: cannot be replaced as a whole, as an export does; name a folder inside it", given));
}

}  // namespace

int export_checkpoint(const config::ExportConfig& config, const config::RunMode& mode) {
  config.check();
  const std::string source =
      config.run.empty() ? config.hf_checkpoint : checkpoint::find_checkpoint(config.run, config.step);
  config::ModelOptions model;
  model.hf_checkpoint = source;
  model.dtype = config.dtype;
  const session::ModelPlace place = session::find_model(source);
  const model::ModelConfig shape = session::read_model(model);
  TANDEM_USER_CHECK(shape.file_quantisation == device::Quantisation::kNone,
                    fmt::format("{}: has weights in {}, and an export has none that are quantised; {}", place.directory,
                                model::to_string(shape.file_quantisation),
                                place.adapter.empty() ? "export the checkpoint that it was made from"
                                                      : "to merge the adapter, name the checkpoint that it was made "
                                                        "from as base_model_name_or_path in its adapter_config.json"));
  const std::string output = output_folder(config.output);
  std::error_code error;
  TANDEM_USER_CHECK(!std::filesystem::equivalent(output, source, error),
                    fmt::format("--output {}: is what is exported; give another folder", config.output));
  TANDEM_USER_CHECK(!std::filesystem::equivalent(output, place.directory, error),
                    fmt::format("--output {}: is the base of {}, which is merged with it; give another folder",
                                config.output, source));
  const int64_t bytes = shape.num_parameters() * model::dtype_bytes(shape.dtype);
  check_is_replaceable(output, config.output);
  weights::check_export_target(output, config.files.overwrite);
  session::check_weights(place, shape);
  base::check_writable_directory(std::filesystem::absolute(output).parent_path().string(), bytes);
  report::Report report;
  const std::string merged = place.adapter.empty() ? "" : fmt::format(", merged into {}", place.directory);
  if (mode.dry_run) {
    report.print_result(fmt::format("{}{} -> {}: {} bytes in {}; nothing was written (--dry-run)", source, merged,
                                    config.output, bytes, model::to_string(shape.dtype)));
    return 0;
  }
  const weights::WeightStore store = read_merged(place, shape);
  session::defer_stops("stopping when the export is written (a second signal ends it at once)");
  weights::ExportOptions files = config.files;
  files.source_directory = place.directory;
  weights::export_hf_checkpoint(output, store, files);
  report.print_result(fmt::format("wrote {}: {} parameters in {}{}", config.output, shape.num_parameters(),
                                  model::to_string(shape.dtype),
                                  place.adapter.empty() ? "" : ", the adapter merged into them"));
  return 0;
}

}  // namespace tandem::run
