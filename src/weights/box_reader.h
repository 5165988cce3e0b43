// How a box of a tensor is read from a safetensors file. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "weights/box.h"
#include "weights/safetensors.h"

namespace tandem::weights {

// Rows are read in one piece, straight to where they go. Of columns the file is read as it lies, about a MiB at a time
// with what is between them, and they are cut out in host memory: a disk likes that better than many small reads. That
// MiB is all the memory that it takes, once columns are read. Used from one thread at a time.
class BoxReader {
 public:
  // The bytes of the box's elements from `first` on, as many as `out` has room for. UserError: the file is cut off.
  void read(const SafetensorsFile& file, const TensorInfo& tensor, const Box& box, int64_t first,
            std::span<std::byte> out);

 private:
  std::vector<std::byte> rows_;
};

}  // namespace tandem::weights
