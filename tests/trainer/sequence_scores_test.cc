// Scores of reward models: those of transformers (tests/golden/reward_models), whatever is packed together and however
// many ranks share the work; and heads that are refused.
#include "trainer/sequence_scores.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"
#include "tests/device/ranks/thread_ranks.h"
#include "tests/golden/golden.h"
#include "tests/model/reward_model_files.h"
#include "tests/trainer/fixture.h"

namespace tandem::trainer {
namespace {

using base::Json;
using Sequences = std::vector<std::vector<int32_t>>;

Json golden_cases() { return base::read_json_file(golden::directory() + "/reward_models/cases.json").at("cases"); }

struct Judge {
  explicit Judge(const std::string& directory)
      : config(model::read_reward_model_config(directory)),
        store(weights::WeightStore::without_storage(model::build_reward_layout(config), at::kFloat, at::kCPU)),
        head(directory, config) {
    weights::load_hf_checkpoint(directory, store);
    model = model::make_model(config, store.view(), *ops);
  }
  model::ModelConfig config;
  weights::WeightStore store;
  model::RewardHead head;
  std::unique_ptr<device::Ops> ops = device::make_cpu_ops("auto", 1);  // each rank has its own
  std::unique_ptr<model::Model> model;
};

// Writes the reward model of a golden case into the folder and returns its directory.
std::string write_case(const Json& golden, const base::TemporaryDirectory& folder) {
  const auto name = golden.at("model").get<std::string>(), architecture = golden.at("architecture").get<std::string>();
  const std::string source = golden::directory() + "/models/" + name, target = folder / architecture;
  const int64_t hidden = model::read_model_config(source).hidden;
  model::write_reward_model(source, target, architecture, model::golden_head(architecture, hidden));
  return target;
}

TEST(SequenceScores, AgreeWithTransformersForEachFamily) {
  const Json cases = golden_cases();
  ASSERT_EQ(cases.size(), 10U);
  for (const Json& golden : cases) {
    const base::TemporaryDirectory folder;
    const Judge judge(write_case(golden, folder));
    const auto sequences = golden.at("sequences").get<Sequences>();
    const std::vector<double> scores = score_sequences(*judge.model, judge.head, sequences, BatchConfig());
    ASSERT_EQ(scores.size(), sequences.size());
    for (size_t i = 0; i < scores.size(); ++i)
      EXPECT_NEAR(scores[i], golden.at("scores")[i].get<double>(), 1e-4) << golden.at("architecture") << " " << i;
  }
}

TEST(SequenceScores, AreTheSameBitsInEachPackingAndOnSeveralRanks) {
  const base::TemporaryDirectory folder;
  const Json golden = golden_cases().at(0);
  const std::string directory = write_case(golden, folder);
  const auto sequences = golden.at("sequences").get<Sequences>();
  const Judge judge(directory);
  const std::vector<double> together = score_sequences(*judge.model, judge.head, sequences, BatchConfig());
  const BatchConfig small = {.max_tokens_per_gpu = 36, .logprob_chunk_rows = 1};
  EXPECT_EQ(score_sequences(*judge.model, judge.head, sequences, small), together);
  const auto of_ranks = device::on_thread_ranks(3, [&](device::Communicator& rank) {
    const Judge own(directory);
    const Ranks ranks = {.device = rank, .host = rank, .parts = no_other_ranks().parts};
    return score_sequences(*own.model, own.head, sequences, small, ranks);
  });
  for (const std::vector<double>& scores : of_ranks) EXPECT_EQ(scores, together);
}

TEST(SequenceScores, OfASequenceEndAtItsLastTokenThatIsNoPadding) {
  const std::vector<int32_t> padded = {7, 5, 9, 5, 5}, only = {5, 5};
  EXPECT_EQ(model::scored_length(padded, 5), 3);
  EXPECT_EQ(model::scored_length(padded, -1), 5);
  EXPECT_EQ(model::scored_length(only, 5), 1);
}

TEST(RewardHead, IsRefusedWhereItGivesNoSingleNumber) {
  const std::string source = golden::directory() + "/models/qwen3-tied", name = "Qwen3ForSequenceClassification";
  const auto refusal = [&](const std::string& architecture, const model::HeadTensors& head) -> std::string {
    const base::TemporaryDirectory folder;
    model::write_reward_model(source, folder / "rm", architecture, head);
    return base::thrown_by([&] { const Judge judge(folder / "rm"); });
  };
  EXPECT_NE(refusal(name, {{"score.weight", {{2, 64}}}}).find("score.weight has the shape [2,64] and not [1,64]"),
            std::string::npos);
  EXPECT_NE(refusal(name, {{"score.bias", {{1}}}}).find("there is no tensor score.weight"), std::string::npos);
  model::HeadTensors broken = {{"score.weight", {{1, 64}, model::golden_head_values(64)}}};
  broken.begin()->second.values[3] = INFINITY;
  EXPECT_NE(refusal(name, broken).find("is not finite"), std::string::npos);
  EXPECT_NE(refusal("Qwen3ForTokenClassification", model::golden_head(name, 64)).find("no reward model"),
            std::string::npos);
}

}  // namespace
}  // namespace tandem::trainer
