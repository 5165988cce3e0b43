// Checks the verbs on a tiny model: real flags in, real files out.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>

#include "base/files.h"
#include "base/json.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/tiny_run.h"
#include "tests/model/families.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

TEST(Train, WritesItsRunAndIsExactlyOnPolicy) {
  base::TemporaryDirectory folder;
  for (const std::string dtype : {"float32", "bfloat16"}) {
    const std::string save = folder / dtype;
    const Captured result = run(
        with_custom_reward(train_arguments(save, {"--dtype", dtype, "--save-interval", "1"}), write_reward(folder)));
    ASSERT_EQ(result.code, 0) << result.err;
    for (const char* name :
         {"config.toml", "metrics.jsonl", "log.txt", "samples/rollout_000000.jsonl", "samples/rollout_000001.jsonl",
          "hf/step_000001/model.safetensors", "hf/step_000002/config.json", "hf/latest/tokenizer.json"}) {
      EXPECT_TRUE(base::file_exists(save + "/" + name)) << name;
    }
    int64_t train_records = 0, rollout_records = 0;
    for (const base::Json& record : json_lines(save + "/metrics.jsonl")) {
      if (record.contains("rollout/step")) {
        ++rollout_records;
        EXPECT_TRUE(record.contains("rollout/raw_reward"));
        EXPECT_TRUE(record.contains("perf/step_time"));
      }
      if (!record.contains("train/step")) continue;
      EXPECT_EQ(record["train/step"], train_records);
      // A rollout has two optimizer steps: the first is on policy, bit for bit; the second no longer is.
      if (train_records % 2 == 0) {
        EXPECT_EQ(record["train/train_rollout_logprob_abs_diff"], 0.0) << dtype << " step " << train_records;
      } else {
        EXPECT_GT(record["train/train_rollout_logprob_abs_diff"], 0.0) << dtype << " step " << train_records;
      }
      EXPECT_GT(record["train/grad_norm"], 0.0);
      ++train_records;
    }
    EXPECT_EQ(train_records, 4);
    EXPECT_EQ(rollout_records, 2);
    EXPECT_NE(result.out.find("rollout 2/2"), std::string::npos) << result.out;
    const std::vector<base::Json> samples = json_lines(save + "/samples/rollout_000001.jsonl");
    ASSERT_EQ(samples.size(), 12U);
    for (size_t i = 0; i < samples.size(); ++i) EXPECT_EQ(samples[i]["sample_id"], 12 + i);
    EXPECT_EQ(samples[0]["weight_versions"], base::Json({2}));
  }
  EXPECT_NE(weights_of(folder / "float32"), base::read_file(kModel + "/model.safetensors"));
}

TEST(Train, OneSeedGivesTheSameBits) {
  base::TemporaryDirectory folder;
  const std::string reward = write_reward(folder);
  const Arguments more = {"--use-kl-loss", "--kl-loss-coef", "0.1", "--entropy-coef", "0.01", "--rollout-shuffle"};
  for (const char* name : {"a", "b"}) {
    const Captured result = run(with_custom_reward(train_arguments(folder / name, more), reward));
    ASSERT_EQ(result.code, 0) << result.err;
  }
  EXPECT_EQ(timeless_metrics(folder / "a"), timeless_metrics(folder / "b"));
  EXPECT_EQ(weights_of(folder / "a"), weights_of(folder / "b"));
  EXPECT_NE(timeless_metrics(folder / "a").find("train/kl_loss"), std::string::npos);
  Arguments other = more;
  other.insert(other.end(), {"--rollout-seed", "43"});
  ASSERT_EQ(run(with_custom_reward(train_arguments(folder / "c", other), reward)).code, 0);
  EXPECT_NE(weights_of(folder / "a"), weights_of(folder / "c"));
}

std::vector<std::string> models_of_each_kind_of_block() {
  std::vector<std::string> models;
  for (const model::TestFamily& family : model::kTestFamilies) {
    if (!family.is_like_another) models.insert(models.end(), family.golden_models.begin(), family.golden_models.end());
  }
  return models;
}

// The whole program runs on each kind of block: what was sampled is what is trained, and what a run exports generates.
TEST(Train, TrainsEveryFamily) {
  base::TemporaryDirectory folder;
  for (const std::string& model : models_of_each_kind_of_block()) {
    SCOPED_TRACE(model);
    const std::string directory = "tests/golden/models/" + model, run_path = folder / model;
    // A rollout has one optimizer step, so each step is on policy.
    const Arguments words =
        with_flag(with_flag(train_arguments(run_path), "--hf-checkpoint", directory), "--global-batch-size", "12");
    const Captured result = run(with_custom_reward(words, write_reward(folder)));
    ASSERT_EQ(result.code, 0) << result.err;
    int64_t num_steps = 0;
    for (const base::Json& record : json_lines(run_path + "/metrics.jsonl")) {
      if (!record.contains("train/grad_norm")) continue;
      ++num_steps;
      EXPECT_EQ(record["train/train_rollout_logprob_abs_diff"], 0.0);
      EXPECT_GT(record["train/grad_norm"].get<double>(), 0.0);
    }
    EXPECT_EQ(num_steps, 2);
    const Captured generated =
        run({"generate", "--hf-checkpoint", run_path + "/hf/latest", "--prompt-data", kPrompts + "@[0:2]",
             "--rollout-max-response-len", "4", "--output", folder / (model + ".jsonl")});
    ASSERT_EQ(generated.code, 0) << generated.err;
    EXPECT_EQ(json_lines(folder / (model + ".jsonl")).size(), 2U);
  }
}

TEST(Train, RepeatsFromItsOwnConfigFile) {
  base::TemporaryDirectory folder;
  ASSERT_EQ(run(with_custom_reward(train_arguments(folder / "a", {"--num-threads", "1"}), write_reward(folder))).code,
            0);
  const Captured refused = run({"train", "--config", folder / "a/config.toml"});
  expect_one_line_failure(refused, 2, "--overwrite");
  const Captured again = run({"train", "--config", folder / "a/config.toml", "--save", folder / "b"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(weights_of(folder / "a"), weights_of(folder / "b"));
}

TEST(Train, OverwritesNoRunThatItReads) {
  base::TemporaryDirectory folder;
  const std::string first = folder / "first", model = first + "/hf/latest";
  ASSERT_EQ(run(with_flag(train_arguments(first), "--num-rollout", "1")).code, 0);
  const std::string metrics = base::read_file(first + "/metrics.jsonl"), says = ": is part of " + first + "/";
  base::write_file_durably(first + "/samples/own.jsonl", "{\"prompt\": \"say\", \"label\": \"4\"}\n");
  base::write_file_durably(first + "/samples/reward.py", "def reward(completions, **kwargs):\n    return [1.0]\n");
  const Arguments words = train_arguments(first, {"--overwrite"});
  const auto with = [&](const Arguments& more) {
    Arguments all = words;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  for (const auto& [flag, arguments] : {
           std::pair{"--hf-checkpoint", with_flag(words, "--hf-checkpoint", model)},
           {"--ref-load", with({"--ref-load", model, "--use-kl-loss", "--kl-loss-coef", "0.1"})},
           {"--opd-teacher-load", with({"--use-opd", "--opd-teacher-load", model})},
           {"--custom-rm-path", with_custom_reward(words, first + "/samples/reward.py:reward")},
           {"--eval-prompt-data",
            with({"--eval-prompt-data", "own", first + "/samples/own.jsonl", "--eval-interval", "1"})},
       }) {
    SCOPED_TRACE(flag);
    Arguments dry = arguments;
    dry.emplace_back("--dry-run");
    for (const Arguments& each : {arguments, dry}) {
      const Captured refused = run(each);
      expect_one_line_failure(refused, 2, says);
      EXPECT_NE(last_line(refused.err).find(flag), std::string::npos) << refused.err;
    }
  }
  EXPECT_EQ(base::read_file(first + "/metrics.jsonl"), metrics) << "a refused run changes nothing";
  EXPECT_TRUE(base::file_exists(model + "/model.safetensors"));
}

TEST(Train, FailedRewardsAreCountedAndTrainingGoesOn) {
  base::TemporaryDirectory folder;
  base::write_file_durably(folder / "reward.py",
                           "def reward(data_source, solution_str, ground_truth):\n"
                           "    length = len(solution_str)\n"
                           "    if length % 2: raise ValueError('odd')\n"
                           "    return float(length % 3)\n");
  const Captured result = run(with_custom_reward(train_arguments(folder / "run"), folder / "reward.py:reward"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("ValueError"), std::string::npos) << result.err;
  double failed = 0.0;
  for (const base::Json& record : json_lines(folder / "run/metrics.jsonl")) {
    if (record.contains("rollout/grader_failed")) failed += record["rollout/grader_failed"].get<double>();
  }
  EXPECT_GT(failed, 0.0);
}

TEST(Train, EvaluatesWhileTraining) {
  base::TemporaryDirectory folder;
  const Captured result =
      run(train_arguments(folder / "run", {"--eval-prompt-data", "held", kPrompts + "@[0:5]", "--eval-interval", "1",
                                           "--n-samples-per-eval-prompt", "2", "--eval-max-response-len", "6"}));
  ASSERT_EQ(result.code, 0) << result.err;
  std::vector<int64_t> steps;
  for (const base::Json& record : json_lines(folder / "run/metrics.jsonl")) {
    if (!record.contains("eval/step")) continue;
    steps.push_back(record["eval/step"].get<int64_t>());
    EXPECT_TRUE(record.contains("eval/held"));
    EXPECT_TRUE(record.contains("eval/held-pass@2"));
    EXPECT_LE(record["eval/held/response_len/max"].get<double>(), 6.0);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(json_lines(folder / "run/samples/eval_held_000001.jsonl").size(), 10U);
}

TEST(Train, DryRunWritesNothing) {
  base::TemporaryDirectory folder;
  const Captured result = run(train_arguments(folder / "run", {"--dry-run"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("64 prompts"), std::string::npos) << result.out;
  EXPECT_FALSE(base::directory_exists(folder / "run"));
}

// Makes a copy of the model that the test can damage.
std::string copy_model(const base::TemporaryDirectory& folder, const std::string& name) {
  fs::copy(kModel, folder / name);
  for (const auto& entry : fs::directory_iterator(folder / name)) {
    fs::permissions(entry, fs::perms::owner_write, fs::perm_options::add);
  }
  return folder / name;
}

void replace_in_file(const std::string& path, const std::string& from, const std::string& to) {
  std::string text = base::read_file(path);
  const size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from;
  base::write_file_durably(path, text.replace(at, from.size(), to));
}

Captured train_with(const base::TemporaryDirectory& folder, const std::string& flag, const std::string& value) {
  const Captured result = run(with_flag(train_arguments(folder / "run"), flag, value));
  EXPECT_FALSE(base::directory_exists(folder / "run")) << "a refused run left its directory";
  return result;
}

TEST(BadInput, IsRefusedInOneLineBeforeAnythingIsWritten) {
  base::TemporaryDirectory folder;
  expect_one_line_failure(train_with(folder, "--hf-checkpoint", folder / "none"), 2, "--hf-checkpoint");
  expect_one_line_failure(train_with(folder, "--prompt-data", folder / "none.jsonl"), 2, "none.jsonl");
  base::write_file_durably(folder / "empty.jsonl", "\n");
  expect_one_line_failure(train_with(folder, "--prompt-data", folder / "empty.jsonl"), 2, "empty.jsonl");
  expect_one_line_failure(train_with(folder, "--prompt-data", "tests/golden/prompts/bad_lines.jsonl"), 2,
                          "bad_lines.jsonl:2:");
  expect_one_line_failure(train_with(folder, "--rollout-max-context-len", "5000"), 2, "1024 tokens");
  expect_one_line_failure(train_with(folder, "--rollout-max-response-len", "1020"), 2, "context of 1024");
  expect_one_line_failure(train_with(folder, "--n-samples-per-prompt", "1"), 2, "--n-samples-per-prompt 1");
  expect_one_line_failure(train_with(folder, "--global-batch-size", "5"), 2, "does not divide");
  expect_one_line_failure(train_with(folder, "--kv-cache-bytes", "4096"), 2, "--kv-cache-bytes");
}

TEST(BadInput, BrokenCheckpointsNameTheFile) {
  base::TemporaryDirectory folder;
  const std::string truncated = copy_model(folder, "truncated");
  fs::resize_file(truncated + "/model.safetensors", 100'000);
  expect_one_line_failure(train_with(folder, "--hf-checkpoint", truncated), 2, "model.safetensors");
  const std::string missing = copy_model(folder, "missing");
  fs::remove(missing + "/model.safetensors");
  expect_one_line_failure(train_with(folder, "--hf-checkpoint", missing), 2, "model.safetensors");
  const std::string unknown = copy_model(folder, "unknown");
  replace_in_file(unknown + "/config.json", "Qwen3ForCausalLM", "MambaForCausalLM");
  expect_one_line_failure(train_with(folder, "--hf-checkpoint", unknown), 2, "MambaForCausalLM");
  const std::string shape = copy_model(folder, "shape");
  replace_in_file(shape + "/config.json", "\"intermediate_size\": 160", "\"intermediate_size\": 192");
  expect_one_line_failure(train_with(folder, "--hf-checkpoint", shape), 2, "mlp");
  const std::string vocabulary = copy_model(folder, "vocabulary");
  replace_in_file(vocabulary + "/config.json", "\"vocab_size\": 512", "\"vocab_size\": 480");
  expect_one_line_failure(train_with(folder, "--hf-checkpoint", vocabulary), 2, "vocab");
}

TEST(BadInput, OutputThatCannotBeWrittenIsTheMachinesFault) {
  base::TemporaryDirectory folder;
  expect_one_line_failure(run(train_arguments("/proc/tandem-run")), 3, "/proc");
  // A run once ended at the end of its first rollout because the folder of its dumps was not there.
  const Arguments dumps = {"--save-debug-rollout-data", "/proc/dumps/{rollout_id}.jsonl"};
  expect_one_line_failure(run(train_arguments(folder / "run", dumps)), 3, "/proc");
  EXPECT_FALSE(base::directory_exists(folder / "run"));
}

TEST(BadInput, ADeviceThatIsNoneOrNotThereIsRefused) {
  base::TemporaryDirectory folder;
  expect_one_line_failure(run(train_arguments(folder / "run", {"--device", "gpu"})), 2,
                          "cpu, cuda, cuda:N, npu or npu:N");
  // A missing module, library, driver or GPU gives one line, whichever it is here.
  const Captured result = run(train_arguments(folder / "run", {"--device", "cuda:4096"}));
  expect_one_line_failure(result, result.code == 2 ? 2 : 3, "--device cuda");
  EXPECT_FALSE(base::directory_exists(folder / "run/checkpoints"));
}

TEST(Score, GivesGeneratedTokensTheEnginesLogProbs) {
  base::TemporaryDirectory folder;
  const Arguments generate = {"generate",
                              "--hf-checkpoint",
                              kModel,
                              "--prompt-data",
                              kPrompts + "@[0:4]",
                              "--n-samples-per-prompt",
                              "2",
                              "--rollout-max-response-len",
                              "9",
                              "--rollout-temperature",
                              "0.7",
                              "--output",
                              folder / "out.jsonl"};
  ASSERT_EQ(run(generate).code, 0);
  std::string lines;
  std::vector<base::Json> expected;
  for (const base::Json& record : json_lines(folder / "out.jsonl")) {
    for (const base::Json& completion : record["completions"]) {
      base::Json tokens = record["prompt_tokens"];
      for (const base::Json& id : completion["tokens"]) tokens.push_back(id);
      lines += base::dump_json({{"tokens", tokens}, {"prompt_length", record["prompt_tokens"].size()}}) + "\n";
      expected.push_back(completion["log_probs"]);
    }
  }
  base::write_file_durably(folder / "sequences.jsonl", lines);
  const Captured scored = run({"score", "--hf-checkpoint", kModel, "--prompt-data", folder / "sequences.jsonl",
                               "--rollout-temperature", "0.7", "--max-tokens-per-gpu", "64"});
  ASSERT_EQ(scored.code, 0) << scored.err;
  std::istringstream out(scored.out);
  size_t count = 0;
  for (std::string line; std::getline(out, line); ++count) {
    const base::Json record = base::parse_json(line, "stdout");
    ASSERT_LT(count, expected.size());
    EXPECT_EQ(record["log_probs"], expected[count]);
    for (const base::Json& entropy : record["entropy"]) EXPECT_GT(entropy.get<double>(), 0.0);
  }
  EXPECT_EQ(count, 8U);
  base::write_file_durably(folder / "bad.jsonl", "{\"tokens\": [1, 2, 99999]}\n");
  expect_one_line_failure(run({"score", "--hf-checkpoint", kModel, "--prompt-data", folder / "bad.jsonl"}), 2,
                          "bad.jsonl:1");
  // A text that is no longer made tokens is named by its line, whether it is a prompt or a response.
  const std::string large((size_t{8} << 20) + 1, 'a'), good = R"({"prompt": "1+1=", "response": "2"})";
  for (const auto& [prompt, response] : {std::pair<std::string, std::string>{large, "2"}, {"1+1=", large}}) {
    const base::Json bad = {{"prompt", prompt}, {"response", response}};
    base::write_file_durably(folder / "large.jsonl", good + "\n" + base::dump_json(bad) + "\n");
    expect_one_line_failure(run({"score", "--hf-checkpoint", kModel, "--prompt-data", folder / "large.jsonl"}), 2,
                            "large.jsonl:2: the text has 8388609 bytes, more than the 8388608 that a text may have");
  }
}

// An output that is one of the inputs would destroy it.
TEST(Output, IsNoFileThatIsRead) {
  const base::TemporaryDirectory folder;
  const std::string data = folder / "data.jsonl", text = "{\"prompt\": \"say\", \"label\": \"4\"}\n";
  base::write_file_durably(data, text);
  const std::string same = folder / "." + "/data.jsonl", says = "is a file that is read, and would be replaced";
  for (const Arguments& words :
       {Arguments{"generate", "--hf-checkpoint", kModel, "--prompt-data", data + "@[:1]", "--output", same},
        {"score", "--hf-checkpoint", kModel, "--prompt-data", data, "--output", data},
        {"eval", "--hf-checkpoint", kModel, "--eval-prompt-data", "own", data, "--rm-type", "exact", "--output", same},
        {"eval", "--hf-checkpoint", kModel, "--eval-prompt-data", "own", data, "--rm-type", "exact", "--sample-output",
         data}}) {
    expect_one_line_failure(run(words), 2, says);
    EXPECT_EQ(base::read_file(data), text);
  }
}

TEST(Output, IsNoFileOfAModelNorOneOfTheCommandsOwn) {
  const base::TemporaryDirectory folder;
  const std::string data = folder / "data.jsonl", model = folder / "model", weights = model + "/model.safetensors";
  base::write_file_durably(data, "{\"prompt\": \"say\", \"label\": \"4\"}\n");
  fs::copy(kModel, model);
  fs::create_symlink(weights, folder / "link");
  base::write_file_durably(folder / "options.toml", "seed = 1\n");
  base::write_file_durably(folder / "reward.py", "def reward(completions, **kwargs):\n    return [1.0]\n");
  const Arguments eval = {"eval",
                          "--hf-checkpoint",
                          model,
                          "--eval-prompt-data",
                          "own",
                          data,
                          "--rm-type",
                          "exact",
                          "--config",
                          folder / "options.toml",
                          "--custom-rm-path",
                          folder / "reward.py:reward"};
  struct Case {
    Arguments words;
    std::string output, says;
  };
  const std::string is_in = "is a file of " + model + ", which is read", is_read = "is a file that is read";
  for (const Case& each : std::vector<Case>{
           {{"generate", "--hf-checkpoint", model, "--prompt-data", data}, weights, is_in},
           {{"score", "--hf-checkpoint", model, "--prompt-data", data}, folder / "link", is_in},
           {eval, model + "/tokenizer.json", is_in},
           {eval, folder / "reward.py", is_read},
           {eval, folder / "options.toml", is_read},
       }) {
    for (const char* flag : {"--output", "--sample-output"}) {
      if (each.words.front() != "eval" && flag == std::string("--sample-output")) continue;
      const std::string before = base::read_file(each.output);
      expect_one_line_failure(run(with_flag(each.words, flag, each.output)), 2, each.says);
      EXPECT_EQ(base::read_file(each.output), before) << each.output;
    }
  }
  expect_one_line_failure(
      run(with_flag(with_flag(eval, "--output", folder / "both"), "--sample-output", folder / "./both")), 2,
      "is the file of --output; name another one");
  EXPECT_FALSE(base::file_exists(folder / "both"));
}

TEST(Eval, ReportsRewardAndPassRates) {
  base::TemporaryDirectory folder;
  base::write_file_durably(folder / "reward.py",
                           "def reward(completions, **kwargs):\n    return [1.0] * len(completions)\n");
  const Captured result =
      run({"eval", "--hf-checkpoint", kModel, "--eval-prompt-data", "small", kPrompts + "@[0:6]",
           "--n-samples-per-eval-prompt", "2", "--rollout-max-response-len", "5", "--custom-rm-path",
           folder / "reward.py:reward", "--output", folder / "eval.json", "--sample-output", folder / "s.jsonl"});
  ASSERT_EQ(result.code, 0) << result.err;
  const base::Json metrics = json_lines(folder / "eval.json").at(0);
  EXPECT_EQ(metrics["eval/small"], 1.0);
  EXPECT_EQ(metrics["eval/small-pass@1"], 1.0);
  EXPECT_EQ(json_lines(folder / "s.jsonl").size(), 12U);
  EXPECT_NE(result.out.find("eval small: reward 1"), std::string::npos) << result.out;
}

TEST(Export, WritesTheSameWeightsAndOtherDtypes) {
  base::TemporaryDirectory folder;
  ASSERT_EQ(run({"export", "--hf-checkpoint", kModel, "--output", folder / "copy"}).code, 0);
  ASSERT_EQ(run({"export", "--hf-checkpoint", folder / "copy", "--output", folder / "again"}).code, 0);
  EXPECT_EQ(base::read_file(folder / "copy/model.safetensors"), base::read_file(folder / "again/model.safetensors"));
  EXPECT_EQ(base::read_file(folder / "copy/tokenizer.json"), base::read_file(kModel + "/tokenizer.json"));
  expect_one_line_failure(run({"export", "--hf-checkpoint", kModel, "--output", folder / "half", "--dtype", "float16"}),
                          2, "--dtype: 'float16' is not written; bfloat16 and float32 are");
  ASSERT_EQ(run({"export", "--hf-checkpoint", kModel, "--output", folder / "half", "--dtype", "bfloat16"}).code, 0);
  EXPECT_LT(fs::file_size(folder / "half/model.safetensors"), fs::file_size(folder / "copy/model.safetensors"));
  expect_one_line_failure(run({"export", "--hf-checkpoint", kModel, "--output", folder / "copy"}), 2, "overwrite");
  expect_one_line_failure(run({"export", "--output", folder / "x"}), 2, "--run or --hf-checkpoint");
}

TEST(Export, WritesWhereALinkLeadsAndIntoNoFile) {
  base::TemporaryDirectory folder;
  const Arguments words = {"export", "--hf-checkpoint", kModel, "--output"};
  const auto to = [&](const std::string& output) {
    Arguments all = words;
    all.push_back(output);
    return run(all);
  };
  base::make_directories(folder / "real");
  fs::create_directory_symlink("real", folder / "link");
  const Captured result = to(folder / "link/");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_TRUE(base::file_exists(folder / "real/model.safetensors"));
  base::write_file_durably(folder / "file", "mine");
  expect_one_line_failure(to(folder / "file"), 2, "--output " + folder / "file" + ": is a file; name a directory");
  fs::create_directory_symlink("nowhere", folder / "dangling");
  expect_one_line_failure(to(folder / "dangling"), 2, "is a symbolic link that leads to no directory");
  EXPECT_EQ(base::read_file(folder / "file"), "mine");
}

// A dry run once approved of exports that fail, and an export once failed when everything had been read.
TEST(Export, FindsWhatCannotBeExportedBeforeAnythingIsRead) {
  base::TemporaryDirectory folder;
  const std::string model = folder / "model", adapter = folder / "adapter";
  fs::copy(kModel, model);
  fs::resize_file(model + "/model.safetensors", fs::file_size(model + "/model.safetensors") - 1);
  fs::copy("tests/golden/lora", adapter);
  fs::resize_file(adapter + "/adapter_model.safetensors", fs::file_size(adapter + "/adapter_model.safetensors") - 1);
  base::make_directories(folder / "full");
  base::write_file_durably(folder / "full/notes.txt", "mine");
  const auto refuses = [&](const std::string& source, const std::string& output, const Arguments& more,
                           const std::string& says) {
    for (const Arguments& mode : {Arguments{"--dry-run"}, Arguments{}}) {
      Arguments words = {"export", "--hf-checkpoint", source, "--output", output};
      words.insert(words.end(), more.begin(), more.end());
      words.insert(words.end(), mode.begin(), mode.end());
      expect_one_line_failure(run(words), 2, says);
    }
  };
  refuses(model, folder / "out", {}, model + "/model.safetensors");
  refuses(adapter, folder / "out", {}, adapter + "/adapter_model.safetensors");
  fs::remove(model + "/model.safetensors");
  refuses(model, folder / "out", {}, "neither model.safetensors nor");
  refuses(kModel, folder / "full", {}, "the directory is not empty; choose another, or give --overwrite");
  refuses(kModel, folder / "full", {"--overwrite"}, "holds \"notes.txt\", which is no part of an export");
  for (const std::string output : {".", "./", "..", "/", "/proc"})
    refuses(kModel, output, {},
            "--output " + output + ": cannot be replaced as a whole, as an export does; name a folder");
  EXPECT_FALSE(base::directory_exists(folder / "out"));
  EXPECT_EQ(base::read_file(folder / "full/notes.txt"), "mine");
}

TEST(Program, ExitsWithTheCodeOfItsFailure) {
  EXPECT_EQ(Program({"--version"}).wait(), 0);
  EXPECT_EQ(Program({"train", "--no-such-flag"}).wait(), 2);
  EXPECT_EQ(Program(train_arguments("/proc/tandem-run")).wait(), 3);
}

TEST(Program, ASignalThatCutsItsOutputShortIsItsExitCode) {
  base::TemporaryDirectory folder;
  std::string prompts;
  for (int i = 0; i < 20000; ++i) prompts += "{\"prompt\": \"a b c\"}\n";
  base::write_file_durably(folder / "prompts.jsonl", prompts);
  const std::string output = folder / "completions.jsonl";
  const Program program({"generate", "--hf-checkpoint", kModel, "--prompt-data", folder / "prompts.jsonl",
                         "--rollout-max-response-len", "64", "--ignore-eos", "--output", output});
  const auto has_begun = [&] { return base::file_exists(output) && !base::read_file(output).empty(); };
  for (int i = 0; i < 1200 && !has_begun(); ++i) usleep(50'000);
  ASSERT_TRUE(has_begun());
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
}

TEST(Program, StopsAtASignalAndKeepsWhatItHasLearnt) {
  base::TemporaryDirectory folder;
  const Program program(with_flag(train_arguments(folder / "run"), "--num-rollout", "100000"));
  const std::string first = folder / "run/samples/rollout_000000.jsonl";
  for (int i = 0; i < 600 && !base::file_exists(first); ++i) usleep(100'000);
  ASSERT_TRUE(base::file_exists(first));
  program.signal(SIGINT);
  EXPECT_EQ(program.wait(), 130);
  EXPECT_TRUE(base::file_exists(folder / "run/hf/latest/model.safetensors"));
}

}  // namespace
}  // namespace tandem::cli
