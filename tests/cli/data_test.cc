// Checks data files through the program: Parquet in place of JSON lines, system prompts, prompts that begin their
// answer, templates whose end is no stop token, and the example of GSM8K's columns.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/tiny_run.h"
#include "tests/text/parquet_lines.h"

namespace tandem::cli {
namespace {

// Returns the golden prompts in verl's columns.
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
  // Returns what the first prompt became.
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

  // The run resumes only with the same file.
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
  EXPECT_NE(said_.find("1 bad line left out (--skip-bad-lines), the first: " + rows + ":2: "), std::string::npos);
}

// Rows of data sets with pictures have columns that nobody reads; these are left alone and reported.
TEST_F(Data, OfParquetMayHaveColumnsThatNobodyReads) {
  const std::string rows = folder_ / "rows.parquet";
  const std::string python = worker::default_worker_config().python;
  const std::string script =
      write("write.py",
            "import pyarrow as pa, pyarrow.parquet, sys\n"
            "pa.parquet.write_table(pa.table({'prompt': ['1 + 1 =', '2 + 2 ='], 'img': [b'\\xff', "
            "None], 'took': pa.array([1, 2], pa.duration('s'))}), sys.argv[1])\n");
  ASSERT_EQ(std::system((python + " '" + script + "' '" + rows + "'").c_str()), 0);
  EXPECT_EQ(generated(generation(rows)), "1 + 1 =");
  EXPECT_NE(said_.find("in 2 of 2 rows a value that Tandem does not read is left out, rewards see null: " + rows +
                       ":1: column 'img' is no UTF-8 text"),
            std::string::npos)
      << said_;
  expect_one_line_failure(run(generation(rows, {"--input-key", "took"})), 2, "column 'took' is of type duration[s]");
}

// A model whose tokenizer begins texts with BOS (tests/golden/tokenizer_bos), through every verb.
class TextPrefix : public Data {
 protected:
  TextPrefix() {
    std::filesystem::create_directory(model_);
    for (const char* name : {"config.json", "generation_config.json", "model.safetensors"}) copy(kModel, name);
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) copy("tests/golden/tokenizer_bos", name);
  }
  void copy(const std::string& from, const std::string& name) {
    std::filesystem::copy_file(from + "/" + name, model_ + "/" + name);
  }
  Arguments with_model(const Arguments& arguments) { return with_flag(arguments, "--hf-checkpoint", model_); }

  const std::string model_ = folder_ / "model";
  const std::string data_ = write("data.jsonl", "{\"prompt\": \"alpha beta\", \"label\": \"1\"}\n");
  const base::Json text_ = {364, 79,  266,
                            273, 299, 64};  // tokens of "alpha beta" in tests/golden/tokenizer_bos/text_cases.jsonl
  const base::Json with_bos_ = {484, 364, 79, 266, 273, 299, 64};
};

TEST_F(TextPrefix, IsThereInEveryVerb) {
  const std::string says = "1 of 1 prompts begin with <|begin_of_text|>, which the tokenizer writes before texts";
  generated(with_model(generation(data_)));
  EXPECT_EQ(json_lines(folder_ / "out.jsonl").at(0).at("prompt_tokens"), with_bos_);
  EXPECT_NE(said_.find(says), std::string::npos) << said_;
  generated(with_model(generation(data_, {"--no-add-special-tokens"})));
  EXPECT_EQ(json_lines(folder_ / "out.jsonl").at(0).at("prompt_tokens"), text_);

  const Captured evaluated = run({"eval", "--hf-checkpoint", model_, "--eval-prompt-data", "set", data_, "--rm-type",
                                  "exact", "--eval-max-response-len", "2"});
  EXPECT_NE(evaluated.err.find(says), std::string::npos) << evaluated.err;

  // A text with its response has the same log-probs as its tokens.
  base::Json tokens = with_bos_;
  tokens.push_back(15);
  const std::string lines =
      write("score.jsonl", "{\"prompt\": \"alpha beta\", \"response\": \"0\"}\n" +
                               base::dump_json({{"tokens", tokens}, {"prompt_length", 7}}) + "\n");
  const Captured scored = run({"score", "--hf-checkpoint", model_, "--prompt-data", lines, "--output", folder_ / "s"});
  ASSERT_EQ(scored.code, 0) << scored.err;
  const std::vector<base::Json> scores = json_lines(folder_ / "s");
  EXPECT_EQ(scores.at(0).at("tokens"), base::Json({15}));
  EXPECT_EQ(scores.at(0).at("log_probs"), scores.at(1).at("log_probs"));

  const int code =
      std::system(("echo '{\"prompts\": [\"alpha beta\"]}' | '" TANDEM_PROGRAM "' engine --hf-checkpoint '" + model_ +
                   "' --rollout-max-response-len 2 > '" + (folder_ / "answer") + "' 2>/dev/null")
                      .c_str());
  EXPECT_EQ(code, 0);
  EXPECT_EQ(json_lines(folder_ / "answer").at(1).at("prompts").at(0).at("tokens"), with_bos_);
}

// A checkpoint from before the flag existed has no such tokens, like one of a run without them.
TEST_F(TextPrefix, DoesNotComeIntoARunThatHadNone) {
  const std::string dumps = folder_ / "dump_{rollout_id}.jsonl";
  const auto arguments = [&](const Arguments& more) {
    return with_model(with_flag(training("run", data_, more), "--save-debug-rollout-data", dumps));
  };
  ASSERT_EQ(run(arguments({"--no-add-special-tokens"})).code, 0);
  EXPECT_EQ(json_lines(folder_ / "dump_0.jsonl").at(0).at("prompt_tokens"), text_);
  const Arguments longer = with_flag(arguments({"--load", folder_ / "run"}), "--num-rollout", "2");
  expect_one_line_failure(run(longer), 2,
                          "the tokens of --add-special-tokens was absent and is 484; give them as they were");
  Arguments resumed = longer;
  resumed.emplace_back("--no-add-special-tokens");
  EXPECT_EQ(run(resumed).code, 0);
  ASSERT_EQ(run(arguments({"--overwrite"})).code, 0);
  EXPECT_EQ(json_lines(folder_ / "dump_0.jsonl").at(0).at("prompt_tokens"), with_bos_);
}

TEST_F(Data, OfSeveralFilesIsDrawnByWeightAndResumesBitForBit) {
  Arguments files;
  for (const char* name : {"a", "b", "c"}) {
    std::string lines;
    for (int i = 0; i < 4; ++i)
      lines += std::string("{\"prompt\": \"") + name + std::to_string(i) + " =\", \"label\": \"1\"}\n";
    files.push_back(write(std::string(name) + ".jsonl", lines) + (files.size() == 1 ? "@[1:]" : ""));
  }
  write("length.py",
        "def reward(prompts, completions, **kwargs):\n    return [float(len(c) % 5) for c in completions]\n");
  const std::string reward = folder_ / "length.py:reward";
  const auto arguments = [&](const std::string& name, const std::string& num_rollouts, const Arguments& more = {}) {
    Arguments words = with_flag(training(name, files[0]), "--num-rollout", num_rollouts);
    words.insert(words.end(), {"--prompt-data", files[0], files[1], files[2], "--rollout-shuffle",
                               "--prompt-data-weights", "0.6", "0.3", "0.1"});
    words.insert(words.end(), more.begin(), more.end());
    return with_custom_reward(words, reward);
  };
  const Captured whole = run(arguments("whole", "4"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  ASSERT_EQ(run(arguments("parts", "2")).code, 0);
  ASSERT_EQ(run(arguments("parts", "4", {"--load", folder_ / "parts"})).code, 0);
  EXPECT_TRUE(weights_of(folder_ / "parts") == weights_of(folder_ / "whole"));
  std::map<std::string, int> counts;
  for (int i = 0; i < 4; ++i) {
    const std::string name = "/samples/rollout_00000" + std::to_string(i) + ".jsonl";
    EXPECT_EQ(base::read_file((folder_ / "parts") + name), base::read_file((folder_ / "whole") + name)) << i;
    for (const base::Json& sample : json_lines((folder_ / "whole") + name)) {
      const auto source = sample.at("source").get<std::string>(), prompt = sample.at("prompt").get<std::string>();
      const int line = prompt[1] - '0' + 1;
      EXPECT_EQ(source, folder_ / (std::string(1, prompt[0]) + ".jsonl:" + std::to_string(line)));
      EXPECT_NE(prompt, "b0 =") << "a slice";
      ++counts[prompt.substr(0, 1)];
    }
  }
  EXPECT_GT(counts["a"], counts["c"]);
  EXPECT_GT(counts["b"], 0);
  // A run with another weight, or another order of the files, is another run.
  Arguments other = arguments("parts", "5", {"--load", folder_ / "parts"});
  *std::ranges::find(other, "0.6") = "0.7";
  expect_one_line_failure(run(other), 2, "--prompt-data-weights was 0.6 0.3 0.1 and is 0.7 0.3 0.1");
  std::swap(files[0], files[2]);
  expect_one_line_failure(run(arguments("parts", "5", {"--load", folder_ / "parts"})), 2, "the file of --prompt-data");
  files.pop_back();
  other = training("none", files[0], {"--prompt-data", files[0], files[1], "--prompt-data-weights", "1", "2", "3"});
  expect_one_line_failure(run(other), 2,
                          "--prompt-data-weights: 3 weights for 2 files of --prompt-data; give one a file");
}

// A run's config.toml has the paths as they were typed, and can be used from elsewhere, and after the folder was moved.
TEST_F(Data, IsFoundFromTheConfigOfARunWhereverItIsUsed) {
  const std::string place = folder_ / "place", moved = folder_ / "moved";
  std::filesystem::create_directories(place + "/data");
  std::filesystem::copy(kModel, place + "/model");
  base::write_file_durably(place + "/data/train.jsonl", "{\"prompt\": \"1 + 1 =\", \"label\": \"2\"}\n");
  const auto tandem = [&](const std::string& from, const std::string& words) {
    const std::string command =
        "cd '" + from + "' && '" TANDEM_PROGRAM "' train " + words + " >'" + (folder_ / "said") + "' 2>&1";
    const int status = std::system(command.c_str());
    said_ = base::read_file(folder_ / "said");
    return WEXITSTATUS(status);
  };
  ASSERT_EQ(tandem(place,
                   "--colocate --hf-checkpoint model --prompt-data 'data/train.jsonl@[:9]' --rm-type exact "
                   "--eval-prompt-data data data/train.jsonl --eval-interval 1 --skip-eval-before-train "
                   "--rollout-batch-size 2 --n-samples-per-prompt 2 --num-rollout 1 --rollout-max-response-len 2 "
                   "--no-use-tensorboard --save runs/a"),
            0)
      << said_;
  const std::string weights = weights_of(place + "/runs/a");
  ASSERT_EQ(tandem("/", "--config '" + place + "/runs/a/config.toml' --save '" + (folder_ / "b") + "'"), 0) << said_;
  EXPECT_TRUE(weights_of(folder_ / "b") == weights);
  // Without --save it names the run itself, which exists.
  EXPECT_EQ(tandem("/", "--config '" + place + "/runs/a/config.toml'"), 2);
  EXPECT_NE(said_.find("runs/a"), std::string::npos) << said_;
  // This run was moved away from its data.
  std::filesystem::rename(place + "/runs/a", folder_ / "alone");
  ASSERT_EQ(tandem(folder_.path(), "--config alone/config.toml --save c"), 0) << said_;
  EXPECT_TRUE(weights_of(folder_ / "c") == weights);
  std::filesystem::rename(folder_ / "alone", place + "/runs/a");
  // A --save with its whole path does not tell where the data are.
  ASSERT_EQ(tandem(place, "--config runs/a/config.toml --save '" + (folder_ / "e") + "'"), 0) << said_;
  ASSERT_EQ(tandem("/", "--config '" + (folder_ / "e") + "/config.toml' --save '" + (folder_ / "f") + "'"), 0) << said_;
  // A copy uses its own files; here they have another line.
  std::filesystem::copy(place, moved, std::filesystem::copy_options::recursive);
  base::write_file_durably(moved + "/data/train.jsonl", "{\"prompt\": 7}\n");
  EXPECT_EQ(tandem(moved, "--config runs/a/config.toml --save runs/d"), 2);
  EXPECT_NE(said_.find("data/train.jsonl:1:2: prompt is a number"), std::string::npos) << said_;
  // A folder that was moved uses the files in its new place.
  std::filesystem::remove_all(moved);
  std::filesystem::rename(place, moved);
  ASSERT_EQ(tandem(moved, "--config runs/a/config.toml --save runs/d"), 0) << said_;
  EXPECT_TRUE(weights_of(moved + "/runs/d") == weights);
}

TEST_F(Data, OfTheHubIsAnsweredWithItsDownload) {
  expect_one_line_failure(run(with_flag(generation(kPrompts), "--hf-checkpoint", "Qwen/Qwen3-0.6B")), 2,
                          "--hf-checkpoint Qwen/Qwen3-0.6B: no such directory; name a folder with config.json, "
                          "model.safetensors and tokenizer.json; it reads like a model of the Hugging Face Hub, and "
                          "Tandem downloads nothing: run `hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B` and give "
                          "that folder");
  expect_one_line_failure(run(generation("openai/gsm8k")), 2, "hf download openai/gsm8k --repo-type dataset");
}

TEST_F(Data, OfMessagesIsScored) {
  const std::string lines =
      write("score.jsonl", R"({"prompt": [{"role": "user", "content": "a?"}], "response": "b"})"
                           "\n"
                           R"({"prompt": "<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant\n", "response": "b"})"
                           "\n");
  const Captured scored = run({"score", "--hf-checkpoint", kModel, "--prompt-data", lines, "--output", folder_ / "s"});
  ASSERT_EQ(scored.code, 0) << scored.err;
  EXPECT_EQ(json_lines(folder_ / "s").at(0).at("log_probs"), json_lines(folder_ / "s").at(1).at("log_probs"));
  const std::string rows = folder_ / "score.parquet";
  const std::string text = base::read_file(lines);
  text::write_parquet(rows, text.substr(0, text.find('\n') + 1));
  const Captured of_rows =
      run({"score", "--hf-checkpoint", kModel, "--prompt-data", rows + "@[:1]", "--output", folder_ / "r"});
  ASSERT_EQ(of_rows.code, 0) << of_rows.err;
  ASSERT_EQ(json_lines(folder_ / "r").size(), 1U);
  EXPECT_EQ(json_lines(folder_ / "r").at(0), json_lines(folder_ / "s").at(0));
  const std::string bad = write("bad.jsonl", R"({"prompt": [{"content": "a?"}], "response": "b"})");
  expect_one_line_failure(run({"score", "--hf-checkpoint", kModel, "--prompt-data", bad}), 2,
                          bad + ":1: message 1 has no role");
  const std::string other = write("bad.jsonl", R"({"question": "a?"})");
  expect_one_line_failure(run({"score", "--hf-checkpoint", kModel, "--prompt-data", other}), 2, "there is question");
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
  // Results depend on the system prompt.
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
  config["eos_token_id"] = 471;  // id of <|endoftext|>
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

// Runs the example's script, and keeps what it printed.
class Example : public Data {
 protected:
  int convert(const std::string& arguments) {
    const std::string command = worker::default_worker_config().python + " examples/gsm8k/convert.py " + arguments +
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
