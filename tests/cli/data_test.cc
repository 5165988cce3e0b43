// What data files may be, through the program: Parquet in place of JSON lines, system prompts, prompts that begin their
// answer, templates whose end is no stop token, and the example of GSM8K's columns.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/tiny_run.h"
#include "tests/text/parquet_lines.h"

namespace tandem::cli {
namespace {

// The golden prompts in verl's columns.
std::string verl_lines() {
  std::string lines;
  for (const base::Json& line : json_lines(kPrompts)) {
    const base::Json messages = line["prompt"].is_array()
                                    ? line["prompt"]
                                    : base::Json::array({{{"role", "user"}, {"content", line["prompt"]}}});
    const std::string label = line["label"].is_string() ? line["label"].get<std::string>() : line["label"].dump();
    lines += base::dump_json({{"data_source", "golden"},
                              {"prompt", messages},
                              {"ability", "math"},
                              {"reward_model", {{"style", "rule"}, {"ground_truth", label}}},
                              {"extra_info", {{"split", "train"}, {"index", 7}}}}) +
             "\n";
  }
  return lines;
}

const Arguments kVerl = {"--label-key", "reward_model.ground_truth"};

class Data : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    base::write_file_durably(folder_ / name, text);
    return folder_ / name;
  }
  Arguments training(const std::string& name, const std::string& data, const Arguments& more = kVerl) {
    const Arguments arguments = with_flag(train_arguments(folder_ / name, more), "--prompt-data", data);
    return with_flag(with_flag(arguments, "--num-rollout", "1"), "--rollout-max-response-len", "4");
  }
  Arguments generation(const std::string& data, const Arguments& more = {}) {
    Arguments arguments = {
        "generate", "--hf-checkpoint",    kModel, "--prompt-data", data, "--rollout-max-response-len", "2",
        "--output", folder_ / "out.jsonl"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  // What the first prompt became.
  std::string generated(const Arguments& arguments) {
    const Captured result = run(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    said_ = result.err;
    return json_lines(folder_ / "out.jsonl").at(0).at("prompt").get<std::string>();
  }
  base::TemporaryDirectory folder_;
  std::string said_;
};

TEST_F(Data, OfParquetTrainsTheSameWeightsAsLines) {
  const std::string lines = verl_lines(), rows = folder_ / "rows.parquet";
  text::write_parquet(rows, lines, /*rows_per_group=*/10);
  const Captured of_lines = run(training("of_lines", write("lines.jsonl", lines)));
  ASSERT_EQ(of_lines.code, 0) << of_lines.err;
  const Captured of_rows = run(training("of_rows", rows));
  ASSERT_EQ(of_rows.code, 0) << of_rows.err;
  EXPECT_TRUE(weights_of(folder_ / "of_rows") == weights_of(folder_ / "of_lines"));

  // Goes on only with the same file.
  Arguments resumed =
      training("of_rows", rows, {"--label-key", "reward_model.ground_truth", "--load", folder_ / "of_rows"});
  resumed = with_flag(resumed, "--num-rollout", "2");
  text::write_parquet(rows, lines.substr(lines.find('\n') + 1));
  expect_one_line_failure(run(resumed), 2, "the file of --prompt-data");
  text::write_parquet(rows, lines, /*rows_per_group=*/10);
  EXPECT_EQ(run(resumed).code, 0);
}

TEST_F(Data, OfParquetIsTakenWhereverLinesAre) {
  const std::string rows = folder_ / "rows.parquet";
  text::write_parquet(rows, verl_lines());
  const Captured evaluated =
      run({"eval", "--hf-checkpoint", kModel, "--eval-prompt-data", "set", rows + "@[:3]", "--rm-type", "math",
           "--eval-label-key", "reward_model.ground_truth", "--eval-max-response-len", "2"});
  EXPECT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_NE((evaluated.out + evaluated.err).find("3 samples"), std::string::npos) << evaluated.out << evaluated.err;
  generated(generation(rows + "@[-2:]"));
  EXPECT_EQ(json_lines(folder_ / "out.jsonl").size(), 2U);
  const Captured imitated = run({"sft", "--hf-checkpoint", kModel, "--prompt-data", rows + "@[:4]", "--label-key",
                                 "reward_model.ground_truth", "--num-rollout", "1", "--global-batch-size", "4",
                                 "--no-use-tensorboard", "--save", folder_ / "sft"});
  EXPECT_EQ(imitated.code, 0) << imitated.err;
}

TEST_F(Data, OfParquetThatIsWrongIsOneLine) {
  const std::string rows = folder_ / "rows.parquet";
  text::write_parquet(rows, verl_lines());
  expect_one_line_failure(run(generation(rows, {"--input-key", "question"})), 2,
                          rows + ":1: the key question is missing");
  expect_one_line_failure(run(generation(rows + "@[1000:]")), 2, "no record to work on: 0 blank and 0 bad lines");
  expect_one_line_failure(run(generation(rows + "@[x:]")), 2, "is no row number");
  const std::string whole = base::read_file(rows);
  expect_one_line_failure(run(generation(write("cut.parquet", whole.substr(0, whole.size() / 2)))), 2,
                          folder_ / "cut.parquet: cannot be read as Parquet: ");
  text::write_parquet(rows, "{\"prompt\": \"a\"}\n{\"prompt\": null}\n");
  expect_one_line_failure(run(generation(rows)), 2, rows + ":2: prompt is a null");
  generated(generation(rows, {"--skip-bad-lines"}));
  EXPECT_NE(said_.find("1 bad lines left out (--skip-bad-lines), the first: " + rows + ":2: "), std::string::npos);
}

TEST_F(Data, GetsASystemPrompt) {
  const std::string data =
      write("data.jsonl", R"({"prompt": [{"role": "user", "content": "a?"}]})"
                          "\n"
                          R"({"prompt": [{"role": "system", "content": "Own."}, {"role": "user", "content": "a?"}]})");
  EXPECT_EQ(
      generated(generation(data, {"--system-prompt", "Be brief."})).find("<|im_start|>system\nBe brief.<|im_end|>"),
      0U);
  EXPECT_NE(said_.find("1 of 2 prompts keep a system message of their own, without --system-prompt"), std::string::npos)
      << said_;
  const std::string texts = write("texts.jsonl", R"({"prompt": "a?"})");
  expect_one_line_failure(run(generation(texts, {"--system-prompt", "Be brief."})), 2,
                          texts +
                              ":1: the prompt is a plain text, which has no place for --system-prompt; give "
                              "--apply-chat-template");
  // Results depend on it.
  ASSERT_EQ(run(training("run", kPrompts, {"--apply-chat-template", "--system-prompt", "Be brief."})).code, 0);
  expect_one_line_failure(
      run(with_flag(training("run", kPrompts,
                             {"--apply-chat-template", "--system-prompt", "Be long.", "--load", folder_ / "run"}),
                    "--num-rollout", "2")),
      2, "--system-prompt");
}

TEST_F(Data, BeginsAnAnswerThatIsContinued) {
  const std::string data = write(
      "data.jsonl",
      R"({"prompt": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "Let us "}], "label": "b"})");
  EXPECT_TRUE(generated(generation(data)).ends_with("Let us "));
  EXPECT_NE(said_.find("1 of 1 prompts end with an assistant's message, which completions continue"), std::string::npos)
      << said_;
  // A TRL reward sees one message.
  write("reward.py",
        "def reward(prompts, completions, **kwargs):\n"
        "    return [float(c[0]['content'].startswith('Let us ') and len(p) == 2) for p, c in zip(prompts, "
        "completions)]\n");
  const Captured result = run({"eval", "--hf-checkpoint", kModel, "--eval-prompt-data", "set", data, "--custom-rm-path",
                               folder_ / "reward.py:reward", "--eval-max-response-len", "2"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE((result.out + result.err).find("reward 1"), std::string::npos) << result.out << result.err;
}

TEST_F(Data, WhoseAnswersWouldRunOnIsWarnedOf) {
  const std::string base_model = folder_ / "base";
  std::filesystem::create_directory(base_model);
  for (const auto& entry : std::filesystem::directory_iterator(kModel)) {
    if (entry.path().filename() == "generation_config.json") continue;
    base::write_file_durably(base_model + "/" + entry.path().filename().string(),
                             base::read_file(entry.path().string()));
  }
  base::Json config = base::parse_json(base::read_file(kModel + "/config.json"), "config.json");
  config["eos_token_id"] = 471;  // <|endoftext|>
  base::write_file_durably(base_model + "/config.json", base::dump_json(config));
  const std::string data = write("data.jsonl", R"({"prompt": [{"role": "user", "content": "a?"}]})");
  const std::string warning =
      "the chat template ends an answer with <|im_end|> (token 473), at which sampling does not";
  const Arguments arguments = with_flag(generation(data), "--hf-checkpoint", base_model);
  generated(arguments);
  EXPECT_NE(said_.find("warning: " + warning), std::string::npos) << said_;
  generated(with_flag(arguments, "--rollout-stop-token-ids", "473"));
  EXPECT_EQ(said_.find(warning), std::string::npos) << said_;
  const Captured trained =
      run(with_flag(training("run", kPrompts, {"--apply-chat-template", "--dry-run"}), "--hf-checkpoint", base_model));
  EXPECT_NE(trained.err.find(warning), std::string::npos) << trained.err;
  generated(generation(data));
  EXPECT_EQ(said_.find(warning), std::string::npos) << said_;
}

// Runs the example's script, and says what it printed.
class Example : public Data {
 protected:
  int convert(const std::string& arguments) {
    const std::string command = text::default_worker_config().python + " examples/gsm8k/convert.py " + arguments +
                                " >'" + (folder_ / "said") + "' 2>&1";
    const int status = std::system(command.c_str());
    said_ = base::read_file(folder_ / "said");
    return WEXITSTATUS(status);
  }
};

TEST_F(Example, OfGsm8kTrains) {
  const std::string data = folder_ / "tiny.jsonl";
  ASSERT_EQ(convert("examples/gsm8k/tiny.jsonl '" + data + "'"), 0) << said_;
  EXPECT_EQ(said_, data + ": 96 problems of 96 rows\n");
  EXPECT_EQ(json_lines(data).at(0), base::parse_json(R"({"prompt": [{"role": "user", "content": "49-31="}],
                                                        "label": "18"})",
                                                     "expected"));
  Arguments arguments =
      with_flag(training("run", data + "@[:64]", {}), "--hf-checkpoint", "examples/arithmetic/checkpoint");
  arguments = with_flag(with_flag(arguments, "--rm-type", "exact"), "--rollout-max-response-len", "8");
  arguments.insert(arguments.end(), {"--eval-prompt-data", "held_out", data + "@[64:]", "--eval-interval", "1"});
  const Captured result = run(arguments);
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* line : {"  64 prompts  1 rollout of 3 x 4 samples", "eval held_out: reward ", "(32 samples)",
                           "done after 1 of 1 rollouts, "}) {
    EXPECT_NE((result.out + result.err).find(line), std::string::npos) << line << "\n" << result.out << result.err;
  }
}

TEST_F(Example, TakesThePublishedColumns) {
  const std::string out = folder_ / "out.jsonl";
  const auto quoted = [&](const std::string& name) { return "'" + (folder_ / name) + "' '" + out + "'"; };
  text::write_parquet(folder_ / "gsm8k", R"({"question": "How many?", "answer": "so\n#### $1,234 "})");
  ASSERT_EQ(convert(quoted("gsm8k") + " 'Box it.'"), 0) << said_;
  EXPECT_EQ(json_lines(out).at(0).at("label"), "1234");
  EXPECT_EQ(json_lines(out).at(0).at("prompt")[0]["content"], "How many?\nBox it.");
  const std::string lines = verl_lines();
  text::write_parquet(folder_ / "dapo", lines + lines);
  ASSERT_EQ(convert(quoted("dapo")), 0) << said_;
  const auto num_lines = static_cast<size_t>(std::count(lines.begin(), lines.end(), '\n'));
  EXPECT_EQ(json_lines(out).size(), num_lines);
  EXPECT_EQ(said_,
            out + ": " + std::to_string(num_lines) + " problems of " + std::to_string(2 * num_lines) + " rows\n");
  EXPECT_EQ(json_lines(out).at(0).at("extra_info").at("index"), 7);
  const base::Json first = base::parse_json(lines.substr(0, lines.find('\n')), "lines");
  EXPECT_EQ(json_lines(out).at(0).at("label"), first["reward_model"]["ground_truth"]);

  write("answerless", "{\"question\": \"a\", \"answer\": \"5\"}\n");
  EXPECT_EQ(convert(quoted("answerless")), 1);
  EXPECT_EQ(said_, "convert.py: " + (folder_ / "answerless") + ":1: the answer does not end in \"#### NUMBER\"\n");
  write("other", "{\"text\": \"a\"}\n");
  EXPECT_EQ(convert(quoted("other")), 1);
  EXPECT_NE(said_.find("other:1: the columns text are neither question and answer nor"), std::string::npos) << said_;
}

}  // namespace
}  // namespace tandem::cli
