// On-policy distillation through the program: what teachers score, what becomes of it when a run is offloaded, resumed
// or given several teachers, and which teachers are refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

// The student's vocabulary has fewer ids than its teacher's, which is of another family: both have one tokenizer.
const std::string kStudent = "tests/golden/models/qwen2-tied", kTeacher = kModel;
const std::string kOtherTokenizer = "tests/golden/models/qwen3-moe";

class DistillationRuns : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ / name; }

  Arguments arguments(const std::string& name, const Arguments& more) const {
    Arguments words =
        with_custom_reward(train_arguments(path(name), {"--use-opd", "--save-interval", "1"}), write_reward(folder_));
    words = with_flag(words, "--hf-checkpoint", kStudent);
    words.insert(words.end(), {"--save-debug-rollout-data", path(name + "/{rollout_id}.jsonl")});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  void train(const std::string& name, const Arguments& more) const {
    const Captured result = run(arguments(name, more));
    ASSERT_EQ(result.code, 0) << name << ": " << result.err;
  }

  // Returns the records of the run that have this key.
  std::vector<base::Json> records(const std::string& name, const std::string& key) const {
    std::vector<base::Json> result;
    for (base::Json& record : json_lines(path(name + "/metrics.jsonl"))) {
      if (record.contains(key)) result.push_back(std::move(record));
    }
    return result;
  }

  // Returns the log-probs of a rollout's samples by `tandem score`, which knows nothing of teachers.
  std::vector<base::Json> scores(const std::string& model, const std::vector<base::Json>& samples) const {
    std::string lines;
    for (const base::Json& sample : samples) {
      auto tokens = sample.at("prompt_tokens").get<std::vector<int32_t>>();
      const size_t prompt_length = tokens.size();
      for (const base::Json& id : sample.at("response_tokens")) tokens.push_back(id.get<int32_t>());
      lines += base::dump_json({{"tokens", tokens}, {"prompt_length", prompt_length}}) + "\n";
    }
    base::write_file_durably(path("asked.jsonl"), lines);
    const Captured result = run({"score", "--hf-checkpoint", model, "--dtype", "float32", "--prompt-data",
                                 path("asked.jsonl"), "--output", path("scored.jsonl")});
    EXPECT_EQ(result.code, 0) << result.err;
    return json_lines(path("scored.jsonl"));
  }

  base::TemporaryDirectory folder_;
};

TEST_F(DistillationRuns, TheTeacherScoresAsTandemScoreDoesAndAdvantagesLoseTheKl) {
  train("run",
        {"--opd-teacher-load", kTeacher, "--opd-kl-coef", "0.5", "--no-opd-use-task-rewards", "--dtype", "float32"});
  const std::vector<base::Json> samples = json_lines(path("run/0.jsonl")), scored = scores(kTeacher, samples);
  ASSERT_EQ(samples.size(), 12U);
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto sampled = samples[i].at("rollout_log_probs").get<std::vector<float>>();
    const auto taught = samples[i].at("teacher_log_probs").get<std::vector<float>>();
    const auto advantages = samples[i].at("advantages").get<std::vector<double>>();
    EXPECT_EQ(taught, scored[i].at("log_probs").get<std::vector<float>>()) << i;
    ASSERT_EQ(advantages.size(), taught.size());
    for (size_t t = 0; t < taught.size(); ++t)
      EXPECT_NEAR(advantages[t], -0.5 * (double{sampled[t]} - double{taught[t]}), 1e-12);
  }
  const std::vector<base::Json> steps = records("run", "train/opd_reverse_kl");
  ASSERT_EQ(steps.size(), 4U);
  EXPECT_GT(steps[0].at("train/opd_reverse_kl").get<double>(), 0.0);
  EXPECT_EQ(steps[0].at("train/train_rollout_logprob_abs_diff"), 0.0);
  EXPECT_FALSE(steps[0].contains("train/opd_loss")) << "no distribution is compared";
  const std::vector<base::Json> rollouts = records("run", "rollout/step");
  EXPECT_EQ(rollouts.at(0).at("rollout/opd_advantage_share"), 1.0);
  EXPECT_LT(rollouts[0].at("rollout/teacher_log_probs").get<double>(), 0.0);
  EXPECT_TRUE(rollouts[0].contains("perf/teacher_log_probs_time"));
  EXPECT_GT(rollouts[0].at("rollout/raw_reward").get<double>(), 0.0) << "rewards are still reported";
}

TEST_F(DistillationRuns, ResidentOffloadedAndResumedAreTheSameBits) {
  const Arguments flags = {"--opd-teacher-load", kTeacher, "--opd-loss-coef", "0.3",
                           "--opd-beta",         "0.5",    "--opd-top-k",     "20"};
  train("whole", flags);
  EXPECT_GT(records("whole", "train/opd_loss").at(0).at("train/opd_loss").get<double>(), 0.0);
  Arguments offloaded = flags;
  offloaded.emplace_back("--offload-teacher");
  train("offloaded", offloaded);
  EXPECT_EQ(timeless_metrics(path("offloaded")), timeless_metrics(path("whole")));
  EXPECT_EQ(weights_of(path("offloaded")), weights_of(path("whole")));
  ASSERT_EQ(run(with_flag(arguments("resumed", flags), "--num-rollout", "1")).code, 0);
  Arguments rest = arguments("resumed", flags);
  rest.insert(rest.end(), {"--load", path("resumed")});
  const Captured result = run(rest);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(timeless_metrics(path("resumed")), timeless_metrics(path("whole")));
  EXPECT_EQ(weights_of(path("resumed")), weights_of(path("whole")));
  // Another coefficient is another run.
  rest = with_flag(rest, "--opd-beta", "1");
  expect_one_line_failure(run(rest), 2, "--opd-beta");
}

TEST_F(DistillationRuns, AResumeNeedsTheWeightsOfItsTeacher) {
  const std::string teacher = path("teacher"), file = teacher + "/model.safetensors";
  std::filesystem::copy(kTeacher, teacher);
  const Arguments words = arguments("run", {"--opd-teacher-load", teacher});
  ASSERT_EQ(run(with_flag(words, "--num-rollout", "1")).code, 0);
  std::string bytes = base::read_file(file);
  bytes[bytes.size() - 2] = static_cast<char>(bytes[bytes.size() - 2] ^ 1);
  base::write_file_durably(file, bytes);
  expect_one_line_failure(run(with_flag(words, "--load", path("run"))), 2,
                          "the weights of the teacher --opd-teacher-load was ");
}

// A group of one has no advantage, and whole distributions of a teacher train it all the same.
TEST_F(DistillationRuns, SamplesThatTheTeacherAloneTrainsAreNotSaidToGiveNoSignal) {
  Arguments words = arguments("single", {"--opd-teacher-load", kTeacher, "--opd-loss-coef", "0.3", "--opd-kl-coef", "0",
                                         "--no-opd-use-task-rewards"});
  words = with_flag(with_flag(words, "--n-samples-per-prompt", "1"), "--global-batch-size", "3");
  const Captured result = run(with_flag(words, "--num-rollout", "1"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out.find("no signal"), std::string::npos) << result.out;
  const std::vector<base::Json> rollouts = records("single", "rollout/step");
  EXPECT_EQ(rollouts.at(0).at("rollout/groups_without_signal"), 0.0);
  EXPECT_GT(records("single", "train/opd_loss").at(0).at("train/grad_norm").get<double>(), 0.0);
}

TEST_F(DistillationRuns, EachLineHasTheTeacherThatItNames) {
  std::string lines;
  for (int i = 0; i < 6; ++i) {
    base::Json line = {{"prompt", {{{"role", "user"}, {"content", "What is " + std::to_string(i) + "+1?"}}}},
                       {"label", std::to_string(i + 1)}};
    if (i % 2 == 0) {
      line["metadata"] = {{"source", "even"}};
    } else {
      line["source"] = "odd";
    }
    lines += base::dump_json(line) + "\n";
  }
  base::write_file_durably(path("prompts.jsonl"), lines);
  const Arguments flags = {"--opd-teacher-load",
                           "odd=" + kTeacher,
                           "even=" + kStudent,
                           "--opd-teacher-key",
                           "source",
                           "--opd-loss-coef",
                           "0.3",
                           "--dtype",
                           "float32"};
  const Captured result = run(with_flag(arguments("run", flags), "--prompt-data", path("prompts.jsonl")));
  ASSERT_EQ(result.code, 0) << result.err;
  const base::Json first = records("run", "rollout/step").at(0);
  EXPECT_EQ(first.at("rollout/opd_samples/odd"), 4.0);
  EXPECT_EQ(first.at("rollout/opd_samples/even"), 8.0);
  EXPECT_EQ(first.at("rollout/opd_reverse_kl/even"), 0.0) << "the student is its own teacher there";
  EXPECT_GT(first.at("rollout/opd_reverse_kl/odd").get<double>(), 0.0);
  const std::vector<base::Json> samples = json_lines(path("run/0.jsonl")), scored = scores(kTeacher, samples);
  for (size_t i = 4; i < 8; ++i)
    EXPECT_EQ(samples[i].at("teacher_log_probs"), scored[i].at("log_probs")) << "a sample of the second line";

  base::write_file_durably(path("prompts.jsonl"), lines + R"({"prompt": "1+1?", "label": "2", "source": "other"})"
                                                          "\n");
  const Arguments words = with_flag(arguments("none", flags), "--prompt-data", path("prompts.jsonl"));
  expect_one_line_failure(run(words), 2,
                          "prompts.jsonl:7: source: no teacher of --opd-teacher-load has the name 'other'");
  base::write_file_durably(path("prompts.jsonl"), R"({"prompt": "1+1?", "label": "2"})"
                                                  "\n");
  expect_one_line_failure(run(words), 2,
                          "prompts.jsonl:1: source: the line names no teacher; give it one of odd, even");
}

// The key is looked up as those of prompts and labels are.
TEST_F(DistillationRuns, TheKeyOfATeacherMayBeAPathInALine) {
  const auto write = [&](const std::string& lines) { base::write_file_durably(path("prompts.jsonl"), lines); };
  const Arguments words = with_flag(arguments("run", {"--opd-teacher-load", "odd=" + kTeacher, "even=" + kStudent,
                                                      "--opd-teacher-key", "extra.teacher", "--dry-run"}),
                                    "--prompt-data", path("prompts.jsonl"));
  const std::string in_line = R"({"prompt": "1+1?", "label": "2", "extra": {"teacher": "odd"}})"
                              "\n";
  const std::string in_metadata = R"({"prompt": "1+2?", "label": "3", "metadata": {"extra": {"teacher": "even"}}})"
                                  "\n";
  const std::string whole_key = R"({"prompt": "1+3?", "label": "4", "extra.teacher": "odd", "extra": 7})"
                                "\n";
  write(in_line + in_metadata + whole_key);
  const Captured result = run(words);
  EXPECT_EQ(result.code, 0) << result.err;
  write(in_line + R"({"prompt": "1+1?", "label": "2", "extra": {"teacher": "other"}})" + "\n");
  expect_one_line_failure(run(words), 2,
                          "prompts.jsonl:2: extra.teacher: no teacher of --opd-teacher-load has the name 'other'");
  write(in_line + R"({"prompt": "1+1?", "label": "2", "extra": "odd"})" + "\n");
  expect_one_line_failure(run(words), 2, "prompts.jsonl:2: extra.teacher: the line names no teacher; give it one of ");
}

TEST_F(DistillationRuns, ATeacherThatCannotTeachIsRefusedBeforeAnythingIsRead) {
  const auto refused = [&](const Arguments& more, const std::string& says) {
    expect_one_line_failure(run(arguments("refused", more)), 2, says);
  };
  refused({}, "--use-opd: needs --opd-teacher-load");
  refused({"--opd-teacher-load", path("nowhere")}, "nowhere: no such directory; name a Hugging Face model directory");
  refused({"--opd-teacher-load", kOtherTokenizer}, "its tokenizer has another token ");
  refused({"--opd-teacher-load", kTeacher, "--hf-checkpoint", kTeacher, "--offload-teacher", "--no-use-opd"},
          "--opd-teacher-load: does nothing without --use-opd");
  expect_one_line_failure(
      run(with_flag(arguments("refused", {"--opd-teacher-load", kStudent}), "--hf-checkpoint", kTeacher)), 2,
      "has a vocabulary of 504 tokens, --hf-checkpoint one of 512");
  refused({"--opd-teacher-load", kTeacher, "--opd-loss-coef", "1", "--tensor-model-parallel-size", "2"},
          "--opd-loss-coef and --tensor-model-parallel-size 2");
  // A teacher whose context is shorter than a sample may be.
  base::make_directories(path("short"));
  for (const std::string& name : base::list_directory(kTeacher))
    base::write_file_durably(path("short/" + name), base::read_file(kTeacher + "/" + name));
  base::Json config = base::read_json_file(kTeacher + "/config.json");
  config["max_position_embeddings"] = 20;
  base::write_file_durably(path("short/config.json"), config.dump());
  refused({"--opd-teacher-load", path("short")}, "has a context of 20 tokens, and a sample may have ");
}

TEST(DistillationPlan, HasTheTeacherWithoutReadingAWeight) {
  const Arguments plan = {"plan", "--hf-checkpoint", kStudent, "--rollout-batch-size", "4", "--json"};
  const auto bytes = [&](const Arguments& more) {
    Arguments words = plan;
    words.insert(words.end(), more.begin(), more.end());
    const Captured result = run(words);
    EXPECT_EQ(result.code, 0) << result.err;
    const base::Json tags = base::parse_json(result.out, "plan").at("ranks")[0].at("phases").at("train").at("tags");
    return tags.contains("reference") ? tags.at("reference").get<int64_t>() : 0;
  };
  EXPECT_EQ(bytes({}), 0);
  const int64_t one = bytes({"--use-opd", "--opd-teacher-load", kTeacher});
  EXPECT_GT(one, 0);
  EXPECT_EQ(bytes({"--use-opd", "--opd-teacher-load", "a=" + kTeacher, "b=" + kTeacher, "--opd-teacher-key", "k"}),
            2 * one);
}

// Lines need no label, and nothing else that a reward would look at.
TEST_F(DistillationRuns, ATeacherAloneNeedsNoReward) {
  base::write_file_durably(path("prompts.jsonl"), "{\"prompt\": \"a b\"}\n{\"prompt\": \"c\"}\n");
  const Arguments words = {"train",
                           "--colocate",
                           "--hf-checkpoint",
                           kStudent,
                           "--prompt-data",
                           path("prompts.jsonl"),
                           "--rollout-batch-size",
                           "2",
                           "--n-samples-per-prompt",
                           "2",
                           "--num-rollout",
                           "1",
                           "--rollout-max-response-len",
                           "6",
                           "--use-opd",
                           "--opd-teacher-load",
                           kTeacher,
                           "--no-opd-use-task-rewards",
                           "--no-use-tensorboard",
                           "--save",
                           path("run")};
  expect_one_line_failure(run(words), 2, "--rm-type none where a teacher alone is learnt from");
  Arguments none = words;
  none.insert(none.end(), {"--rm-type", "none"});
  const Captured result = run(none);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err.find("warning"), std::string::npos) << result.err;
  EXPECT_GT(records("run", "train/step").front()["train/grad_norm"].get<double>(), 0.0);
}

}  // namespace
}  // namespace tandem::cli
