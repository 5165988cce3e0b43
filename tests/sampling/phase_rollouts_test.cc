// Rollouts in phases on several ranks: which groups a rollout has, and every token of them, are those of one rank
// alone, whoever was slow; and those of a run that was resumed from what a checkpoint holds. The ranks are threads.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "groups/in_flight.h"
#include "sampling/rollout_phase.h"
#include "tests/sampling/drawn_engine.h"
#include "tests/sampling/rank_parts.h"
#include "tests/sampling/thread_mesh.h"

namespace tandem::sampling {
namespace {

struct Case {
  int64_t wanted = 4, at_once = 8, phase_tokens = 9, longest = 40;
  std::optional<int64_t> max_staleness = {};
  bool is_filtered = false;
};

struct Step {
  std::optional<Rollout> rollout;
  std::string in_flight;  // rank 0: the bytes of a checkpoint
  int64_t num_begun = 0;
};

class PhaseRollouts : public WithRankParts {
 protected:
  // The half of run/rollouts.cc that draws prompts: it draws on in the same order on each rank.
  class Prompts {
   public:
    Prompts() : lines_(prompts(11)) {}
    const session::PromptLine& line(int64_t record) const { return lines_[static_cast<size_t>(record)]; }
    int64_t record(int64_t number) const { return number * 7 % std::ssize(lines_); }

    int64_t num_begun = 0;

   private:
    const std::vector<session::PromptLine> lines_;
  };

  static groups::InFlightLimits limits(const Case& c, int64_t num_begun, int64_t rollout) {
    return {.file = "checkpoint",
            .num_prompts = 11,
            .num_begun = num_begun,
            .rollout = rollout,
            .n_samples_per_prompt = kCompletions,
            .vocab = 1000,
            .max_new_tokens = c.longest,
            .has_behavior_logprobs = false};
  }

  // Runs rollouts `begin` to `end` on the rank of the mesh, from what an earlier run left.
  static std::vector<Step> sample(mesh::Mesh& mesh, const Case& c, DrawnEngine::Settings settings, int begin, int end,
                                  const Step& before) {
    settings.longest = c.longest;
    DrawnEngine engine(settings);
    RankParts& own = parts(mesh.rank());
    RolloutPhase phase(engine, own.text, mesh, LinkSettings(), [&] { return engine.is_stopped(); });
    report::Report report;
    Prompts prompts;
    prompts.num_begun = before.num_begun;
    std::unique_ptr<groups::InFlight> in_flight;
    if (mesh.is_conductor()) {
      in_flight = std::make_unique<groups::InFlight>(
          groups::InFlightSchedule::Settings{
              .wanted = c.wanted, .at_once = c.at_once, .max_staleness = c.max_staleness},
          kCompletions, begin);
      if (!before.in_flight.empty())
        put_back(
            before.in_flight, limits(c, before.num_begun, begin),
            [&](int64_t record) -> const session::PromptLine& { return prompts.line(record); }, *in_flight);
    }
    std::vector<Step> steps;
    for (int i = begin; i < end; ++i) {
      engine.set_version(static_cast<uint64_t>(3 + i));
      RolloutRequest request;
      request.n_samples_per_prompt = kCompletions;
      request.sampling.max_new_tokens = c.longest;
      request.title = "rollout";
      request.in_flight = InFlightRequest{
          .groups = in_flight.get(),
          .num_groups = c.wanted,
          .groups_at_once = c.at_once,
          .phase_tokens = c.phase_tokens,
          .weight_version = static_cast<uint64_t>(3 + i),
          .next_group =
              [&] {
                const int64_t number = prompts.num_begun++;
                return InFlightRequest::Drawn{.group = static_cast<size_t>(number),
                                              .line = &prompts.line(prompts.record(number))};
              },
          .num_begun = [&] { return prompts.num_begun; },
          .line_of = [&](size_t group) { return &prompts.line(prompts.record(static_cast<int64_t>(group))); }};
      if (c.is_filtered) {
        request.dynamic.emplace(DynamicSampling{.filter = &own.filter,
                                                .filter_name = "nonzero_std",
                                                .next_prompt = {},
                                                .num_groups = c.wanted,
                                                .groups_at_once = c.at_once});
      }
      Step step;
      step.rollout = phase.run(request, &own.graders, report);
      if (!step.rollout) break;
      step.num_begun = step.rollout->in_flight->num_begun;
      if (in_flight) {
        EXPECT_EQ(step.num_begun, prompts.num_begun);
        step.in_flight =
            to_bytes(*in_flight, [&](const session::PromptLine& line) { return &line - &prompts.line(0); });
      }
      steps.push_back(std::move(step));
    }
    return steps;
  }

  static std::vector<Step> sample_alone(const Case& c, int begin, int end, const Step& before = {}) {
    const std::unique_ptr<mesh::Mesh> solo = mesh::solo_mesh();
    return sample(*solo, c, {}, begin, end, before);
  }
  static std::vector<std::vector<Step>> sample_on(int num_ranks, const Case& c, int end, uint64_t seed) {
    std::vector<std::vector<Step>> results(static_cast<size_t>(num_ranks));
    ThreadRanks ranks(num_ranks);
    ranks.run([&](mesh::Mesh& mesh) {
      const auto rank = static_cast<uint64_t>(mesh.rank());
      DrawnEngine::Settings settings;
      settings.seed = seed;
      settings.num_at_once = 1 + static_cast<int64_t>(4 * base::uniform(seed, rank, 0));
      settings.longest_sleep_us = seed % 2 == 0 ? 0 : static_cast<int64_t>(2000 * base::uniform(seed, rank, 1));
      results[static_cast<size_t>(mesh.rank())] = sample(mesh, c, settings, 0, end, {});
    });
    return results;
  }

  static void expect_same(const std::vector<Step>& one, const std::vector<Step>& other, const std::string& who) {
    ASSERT_EQ(one.size(), other.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_EQ(text_of(one[i].rollout.value()), text_of(other[i].rollout.value())) << who << ", rollout " << i;
      EXPECT_EQ(one[i].num_begun, other[i].num_begun);
      if (!other[i].in_flight.empty()) {
        EXPECT_TRUE(one[i].in_flight == other[i].in_flight) << who << ": what is in flight after rollout " << i;
      }
    }
  }
};

TEST_F(PhaseRollouts, AreThoseOfOneRank) {
  const Case plain, filtered = {.is_filtered = true}, bounded = {.max_staleness = 1};
  for (const Case& c : {plain, filtered, bounded}) {
    const std::vector<Step> alone = sample_alone(c, 0, 6);
    ASSERT_EQ(alone.size(), 6U);
    EXPECT_GT(alone.back().rollout->in_flight->num_partial, 0) << "nothing was tested";
    for (const int num_ranks : {2, 4}) {
      for (uint64_t seed = 0; seed < 3; ++seed) {
        for (const std::vector<Step>& of_rank : sample_on(num_ranks, c, 6, seed))
          expect_same(alone, of_rank, testing::PrintToString(std::pair(num_ranks, seed)));
      }
    }
  }
}

TEST_F(PhaseRollouts, GoOnFromACheckpointAsIfNothingHadHappened) {
  for (const bool is_filtered : {false, true}) {
    const Case c = {.is_filtered = is_filtered};
    const std::vector<Step> whole = sample_alone(c, 0, 8);
    for (int cut = 1; cut < 8; ++cut) {
      const std::vector<Step> rest = sample_alone(c, cut, 8, whole[static_cast<size_t>(cut) - 1]);
      expect_same({whole.begin() + cut, whole.end()}, rest, "cut after " + std::to_string(cut));
    }
  }
}

// Each token has the version of the rollout in which it was sampled, no phase gives more than its tokens, and a sample
// that is trained on has ended.
TEST_F(PhaseRollouts, SayWhichWeightsSampledEachToken) {
  const Case c;
  const std::vector<Step> steps = sample_alone(c, 0, 8);
  std::set<uint64_t> seen;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Rollout& rollout = *steps[i].rollout;
    const InFlightNumbers& phases = rollout.in_flight.value();
    ASSERT_EQ(rollout.samples.size(), static_cast<size_t>(c.wanted * kCompletions));
    std::map<int64_t, int64_t> ages;
    int64_t num_partial = 0, oldest = 0;
    for (const rl::Sample& sample : rollout.samples) {
      EXPECT_TRUE(seen.insert(sample.sample_id).second) << "sample " << sample.sample_id << " twice";
      EXPECT_EQ(sample.status, rl::SampleStatus::kCompleted);
      EXPECT_EQ(sample.loss_mask.size(), sample.completion.size());
      EXPECT_FALSE(sample.text.empty());
      for (size_t s = 0; s < sample.versions.size(); ++s) {
        const int64_t end =
            s + 1 < sample.versions.size() ? sample.versions[s + 1].begin : std::ssize(sample.completion);
        const int64_t num_tokens = end - sample.versions[s].begin;
        const int64_t age = static_cast<int64_t>(i + 3 - sample.versions[s].version);
        EXPECT_GT(num_tokens, 0);
        if (s + 1 < sample.versions.size()) {
          EXPECT_EQ(num_tokens % c.phase_tokens, 0) << "an unfinished one uses all of its phases' tokens";
        }
        ages[age] += num_tokens;
        oldest = std::max(oldest, age);
      }
      num_partial += sample.versions.size() > 1 ? 1 : 0;
    }
    EXPECT_EQ(phases.ages, ages);
    EXPECT_EQ(phases.max_staleness, oldest);
    EXPECT_EQ(phases.num_partial, num_partial);
    EXPECT_LE(std::ssize(phases.in_flight), c.at_once - c.wanted);
    const report::Metrics metrics = evaluation::in_flight_metrics(rollout);
    EXPECT_EQ(metrics.at("rollout/staleness/max"), static_cast<double>(oldest));
    double sum = 0.0;
    for (const auto& [name, value] : metrics) sum += name.starts_with("rollout/staleness_hist/") ? value : 0.0;
    int64_t tokens = 0;
    for (const rl::Sample& sample : rollout.samples) tokens += std::ssize(sample.completion);
    EXPECT_EQ(sum, static_cast<double>(tokens)) << "every token has an age";
  }
}

TEST_F(PhaseRollouts, OfABoundOfZeroAreOfTheNewestWeights) {
  const Case c = {.wanted = 3, .at_once = 3, .max_staleness = 0};
  for (const Step& step : sample_alone(c, 0, 5)) {
    EXPECT_EQ(step.rollout->in_flight->max_staleness, 0);
    EXPECT_EQ(step.rollout->in_flight->num_partial, 0);
    EXPECT_GT(step.rollout->in_flight->num_phases, 1);
    EXPECT_TRUE(step.rollout->in_flight->in_flight.empty());
  }
}

TEST_F(PhaseRollouts, RefuseBytesThatDoNotFitTheRun) {
  const Case c;
  const std::vector<Step> steps = sample_alone(c, 0, 3);
  const Step& last = steps.back();
  const groups::InFlightLimits good = limits(c, last.num_begun, 3);
  EXPECT_EQ(std::ssize(groups::records_in(last.in_flight, good)), std::ssize(last.rollout->in_flight->in_flight));
  std::vector<groups::InFlightLimits> bad(6, good);
  bad[0].num_prompts = 3;
  bad[1].num_begun = 2;
  bad[2].rollout = 0;
  bad[3].n_samples_per_prompt = 2;
  bad[4].vocab = 40;
  bad[5].has_behavior_logprobs = true;
  for (size_t i = 0; i < bad.size(); ++i) EXPECT_THROW(groups::records_in(last.in_flight, bad[i]), UserError) << i;
  for (size_t size = 0; size < last.in_flight.size(); size += 97)
    EXPECT_THROW(groups::records_in(last.in_flight.substr(0, size), good), UserError) << size;
}

}  // namespace
}  // namespace tandem::sampling
