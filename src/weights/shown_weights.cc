#include "weights/shown_weights.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"

namespace tandem::weights {

std::string show_weights(const WeightStore& store, const device::DeviceSpec& device) {
  return device::show_memory(device, store.storage());
}

namespace {

std::vector<at::Tensor> tensors_of(const WeightStore& store) {
  std::vector<at::Tensor> tensors;
  for (const PackedTensor& packed : store.layout().tensors) tensors.push_back(store.tensor(packed.name));
  return tensors;
}

}  // namespace

std::vector<device::Checksum> checksums(const WeightStore& store, const device::DeviceSpec& device) {
  return device::checksums(device, tensors_of(store));
}

std::optional<ShownWeights> ShownWeights::map(WeightStore& store, const device::DeviceSpec& device,
                                              const std::string& word) {
  if (word.empty()) return std::nullopt;
  at::Tensor shown = device::map_memory(device, word);
  if (!shown.defined() || shown.nbytes() != store.storage().nbytes()) return std::nullopt;
  return ShownWeights(store, device, std::move(shown));
}

void ShownWeights::copy() {
  store_->begin_update();
  is_ahead_ = false;
  copied_ = device::copy_mapped(device_, shown_, store_->storage(), tensors_of(*store_));
}

void ShownWeights::allocate_second() { second_.emplace(store_->layout(), store_->dtype(), store_->device()); }

void ShownWeights::copy_ahead() {
  TANDEM_CHECK(has_second());
  copied_.reset();
  copied_ = device::copy_mapped(device_, shown_, second_->storage(), tensors_of(*second_));
  is_ahead_ = true;
}

void ShownWeights::finish(uint64_t version, const std::vector<device::Checksum>& checksums) {
  store_->begin_update();
  const auto& tensors = store_->layout().tensors;
  TANDEM_ENV_CHECK(copied_ && checksums.size() == tensors.size(), "checksums came of weights that were not copied");
  for (size_t t = 0; t < tensors.size(); ++t) {
    TANDEM_ENV_CHECK((*copied_)[t] == checksums[t],
                     fmt::format("new weights of {} are not what the run has: they changed while they were copied",
                                 tensors[t].name));
  }
  copied_.reset();
  // The store's readers are queued after this copy, and so is the next copy_ahead(), so nobody has to wait for it here.
  if (std::exchange(is_ahead_, false)) store_->storage().copy_(second_->storage());
  store_->end_update(version);
}

}  // namespace tandem::weights
