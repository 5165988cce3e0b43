// The log of a schedule: what was written is read, a line holds in place of earlier ones about its rollout and later
// ones, and what nobody wrote is refused with its place.
#include "sampling/schedule_log.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tandem/error.h"
#include "tests/base/temporary_directory.h"

namespace tandem::sampling {
namespace {

rl::Sample sample(uint64_t id, std::vector<rl::VersionSpan> versions, size_t num_tokens) {
  rl::Sample result;
  result.group_id = id / 2;
  result.sample_id = id;
  result.completion.resize(num_tokens);
  result.versions = std::move(versions);
  return result;
}

std::string line(int64_t rollout_id, const std::vector<rl::Sample>& samples, std::vector<uint64_t> dropped = {}) {
  Rollout rollout;
  rollout.samples = samples;
  rollout.in_flight.emplace().dropped = std::move(dropped);
  return schedule_line(rollout_id, rollout);
}

class ScheduleLogs : public testing::Test {
 protected:
  ScheduleLog read(const std::string& text) const {
    base::write_file_durably(path(), text);
    return ScheduleLog(path(), 2);
  }
  std::string path() const { return folder_ / "schedule.jsonl"; }
  void expect_refused(const std::string& text, const std::string& says) const {
    try {
      read(text);
      ADD_FAILURE() << "took " << text;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  }

  const base::TemporaryDirectory folder_;
  const std::string first_ = line(0, {sample(2, {{0, 5}}, 4), sample(3, {{0, 5}, {3, 6}}, 9)}, {0, 7});
  const std::string second_ = line(1, {sample(4, {{0, 6}}, 1), sample(5, {{0, 6}}, 2)});
};

TEST_F(ScheduleLogs, SayWhatWasWritten) {
  const ScheduleLog log = read(first_ + "\n" + second_ + "\n");
  ASSERT_NE(log.of(0), nullptr);
  EXPECT_EQ(log.of(0)->taken, (std::vector<size_t>{1}));
  EXPECT_EQ(log.of(0)->dropped, (std::vector<size_t>{0, 7}));
  EXPECT_EQ(log.of(1)->taken, (std::vector<size_t>{2}));
  EXPECT_EQ(log.of(2), nullptr);
  EXPECT_EQ(log.begun_by(5, 0), (std::vector<size_t>{1}));
  EXPECT_EQ(log.begun_by(6, 0), (std::vector<size_t>{2}));
  EXPECT_TRUE(log.begun_by(5, 1).empty()) << "of earlier rollouts";
  EXPECT_EQ(log.tokens_of(3, 5, 0), 3);
  EXPECT_EQ(log.tokens_of(3, 6, 3), 6);
  EXPECT_EQ(log.tokens_of(3, 6, 9), 0) << "it has them already";
  EXPECT_EQ(log.tokens_of(3, 7, 9), 0);
  EXPECT_EQ(log.tokens_of(99, 5, 0), 0) << "a sample that was not trained on";
}

// A run that was killed writes its rollouts again.
TEST_F(ScheduleLogs, ALaterLineHoldsInPlaceOfEarlierOnes) {
  const std::string again = line(0, {sample(8, {{0, 5}}, 1), sample(9, {{0, 5}}, 1)});
  const ScheduleLog log = read(first_ + "\n" + second_ + "\n" + again + "\n");
  EXPECT_EQ(log.of(0)->taken, (std::vector<size_t>{4}));
  EXPECT_EQ(log.of(1), nullptr);
  EXPECT_EQ(log.tokens_of(3, 5, 0), 0);
}

TEST_F(ScheduleLogs, AnUnfinishedLineIsNone) {
  const ScheduleLog log = read(first_ + "\n" + second_.substr(0, second_.size() / 2));
  EXPECT_NE(log.of(0), nullptr);
  EXPECT_EQ(log.of(1), nullptr);
  EXPECT_EQ(read("").of(0), nullptr);
}

TEST_F(ScheduleLogs, WhatNobodyWroteIsRefusedWithItsPlace) {
  expect_refused(first_ + "\nnonsense\n", "schedule.jsonl:2");
  expect_refused("{}\n", "schedule.jsonl:1: has no \"rollout\"");
  expect_refused(R"({"rollout": -1, "take": [], "drop": [], "samples": {}})"
                 "\n",
                 "-1 is no count");
  expect_refused(R"({"rollout": 0, "take": [2, 1], "drop": [], "samples": {}})"
                 "\n",
                 "take is not ascending");
  expect_refused(R"({"rollout": 0, "take": 3, "drop": [], "samples": {}})"
                 "\n",
                 "take is no list");
  expect_refused(R"({"rollout": 0, "take": [], "drop": [], "samples": []})"
                 "\n",
                 "samples is no object");
  expect_refused(R"({"rollout": 0, "take": [], "drop": [], "samples": {"x": []}})"
                 "\n",
                 "\"x\" is no sample's number");
  expect_refused(R"({"rollout": 0, "take": [], "drop": [], "samples": {"4": [[1]]}})"
                 "\n",
                 "[version, end]");
  expect_refused(R"({"rollout": 0, "take": [], "drop": [], "samples": {"4": [[1, 5], [2, 5]]}})"
                 "\n",
                 "not ascending");
  expect_refused(R"({"rollout": 0, "take": [1], "drop": [], "samples": {"2": [[1, 5]]}})"
                 "\n",
                 "says nothing of sample 3");
}

}  // namespace
}  // namespace tandem::sampling
