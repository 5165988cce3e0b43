// Checks labels: a reward that compares completions with them refuses a line that has none, and a Python reward gets
// what the line holds.
//
// A run with a wrong --label-key once climbed to reward 0.99 on empty answers: a missing label was read as "", and
// exact paid 1 for an empty completion.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

std::string write_data(const base::TemporaryDirectory& folder, const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  base::write_file_durably(folder / "data.jsonl", text);
  return folder / "data.jsonl";
}

// Returns arguments for one short completion of each prompt.
Arguments eval_arguments(const std::string& data, const Arguments& more) {
  Arguments arguments = {
      "eval", "--hf-checkpoint", kModel, "--eval-prompt-data", "set", data, "--rollout-max-response-len", "2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(Labels, AMissingOneIsRefusedWithItsPlace) {
  const base::TemporaryDirectory folder;
  const Arguments dry_run = {"--dry-run"};
  expect_one_line_failure(
      run(with_flag(train_arguments(folder / "run", dry_run), "--label-key", "answer")), 2,
      kPrompts +
          ":1:1: the key answer is missing: there are prompt, label, and --rm-type exact compares completions with "
          "the label - give the line one, or name its key with --label-key label");
  struct Case {
    const char* label;
    const char* says;
  };
  const std::string good = R"({"prompt": "say", "label": 4})";
  for (const Case& c : std::vector<Case>{{"null", ":2:19: label is null"},
                                         {"\"\"", ":2:19: label is empty"},
                                         {"\" \\n\"", ":2:19: label is empty"},
                                         {"[\"4\"]", ":2:19: label is a list"},
                                         {"{\"a\": 4}", ":2:19: label is an object"}}) {
    const std::string data = write_data(folder, {good, R"({"prompt": "say", "label": )" + std::string(c.label) + "}"});
    for (const std::string rule : {"exact", "math", "dapo"}) {
      expect_one_line_failure(run(eval_arguments(data, {"--rm-type", rule, "--dry-run"})), 2, data + c.says);
    }
  }
  // A number, true or false has a text.
  const std::string data = write_data(folder, {good, R"({"prompt": "say", "label": true})"});
  EXPECT_EQ(run(eval_arguments(data, {"--rm-type", "exact", "--dry-run"})).code, 0);
}

// The tests of `code` are lists, objects or texts; a line may ask for them where other lines compare.
TEST(Labels, TestsOfProgramsMayHaveAStructure) {
  const base::TemporaryDirectory folder;
  const std::string tests = R"({"prompt": "say", "label": [{"input": "1", "output": "2"}])";
  const std::string object = R"({"prompt": "say", "label": {"inputs": ["1"], "outputs": ["2"]}})";
  const std::string data =
      write_data(folder, {tests + "}", object, R"({"prompt": "say", "label": "assert f(1) == 2"})"});
  EXPECT_EQ(run(eval_arguments(data, {"--rm-type", "code", "--dry-run"})).code, 0);
  expect_one_line_failure(run(eval_arguments(data, {"--rm-type", "code", "exact", "--dry-run"})), 2, "label is a list");
  const std::string of_line = write_data(folder, {tests + R"(, "metadata": {"rm_type": "code"}})"});
  EXPECT_EQ(run(eval_arguments(of_line, {"--rm-type", "exact", "--dry-run"})).code, 0);
  const std::string none = write_data(folder, {R"({"prompt": "say", "label": null})"});
  expect_one_line_failure(run(eval_arguments(none, {"--rm-type", "code", "--dry-run"})), 2, ":1:19: label is null");
}

// Lines of --rm-type ifbench: what their responses should follow is read when the run starts.
TEST(Instructions, ThatCannotBeCheckedAreRefusedWithTheirLine) {
  const base::TemporaryDirectory folder;
  const auto line = [](const std::string& name, const std::string& kwargs) {
    return R"({"prompt": "say", "metadata": {"instruction_id_list": ["punctuation:no_comma", ")" + name +
           R"("], "kwargs": [{}, )" + kwargs + "]}}";
  };
  const std::string good = line("count:numbers", R"({"N": 3, "keyword": null})");
  EXPECT_EQ(run(eval_arguments(write_data(folder, {good, good}), {"--rm-type", "ifbench", "--dry-run"})).code, 0);
  for (const auto& [bad, says] : std::vector<std::pair<std::string, std::string>>{
           {line("count:fish", "{}"), ":2: --rm-type ifbench: instruction_id_list[1]: 'count:fish' is none of the 112"},
           {R"({"prompt": "say", "label": "4"})", ":2: --rm-type ifbench: instruction_id_list is to be a list"}}) {
    const std::string data = write_data(folder, {good, bad, good});
    expect_one_line_failure(run(eval_arguments(data, {"--rm-type", "ifbench", "--dry-run"})), 2, says);
  }
  const std::string of_line = write_data(
      folder, {R"({"prompt": "say", "label": "4", "metadata": {"rm_type": "ifbench", "instruction_id_list": [""]}})"});
  expect_one_line_failure(run(eval_arguments(of_line, {"--rm-type", "exact", "--dry-run"})), 2,
                          of_line + ":1: --rm-type");
}

// Lines of --rm-type code: their tests and limits are read when the run starts.
TEST(Labels, TestsOfProgramsAreReadBeforeTheRun) {
  const base::TemporaryDirectory folder;
  const auto line = [](const std::string& label, const std::string& metadata) {
    return R"({"prompt": "say", "label": )" + label + R"(, "metadata": )" + metadata + "}";
  };
  const std::string good = line(R"(["assert f(1) == 2"])", R"({"time_limit": 2})");
  EXPECT_EQ(run(eval_arguments(write_data(folder, {good, good}), {"--rm-type", "code", "--dry-run"})).code, 0);
  for (const auto& [label, metadata, says] : std::vector<std::array<std::string, 3>>{
           {R"(["assert f(1"])", "{}", ":2: --rm-type code: a test of the label is no Python"},
           {R"([{"in": 1}])", "{}", ":2: --rm-type code: a test of the label is no object with the key input"},
           {R"("def check(f):\n    assert f(1) == 2")", "{}",
            ":2: --rm-type code: the tests of the label define functions"},
           {R"(["assert f(1) == 2", "assert 1 == 1"])", "{}",
            ":2: --rm-type code: a test of the label calls no function of the program: assert 1 == 1"},
           {R"("def check(f):\n    assert f(1) == 2")", R"({"entry_point": 5})",
            ":2: --rm-type code: metadata.entry_point is 5; name the function"},
           {R"(["assert f(1) == 2"])", R"({"test_imports": 5})", ":2: --rm-type code: metadata.test_imports"},
           {R"(["assert f(1) == 2"])", R"({"time_limit": 500})", "give 1 to 60 seconds"}}) {
    const std::string data = write_data(folder, {good, line(label, metadata), good});
    expect_one_line_failure(run(eval_arguments(data, {"--rm-type", "code", "--dry-run"})), 2, says);
  }
}

// Training takes as many rollouts as there are good lines for.
TEST(Labels, LinesWithTestsThatNobodyCanReadAreCountedWhenAsked) {
  const base::TemporaryDirectory folder;
  const std::string good = R"({"prompt": "say", "label": ["assert f(1) == 2"]})";
  const std::string bad = R"({"prompt": "say", "label": ["assert f(1"]})";
  const std::string data = write_data(folder, {good, bad, good, bad});
  const std::string says = "2 bad lines left out (--skip-bad-lines), the first: " + data +
                           ":2: --rm-type code: a test of the label is no Python";
  const Arguments skip = {"--skip-bad-lines", "--dry-run"};
  Arguments eval = eval_arguments(data, {"--rm-type", "code"});
  eval.insert(eval.end(), skip.begin(), skip.end());
  Arguments train =
      with_flag(with_flag(train_arguments(folder / "run", skip), "--rm-type", "code"), "--prompt-data", data);
  train = with_flag(with_flag(train, "--rollout-batch-size", "2"), "--global-batch-size", "4");
  for (const Arguments& words : {eval, train}) {
    const Captured result = run(words);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_NE(result.err.find(says), std::string::npos) << result.err;
  }
  EXPECT_NE(run(train).out.find("data: 2 prompts"), std::string::npos);
  expect_one_line_failure(run(with_flag(train, "--prompt-data", write_data(folder, {bad}))), 2,
                          "no record to work on: 1 bad line; the first bad one: " + data + ":1: --rm-type code");
  train.erase(std::ranges::find(train, "--skip-bad-lines"));
  expect_one_line_failure(run(with_flag(train, "--prompt-data", write_data(folder, {good, bad}))), 2,
                          "mend or remove the line (--skip-bad-lines counts such lines instead)");
}

TEST(Labels, TheFlagThatWasTypedIsNamed) {
  const base::TemporaryDirectory folder;
  const std::string data = write_data(folder, {R"({"prompt": "say", "label": "4"})"});
  const Arguments exact = {"--rm-type", "exact", "--dry-run"};
  expect_one_line_failure(run(with_flag(eval_arguments(data, exact), "--eval-label-key", "gold")), 2,
                          "the key gold is missing: there are prompt, label, and --rm-type exact compares completions "
                          "with the label - give the "
                          "line one, or name its key with --eval-label-key");
  expect_one_line_failure(run(with_flag(eval_arguments(data, exact), "--label-key", "gold")), 2,
                          "name its key with --label-key or --eval-label-key");
}

TEST(Labels, LinesWithoutOneAreCountedWhenAsked) {
  const base::TemporaryDirectory folder;
  const std::string bad = R"({"prompt": "say", "answer": "4"})";
  const Arguments skip = {"--rm-type", "exact", "--skip-bad-lines", "--dry-run"};
  const std::string data = write_data(folder, {bad, R"({"prompt": "say", "label": "4"})", bad});
  const Captured result = run(eval_arguments(data, skip));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.err.find("2 bad lines left out (--skip-bad-lines), the first: " + data + ":1:1: the key label"),
            std::string::npos)
      << result.err;
  expect_one_line_failure(run(eval_arguments(write_data(folder, {bad, bad}), skip)), 2,
                          "0 blank and 2 bad lines - add JSON lines, or widen the slice; the first bad one: " + data +
                              ":1:1: the key label is missing");
}

TEST(Labels, ReachPythonWithTheirType) {
  const base::TemporaryDirectory folder;
  const std::string data = write_data(
      folder,
      {R"({"prompt": "say", "label": 4, "expected": "4"})", R"({"prompt": "say", "label": 2.5, "expected": "2.5"})",
       R"({"prompt": "say", "label": "4", "expected": "'4'"})",
       R"({"prompt": "say", "label": true, "expected": "True"})",
       R"({"prompt": "say", "label": ["a", 1], "expected": "['a', 1]"})",
       R"({"prompt": "say", "label": {"a": [1]}, "expected": "{'a': [1]}"})",
       R"({"prompt": "say", "label": null, "expected": "None"})", R"({"prompt": "say", "label": "", "expected": "''"})",
       R"({"prompt": "say", "expected": "None"})"});
  base::write_file_durably(folder / "reward.py",
                           "def reward(data_source, solution_str, ground_truth, extra_info):\n"
                           "    return float(repr(ground_truth) == extra_info['expected'])\n");
  const Captured result = run(eval_arguments(data, {"--custom-rm-path", folder / "reward.py:reward"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("eval set: reward 1  pass@1 1"), std::string::npos) << result.out;
  // A key that was asked for and that no line has is reported; the default one may be absent.
  EXPECT_EQ(result.err.find("no line has a label"), std::string::npos) << result.err;
  const Captured slip =
      run(eval_arguments(data, {"--custom-rm-path", folder / "reward.py:reward", "--label-key", "lable", "--dry-run"}));
  EXPECT_EQ(slip.code, 0) << slip.err;
  EXPECT_NE(slip.err.find("no line has a label under lable (--label-key"), std::string::npos) << slip.err;
}

TEST(Labels, LieAlongTheDotsOfTheirKey) {
  const base::TemporaryDirectory folder;
  const std::string data = write_data(
      folder, {R"({"prompt": "say", "reward_model": {"ground_truth": 7}})",
               R"({"prompt": "say", "reward_model.ground_truth": "8", "reward_model": {"ground_truth": 7}})"});
  const Captured result = run(eval_arguments(data, {"--rm-type", "exact", "--label-key", "reward_model.ground_truth",
                                                    "--sample-output", folder / "samples.jsonl"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<base::Json> samples = json_lines(folder / "samples.jsonl");
  ASSERT_EQ(samples.size(), 2U);
  EXPECT_EQ(samples[0]["label"], "7");
  EXPECT_EQ(samples[1]["label"], "8") << "a key of that very name comes first";
  write_data(folder, {R"({"prompt": "say", "reward_model": {"ground_truth": ""}})"});
  expect_one_line_failure(
      run(eval_arguments(data, {"--rm-type", "exact", "--label-key", "reward_model.ground_truth", "--dry-run"})), 2,
      data + ":1:36: reward_model.ground_truth is empty");
}

}  // namespace
}  // namespace tandem::cli
