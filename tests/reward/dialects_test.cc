// Functions of each dialect are given what they should be, and what they write comes back with the grade.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tandem/error.h"
#include "tests/reward/grader_fixture.h"

namespace tandem::reward {
namespace {

GradeRequest written(const std::string& statement) {
  GradeRequest sample = request(1, statement);
  sample.response_tokens = {7, 8, 9};
  return sample;
}

TEST(SlimeDialect, HasAllFlagsInArgs) {
  GraderConfig config = function("published_slime.py:of_args");
  config.arguments = {{"rollout-max-response-len", 12},
                      {"lr", 1e-3},
                      {"colocate", true},
                      {"eval-prompt-data", {"a", "b.jsonl"}},
                      {"rm-type", nullptr}};
  Graders graders(config);
  const Grade grade = grade_one(graders, request(1, ""));
  EXPECT_EQ(grade.reward, 1.0) << grade.reason;
}

TEST(SlimeDialect, GivesBackWhatIsWrittenIntoASample) {
  Graders graders(function("published_slime.py:writes"));
  const Grade nothing = grade_one(graders, written("pass"));
  EXPECT_FALSE(nothing.remove_sample || nothing.loss_mask || nothing.status);

  EXPECT_EQ(grade_one(graders, written("sample.remove_sample = True")).remove_sample, true);
  const std::vector<uint8_t> mask = {0, 1, 1};
  EXPECT_EQ(grade_one(graders, written("sample.loss_mask = [0, 1, True]")).loss_mask, mask);
  EXPECT_EQ(grade_one(graders, written("import numpy; sample.loss_mask = numpy.array([0.0, 1.0, 1.0])")).loss_mask,
            mask);
  EXPECT_EQ(grade_one(graders, written("sample.status = Status.TRUNCATED")).status, "truncated");
  EXPECT_EQ(grade_one(graders, written("sample.status = Status.ABORTED")).status, "aborted");
  EXPECT_EQ(grade_one(graders, written("sample.status = 'aborted'")).status, "aborted");
  GradeRequest truncated = written("sample.status = Sample.Status.COMPLETED");
  truncated.truncated = true;
  EXPECT_EQ(grade_one(graders, truncated).status, "completed");
}

TEST(SlimeDialect, FailsWhereWhatIsWrittenIsWrong) {
  Graders graders(function("published_slime.py:writes"));
  struct Case {
    const char* statement;
    const char* reason_class;
    const char* reason;
  };
  for (const auto& [statement, reason_class, reason] : std::vector<Case>{
           {"sample.loss_mask = [1]", "wrong_type", "loss_mask has 1 values for the 3 tokens"},
           {"sample.loss_mask = [0, 1, 2]", "wrong_type", "loss_mask holds 2; write zeros and ones"},
           {"sample.loss_mask = [0, 1, '1']", "wrong_type", "loss_mask holds '1'"},
           {"sample.loss_mask = 1", "wrong_type", "loss_mask is an int; write a list of 3"},
           {"sample.status = Status.FAILED", "status", "set sample.status to FAILED"},
           {"sample.status = Status.PENDING", "wrong_type", "sample.status is 'pending'"},
           {"sample.status = 7", "wrong_type", "sample.status is 7"},
           {"del sample.status", "wrong_type", "sample.status is 'pending'"},
       }) {
    const Grade grade = grade_one(graders, written(statement));
    EXPECT_EQ(grade.reason_class, reason_class) << statement << ": " << grade.reason;
    EXPECT_NE(grade.reason.find(reason), std::string::npos) << statement << ": " << grade.reason;
    EXPECT_FALSE(grade.loss_mask || grade.status) << statement;
  }
}

TEST(SlimeDialect, GivesBackWhatIsWrittenIntoAGroup) {
  GraderConfig config = function("published_slime.py:writes_into_group");
  config.group_rm = true;
  Graders graders(config);
  graders.submit({written("a"), written("b")});
  const std::vector<Grade> grades = take_all(graders);
  EXPECT_EQ(grades[0].remove_sample, true);
  EXPECT_FALSE(grades[0].loss_mask);
  EXPECT_FALSE(grades[1].remove_sample);
  EXPECT_EQ(grades[1].loss_mask, (std::vector<uint8_t>{0, 1, 1}));
}

TEST(TrlDialect, KeepsWhatAFunctionLogs) {
  Graders graders(function("published_trl.py:with_logs"));
  GradeRequest right = request(1, "\\boxed{2}"), wrong = request(2, "x");
  right.metadata = wrong.metadata = {{"ground_truth", "2"}};
  graders.submit({right, wrong});
  const std::vector<Grade> grades = take_all(graders);
  EXPECT_EQ(grades[0].metrics, (std::map<std::string, std::vector<double>>{{"share right", {0.5}}}));
  EXPECT_TRUE(grades[1].metrics.empty());
  EXPECT_EQ(grades[0].columns, (std::map<std::string, base::Json>{{"expected", "2"}, {"answered", "2"}}));
  EXPECT_EQ(grades[1].columns.at("answered"), "nothing");
}

TEST(TrlDialect, BoundsWhatAFunctionLogs) {
  Graders graders(function("logs.py:logs"));
  const auto grade = [&](const std::string& statement) {
    graders.submit({request(1, statement), request(2, "")});
    return take_all(graders).at(0);
  };
  const Grade kinds = grade("log_extra('a', [1.5, None]); log_extra('b', [{'x': 1}, 2]); log_extra('c', [nan, True])");
  EXPECT_EQ(kinds.columns.at("a"), 1.5);
  EXPECT_EQ(kinds.columns.at("b"), "{'x': 1}");
  EXPECT_EQ(kinds.columns.at("c"), "nan");
  EXPECT_EQ(grade("log_extra('a', ['x' * 5000] * 2)").columns.at("a").get<std::string>().size(), 2000U);
  EXPECT_EQ(grade("log_metric('a', numpy.float32(0.5)); log_metric('a', nan); log_metric('a', True)").metrics,
            (std::map<std::string, std::vector<double>>{{"a", {0.5, 1.0}}}));
  EXPECT_EQ(grade("log_extra('a', [1])").reason, "log_extra('a'): 1 values for 2 samples");
  EXPECT_EQ(grade("log_metric('a', 'b')").reason, "log_metric('a'): the value is a str, not a number");
  EXPECT_EQ(grade("log_metric('a' * 300, 1)").reason_class, "wrong_type");
  EXPECT_EQ(grade("[log_metric(str(i), 1) for i in range(300)]").reason_class, "wrong_type");
  EXPECT_EQ(grade("[log_metric('a', 1) for i in range(5000)]").reason_class, "wrong_type");
}

TEST(TrlDialect, NamesTheLabelByTheLastPartOfItsKey) {
  GraderConfig config = function("published_trl.py:of_a_reference");
  config.label_key = "reward_model.ground_truth";
  Graders graders(config);
  EXPECT_EQ(grade_one(graders, request(1, "\\boxed{2}", "2")).reward, 1.0);
}

TEST(TrlDialect, HasTheDeadlineOfEachSampleForAGroup) {
  GraderConfig config = function("logs.py:takes_its_time");
  config.limits.deadline_s = 0.6;
  Graders graders(config);
  graders.submit({request(1, "0.3"), request(2, "0.3"), request(3, "0.3")});
  for (const Grade& grade : take_all(graders)) EXPECT_EQ(grade.reward, 1.0) << grade.reason;
  graders.submit({request(4, "100"), request(5, "0")});
  for (const Grade& grade : take_all(graders)) {
    EXPECT_NE(grade.reason.find("the deadline of 1.2 s passed"), std::string::npos) << grade.reason;
  }
}

TEST(VerlDialect, ShowsTruncation) {
  Graders graders(function("published_verl.py:of_extra_info"));
  GradeRequest sample = request(1, "");
  sample.metadata = {{"extra_info", {{"index", 1}}}};
  EXPECT_EQ(grade_one(graders, sample).extras.at("truncated"), 0.0);
  sample.truncated = true;
  EXPECT_EQ(grade_one(graders, sample).extras.at("truncated"), 1.0);
  sample.metadata["extra_info"]["truncated"] = 0.5;  // the data's own stays
  EXPECT_EQ(grade_one(graders, sample).extras.at("truncated"), 0.5);
}

// Libraries wrap what the sandbox answers.
TEST(Graders, HintAtTheSandboxWhateverWrapsARefusal) {
  Graders graders(function("refused.py:score"));
  for (const char* way : {"plain", "url", "cause", "context", "args", "reason", "group", "resolve"}) {
    const Grade grade = grade_one(graders, request(1, way));
    EXPECT_NE(grade.reason.find("--rm-sandbox off lifts that"), std::string::npos) << way << ": " << grade.reason;
  }
  for (const char* way : {"value", "loop", "missing_file"}) {
    const Grade grade = grade_one(graders, request(1, way));
    EXPECT_EQ(grade.reason.find("--rm-sandbox"), std::string::npos) << way << ": " << grade.reason;
    EXPECT_EQ(grade.reason_class, "exception") << way;
  }
}

// An error of the code's own is not taken for one of the sandbox.
TEST(Graders, HintAtTheVariablesThatTheSandboxHasNot) {
  ::setenv("FOLDER_OF_A_TEST", "7", 1);
  ::setenv("FOLDER_OF_IMPORT", "data", 1);
  GraderConfig config = function("surroundings.py:score");
  {
    Graders graders(config);
    const auto reason = [&](const std::string& what) { return grade_one(graders, request(1, what)).reason; };
    EXPECT_NE(reason("import").find("--rm-env FOLDER_OF_IMPORT lets"), std::string::npos) << reason("import");
    for (const char* way : {"key", "get", "getenv"})
      EXPECT_NE(reason(way).find("--rm-env FOLDER_OF_A_TEST lets this one through"), std::string::npos) << reason(way);
    EXPECT_EQ(reason("other_key").find("--rm-env"), std::string::npos) << "a key of its own dict";
  }
  config.worker.variables = {"FOLDER_OF_A_TEST"};
  {
    Graders graders(config);
    for (const char* way : {"key", "get"}) EXPECT_EQ(grade_one(graders, request(1, way)).reward, 7.0) << way;
    EXPECT_NE(grade_one(graders, request(1, "import")).reason.find("--rm-env FOLDER_OF_IMPORT"), std::string::npos);
  }
  config = function("surroundings.py:without_lookups");
  config.worker.variables = {"FOLDER_OF_IMPORT"};
  Graders graders(config);
  EXPECT_EQ(grade_one(graders, request(1, "")).reason.find("--rm-env"), std::string::npos);
}

TEST(Graders, CountTheMemoryOfAProcessAndNotItsAddressSpace) {
  for (const worker::Sandbox sandbox : {worker::Sandbox::kAuto, worker::Sandbox::kOff}) {
    GraderConfig config = function("surroundings.py:score");
    config.sandbox = sandbox;
    config.limits.memory_bytes = int64_t{512} << 20;
    Graders graders(config);
    EXPECT_EQ(grade_one(graders, request(1, "code")).reward, 1.0);
    for (const char* bomb : {"own", "list"}) {
      const Grade grade = grade_one(graders, request(2, bomb));
      EXPECT_TRUE(grade.failed) << bomb;
      EXPECT_NE(grade.reason.find("--rm-memory-bytes raises that"), std::string::npos) << bomb << ": " << grade.reason;
    }
    EXPECT_NE(grade_one(graders, request(3, "library")).reason.find("536870912 bytes of memory: --rm-memory-bytes"),
              std::string::npos);
  }
}

// A program that a model wrote, which the reward runs by exec().
TEST(Graders, AForkForEachCallKeepsWhatACallChangesToItself) {
  for (const char* function_name : {"score", "score_async"}) {
    for (const bool forks : {false, true}) {
      GraderConfig config = function(std::string("persist.py:") + function_name);
      config.limits.fork_each_call = forks;
      Graders graders(config);
      for (uint64_t i = 0; i < 16; ++i) {
        graders.submit({request(i, i == 3 ? "globals()['WORTH'] = 1.0" : "pass")});
      }
      double sum = 0.0;
      for (const Grade& grade : take_all(graders)) sum += grade.reward;
      EXPECT_EQ(sum, forks ? 1.0 : 13.0) << function_name;
      EXPECT_EQ(graders.restarts(), 0) << "nothing was lost";
    }
  }
}

TEST(TrlDialect, SaysWhichColumnsItNeeds) {
  const auto columns = [](const std::string& name) { return Graders(function("columns.py:" + name)).columns(); };
  using Names = std::vector<std::string>;
  EXPECT_EQ(columns("plain"), (Names{"labels", "level"}));
  EXPECT_EQ(columns("Callable"), Names{"labels"});
  EXPECT_EQ(columns("partly"), Names{"level"}) << "labels is bound already";
  EXPECT_EQ(columns("concurrent"), Names{"labels"});
  for (const char* name : {"all_that_trl_gives", "with_defaults", "with_rest"})
    EXPECT_EQ(columns(name), Names{}) << name;
  Graders graders(function("columns.py:plain"));
  GradeRequest sample = request(1, "x");
  sample.metadata = {{"labels", "x"}};
  EXPECT_EQ(grade_one(graders, sample).reward, 1.0) << "a level that this line has not is None";
  EXPECT_NE(refusal(function("columns.py:unnamed")).find("the parameter completions cannot be given by its name"),
            std::string::npos);
}

TEST(TrlDialect, TellsHowFarTheRunIs) {
  Graders graders(function("columns.py:of_progress"));
  EXPECT_EQ(grade_one(graders, request(1, "")).reward, -1.0) << "there is no run";
  GradeRequest sample = request(2, "");
  sample.state = {.global_step = 3, .max_steps = 50, .epoch = 0.25, .num_train_epochs = 2};
  EXPECT_DOUBLE_EQ(grade_one(graders, sample).reward, 3 + 0.5 + 0.00025 + 2);
}

TEST(SlimeDialect, TakesAGroupWithItsFlagAlone) {
  GraderConfig one = function("columns.py:of_sample"), group = function("columns.py:of_samples");
  EXPECT_NE(refusal(group).find("takes all samples of a group; add --group-rm"), std::string::npos);
  one.group_rm = true;
  EXPECT_NE(refusal(one).find("takes one sample; leave out --group-rm"), std::string::npos);
}

// A function whose list had another name was given one sample, and failed on every one of them.
TEST(SlimeDialect, KnowsAListOfSamplesByItsNameOrAnnotation) {
  for (const auto& [name, parameter] : {std::pair<std::string, std::string>{"of_sample_list", "sample_list"},
                                        {"of_rollouts", "rollouts"},
                                        {"of_annotated_list", "x"},
                                        {"of_quoted_list", "x"}}) {
    GraderConfig config = function("columns.py:" + name);
    EXPECT_NE(refusal(config).find("a slime function of (args, " + parameter +
                                   ") takes all samples of a group; add --group-rm"),
              std::string::npos)
        << refusal(config);
    config.group_rm = true;
    const Graders graders(config);
  }
  GraderConfig one = function("columns.py:of_annotated_sample"), either = function("columns.py:of_anything");
  Graders(one).columns();
  Graders(either).columns();
  one.group_rm = either.group_rm = true;
  EXPECT_NE(refusal(one).find("(args, rollouts) takes one sample; leave out --group-rm"), std::string::npos);
  Graders(either).columns();
}

class OtherPython : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string script(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }

  std::string folder_ = testing::TempDir() + "other_python_" + std::to_string(::getpid());
  std::string own_ = worker::default_worker_config().python;
};

// An interpreter of one's own, with a package that only it has; a worker that starts afresh runs in it too.
TEST_F(OtherPython, RunsTheReward) {
  std::filesystem::create_directories(folder_ + "/packages");
  std::ofstream(folder_ + "/packages/only_there.py") << "POINTS = 0.375\n";
  for (const char* spec : {"needs_package.py:score", "needs_package_and_thread.py:score"}) {
    GraderConfig config = function(spec);
    EXPECT_NE(refusal(config).find("No module named 'only_there'"), std::string::npos);
    config.python = script("python", "PYTHONPATH=\"$PYTHONPATH:" + folder_ + "/packages\" exec " + own_ + " \"$@\"");
    Graders graders(config);
    EXPECT_EQ(grade_one(graders, request(1, "")).reward, 0.375) << spec;
  }
}

// torch takes more address space than --rm-memory-bytes, and 0.7 GB of its own.
TEST_F(OtherPython, ImportsTorchWithTheDefaultLimits) {
  const char* const named = std::getenv("TANDEM_TORCH_PYTHON");
  std::string with_torch;
  for (const std::string& python :
       {std::string(named == nullptr ? "" : named), own_, std::string("/usr/bin/python3")}) {
    if (!with_torch.empty() || python.empty()) continue;
    if (std::system(("'" + python + "' -c 'import torch' >/dev/null 2>&1").c_str()) == 0) with_torch = python;
  }
  ASSERT_TRUE(named == nullptr || with_torch == named) << "TANDEM_TORCH_PYTHON: " << named << " cannot import torch";
  if (with_torch.empty()) {
    GTEST_SKIP() << "NOT TRIED: `import torch` in a reward. No interpreter here has torch; name one that has: "
                    "TANDEM_TORCH_PYTHON=VENV/bin/python";
  }
  GraderConfig config = function("imports_torch.py:score");
  config.python = with_torch;
  config.limits = {};
  Graders graders(config);
  EXPECT_EQ(grade_one(graders, request(1, "four")).reward, 5.0);
}

TEST_F(OtherPython, IsRefusedInALine) {
  GraderConfig config = function("dialects.py:compute_score");
  config.python = folder_ + "/nowhere";
  EXPECT_NE(refusal(config).find("/nowhere: No such file or directory; name a Python interpreter"), std::string::npos);
  config.python = folder_;
  EXPECT_NE(refusal(config).find("--rm-python " + folder_ + ": Permission denied"), std::string::npos);
  config.python = script("no_python", "echo not Python; exit 1");
  EXPECT_NE(refusal(config).find("no_python: cannot run reward code: grader worker"), std::string::npos);
  EXPECT_NE(refusal(config).find("its last line: not Python"), std::string::npos);
  config.python =
      script("old", "exec " + own_ +
                        " -c 'import sys; sys.version_info = (3, 8, 1); sys.argv = [\"-m\"]; import tandem_worker'");
  EXPECT_TRUE(refusal(config).ends_with("reward code needs Python 3.9 or newer, and this is 3.8.1")) << refusal(config);
  config = rule("math");
  config.python = script("bare", "exec " + own_ + " -S \"$@\"");
  EXPECT_NE(refusal(config).find("bare: --rm-type math needs the package math-verify"), std::string::npos);
}

}  // namespace
}  // namespace tandem::reward
