// The ledger has the right sums and high-water marks, and the two files of its events hold them.
#include "memory/ledger.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "memory/ledger_events.h"
#include "tandem/error.h"

namespace tandem::memory {

namespace {

LedgerOptions counted_time(int64_t event_bytes) {
  return {.event_bytes = event_bytes, .clock_us = [time_us = int64_t{0}]() mutable { return time_us += 10; }};
}

TEST(Ledger, KeepsHighWaterByTagAndPhase) {
  Ledger ledger;
  ledger.take(Tag::kWeights, 100);
  ledger.enter(Phase::kRollout);
  ledger.take(Tag::kKv, 50);
  ledger.give_back(Tag::kKv, 50);
  ledger.take(Tag::kEngineScratch, 20);
  ledger.give_back(Tag::kEngineScratch, 20);
  ledger.enter(Phase::kTrain);
  ledger.take(Tag::kHead, 30);
  EXPECT_EQ(ledger.current_bytes(), 130);
  EXPECT_EQ(ledger.current_bytes(Tag::kHead), 30);
  EXPECT_EQ(ledger.high_water_bytes(Tag::kKv, Phase::kRollout), 50);
  EXPECT_EQ(ledger.high_water_bytes(Tag::kKv, Phase::kTrain), 0);
  EXPECT_EQ(ledger.high_water_bytes(Tag::kWeights, Phase::kTrain), 100) << "what lives on counts in the next phase";
  EXPECT_EQ(ledger.high_water_bytes(Phase::kLoad), 100);
  EXPECT_EQ(ledger.high_water_bytes(Phase::kRollout), 150) << "of the sum, not the sum of the marks";
  EXPECT_EQ(ledger.high_water_bytes(Phase::kTrain), 130);
}

TEST(Ledger, MoreBackThanTakenIsABug) {
  Ledger ledger;
  ledger.take(Tag::kKv, 10);
  EXPECT_THROW(ledger.give_back(Tag::kKv, 11), BugError);
  EXPECT_THROW(ledger.give_back(Tag::kHead, 1), BugError);
  EXPECT_THROW(ledger.take(Tag::kKv, -1), BugError);
  EXPECT_EQ(ledger.current_bytes(), 10);
}

TEST(Ledger, OverheadIsWhatTheDeviceUsesBeyondOurPools) {
  Ledger ledger;
  ledger.change_pool_bytes(1000);
  ledger.take(Tag::kKv, 600);
  ledger.measure_device(1300);
  EXPECT_EQ(ledger.current_bytes(Tag::kOverhead), 300);
  EXPECT_EQ(ledger.current_bytes(), 900);
  ledger.measure_device(900);
  EXPECT_EQ(ledger.current_bytes(Tag::kOverhead), 0);
  EXPECT_EQ(ledger.high_water_bytes(Tag::kOverhead, Phase::kLoad), 300);
}

TEST(Ledger, SmallMovesAreNoEventsUntilThePhaseEnds) {
  Ledger ledger(counted_time(100));
  ledger.take_events();
  ledger.take(Tag::kKv, 60);
  EXPECT_TRUE(ledger.take_events().empty());
  ledger.take(Tag::kKv, 60);
  EXPECT_EQ(ledger.take_events().size(), 1U);
  ledger.give_back(Tag::kKv, 20);
  ledger.enter(Phase::kTrain);
  const auto events = ledger.take_events();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[1].bytes, 100);
}

TEST(Ledger, EventsThatNobodyTakesAreBounded) {
  LedgerOptions options = counted_time(1);
  options.max_events = 10;
  Ledger ledger(options);
  for (int i = 0; i < 1000; ++i) ledger.take(Tag::kKv, 1);
  const auto events = ledger.take_events();
  EXPECT_LE(events.size(), 10U);
  EXPECT_EQ(events.front().kind, LedgerEvent::Kind::kNote) << events.front().text;
  EXPECT_EQ(events.back().bytes, 1000);
}

std::vector<LedgerEvent> some_events() {
  using Kind = LedgerEvent::Kind;
  return {{.kind = Kind::kEnter, .time_us = 10, .phase = Phase::kLoad},
          {.kind = Kind::kBytes, .time_us = 20, .tag = Tag::kWeights, .bytes = 5},
          {.kind = Kind::kEnter, .time_us = 30, .phase = Phase::kRollout},
          {.kind = Kind::kNote, .time_us = 40, .text = "lost \"x\""},
          {.kind = Kind::kEnter, .time_us = 50, .phase = Phase::kTrain},
          {.kind = Kind::kBytes, .time_us = 60, .tag = Tag::kWeights, .bytes = 0}};
}

TEST(LedgerEvents, TimelineLinesAreJson) {
  std::vector<std::string> lines;
  for (const LedgerEvent& event : some_events()) lines.push_back(timeline_line(event));
  EXPECT_EQ(lines, (std::vector<std::string>{
                       R"({"time_us":10,"event":"enter","phase":"load"})",
                       R"({"time_us":20,"event":"bytes","tag":"weights","bytes":5})",
                       R"({"time_us":30,"event":"enter","phase":"rollout"})",
                       R"({"time_us":40,"event":"note","text":"lost \"x\""})",
                       R"({"time_us":50,"event":"enter","phase":"train"})",
                       R"({"time_us":60,"event":"bytes","tag":"weights","bytes":0})",
                   }));
}

TEST(LedgerEvents, TheTraceHasACounterPerTagAndASlicePerPhase) {
  const auto events = some_events();
  const base::Json trace = base::parse_json(chrome_trace(events), "trace");
  std::vector<std::string> shown;
  for (const auto& event : trace["traceEvents"]) {
    EXPECT_TRUE(event.contains("pid") && event.contains("tid"));
    std::string text = event["ph"].get<std::string>() + " " + event["name"].get<std::string>() + " " +
                       std::to_string(event["ts"].get<int64_t>());
    if (event.contains("dur")) text += " +" + std::to_string(event["dur"].get<int64_t>());
    if (event.contains("args")) text += " " + event["args"].dump();
    shown.push_back(text);
  }
  EXPECT_EQ(shown, (std::vector<std::string>{
                       "C weights 20 {\"bytes\":5}",
                       "X load 10 +20",
                       "i lost \"x\" 40",
                       "X rollout 30 +20",
                       "C weights 60 {\"bytes\":0}",
                       "X train 50 +10",
                   }));
  EXPECT_EQ(base::parse_json(chrome_trace({}), "trace")["traceEvents"].size(), 0U);
}

}  // namespace
}  // namespace tandem::memory
