// Whether tensors that somebody offers, in files or in memory, are those that a layout asks for. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "weights/layout.h"

namespace tandem::weights {

struct OfferedTensor {
  std::string place;  // where it is, for messages: a file
  std::string dtype;  // as safetensors spells it
  std::vector<int64_t> shape;
};

// UserError, with tensor and remedy: one that the layout asks for is missing, one is neither asked for nor ignored, a
// shape is another, or a dtype is not F32, BF16 or F16. `offered` is by HF name; `place` is where all of it is.
// Whole tensors are offered, to the layout of a part too.
void check_offered(const std::map<std::string, OfferedTensor>& offered, const Layout& layout, const std::string& place);

}  // namespace tandem::weights
