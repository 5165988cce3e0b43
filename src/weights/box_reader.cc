#include "weights/box_reader.h"

#include <algorithm>

#include "base/check.h"

namespace tandem::weights {
namespace {

constexpr int64_t kReadBytes = int64_t{1} << 20;

}  // namespace

void BoxReader::read(const SafetensorsFile& file, const TensorInfo& tensor, const Box& box, int64_t first,
                     std::span<std::byte> out) {
  const int64_t element_bytes = safetensors_dtype_bits(tensor.dtype) / 8;
  const int64_t count = static_cast<int64_t>(out.size()) / element_bytes;
  TANDEM_CHECK(first >= 0 && first + count <= box.num_elements(), "elements", first, "+", count, "of a box");
  std::vector<Run> runs;  // runs served by one read
  const auto read_runs = [&] {
    if (runs.empty()) return;
    const int64_t begin = runs.front().index, elements = runs.back().index + runs.back().count - begin;
    const auto place = [&](const Run& run) {
      return out.subspan(static_cast<size_t>((run.element - first) * element_bytes),
                         static_cast<size_t>(run.count * element_bytes));
    };
    if (runs.size() == 1) {
      file.read(tensor, begin * element_bytes, place(runs.front()));
    } else {
      rows_.resize(static_cast<size_t>(kReadBytes));
      const std::span<std::byte> read = std::span(rows_).first(static_cast<size_t>(elements * element_bytes));
      file.read(tensor, begin * element_bytes, read);
      for (const Run& run : runs) {
        const std::span<std::byte> target = place(run);
        std::ranges::copy(read.subspan(static_cast<size_t>((run.index - begin) * element_bytes), target.size()),
                          target.begin());
      }
    }
    runs.clear();
  };
  for_each_run(box, first, count, [&](const Run& run) {
    if (!runs.empty() && (run.index + run.count - runs.front().index) * element_bytes > kReadBytes) read_runs();
    runs.push_back(run);
  });
  read_runs();
}

}  // namespace tandem::weights
