// A run that trains while a worker samples: when groups are begun, and when the worker is paused for new weights.
#include "sampling/live_sampling.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "sampling/rollout_phase.h"
#include "tests/base/takes_less_than.h"
#include "tests/rollout_worker/new_weights.h"

namespace tandem::rollout_worker {
namespace {

class LiveSamplingTest : public NewWeights {
 protected:
  static constexpr int64_t kSamples = 2;
  static constexpr double kOneLook = 0.1;  // seconds between two looks at the stop signal

  sampling::RolloutRequest request() {
    sampling::RolloutRequest request;
    request.title = "rollout";
    request.n_samples_per_prompt = kSamples;
    request.in_flight = sampling::InFlightRequest{
        .groups = &in_flight_,
        .num_groups = kGroups,
        .groups_at_once = kGroups,
        .phase_tokens = 0,
        .pauses_completions = true,
        .weight_version = session().trained().version(),
        .next_group = [this] { return sampling::InFlightRequest::Drawn{.group = num_begun_++, .line = &line_}; },
        .num_begun = [this] { return static_cast<int64_t>(num_begun_); },
        .line_of = {}};
    return request;
  }
  // Samples and grades at once what it is lent. Returns the first message that is about something else.
  sampling::Message answer(ScriptedWorker& worker) {
    while (true) {
      sampling::Message message = worker.next();
      if (const auto* const open = std::get_if<sampling::Open>(&message)) {
        worker.say(sampling::Pull{.rollout = open->rollout, .count = 1000});
      } else if (const auto* const samples = std::get_if<sampling::LendSamples>(&message)) {
        sampling::Sampled sampled = {.rollout = samples->rollout, .key = samples->key, .members = {}, .numbers = {}};
        for (uint64_t i = 0; i < samples->count; ++i) {
          groups::Member& member = sampled.members.emplace_back();
          member.sample.group_id = samples->group;
          member.sample.sample_id = samples->group * kSamples + samples->first + i;
        }
        worker.say(sampled);
      } else if (const auto* const grading = std::get_if<sampling::LendGrading>(&message)) {
        sampling::Graded graded = {.rollout = grading->rollout, .key = grading->key, .graded = {}, .numbers = {}};
        for (const groups::Member& member : grading->members)
          graded.graded.grades.emplace_back().sample_id = member.sample.sample_id;
        worker.say(graded);
        ++num_graded_;
      } else {
        return message;
      }
    }
  }

  // Gradings go on after a pause, so the worker answers until the end of what was begun.
  void answer_until_closed(ScriptedWorker& worker) {
    EXPECT_TRUE(std::holds_alternative<sampling::Pause>(answer(worker)));
    EXPECT_TRUE(std::holds_alternative<sampling::Close>(answer(worker)));
  }
  void wait_for_graded(int64_t num_groups) {
    const base::Clock::time_point begin = base::Clock::now();
    while (num_graded_ < num_groups && base::seconds_since(begin) < 20.0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_GE(num_graded_, num_groups);
  }

  static constexpr int64_t kGroups = 2;
  const session::PromptLine line_ = session_line();
  groups::InFlight in_flight_{{.wanted = kGroups, .at_once = kGroups}, kSamples, /*rollout=*/0};
  groups::LengthHistory lengths_;
  size_t num_begun_ = 0;
  std::atomic<int64_t> num_graded_ = 0;  // groups
  report::Report report_;

 private:
  static session::PromptLine session_line() { return run_->inputs().prompts.prompts.front(); }
};

// A worker without work says nothing, so nothing but the rollout that is taken tells the run that others may begin.
TEST_F(LiveSamplingTest, OtherGroupsBeginOnceARolloutIsTaken) {
  const auto workers = listen();
  const auto worker = joined(*workers, 0);
  sampling::LiveSampling live(*workers, /*timeout_s=*/20.0, lengths_);
  std::future<void> samples = beside([&] { answer_until_closed(*worker); });
  live.resume(request(), /*number=*/1);
  wait_for_graded(kGroups);
  EXPECT_TRUE(base::takes_less_than(0.9 * kOneLook, [&] {
    const int64_t num_before = num_graded_;
    const std::optional<sampling::LiveSampling::Taken> taken = live.take([] { return false; }, report_);
    ASSERT_TRUE(taken);
    EXPECT_EQ(taken->groups.groups.size(), static_cast<size_t>(kGroups));
    wait_for_graded(num_before + kGroups);
  }));
  live.pause([] { return false; });
  samples.get();
}

TEST_F(LiveSamplingTest, IsPausedWhenTheWorkerHasCopiedNewWeights) {
  const auto workers = listen();
  const auto worker = joined(*workers, 0, mesh::machine_id(), /*copies_ahead=*/true);
  sampling::LiveSampling live(*workers, /*timeout_s=*/20.0, lengths_);
  live.resume(request(), /*number=*/1);
  std::atomic<bool> has_copied = false;
  std::future<void> samples = beside([&] {
    const sampling::Message copy = answer(*worker);
    ASSERT_TRUE(std::get<sampling::CopyWeights>(copy).is_ahead);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the run has asked for the pause by now
    has_copied = true;
    worker->take(copy);
    answer_until_closed(*worker);
    worker->take_weights();
  });
  live.take([] { return false; }, report_);
  train();
  workers->update_weights([&] {
    live.pause([] { return false; });
    EXPECT_TRUE(has_copied) << "it would sample nothing while it copies";
  });
  samples.get();
  expect_same_weights(0);
}

TEST_F(LiveSamplingTest, SamplesBeforeItsRolloutIsAskedFor) {
  const auto workers = listen();
  const auto worker = joined(*workers, 0);
  const std::unique_ptr<mesh::Mesh> solo = mesh::solo_mesh();
  sampling::RolloutPhase phase(&*workers, /*timeout_s=*/20.0, *solo);
  std::future<void> samples = beside([&] { answer_until_closed(*worker); });
  const sampling::RolloutRequest request = this->request();
  phase.go_on(request);
  wait_for_graded(kGroups);
  const std::optional<sampling::Rollout> rollout = phase.run(request, /*graders=*/nullptr, report_);
  ASSERT_TRUE(rollout);
  EXPECT_EQ(rollout->samples.size(), static_cast<size_t>(kGroups * kSamples));
  phase.pause();
  samples.get();
}

}  // namespace
}  // namespace tandem::rollout_worker
