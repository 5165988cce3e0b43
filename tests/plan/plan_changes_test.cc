// Changes that are proposed where a plan does not fit: they make it fit, no smaller change would, and one line says so.
#include "plan/plan_changes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "model/lora.h"
#include "options/options.h"
#include "tandem/error.h"
#include "tests/base/thrown.h"
#include "tests/plan/plan_case.h"

namespace tandem::plan {
namespace {

std::string refusal(const PlanCase& drawn, const DeviceMemory& device) {
  return base::thrown_by([&] {
    check_fits(plan_training(drawn.config, drawn.model, drawn.facts, device), drawn.config, drawn.model, drawn.facts);
  });
}

PlanCase large_case() {
  PlanCase large{tiny_config(), model::qwen3_0_6b(), {.longest_prompt = 512}};
  large.config.rollout_batch_size = 32;
  large.config.rollout.n_samples_per_prompt = 8;
  large.config.rollout.max_response_len = 1024;
  large.config.rollout.limits.max_batch_tokens = 2048;
  large.config.optimizer.batch.max_tokens_per_gpu = 16384;
  large.config.optimizer.batch.logprob_chunk_rows = 1024;
  return large;
}

TEST(PlanChanges, AnAdapterIsNamedWhereNothingElseFits) {
  PlanCase large = large_case();
  large.config.optimizer.batch.max_tokens_per_gpu = 1536;
  large.config.optimizer.recompute_granularity = "full";
  large.config.rollout.kv_cache_bytes = int64_t{1} << 28;
  PlanCase adapted = large;
  adapted.config.lora.rank = 16;
  adapted.model.lora = {.rank = 16, .alpha = 16.0, .target_modules = model::all_linear_modules(large.model)};
  const int64_t peak = plan_training(adapted.config, adapted.model, adapted.facts, {}).peak_bytes();
  const DeviceMemory device{.bytes = peak + 1, .name = "a device"};
  ASSERT_TRUE(cheapest_changes(large.config, large.model, large.facts, device).empty());
  EXPECT_NE(refusal(large, device).find("makes it fit: give --lora-rank 16, which trains an adapter ("),
            std::string::npos)
      << refusal(large, device);
  EXPECT_NE(refusal(large, {.bytes = peak / 2, .name = "a device"}).find("makes it fit: take a smaller model"),
            std::string::npos);
}

// The layout of Qwen3-30B-A3B has 18,000 slices. The search makes many plans, and would take minutes if each made the
// layout anew.
TEST(PlanChanges, AreSearchedForALargeSparseModelToo) {
  PlanCase large = large_case();
  large.model = model::qwen3_30b_a3b();
  large.config.model.device = "cuda";
  large.config.optimizer.recompute_granularity = "full";
  EXPECT_NE(refusal(large, {.bytes = int64_t{139} << 30, .name = "a device"})
                .find("makes it fit: give --lora-rank 16, which trains an adapter ("),
            std::string::npos);
}

TEST(PlanChanges, ReallyFitAndNoMilderOneDoes) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  int num_changes = 0;
  for (int draw = 0; draw < 8; ++draw) {
    const PlanCase drawn = random_case(random);
    const int64_t peak = plan_training(drawn.config, drawn.model, drawn.facts, {}).peak_bytes();
    const DeviceMemory device{.bytes = peak / 100 * (50 + static_cast<int64_t>(random() % 50)), .name = "a device"};
    if (plan_training(drawn.config, drawn.model, drawn.facts, device).fits()) continue;
    double slowdown = -1.0;
    bool changes_results = false;
    const std::vector<PlanChange> changes = cheapest_changes(drawn.config, drawn.model, drawn.facts, device);
    EXPECT_LE(changes.size(), 3U);
    for (const PlanChange& change : changes) {
      ++num_changes;
      const TrainPlan plan = plan_training(change.config, change.model, drawn.facts, device);
      EXPECT_TRUE(plan.fits()) << "draw " << draw << ": " << change.flags;
      EXPECT_EQ(plan.peak_bytes(), change.peak_bytes);
      if (change.changes_results && !changes_results) slowdown = -1.0;
      EXPECT_GE(change.changes_results, changes_results) << "those that change results come last";
      EXPECT_GE(change.slowdown, slowdown);
      changes_results = change.changes_results;
      slowdown = change.slowdown;
    }
    const std::string message = refusal(drawn, device);
    EXPECT_NE(message, "");
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
  EXPECT_GT(num_changes, 0);
}

// The device has one byte less than the plan needs.
bool offers_to_share_rows(PlanCase given) {
  given.config.rollout.kv_cache_bytes = int64_t{256} << 20;  // less than training takes
  const int64_t peak = plan_training(given.config, given.model, given.facts, {}).peak_bytes();
  const std::vector<PlanChange> changes =
      cheapest_changes(given.config, given.model, given.facts, {.bytes = peak - 1, .name = "a device"}, 20);
  return std::ranges::any_of(changes, [](const PlanChange& change) { return change.flags == "--sequence-parallel"; });
}

// Devices that hold a model between them can share the hidden states too.
TEST(PlanChanges, SharingRowsIsOneWhereThereIsSomebodyToShareThemWith) {
  PlanCase large = large_case();
  large.model = model::shard_of(large.model, {.rank = 1, .size = 2});
  large.config.mesh.actor_num_gpus_per_node = large.config.mesh.tensor_model_parallel_size = 2;
  const int64_t whole = plan_training(large.config, large.model, large.facts, {}).peak_bytes();
  config::TrainConfig shared = large.config;
  shared.mesh.sequence_parallel = true;
  EXPECT_LT(plan_training(shared, large.model, large.facts, {}).peak_bytes(), whole);
  EXPECT_TRUE(offers_to_share_rows(large));
  EXPECT_FALSE(offers_to_share_rows({shared, large.model, large.facts})) << "they do already";
  EXPECT_FALSE(offers_to_share_rows(large_case())) << "a device alone";
}

// Masters and moments alone are more than that GPU has.
TEST(PlanChanges, OffloadingIsOneWhereTheHostsMemoryIsNotTheDevices) {
  PlanCase large = large_case();
  large.config.model.device = "cuda";
  const DeviceMemory device{.bytes = int64_t{9} << 30, .name = "a GPU"};
  const std::vector<PlanChange> changes = cheapest_changes(large.config, large.model, large.facts, device);
  EXPECT_FALSE(changes.empty());
  for (const PlanChange& change : changes) {
    EXPECT_NE(change.flags.find("--offload-optimizer"), std::string::npos) << change.flags;
  }
  EXPECT_NE(refusal(large, device).find("--offload-optimizer"), std::string::npos) << refusal(large, device);
  large.config.model.device = "cpu";
  EXPECT_EQ(refusal(large, device).find("--offload"), std::string::npos) << refusal(large, device);
}

// The flags that a refusal names, typed behind those of the run, give the configuration that was planned.
TEST(PlanChanges, AreFlagsThatCanBeTyped) {
  const PlanCase large = large_case();
  const std::vector<PlanChange> changes =
      cheapest_changes(large.config, large.model, large.facts, {.bytes = int64_t{14} << 30});
  ASSERT_EQ(changes.size(), 3U);
  for (const PlanChange& change : changes) {
    config::TrainConfig config = large.config;
    options::Options options;
    config.visit(options);
    options.require_only({});
    std::vector<std::string> words;
    std::istringstream text(change.flags);
    for (std::string word; text >> word;) words.push_back(word);
    options.parse(words);
    model::ModelConfig model = large.model;
    if (config.model.dtype == "bfloat16") model.dtype = model::Dtype::kBFloat16;
    EXPECT_EQ(plan_training(config, model, large.facts, {.bytes = int64_t{14} << 30}).peak_bytes(), change.peak_bytes)
        << change.flags;
  }
}

TEST(PlanChanges, RecomputeOnlyAsManyBlocksAsItTakes) {
  PlanCase large = large_case();
  large.config.rollout.kv_cache_bytes = int64_t{1} << 30;
  const DeviceMemory device{.bytes = int64_t{20} << 30};
  for (const PlanChange& change : cheapest_changes(large.config, large.model, large.facts, device, 10)) {
    const int64_t layers = change.config.optimizer.recompute_num_layers;
    if (layers == 0 || change.flags.find("--max-tokens") != std::string::npos) continue;
    config::TrainConfig milder = change.config;
    milder.optimizer.recompute_num_layers = layers - 1;
    EXPECT_FALSE(plan_training(milder, large.model, large.facts, device).fits()) << change.flags;
    return;
  }
  FAIL() << "recomputation was not among the changes";
}

TEST(PlanChanges, LeaveRoomToSampleTogether) {
  const PlanCase large = large_case();
  for (const PlanChange& change :
       cheapest_changes(large.config, large.model, large.facts, {.bytes = int64_t{20} << 30})) {
    EXPECT_GE(change.kv_completions, large.config.rollout.limits.max_running) << change.flags;
  }
}

TEST(PlanChanges, ARefusalHasNumbersAndThreeRemediesInOneLine) {
  const std::string message = refusal(large_case(), {.bytes = int64_t{14} << 30, .name = "this machine (MemTotal)"});
  EXPECT_NE(message.find("in the train phase"), std::string::npos) << message;
  EXPECT_NE(message.find("this machine (MemTotal) has 14.00 GiB: give --"), std::string::npos) << message;
  EXPECT_NE(message.find("% slower"), std::string::npos) << message;
  EXPECT_EQ(std::count(message.begin(), message.end(), ';'), 2) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(PlanChanges, WhereNothingHelpsTheRefusalSaysSo) {
  const std::string message = refusal(large_case(), {.bytes = int64_t{5} << 30, .name = "this machine"});
  EXPECT_NE(message.find("take a smaller model or a larger device"), std::string::npos) << message;
}

TEST(PlanChanges, OfAPlanThatFitsAreABug) {
  const PlanCase large = large_case();
  EXPECT_THROW(cheapest_changes(large.config, large.model, large.facts, {.bytes = int64_t{1} << 50}), BugError);
  EXPECT_EQ(refusal(large, {.bytes = int64_t{1} << 50}), "");
  EXPECT_EQ(refusal(large, {}), "") << "a device of unknown size";
}

}  // namespace
}  // namespace tandem::plan
