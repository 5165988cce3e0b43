// Tests that ranks which were not started alike get an error that names the difference.
#include "mesh/agreement.h"

#include <gtest/gtest.h>

#include "tandem/error.h"

namespace tandem::mesh {
namespace {

const RankFacts kFirst = {
    .version = "1.0", .contract = 5, .size = 2, .host = "a", .flags = {{"lr", "1e-6"}, {"seed", "1"}}};

std::string with(const RankFacts& second) { return disagreement({kFirst, second}); }

TEST(Agreement, OfRanksThatAreAlike) {
  RankFacts second = kFirst;
  second.host = "b";
  EXPECT_EQ(with(second), "");
  EXPECT_EQ(disagreement({kFirst}), "");
}

TEST(Agreement, NamesWhatDiffers) {
  RankFacts second = kFirst;
  second.host = "b";
  second.flags["lr"] = "2e-6";
  EXPECT_EQ(with(second),
            "rank 1 (b) was started with --lr 2e-6, rank 0 (a) with --lr 1e-6; give all ranks the same flags");
  EXPECT_EQ(disagreement({kFirst, kFirst, second}),
            "rank 2 (b) was started with --lr 2e-6, rank 0 (a) with --lr 1e-6; give all ranks the same flags");
  second = kFirst;
  second.flags.erase("seed");
  EXPECT_EQ(with(second),
            "rank 1 (a) was started with no --seed, rank 0 (a) with --seed 1; give all ranks the same flags");
  second.flags = {{"lr", "1e-6"}, {"seed", "1"}, {"top-p", "1"}};
  EXPECT_EQ(with(second),
            "rank 1 (a) was started with --top-p 1, rank 0 (a) with no --top-p; give all ranks the same flags");
  second = kFirst;
  second.version = "1.1";
  EXPECT_EQ(with(second),
            "rank 1 (a) was started with Tandem 1.1, rank 0 (a) with Tandem 1.0; give all hosts the same program");
  second = kFirst;
  second.contract = 4;
  EXPECT_EQ(with(second),
            "rank 1 (a) was started with backend contract 4, rank 0 (a) with 5; give all hosts the same program");
  second = kFirst;
  second.size = 3;
  EXPECT_EQ(with(second), "rank 1 (a) was started with 3 ranks, rank 0 (a) with 2; start them together");
  // Each takes it from what the check on its own machine has found: one would correct for it, and the other not.
  second = kFirst;
  second.is_inexact = true;
  EXPECT_EQ(
      with(second),
      "rank 1 (a) was started with a device whose bits depend on the batch (--allow-inexact), rank 0 (a) with one "
      "whose bits do not; run `tandem device --check` on both hosts, and give all ranks devices of one kind and "
      "driver");
  EXPECT_TRUE(with(facts_of(text_of(second))).starts_with("rank 1 (a) was started with a device whose bits"));
}

TEST(Agreement, OtherKernelsAreSaidAndNoReasonToRefuse) {
  RankFacts first = kFirst, second = kFirst;
  first.kernels = "cpu/avx512", second.kernels = "cpu/avx2";
  EXPECT_EQ(disagreement({first, second}), "");
  EXPECT_EQ(other_kernels(first, first, "rank 1 (b)"), "");
  EXPECT_TRUE(other_kernels(first, facts_of(text_of(second)), "rank 1 (b)")
                  .starts_with("rank 1 (b) computes with cpu/avx2, rank 0 (a) with cpu/avx512: they round differently"));
}

TEST(Agreement, GivesEachRankADeviceOfItsOwn) {
  std::vector<RankFacts> ranks(4);
  EXPECT_EQ(disagreement(ranks), "") << "on the CPU";
  for (size_t i = 0; i < ranks.size(); ++i) {
    ranks[i].host = "ab"[i / 2];
    ranks[i].device = "GPU-" + std::to_string(i);
  }
  EXPECT_EQ(disagreement(ranks), "");
  ranks[3].device = "GPU-2";
  EXPECT_TRUE(disagreement(ranks).starts_with("rank 3 (b) has the device of rank 2 (b): GPU-2; "))
      << disagreement(ranks);
  EXPECT_EQ(disagreement(ranks).find("_VISIBLE_DEVICES"), std::string::npos) << "of an unknown backend";
  for (RankFacts& facts : ranks) facts.flags = {{"device", "cuda"}};
  EXPECT_TRUE(disagreement(ranks).ends_with("so let it see as many (CUDA_VISIBLE_DEVICES), or start fewer"))
      << disagreement(ranks);
}

TEST(Agreement, FactsAreWhatTheirTextSays) {
  RankFacts facts = kFirst;
  facts.device = "GPU-1";
  const RankFacts copy = facts_of(text_of(facts));
  EXPECT_EQ(with(copy), "");
  EXPECT_EQ(copy.host, kFirst.host);
  EXPECT_EQ(copy.device, "GPU-1");
  for (const char* text : {"", "{", "[]", "{}", R"({"version": 1})"}) EXPECT_THROW(facts_of(text), EnvironmentError);
}

}  // namespace
}  // namespace tandem::mesh
