// Tests of the arithmetic of the trainer's memory plan.
#include "trainer/trainer_plan.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "device/backends.h"
#include "model/lora.h"
#include "rl/packing.h"
#include "tests/model/small_models.h"

namespace tandem::trainer {
namespace {

model::ModelConfig small(model::Dtype dtype = model::Dtype::kBFloat16) {
  return model::tiny_config(/*num_layers=*/6, dtype);
}

TEST(TrainerPlan, AFloat32StoreNeedsNoMaster) {
  const weights::Layout layout = model::trained_layout(small());
  const int64_t one = small().num_parameters() * 4;
  EXPECT_EQ(optimizer_bytes(layout, model::Dtype::kFloat32).total(), 2 * one + memory::allocated_bytes(one));
  EXPECT_EQ(optimizer_bytes(layout, model::Dtype::kBFloat16).total(), 3 * one + memory::allocated_bytes(one));
}

TEST(TrainerPlan, AnOffloadedOptimizerIsOnTheHostButForItsBuffers) {
  const weights::Layout layout = model::trained_layout(small());
  const int64_t one = small().num_parameters() * 4;
  // The largest tensor, embed, is 512 x 32 = 16384.
  const OffloadBytes float32 = offload_bytes(layout, model::Dtype::kFloat32);
  EXPECT_EQ(float32.pinned_host, 2 * one);
  EXPECT_EQ(float32.device_buffers, 3 * 2 * 16384 * 4);
  const OffloadBytes bfloat16 = offload_bytes(layout, model::Dtype::kBFloat16, 1001);
  EXPECT_EQ(bfloat16.pinned_host, 3 * one);
  EXPECT_EQ(bfloat16.device_buffers, 3 * 3 * 1008 * 4) << "each begins at a multiple of 64 bytes";
  model::ModelConfig large = small();
  large.vocab = 1 << 20;
  EXPECT_EQ(offload_bytes(model::trained_layout(large), large.dtype).device_buffers, int64_t{9} * (16 << 20));
}

TEST(TrainerPlan, RanksShareTheStateAndKeepScratchForOneMicroBatch) {
  const model::ModelConfig config = model::qwen3_0_6b();
  const weights::Layout layout = model::trained_layout(config);
  const OptimizerBytes alone = optimizer_bytes(layout, config.dtype);
  for (const int64_t ranks : {2, 3, 8}) {
    const OptimizerBytes share = optimizer_bytes(layout, config.dtype, ranks);
    for (const auto& [part, whole] :
         {std::pair{share.master, alone.master}, {share.moments, alone.moments}, {share.gradient, alone.gradient}}) {
      EXPECT_GE(part * ranks, whole);
      EXPECT_LE(part * ranks, whole + whole / 50) << "blocks are small";
    }
    EXPECT_EQ(offload_bytes(layout, config.dtype, kOffloadPieceElements, ranks).pinned_host,
              share.master + share.moments);
    EXPECT_GT(gradient_scratch_bytes(layout, ranks, false), gradient_scratch_bytes(layout, 1, true));
  }
  EXPECT_EQ(gradient_scratch_bytes(layout, 1, false), 0);
  const int64_t embed = config.vocab * config.hidden, layer = config.hidden * (4096 + 2048 + 3 * config.mlp + 2) + 256;
  EXPECT_EQ(gradient_scratch_bytes(layout, 1, true), memory::allocated_bytes((embed + config.hidden + layer) * 4));
}

// With an odd number of tokens one rank has one more than the other; all ranks plan for that.
TEST(TrainerPlan, RanksThatShareRowsKeepTheirShareOfTheHiddenStates) {
  model::ModelConfig part = model::shard_of(small(), {.rank = 1, .size = 2});
  const KeptBytes whole = kept_bytes(part, 1001);
  part.shard.sequence_parallel = true;
  const KeptBytes shared = kept_bytes(part, 1001);
  const int64_t row = part.hidden * model::dtype_bytes(part.dtype);
  EXPECT_EQ(whole.block_input, 1001 * row);
  EXPECT_EQ(shared.block_input, 501 * row);
  EXPECT_EQ(whole.block_graph - shared.block_graph, 500 * row) << "the hidden state between attention and MLP";
  EXPECT_EQ(whole.head - shared.head, 500 * row) << "the final norm's input";
  model::ModelConfig alone = small();
  alone.shard.sequence_parallel = true;
  EXPECT_EQ(kept_bytes(alone, 1001).block_input, 1001 * row);
}

TEST(TrainerPlan, RecomputesTheFewestBlocksThatFit) {
  const auto bytes = [](int64_t recomputed) { return activation_bytes(small(), 1000, recomputed); };
  const auto chosen = [](int64_t budget) { return recomputed_layers_for(small(), 1000, budget); };
  EXPECT_EQ(chosen(0), 0) << "0 is no limit";
  for (int64_t n = 0; n < 5; ++n) {
    EXPECT_LT(bytes(n + 1), bytes(n));
    EXPECT_EQ(chosen(bytes(n)), n);
    EXPECT_EQ(chosen(bytes(n) - 1), n + 1);
  }
  EXPECT_EQ(bytes(6), bytes(5)) << "the block that is re-run has a graph";
  EXPECT_EQ(chosen(1), 6);
}

using memory::Phase;
using memory::Tag;

// A step is one group of two samples: prompt 20, completions 9 and 9.
constexpr StepShape kStep = {.num_samples = 2, .group_size = 2, .prompt_tokens = 20, .response_tokens = 9};

TEST(TrainerPlan, AMicroBatchOfTheWholeStepIsCountedExactly) {
  const MicroBatchShape batch = largest_micro_batch(kStep, 1000);
  EXPECT_EQ(batch.rows, 20 + 2 * 8);
  EXPECT_EQ(batch.targets, 18);
  EXPECT_EQ(batch.sequences, 2);
  EXPECT_EQ(batch.kv_blocks, 4) << "most where the prompt has 15 tokens: none shared, 15 + 8 rows each";
  StepShape step = kStep;
  step.prompt_tokens = 31;
  EXPECT_EQ(largest_micro_batch(step, 1000).kv_blocks, 1 + 4) << "a block shared, 15 + 8 rows each";
  step.prompt_tokens = 2;
  EXPECT_EQ(largest_micro_batch(step, 1000).kv_blocks, 2) << "2 + 8 rows each";
}

// Prompts of 3 to 30 tokens in a context of 32: a short one has the longest response, a long one the shortest.
TEST(TrainerPlan, ResponsesBehindShortPromptsAreLongerThanBehindTheLongest) {
  const StepShape step = {
      .num_samples = 4, .group_size = 2, .prompt_tokens = 30, .response_tokens = 29, .context_tokens = 32};
  const MicroBatchShape batch = largest_micro_batch(step, 1000);
  EXPECT_EQ(batch.rows, 2 * 3 + 4 * 28) << "two groups of the shortest prompt";
  EXPECT_EQ(batch.targets, 4 * 29);
  EXPECT_EQ(batch.context_tokens, 32);
  EXPECT_EQ(largest_micro_batch(step, 40).rows, 39);
}

TEST(TrainerPlan, ASampleBeyondTheBudgetStillRuns) {
  EXPECT_EQ(largest_micro_batch(kStep, 1).rows, 28);
  EXPECT_EQ(largest_micro_batch(kStep, 29).rows, 28);
  EXPECT_EQ(largest_micro_batch(kStep, 30).rows, 29);
}

// Returns the shape of one micro-batch of pack_batch(), counted independently.
MicroBatchShape packed(const std::vector<const rl::Sample*>& samples) {
  MicroBatchShape shape;
  std::set<uint64_t> groups;
  for (const rl::Sample* sample : samples) {
    const auto prompt = static_cast<int64_t>(sample->prompt->tokens.size());
    const auto completion = static_cast<int64_t>(sample->completion.size());
    if (groups.insert(sample->group_id).second) {
      shape.rows += prompt;
      shape.kv_blocks += prompt / 16;
    }
    shape.rows += completion - 1;
    shape.targets += completion;
    shape.kv_blocks += (prompt % 16 + completion - 1 + 15) / 16;
    ++shape.sequences;
  }
  return shape;
}

TEST(TrainerPlan, NoMicroBatchIsLargerThanPlanned) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int draw = 0; draw < 300; ++draw) {
    const int64_t group_size = 1 + random() % 6, longest_prompt = 1 + random() % 60,
                  longest_response = 1 + random() % 60;
    const int64_t num_samples = 1 + random() % 30, first = random() % group_size, budget = 1 + random() % 400;
    // In half of the draws the context cuts responses behind long prompts.
    const int64_t context = random() % 2 == 0 ? std::max(longest_prompt, longest_response) + 1 + random() % 10 : 1000;
    std::vector<rl::Sample> samples(static_cast<size_t>(num_samples));
    for (int64_t i = 0; i < num_samples; ++i) {
      rl::Sample& sample = samples[static_cast<size_t>(i)];
      // A step may begin within a group only where it does not consist of whole ones.
      sample.group_id = static_cast<uint64_t>((i + (num_samples % group_size == 0 ? 0 : first)) / group_size);
      const bool starts = i == 0 || samples[static_cast<size_t>(i - 1)].group_id != sample.group_id;
      sample.prompt = starts ? rl::make_prompt(std::vector<int32_t>(1 + random() % longest_prompt))
                             : samples[static_cast<size_t>(i - 1)].prompt;
      const auto room = context - static_cast<int64_t>(sample.prompt->tokens.size());
      sample.completion.resize(1 + random() % std::min(longest_response, room));
    }
    std::vector<const rl::Sample*> views;
    for (const rl::Sample& sample : samples) views.push_back(&sample);
    const MicroBatchShape bound = largest_micro_batch({.num_samples = num_samples,
                                                       .group_size = group_size,
                                                       .prompt_tokens = longest_prompt,
                                                       .response_tokens = longest_response,
                                                       .context_tokens = context},
                                                      budget);
    for (const rl::MicroBatch& members : rl::split_into_micro_batches(views, {.max_tokens = budget})) {
      std::vector<const rl::Sample*> chosen;
      for (const int64_t i : members.samples) chosen.push_back(views[static_cast<size_t>(i)]);
      const MicroBatchShape batch = packed(chosen);
      ASSERT_LE(batch.rows, bound.rows) << "draw " << draw;
      ASSERT_LE(batch.targets, bound.targets) << "draw " << draw;
      ASSERT_LE(batch.sequences, bound.sequences) << "draw " << draw;
      ASSERT_LE(batch.kv_blocks, bound.kv_blocks) << "draw " << draw;
    }
  }
}

memory::MemoryPlan train_plan(model::Dtype dtype, int64_t recomputed_layers, int64_t chunk_rows = 4) {
  memory::MemoryPlan plan;
  memory::TagBytes standing;
  standing[Tag::kWeights] = 1'000'000;
  add_train_peaks(small(dtype),
                  {.batch = largest_micro_batch(kStep, 1000),
                   .recomputed_layers = recomputed_layers,
                   .logprob_chunk_rows = chunk_rows,
                   .footprint = device::footprint_of("cpu"),
                   .trained = model::trained_layout(small(dtype))},
                  standing, plan);
  return plan;
}

TEST(TrainerPlan, SumsOfAStepByHand) {
  // The sizes are T 36, R 18, E 32, H 4, G 2, K 16, F 96, V 512, 6 layers, float32; 4 blocks of 16 tokens in the
  // attention's cache.
  const memory::MemoryPlan plan = train_plan(model::Dtype::kFloat32, 0);
  EXPECT_EQ(plan.bytes(Tag::kWeights, Phase::kTrain), 1'000'000);
  EXPECT_EQ(plan.bytes(Tag::kBlockInputs, Phase::kTrain), 6 * 36 * 32 * 4);
  const int64_t cache = 4 * 16 * 2 * 2 * 16 * 4;
  // A row has qkv 128, q 64, attn_out 64, middle 32, gate_up 192, and a logsumexp a head.
  const int64_t graph = 36 * (128 + 64 + 64 + 32 + 192 + 4) * 4 + cache + memory::rounding_of(8);
  EXPECT_EQ(plan.bytes(Tag::kBlockGraphs, Phase::kTrain), 6 * graph);
  // The workspace has the graph of the block that runs; k and v, the product of gate and up, down's and the sum.
  EXPECT_EQ(plan.bytes(Tag::kBlockScratch, Phase::kTrain),
            graph + 36 * (2 * 32 + 96 + 2 * 32) * 4 + memory::rounding_of(12));
  // Besides all graphs there are a row of the stream and three of the MLP's width, while the activation's backward
  // runs: the gradients of the sum, of gate and up, and of what the activation gives, which then holds that itself.
  EXPECT_EQ(plan.bytes_at_peak(Phase::kTrain)[Tag::kBlockScratch], 36 * (32 + 3 * 96) * 4 + memory::rounding_of(12));
  // The head has input and output of the final norm, its gradient; four numbers for each of 18 targets, 512 bytes; 4
  // rows of logits, their hidden states and the gradients of those.
  EXPECT_EQ(plan.bytes(Tag::kHead, Phase::kTrain),
            36 * 32 * 4 * 3 + 4 * 512 + 4 * 512 * 4 + 2 * 4 * 32 * 4 + memory::rounding_of(6));
  EXPECT_EQ(plan.peak_name(Phase::kTrain), "backward of the MLP of the last block");
}

TEST(TrainerPlan, BalancingExpertsTakesABatchsRowsAndALayersProbabilities) {
  const model::ModelConfig sparse = model::in_family(small(model::Dtype::kFloat32), "Qwen3MoeForCausalLM");
  const auto plan = [&](bool balances) {
    memory::MemoryPlan plan;
    add_train_peaks(sparse,
                    {.batch = largest_micro_batch(kStep, 1000),
                     .logprob_chunk_rows = 4,
                     .balances = balances,
                     .footprint = device::footprint_of("cpu"),
                     .trained = model::trained_layout(sparse)},
                    {}, plan);
    return plan;
  };
  const memory::MemoryPlan with = plan(true), without = plan(false);
  const BalanceBytes bytes = balance_bytes(sparse, largest_micro_batch(kStep, 1000));
  EXPECT_GT(bytes.work, 3 * largest_micro_batch(kStep, 1000).rows * sparse.experts->count * 4);
  EXPECT_EQ(with.bytes(Tag::kBatch, Phase::kTrain) - without.bytes(Tag::kBatch, Phase::kTrain), bytes.batch);
  EXPECT_LE(with.bytes(Tag::kBlockScratch, Phase::kTrain) - without.bytes(Tag::kBlockScratch, Phase::kTrain),
            bytes.work);
}

TEST(TrainerPlan, ABlockWithoutNormsOfQAndKKeepsNoProjection) {
  const auto graph = [](const std::string& architecture) {
    return kept_bytes(model::in_family(small(model::Dtype::kFloat32), architecture), 1).block_graph;
  };
  // A row has q 64, attn_out 64, middle 32, gate_up 192; k and v 64 in the cache; a logsumexp a head.
  EXPECT_EQ(graph("LlamaForCausalLM"), (64 + 64 + 32 + 192 + 64 + 4) * 4);
  EXPECT_EQ(graph("Qwen2ForCausalLM"), graph("LlamaForCausalLM")) << "a bias is added in place";
  EXPECT_EQ(graph("Qwen3ForCausalLM"), graph("LlamaForCausalLM") + 128 * 4) << "the norms' backward reads qkv";
}

TEST(TrainerPlan, RecomputationTradesGraphsForOne) {
  const memory::MemoryPlan kept = train_plan(model::Dtype::kBFloat16, 0);
  const memory::MemoryPlan some = train_plan(model::Dtype::kBFloat16, 4);
  const memory::MemoryPlan all = train_plan(model::Dtype::kBFloat16, 6);
  const int64_t graph = kept.bytes(Tag::kBlockGraphs, Phase::kTrain) / 6;
  EXPECT_EQ(some.bytes(Tag::kBlockGraphs, Phase::kTrain), 2 * graph);
  EXPECT_EQ(all.bytes(Tag::kBlockGraphs, Phase::kTrain), graph) << "the block that is run again";
  EXPECT_EQ(all.bytes(Tag::kBlockInputs, Phase::kTrain), kept.bytes(Tag::kBlockInputs, Phase::kTrain));
  EXPECT_LT(some.bytes(Phase::kTrain), kept.bytes(Phase::kTrain));
  EXPECT_LT(all.bytes(Phase::kTrain), some.bytes(Phase::kTrain));
}

TEST(TrainerPlan, AnOffloadedUpdateNeedsItsBuffersAndTemporariesOfAPiece) {
  model::ModelConfig large = small();
  large.vocab = 1 << 20;
  const auto staging = [&](bool offloads, const device::Footprint& footprint) {
    memory::MemoryPlan plan;
    add_train_peaks(large,
                    {.batch = largest_micro_batch(kStep, 1000),
                     .logprob_chunk_rows = 4,
                     .footprint = footprint,
                     .trained = model::trained_layout(large),
                     .offloads_optimizer = offloads},
                    {}, plan);
    return plan.bytes(Tag::kStaging, Phase::kTrain);
  };
  constexpr int64_t kPiece = int64_t{16} << 20;
  const device::Footprint& cpu = device::footprint_of("cpu");
  EXPECT_EQ(staging(false, cpu), 0);
  EXPECT_EQ(staging(true, cpu), 9 * kPiece);
  // One float32 copy of the largest tensor's gradient; or where that is streamed, one float64 of a chunk of its norm.
  const device::Footprint aten = {.plan_ops = [](const device::OpsShape& shape,
                                                 base::Size element_bytes) -> std::unique_ptr<const device::OpsPlan> {
    return std::make_unique<device::OpsPlan>(shape, element_bytes);
  }};
  EXPECT_EQ(staging(false, aten), int64_t{32 * 4} * large.vocab + memory::rounding_of(4));
  EXPECT_EQ(staging(true, aten), 9 * kPiece + 2 * kPiece + memory::rounding_of(4));
}

TEST(TrainerPlan, LogitsOfAChunkAreThoseOfTheTargetsAtMost) {
  const auto head = [](int64_t chunk_rows) {
    return train_plan(model::Dtype::kFloat32, 0, chunk_rows).bytes(Tag::kHead, Phase::kTrain);
  };
  EXPECT_EQ(head(18) - head(4), 14 * (512 * 4 + 2 * 32 * 4));
  EXPECT_EQ(head(1000), head(18));
}

}  // namespace
}  // namespace tandem::trainer
