// Describes the weights: names, shapes, dtype, order, and a hash of them. It comes from a layout, never from live
// storage, so it is right and the same before the weights exist, while they are offloaded, and in a process that holds
// none: two sides that compare hashes know that bytes sent in this order mean the same to both. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weights/layout.h"

namespace tandem::weights {

struct WeightSpec {
  struct Tensor {
    std::string hf_name;
    std::vector<int64_t> shape;  // shape of the whole Hugging Face tensor, also in a part's layout
    bool operator==(const Tensor&) const = default;
  };

  std::string dtype;            // one for all, spelled as in safetensors: "F32" or "BF16"
  std::vector<Tensor> tensors;  // in the layout's order
  // The hash is base::checksum of a text: the line "F32", then a line "14:lm_head.weight 33,24" for each tensor (bytes
  // of the name, the name, the shape). It depends on names, shapes, dtype and order alone.
  std::string hash;
  bool operator==(const WeightSpec&) const = default;
};

// Returns the description of a store with that layout and dtype. Throws BugError if a store cannot have that dtype.
WeightSpec weight_spec(const Layout& layout, std::string_view dtype);

}  // namespace tandem::weights
