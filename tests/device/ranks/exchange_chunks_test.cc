// Tests of bytes between ranks that are cut into chunks: they arrive, whatever the sizes.
#include "device/exchange_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "base/check.h"

namespace tandem::device {
namespace {

struct Bytes {
  std::vector<std::vector<std::byte>> tensors;
  std::vector<Piece> pieces(int rank) {
    std::vector<Piece> result;
    for (std::vector<std::byte>& tensor : tensors) {
      result.push_back({.rank = rank, .data = tensor.data(), .bytes = std::ssize(tensor)});
      // Pieces of other ranks are ignored.
      result.push_back({.rank = rank + 1, .data = tensor.data(), .bytes = 1});
    }
    return result;
  }
};

// A receiver finds in a place the bytes that a sender wrote there, whatever the sizes.
TEST(ExchangeChunks, CarryEveryByteToItsPlace) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    const int64_t chunk_bytes = kSectionAlignment * (1 + static_cast<int64_t>(random() % 5));
    Bytes sent, received;
    int64_t num_bytes = 0;
    for (uint64_t i = random() % 6; i > 0; --i) {
      std::vector<std::byte> tensor(1 + random() % (random() % 2 == 0 ? 20 : 3000));
      std::ranges::generate(tensor, [&] { return static_cast<std::byte>(random()); });
      num_bytes += std::ssize(tensor);
      received.tensors.emplace_back(tensor.size());
      sent.tensors.push_back(std::move(tensor));
    }
    const std::vector<Chunk> to = chunks_of(sent.pieces(3), 3, chunk_bytes);
    const std::vector<Chunk> from = chunks_of(received.pieces(1), 1, chunk_bytes);
    ASSERT_EQ(to.size(), from.size());
    for (size_t i = 0; i < to.size(); ++i) {
      std::vector<std::byte> place(static_cast<size_t>(chunk_bytes));
      int64_t end = 0;
      for (const Section& section : to[i]) {
        ASSERT_GE(section.offset, end);
        ASSERT_EQ(section.offset % kSectionAlignment, 0);
        end = section.offset + section.bytes;
        ASSERT_LE(end, chunk_bytes);
        std::memcpy(place.data() + section.offset, section.data, static_cast<size_t>(section.bytes));
        num_bytes -= section.bytes;
      }
      for (const Section& section : from[i])
        std::memcpy(section.data, place.data() + section.offset, static_cast<size_t>(section.bytes));
    }
    EXPECT_EQ(num_bytes, 0);
    EXPECT_EQ(sent.tensors, received.tensors);
  }
}

TEST(ExchangeChunks, AreFullButForTheLast) {
  std::vector<std::byte> tensor(1000);
  const std::vector<Piece> pieces = {{.rank = 0, .data = tensor.data(), .bytes = 1000}};
  const std::vector<Chunk> chunks = chunks_of(pieces, 0, 512);
  ASSERT_EQ(chunks.size(), 2);
  EXPECT_EQ(chunks[0][0].bytes, 512);
  EXPECT_EQ(chunks[1][0].bytes, 488);
  EXPECT_TRUE(chunks_of(pieces, 1, 512).empty());
  EXPECT_THROW(chunks_of(pieces, 0, 100), BugError);
}

}  // namespace
}  // namespace tandem::device
