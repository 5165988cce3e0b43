// Reads a box of a tensor from a safetensors file. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weights/box.h"
#include "weights/safetensors.h"

namespace tandem::weights {

// Rows are read in one piece, straight into their destination. For columns the file is read as it lies, about a MiB at
// a time with the bytes between them, and the columns are cut out in host memory, since that is faster than many small
// reads. Once columns are read, that MiB is all the memory it takes. It is used from one thread at a time.
class BoxReader {
 public:
  // Reads the bytes of the box's elements from `first` on, as many as `out` has room for. Throws UserError if the file
  // is cut off.
  void read(const SafetensorsFile& file, const TensorInfo& tensor, const Box& box, int64_t first,
            std::span<std::byte> out);

 private:
  std::vector<std::byte> rows_;
};

}  // namespace tandem::weights
