// New weights on their way into another store, in pieces or through exported memory: they arrive unchanged, and a
// failure leaves a store that nothing samples from.
#include "weights/sync.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tandem/error.h"
#include "tests/base/thrown.h"
#include "tests/weights/shown_memory.h"
#include "tests/weights/small_layout.h"
#include "weights/shown_weights.h"

namespace tandem::weights {
namespace {

struct SentPiece {
  WeightPiece piece;
  std::vector<std::byte> bytes;
};

std::vector<SentPiece> pieces_of(const WeightStore& store, int64_t max_bytes) {
  std::vector<SentPiece> sent;
  send_weights(store, max_bytes, [&](const WeightPiece& piece, std::span<const std::byte> bytes) {
    EXPECT_EQ(piece.num_bytes, std::ssize(bytes));
    sent.push_back({piece, {bytes.begin(), bytes.end()}});
  });
  return sent;
}

bool same_weights(const WeightStore& a, const WeightStore& b) {
  for (const PackedTensor& packed : a.layout().tensors) {
    const at::Tensor &x = a.tensor(packed.name), &y = b.tensor(packed.name);
    if (std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) != 0) return false;
  }
  return true;
}

class WeightSync : public testing::TestWithParam<at::ScalarType> {
 protected:
  WeightSync() : from_(small_layout(), GetParam()), to_(small_layout(), GetParam()) {
    initialize_random(from_, 0.02, 1);
    initialize_random(to_, 0.02, 2);
    from_.set_version(5);
  }

  WeightStore from_, to_;
};
INSTANTIATE_TEST_SUITE_P(Dtypes, WeightSync, testing::Values(at::kFloat, at::kBFloat16));

TEST_P(WeightSync, PiecesOfAnySizeGiveTheSameStore) {
  for (const int64_t max_bytes : {1, 100, 4096, 1 << 20}) {
    initialize_random(to_, 0.02, 2);
    WeightReceiver receiver(to_);
    for (const SentPiece& sent : pieces_of(from_, max_bytes)) {
      EXPECT_LE(sent.piece.num_bytes, std::max<int64_t>(max_bytes, static_cast<int64_t>(c10::elementSize(GetParam()))));
      EXPECT_THROW(to_.view(), BugError) << "it is not whole";
      receiver.take(sent.piece, sent.bytes);
    }
    receiver.finish(5);
    EXPECT_TRUE(same_weights(from_, to_)) << max_bytes;
    EXPECT_EQ(to_.view().version(), 5U);
  }
}

TEST_P(WeightSync, APieceThatIsNotTheNextOneIsRefused) {
  const std::vector<SentPiece> sent = pieces_of(from_, 100);
  const auto refused_at = [&](size_t next, WeightPiece piece) {
    WeightReceiver receiver(to_);
    for (size_t i = 0; i < next; ++i) receiver.take(sent[i].piece, sent[i].bytes);
    const std::string why = base::thrown_by<EnvironmentError>([&] { receiver.take(piece, sent[0].bytes); });
    EXPECT_FALSE(to_.is_whole());
    return why;
  };
  const auto is_order = testing::HasSubstr("order");
  EXPECT_THAT(refused_at(0, sent[1].piece), is_order);
  EXPECT_THAT(refused_at(3, sent[2].piece), is_order) << "twice";
  EXPECT_THAT(refused_at(sent.size(), sent.back().piece), is_order) << "behind the last";
  const auto is_size = testing::HasSubstr("not of their size");
  for (const int64_t num_bytes : {int64_t{0}, int64_t{-4}, int64_t{1} << 40, sent[0].piece.num_bytes - 1, INT64_MAX}) {
    WeightPiece piece = sent[0].piece;
    piece.num_bytes = num_bytes;
    EXPECT_THAT(refused_at(0, piece), is_size) << num_bytes;
  }
  EXPECT_THAT(base::thrown_by<EnvironmentError>(
                  [&] { WeightReceiver(to_).take(sent[0].piece, std::span(sent[0].bytes).first(2)); }),
              is_size);
  WeightPiece elsewhere = sent[0].piece;
  elsewhere.tensor = -1;
  EXPECT_THAT(refused_at(0, elsewhere), is_order);
}

TEST_P(WeightSync, WhatChangesOnItsWayIsFoundAndNeverSamples) {
  const std::vector<SentPiece> sent = pieces_of(from_, 1 << 20);
  for (const size_t changed : {size_t{0}, sent.size() - 1}) {
    WeightReceiver receiver(to_);
    for (size_t i = 0; i < changed; ++i) receiver.take(sent[i].piece, sent[i].bytes);
    std::vector<std::byte> bytes = sent[changed].bytes;
    bytes.back() ^= std::byte{0x80};
    EXPECT_THAT(base::thrown_by<EnvironmentError>([&] { receiver.take(sent[changed].piece, bytes); }),
                testing::HasSubstr(to_.layout().tensors[changed].name));
    EXPECT_THROW(to_.view(), BugError);
  }
}

TEST_P(WeightSync, AVersionThatBreaksOffIsNotWhole) {
  const std::vector<SentPiece> sent = pieces_of(from_, 1 << 20);
  for (const size_t count : {size_t{0}, size_t{1}, sent.size() - 1}) {
    WeightReceiver receiver(to_);
    for (size_t i = 0; i < count; ++i) receiver.take(sent[i].piece, sent[i].bytes);
    EXPECT_THAT(base::thrown_by<EnvironmentError>([&] { receiver.finish(5); }), testing::HasSubstr("not all come"));
    EXPECT_FALSE(to_.is_whole());
  }
  // The next version repairs it.
  WeightReceiver receiver(to_);
  for (const SentPiece& piece : sent) receiver.take(piece.piece, piece.bytes);
  receiver.finish(6);
  EXPECT_TRUE(to_.is_whole());
}

TEST_P(WeightSync, MemoryThatIsShownGivesTheSameStore) {
  ShownMemory memory;
  std::optional<ShownWeights> shown = ShownWeights::map(to_, {}, show_weights(from_, {}));
  ASSERT_TRUE(shown);
  for (uint64_t version = 6; version < 9; ++version) {
    initialize_random(from_, 0.02, version);
    shown->copy();
    EXPECT_THROW(to_.view(), BugError) << "nobody has compared it yet";
    shown->finish(version, checksums(from_, {}));
    EXPECT_TRUE(same_weights(from_, to_));
    EXPECT_EQ(to_.view().version(), version);
  }
}

TEST_P(WeightSync, WhatIsWrittenWhileItIsCopiedNeverSamples) {
  ShownMemory memory;
  std::optional<ShownWeights> shown = ShownWeights::map(to_, {}, show_weights(from_, {}));
  ASSERT_TRUE(shown);
  EXPECT_NE(base::thrown_by<EnvironmentError>([&] { shown->finish(6, checksums(from_, {})); }), "")
      << "before anything was copied";
  for (const PackedTensor& packed : from_.layout().tensors) {
    shown->copy();
    from_.tensor(packed.name).view(-1).narrow(0, 0, 1).add_(1);
    EXPECT_THAT(base::thrown_by<EnvironmentError>([&] { shown->finish(6, checksums(from_, {})); }),
                testing::HasSubstr(packed.name));
    EXPECT_THROW(to_.view(), BugError);
  }
  shown->copy();
  std::vector<device::Checksum> fewer = checksums(from_, {});
  fewer.pop_back();
  EXPECT_NE(base::thrown_by<EnvironmentError>([&] { shown->finish(6, fewer); }), "");
  EXPECT_FALSE(to_.is_whole());
  shown->copy();
  shown->finish(7, checksums(from_, {}));
  EXPECT_TRUE(to_.is_whole());
  EXPECT_NE(base::thrown_by<EnvironmentError>([&] { shown->finish(8, checksums(from_, {})); }), "")
      << "checksums alone are no version";
}

TEST_P(WeightSync, ASecondCopyLeavesTheStoreAsItIsUntilItWasCompared) {
  ShownMemory memory;
  std::optional<ShownWeights> shown = ShownWeights::map(to_, {}, show_weights(from_, {}));
  ASSERT_TRUE(shown);
  shown->allocate_second();
  WeightStore before(small_layout(), GetParam());
  for (uint64_t version = 6; version < 9; ++version) {
    before.storage().copy_(to_.storage());
    const uint64_t old_version = to_.version();
    initialize_random(from_, 0.02, version);
    shown->copy_ahead();
    EXPECT_TRUE(same_weights(before, to_));
    EXPECT_EQ(to_.view().version(), old_version);
    shown->finish(version, checksums(from_, {}));
    EXPECT_TRUE(same_weights(from_, to_));
    EXPECT_EQ(to_.view().version(), version);
  }
  // A worker that stands still copies them directly, and the second copy, which is older, is not looked at.
  initialize_random(from_, 0.02, 9);
  shown->copy();
  shown->finish(9, checksums(from_, {}));
  EXPECT_TRUE(same_weights(from_, to_));
}

TEST_P(WeightSync, ASecondCopyThatIsTornNeverSamples) {
  ShownMemory memory;
  std::optional<ShownWeights> shown = ShownWeights::map(to_, {}, show_weights(from_, {}));
  ASSERT_TRUE(shown);
  shown->allocate_second();
  for (const PackedTensor& packed : from_.layout().tensors) {
    shown->copy_ahead();
    from_.tensor(packed.name).view(-1).narrow(0, 0, 1).add_(1);
    EXPECT_THAT(base::thrown_by<EnvironmentError>([&] { shown->finish(6, checksums(from_, {})); }),
                testing::HasSubstr(packed.name));
    EXPECT_THROW(to_.view(), BugError);
  }
  shown->copy_ahead();
  shown->finish(7, checksums(from_, {}));
  EXPECT_TRUE(same_weights(from_, to_));
  EXPECT_NE(base::thrown_by<EnvironmentError>([&] { shown->finish(8, checksums(from_, {})); }), "")
      << "checksums alone are no version";
}

TEST_P(WeightSync, MemoryThatCannotBeMappedIsSaid) {
  EXPECT_EQ(show_weights(from_, {}), "") << "the CPU's is not shown";
  EXPECT_FALSE(ShownWeights::map(to_, {}, "a word of another kind of device"));
  ShownMemory memory;
  EXPECT_FALSE(ShownWeights::map(to_, {}, ""));
  const std::string word = show_weights(from_, {});
  memory.set_seen([](const at::Tensor&) { return at::Tensor(); });
  EXPECT_FALSE(ShownWeights::map(to_, {}, word));
  memory.set_seen([](const at::Tensor& bytes) { return bytes.narrow(0, 0, bytes.numel() - 1); });
  EXPECT_FALSE(ShownWeights::map(to_, {}, word)) << "it is another store's";
  EXPECT_TRUE(to_.is_whole());
}

}  // namespace
}  // namespace tandem::weights
