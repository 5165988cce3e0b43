// Tags that are alive together count together; a tag's number is its own maximum.
#include "memory/memory_plan.h"

#include <gtest/gtest.h>

#include "memory/ledger.h"
#include "tandem/error.h"

namespace tandem::memory {
namespace {

TagBytes bytes_of(int64_t weights, int64_t graphs, int64_t head) {
  TagBytes bytes;
  bytes[Tag::kWeights] = weights;
  bytes[Tag::kBlockGraphs] = graphs;
  bytes[Tag::kHead] = head;
  return bytes;
}

TEST(MemoryPlan, APhaseNeedsItsWorstMomentNotTheSumOfItsTags) {
  MemoryPlan plan;
  plan.add(Phase::kTrain, "graphs", bytes_of(100, 50, 0));
  plan.add(Phase::kTrain, "logits", bytes_of(100, 0, 40));
  EXPECT_EQ(plan.bytes(Tag::kBlockGraphs, Phase::kTrain), 50);
  EXPECT_EQ(plan.bytes(Tag::kHead, Phase::kTrain), 40);
  EXPECT_EQ(plan.bytes(Phase::kTrain), 150);
  EXPECT_EQ(plan.peak_name(Phase::kTrain), "graphs");
  EXPECT_EQ(plan.bytes_at_peak(Phase::kTrain)[Tag::kHead], 0);
  EXPECT_EQ(plan.bytes(Phase::kRollout), 0);
  EXPECT_EQ(plan.peak_name(Phase::kRollout), "");
}

TEST(MemoryPlan, ThePeakIsThatOfItsHighestPhase) {
  MemoryPlan plan;
  plan.add(Phase::kLoad, "a", bytes_of(1, 0, 0));
  plan.add(Phase::kRollout, "b", bytes_of(1, 2, 0));
  plan.add(Phase::kTrain, "c", bytes_of(1, 0, 1));
  EXPECT_EQ(plan.peak_phase(), Phase::kRollout);
  EXPECT_EQ(plan.peak_bytes(), 3);
}

TEST(MemoryPlan, CountsAsTheLedgerDoes) {
  MemoryPlan plan;
  plan.add(Phase::kTrain, "graphs", bytes_of(7, 50, 0));
  plan.add(Phase::kTrain, "logits", bytes_of(7, 0, 40));
  Ledger ledger;
  ledger.enter(Phase::kTrain);
  ledger.take(Tag::kWeights, 7);
  ledger.take(Tag::kBlockGraphs, 50);
  ledger.give_back(Tag::kBlockGraphs, 50);
  ledger.take(Tag::kHead, 40);
  for (const Tag tag : {Tag::kWeights, Tag::kBlockGraphs, Tag::kHead}) {
    EXPECT_EQ(plan.bytes(tag, Phase::kTrain), ledger.high_water_bytes(tag, Phase::kTrain)) << to_string(tag);
  }
  EXPECT_EQ(plan.bytes(Phase::kTrain), ledger.high_water_bytes(Phase::kTrain));
}

TEST(MemoryPlan, NegativeBytesAreABug) {
  MemoryPlan plan;
  EXPECT_THROW(plan.add(Phase::kTrain, "x", bytes_of(-1, 0, 0)), BugError);
}

}  // namespace
}  // namespace tandem::memory
