// Checks samples that a function of the user's makes in turns with the engine, through the whole program.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <string>

#include "base/files.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

const std::string kFunctions = "tests/cli/generate/turns.py";

Arguments with_function(const std::string& save, const std::string& function, const Arguments& more = {},
                        const std::string& file = kFunctions) {
  Arguments arguments = with_flag(train_arguments(save, more), "--rollout-max-response-len", "16");
  arguments.insert(arguments.end(), {"--custom-generate-function-path", file + ":" + function});
  return arguments;
}

// Returns arguments of two rollouts of three turns, with a reward that sees what the function left.
Arguments with_turns(const std::string& save, const std::string& function, const Arguments& more = {}) {
  return with_custom_reward(with_function(save, function, more), kFunctions + ":reward");
}

std::string samples_of(const std::string& run) { return base::read_file(run + "/samples/rollout_000000.jsonl"); }

base::Json last_record(const std::string& run, const std::string& with) {
  base::Json found;
  for (const base::Json& record : json_lines(run + "/metrics.jsonl")) {
    if (record.contains(with)) found = record;
  }
  return found;
}

// One run that nothing happens to is compared with all others.
class MultiTurn : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new base::TemporaryDirectory();
    undisturbed_ = *shared_ / "undisturbed";
    const Captured result =
        run(with_turns(undisturbed_, "turns", {"--save-debug-rollout-data", *shared_ / "dump_{rollout_id}.jsonl"}));
    ASSERT_EQ(result.code, 0) << result.err;
  }
  static void TearDownTestSuite() { delete shared_; }

  static inline base::TemporaryDirectory* shared_ = nullptr;
  static inline std::string undisturbed_;
};

TEST_F(MultiTurn, ASampleOfOneTurnIsWhatTheEngineMakesWithoutAFunction) {
  const base::TemporaryDirectory folder;
  const Arguments more = {"--save-debug-rollout-data", folder / "dump_{rollout_id}.jsonl"};
  const std::string reward = write_reward(folder);
  const Captured with =
      run(with_flag(with_custom_reward(with_function(folder / "with", "single", more), reward), "--num-rollout", "1"));
  ASSERT_EQ(with.code, 0) << with.err;
  const std::vector<base::Json> made = json_lines(folder / "dump_0.jsonl");
  Arguments plain =
      with_flag(with_custom_reward(train_arguments(folder / "without", more), reward), "--num-rollout", "1");
  ASSERT_EQ(run(with_flag(plain, "--rollout-max-response-len", "16")).code, 0);
  const std::vector<base::Json> sampled = json_lines(folder / "dump_0.jsonl");
  ASSERT_EQ(made.size(), sampled.size());
  for (size_t i = 0; i < made.size(); ++i) {
    EXPECT_EQ(made[i]["turns"], 1);
    EXPECT_FALSE(sampled[i].contains("turns"));
    for (const char* key : {"response_tokens", "rollout_log_probs", "loss_mask", "status", "response", "reward"})
      EXPECT_EQ(made[i][key], sampled[i][key]) << key << " of sample " << i;
  }
  EXPECT_EQ(weights_of(folder / "with"), weights_of(folder / "without"));
}

TEST_F(MultiTurn, MasksAndLogProbsComeThrough) {
  for (const base::Json& sample : json_lines(*shared_ / "dump_0.jsonl")) {
    EXPECT_EQ(sample["turns"], 3);
    EXPECT_EQ(sample["status"], "completed");
    const auto mask = sample["loss_mask"].get<std::vector<int>>();
    EXPECT_EQ(mask, (std::vector<int>{1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1}));
    for (size_t t = 0; t < mask.size(); ++t)
      EXPECT_EQ(sample["rollout_log_probs"][t].get<double>() < 0.0, mask[t] == 1) << t;
  }
  for (const base::Json& sample : json_lines(undisturbed_ + "/samples/rollout_000000.jsonl")) {
    std::string pieces;
    for (const base::Json& piece : sample["pieces"]) {
      EXPECT_FALSE(piece["text"].get<std::string>().empty());
      pieces += piece["from"].get<std::string>() + " " + base::dump_json(piece["trained_length"]) + " of " +
                base::dump_json(piece["length"]) + ", ";
    }
    EXPECT_EQ(pieces, "model 3 of 3, function 0 of 2, model 3 of 3, function 0 of 2, model 3 of 3, ");
  }
  const base::Json record = last_record(undisturbed_, "rollout/step");
  EXPECT_EQ(record["multi_turn/multi_turn_metric/round_number_mean"], 3.0);
  EXPECT_EQ(record["multi_turn/raw_response_length/response_length_mean"], 13.0);
  EXPECT_EQ(record["multi_turn/wo_obs_response_length/response_length_max"], 9.0);
  EXPECT_EQ(record["rollout/response_len/mean"], 9.0);
  EXPECT_GT(record["perf/kept_kv_tokens"], 0.0);
  // The first step of a rollout is on the policy that sampled it: its log-probs are the engine's, bit for bit.
  for (const base::Json& step : json_lines(undisturbed_ + "/metrics.jsonl")) {
    if (!step.contains("train/step") || step["train/step"].get<int>() % 2 != 0) continue;
    EXPECT_EQ(step["train/train_rollout_logprob_abs_diff"], 0.0) << step["train/step"];
    EXPECT_GT(step["train/grad_norm"], 0.0);
  }
}

TEST_F(MultiTurn, ARunIsAValueWhateverTheTimingAndTheMemory) {
  const base::TemporaryDirectory folder;
  const Captured other = run(
      with_turns(folder / "run", "late_turns",
                 {"--custom-generate-num-workers", "1", "--custom-generate-concurrency", "5", "--rollout-max-running",
                  "3", "--kv-cache-bytes", "200000", "--speculative-num-draft-tokens", "15"}));
  ASSERT_EQ(other.code, 0) << other.err;
  EXPECT_EQ(samples_of(undisturbed_), samples_of(folder / "run"));
  EXPECT_EQ(weights_of(undisturbed_), weights_of(folder / "run"));
  EXPECT_EQ(timeless_metrics(undisturbed_), timeless_metrics(folder / "run"));
  EXPECT_GT(last_record(folder / "run", "rollout/step")["perf/kept_kv_dropped"], 0.0);
}

TEST_F(MultiTurn, ADumpTrainsToTheSameWeights) {
  const base::TemporaryDirectory folder;
  const Captured replay =
      run(with_turns(folder / "run", "turns", {"--load-debug-rollout-data", *shared_ / "dump_{rollout_id}.jsonl"}));
  ASSERT_EQ(replay.code, 0) << replay.err;
  EXPECT_EQ(weights_of(undisturbed_), weights_of(folder / "run"));
  EXPECT_EQ(last_record(folder / "run", "rollout/step")["multi_turn/multi_turn_metric/round_number_max"], 3.0);
}

TEST_F(MultiTurn, AResumedRunIsTheOneThatWasNotKilled) {
  const base::TemporaryDirectory folder;
  const Arguments resumed =
      with_turns(folder / "run", "turns", {"--save-interval", "1", "--load", folder / "run", "--allow-fresh-start"});
  const Program program(resumed);
  while (!base::file_exists(folder / "run/checkpoints/latest") && !program.wait_for(0.05)) {
  }
  program.signal(SIGKILL);
  program.wait();
  const Captured result = run(resumed);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(weights_of(undisturbed_), weights_of(folder / "run"));
  EXPECT_EQ(samples_of(undisturbed_), samples_of(folder / "run"));
  expect_one_line_failure(run(with_turns(folder / "run", "late_turns", {"--load", folder / "run"})), 2,
                          "the function of --custom-generate-function-path");
}

TEST_F(MultiTurn, ALostProcessCostsNoSample) {
  const base::TemporaryDirectory folder;
  std::filesystem::copy_file(kFunctions, folder / "turns.py");
  const Captured result =
      run(with_custom_reward(with_function(folder / "run", "dies_once", {"--rm-sandbox", "off"}, folder / "turns.py"),
                             kFunctions + ":reward"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("a process was lost while several samples were running in it"), std::string::npos)
      << result.err;
  EXPECT_EQ(samples_of(undisturbed_), samples_of(folder / "run"));
  EXPECT_EQ(weights_of(undisturbed_), weights_of(folder / "run"));
  EXPECT_GT(json_lines(folder / "run/metrics.jsonl").size(), 0U);
}

TEST_F(MultiTurn, WhatASampleFailsForIsCountedAndSaid) {
  const base::TemporaryDirectory folder;
  struct Case {
    const char* function;
    double num_failed;
    const char* says;
  };
  for (const Case& c : {Case{"raises_sometimes", 3.0, "KeyError: 'tool' (turns.py:"},
                        Case{"makes_up_a_token", 1.0, "token 15 of the response is 1000000, which is no token id of "},
                        Case{"hangs", 1.0, "took longer than 1 s besides waiting for the engine"},
                        Case{"computes_for_ever", 1.0, "computed without an await: the limit of 1 s passed"}}) {
    const std::string save = folder / c.function;
    const Captured result =
        run(with_flag(with_turns(save, c.function, {"--custom-generate-timeout", "1"}), "--num-rollout", "1"));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.err.find(c.says), std::string::npos) << result.err;
    const base::Json record = last_record(save, "rollout/step");
    EXPECT_EQ(record["fault/custom_generate"], c.num_failed) << c.function;
    EXPECT_EQ(record["rollout/grader_failed/generate"], c.num_failed) << c.function;
    const std::vector<base::Json> samples = json_lines(save + "/samples/rollout_000000.jsonl");
    EXPECT_EQ(samples[1]["failure_class"], "generate") << c.function;
    EXPECT_EQ(samples[1]["reward"], 0.0) << "--rm-failure-reward holds for it";
    EXPECT_FALSE(samples[0].contains("failure")) << c.function;
  }
}

TEST_F(MultiTurn, WhatTheEngineDidNotSampleIsNotTrainedOn) {
  const base::TemporaryDirectory folder;
  for (const auto& [function, says] :
       {std::pair<std::string, std::string>{"forged", "token 15 of the response (id "},
        {"several", "the function returned 2 samples, and --custom-generate-max-sequences 1 is"}}) {
    Arguments arguments = with_function(folder / function, function, {"--max-failed-rollouts", "1"});
    const Captured result = run(arguments);
    expect_one_line_failure(result, 2, "--custom-generate-function-path failed on every sample of 1 rollout in a row");
    EXPECT_NE(last_line(result.err).find(says), std::string::npos) << result.err;
  }
}

// Sequences with beginnings of their own are trained as they were sampled: in one run by a list that the function
// returns, in the other by the endpoint in the sandbox, and again from a dump.
TEST_F(MultiTurn, ASampleOfSeveralSequencesIsTrainedAsItWasSampled) {
  const base::TemporaryDirectory folder;
  for (const std::string function : {"two_samples", "asks_the_endpoint"}) {
    const bool has_endpoint = function == "asks_the_endpoint";
    const std::string dump = folder / (function + "_{rollout_id}.jsonl");
    Arguments more = {"--custom-generate-max-sequences", "2"};
    if (has_endpoint) more.push_back("--custom-generate-endpoint");
    const auto arguments = [&](const std::string& save, const std::string& flag) {
      Arguments all = with_function(save, function, more);
      all.insert(all.end(), {flag, dump});
      return with_flag(with_custom_reward(all, write_reward(folder)), "--num-rollout", "1");
    };
    const Captured result = run(arguments(folder / function, "--save-debug-rollout-data"));
    ASSERT_EQ(result.code, 0) << result.err;
    const base::Json record = last_record(folder / function, "rollout/step");
    EXPECT_EQ(record["rollout/grader_failed"], 0.0) << result.err;
    for (const base::Json& sample : json_lines(folder / (function + "_0.jsonl")))
      EXPECT_EQ(sample["sequence_begins"].size(), 1U) << sample;
    EXPECT_EQ(record.contains("multi_turn/endpoint/answers"), has_endpoint);
    if (has_endpoint) EXPECT_EQ(record["multi_turn/endpoint/answers"], 24.0);
    const base::Json step = json_lines(folder / function + "/metrics.jsonl").front();
    EXPECT_EQ(step["train/train_rollout_logprob_abs_diff"], 0.0);
    EXPECT_GT(step["train/grad_norm"], 0.0);
    if (!has_endpoint) continue;
    const Captured replay = run(arguments(folder / "replay", "--load-debug-rollout-data"));
    ASSERT_EQ(replay.code, 0) << replay.err;
    EXPECT_EQ(weights_of(folder / function), weights_of(folder / "replay"));
  }
}

TEST_F(MultiTurn, RequestsOfFailedSamplesAreCounted) {
  const base::TemporaryDirectory folder;
  const Captured result =
      run(with_flag(with_function(folder / "run", "is_refused_and_fails_at_times", {"--custom-generate-endpoint"}),
                    "--num-rollout", "1"));
  ASSERT_EQ(result.code, 0) << result.err;
  const base::Json record = last_record(folder / "run", "rollout/step");
  EXPECT_EQ(record["rollout/grader_failed"], 6.0) << result.err;
  EXPECT_EQ(record["multi_turn/endpoint/refused"], 12.0) << "one a sample";
}

TEST_F(MultiTurn, CallsThatCannotBeAreToldToTheFunction) {
  const base::TemporaryDirectory folder;
  for (const std::string function : {"bad_call", "branches", "talks_on"}) {
    const Captured result = run(with_flag(with_function(folder / function, function), "--num-rollout", "1"));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(last_record(folder / function, "rollout/step")["rollout/grader_failed"], 0.0) << result.err;
  }
  for (const base::Json& sample : json_lines(folder / "talks_on/samples/rollout_000000.jsonl")) {
    EXPECT_EQ(sample["response_length"], 16) << "what a tool says is cut at --rollout-max-response-len";
    EXPECT_EQ(sample["status"], "truncated");
    EXPECT_LE(sample["trained_length"].get<int>(), 2);
  }
}

// Functions written for slime encode the prompt without BOS and post texts, to which SGLang adds it. The model's
// tokenizer begins texts with BOS, 484 (tests/golden/tokenizer_bos).
TEST_F(MultiTurn, APromptThatBeginsWithBosMayBeGivenAsText) {
  const base::TemporaryDirectory folder;
  std::filesystem::create_directory(folder / "model");
  for (const std::string name : {"config.json", "generation_config.json", "model.safetensors"})
    std::filesystem::copy_file(kModel + "/" + name, folder / "model/" + name);
  for (const std::string name : {"tokenizer.json", "tokenizer_config.json"})
    std::filesystem::copy_file("tests/golden/tokenizer_bos/" + name, folder / "model/" + name);
  base::write_file_durably(folder / "data.jsonl", "{\"prompt\": \"alpha beta\", \"label\": \"1\"}\n");
  const auto arguments = [&](const std::string& name, const std::string& function, const Arguments& more = {}) {
    Arguments result = with_function(folder / name, function, more);
    for (const auto& [flag, value] :
         {std::pair{"--hf-checkpoint", folder / "model"}, std::pair{"--prompt-data", folder / "data.jsonl"},
          std::pair{"--num-rollout", std::string("1")}})
      result = with_flag(result, flag, value);
    return result;
  };
  const std::string dump = folder / "dump_{rollout_id}.jsonl";
  const Captured by_text = run(arguments("by_text", "asks_by_text", {"--save-debug-rollout-data", dump}));
  ASSERT_EQ(by_text.code, 0) << by_text.err;
  EXPECT_EQ(last_record(folder / "by_text", "rollout/step")["rollout/grader_failed"], 0.0) << by_text.err;
  for (const base::Json& sample : json_lines(folder / "dump_0.jsonl"))
    EXPECT_EQ(sample["prompt_tokens"], base::Json({484, 364, 79, 266, 273, 299, 64}));

  const Captured by_ids = run(arguments("by_ids", "asks_by_bare_ids", {"--max-failed-rollouts", "1"}));
  expect_one_line_failure(by_ids, 2, "the engine was asked without <|begin_of_text|>");
  EXPECT_NE(last_line(by_ids.err).find("give --no-add-special-tokens"), std::string::npos) << by_ids.err;
  const Captured without = run(arguments("without", "asks_by_bare_ids", {"--no-add-special-tokens"}));
  EXPECT_EQ(without.code, 0) << without.err;
  EXPECT_EQ(last_record(folder / "without", "rollout/step")["rollout/grader_failed"], 0.0) << without.err;
}

TEST_F(MultiTurn, AnEvaluationMakesItsSamplesSoToo) {
  const base::TemporaryDirectory folder;
  const Captured result =
      run({"eval", "--hf-checkpoint", kModel, "--eval-prompt-data", "held_out", kPrompts + "@[0:4]",
           "--eval-max-response-len", "16", "--custom-generate-function-path", kFunctions + ":turns",
           "--custom-rm-path", kFunctions + ":reward", "--sample-output", folder / "samples.jsonl"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<base::Json> samples = json_lines(folder / "samples.jsonl");
  ASSERT_EQ(samples.size(), 4U);
  for (const base::Json& sample : samples) EXPECT_EQ(sample["turns"], 3);
}

TEST_F(MultiTurn, WhatCannotBeUsedIsRefused) {
  const base::TemporaryDirectory folder;
  const Arguments base = with_function(folder / "run", "turns");
  const auto refused = [&](const std::string& flag, const std::string& value, const std::string& says) {
    expect_one_line_failure(run(with_flag(base, flag, value)), 2, says);
    EXPECT_FALSE(base::file_exists(folder / "run/config.toml"));
  };
  const std::string flag = "--custom-generate-function-path";
  refused(flag, "turns.py", "--custom-generate-function-path turns.py: write it as FILE.py:FUNCTION");
  refused(flag, folder / "none.py:turns", "is no file");
  refused(flag, kFunctions + ":none", "the file has no none; its functions: ");
  refused(flag, kFunctions + ":plain", "is no async function; write async def fn(args, sample, sampling_params)");
  refused(flag, kFunctions + ":two", "cannot be called with (args, sample, sampling_params)");
  refused("--custom-generate-num-workers", "0", "--custom-generate-num-workers");
  refused("--custom-generate-concurrency", "0", "--custom-generate-concurrency");
  refused("--custom-generate-timeout", "0", "--custom-generate-timeout");
  refused("--custom-generate-max-sequences", "0", "--custom-generate-max-sequences");
  expect_one_line_failure(run(train_arguments(folder / "run", {"--custom-generate-endpoint"})), 2,
                          "--custom-generate-endpoint: needs --custom-generate-function-path");
}

TEST_F(MultiTurn, ASignalEndsItWhileFunctionsWait) {
  const base::TemporaryDirectory folder;
  const Program program(with_function(folder / "run", "waits_for_ever"), 0, folder / "err");
  while (!base::file_exists(folder / "run/metrics.jsonl")) ASSERT_FALSE(program.wait_for(0.05));
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM) << "nothing is saved yet";
  const std::string said = base::read_file(folder / "err");
  EXPECT_NE(said.find("stopping: what is finished is saved"), std::string::npos) << said;
  EXPECT_EQ(said.find("resumes it"), std::string::npos) << "there is nothing to go on from: " << said;
}

// The functions of the example run on its base model, which does not know of the calculator yet.
TEST_F(MultiTurn, TheExampleRuns) {
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "train.jsonl",
                           "{\"prompt\": [{\"role\": \"user\", \"content\": \"17+25=\"}], \"label\": \"42\"}\n");
  const std::string file = "examples/calculator/calculator.py";
  Arguments arguments = with_custom_reward(with_function(folder / "run", "generate", {}, file), file + ":reward");
  arguments = with_flag(with_flag(arguments, "--hf-checkpoint", "examples/arithmetic/checkpoint"), "--prompt-data",
                        folder / "train.jsonl");
  arguments = with_flag(with_flag(arguments, "--rollout-batch-size", "1"), "--global-batch-size", "4");
  arguments.insert(arguments.end(), {"--reward-key", "score"});
  const Captured result = run(with_flag(arguments, "--num-rollout", "1"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(last_record(folder / "run", "rollout/step")["rollout/grader_failed"], 0.0) << result.err;
  EXPECT_TRUE(last_record(folder / "run", "rollout/step").contains("rollout/reward_asked"));
}

// The quiz too, with an advantage for each turn: four of them where nothing is asked.
TEST_F(MultiTurn, TheQuizRuns) {
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "quiz.jsonl",
                           R"({"prompt": [{"role": "user", "content": "17+25="}], "label": "42",)"
                           R"( "metadata": {"more": ["1+1=", "90-9=", "5+6="]}})"
                           "\n");
  const std::string file = "examples/calculator/quiz.py";
  Arguments arguments = with_custom_reward(with_function(folder / "run", "generate", {}, file), file + ":reward");
  arguments = with_flag(with_flag(arguments, "--hf-checkpoint", "examples/arithmetic/checkpoint"), "--prompt-data",
                        folder / "quiz.jsonl");
  arguments = with_flag(with_flag(arguments, "--rollout-batch-size", "1"), "--global-batch-size", "4");
  arguments = with_flag(with_flag(arguments, "--rollout-max-response-len", "96"), "--num-rollout", "1");
  arguments.insert(arguments.end(), {"--reward-key", "score", "--custom-advantage-path",
                                     "examples/advantages/turn_rewards.py:advantages"});
  const Captured result = run(arguments);
  ASSERT_EQ(result.code, 0) << result.err;
  const base::Json record = last_record(folder / "run", "rollout/step");
  EXPECT_EQ(record["rollout/grader_failed"], 0.0) << result.err;
  EXPECT_GE(record["multi_turn/multi_turn_metric/round_number_mean"], 4.0);
  EXPECT_TRUE(record.contains("rollout/reward_turn_3"));
  EXPECT_FALSE(record.contains("fault/custom_advantage")) << result.err;
}

}  // namespace
}  // namespace tandem::cli
