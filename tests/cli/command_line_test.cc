// Checks the command line as its user meets it: help, exit codes, one-line errors, nearest names.
#include "cli/command_line.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "base/files.h"
#include "cli/verbs.h"
#include "config/other_trainers/unsupported_flags.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

TEST(CommandLine, ListsItsVerbs) {
  const Captured help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* verb : {"train", "sft", "generate", "score", "eval", "export", "plan", "bench"}) {
    EXPECT_NE(help.out.find(std::string("\n  ") + verb), std::string::npos) << verb;
  }
  const Captured alone = run({});
  EXPECT_EQ(alone.code, 2);
  EXPECT_EQ(alone.out, help.out);
  EXPECT_EQ(alone.err, "tandem: error: no verb is given; `tandem --help` lists them\n");
}

// Returns the longest of the lines.
std::string longest_line(const std::string& text) {
  std::string longest;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) longest = line.size() > longest.size() ? line : longest;
  return longest;
}

TEST(CommandLine, NoLineOfHelpIsLongerThanItsWidth) {
  EXPECT_LE(longest_line(run({"--help"}).out).size(), 110U);
  for (const Verb& verb : verbs()) {
    const std::string longest = longest_line(run({verb.name, "--help"}).out);
    EXPECT_LE(longest.size(), 110U) << verb.name << ": " << longest;
  }
}

TEST(CommandLine, DescriptionsOfVerbsBeginInOneColumn) {
  const std::string help = run({"--help"}).out;
  for (const Verb& verb : verbs()) {
    const std::string line = "\n  " + std::string(verb.name) + std::string(11 - std::string(verb.name).size(), ' ');
    EXPECT_NE(help.find(line + std::string(verb.description).substr(0, 20)), std::string::npos) << verb.name << help;
  }
}

TEST(CommandLine, UnknownVerbIsAnsweredWithTheNearest) {
  const Captured result = run({"trian"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("did you mean train?"), std::string::npos) << result.err;
}

TEST(CommandLine, ACommandOfAnotherTrainerIsAnsweredWithOurs) {
  const Captured result = run({"dpo", "--beta", "0.1"});
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.err, "tandem: error: unknown verb 'dpo': here it is `tandem sft --preference-loss sigmoid ...`\n");
}

TEST(CommandLine, EveryVerbHasGroupedHelp) {
  for (const char* verb : {"train", "sft", "generate", "score", "eval", "export", "bench"}) {
    const Captured result = run({verb, "--help"});
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find("\ngeneral:\n  --[no-]dry-run"), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("Usage: tandem " + std::string(verb)), std::string::npos) << result.out.substr(0, 80);
  }
}

TEST(CommandLine, UnknownFlagIsAnsweredWithTheNearest) {
  const Captured result =
      run({"train", "--hf-checkpoint", "x", "--prompt-data", "y", "--save", "z", "--rollout-batchsize", "2"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("--rollout-batch-size"), std::string::npos) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
}

TEST(CommandLine, UnsupportedFlagIsRefusedWithTheReason) {
  const Captured result = run({"train", "--vllm-gpu-memory-utilization", "0.7"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("Tandem's own"), std::string::npos) << result.err;
}

// The flags of slime's scripts/run-qwen3-4B.sh that Tandem does not have, among some that it has or does anyway.
TEST(CommandLine, SlimesScriptIsAnsweredInOneTry) {
  const Arguments refused = {"--swiglu",
                             "--num-layers",
                             "36",
                             "--hidden-size",
                             "2560",
                             "--ffn-hidden-size",
                             "9728",
                             "--num-attention-heads",
                             "32",
                             "--group-query-attention",
                             "--num-query-groups",
                             "8",
                             "--use-rotary-position-embeddings",
                             "--disable-bias-linear",
                             "--normalization",
                             "RMSNorm",
                             "--norm-epsilon",
                             "1e-6",
                             "--rotary-base",
                             "1000000",
                             "--vocab-size",
                             "151936",
                             "--kv-channels",
                             "128",
                             "--qk-layernorm",
                             "--pipeline-model-parallel-size",
                             "2",
                             "--sglang-mem-fraction-static",
                             "0.7"};
  Arguments arguments = {"train",  "--colocate", "--expert-model-parallel-size", "1", "--hf-checkpoint", "no model",
                         "--save", "x"};
  arguments.insert(arguments.end(), refused.begin(), refused.end());
  arguments.insert(arguments.end(), {"--prompt-data", "y", "--optimizer", "adam", "--rollout-batch-size", "8",
                                     "--rm-type", "math", "--num-rollout", "3", "--n-samples-per-prompt", "8"});
  const Captured result = run(arguments);
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(last_line(result.err),
            "tandem: error: 17 options cannot be used: none of them is supported; they are listed above, with the "
            "command line that remains");
  for (const std::string& word : refused) {
    if (word.starts_with("--")) {
      EXPECT_NE(result.err.find(word), std::string::npos) << word << "\n" << result.err;
    }
  }
  const std::string reason = "the model's shape is read from --hf-checkpoint's config.json:\n    --swiglu --num-layers";
  EXPECT_NE(result.err.find(reason), std::string::npos) << result.err;
  const std::string remaining =
      "  tandem train \\\n"
      "    --colocate --hf-checkpoint 'no model' --save x --prompt-data y --rollout-batch-size 8 \\\n"
      "    --rm-type math --num-rollout 3 --n-samples-per-prompt 8\n";
  ASSERT_NE(result.err.find(remaining), std::string::npos) << result.err;
  // The flag is accepted: the next error is not about a flag.
  expect_one_line_failure(
      run({"train", "--colocate", "--hf-checkpoint", "no model", "--save", "x", "--prompt-data", "y",
           "--rollout-batch-size", "8", "--rm-type", "math", "--num-rollout", "3", "--n-samples-per-prompt", "8"}),
      2, "no model");
}

TEST(CommandLine, FlagsThatAskForWhatIsDoneAnywayAreDropped) {
  const Arguments arguments = {
      "--pipeline-model-parallel-size", "1", "--lr", "1", "--bf16", "--rotary-base=1", "--expert-model-parallel-size=1",
      "--pipeline-model-parallel-size", "2"};
  EXPECT_EQ(config::without_harmless_flags(arguments),
            (Arguments{"--lr", "1", "--rotary-base=1", "--pipeline-model-parallel-size", "2"}));
}

// The flag is dropped where it changes nothing, so what it asks for has to be so.
TEST(CommandLine, Bf16IsAcceptedForAModelInBfloat16Alone) {
  const base::TemporaryDirectory folder;
  const auto dry = [&](const Arguments& more) {
    Arguments arguments = train_arguments(folder / "run", {"--dry-run"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  expect_one_line_failure(
      dry({"--bf16"}), 2,
      "--bf16: the model computes in float32, the dtype of --hf-checkpoint; give --dtype bfloat16 in its place");
  expect_one_line_failure(dry({"--bf16", "--dtype", "float32"}), 2,
                          "--bf16: the model computes in float32, as --dtype says; give --dtype bfloat16 in its place");
  const Captured accepted = dry({"--bf16", "--dtype", "bfloat16"});
  EXPECT_EQ(accepted.code, 0) << accepted.err;
}

TEST(CommandLine, AFlagOfAnotherVerbIsSaidToBeThat) {
  for (const auto& [verb, flag, other] :
       std::vector<std::array<std::string, 3>>{{"sft", "--save-best", "train"},
                                               {"sft", "--rollout-batch-size", "train"},
                                               {"sft", "--num-steps-per-rollout", "train"},
                                               {"sft", "--sample-dump-interval", "train"},
                                               {"sft", "--no-colocate", "train"},
                                               {"sft", "--custom-rm-path", "train"},
                                               {"train", "--preference-loss", "sft"},
                                               {"generate", "--lr", "train"}}) {
    expect_one_line_failure(run({verb, "--print-config", flag + "=x"}), 2,
                            fmt::format("{}: is a flag of `tandem {}` and not of `tandem {}`", flag, other, verb));
  }
  expect_one_line_failure(run({"sft", "--print-config", "--entropy_coef=1"}), 2,
                          "--entropy_coef: --entropy-coef is a flag of `tandem train` and not of `tandem sft`");
  expect_one_line_failure(run({"sft", "--print-config", "--reward-weights", "1"}), 2,
                          "--reward-weights: is a flag of `tandem train` and not of `tandem sft`");
}

// --load restores the optimizer, whatever else is typed; flags that ask for the weights alone are then refused.
TEST(CommandLine, PartsOfARunAreNotLoaded) {
  for (const char* flag : {"--no-load-optim", "--no-load-rng", "--finetune"}) {
    EXPECT_EQ(config::without_harmless_flags({flag, "--lr", "1"}), (Arguments{"--lr", "1"}));
    EXPECT_EQ(config::without_harmless_flags({flag, "--load", "x"}), (Arguments{flag, "--load", "x"}));
    EXPECT_EQ(config::without_harmless_flags({"--load=x", flag}), (Arguments{"--load=x", flag}));
  }
}

// A shell's variable that is not set must not begin another run than was meant.
TEST(CommandLine, AnEmptyPathIsRefused) {
  const base::TemporaryDirectory folder;
  const std::string run_path = folder / "run";
  expect_one_line_failure(run(train_arguments(run_path, {"--load", ""})), 2,
                          "--load: is empty; give a path, or leave the flag out");
  expect_one_line_failure(run(train_arguments(run_path, {"--ref-load="})), 2, "--ref-load: is empty");
  EXPECT_FALSE(base::directory_exists(run_path));
  expect_one_line_failure(run({"export", "--hf-checkpoint", "model", "--output", ""}), 2, "--output: is empty");
}

TEST(CommandLine, PrintedConfigIsAConfig) {
  base::TemporaryDirectory folder;
  const Captured first = run({"train", "--lr", "0.125", "--print-config"});
  ASSERT_EQ(first.code, 0) << first.err;
  base::write_file_durably(folder / "c.toml", first.out);
  const Captured second = run({"train", "--config", folder / "c.toml", "--print-config"});
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_EQ(first.out, second.out);
  EXPECT_NE(first.out.find("lr = 0.125"), std::string::npos);
}

}  // namespace
}  // namespace tandem::cli
