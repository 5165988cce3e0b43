// Checks that offered tensors, in files or in memory, are those of a layout. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weights/layout.h"

namespace tandem::weights {

struct OfferedTensor {
  std::string place;  // file or other place, for messages
  std::string dtype;  // spelled as in safetensors
  std::vector<int64_t> shape;
};

// Throws UserError, with tensor and remedy, if a tensor of the layout is missing, one is neither in the layout nor
// ignored, a shape differs, or a dtype is not F32, BF16 or F16. `offered` is by HF name; `place` is where all of it is.
// Tensors are offered whole, even to the layout of a part.
void check_offered(const std::map<std::string, OfferedTensor>& offered, const Layout& layout, const std::string& place);

}  // namespace tandem::weights
