// A teacher in a process of its own, through the program: what `tandem scorer` scores is what a teacher in the run's
// process scores, bit for bit, whoever scores and whoever is killed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "mesh/network.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/ranks/rank_runs.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

const std::string kStudent = "tests/golden/models/qwen2-tied", kTeacher = kModel;

class ScorerRuns : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new base::TemporaryDirectory();
    const Captured here = run(arguments("here", {"--opd-teacher-load", kTeacher}));
    ASSERT_EQ(here.code, 0) << here.err;
  }
  static void TearDownTestSuite() { delete folder_; }

  static std::string path(const std::string& name) { return *folder_ / name; }
  // Returns a name that no other test's process has.
  static std::string place(const std::string& name) { return fmt::format("test-{}-{}", getpid(), name); }

  static Arguments arguments(const std::string& name, const Arguments& more) {
    Arguments words = with_custom_reward(
        train_arguments(path(name), {"--use-opd", "--opd-kl-coef", "0.5", "--dtype", "float32", "--seed", "3"}),
        write_reward(*folder_));
    words = with_flag(words, "--hf-checkpoint", kStudent);
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static Arguments asking(const std::string& name, Arguments addresses, const Arguments& more = {}) {
    addresses.insert(addresses.begin(), "--opd-teacher-address");
    addresses.insert(addresses.end(), more.begin(), more.end());
    return arguments(name, addresses);
  }
  static Arguments scorer(const std::string& address, const std::string& model = kTeacher, const Arguments& more = {}) {
    Arguments words = {"scorer", "--hf-checkpoint", model,  "--dtype", "float32", "--num-threads",
                       "1",      "--listen",        address};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static void expect_same_as_here(const std::string& name) {
    EXPECT_EQ(metrics_of(path(name)), metrics_of(path("here")));
    EXPECT_EQ(weights_of(path(name)), weights_of(path("here")));
  }
  static bool says(const std::string& file, const std::string& text) {
    return base::file_exists(file) && base::read_file(file).find(text) != std::string::npos;
  }
  static void wait_until_said(const std::string& file, const std::string& text) {
    for (int tries = 0; tries < 60'000 && !says(file, text); ++tries) usleep(1'000);
    ASSERT_TRUE(says(file, text)) << text << " in " << file;
  }
  // A run that waits for a few seconds only is started when the process has loaded its model.
  static void wait_until_ready(const std::string& scorer_log) { wait_until_said(path(scorer_log), "scores at "); }

 private:
  static base::TemporaryDirectory* folder_;
};
base::TemporaryDirectory* ScorerRuns::folder_ = nullptr;

// The run is started first: it waits for its teacher.
TEST_F(ScorerRuns, GiveTheBitsOfATeacherInTheRun) {
  const std::string address = place("one");
  const Program run(asking("elsewhere", {address}), 0, path("elsewhere.err"));
  const Program scores(scorer(address, kTeacher, {"--max-tokens-per-gpu", "60"}), 0, path("one.err"));
  EXPECT_EQ(run.wait(), 0) << base::read_file(path("elsewhere.err"));
  expect_same_as_here("elsewhere");
  scores.signal(SIGTERM);
  EXPECT_EQ(scores.wait(), 0);
  const std::string said = base::read_file(path("one.err"));
  EXPECT_NE(said.find("scores for the run of process "), std::string::npos) << said;
  EXPECT_NE(said.find("has gone; 24 samples were scored for it"), std::string::npos) << said;
}

// A further sequence of a sample sees neither its prompt nor what came before.
TEST_F(ScorerRuns, ScoreSeveralSequencesOfASampleAsTheRunWould) {
  const Arguments turns = {"--custom-generate-function-path", "tests/cli/generate/turns.py:two_samples",
                           "--custom-generate-max-sequences", "2"};
  Arguments local = turns;
  local.insert(local.end(), {"--opd-teacher-load", kTeacher});
  const Captured here = run(arguments("turns_here", local));
  ASSERT_EQ(here.code, 0) << here.err;
  const std::string address = place("turns");
  const Program scores(scorer(address), 0, path("turns.err"));
  const Captured result = run(asking("turns", {address}, turns));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(metrics_of(path("turns")), metrics_of(path("turns_here")));
  EXPECT_EQ(weights_of(path("turns")), weights_of(path("turns_here")));
}

TEST_F(ScorerRuns, SeveralShareTheSamplesOfARunOfTwoRanks) {
  const std::string first = place("first"), second = place("second");
  const Program one(scorer(first, kTeacher, {"--max-tokens-per-gpu", "60"}), 0, path("first.err"));
  const Program two(scorer(second, kTeacher, {"--max-tokens-per-gpu", "60"}), 0, path("second.err"));
  const Captured result = run_program(with_ranks(asking("ranks", {first, second}), 2));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(weights_of(path("ranks")), weights_of(path("here")));
  for (const char* const file : {"first.err", "second.err"}) EXPECT_TRUE(says(path(file), "has gone")) << file;
}

// One is killed while a run of many rollouts goes on, and the other one scores its samples; when that one is killed
// too, the run waits until one is back.
TEST_F(ScorerRuns, WhatIsKilledIsMissedAndWaitedFor) {
  const auto many = [&](const Arguments& words) { return with_flag(words, "--num-rollout", "40"); };
  const Captured here = run(many(arguments("here40", {"--opd-teacher-load", kTeacher})));
  ASSERT_EQ(here.code, 0) << here.err;
  const std::string first = place("k1"), second = place("k2");
  auto one = std::make_unique<Program>(scorer(first), 0, path("k1.err"));
  auto two = std::make_unique<Program>(scorer(second), 0, path("k2.err"));
  const Program run(many(asking("killed", {first, second}, {"--save-interval", "1"})), 0, path("killed.err"));
  wait_until_said(path("killed/metrics.jsonl"), "\"rollout/step\"");
  one->signal(SIGKILL);
  one->wait();
  wait_until_said(path("killed.err"), "the others score its samples");
  two->signal(SIGKILL);
  two->wait();
  wait_until_said(path("killed.err"), "the run waits for it");
  EXPECT_FALSE(run.wait_for(0.3)) << base::read_file(path("killed.err"));
  two = std::make_unique<Program>(scorer(second), 0, path("k3.err"));
  EXPECT_EQ(run.wait(), 0) << base::read_file(path("killed.err"));
  EXPECT_EQ(weights_of(path("killed")), weights_of(path("here40")));
  EXPECT_TRUE(says(path("killed/metrics.jsonl"), "\"fault/lost_scorers\""));
}

// With nobody to score, Ctrl-C ends the run at what is saved, and it resumes.
TEST_F(ScorerRuns, ARunThatWaitsForItsTeacherCanBeStopped) {
  const std::string address = place("stop");
  auto scores = std::make_unique<Program>(scorer(address), 0, path("stop.err"));
  {
    const Program run(with_flag(asking("stopped", {address}, {"--save-interval", "1"}), "--num-rollout", "2000"), 0,
                      path("stopped.err"));
    wait_until_said(path("stopped/metrics.jsonl"), "\"rollout/step\"");
    scores->signal(SIGKILL);
    scores->wait();
    wait_until_said(path("stopped.err"), "the run waits for it");
    run.signal(SIGINT);
    EXPECT_EQ(run.wait(), 130) << base::read_file(path("stopped.err"));
  }
  scores = std::make_unique<Program>(scorer(address), 0, path("stop2.err"));
  wait_until_ready("stop2.err");
  Arguments rest = with_flag(asking("stopped", {address}), "--num-rollout", "2000");
  rest.insert(rest.end(), {"--load", path("stopped"), "--dry-run"});
  const Captured result = run(rest);
  EXPECT_EQ(result.code, 0) << result.err;
}

// The rollouts before it are saved, though no save was due, and what was warned of at the start is in the log.
TEST_F(ScorerRuns, ARunThatLosesItsTeacherForGoodSavesWhatItHas) {
  const std::string address = place("lost");
  const auto scores = std::make_unique<Program>(scorer(address), 0, path("lost_scorer.err"));
  wait_until_ready("lost_scorer.err");
  const Program run(with_flag(asking("lost", {address},
                                     {"--save-interval", "1000", "--distributed-timeout-minutes", "0.1",
                                      "--use-kl-loss", "--kl-loss-coef", "0.01", "--kl-loss-type", "k2"}),
                              "--num-rollout", "2000"),
                    0, path("lost.err"));
  wait_until_said(path("lost/metrics.jsonl"), "\"rollout/step\"");
  scores->signal(SIGKILL);
  EXPECT_EQ(run.wait(), 3);
  const std::string said = base::read_file(path("lost.err"));
  EXPECT_NE(said.find("no process scores at"), std::string::npos) << said;
  int64_t finished = 0;
  for (const base::Json& record : json_lines(path("lost/metrics.jsonl"))) finished += record.contains("rollout/step");
  EXPECT_TRUE(base::directory_exists(path(fmt::format("lost/checkpoints/step_{:06}", finished)))) << finished;
  EXPECT_NE(said.find("--kl-loss-type k2"), std::string::npos) << said;
  EXPECT_TRUE(says(path("lost/log.txt"), "warning: --kl-loss-type k2")) << base::read_file(path("lost/log.txt"));
}

TEST_F(ScorerRuns, WhoDoesNotFitIsRefusedInALine) {
  const std::string address = place("refused");
  const Program scores(scorer(address, kStudent), 0, path("refused.err"));
  // The student's own model is its teacher here, and this run's model has more ids than it.
  Captured result = run(with_flag(asking("refused", {address}), "--hf-checkpoint", kTeacher));
  expect_one_line_failure(result, 2, "has a vocabulary of 504 tokens, the run's --hf-checkpoint one of 512");
  result = run(with_flag(asking("refused", {address}), "--rollout-max-response-len", "100000"));
  EXPECT_EQ(result.code, 2) << result.err;
  const std::string other = place("tokenizer");
  const Program others(scorer(other, "tests/golden/models/qwen3-moe"), 0, path("tokenizer.err"));
  wait_until_ready("tokenizer.err");
  expect_one_line_failure(run(asking("refused", {other})), 2, "has other tokens than that of the run's");
  expect_one_line_failure(run(asking("refused", {other, address})), 2, "--opd-teacher-address");
  expect_one_line_failure(run(asking("refused", {"a b"})), 2, "--opd-teacher-address a b: is no address");
  expect_one_line_failure(run(asking("refused", {"127.0.0.1:1"})), 2, "whoever is at the other end would be");
  expect_one_line_failure(run(asking("refused", {place("nobody")}, {"--dry-run"})), 3,
                          "(nobody listens there); start `tandem scorer` there (waited for 5 s");
  expect_one_line_failure(run(scorer(address, kStudent)), 3,
                          "--listen " + address +
                              ": another process listens there already; is a tandem scorer with this --listen running "
                              "already?");
  expect_one_line_failure(run(scorer("127.0.0.1:1", kStudent)), 2, "--listen 127.0.0.1:1: whoever is at");
  expect_one_line_failure(run(scorer("203.0.113.9:29799", kStudent, {"--trust-network"})), 2,
                          "cannot listen at 203.0.113.9:29799: no interface of this machine has that address; give one "
                          "of its own (--listen)");
  expect_one_line_failure(run(scorer("29701", kStudent)), 2,
                          "--listen 29701: is a number alone; give HOST:29701 with the name or address of the machine");
  EXPECT_EQ(run(scorer(place("dry"), kStudent, {"--dry-run"})).code, 0);
  const std::string adapter = "tests/golden/lora";
  result = run(scorer(place("dry"), adapter, {"--dry-run"}));
  EXPECT_NE(result.out.find("it would score with " + adapter + " at "), std::string::npos) << result.out << result.err;
}

// Models of one shape are told apart by their weights: by the processes of a teacher, and by a run that resumes. Where
// they are is no part of a run.
TEST_F(ScorerRuns, OtherWeightsAreAnotherTeacher) {
  const std::string other = path("other"), file = other + "/model.safetensors";
  std::filesystem::copy(kTeacher, other);
  std::string bytes = base::read_file(file);
  bytes[bytes.size() - 2] = static_cast<char>(bytes[bytes.size() - 2] ^ 1);
  base::write_file_durably(file, bytes);
  const std::string first = place("w1"), second = place("w2");
  const Arguments words = asking("weights", {first}, {"--save-interval", "1"});
  {
    const Program one(scorer(first), 0, path("w1.err"));
    const Program two(scorer(second, other), 0, path("w2.err"));
    wait_until_ready("w1.err");
    wait_until_ready("w2.err");
    expect_one_line_failure(run(asking("refused", {first, second}, {"--dry-run"})), 2,
                            "give all processes of a teacher the same model and --dtype");
    ASSERT_EQ(run(with_flag(words, "--num-rollout", "1")).code, 0);
  }
  const Program changed(scorer(first, other), 0, path("w3.err")), moved(scorer(second), 0, path("w4.err"));
  wait_until_ready("w3.err");
  wait_until_ready("w4.err");
  Arguments rest = with_flag(words, "--load", path("weights"));
  rest.emplace_back("--dry-run");
  const Captured elsewhere = run(with_flag(rest, "--opd-teacher-address", second));
  EXPECT_EQ(elsewhere.code, 0) << elsewhere.err;
  expect_one_line_failure(run(rest), 2, "the weights of the teacher --opd-teacher-address was ");
  rest.emplace_back("--allow-changed-config");
  const Captured result = run(rest);
  EXPECT_EQ(result.code, 0) << result.err;
}

// Over the network with a secret, which both ends need.
TEST_F(ScorerRuns, OverTheNetworkWithASecret) {
  const auto write_secret = [](const std::string& file, const std::string& text) {
    base::write_file_durably(file, text);
    chmod(file.c_str(), 0600);
  };
  write_secret(path("secret"), "0123456789abcdef0123456789abcdef");
  write_secret(path("wrong"), "fedcba9876543210fedcba98765432100");
  const int port = [] {
    const mesh::OwnedDescriptor free = mesh::listen_at("127.0.0.1", 0);
    return mesh::port_of(free);
  }();
  const std::string address = fmt::format("127.0.0.1:{}", port);
  setenv("TANDEM_SECRET_FILE", path("secret").c_str(), 1);
  const Program scores(scorer(address), 0, path("tls.err"));
  wait_until_ready("tls.err");
  // By another name of the same place it is found over the network alone.
  const std::string other = fmt::format("localhost:{}", port);
  EXPECT_EQ(run_program(asking("tls", {other})).code, 0);
  expect_same_as_here("tls");
  setenv("TANDEM_SECRET_FILE", path("wrong").c_str(), 1);
  const Captured result =
      run_program(with_flag(asking("other-secret", {other}), "--distributed-timeout-minutes", "0.05"));
  expect_one_line_failure(result, 2,
                          "--opd-teacher-address " + other +
                              ": TANDEM_SECRET_FILE: the other end has another secret; give all the same file");
  unsetenv("TANDEM_SECRET_FILE");
  expect_same_as_here("tls");
}

}  // namespace
}  // namespace tandem::cli
