// Flags that do nothing with the others as they are.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "config/train_config.h"
#include "options/options.h"
#include "tests/base/temporary_directory.h"

namespace tandem::config {
namespace {

// Every flag that does nothing without another one says so where it is typed alone, and is quiet with what it names.
TEST(IdleFlags, AreSaidAndOnlyWhereTheyAreIdle) {
  struct Row {
    std::vector<std::string> typed, with;
  };
  const std::vector<Row> rows = {
      {{"--tis-clip", "3"}, {"--use-tis"}},
      {{"--tis-clip-low", "0.5"}, {"--use-tis"}},
      {{"--tis-mode", "mask"}, {"--use-tis"}},
      {{"--tis-level", "sequence"}, {"--use-tis"}},
      {{"--opsm-delta", "0.1"}, {"--use-opsm"}},
      {{"--gamma", "0.9"}, {"--advantage-estimator", "reinforce_plus_plus"}},
      {{"--no-discount-masked-tokens"}, {"--advantage-estimator", "reinforce_plus_plus"}},
      {{"--kl-loss-type", "k2"}, {"--use-kl-loss", "--kl-loss-coef", "0.1"}},
      {{"--no-use-unbiased-kl"}, {"--use-kl-loss", "--kl-loss-coef", "0.1"}},
      {{"--kl-clamp", "5"}, {"--use-kl-loss", "--kl-loss-coef", "0.1", "--kl-loss-type", "low_var_kl"}},
      {{"--sapo-tau-pos", "2"}, {"--pg-loss-type", "sapo"}},
      {{"--sapo-tau-neg", "2"}, {"--pg-loss-type", "sapo"}},
      {{"--dro-beta", "2"}, {"--pg-loss-type", "dro"}},
      {{"--vespo-k-pos", "2"}, {"--pg-loss-type", "vespo"}},
      {{"--vespo-k-neg", "2"}, {"--pg-loss-type", "vespo"}},
      {{"--vespo-lambda-pos", "2"}, {"--pg-loss-type", "vespo"}},
      {{"--vespo-lambda-neg", "2"}, {"--pg-loss-type", "vespo"}},
      {{"--clip-cov-ratio", "0.1"}, {"--pg-loss-type", "clip_cov"}},
      {{"--clip-cov-lb", "0.5"}, {"--pg-loss-type", "clip_cov"}},
      {{"--clip-cov-ub", "50"}, {"--pg-loss-type", "clip_cov"}},
      {{"--kl-cov-ratio", "0.1"}, {"--pg-loss-type", "kl_cov"}},
      {{"--kl-cov-coef", "2"}, {"--pg-loss-type", "kl_cov"}},
      {{"--max-log-ratio", "3", "--pg-loss-type", "reinforce"}, {"--use-kl-loss", "--kl-loss-coef", "0.1"}},
      {{"--cispo-max-ratio", "5"}, {"--pg-loss-type", "cispo"}},
      {{"--sequence-ratio-per-token"}, {"--pg-loss-type", "gspo"}},
      {{"--loss-norm-tokens", "9"}, {"--loss-agg-mode", "seq-mean-token-sum-norm"}},
      {{"--whiten-epsilon", "0.1"}, {"--normalize-advantages"}},
      {{"--lr-decay-iters", "9"}, {"--lr-decay-style", "linear"}},
      {{"--lr-wsd-decay-style", "cosine"}, {"--lr-decay-style", "WSD"}},
      {{"--eval-temperature", "1"}, {"--eval-prompt-data", "own", "data.jsonl"}},
      {{"--eval-top-p", "0.5"}, {"--eval-prompt-data", "own", "data.jsonl"}},
      {{"--eval-top-k", "5"}, {"--eval-config", "sets.toml"}},
      {{"--eval-max-response-len", "5"}, {"--eval-prompt-data", "own", "data.jsonl"}},
      {{"--eval-max-prompt-len", "5"}, {"--eval-prompt-data", "own", "data.jsonl"}},
      {{"--eval-max-context-len", "5"}, {"--eval-prompt-data", "own", "data.jsonl"}},
      {{"--eval-input-key", "q"}, {"--eval-prompt-data", "own", "data.jsonl"}},
      {{"--eval-label-key", "a"}, {"--eval-prompt-data", "own", "data.jsonl"}},
      {{"--n-samples-per-eval-prompt", "2"}, {"--eval-prompt-data", "own", "data.jsonl"}},
      {{"--skip-eval-before-train"}, {"--eval-prompt-data", "own", "data.jsonl"}},
      {{"--rm-retries", "3"}, {"--rm-url", "http://127.0.0.1:9/"}},
      {{"--group-rm"}, {"--custom-rm-path", "rewards.py:all"}},
      {{"--rm-fork-each-call"}, {"--custom-rm-path", "rewards.py:all"}},
      {{"--rm-concurrency", "3"}, {"--rm-url", "http://127.0.0.1:9/"}},
      {{"--custom-generate-num-workers", "3"}, {"--custom-generate-function-path", "turns.py:sample"}},
      {{"--custom-generate-concurrency", "3"}, {"--custom-generate-function-path", "turns.py:sample"}},
      {{"--custom-generate-timeout", "3"}, {"--custom-generate-function-path", "turns.py:sample"}},
      {{"--allow-changed-config"}, {"--load", "run"}}};
  const auto idle = [](std::vector<std::string> words) {
    words.insert(words.end(), {"--colocate", "--hf-checkpoint", "model", "--prompt-data", "data.jsonl", "--rm-type",
                               "exact", "--rollout-batch-size", "4", "--n-samples-per-prompt", "2", "--num-rollout",
                               "3", "--save", "runs/x"});
    TrainConfig config;
    options::Options options;
    config.visit(options);
    options.parse(words);
    return options.idle_texts();
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.typed.front());
    const std::vector<std::string> alone = idle(row.typed);
    ASSERT_EQ(alone.size(), 1U);
    std::string name = row.typed.front();
    if (name.starts_with("--no-")) name = "--" + name.substr(5);
    EXPECT_TRUE(alone.front().starts_with(name + ": does nothing without ")) << alone.front();
    std::vector<std::string> both = row.with;
    both.insert(both.end(), row.typed.begin(), row.typed.end());
    EXPECT_EQ(idle(both), std::vector<std::string>());
  }
  // These do something by default.
  for (const Row& row : std::vector<Row>{{{"--eps-clip", "0.1"}, {"--advantage-estimator", "reinforce"}},
                                         {{"--eps-clip-high", "0.1"}, {"--advantage-estimator", "reinforce"}},
                                         {{"--eps-clip-c", "3"}, {"--advantage-estimator", "reinforce"}},
                                         {{"--max-log-ratio", "3"}, {"--advantage-estimator", "reinforce"}},
                                         {{"--group-epsilon", "0.1"}, {"--advantage-estimator", "dr_grpo"}},
                                         {{"--reward-std-scope", "batch"}, {"--disable-rewards-normalization"}},
                                         {{"--sample-mean-epsilon", "0.1"}, {"--loss-agg-mode", "token-mean"}},
                                         {{"--weight-decay-all"}, {"--weight-decay", "0"}}}) {
    SCOPED_TRACE(row.typed.front());
    EXPECT_EQ(idle(row.typed), std::vector<std::string>());
    std::vector<std::string> both = row.with;
    both.insert(both.end(), row.typed.begin(), row.typed.end());
    EXPECT_EQ(idle(both).size(), 1U);
  }
  EXPECT_EQ(idle({}), std::vector<std::string>());
  EXPECT_EQ(idle({"--sequence-ratio-per-token", "--advantage-estimator", "rloo"}).size(), 1U)
      << "the sum of a sequence's log ratios goes through each token's term anyway";
}

// A run's config.toml has every option. It once brought a warning for each that was at its default and idle.
TEST(IdleFlags, OfAFileAreSaidWhereTheyAreNotTheDefault) {
  const base::TemporaryDirectory folder;
  const auto idle = [&](const std::vector<std::string>& of_run, const std::vector<std::string>& typed) {
    std::vector<std::string> words = {"--colocate", "--hf-checkpoint",
                                      "model",      "--prompt-data",
                                      "data.jsonl", "--rm-type",
                                      "exact",      "--rollout-batch-size",
                                      "4",          "--n-samples-per-prompt",
                                      "2",          "--num-rollout",
                                      "3",          "--save",
                                      "runs/x"};
    words.insert(words.end(), of_run.begin(), of_run.end());
    TrainConfig of_file, config;
    options::Options writing, reading;
    of_file.visit(writing);
    writing.parse(words);
    base::write_file_durably(folder / "config.toml", writing.text_to_repeat());
    config.visit(reading);
    words = {"--config", folder / "config.toml"};
    words.insert(words.end(), typed.begin(), typed.end());
    reading.parse(words);
    return reading.idle_texts();
  };
  EXPECT_EQ(idle({}, {}), std::vector<std::string>());
  EXPECT_EQ(idle({"--tis-clip", "3.5"}, {}), std::vector<std::string>{"--tis-clip: does nothing without --use-tis"});
  const std::string clip = base::dump_json(base::Json(TrainConfig().loss.loss.tis_clip));
  EXPECT_EQ(idle({}, {"--tis-clip", clip}), std::vector<std::string>{"--tis-clip: does nothing without --use-tis"});
}

}  // namespace
}  // namespace tandem::config
