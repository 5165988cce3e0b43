// Several ranks sample one rollout: each gets what one rank gets alone, whoever was slow. Built against the stand-in
// for LibTorch; the ranks are threads.
#include <gtest/gtest.h>

#include <cstdio>
#include <mutex>

#include "base/log.h"
#include "evaluation/rollout_metrics.h"
#include "sampling/rollout_phase.h"
#include "tests/base/takes_less_than.h"
#include "tests/sampling/drawn_engine.h"
#include "tests/sampling/rank_parts.h"
#include "tests/sampling/thread_mesh.h"

namespace tandem::sampling {
namespace {

struct Sampled {
  std::optional<Rollout> rollout;
  int64_t num_drawn = 0;        // prompts, with dynamic sampling
  int64_t most_unfinished = 0;  // samples
};

class RankRollouts : public WithRankParts {
 protected:
  // Runs some rollouts of one phase, on the rank of the mesh, of `num_groups` groups each.
  static std::vector<Sampled> sample(mesh::Mesh& mesh, const DrawnEngine::Settings& settings, int64_t num_groups,
                                     int num_rollouts, bool is_dynamic, const groups::SearchLimits& limits = {}) {
    const std::vector<session::PromptLine> lines = prompts(is_dynamic ? 2 * num_groups : num_groups);
    DrawnEngine engine(settings);
    RankParts& own = parts(mesh.rank());
    RolloutPhase phase(engine, own.text, mesh, LinkSettings(), [&] { return engine.is_stopped(); });
    report::Report report;
    std::vector<Sampled> results;
    uint64_t first_sample = 0;
    for (int i = 0; i < num_rollouts; ++i) {
      Sampled result;
      RolloutRequest request;
      request.n_samples_per_prompt = kCompletions;
      request.first_sample_id = first_sample;
      request.title = "rollout";
      const auto next_prompt = [&] { return &lines[static_cast<size_t>(result.num_drawn++) % lines.size()]; };
      if (is_dynamic) {
        request.dynamic.emplace(DynamicSampling{.filter = &own.filter,
                                                .filter_name = "nonzero_std",
                                                .next_prompt = next_prompt,
                                                .num_groups = num_groups,
                                                .groups_at_once = num_groups + 2,
                                                .limits = limits});
      } else {
        for (const session::PromptLine& line : lines) request.prompts.push_back(&line);
      }
      result.rollout = phase.run(request, &own.graders, report);
      result.most_unfinished = engine.most_unfinished();
      first_sample += static_cast<uint64_t>(kCompletions * 4 * num_groups);
      results.push_back(std::move(result));
      if (!results.back().rollout) break;
    }
    return results;
  }

  // Does the same on each of several ranks, which are slowed as drawn from `seed`.
  static std::vector<std::vector<Sampled>> sample_on(int num_ranks, int64_t num_groups, int num_rollouts,
                                                     bool is_dynamic, uint64_t seed, int stopped_rank = -1,
                                                     const groups::SearchLimits& limits = {}) {
    std::vector<std::vector<Sampled>> results(static_cast<size_t>(num_ranks));
    ThreadRanks ranks(num_ranks);
    ranks.run([&](mesh::Mesh& mesh) {
      const auto rank = static_cast<uint64_t>(mesh.rank());
      DrawnEngine::Settings settings;
      settings.seed = seed;
      settings.num_at_once = 1 + static_cast<int64_t>(4 * base::uniform(seed, rank, 0));
      settings.longest_sleep_us = seed % 2 == 0 ? 0 : static_cast<int64_t>(3000 * base::uniform(seed, rank, 1));
      settings.steps_to_stop = mesh.rank() == stopped_rank ? 5 : -1;
      results[static_cast<size_t>(mesh.rank())] = sample(mesh, settings, num_groups, num_rollouts, is_dynamic, limits);
    });
    return results;
  }
  static std::vector<Sampled> sample_alone(int64_t num_groups, int num_rollouts, bool is_dynamic,
                                           const groups::SearchLimits& limits = {}) {
    const std::unique_ptr<mesh::Mesh> solo = mesh::solo_mesh();
    return sample(*solo, {}, num_groups, num_rollouts, is_dynamic, limits);
  }

  static void expect_same(const std::vector<Sampled>& one, const std::vector<Sampled>& other, const std::string& who) {
    ASSERT_EQ(one.size(), other.size());
    for (size_t i = 0; i < one.size(); ++i) {
      const Rollout &a = one[i].rollout.value(), &b = other[i].rollout.value();
      EXPECT_EQ(text_of(a), text_of(b)) << who << ", rollout " << i;
      if (a.filtered) {
        EXPECT_EQ(a.filtered->num_groups, b.filtered->num_groups) << who;
      }
    }
  }
};

TEST_F(RankRollouts, AreThoseOfOneRank) {
  const std::vector<Sampled> alone = sample_alone(11, 2, false);
  ASSERT_EQ(alone.front().rollout->samples.size(), 11U * kCompletions);
  EXPECT_GT(alone.front().rollout->num_failed, 0) << "nothing of failures was tested";
  EXPECT_FALSE(evaluation::logged_metrics(*alone.front().rollout).empty());
  for (const int num_ranks : {2, 3, 4, 8}) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const auto results = sample_on(num_ranks, 11, 2, false, seed);
      for (int rank = 0; rank < num_ranks; ++rank) {
        const std::vector<Sampled>& of_rank = results[static_cast<size_t>(rank)];
        expect_same(alone, of_rank, testing::PrintToString(std::tuple(num_ranks, rank, seed)));
        const Rollout& rollout = of_rank.back().rollout.value();
        EXPECT_EQ(rollout.num_ranks, num_ranks);
        EXPECT_EQ(rollout.stats.generated_tokens, alone.back().rollout->stats.generated_tokens);
        EXPECT_EQ(rollout.seconds, results[0].back().rollout->seconds) << "rank 0's, on each";
        EXPECT_EQ(rollout.idle_share, results[0].back().rollout->idle_share);
        EXPECT_GE(rollout.idle_share, 0.0);
        EXPECT_LT(rollout.idle_share, 1.0);
        EXPECT_LE(of_rank.back().most_unfinished, (11 * kCompletions + num_ranks - 1) / num_ranks);
      }
    }
  }
}

TEST_F(RankRollouts, MayHaveFewerGroupsThanRanks) {
  const std::vector<Sampled> alone = sample_alone(3, 1, false);
  for (const std::vector<Sampled>& of_rank : sample_on(8, 3, 1, false, 1)) expect_same(alone, of_rank, "8 ranks");
}

// Rank 0 grades the only group, so nobody says anything when it is done. A look at the other ranks' channels lasts a
// tenth of a second then, and each rollout had one at its end.
TEST_F(RankRollouts, EndWithTheirLastGradeWhoeverHasIt) {
  constexpr int kRollouts = 30;
  EXPECT_TRUE(base::takes_less_than(
      0.07 * kRollouts, [&] { sample_on(2, /*num_groups=*/1, kRollouts, /*is_dynamic=*/false, /*seed=*/0); }));
}

TEST_F(RankRollouts, OfDynamicSamplingHaveTheGroupsThatOneRankKeeps) {
  const std::vector<Sampled> alone = sample_alone(9, 2, true);
  EXPECT_GT(alone.front().rollout->filtered->num_dropped(), 0) << "nothing was tested";
  for (const int num_ranks : {2, 3, 8}) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const auto results = sample_on(num_ranks, 9, 2, true, seed);
      for (size_t rank = 0; rank < results.size(); ++rank) {
        const std::vector<Sampled>& of_rank = results[rank];
        expect_same(alone, of_rank, testing::PrintToString(std::tuple(num_ranks, rank, seed)));
        const int64_t num_judged = of_rank.back().rollout->filtered->num_groups;
        if (rank == 0) {
          EXPECT_GE(of_rank.back().num_drawn, num_judged);
        } else {
          EXPECT_EQ(of_rank.back().num_drawn, num_judged) << "the others draw what was judged";
        }
      }
    }
  }
}

TEST_F(RankRollouts, OfDynamicSamplingEndTheirSearchAtTheSameGroup) {
  const groups::SearchLimits budget = {.max_groups = 10};
  const std::vector<Sampled> alone = sample_alone(9, 2, true, budget);
  EXPECT_GT(alone.front().rollout->filtered->num_missing(), 0) << "nothing was tested";
  for (const int num_ranks : {2, 3, 8}) {
    for (const std::vector<Sampled>& of_rank : sample_on(num_ranks, 9, 2, true, 3, -1, budget)) {
      expect_same(alone, of_rank, testing::PrintToString(num_ranks));
    }
  }
}

TEST_F(RankRollouts, AFastRankTakesWhatASlowOneHasNotBegun) {
  constexpr int64_t kGroups = 12;
  const std::vector<session::PromptLine> lines = prompts(kGroups);
  std::array<int64_t, 2> num_sampled = {};
  ThreadRanks ranks(2);
  ranks.run([&](mesh::Mesh& mesh) {
    DrawnEngine engine({.num_at_once = 1, .longest_sleep_us = mesh.rank() == 0 ? 0 : 10'000});
    RolloutPhase phase(engine, parts(mesh.rank()).text, mesh, LinkSettings());
    report::Report report;
    RolloutRequest request;
    request.is_graded = false;
    for (const session::PromptLine& line : lines) request.prompts.push_back(&line);
    phase.run(request, nullptr, report);
    num_sampled[static_cast<size_t>(mesh.rank())] = engine.num_added();
  });
  EXPECT_GT(num_sampled[0], kGroups / 2 + 1);
  EXPECT_EQ(num_sampled[0] + num_sampled[1], kGroups);
}

TEST_F(RankRollouts, AStopOfOneRankIsAStopOfAll) {
  for (int stopped = 0; stopped < 3; ++stopped) {
    for (const std::vector<Sampled>& of_rank : sample_on(3, 11, 9, stopped == 2, 1, stopped)) {
      EXPECT_FALSE(of_rank.back().rollout.has_value());
    }
  }
}

TEST_F(RankRollouts, ARankWithOtherPromptsIsRefused) {
  ThreadRanks ranks(2);
  const auto work = [&](mesh::Mesh& mesh) {
    const std::vector<session::PromptLine> lines = prompts(6);
    DrawnEngine engine({});
    RolloutPhase phase(engine, parts(mesh.rank()).text, mesh, LinkSettings());
    report::Report report;
    RolloutRequest request;
    request.is_graded = false;
    for (const session::PromptLine& line : lines) request.prompts.push_back(&line);
    if (mesh.rank() == 1) std::swap(request.prompts.front(), request.prompts.back());
    phase.run(request, nullptr, report);
  };
  try {
    ranks.run(work);
    ADD_FAILURE() << "it was taken";
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("another prompt for group"), std::string::npos) << error.what();
  }
}

TEST(RolloutTimes, AreOfEachDevice) {
  Rollout rollout;
  rollout.samples.resize(2);
  for (rl::Sample& sample : rollout.samples) {
    sample.completion.assign(300, 1);
    sample.loss_mask.assign(300, 1);
  }
  rollout.seconds = 2.0;
  EXPECT_EQ(evaluation::rollout_times(rollout).at("perf/tokens_per_gpu_per_sec"), 300.0);
  EXPECT_FALSE(evaluation::rollout_times(rollout).contains("perf/rollout_idle_share"));
  rollout.num_ranks = 4;
  rollout.idle_share = 0.25;
  EXPECT_EQ(evaluation::rollout_times(rollout).at("perf/tokens_per_gpu_per_sec"), 75.0);
  EXPECT_EQ(evaluation::rollout_times(rollout).at("perf/rollout_idle_share"), 0.25);
  EXPECT_EQ(evaluation::rollout_times(rollout).at("perf/rollout_ranks"), 4.0);
}

}  // namespace
}  // namespace tandem::sampling
