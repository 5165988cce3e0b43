// Filling a store takes one staging buffer where bytes are converted or go to a device, and otherwise no memory beyond
// the store. It is measured as the heap's own count (address sanitizer) or as the kernel saw it.
#include <gtest/gtest.h>

#include "tests/pretend_device/pretend_device.h"
#include "tests/weights/file_bytes.h"
#include "tests/weights/peak_memory.h"
#include "tests/weights/starting_states.h"
#include "weights/safetensors.h"

namespace tandem::weights {
namespace {

// Slices have a little more than 4 or 8 MiB: converting a whole one at once would show beyond a buffer of 4 MiB.
Layout layout_of_slices() {
  constexpr int64_t kRows = 1537, kColumns = 1500;
  Layout layout;
  for (const std::string name : {"x", "y"}) {
    PackedTensor packed = {.name = name, .shape = {2 * kRows, kColumns}, .slices = {}};
    for (int64_t i = 0; i < 2; ++i) {
      packed.slices.push_back(
          {.hf_name = name + std::to_string(i), .shape = {kRows, kColumns}, .row_begin = i * kRows});
    }
    layout.tensors.push_back(packed);
  }
  return layout;
}

struct Case {
  at::ScalarType from;
  at::ScalarType to;
};

class LoadingMemory : public testing::TestWithParam<Case> {
 protected:
  // This starts threads and makes LibTorch's lasting allocations.
  static void SetUpTestSuite() {
    const TemporaryDirectory directory;
    write_directory(directory.path(), some_tensors(layout_of_slices(), at::kHalf));
    WeightStore warm(layout_of_slices(), at::kFloat);
    load_hf_checkpoint(directory.path(), warm);
  }

  HfTensors sources() const { return some_tensors(layout_, GetParam().from); }
  bool converts() const { return GetParam().from != GetParam().to; }

  // Returns a store whose memory exists and is touched.
  WeightStore filled_store(at::Device device = at::kCPU) const {
    WeightStore store(layout_, GetParam().to, device);
    for (const PackedTensor& packed : layout_.tensors) store.tensor(packed.name).fill_(1);
    return store;
  }

  const Layout layout_ = layout_of_slices();
};

TEST_P(LoadingMemory, FilesTakeOneStagingBufferAndOnlyToConvert) {
  const TemporaryDirectory directory;
  write_directory(directory.path(), sources());
  WeightStore store = filled_store();
  const PeakMemory memory;
  load_hf_checkpoint(directory.path(), store);
  EXPECT_LE(memory.peak_bytes(), (converts() ? kStagingBytes : 0) + PeakMemory::kSlackBytes);
}

TEST_P(LoadingMemory, FilesIntoNoStorageTakeTheStoreBeside) {
  const TemporaryDirectory directory;
  write_directory(directory.path(), sources());
  WeightStore store = WeightStore::without_storage(layout_, GetParam().to);
  const PeakMemory memory;
  load_hf_checkpoint(directory.path(), store);
  EXPECT_LE(memory.peak_bytes(), store.bytes() + (converts() ? kStagingBytes : 0) + PeakMemory::kSlackBytes);
}

// The pretended device's memory is not the heap's, so the kernel's count cannot tell it from the host's.
TEST_P(LoadingMemory, DevicesAreFilledThroughOneStagingBuffer) {
  if (!PeakMemory::kCountsHeap) GTEST_SKIP() << "counts the heap: needs the address sanitizer";
  pretend_device::reset(int64_t{256} << 20);
  const TemporaryDirectory directory;
  write_directory(directory.path(), sources());
  WeightStore store = filled_store(pretend_device::device());
  {
    const PeakMemory memory;
    load_hf_checkpoint(directory.path(), store);
    EXPECT_LE(memory.peak_bytes(), kStagingBytes + PeakMemory::kSlackBytes);
  }
  const PeakMemory memory;
  initialize_random(store, 0.02, 1);
  EXPECT_LE(memory.peak_bytes(), kStagingBytes + PeakMemory::kSlackBytes);
}

// Rows have 6 kB, of which a part has two thirds; some are converted and some go straight into place.
TEST(LoadingMemoryOfParts, IsOneMoreMiBWhereColumnsAreCut) {
  const HfTensors tensors = some_tensors(layout_of_slices(), at::kFloat);
  const TemporaryDirectory directory;
  write_directory(directory.path(), tensors);
  Layout layout = layout_of_slices();
  for (PackedTensor& packed : layout.tensors) {
    packed.shape[1] = 1000;
    for (Slice& slice : packed.slices) {
      slice.whole_shape = slice.shape;
      slice.begin = {0, 500};
      slice.shape[1] = 1000;
    }
  }
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    WeightStore store(layout, dtype);
    load_hf_checkpoint(directory.path(), store);  // touches all memory and makes LibTorch's lasting allocations
    const PeakMemory memory;
    load_hf_checkpoint(directory.path(), store);
    const int64_t staging_bytes = dtype == at::kFloat ? 0 : kStagingBytes;
    EXPECT_LE(memory.peak_bytes(), staging_bytes + (int64_t{1} << 20) + PeakMemory::kSlackBytes);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, LoadingMemory,
                         testing::Values(Case{at::kFloat, at::kFloat}, Case{at::kBFloat16, at::kFloat},
                                         Case{at::kHalf, at::kFloat}, Case{at::kFloat, at::kBFloat16},
                                         Case{at::kBFloat16, at::kBFloat16}, Case{at::kHalf, at::kBFloat16}),
                         [](const auto& info) {
                           return std::string(c10::toString(info.param.from)) + "To" + c10::toString(info.param.to);
                         });

// This tests the measure itself: it sees a buffer that came and went, or the tests above prove nothing.
TEST(PeakMemory, SeesABufferThatCameAndWent) {
  constexpr int64_t kBytes = int64_t{16} << 20;
  at::arange(kBytes / 4, at::kInt);  // makes LibTorch's lasting allocations
  const PeakMemory memory;
  at::arange(kBytes / 4, at::kInt);
  EXPECT_GE(memory.peak_bytes(), kBytes - PeakMemory::kSlackBytes);
  EXPECT_LE(memory.peak_bytes(), kBytes + PeakMemory::kSlackBytes);
  EXPECT_LE(memory.bytes(), PeakMemory::kSlackBytes);
}

}  // namespace
}  // namespace tandem::weights
