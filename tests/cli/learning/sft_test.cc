// Checks supervised training through the program: what it learns, reports and refuses.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

Arguments sft_arguments(const std::string& data, const std::string& save, const Arguments& more) {
  Arguments arguments = {"sft", "--hf-checkpoint", kModel, "--prompt-data",
                         data,  "--save",          save,   "--no-use-tensorboard"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Returns the records of one kind, in order.
std::vector<base::Json> records(const std::string& run, const std::string& kind) {
  std::vector<base::Json> result;
  for (const base::Json& record : json_lines(run + "/metrics.jsonl")) {
    if (record.contains(kind + "/step")) result.push_back(record);
  }
  return result;
}

double number(const base::Json& record, const std::string& name) { return record.at(name).get<double>(); }

// --overwrite removes the earlier run before the weights are saved, and with it a model or data that lie there.
TEST(Sft, OverwritesNoRunThatItReads) {
  base::TemporaryDirectory folder;
  const std::string data = folder / "data.jsonl", first = folder / "first";
  base::write_file_durably(data, "{\"prompt\": \"say\", \"response\": \" yes\"}\n");
  const Arguments small = {"--num-rollout", "1", "--global-batch-size", "1"};
  ASSERT_EQ(run(sft_arguments(data, first, small)).code, 0);
  Arguments words = sft_arguments(data, first, small);
  words.emplace_back("--overwrite");
  std::filesystem::create_directory_symlink(first + "/hf/latest", folder / "model");
  for (const std::string& model : {first + "/hf/latest", folder / "model"}) {
    Arguments again = with_flag(words, "--hf-checkpoint", model);
    const std::string says = "--hf-checkpoint " + model + ": is part of " + first +
                             "/hf, which is removed before a new run begins in --save " + first +
                             "; give another --save, or copy it";
    expect_one_line_failure(run(again), 2, says);
    again.emplace_back("--dry-run");
    expect_one_line_failure(run(again), 2, says);
  }
  base::make_directories(first + "/samples");
  base::write_file_durably(first + "/samples/mine.jsonl", base::read_file(data));
  expect_one_line_failure(run(with_flag(words, "--prompt-data", first + "/samples/mine.jsonl@[0:1]")), 2,
                          "--prompt-data " + first + "/samples/mine.jsonl: is part of " + first + "/samples");
  EXPECT_TRUE(base::file_exists(first + "/hf/latest/model.safetensors"));
  EXPECT_TRUE(base::file_exists(first + "/samples/mine.jsonl"));
  EXPECT_EQ(run(words).code, 0) << "a run that reads nothing there is replaced";
}

TEST(Sft, LearnsWhatItIsShown) {
  base::TemporaryDirectory folder;
  std::string lines;
  for (int i = 0; i < 8; ++i) lines += "{\"prompt\": \"say\", \"response\": \" yes yes\"}\n";
  base::write_file_durably(folder / "data.jsonl", lines);
  base::write_file_durably(folder / "held_out.jsonl", "{\"prompt\": \"say\", \"completion\": \" yes yes\"}\n");
  const Captured result =
      run(sft_arguments(folder / "data.jsonl", folder / "run",
                        {"--num-rollout", "12", "--global-batch-size", "4", "--lr", "1e-2", "--eval-prompt-data",
                         "same", folder / "held_out.jsonl", "--eval-interval", "5"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<base::Json> steps = records(folder / "run", "train"), evals = records(folder / "run", "eval");
  ASSERT_EQ(steps.size(), 12U);
  EXPECT_LT(number(steps.back(), "train/loss"), 0.2 * number(steps.front(), "train/loss"));

  // Evaluations are due before the first step, every interval and at the end; here on the very data that is learnt.
  std::vector<int64_t> when;
  for (const base::Json& record : evals) when.push_back(record.at("eval/step").get<int64_t>());
  EXPECT_EQ(when, (std::vector<int64_t>{0, 5, 10, 12}));
  for (const size_t i : {0U, 1U, 2U}) {
    const double loss = number(evals[i], "eval/same/loss");
    EXPECT_NEAR(loss, number(steps[static_cast<size_t>(when[i])], "train/loss"), 1e-6);
    EXPECT_DOUBLE_EQ(number(evals[i], "eval/same/perplexity"), std::exp(loss));
  }
  EXPECT_LT(number(evals.back(), "eval/same/loss"), number(evals[2], "eval/same/loss"));

  const std::string log = base::read_file(folder / "run/log.txt");
  EXPECT_NE(log.find("  done after 12 of 12 steps, "), std::string::npos) << log;
  EXPECT_NE(log.find("eval same: loss "), std::string::npos) << log;
  EXPECT_FALSE(base::directory_exists(folder / "run/samples"));
  EXPECT_FALSE(base::file_exists(folder / "run/memory_timeline.jsonl"));

  base::write_file_durably(folder / "prompts.jsonl", "{\"prompt\": \"say\"}\n");
  const Captured generated =
      run({"generate", "--hf-checkpoint", folder / "run/hf/latest", "--prompt-data", folder / "prompts.jsonl",
           "--rollout-temperature", "0", "--output", folder / "new/folder/out.jsonl"});
  ASSERT_EQ(generated.code, 0) << generated.err;
  const base::Json record = json_lines(folder / "new/folder/out.jsonl").at(0);
  EXPECT_TRUE(record["completions"][0]["text"].get<std::string>().starts_with(" yes yes"));
  EXPECT_EQ(record["completions"][0]["finish_reason"], "stop");
}

// There are five samples in steps of two: one is never seen.
TEST(Sft, SaysWhatAnEpochLeavesOutAndIsQuietWhereAsked) {
  base::TemporaryDirectory folder;
  std::string lines;
  for (int i = 0; i < 5; ++i) lines += "{\"prompt\": \"say\", \"response\": \" yes\"}\n";
  base::write_file_durably(folder / "data.jsonl", lines);
  const auto sft = [&](const Arguments& more) {
    Arguments arguments = sft_arguments(folder / "data.jsonl", folder / "run", {"--num-epoch", "1"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  };
  const Captured some = sft({"--global-batch-size", "2", "--dry-run"});
  EXPECT_NE(some.out.find("2 optimizer steps of 2 samples, the last 1 of the last epoch left out"), std::string::npos)
      << some.out << some.err;
  const Captured none = sft({"--global-batch-size", "5", "--dry-run"});
  EXPECT_EQ(none.out.find("left out"), std::string::npos) << none.out;

  const Captured quiet = sft({"--global-batch-size", "2", "--quiet"});
  EXPECT_EQ(quiet.code, 0) << quiet.err;
  EXPECT_TRUE(quiet.out.starts_with("done after 2 of 2 steps")) << quiet.out;
  EXPECT_EQ(std::ranges::count(quiet.out, '\n'), 1) << quiet.out;
  EXPECT_EQ(quiet.err, "");
  EXPECT_NE(base::read_file(folder / "run/log.txt").find("left out"), std::string::npos);
}

// Two responses of different length: the held-out loss of each alone says what the step's loss must be.
TEST(Sft, LossIsTheMeanOverTokensOrOverSamples) {
  base::TemporaryDirectory folder;
  const std::string brief = "{\"prompt\": \"say\", \"response\": \"2\"}\n";
  const std::string lengthy = "{\"prompt\": \"say\", \"response\": \"one and one make two, as everybody will know\"}\n";
  base::write_file_durably(folder / "brief.jsonl", brief);
  base::write_file_durably(folder / "lengthy.jsonl", lengthy);
  base::write_file_durably(folder / "both.jsonl", brief + lengthy);
  const Arguments more = {"--num-rollout",        "1",       "--global-batch-size",    "2",
                          "--eval-interval",      "1",       "--eval-prompt-data",     "brief",
                          folder / "brief.jsonl", "lengthy", folder / "lengthy.jsonl", "both",
                          folder / "both.jsonl"};
  Arguments by_sample = sft_arguments(folder / "both.jsonl", folder / "by_sample", more);
  by_sample.push_back("--no-calculate-per-token-loss");
  for (const Arguments& words : {sft_arguments(folder / "both.jsonl", folder / "by_token", more), by_sample}) {
    const Captured result = run(words);
    ASSERT_EQ(result.code, 0) << result.err;
  }
  const base::Json held_out = records(folder / "by_token", "eval").at(0);
  const double each = 0.5 * (number(held_out, "eval/brief/loss") + number(held_out, "eval/lengthy/loss"));
  const double all = number(held_out, "eval/both/loss");
  EXPECT_GT(std::abs(each - all), 0.1);
  EXPECT_NEAR(number(records(folder / "by_token", "train").at(0), "train/loss"), all, 1e-5);
  EXPECT_NEAR(number(records(folder / "by_sample", "train").at(0), "train/loss"), each, 1e-5);
  EXPECT_NE(weights_of(folder / "by_token"), weights_of(folder / "by_sample"));
}

TEST(Sft, HasDefaultsOfItsOwn) {
  const Captured sft = run({"sft", "--print-config"}), train = run({"train", "--print-config"});
  const auto has = [](const Captured& printed, const std::string& line) {
    return ("\n" + printed.out).find("\n" + line + "\n") != std::string::npos;
  };
  for (const char* line : {"lr = 1e-05", "weight-decay = 0.0", "rollout-shuffle = true"}) {
    EXPECT_TRUE(has(sft, line)) << line << " in\n" << sft.out;
    EXPECT_FALSE(has(train, line)) << line;
  }
  const Captured help = run({"sft", "--help"});
  EXPECT_NE(help.out.find("1e-05"), std::string::npos) << help.out;
  // A flag that has no meaning here does not exist.
  for (const char* flag : {"--sample-dump-interval", "--metadata-key", "--n-samples-per-eval-prompt"})
    EXPECT_EQ(help.out.find(flag), std::string::npos) << flag;
}

TEST(Sft, RefusesInOneLine) {
  base::TemporaryDirectory folder;
  const Arguments length = {"--num-rollout", "1", "--global-batch-size", "1"};
  base::write_file_durably(folder / "data.jsonl",
                           "{\"prompt\": \"a\", \"response\": \"b\"}\n"
                           "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n");
  expect_one_line_failure(run(sft_arguments(folder / "data.jsonl", folder / "run", length)), 2,
                          "data.jsonl:2:2: messages ends with a message of role user");
  EXPECT_FALSE(base::directory_exists(folder / "run"));
  Arguments skipping = sft_arguments(folder / "data.jsonl", folder / "run", length);
  skipping.insert(skipping.end(), {"--skip-bad-lines", "--dry-run"});
  const Captured skipped = run(skipping);
  EXPECT_EQ(skipped.code, 0) << skipped.err;
  EXPECT_NE(skipped.err.find("1 bad line left out (--skip-bad-lines)"), std::string::npos) << skipped.err;
  EXPECT_NE((skipped.out + skipped.err).find("1 sample of 1 line, "), std::string::npos) << skipped.out;

  Arguments lonely = sft_arguments(folder / "data.jsonl", folder / "run", length);
  lonely.insert(lonely.end(), {"--eval-interval", "1"});
  expect_one_line_failure(run(lonely), 2, "--eval-interval: needs --eval-prompt-data");

  // Steps that go wrong name the lines that they were made of.
  base::write_file_durably(folder / "data.jsonl", "\n{\"prompt\": \"a\", \"response\": \"b\"}\n");
  Arguments skip = sft_arguments(folder / "data.jsonl", folder / "run", {"--num-rollout", "5"});
  skip.insert(skip.end(), {"--global-batch-size", "2", "--max-grad-norm-skip", "1e-9", "--max-skipped-steps", "2"});
  expect_one_line_failure(run(skip), 2,
                          "2 optimizer steps in a row were skipped (--max-skipped-steps): lower --lr, or "
                          "look at what the last one was made of, " +
                              (folder / "data.jsonl") + ":2; it had ");
  EXPECT_EQ(records(folder / "run", "train").size(), 2U);
}

}  // namespace
}  // namespace tandem::cli
