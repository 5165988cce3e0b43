// Checks modules that are trained whole beside an adapter (--modules-to-save) through the program: what a run trains,
// keeps and refuses, and what other verbs make of them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "base/files.h"
#include "tests/cli/learning/lora_run.h"
#include "tests/cli/tiny_run.h"
#include "weights/safetensors.h"

namespace tandem::cli {
namespace {

const std::string kUntiedModel = "tests/golden/models/qwen3-untied-sharded";

// A model, the modules of it that are trained whole, and one of the names that they have in PEFT's files.
struct WholeModules {
  std::string model, modules, tensor;
};
const std::vector<WholeModules> kWholeModules = {
    {kModel, "embed_tokens,norm", "model.embed_tokens.weight"},
    {kUntiedModel, "embed_tokens,lm_head", "lm_head.weight"},
};

class WholeModuleRun : public LoraRun {
 protected:
  Arguments words_of(const WholeModules& c, const std::string& save, const Arguments& more = {}) const {
    return with_flag(words(save, Arguments{"--modules-to-save", c.modules} + more), "--hf-checkpoint", c.model);
  }
};

// Returns the bytes of a tensor of DIR/NAME.safetensors.
std::vector<std::byte> bytes_of(const std::string& file, const std::string& tensor) {
  const weights::SafetensorsFile source(file);
  const weights::TensorInfo& info = source.tensor(tensor);
  std::vector<std::byte> bytes(static_cast<size_t>(info.num_bytes()));
  source.read(info, 0, bytes);
  return bytes;
}

TEST_F(WholeModuleRun, TrainsThemExactlyOnPolicyAgainstTheBasesOwn) {
  for (size_t i = 0; i < kWholeModules.size(); ++i) {
    const WholeModules& c = kWholeModules[i];
    for (const std::string dtype : {"float32", "bfloat16", "nf4"}) {
      SCOPED_TRACE(c.model + " " + dtype);
      const std::string path = folder_ / (dtype + std::to_string(i));
      const Arguments flags = {"--dtype", dtype, "--use-kl-loss", "--kl-loss-coef", "0.1"};
      const Captured result = run(words_of(c, path, flags));
      ASSERT_EQ(result.code, 0) << result.err;
      EXPECT_NE(result.out.find(i == 0 ? "LoRA: 49,152 trained parameters" : "; embed_tokens, lm_head whole"),
                std::string::npos)
          << result.out;
      int steps = 0;
      for (const base::Json& record : json_lines(path + "/metrics.jsonl")) {
        if (!record.contains("train/step")) continue;
        // The first step of a rollout is made with the weights that sampled it, and before the first update policy and
        // reference are equal.
        EXPECT_EQ(number(record, "train/train_rollout_logprob_abs_diff") == 0.0, steps % 2 == 0) << steps;
        EXPECT_EQ(number(record, "train/kl_loss") == 0.0, steps == 0) << steps;
        ++steps;
      }
      EXPECT_EQ(steps, 4);
      EXPECT_EQ(base::read_file(path + "/memory_timeline.jsonl").find("\"reference\""), std::string::npos);
      // The reference is the base with its own modules, as if it had been loaded by itself.
      ASSERT_EQ(run(words_of(c, path + "_loaded", flags + Arguments{"--ref-load", c.model})).code, 0);
      EXPECT_EQ(adapter_of(path + "_loaded"), adapter_of(path));
      const std::string file = path + "/hf/latest/adapter_model.safetensors";
      EXPECT_EQ(weights::SafetensorsFile(file).tensor("base_model.model." + c.tensor).dtype,
                dtype == "float32" ? "F32" : "BF16");
      // PEFT writes a tied embedding twice.
      if (i == 0) {
        EXPECT_EQ(bytes_of(file, "base_model.model.lm_head.weight"),
                  bytes_of(file, "base_model.model.model.embed_tokens.weight"));
      }
      const base::Json config = base::read_json_file(path + "/hf/latest/adapter_config.json");
      EXPECT_EQ(config["modules_to_save"].size(), 2U);
      EXPECT_EQ(config.contains("ensure_weight_tying"), i == 0);
    }
  }
}

TEST_F(WholeModuleRun, BeginsWithTheBasesValuesAndGoesOnBitForBit) {
  for (size_t i = 0; i < kWholeModules.size(); ++i) {
    const WholeModules& c = kWholeModules[i];
    SCOPED_TRACE(c.model);
    const auto path = [&](const std::string& name) { return folder_ / (name + std::to_string(i)); };
    ASSERT_EQ(run(with_flag(words_of(c, path("still")), "--lr", "0")).code, 0);
    const std::string still = path("still") + "/hf/latest/adapter_model.safetensors";
    const std::string base = i == 0 ? c.model + "/model.safetensors" : c.model + "/model-00003-of-00003.safetensors";
    EXPECT_TRUE(bytes_of(still, "base_model.model." + c.tensor) == bytes_of(base, c.tensor));
    const Arguments flags = i == 0
                                ? Arguments{"--dtype", "bfloat16", "--save-interval", "1"}
                                : Arguments{"--kl-coef", "0.3", "--ref-update-interval", "1", "--save-interval", "1"};
    ASSERT_EQ(run(words_of(c, path("whole"), flags)).code, 0);
    ASSERT_EQ(run(with_flag(words_of(c, path("cut"), flags), "--num-rollout", "1")).code, 0);
    const Captured rest = run(words_of(c, path("cut"), flags + Arguments{"--load", path("cut")}));
    ASSERT_EQ(rest.code, 0) << rest.err;
    EXPECT_TRUE(everything_of(path("cut"), 2) == everything_of(path("whole"), 2));
    expect_one_line_failure(run(with_flag(words_of(c, path("cut"), flags + Arguments{"--load", path("cut")}),
                                          "--modules-to-save", "embed_tokens")),
                            2, "--modules-to-save");
    // Offloading and recomputation change no bit.
    for (const Arguments& more :
         {Arguments{"--offload-train"}, Arguments{"--recompute-granularity", "full", "--recompute-num-layers", "2"}}) {
      const std::string other = path("other" + std::to_string(more.size()));
      ASSERT_EQ(run(words_of(c, other, flags + more)).code, 0);
      EXPECT_TRUE(adapter_of(other) == adapter_of(path("whole"))) << more.front();
    }
  }
}

TEST_F(WholeModuleRun, ItsAdapterIsAModelIsMergedAndIsTrainedOn) {
  for (size_t i = 0; i < kWholeModules.size(); ++i) {
    const WholeModules& c = kWholeModules[i];
    SCOPED_TRACE(c.model);
    const std::string path = folder_ / ("run" + std::to_string(i)), merged = path + "_merged", on = path + "_on";
    ASSERT_EQ(run(words_of(c, path, {"--dtype", "float32"})).code, 0);
    const std::string adapter = path + "/hf/latest";
    ASSERT_EQ(run({"export", "--run", path, "--output", merged, "--dtype", "float32"}).code, 0);
    const auto score = [&](const std::string& model) { return scores(model, folder_, {"--dtype", "float32"}); };
    const std::vector<double> with_adapter = score(adapter);
    EXPECT_GT(largest_difference(with_adapter, score(c.model)), 1e-3) << "it has learnt something";
    EXPECT_LT(largest_difference(with_adapter, score(merged)), 2e-4) << "the same model, rounded otherwise";
    EXPECT_TRUE(bytes_of(merged + "/model.safetensors", c.tensor) ==
                bytes_of(adapter + "/adapter_model.safetensors", "base_model.model." + c.tensor));
    const Captured evaluated = run({"eval", "--hf-checkpoint", adapter, "--eval-prompt-data", "math", kPrompts,
                                    "--rm-type", "math", "--rollout-max-response-len", "4"});
    EXPECT_EQ(evaluated.code, 0) << evaluated.err;
    // A run that begins with the adapter trains the same modules whole, without --modules-to-save.
    const Arguments further =
        with_flag(with_flag(with_custom_reward(train_arguments(on, {"--lora-rank", "4", "--use-kl-loss",
                                                                    "--kl-loss-coef", "0.1", "--dtype", "float32"}),
                                               reward_),
                            "--hf-checkpoint", adapter),
                  "--lr", "0");
    const Captured result = run(further);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(adapter_of(on), adapter_of(path));
    for (const base::Json& record : json_lines(on + "/metrics.jsonl")) {
      if (!record.contains("train/step")) continue;
      EXPECT_EQ(number(record, "train/train_rollout_logprob_abs_diff"), 0.0);
      EXPECT_GT(number(record, "train/kl_loss"), 0.0) << "the reference is the base";
    }
    expect_one_line_failure(
        run(with_flag(further, "--save", folder_ / "none") + Arguments{"--modules-to-save", "embed_tokens"}), 2,
        "--modules-to-save: " + adapter + " is trained on with its whole modules embed_tokens,");
  }
}

TEST_F(WholeModuleRun, ThePlanCountsThem) {
  const auto plan = [](const Arguments& more) {
    const Captured result = run(Arguments{"plan", "--hf-checkpoint", kModel, "--dtype", "bfloat16", "--json",
                                          "--lora-rank", "4", "--use-kl-loss", "--kl-loss-coef", "0.1"} +
                                more);
    EXPECT_EQ(result.code, 0) << result.err;
    return base::parse_json(result.out, "plan");
  };
  const base::Json adapter = plan({}), whole = plan({"--modules-to-save", "embed_tokens"});
  const int64_t added = 512 * 64;
  const auto tag = [](const base::Json& of, const char* name) {
    return of["ranks"][0]["phases"]["train"]["tags"][name].get<int64_t>();
  };
  EXPECT_EQ(whole["trained_parameters"].get<int64_t>(), adapter["trained_parameters"].get<int64_t>() + added);
  EXPECT_EQ(tag(whole, "weights"), tag(adapter, "weights") + 2 * added);
  EXPECT_EQ(tag(whole, "master"), tag(adapter, "master") + 4 * added);
  EXPECT_EQ(tag(whole, "moments"), tag(adapter, "moments") + 8 * added);
  EXPECT_GE(tag(whole, "gradients"), tag(adapter, "gradients") + 4 * added);
  EXPECT_EQ(tag(whole, "reference"), 0);
}

TEST_F(WholeModuleRun, WhatItCannotTrainIsRefused) {
  const auto fails = [&](const Arguments& more, const std::string& says) {
    expect_one_line_failure(run(with_custom_reward(train_arguments(folder_ / "none", more), reward_)), 2, says);
  };
  fails({"--modules-to-save", "embed_tokens"}, "--modules-to-save: needs --lora-rank");
  fails({"--lora-rank", "4", "--modules-to-save", "embed_tokens,lm_head"},
        "--modules-to-save: lm_head is this model's embed_tokens (tie_word_embeddings)");
  fails({"--lora-rank", "4", "--modules-to-save", "classifier"},
        "--modules-to-save: \"classifier\" is no module of this model; give some of embed_tokens,");
  // Embedding and head of such an adapter are two, where the model has one.
  const std::string path = folder_ / "adapter";
  std::filesystem::copy("tests/golden/lora_saved_tied", path);
  base::Json config = base::read_json_file(path + "/adapter_config.json");
  config["ensure_weight_tying"] = false;
  base::write_file_durably(path + "/adapter_config.json", config.dump());
  expect_one_line_failure(run({"generate", "--hf-checkpoint", path, "--prompt-data", kPrompts}), 2,
                          "modules_to_save: its embedding and head are two");
}

}  // namespace
}  // namespace tandem::cli
