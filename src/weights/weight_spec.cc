#include "weights/weight_spec.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

#include "base/check.h"
#include "base/checksum.h"

namespace tandem::weights {
namespace {

// Hashes each name with its length, so that a name with spaces or line breaks cannot pass for another list.
std::string hash_of(const WeightSpec& info) {
  std::string text = info.dtype + "\n";
  for (const WeightSpec::Tensor& tensor : info.tensors) {
    fmt::format_to(std::back_inserter(text), "{}:{} {}\n", tensor.hf_name.size(), tensor.hf_name,
                   fmt::join(tensor.shape, ","));
  }
  return base::checksum(text);
}

}  // namespace

WeightSpec weight_spec(const Layout& layout, std::string_view dtype) {
  TANDEM_CHECK(dtype == "F32" || dtype == "BF16", "weights are F32 or BF16, not", dtype);
  WeightSpec info;
  info.dtype = dtype;
  for (const PackedTensor& packed : layout.tensors) {
    for (const Slice& slice : packed.slices) {
      info.tensors.push_back({.hf_name = slice.hf_name, .shape = slice.hf_shape()});
    }
  }
  info.hash = hash_of(info);
  return info;
}

}  // namespace tandem::weights
