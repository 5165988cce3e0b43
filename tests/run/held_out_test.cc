// Checks the loss of held-out data: a mean over the trained tokens of each set, under the present weights.
#include "run/learning/held_out.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "mesh/mesh.h"
#include "session/model_session.h"
#include "session/ranks.h"
#include "session/stop_signal.h"
#include "tests/base/pseudo_terminal.h"
#include "tests/base/temporary_directory.h"
#include "trainer/score.h"

namespace tandem::run {
namespace {

const std::string kShort = R"({"prompt": "What is 2 + 2?", "response": "4"})"
                           "\n";
const std::string kLong = R"({"prompt": "Count.", "response": "one two three four five six seven eight nine ten"})"
                          "\n";
// The template keeps both answers in one sample, with the tool's between them.
const std::string kWithTool =
    R"({"messages": [{"role": "user", "content": "2 + 2?"}, )"
    R"({"role": "assistant", "content": "I add.", "reasoning_content": "a sum", "tool_calls": [{"type": "function", )"
    R"("function": {"name": "add", "arguments": {"a": 2, "b": 2}}}]}, )"
    R"({"role": "tool", "content": "the sum of two and two is four"}, )"
    R"({"role": "assistant", "content": "It is 4.", "reasoning_content": "the tool has it"}]})"
    "\n";

class HeldOutTest : public testing::Test {
 protected:
  HeldOutTest() {
    session_.load_weights();
    model_ = session_.make_model();
    config_.data.lines.label_key = "response";
    config_.data.lines.path = folder_ / "training.jsonl";  // does not exist, and is not read
  }

  // Writes a set and returns its path.
  std::string written(const std::string& name, const std::string& lines) {
    base::write_file_durably(folder_ / (name + ".jsonl"), lines);
    return folder_ / (name + ".jsonl");
  }
  HeldOut held_out(const std::vector<std::string>& names_and_paths) {
    config_.eval.eval_prompt_data = names_and_paths;
    return HeldOut(config_, session_.text(), session_.config(), *mesh_);
  }
  report::Metrics metrics(const HeldOut& data) {
    const std::optional<HeldOut::Result> result = data.evaluate(*model_, {}, report_);
    return result.value().metrics;
  }
  session::SftSamples samples_of(const std::string& path) {
    config::DataOptions own = config_.data;
    own.lines.path = path;
    return session::load_sft_samples(own, data::Answers::kToImitate, /*append_eos=*/true, session_.text(),
                                     session_.config());
  }
  double num_trained_tokens(const std::string& path) {
    return static_cast<double>(samples_of(path).num_trained_tokens);
  }
  double num_completion_tokens(const std::string& path) {
    int64_t sum = 0;
    for (const rl::Sample& sample : samples_of(path).samples) sum += std::ssize(sample.completion);
    return static_cast<double>(sum);
  }

  const base::TemporaryDirectory folder_;
  session::ModelSession session_{config::ModelOptions{.hf_checkpoint = "tests/golden/models/qwen3-tied"}};
  std::unique_ptr<model::Model> model_;
  config::SftConfig config_;
  const std::unique_ptr<mesh::Mesh> mesh_ = mesh::solo_mesh();
  report::Report report_;
};

TEST_F(HeldOutTest, LossIsTheMeanOverTrainedTokensEachCountedAlike) {
  const std::string one = written("one", kShort), other = written("other", kLong);
  std::string lines;
  for (int i = 0; i < 70; ++i) lines += i % 2 == 0 ? kShort : kLong;
  const HeldOut data = held_out({"short", one, "long", other, "both", written("both", lines)});
  EXPECT_FALSE(data.empty());
  const report::Metrics found = metrics(data);
  EXPECT_EQ(found.size(), 6U);
  const double short_tokens = num_trained_tokens(one), long_tokens = num_trained_tokens(other);
  ASSERT_GT(long_tokens, 2.0 * short_tokens);
  const double short_loss = found.at("eval/short/loss"), long_loss = found.at("eval/long/loss");
  ASSERT_GT(std::abs(short_loss - long_loss), 1e-3);
  EXPECT_NEAR(found.at("eval/both/loss"),
              (short_tokens * short_loss + long_tokens * long_loss) / (short_tokens + long_tokens), 1e-9);
  for (const std::string set : {"short", "long", "both"}) {
    EXPECT_EQ(found.at("eval/" + set + "/perplexity"), std::exp(found.at("eval/" + set + "/loss")));
  }
}

TEST_F(HeldOutTest, HasALineForEachSet) {
  const HeldOut data = held_out({"a", written("a", kShort + kLong), "b", written("b", kShort)});
  const std::vector<std::string> lines = data.evaluate(*model_, {}, report_).value().lines;
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_TRUE(lines[0].starts_with("eval a: loss ")) << lines[0];
  EXPECT_NE(lines[0].find("(2 samples, "), std::string::npos) << lines[0];
  EXPECT_TRUE(lines[1].starts_with("eval b: loss ")) << lines[1];
}

TEST_F(HeldOutTest, IsMeasuredUnderThePresentWeights) {
  const HeldOut data = held_out({"a", written("a", kLong)});
  const double before = metrics(data).at("eval/a/loss");
  session_.trained().tensor("layers.0.qkv").zero_();
  EXPECT_NE(metrics(data).at("eval/a/loss"), before);
}

TEST_F(HeldOutTest, ModelThatFindsAllTokensAlikeHasTheVocabularyAsPerplexity) {
  const std::string path = written("a", kWithTool);
  ASSERT_LT(num_trained_tokens(path), 0.9 * num_completion_tokens(path)) << "the rest is the tool's answer";
  session_.trained().tensor("final_norm").zero_();
  const auto vocab = static_cast<double>(session_.config().vocab);
  EXPECT_NEAR(metrics(held_out({"a", path})).at("eval/a/perplexity"), vocab, 1e-3 * vocab);
}

TEST_F(HeldOutTest, HasNoResultOnceTheRunIsAskedToStop) {
  const HeldOut data = held_out({"a", written("a", kShort)});
  base::PseudoTerminal screen(80, [&] {
    session::install_stop_signals();
    session::defer_stops("stopping");
    raise(SIGTERM);
    return data.evaluate(*model_, {}, report_) ? 1 : 0;
  });
  EXPECT_EQ(screen.wait(), 0);
}

// "kto" scores each prompt with the completion of another line. Where both together are longer than the context, the
// completion ends with it; TRL cuts there too. The policy here finds all tokens alike.
TEST_F(HeldOutTest, CompletionsUnderOtherPromptsEndWithTheContext) {
  const std::string words = "one two three four five six seven eight nine ten";
  const std::string path = written("kto", R"({"prompt": ")" + words + " " + words +
                                              R"(", "completion": " 4", "label": true})"
                                              "\n" +
                                              R"({"prompt": "?", "completion": " )" + words + " " + words +
                                              R"(", "label": false})"
                                              "\n");
  config_.preference.loss = "kto";
  config_.data.lines.label_key = "completion";
  model::ModelConfig cut = session_.config();
  config::DataOptions own = config_.data;
  own.lines.path = path;
  const session::SftSamples samples =
      session::load_sft_samples(own, config_.answers(), config_.append_eos, session_.text(), cut);
  ASSERT_EQ(samples.samples.size(), 2U);
  cut.max_positions = std::max(samples.samples[0].num_tokens(), samples.samples[1].num_tokens());
  rl::Sample first = samples.samples[1], second = samples.samples[0];
  first.prompt = samples.samples[0].prompt;
  second.prompt = samples.samples[1].prompt;
  ASSERT_GT(first.num_tokens(), cut.max_positions);
  const auto room = static_cast<size_t>(cut.max_positions) - first.prompt->tokens.size();
  first.completion.resize(room);
  first.loss_mask.resize(room);
  second.group_id = second.sample_id = first.sample_id + 1;
  const trainer::Scores scores =
      trainer::score(*model_, {&first, &second}, {}, /*temperature=*/1.0, session::training_ranks(*mesh_));
  double expected = 0.0;
  for (size_t i = 0; i < 2; ++i) {
    const rl::Sample& sample = i == 0 ? first : second;
    for (size_t t = 0; t < sample.completion.size(); ++t) {
      if (sample.loss_mask[t] == 0) continue;
      expected -= 0.5 * (std::log(static_cast<double>(cut.vocab)) + static_cast<double>(scores.logprobs[i][t]));
    }
  }
  ASSERT_GT(expected, 0.0);
  config_.eval.eval_prompt_data = {"a", path};
  HeldOut data(config_, session_.text(), cut, *mesh_);
  const trainer::BatchConfig batch;
  ASSERT_TRUE(data.score_reference(*model_, batch));
  session_.trained().tensor("final_norm").zero_();
  EXPECT_NEAR(metrics(data).at("eval/a/kl"), expected, 1e-4 * expected);
}

// A set of one answer has no completion of another line.
TEST_F(HeldOutTest, AnAnswerIsNoCompletionOfAnotherPrompt) {
  config_.preference.loss = "kto";
  config_.data.lines.label_key = "completion";
  HeldOut data = held_out({"a", written("a", R"({"prompt": "?", "completion": " one two", "label": true})"
                                             "\n")});
  const trainer::BatchConfig batch;
  ASSERT_TRUE(data.score_reference(*model_, batch));
  session_.trained().tensor("final_norm").zero_();
  EXPECT_EQ(metrics(data).at("eval/a/kl"), 0.0);
}

TEST_F(HeldOutTest, IsEmptyWithoutASet) {
  const HeldOut data = held_out({});
  EXPECT_TRUE(data.empty());
  EXPECT_TRUE(metrics(data).empty());
}

}  // namespace
}  // namespace tandem::run
