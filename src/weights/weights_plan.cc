#include "weights/weights_plan.h"

namespace tandem::weights {

Size aligned_elements(Size elements, Size element_bytes) {
  const Size step = kTensorAlignmentBytes / element_bytes;
  return (elements + step - 1) / step * step;
}

Size store_bytes(const Layout& layout, Size element_bytes) {
  Size elements = 0;
  for (const PackedTensor& packed : layout.tensors) elements += aligned_elements(packed.num_elements(), element_bytes);
  return elements * element_bytes;
}

}  // namespace tandem::weights
