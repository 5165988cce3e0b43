#include "weights/layout.h"

#include <algorithm>

#include "base/check.h"
#include "base/size.h"

namespace tandem::weights {
namespace {

int64_t product(const std::vector<int64_t>& shape) {
  base::Size elements = 1;
  for (const int64_t dim : shape) elements *= dim;
  return elements;
}

}  // namespace

int64_t PackedTensor::num_elements() const { return product(shape); }

std::vector<device::QuantisedPart> PackedTensor::quantised_parts() const {
  TANDEM_CHECK(is_quantised() && shape.size() == 2 && is_whole(), name, "cannot be quantised");
  std::vector<device::QuantisedPart> parts;
  for (const Slice& slice : slices) {
    parts.push_back(device::quantised_part(quantisation, slice.row_begin, slice.shape[0], slice.shape[1],
                                           parts.empty() ? 0 : parts.back().end_byte));
  }
  return parts;
}

bool PackedTensor::is_whole() const { return std::ranges::all_of(slices, &Slice::is_whole); }

int64_t Layout::num_elements() const {
  base::Size elements = 0;
  for (const PackedTensor& tensor : tensors) elements += tensor.num_elements();
  return elements;
}

device::Quantisation Layout::quantisation() const {
  const auto found = std::ranges::find_if(tensors, &PackedTensor::is_quantised);
  return found == tensors.end() ? device::Quantisation::kNone : found->quantisation;
}

const PackedTensor& Layout::find(const std::string& name) const {
  const auto it = std::find_if(tensors.begin(), tensors.end(), [&](const PackedTensor& t) { return t.name == name; });
  TANDEM_CHECK(it != tensors.end(), "no packed tensor", name);
  return *it;
}

}  // namespace tandem::weights
