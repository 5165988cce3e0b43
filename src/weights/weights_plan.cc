#include "weights/weights_plan.h"

namespace tandem::weights {

Size aligned_elements(Size elements, Size element_bytes) {
  const Size step = kTensorAlignmentBytes / element_bytes;
  return (elements + step - 1) / step * step;
}

Size tensor_bytes_in_store(const PackedTensor& packed, Size element_bytes) {
  if (packed.is_quantised()) return packed.quantised_parts().back().end_byte;
  return aligned_elements(packed.num_elements(), element_bytes) * element_bytes;
}

Size store_bytes(const Layout& layout, Size element_bytes) {
  Size bytes = 0;
  for (const PackedTensor& packed : layout.tensors) bytes += tensor_bytes_in_store(packed, element_bytes);
  return bytes;
}

}  // namespace tandem::weights
