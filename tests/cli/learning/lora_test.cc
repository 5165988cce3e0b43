// Checks LoRA through the program: what a run trains, keeps and refuses, and what other verbs make of its adapter.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>

#include "base/files.h"
#include "tests/cli/learning/lora_run.h"
#include "tests/cli/resume/reseal.h"
#include "tests/cli/tiny_run.h"
#include "tests/model/families.h"
#include "weights/safetensors.h"

namespace tandem::cli {
namespace {

const std::string kSparseModel = "tests/golden/models/qwen3-moe";
const std::string kAllNames = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj";

TEST_F(LoraRun, TrainsAnAdapterExactlyOnPolicyAgainstItsBase) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    const std::string path = folder_ / dtype;
    const Captured result = run(words(path, {"--dtype", dtype, "--use-kl-loss", "--kl-loss-coef", "0.1"}));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find("LoRA: 15,744 trained parameters: rank 4, alpha 6 on " + kAllNames), std::string::npos)
        << result.out;
    int steps = 0;
    for (const base::Json& record : json_lines(path + "/metrics.jsonl")) {
      if (!record.contains("train/step")) continue;
      // The first step of a rollout is made with the weights that sampled it.
      if (steps % 2 == 0) {
        EXPECT_EQ(number(record, "train/train_rollout_logprob_abs_diff"), 0.0) << dtype;
      }
      // The reference is the base: policy and reference are equal before the first update.
      if (steps == 0) {
        EXPECT_EQ(number(record, "train/kl_loss"), 0.0) << dtype;
      } else {
        EXPECT_GT(number(record, "train/kl_loss"), 0.0) << dtype;
      }
      EXPECT_GT(number(record, "train/grad_norm"), 0.0);
      ++steps;
    }
    EXPECT_EQ(steps, 4);
    // The base is written nowhere, and the reference takes no memory.
    EXPECT_FALSE(base::file_exists(path + "/hf/latest/model.safetensors"));
    EXPECT_FALSE(base::file_exists(path + "/hf/latest/config.json"));
    EXPECT_TRUE(base::file_exists(path + "/hf/latest/tokenizer.json"));
    EXPECT_EQ(base::read_file(path + "/memory_timeline.jsonl").find("\"reference\""), std::string::npos);
    const weights::SafetensorsFile adapter(path + "/hf/latest/adapter_model.safetensors");
    EXPECT_EQ(adapter.tensors().size(), 3U * 7U * 2U);
    EXPECT_EQ(adapter.tensor("base_model.model.model.layers.2.mlp.down_proj.lora_A.weight").shape,
              (std::vector<int64_t>{4, 160}));
    EXPECT_EQ(adapter.tensors().begin()->second.dtype, dtype == "float32" ? "F32" : "BF16");
    const base::Json config = base::read_json_file(path + "/hf/latest/adapter_config.json");
    EXPECT_EQ(config["base_model_name_or_path"], kModel);
    EXPECT_EQ(config["r"], 4);
    EXPECT_EQ(config["lora_alpha"], 6);
  }
}

// A reference that follows the policy has an adapter of its own, and resumes too.
TEST_F(LoraRun, GoesOnBitForBitFromACheckpointWithoutTheBase) {
  const std::vector<Arguments> cases = {
      {"--target-modules", "q_proj", "v_proj,down_proj", "--dtype", "bfloat16", "--save-interval", "1"},
      {"--kl-coef", "0.3", "--ref-update-interval", "1", "--save-interval", "1"}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string whole = folder_ / ("whole" + std::to_string(i)), cut = folder_ / ("cut" + std::to_string(i));
    ASSERT_EQ(run(words(whole, cases[i])).code, 0);
    ASSERT_EQ(run(with_flag(words(cut, cases[i]), "--num-rollout", "1")).code, 0);
    const base::Json state = base::read_json_file(cut + "/checkpoints/step_000001/state.json");
    EXPECT_EQ(state.contains("reference_step"), i == 1);
    const std::string manifest = base::read_file(cut + "/checkpoints/step_000001/MANIFEST.json");
    EXPECT_EQ(manifest.find("embed_tokens"), std::string::npos) << "the base is not in it";
    EXPECT_EQ(manifest.find("\"reference.base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight\"") !=
                  std::string::npos,
              i == 1);
    const Captured rest = run(words(cut, cases[i] + Arguments{"--load", cut}));
    ASSERT_EQ(rest.code, 0) << rest.err;
    EXPECT_TRUE(everything_of(cut, 2) == everything_of(whole, 2)) << "case " << i;
  }
}

// A base in 4 or 8 bits (QLoRA): engine and trainer compute with one copy of it.
TEST_F(LoraRun, AQuantisedBaseTrainsExactlyOnPolicyAndGoesOnBitForBit) {
  struct Case {
    std::string dtype, model;
    Arguments more;
  };
  const std::vector<Case> cases = {
      {"nf4", kModel, {}},
      {"int8", kModel, {}},
      {"nf4", kSparseModel, {"--target-modules", "q_proj", "gate_proj", "up_proj", "down_proj"}},
  };
  for (const auto& [dtype, model, more] : cases) {
    SCOPED_TRACE(dtype + " of " + model);
    const std::string name = dtype + (model == kModel ? "" : "_experts");
    const std::string whole = folder_ / name, cut = folder_ / (name + "_cut");
    const auto of = [&, model = model](const std::string& save, const Arguments& others = {}) {
      const Arguments flags = {"--dtype", dtype, "--use-kl-loss", "--kl-loss-coef", "0.1", "--save-interval", "1"};
      return with_flag(words(save, flags + more + others), "--hf-checkpoint", model);
    };
    const Captured result = run(of(whole));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find("parameters in " + dtype), std::string::npos) << result.out;
    int steps = 0;
    for (const base::Json& record : json_lines(whole + "/metrics.jsonl")) {
      if (!record.contains("train/step")) continue;
      EXPECT_EQ(number(record, "train/train_rollout_logprob_abs_diff") == 0.0, steps % 2 == 0) << dtype << steps;
      EXPECT_EQ(number(record, "train/kl_loss") == 0.0, steps == 0) << dtype << steps;
      EXPECT_GT(number(record, "train/grad_norm"), 0.0);
      ++steps;
    }
    EXPECT_EQ(steps, 4);
    const weights::SafetensorsFile adapter(whole + "/hf/latest/adapter_model.safetensors");
    EXPECT_EQ(adapter.tensors().begin()->second.dtype, "BF16");
    ASSERT_EQ(run(with_flag(of(cut), "--num-rollout", "1")).code, 0);
    const Captured rest = run(of(cut, {"--load", cut}));
    ASSERT_EQ(rest.code, 0) << rest.err;
    EXPECT_TRUE(everything_of(cut, 2) == everything_of(whole, 2)) << dtype;
    expect_one_line_failure(run(with_flag(of(cut, {"--load", cut}), "--dtype", "bfloat16")), 2,
                            "--dtype was " + dtype + " and is bfloat16");
    // Other verbs compute with the same base, and the adapter merges into the weights as they were.
    const std::string latest = whole + "/hf/latest";
    const Captured evaluated = run({"eval", "--hf-checkpoint", latest, "--dtype", dtype, "--eval-prompt-data", "math",
                                    kPrompts, "--rm-type", "math", "--rollout-max-response-len", "4"});
    EXPECT_EQ(evaluated.code, 0) << evaluated.err;
    EXPECT_EQ(run({"export", "--run", whole, "--output", folder_ / (name + "_merged")}).code, 0);
  }
}

// Writes a model directory of weights that bitsandbytes quantised, and of the rest of the model that they were made of.
void write_quantised_model(const std::string& directory, const std::string& weights, const std::string& source) {
  base::make_directories(directory);
  for (const std::string& name : base::list_directory(source)) {
    const bool is_weights = name.starts_with("model.safetensors") || name == "config.json";
    base::write_file_durably(directory + "/" + name, base::read_file((is_weights ? weights : source) + "/" + name));
  }
}

TEST_F(LoraRun, SparseModelsAreQuantisedAndReadFromQuantisedFiles) {
  const std::string model = folder_ / "model";
  write_quantised_model(model, "tests/golden/quantised/experts_nf4", kSparseModel);
  const Captured result = run(with_flag(words(folder_ / "run"), "--hf-checkpoint", model));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err.find("not quantised"), std::string::npos) << result.err;
  EXPECT_NE(result.out.find("parameters in nf4"), std::string::npos) << result.out;
  int steps = 0;
  for (const base::Json& record : json_lines(folder_ / "run/metrics.jsonl")) {
    if (!record.contains("train/step")) continue;
    EXPECT_EQ(number(record, "train/train_rollout_logprob_abs_diff") == 0.0, steps % 2 == 0) << steps;
    ++steps;
  }
  EXPECT_EQ(steps, 4);
  const Captured plan =
      run({"plan", "--hf-checkpoint", kSparseModel, "--lora-rank", "8", "--dtype", "nf4", "--device", "cuda"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  expect_one_line_failure(
      run({"plan", "--hf-checkpoint", kSparseModel, "--lora-rank", "8", "--dtype", "nf4", "--device", "npu"}), 2,
      "--dtype nf4: --device npu does not compute with quantised matrices yet; give --device cpu, or give --dtype "
      "bfloat16");
}

// Checkpoints of bitsandbytes are read as they are.
TEST_F(LoraRun, ABaseThatIsQuantisedInItsFileNeedsNoFlag) {
  for (const std::string dtype : {"nf4", "int8"}) {
    const std::string model = folder_ / ("model_" + dtype);
    write_quantised_model(model, "tests/golden/quantised/" + dtype, kModel);
    const auto of_file = [&](const std::string& save, const Arguments& more) {
      return with_flag(words(folder_ / save, more), "--hf-checkpoint", model);
    };
    const Captured result = run(of_file(dtype, {}));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.out.find("parameters in " + dtype), std::string::npos) << result.out;
    int steps = 0;
    for (const base::Json& record : json_lines(folder_ / dtype + "/metrics.jsonl")) {
      if (!record.contains("train/step")) continue;
      EXPECT_EQ(number(record, "train/train_rollout_logprob_abs_diff") == 0.0, steps % 2 == 0) << dtype << steps;
      ++steps;
    }
    EXPECT_EQ(steps, 4);
    expect_one_line_failure(
        run(of_file("none", {"--dtype", "bfloat16"})), 2,
        "are " + dtype + "; give --dtype " + dtype + ", or name the checkpoint that it was made from");
    const std::string source = "name the checkpoint that it was made from";
    expect_one_line_failure(run({"plan", "--hf-checkpoint", model, "--lora-rank", "8", "--device", "npu"}), 2,
                            "give --device cpu, or " + source);
    Arguments whole = with_custom_reward(train_arguments(folder_ / "none"), reward_);
    expect_one_line_failure(run(with_flag(whole, "--hf-checkpoint", model)), 2,
                            "give --lora-rank to train an adapter over them, or " + source);
    const Captured speed = run({"bench", "--hf-checkpoint", model, "--what", "decode", "--prompt-len", "8",
                                "--response-len", "4", "--sequences", "1"});
    EXPECT_EQ(speed.code, 0) << speed.err;
    EXPECT_NE(speed.out.find(dtype + ": "), std::string::npos) << speed.out;
    expect_one_line_failure(run(of_file("none", {"--use-kl-loss", "--kl-loss-coef", "0.1", "--ref-load", model})), 2,
                            "take an unquantised checkpoint");
    expect_one_line_failure(run({"export", "--run", folder_ / dtype, "--output", folder_ / "merged"}), 2,
                            "name the checkpoint that it was made from as base_model_name_or_path");
    expect_one_line_failure(
        run({"export", "--hf-checkpoint", kModel, "--dtype", dtype, "--output", folder_ / "merged"}), 2,
        "--dtype: '" + dtype + "' is none of auto, float32, bfloat16");
    const Captured evaluated = run({"eval", "--hf-checkpoint", folder_ / dtype + "/hf/latest", "--eval-prompt-data",
                                    "math", kPrompts, "--rm-type", "math", "--rollout-max-response-len", "4"});
    EXPECT_EQ(evaluated.code, 0) << evaluated.err;
  }
}

// Older versions of bitsandbytes kept int8 weights in the order of a GPU's tiles, which was once read as rows.
TEST_F(LoraRun, Int8WeightsInAnotherOrderAreRefused) {
  const std::string model = folder_ / "model", file = model + "/model.safetensors";
  write_quantised_model(model, "tests/golden/quantised/int8", kModel);
  const std::string plain = base::read_file(file), name = "model.layers.1.mlp.up_proj.weight_format";
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, plain.data(), sizeof header_bytes);
  const size_t data = sizeof header_bytes + header_bytes;
  const base::Json entry = base::parse_json(plain.substr(sizeof header_bytes, header_bytes), "header").at(name);
  ASSERT_EQ(entry.at("dtype"), "U8");
  const auto write = [&](const std::string& dtype, char format) {
    std::string bytes = plain;
    bytes[data + entry.at("data_offsets")[0].get<size_t>()] = format;
    const size_t header = bytes.find(name);
    bytes.replace(bytes.find("U8", header), dtype.size(), dtype);
    base::write_file_durably(file, bytes);
  };
  const auto dry = [&] { return run(with_flag(words(folder_ / "run", {"--dry-run"}), "--hf-checkpoint", model)); };
  write("U8", 0);
  const Captured rows = dry();
  EXPECT_EQ(rows.code, 0) << rows.err;
  for (const char format : {1, 2, 3}) {
    write("U8", format);
    expect_one_line_failure(dry(), 2, fmt::format("weight_format\" is {}, and only 0", static_cast<int>(format)));
  }
  expect_one_line_failure(dry(), 2, "take the checkpoint that it was made from, or save it again");
  write("I8", 0);
  expect_one_line_failure(dry(), 2, "is I8 [], and U8 []");
}

// The scale and the dropout of an adapter's file stand in no flag: a run once resumed with others without a word.
TEST_F(LoraRun, ResumesWithTheScaleAndDropoutOfItsAdapterAlone) {
  const std::string adapter = folder_ / "adapter";
  std::filesystem::copy("tests/golden/lora", adapter);
  const auto configure = [&](const std::string& key, const base::Json& value) {
    base::Json config = base::read_json_file("tests/golden/lora/adapter_config.json");
    config[key] = value;
    base::write_file_durably(adapter + "/adapter_config.json", config.dump());
  };
  base::write_file_durably(folder_ / "data.jsonl", "{\"prompt\": \"1 + 2 =\", \"response\": \" 3\"}\n");
  const Arguments train = with_custom_reward(train_arguments(folder_ / "train", {"--lora-rank", "4"}), reward_);
  const Arguments sft = {"sft", "--prompt-data", folder_ / "data.jsonl", "--global-batch-size", "1", "--lora-rank",
                         "4",   "--save",        folder_ / "sft",        "--no-use-tensorboard"};
  for (const auto& [name, begun] : {std::pair{std::string("train"), train}, {std::string("sft"), sft}}) {
    SCOPED_TRACE(name);
    const Arguments of_adapter = with_flag(begun, "--hf-checkpoint", adapter);
    configure("lora_alpha", 6);
    const Captured first = run(with_flag(of_adapter, "--num-rollout", "1"));
    ASSERT_EQ(first.code, 0) << first.err;
    const Arguments rest = with_flag(with_flag(of_adapter, "--load", folder_ / name), "--num-rollout", "2");
    const std::string differently = "--load: the run would resume differently: the adapter's ";
    configure("lora_alpha", 8);
    expect_one_line_failure(run(rest), 2, differently + "scale was 6 over 4 and is 8 over 4");
    configure("use_rslora", true);
    expect_one_line_failure(run(rest), 2, differently + "scale was 6 over 4 and is 6 over the root of 4");
    configure("lora_dropout", 0.25);
    expect_one_line_failure(run(rest), 2, differently + "dropout was 0 and is 0.25");
    // A checkpoint from before they were compared goes on.
    reseal(folder_ / name + "/checkpoints/step_000001", [](base::Json& state) {
      EXPECT_EQ(state["numbers"].erase("the adapter's scale"), 1U);
      EXPECT_EQ(state["numbers"].erase("the adapter's dropout"), 1U);
    });
    const Captured older = run(rest);
    EXPECT_EQ(older.code, 0) << older.err;
  }
}

TEST_F(LoraRun, WhereThingsLieChangesNoBit) {
  std::string first;
  for (const Arguments& more : {Arguments{}, Arguments{"--offload-train"},
                                Arguments{"--recompute-granularity", "full", "--recompute-num-layers", "2"}}) {
    const std::string path = folder_ / ("run" + std::to_string(more.size()));
    const Captured result =
        run(words(path, Arguments{"--dtype", "bfloat16", "--use-kl-loss", "--kl-loss-coef", "0.1"} + more));
    ASSERT_EQ(result.code, 0) << result.err;
    if (first.empty()) first = adapter_of(path);
    EXPECT_TRUE(adapter_of(path) == first) << more.front();
  }
}

TEST_F(LoraRun, ItsAdapterIsAModelForOtherVerbsAndMergesIntoOne) {
  ASSERT_EQ(run(words(folder_ / "run", {"--save-interval", "1"})).code, 0);
  const std::string adapter = folder_ / "run/hf/latest", merged = folder_ / "merged";
  base::make_directories(folder_ / "unsaved");
  expect_one_line_failure(run({"export", "--run", folder_ / "unsaved", "--output", merged}), 2,
                          "no exported weights there (no folder hf)");
  const Captured dry = run({"export", "--run", folder_ / "run", "--output", merged, "--dry-run"});
  EXPECT_NE(dry.out.find("merged into " + kModel), std::string::npos) << dry.out << dry.err;
  const Captured exported = run({"export", "--run", folder_ / "run", "--output", merged});
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_NE(exported.out.find("the adapter merged into them"), std::string::npos) << exported.out;
  EXPECT_FALSE(base::file_exists(merged + "/adapter_config.json"));
  const std::vector<double> with_adapter = scores(adapter, folder_), of_base = scores(kModel, folder_);
  EXPECT_GT(largest_difference(with_adapter, of_base), 1e-3) << "it has learnt something";
  EXPECT_LT(largest_difference(with_adapter, scores(merged, folder_)), 2e-4) << "the same model, rounded otherwise";
  // In a narrower dtype each weight is rounded once, from the sum.
  ASSERT_EQ(run({"export", "--hf-checkpoint", adapter, "--output", folder_ / "narrow", "--dtype", "bfloat16"}).code, 0);
  EXPECT_LT(largest_difference(with_adapter, scores(folder_ / "narrow", folder_)), 1.0);
  const Captured generated =
      run({"generate", "--hf-checkpoint", adapter, "--prompt-data", kPrompts, "--rollout-max-response-len", "4"});
  EXPECT_EQ(generated.code, 0) << generated.err;
  const Captured evaluated = run({"eval", "--hf-checkpoint", adapter, "--eval-prompt-data", "math", kPrompts,
                                  "--rm-type", "math", "--rollout-max-response-len", "4"});
  EXPECT_EQ(evaluated.code, 0) << evaluated.err;
  // A merged model can be trained on.
  EXPECT_EQ(run(with_flag(words(folder_ / "again"), "--hf-checkpoint", merged) + Arguments{"--dry-run"}).code, 0);
}

TEST_F(LoraRun, NothingReplacesTheBaseOfItsAdapter) {
  const std::string first = folder_ / "first", base = first + "/hf/latest", weights = base + "/model.safetensors";
  ASSERT_EQ(run(with_flag(train_arguments(first), "--num-rollout", "1")).code, 0);
  const std::string adapter = folder_ / "adapter";
  const Arguments small = with_flag(words(adapter), "--num-rollout", "1");
  ASSERT_EQ(run(with_flag(small, "--hf-checkpoint", base)).code, 0);
  const std::string before = base::read_file(weights);
  const Arguments onto = {"export", "--run", adapter, "--overwrite", "--output"};
  std::filesystem::create_directory_symlink(base, folder_ / "link");
  for (const std::string& output : {base, folder_ / "link"}) {
    for (const Arguments& more : {Arguments{}, Arguments{"--dry-run"}}) {
      expect_one_line_failure(run(onto + Arguments{output} + more), 2,
                              "--output " + output + ": is the base of " + adapter);
    }
  }
  const Arguments again = with_flag(with_flag(small, "--hf-checkpoint", adapter + "/hf/latest"), "--save", first);
  for (const Arguments& more : {Arguments{"--overwrite"}, Arguments{"--overwrite", "--dry-run"}}) {
    expect_one_line_failure(run(again + more), 2, "--hf-checkpoint " + adapter + "/hf/latest: its base ");
  }
  EXPECT_TRUE(base::read_file(weights) == before);
}

// PEFT's own adapters, and the models that PEFT merged, come from the make.py of the two folders.
TEST_F(LoraRun, AnAdapterOfPeftsIsReadAndMerged) {
  for (const auto& [adapter, name] :
       {std::pair{"tests/golden/lora", "model.layers.1.mlp.up_proj.weight"},
        std::pair{"tests/golden/lora_experts", "model.layers.1.mlp.experts.3.up_proj.weight"},
        std::pair{"tests/golden/lora_saved_tied", "model.norm.weight"}}) {
    const std::string merged = folder_ / std::filesystem::path(adapter).filename().string();
    ASSERT_EQ(run({"export", "--hf-checkpoint", adapter, "--output", merged}).code, 0);
    const weights::SafetensorsFile own(merged + "/model.safetensors"),
        want(std::string(adapter) + "/reference.safetensors");
    const weights::TensorInfo &a = own.tensor(name), &b = want.tensor(std::string("merged.") + name);
    ASSERT_EQ(a.shape, b.shape);
    std::vector<float> x(static_cast<size_t>(a.num_bytes()) / sizeof(float)), y(x.size());
    own.read(a, 0, std::as_writable_bytes(std::span(x)));
    want.read(b, 0, std::as_writable_bytes(std::span(y)));
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], 1e-6) << name << " " << i;
  }
}

TEST_F(LoraRun, AnAdapterOfExpertsTrainsExactlyResumesAndMerges) {
  const std::string whole = folder_ / "whole", cut = folder_ / "cut", merged = folder_ / "merged";
  const auto sparse_words = [&](const std::string& save, const Arguments& more = {}) {
    const Arguments flags = {
        "--target-modules", "q_proj,gate_proj,up_proj,down_proj", "--dtype", "bfloat16", "--save-interval", "1"};
    return with_flag(words(save, flags + more), "--hf-checkpoint", kSparseModel);
  };
  const Captured result = run(sparse_words(whole));
  ASSERT_EQ(result.code, 0) << result.err;
  // Each of 3 layers has 4 (64 + 128) of q, and of each of 8 experts 4 (64 + 48) three times.
  EXPECT_NE(result.out.find("LoRA: 34,560 trained parameters"), std::string::npos) << result.out;
  int steps = 0;
  for (const base::Json& record : json_lines(whole + "/metrics.jsonl")) {
    if (!record.contains("train/step")) continue;
    // The first step of a rollout is made with the weights that sampled it.
    EXPECT_EQ(number(record, "train/train_rollout_logprob_abs_diff") == 0.0, steps % 2 == 0) << steps;
    ++steps;
  }
  EXPECT_EQ(steps, 4);
  ASSERT_EQ(run(with_flag(sparse_words(cut), "--num-rollout", "1")).code, 0);
  const Captured rest = run(sparse_words(cut, {"--load", cut}));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_TRUE(everything_of(cut, 2) == everything_of(whole, 2));
  const std::string adapter = whole + "/hf/latest";
  const weights::SafetensorsFile file(adapter + "/adapter_model.safetensors");
  EXPECT_EQ(file.tensors().size(), 3U * 2U * (1U + 8U * 3U));
  EXPECT_EQ(file.tensor("base_model.model.model.layers.2.mlp.experts.7.down_proj.lora_B.weight").shape,
            (std::vector<int64_t>{64, 4}));
  ASSERT_EQ(run({"export", "--hf-checkpoint", adapter, "--output", merged}).code, 0);
  const std::vector<double> with_adapter = scores(adapter, folder_);
  EXPECT_GT(largest_difference(with_adapter, scores(kSparseModel, folder_)), 1e-3) << "it has learnt something";
  EXPECT_LT(largest_difference(with_adapter, scores(merged, folder_)), 2e-4) << "the same model, rounded otherwise";
}

TEST_F(LoraRun, SupervisedTrainingHasAdaptersToo) {
  std::string lines;
  for (int i = 0; i < 8; ++i) lines += "{\"prompt\": \"say\", \"response\": \" yes yes\"}\n";
  base::write_file_durably(folder_ / "data.jsonl", lines);
  const Arguments sft = {"sft",
                         "--hf-checkpoint",
                         kModel,
                         "--prompt-data",
                         folder_ / "data.jsonl",
                         "--num-rollout",
                         "14",
                         "--lr",
                         "2e-2",
                         "--global-batch-size",
                         "4",
                         "--lora-rank",
                         "8",
                         "--no-use-tensorboard"};
  const Captured result = run(sft + Arguments{"--save", folder_ / "run"});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("rank 8, alpha 16 on " + kAllNames), std::string::npos) << result.out;
  std::vector<base::Json> steps = json_lines(folder_ / "run/metrics.jsonl");
  EXPECT_LT(number(steps.back(), "train/loss"), 0.3 * number(steps.front(), "train/loss"));
  EXPECT_EQ(base::read_json_file(folder_ / "run/hf/latest/adapter_config.json")["r"], 8);
  EXPECT_NE(run(sft + Arguments{"--save", folder_ / "dry", "--dry-run"}).out.find("LoRA: "), std::string::npos);
}

// An adapter on fewer modules would forget what the others have learnt.
TEST_F(LoraRun, NothingThatWasTrainedIsDroppedByAResume) {
  const auto words = [&](const std::string& save, const Arguments& more) {
    return with_custom_reward(train_arguments(folder_ / save, Arguments{"--lora-rank", "4"} + more), reward_);
  };
  ASSERT_EQ(run(words("all", {"--target-modules", "q_proj", "v_proj", "--modules-to-save", "embed_tokens"})).code, 0);
  const Arguments load = {"--load", folder_ / "all", "--allow-changed-config", "--num-rollout", "3"};
  for (const Arguments& kept : {Arguments{"--target-modules", "q_proj", "--modules-to-save", "embed_tokens"},
                                Arguments{"--target-modules", "q_proj", "v_proj"}}) {
    const Captured result = run(words("less_" + std::to_string(kept.size()), kept + load));
    EXPECT_EQ(result.code, 2);
    EXPECT_NE(last_line(result.err).find("was trained, and with these flags it is not"), std::string::npos)
        << result.err;
  }
}

TEST_F(LoraRun, ThePlanHasNoMasterNoMomentsAndNoGradientOfTheBase) {
  const auto plan = [](const Arguments& more) {
    const Captured result = run(Arguments{"plan", "--hf-checkpoint", kModel, "--dtype", "bfloat16", "--json",
                                          "--use-kl-loss", "--kl-loss-coef", "0.1"} +
                                more);
    EXPECT_EQ(result.code, 0) << result.err;
    return base::parse_json(result.out, "plan");
  };
  const base::Json full = plan({}), lora = plan({"--lora-rank", "4"});
  EXPECT_FALSE(full.contains("trained_parameters"));
  EXPECT_EQ(lora["parameters"], full["parameters"]);
  const auto trained = lora["trained_parameters"].get<int64_t>();
  EXPECT_EQ(trained, 15744);
  const base::Json &with = lora["ranks"][0]["phases"]["train"]["tags"],
                   &without = full["ranks"][0]["phases"]["train"]["tags"];
  EXPECT_EQ(with["master"], 4 * trained);
  EXPECT_EQ(with["moments"], 8 * trained);
  EXPECT_LT(with["gradients"], without["gradients"].get<int64_t>() / 5);
  EXPECT_EQ(with["reference"], 0);
  EXPECT_GT(without["reference"], 0);
  EXPECT_EQ(
      plan({"--lora-rank", "4", "--ref-update-interval", "5"})["ranks"][0]["phases"]["train"]["tags"]["reference"],
      with["weights"].get<int64_t>() - without["weights"].get<int64_t>());
}

// A run begins with the adapter that another one left: with a learning rate of 0 it leaves the same one, and with
// another its first step is on the policy of both products. It is resumed as any other.
TEST_F(LoraRun, AnAdapterIsTrainedOn) {
  ASSERT_EQ(run(words(folder_ / "first", {"--use-rslora"})).code, 0);
  const std::string adapter = folder_ / "first/hf/latest";
  const auto on = [&](const std::string& name, const std::string& lr, const Arguments& more = {}) {
    Arguments arguments =
        with_custom_reward(train_arguments(folder_ / name, Arguments{"--lora-rank", "4"} + more), reward_);
    return with_flag(with_flag(arguments, "--hf-checkpoint", adapter), "--lr", lr);
  };
  ASSERT_EQ(run(with_flag(on("same", "0"), "--num-rollout", "1")).code, 0);
  EXPECT_EQ(adapter_of(folder_ / "same"), adapter_of(folder_ / "first"));
  const Captured result = run(on("second", "2e-2", {"--save-interval", "1"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("rank 4, alpha 6 over the rank's root on " + kAllNames), std::string::npos) << result.out;
  EXPECT_NE(adapter_of(folder_ / "second"), adapter_of(folder_ / "first"));
  EXPECT_EQ(base::read_json_file(folder_ / "second/hf/latest/adapter_config.json")["base_model_name_or_path"], kModel);
  for (const base::Json& record : json_lines(folder_ / "second/metrics.jsonl")) {
    if (record.contains("train/step") && record["train/step"] == 0) {
      EXPECT_EQ(number(record, "train/train_rollout_logprob_abs_diff"), 0.0);
    }
  }
  ASSERT_EQ(run(with_flag(on("killed", "2e-2", {"--save-interval", "1"}), "--num-rollout", "1")).code, 0);
  ASSERT_EQ(run(on("killed", "2e-2", {"--save-interval", "1", "--load", folder_ / "killed"})).code, 0);
  EXPECT_EQ(adapter_of(folder_ / "killed"), adapter_of(folder_ / "second"));
}

// Dropout is in a step's forward alone: the difference of log-probs is 0 where it is measured without it. A run that
// is resumed, or that runs blocks again, drops the same elements; adapter_config.json keeps the share, which goes on.
TEST_F(LoraRun, DropsWhatAdaptersReadInTheStepsForwardAlone) {
  const Arguments flags = {"--lora-dropout", "0.2", "--get-mismatch-metrics", "--save-interval", "1"};
  const std::string whole = folder_ / "whole", cut = folder_ / "cut";
  const Captured result = run(words(whole, flags));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("rank 4, alpha 6, dropout 0.2 on " + kAllNames), std::string::npos) << result.out;
  int steps = 0;
  for (const base::Json& record : json_lines(whole + "/metrics.jsonl")) {
    if (!record.contains("train/step")) continue;
    // B is 0 at first, so that the adapter adds nothing, dropped or not.
    if (steps > 0) {
      EXPECT_GT(number(record, "train/train_rollout_logprob_abs_diff"), 0.0) << steps;
    }
    if (steps % 2 == 0) {
      EXPECT_EQ(number(record, "train/recomputed_logprob_abs_diff"), 0.0) << steps;
    }
    ++steps;
  }
  EXPECT_EQ(steps, 4);
  EXPECT_EQ(base::read_json_file(whole + "/hf/latest/adapter_config.json")["lora_dropout"], 0.2);
  const Arguments again = flags + Arguments{"--recompute-granularity", "full"};
  ASSERT_EQ(run(with_flag(words(cut, again), "--num-rollout", "1")).code, 0);
  const Captured rest = run(words(cut, flags + Arguments{"--load", cut}));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_TRUE(everything_of(cut, 2) == everything_of(whole, 2));
  // The adapter's share is that of a run that trains it on, unless a flag says another.
  const auto says = [&](const Arguments& more) {
    const Arguments on =
        with_custom_reward(train_arguments(folder_ / "on", Arguments{"--lora-rank", "4", "--dry-run"} + more), reward_);
    const Captured planned = run(with_flag(on, "--hf-checkpoint", whole + "/hf/latest"));
    EXPECT_EQ(planned.code, 0) << planned.err;
    return planned.out.find("dropout 0.2") != std::string::npos;
  };
  EXPECT_TRUE(says({}));
  EXPECT_FALSE(says({"--lora-dropout", "0"}));
}

TEST_F(LoraRun, FlagsThatDoNotGoTogetherAreRefused) {
  const auto fails = [&](const Arguments& more, const std::string& says) {
    expect_one_line_failure(run(with_custom_reward(train_arguments(folder_ / "none", more), reward_)), 2, says);
  };
  fails({"--lora-rank", "0"}, "--lora-rank: must be at least 1");
  fails({"--lora-rank", "65"}, "--lora-rank 65: is above the model's hidden size 64; 8 to 64 are usual");
  fails({"--lora-rank", "8", "--lora-alpha", "0"}, "--lora-alpha: must be greater than 0");
  fails({"--lora-alpha", "8"}, "--lora-alpha: needs --lora-rank");
  fails({"--dtype", "nf4"}, "--dtype nf4: quantised weights are not trained; give --lora-rank to train an adapter");
  expect_one_line_failure(
      run({"plan", "--hf-checkpoint", kModel, "--dtype", "int8", "--lora-rank", "8", "--device", "npu"}), 2,
      "--dtype int8: --device npu does not compute with quantised matrices yet; give --device cpu");
  fails({"--target-modules", "all-linear"}, "--target-modules: needs --lora-rank");
  fails({"--lora-rank", "8", "--target-modules", "q_proj,linear_qkv"},
        "--target-modules: \"linear_qkv\" is no module of this model; give all-linear, or some of "
        "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj with commas between them");
  fails({"--lora-rank", "8", "--target-modules", "q_proj", "q_proj"}, "--target-modules: \"q_proj\" is named twice");
  fails({"--lora-rank", "8", "--lora-dropout", "1"}, "--lora-dropout: must be less than 1");
  fails({"--lora-dropout", "0.1"}, "--lora-dropout: needs --lora-rank");
  expect_one_line_failure(
      run({"plan", "--hf-checkpoint", kModel, "--lora-rank", "8", "--lora-dropout", "0.1", "--device", "npu"}), 2,
      "--lora-dropout 0.1: --device npu does not compute dropout yet; give --lora-dropout 0 or --device cpu");
  expect_one_line_failure(run({"plan", "--hf-checkpoint", kSparseModel, "--lora-rank", "8", "--lora-dropout", "0.1",
                               "--target-modules", "q_proj,up_proj"}),
                          2, "--lora-dropout 0.1: the adapters of experts have no dropout; give --lora-dropout 0");
  fails({"--lora-rank", "8", "--exclude-modules", "q_proj"}, "--exclude-modules: not supported: name the modules");
  fails(
      {"--lora-rank", "8", "--use-kl-loss", "--kl-loss-coef", "0", "--ref-load", kModel, "--ref-update-interval", "1"},
      "--ref-update-interval with --ref-load and --lora-rank");
  // --dry-run once reported that everything is in order for it.
  fails({"--lora-rank", "8", "--actor-num-gpus-per-node", "2", "--tensor-model-parallel-size", "2", "--dry-run"},
        "--tensor-model-parallel-size 2 with an adapter: adapters are not spread over devices in this version");
  const auto fails_on_adapter = [&](const Arguments& more, const std::string& says) {
    const Arguments arguments = with_custom_reward(train_arguments(folder_ / "none", more), reward_);
    expect_one_line_failure(run(with_flag(arguments, "--hf-checkpoint", "tests/golden/lora")), 2, says);
  };
  fails_on_adapter({},
                   "--hf-checkpoint tests/golden/lora: is an adapter of rank 4; give --lora-rank 4 to train it on, or "
                   "write the merged model");
  fails_on_adapter({"--lora-rank", "8"},
                   "--lora-rank 8: tests/golden/lora is trained on with its rank 4; give --lora-rank 4, or begin");
  fails_on_adapter({"--lora-rank", "4", "--lora-alpha", "8"},
                   "--lora-alpha 8: tests/golden/lora is trained on with its alpha 6;");
  fails_on_adapter({"--lora-rank", "4", "--use-rslora"},
                   "--use-rslora: tests/golden/lora is trained on with its scale");
  fails_on_adapter({"--lora-rank", "4", "--target-modules", "q_proj"},
                   "--target-modules: tests/golden/lora is trained on with its modules q_proj,v_proj,o_proj,up_proj,");
  EXPECT_FALSE(base::directory_exists(folder_ / "none"));
}

TEST_F(LoraRun, AnAdapterWithoutItsBaseOrOfAnotherModelIsRefused) {
  const std::string path = folder_ / "adapter";
  const auto generate = [&] { return run({"generate", "--hf-checkpoint", path, "--prompt-data", kPrompts}); };
  std::filesystem::copy("tests/golden/lora", path);
  const auto with_key = [&](const std::string& key, const base::Json& value) {
    base::Json config = base::read_json_file("tests/golden/lora/adapter_config.json");
    config[key] = value;
    base::write_file_durably(path + "/adapter_config.json", config.dump());
  };
  with_key("base_model_name_or_path", "Qwen/Qwen3-4B");
  expect_one_line_failure(generate(), 2, "base_model_name_or_path: \"Qwen/Qwen3-4B\" is no directory of a model");
  with_key("base_model_name_or_path", path);
  expect_one_line_failure(generate(), 2, "is no directory of a model");
  with_key("use_dora", true);
  expect_one_line_failure(generate(), 2, "use_dora");
  with_key("target_modules", {"q_proj", "experts"});
  expect_one_line_failure(generate(), 2, "adapter_config.json: target_modules: \"experts\" is no module");
  with_key("r", 5);
  expect_one_line_failure(generate(), 2, "adapter_config.json asks for [");
  with_key("target_modules", {"q_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"});
  expect_one_line_failure(generate(), 2, "gate_proj.lora_A.weight");
  expect_one_line_failure(generate(), 2, "check that adapter_config.json belongs to them");
  std::filesystem::remove(path + "/adapter_model.safetensors");
  expect_one_line_failure(generate(), 2, "adapter_model.safetensors");
}

TEST_F(LoraRun, ACheckpointGoesOnOnlyAsTheRunThatItIsOf) {
  const std::string model = folder_ / "model";
  std::filesystem::copy(kModel, model);
  const auto words_of = [&](const std::string& save, const Arguments& more = {}) {
    return with_flag(with_flag(words(save, more), "--hf-checkpoint", model), "--num-rollout", "1");
  };
  ASSERT_EQ(run(words_of(folder_ / "lora")).code, 0);
  const Arguments full =
      with_flag(with_custom_reward(train_arguments(folder_ / "full", {}), reward_), "--num-rollout", "1");
  ASSERT_EQ(run(with_flag(full, "--hf-checkpoint", model)).code, 0);
  const auto refuses = [&](const Arguments& arguments, const std::string& says) {
    expect_one_line_failure(run(arguments), 2, says);
  };
  refuses(words_of(folder_ / "full", {"--load", folder_ / "full"}), "--lora-rank was unset and is 4");
  refuses(with_flag(with_flag(full, "--save", folder_ / "lora"), "--load", folder_ / "lora"),
          "--lora-rank was 4 and is unset");
  refuses(with_flag(words_of(folder_ / "lora", {"--load", folder_ / "lora"}), "--lora-rank", "8"),
          "--lora-rank was 4 and is 8");
  refuses(words_of(folder_ / "lora", {"--load", folder_ / "lora", "--target-modules", "q_proj"}), "--target-modules");
  // The files that would then be read do not exist.
  refuses(words_of(folder_ / "lora", {"--load", folder_ / "lora", "--target-modules", "q_proj,v_proj",
                                      "--allow-changed-config", "--lora-rank", "8"}),
          "was trained, and with these flags it is not");
  refuses(
      with_flag(words_of(folder_ / "lora", {"--load", folder_ / "lora", "--allow-changed-config"}), "--lora-rank", "8"),
      "of another model, or of other flags (--lora-rank");
  // The adapter is next to a base that is not in the checkpoint.
  std::string bytes = base::read_file(model + "/model.safetensors");
  bytes[bytes.size() - 2] = static_cast<char>(bytes[bytes.size() - 2] ^ 1);
  base::write_file_durably(model + "/model.safetensors", bytes);
  refuses(words_of(folder_ / "lora", {"--load", folder_ / "lora"}), "the weights of --hf-checkpoint");
}

// An adapter that is damaged is named, as a weight is.
TEST_F(LoraRun, ANumberThatIsNotFiniteIsNamed) {
  const std::string path = folder_ / "adapter";
  std::filesystem::copy("tests/golden/lora", path);
  std::string bytes = base::read_file(path + "/adapter_model.safetensors");
  for (size_t i = bytes.size() - 4; i < bytes.size(); ++i) bytes[i] = static_cast<char>(0xff);
  base::write_file_durably(path + "/adapter_model.safetensors", bytes);
  const Captured result =
      run({"generate", "--hf-checkpoint", path, "--prompt-data", kPrompts, "--rollout-max-response-len", "2"});
  EXPECT_NE(result.code, 0);
  EXPECT_NE(result.err.find("lora_"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("holds NaN"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace tandem::cli
