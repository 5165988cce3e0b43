// Checks reward models through the program: what they read and give, beside another reward and in evaluations, that a
// run which is offloaded or resumes has the same bits, and which ones are refused.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "model/reward_model.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/memory/planned_memory.h"
#include "tests/cli/tiny_run.h"
#include "tests/model/reward_model_files.h"
#include "text/text_worker.h"
#include "trainer/sequence_scores.h"

namespace tandem::cli {
namespace {

const std::string kArchitecture = "Gemma3TextForSequenceClassification";

// The reward model is of another family than the policy, and has another tokenizer.
class RewardModelRuns : public testing::Test {
 protected:
  RewardModelRuns() {
    model::write_reward_model("tests/golden/models/gemma3", path("judge"), kArchitecture,
                              model::golden_head(kArchitecture, 32));
  }

  std::string path(const std::string& name) const { return folder_ / name; }

  Arguments arguments(const std::string& name, const Arguments& more = {}) const {
    Arguments words = train_arguments(
        path(name), {"--rm-model", path("judge"), "--reward-weights", "1", "0.5", "--dtype", "float32",
                     "--save-interval", "1", "--eval-prompt-data", "small", kPrompts + "@[0:2]", "--eval-interval", "2",
                     "--save-debug-rollout-data", path(name + "_{rollout_id}.jsonl")});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  // Returns the score of each conversation, one after the other.
  std::vector<double> scores(const std::vector<base::Json>& conversations) const {
    const model::ModelConfig config = model::read_reward_model_config(path("judge"));
    auto store = weights::WeightStore::without_storage(model::build_reward_layout(config), at::kFloat, at::kCPU);
    weights::load_hf_checkpoint(path("judge"), store);
    const auto ops = device::make_cpu_ops("auto", 1);
    const auto model = model::make_model(config, store.view(), *ops);
    text::TextWorker text(worker::default_worker_config(), path("judge"));
    std::vector<double> result;
    for (const auto& ids : text.encode(text.apply_chat_template(conversations, {{"add_generation_prompt", false}})))
      result.push_back(trainer::score_sequences(*model, model::RewardHead(path("judge"), config), {ids}, {}).front());
    return result;
  }

  base::TemporaryDirectory folder_;
};

TEST_F(RewardModelRuns, ScoreWhatTheirOwnTemplateMakesOfAConversation) {
  const Captured whole = run(arguments("whole"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_NE(whole.out.find("rewards: 1 x exact + 0.5 x rm_model"), std::string::npos) << whole.out;
  const std::vector<base::Json> samples = json_lines(path("whole_0.jsonl")), lines = json_lines(kPrompts);
  ASSERT_EQ(samples.size(), 12U);
  std::vector<base::Json> conversations;
  for (size_t i = 0; i < samples.size(); ++i) {
    conversations.push_back(lines[i / 4].at("prompt"));  // in the order of the data
    conversations.back().push_back({{"role", "assistant"}, {"content", samples[i].at("response")}});
  }
  const std::vector<double> expected = scores(conversations);
  double sum = 0.0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const base::Json& parts = samples[i].at("rewards");
    EXPECT_EQ(parts.at("rm_model").get<double>(), expected[i]) << i;
    EXPECT_EQ(samples[i].at("reward").get<double>(), parts.at("exact").get<double>() + 0.5 * expected[i]);
    sum += expected[i];
  }
  EXPECT_GT(std::set<double>(expected.begin(), expected.end()).size(), 6U);
  base::Json all = base::Json::object();
  for (const base::Json& record : json_lines(path("whole/metrics.jsonl"))) {
    for (const auto& [name, value] : record.items()) {
      if (!all.contains(name)) all[name] = value;  // the first of each name
    }
  }
  EXPECT_NEAR(all.at("rollout/rewards/rm_model/mean").get<double>(), sum / 12.0, 1e-9);
  EXPECT_GE(all.at("perf/rm_model_time").get<double>(), 0.0);
  EXPECT_EQ(all.at("eval/small").get<double>(), 0.5 * all.at("eval/small/rewards/rm_model/mean").get<double>());

  // Scores of a run that is offloaded and continued are the same.
  ASSERT_EQ(run(with_flag(arguments("resumed", {"--offload-rm-model"}), "--num-rollout", "1")).code, 0);
  const Captured resumed = run(arguments("resumed", {"--offload-rm-model", "--load", path("resumed")}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(weights_of(path("resumed")), weights_of(path("whole")));
  EXPECT_EQ(json_lines(path("resumed_1.jsonl")), json_lines(path("whole_1.jsonl")));
  for (const std::string name : {"whole", "resumed"})
    expect_phases_as_planned(last_step(path(name)), {"rollout", "train"}, name, /*is_bound=*/true);
}

TEST_F(RewardModelRuns, EvaluateACheckpointAlone) {
  const Captured result = run({"eval", "--hf-checkpoint", kModel, "--dtype", "float32", "--eval-prompt-data", "small",
                               kPrompts + "@[0:2]", "--rollout-max-response-len", "8", "--rm-model", path("judge"),
                               "--sample-output", path("samples.jsonl"), "--output", path("metrics.json")});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<base::Json> samples = json_lines(path("samples.jsonl")), lines = json_lines(kPrompts);
  ASSERT_EQ(samples.size(), 2U);
  std::vector<base::Json> conversations;
  for (size_t i = 0; i < samples.size(); ++i) {
    conversations.push_back(lines[i].at("prompt"));
    conversations.back().push_back({{"role", "assistant"}, {"content", samples[i].at("response")}});
  }
  const std::vector<double> expected = scores(conversations);
  for (size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(samples[i].at("reward").get<double>(), expected[i]);
}

TEST_F(RewardModelRuns, AreRefusedBeforeAnyWeightIsRead) {
  const auto refused = [&](const Arguments& more, const std::string& says) {
    Arguments words = train_arguments(path("refused"), more);
    words.emplace_back("--dry-run");
    expect_one_line_failure(run(words), 2, says);
  };
  refused({"--rm-model", path("nowhere")}, "--rm-model " + path("nowhere") + ": no such directory");
  refused({"--rm-model", kModel}, "architectures names Qwen3ForCausalLM, which is no reward model");
  refused({"--rm-model", path("judge"), "--dynamic-sampling-filter-path", "nonzero_std"},
          "a reward model scores a rollout once it is whole; leave one out");
  refused({"--offload-rm-model"}, "--offload-rm-model: there is no reward model without --rm-model");
  model::write_reward_model("tests/golden/models/gemma3", path("labels"), kArchitecture, {{"score.weight", {{2, 32}}}});
  refused({"--rm-model", path("labels")}, "score.weight has the shape [2,32] and not [1,32]");
}

}  // namespace
}  // namespace tandem::cli
