// Tests of device/checksum.h: the sums are those that its header defines, on every device, and they find what was
// changed.
#include "device/checksum.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/device/draw.h"

namespace tandem::device {
namespace {

std::vector<std::byte> counted(size_t size) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < size; ++i) bytes.push_back(static_cast<std::byte>(i));
  return bytes;
}

// The expected numbers are from a program of ten lines in another language.
TEST(Checksum, IsAsItIsDefined) {
  EXPECT_EQ(checksum_of({}), Checksum());
  EXPECT_EQ(checksum_of(counted(1)), (Checksum{0x9ca066f1a4ab2eeb, 0xee7d10af4be744e1}));
  EXPECT_EQ(checksum_of(counted(8)), (Checksum{0x91abdfc42de0dbe4, 0x4429f803d052491a}));
  EXPECT_EQ(checksum_of(counted(100)), (Checksum{0xf53dd5d87b74698a, 0x6ef83cd4e7f6cff0}));
}

// Either sum alone finds it too.
TEST(Checksum, FindsWhatWasChanged) {
  TestDraw draw(7);
  const auto expect_found = [&](const std::vector<std::byte>& bytes, const std::vector<std::byte>& changed) {
    if (bytes == changed) return;
    const Checksum before = checksum_of(bytes), after = checksum_of(changed);
    EXPECT_NE(before.first, after.first);
    EXPECT_NE(before.second, after.second);
  };
  for (const size_t size : {1, 7, 8, 9, 16, 61, 200}) {
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < size; ++i) bytes.push_back(static_cast<std::byte>(draw.integer(0, 255)));
    for (size_t bit = 0; bit < 8 * size; ++bit) {
      std::vector<std::byte> changed = bytes;
      changed[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      expect_found(bytes, changed);
      // The same bit of a second byte changes, too: of two signs, say.
      for (size_t other = 0; other < size; ++other) {
        if (other == bit / 8) continue;
        std::vector<std::byte> twice = changed;
        twice[other] ^= static_cast<std::byte>(1U << (bit % 8));
        expect_found(bytes, twice);
      }
    }
    for (size_t i = 0; i + 8 < size; i += 8) {
      std::vector<std::byte> swapped = bytes;
      for (size_t j = i; j < i + 8 && j + 8 < size; ++j) std::swap(swapped[j], swapped[j + 8]);
      expect_found(bytes, swapped);
    }
    std::vector<std::byte> longer = bytes;
    longer.push_back(std::byte{0});
    expect_found(bytes, longer);
  }
  EXPECT_NE(checksum_of(std::vector<std::byte>(64)), checksum_of(std::vector<std::byte>(72)));
}

class DeviceChecksums : public testing::TestWithParam<std::string> {};

TEST_P(DeviceChecksums, AreTheSameOnEveryDevice) {
  const DeviceSpec spec{.backend = GetParam()};
  std::unique_ptr<Ops> ops;
  try {
    ops = make_ops(spec, {.num_threads = 1});
  } catch (const EnvironmentError& error) {
    GTEST_SKIP() << error.what();
  }
  TestDraw draw(11);
  std::vector<at::Tensor> tensors;
  std::vector<Checksum> want;
  for (const int64_t size : {1, 5, 8, 15, 16, 17, 4096, 1000003, 16 * 256 * 4 * 1056 + 24}) {
    const at::Tensor host = at::empty({size}, at::kByte);
    host.random_(0, 256);
    want.push_back(checksum_of({static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()}));
    tensors.push_back(host.to(ops->device()));
  }
  EXPECT_EQ(checksums(spec, tensors), want);
  EXPECT_TRUE(checksums(spec, {}).empty());
}

std::vector<std::string> kinds() {
  std::vector<std::string> names = device_backends();
  names.insert(names.begin(), "cpu");
  return names;
}
INSTANTIATE_TEST_SUITE_P(Backends, DeviceChecksums, testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tandem::device
