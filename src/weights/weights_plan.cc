#include "weights/weights_plan.h"

namespace tandem::weights {

int64_t aligned_elements(int64_t elements, int64_t element_bytes) {
  const int64_t step = kTensorAlignmentBytes / element_bytes;
  return (elements + step - 1) / step * step;
}

int64_t store_bytes(const Layout& layout, int64_t element_bytes) {
  int64_t elements = 0;
  for (const PackedTensor& packed : layout.tensors) elements += aligned_elements(packed.num_elements(), element_bytes);
  return elements * element_bytes;
}

}  // namespace tandem::weights
