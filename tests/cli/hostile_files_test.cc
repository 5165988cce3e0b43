// Checks directories that somebody handed over, or that others may write into: links where a run has its files, pipes
// where files belong, checkpoints whose numbers were changed by hand, text that a terminal would obey. Each test is the
// attack, through the program.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/files.h"
#include "tests/base/pseudo_terminal.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/resume/reseal.h"
#include "tests/cli/resume/spoiled_run.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

// Returns the contents of a folder by name; for links, their targets.
std::map<std::string, std::string> contents_of(const std::string& folder) {
  std::map<std::string, std::string> result;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = fs::relative(entry.path(), folder).string();
    if (entry.is_symlink()) {
      result[name] = "-> " + fs::read_symlink(entry.path()).string();
    } else {
      result[name] = entry.is_regular_file() ? base::read_file(entry.path().string()) : "";
    }
  }
  return result;
}

// Ends the test when a run waits for ever.
class Watched : public testing::Test {
 protected:
  void SetUp() override { ::alarm(400); }
  void TearDown() override { ::alarm(0); }
  base::TemporaryDirectory folder_;
};

class HandedOverRun : public Watched {
 protected:
  static void SetUpTestSuite() {
    shared_ = new base::TemporaryDirectory();
    const Captured result = run(arguments(*shared_ / "run", {}));
    ASSERT_EQ(result.code, 0) << result.err;
  }
  static void TearDownTestSuite() { delete shared_; }

  static Arguments arguments(const std::string& save, const Arguments& more) {
    Arguments words = train_arguments(save, {"--save-interval", "1"});
    std::replace(words.begin(), words.end(), std::string("--no-use-tensorboard"), std::string("--use-tensorboard"));
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  // Returns a copy of the run, as it was handed over.
  std::string handed_over(const std::string& name) const {
    const std::string path = folder_ / name;
    fs::copy(*shared_ / "run", path, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    return path;
  }
  static Captured go_on(const std::string& path, const Arguments& more = {}) {
    Arguments words = arguments(path, {"--load", path});
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }

  static inline base::TemporaryDirectory* shared_ = nullptr;
};

// When RUN/tensorboard was linked to a folder that several runs share, --load once removed all that was there; through
// samples, hf and checkpoints it removed whatever had a similar name; and it wrote to the end of the file that log.txt
// led to.
TEST_F(HandedOverRun, LinksAreRefusedAndLeadNowhere) {
  const std::string victim = folder_ / "victim";
  fs::create_directories(victim + "/step_000099");
  for (const std::string name : {"events.out.tfevents.1", "notes.txt", "train_2023.jsonl", "rollout_000099.jsonl",
                                 "model.tmp-1", "latest", "x.tmp-0123456789abcdef", "step_000099/model.safetensors"})
    base::write_file_durably(victim + "/" + name, "precious\n");
  const std::map<std::string, std::string> before = contents_of(victim);
  for (const std::string name :
       {"tensorboard", "samples", "hf", "checkpoints", "fault", "log.txt", "metrics.jsonl", "memory_timeline.jsonl",
        "memory_trace.json", "grader_output.txt", "config.toml", "lock"}) {
    SCOPED_TRACE(name);
    const std::string path = handed_over(name + "-linked");
    const bool is_folder = name.find('.') == std::string::npos && name != "lock";
    std::string target = victim + "/notes.txt";
    if (is_folder) target = victim;
    if (name == "checkpoints") {  // checkpoints/ must hold one, or there is nothing to resume from
      target = folder_ / "real-checkpoints";
      fs::rename(path + "/checkpoints", target);
      fs::create_directory(target + "/step_000099");
    }
    fs::remove_all(path + "/" + name);
    fs::create_symlink(target, path + "/" + name);
    const std::map<std::string, std::string> run_before = contents_of(path),
                                             target_before = contents_of(folder_.path());
    for (const bool dry : {true, false}) {
      expect_one_line_failure(go_on(path, dry ? Arguments{"--dry-run"} : Arguments{"--ckpt-step", "1"}), 2,
                              path + "/" + name + ": is a symbolic link");
    }
    EXPECT_TRUE(contents_of(victim) == before) << "what is not the run's";
    EXPECT_TRUE(contents_of(path) == run_before) << "a refused run changes nothing";
    EXPECT_TRUE(contents_of(folder_.path()) == target_before);
  }
}

// In folders of its own a run removes and truncates what a run wrote; other files there belong to others.
TEST_F(HandedOverRun, FilesOfOthersStay) {
  const std::string path = handed_over("run");
  const std::vector<std::string> foreign = {
      "notes.txt",       "model.tmp-1",           "samples/train_2023.jsonl",      "samples/rollout_7.jsonl",
      "samples/a.tmp-3", "samples/eval_9.jsonl",  "hf/step_best_000099",           "hf/step_99",
      "hf/x.tmp-4",      "checkpoints/step_best", "tensorboard/plugin_state.json", "tensorboard/rollout_000099.jsonl"};
  for (const std::string& name : foreign) base::write_file_durably(path + "/" + name, "mine\n");
  const std::vector<std::string> left_over = {"samples/rollout_000001.jsonl", "samples/rollout_000099.jsonl",
                                              "samples/eval_held_000099.jsonl",
                                              "samples/rollout_000003.jsonl.tmp-0123456789abcdef"};
  for (const std::string& name : left_over) base::write_file_durably(path + "/" + name, "half\n");
  const Captured result = go_on(path, {"--ckpt-step", "1"});
  ASSERT_EQ(result.code, 0) << result.err;
  for (const std::string& name : foreign) {
    ASSERT_TRUE(base::file_exists(path + "/" + name)) << name;
    EXPECT_EQ(base::read_file(path + "/" + name), "mine\n") << name;
  }
  for (const std::string& name : left_over) {
    if (!base::file_exists(path + "/" + name)) continue;  // written anew or removed
    EXPECT_NE(base::read_file(path + "/" + name), "half\n") << name;
  }
  EXPECT_FALSE(base::file_exists(path + "/samples/rollout_000099.jsonl"));
}

void put(const std::string& path, bool is_pipe) {
  fs::remove_all(path);
  if (is_pipe) {
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  } else {
    fs::create_directory(path);
  }
}

// Opening a pipe waits for a writer: the program hung, and the first SIGTERM did not end it.
TEST_F(HandedOverRun, PipesAndFoldersInPlaceOfFilesAreRefused) {
  const std::string step = "checkpoints/step_000002/";
  for (const std::string& name : {std::string("metrics.jsonl"), std::string("memory_timeline.jsonl"),
                                  std::string("log.txt"), std::string("checkpoints/latest"), step + "MANIFEST.json",
                                  step + "state.json", step + "shard_00000.safetensors"}) {
    for (const bool is_pipe : {true, false}) {
      SCOPED_TRACE(name + (is_pipe ? " is a pipe" : " is a folder"));
      const std::string path = handed_over("run");
      put(path + "/" + name, is_pipe);
      expect_one_line_failure(go_on(path), 2, path + "/" + name + ": is ");
      fs::remove_all(path);
    }
  }
}

using PipesForFiles = Watched;

TEST_F(PipesForFiles, OfAModelAreRefused) {
  for (const std::string name : {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
                                 "generation_config.json", "chat_template.jinja"}) {
    for (const bool is_pipe : {true, false}) {
      if (!is_pipe && name == "generation_config.json") continue;  // a folder of that name is no such file
      SCOPED_TRACE(name + (is_pipe ? " is a pipe" : " is a folder"));
      const std::string model = writable_model(folder_ / "model");
      put(model + "/" + name, is_pipe);
      // If a folder has the name, there is no such file.
      std::string says = model + "/" + name + (is_pipe ? ": is no regular file" : ": ");
      if (name == "model.safetensors" && !is_pipe) says = "neither model.safetensors nor";
      expect_one_line_failure(run({"generate", "--hf-checkpoint", model, "--prompt-data", kPrompts, "--output", "-"}),
                              2, says);
      fs::remove_all(model);
    }
  }
}

TEST_F(PipesForFiles, ThatFlagsNameAreRefused) {
  for (const bool is_pipe : {true, false}) {
    const std::string path = folder_ / "0.jsonl";
    put(path, is_pipe);
    const std::string says = path + ": is ";
    expect_one_line_failure(run(with_flag(train_arguments(folder_ / "run"), "--prompt-data", path)), 2, says);
    expect_one_line_failure(run({"train", "--config", path}), 2, says);
    expect_one_line_failure(
        run(train_arguments(folder_ / "run", {"--load-debug-rollout-data", folder_ / "{rollout_id}.jsonl"})), 2, says);
    fs::remove_all(folder_ / "run");
    expect_one_line_failure(run(with_custom_reward(train_arguments(folder_ / "run"), path + ":reward")), 2, path);
    const Captured scored = run({"score", "--hf-checkpoint", kModel, "--prompt-data", path, "--output", "-"});
    expect_one_line_failure(scored, 2, says);
  }
}

// Numbers near the end of 64 bits overflowed in the optimizer, the trainer and the order of prompts.
TEST_F(HandedOverRun, NumbersThatNoRunCountsAreRefused) {
  for (const std::string key : {"step", "optimizer_updates", "optimizer_steps", "skipped_in_a_row", "failed_in_a_row",
                                "weight_version", "epoch", "offset", "reference_step", "file_bytes: metrics.jsonl"}) {
    for (const base::Json& value :
         {base::Json(INT64_MAX), base::Json(INT64_MAX - 1), base::Json(UINT64_MAX), base::Json(-1), base::Json(2.5)}) {
      SCOPED_TRACE(key + " " + value.dump());
      const std::string path = handed_over("run"), step = path + "/checkpoints/step_000002";
      const bool is_file = key.starts_with("file_bytes");
      reseal(step, [&](base::Json& state) { (is_file ? state["file_bytes"]["metrics.jsonl"] : state[key]) = value; });
      expect_one_line_failure(go_on(path, {"--dry-run"}), 2,
                              step + "/state.json: " + key + " must be a whole number from 0 to ");
      fs::remove_all(path);
    }
  }
  const std::string path = handed_over("run"), step = path + "/checkpoints/step_000002";
  reseal(step, [](base::Json& state) { state["step"] = 1; });
  expect_one_line_failure(go_on(path), 2, "state.json: step is 1, and MANIFEST.json says 2");
  reseal(step, [](base::Json& state) {
    state["step"] = 2;
    state["file_bytes"]["../outside"] = 1;
  });
  expect_one_line_failure(go_on(path), 2, "file_bytes: ../outside lies outside the run");
}

TEST_F(HandedOverRun, KeysOfAStateAreShownWithoutWhatATerminalObeys) {
  const std::string path = handed_over("run");
  reseal(path + "/checkpoints/step_000002",
         [](base::Json& state) { state["numbers"]["evil\x1b[2J\u202e\u009b"] = "\x1b]0;title\x07"; });
  const Captured result = go_on(path);
  expect_one_line_failure(result, 2, "--evil\\u001b[2J\\u202e\\u009b was \\u001b]0;title\\u0007 and is absent");
  EXPECT_EQ(result.err.find('\x1b'), std::string::npos);
}

// A step that is whole and has another's name was once suggested in its own place.
TEST_F(HandedOverRun, ACheckpointOfAnotherStepIsNotTheOneToGoOnFrom) {
  const std::string path = handed_over("run"), folder = path + "/checkpoints";
  fs::copy(folder + "/step_000002", folder + "/step_000003", fs::copy_options::recursive);
  base::write_file_durably(folder + "/latest", "step_000003\n");
  const Captured result = go_on(path);
  expect_one_line_failure(result, 2, "step_000003: is that of step 2: it was moved; the newest good one is ");
  EXPECT_NE(result.err.find("give --ckpt-step 2"), std::string::npos) << result.err;
}

// A checkpoint from before texts were stored as fingerprints can be resumed, and still shows a flag that differs.
TEST_F(HandedOverRun, ACheckpointWithTextsInItIsStillRead) {
  const std::string path = folder_ / "run";
  const Arguments stop = {"--rollout-stop", "###", "--save-interval", "1"};
  ASSERT_EQ(run(with_flag(train_arguments(path, stop), "--num-rollout", "1")).code, 0);
  const std::string step = path + "/checkpoints/step_000001";
  EXPECT_EQ(base::read_file(step + "/state.json").find("###"), std::string::npos);
  Arguments other = train_arguments(path, {"--rollout-stop", "##", "--load", path});
  expect_one_line_failure(run(other), 2, "--rollout-stop was ### and is ##; give");
  reseal(step, [](base::Json& state) { state["numbers"]["rollout-stop"] = "###"; });
  expect_one_line_failure(run(other), 2, "--rollout-stop was ### and is ##; give");
  // The text is that of config.toml: the checkpoint itself has its fingerprint alone.
  const std::string config = base::read_file(path + "/config.toml");
  std::string edited = config;
  edited.replace(edited.find("###"), 3, "#!#");
  base::write_file_durably(path + "/config.toml", edited);
  expect_one_line_failure(run(other), 2, "--rollout-stop is not what it was; give");
  base::write_file_durably(path + "/config.toml", config);
  Arguments same = train_arguments(path, stop);
  same.insert(same.end(), {"--load", path});
  const Captured result = run(same);
  EXPECT_EQ(result.code, 0) << result.err;
}

// Removes the live line's own codes. The rest of what is printed for a person must hold nothing that a terminal obeys.
std::string without_live_lines(std::string text) {
  for (const std::string own : {"\r\x1b[K", "\x1b[K"}) {
    for (size_t at = text.find(own); at != std::string::npos; at = text.find(own)) text.erase(at, own.size());
  }
  return text;
}

int execute(const Arguments& arguments) {
  std::vector<char*> words = {const_cast<char*>(TANDEM_PROGRAM)};
  for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execv(words[0], words.data());
  return 127;
}

using AtATerminal = Watched;

TEST_F(AtATerminal, WhatARewardSaysCommandsNothing) {
  const std::string reward =
      write_reward_of(folder_.path(),
                      "import os\n"
                      "    if kwargs.get('prompts') is None and len(completions[0][0]['content']) % 2:\n"
                      "        os.write(1, b'\\x1b]52;c;ZXZpbA==\\x07'); os._exit(3)\n"
                      "    raise ValueError('\\x1b]0;TITLE\\x07\\x1b[2J\\u202e\\u009b31m')");
  Arguments words = with_custom_reward(train_arguments(folder_ / "run"), reward);
  words.insert(words.end(), {"--max-failed-rollouts", "9"});
  base::PseudoTerminal screen(100, [&] { return execute(words); });
  screen.wait();
  const std::string shown = without_live_lines(screen.bytes()), log = base::read_file(folder_ / "run/log.txt");
  EXPECT_NE(shown.find("\\u001b"), std::string::npos) << shown;
  for (const std::string& text : {shown, log}) {
    for (const std::string bad : {"\x1b", "\x07", "\u202e", "\u009b"})
      EXPECT_EQ(text.find(bad), std::string::npos) << text;
  }
}

// Completions and prompts go unchanged into files and pipes; on a terminal their JSON is escaped and means the same.
TEST_F(AtATerminal, CompletionsCommandNothing) {
  const std::string prompt = "1 + 1 =\u009b2J\u202e\x7f";
  base::write_file_durably(folder_ / "p.jsonl", base::dump_json(base::Json{{"prompt", prompt}}) + "\n");
  const Arguments words = {"generate",
                           "--hf-checkpoint",
                           kModel,
                           "--prompt-data",
                           folder_ / "p.jsonl",
                           "--output",
                           "-",
                           "--quiet",
                           "--rollout-max-response-len",
                           "4"};
  const Captured piped = run(words);
  ASSERT_EQ(piped.code, 0) << piped.err;
  EXPECT_NE(piped.out.find("\u009b2J\u202e\x7f"), std::string::npos) << piped.out;
  base::PseudoTerminal screen(100, [&] { return execute(words); });
  EXPECT_EQ(screen.wait(), 0);
  const std::string shown = without_live_lines(screen.bytes());
  for (const std::string bad : {"\x1b", "\u202e", "\u009b", "\x7f"})
    EXPECT_EQ(shown.find(bad), std::string::npos) << shown;
  std::string line = shown.substr(shown.find('{'));
  std::erase_if(line, [](char c) { return c == '\r' || c == '\n'; });
  EXPECT_EQ(base::parse_json(line, "terminal"), base::parse_json(piped.out, "pipe"));
}

using HostileRewards = Watched;

// 100,000 numbers a reward once kept the run busy for minutes, in which it obeyed no signal. Each sample may give 256
// names; a rollout has as many in all.
TEST_F(HostileRewards, MayNotNameNumbersWithoutEnd) {
  base::write_file_durably(folder_ / "names.py",
                           "import random\n"
                           "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
                           "    return {'score': 1.0, **{f'n{random.random()}': 1.0 for _ in range(200)}}\n");
  Arguments words = with_custom_reward(train_arguments(folder_ / "run"), folder_ / "names.py:compute_score");
  words = with_flag(with_flag(words, "--rollout-batch-size", "12"), "--global-batch-size", "48");
  const Captured result = run(words);
  ASSERT_EQ(result.code, 0) << result.err;
  int64_t num_rollouts = 0;
  for (const base::Json& record : json_lines(folder_ / "run/metrics.jsonl")) {
    if (!record.contains("rollout/step")) continue;
    ++num_rollouts;
    int64_t num_names = 0;
    for (const auto& [name, value] : record.items()) num_names += name.starts_with("rollout/reward_") ? 1 : 0;
    EXPECT_EQ(num_names, 256);
    EXPECT_EQ(record.at("fault/reward_names"), 48 * 200 - 256);
  }
  EXPECT_EQ(num_rollouts, 2);
  const std::string said = "the reward gave numbers or columns under more than 256 names";
  const size_t first = result.err.find(said);
  ASSERT_NE(first, std::string::npos) << result.err;
  EXPECT_EQ(result.err.find(said, first + 1), std::string::npos) << "said once";
  for (const base::Json& sample : json_lines(folder_ / "run/samples/rollout_000000.jsonl"))
    EXPECT_LE(sample.size(), 256U + 20U);
}

using BadModels = Watched;

// --dry-run once reported that everything is in order for weights that the run refuses.
TEST_F(BadModels, WeightsAreRefusedByADryRunToo) {
  const std::string model = writable_model(folder_ / "model");
  replace_text(model + "/config.json", "\"intermediate_size\": 160", "\"intermediate_size\": 192");
  const Arguments words = with_flag(train_arguments(folder_ / "run", {"--dry-run"}), "--hf-checkpoint", model);
  expect_one_line_failure(run(words), 2, "mlp.gate_proj.weight\" has shape");
  for (const std::string verb : {"generate", "score"}) {
    base::write_file_durably(folder_ / "p.jsonl", "{\"prompt\": \"1\", \"response\": \"2\"}\n");
    expect_one_line_failure(
        run({verb, "--hf-checkpoint", model, "--prompt-data", folder_ / "p.jsonl", "--output", "-", "--dry-run"}), 2,
        "has shape");
  }
  const Arguments reference = {"--dry-run", "--use-kl-loss", "--kl-loss-coef", "0.1", "--ref-load", model};
  expect_one_line_failure(run(train_arguments(folder_ / "run", reference)), 2, model + "/model.safetensors");
}

// This mistake once ended as "a worker process was lost", exit code 3, without the file's name.
TEST_F(BadModels, ATokenizerThatIsWrongInItselfIsNamed) {
  const std::string model = writable_model(folder_ / "model"), path = model + "/tokenizer.json";
  base::Json tokenizer = base::read_json_file(path);
  tokenizer["model"] = {{"type", "WordPiece"},
                        {"unk_token", "[UNK]"},
                        {"continuing_subword_prefix", "##"},
                        {"max_input_chars_per_word", 100},
                        {"vocab", {{"a", 0}, {"b", 1}}}};
  base::write_file_durably(path, base::dump_json(tokenizer));
  expect_one_line_failure(run(with_flag(train_arguments(folder_ / "run"), "--hf-checkpoint", model)), 2,
                          path + ": the tokenizer cannot work: WordPiece error: Missing [UNK] token");
}

}  // namespace
}  // namespace tandem::cli
