// Stands in for the session and the weight store, as the files of src/run call them, without LibTorch: the model's
// shape and layout are the real ones, the weights have no storage, and an export is a safetensors file in a folder that
// appears whole.
#include "session/model_session.h"

#include <array>

#include "base/check.h"
#include "base/files.h"
#include "model/registry.h"
#include "weights/safetensors.h"
#include "weights/tensor_file.h"

namespace tandem {

namespace weights {

WeightStore::WeightStore(Layout layout, at::ScalarType dtype, at::Device device, Storage)
    : layout_(std::move(layout)), dtype_(dtype), device_(device) {}

WeightStore WeightStore::without_storage(Layout layout, at::ScalarType dtype, at::Device device) {
  return {std::move(layout), dtype, device, Storage::kNone};
}

at::Tensor WeightStore::slice(const PackedTensor& packed, const Slice&) const {
  TANDEM_CHECK(false, "a store without storage has no rows of", packed.name);
  return {};
}

const char* safetensors_dtype(at::ScalarType) { return "F32"; }

int64_t copied_bytes(const std::string&) { return 0; }

TensorBytes tensor_bytes(const std::string& name, const at::Tensor& tensor) {
  return {.name = name,
          .dtype = "F32",
          .shape = tensor.sizes().vec(),
          .bytes = {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()}};
}

void export_hf_checkpoint(const std::string& path, const WeightStore&, const ExportOptions&) {
  base::DurableDirectory directory(path, /*replace=*/true);
  static constexpr std::array<std::byte, 4> kZeros{};
  write_safetensors(directory.path() + "/model.safetensors",
                    {{.name = "w", .dtype = "F32", .shape = {1}, .bytes = kZeros}}, {});
  directory.commit();
}

}  // namespace weights

namespace session {

ModelSession::ModelSession(const config::ModelOptions& options)
    : options_(options),
      place_{.directory = options.hf_checkpoint},
      config_(model::read_model_config(options.hf_checkpoint)) {
  base_ = std::make_unique<weights::WeightStore>(
      weights::WeightStore::without_storage(model::build_layout(config_), at::kFloat));
}

void ModelSession::export_trained(const std::string& path, device::Communicator&) const {
  weights::export_hf_checkpoint(path, *base_, {.source_directory = directory(), .overwrite = true});
}

}  // namespace session

}  // namespace tandem
