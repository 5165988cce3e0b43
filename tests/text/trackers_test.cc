// Metrics arrive in the files of each tracker, which its own package reads; nothing else leaves, no key is kept, and
// what the package cannot keep is counted. The package of W&B must be there (tools/setup.sh wandb, which `make test`
// calls): without it these tests fail.
#include "text/trackers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"
#include "tests/base/variable.h"
#include "tests/cli/workers/process_sockets.h"
#include "tests/text/tracker_packages.h"
#include "tests/worker/process_facts.h"
#include "worker/child_environment.h"

namespace tandem::text {
namespace {

using base::Variable;

// Returns what a script of tests/text prints, which reads a folder through the package itself.
base::Json read_by(const std::string& script, const std::string& folder) {
  const std::string command =
      fmt::format("{} tests/text/{} {} 2>/dev/null", worker::default_worker_config().python, script, folder);
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::string text;
  for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
  ::pclose(pipe);
  return base::Json::parse(text);
}

// Returns what check_tracker() says, or "".
std::string refusal_of(const worker::WorkerConfig& config, TrackerKind kind, const base::Json& tracker_config) {
  return base::thrown_by<EnvironmentError>([&] { check_tracker(config, kind, tracker_config); });
}

// Returns the settings of an interpreter that finds no package of .venv.
worker::WorkerConfig without_packages(const base::TemporaryDirectory& folder) {
  worker::WorkerConfig bare = worker::default_worker_config();
  const std::string script = folder / "python";
  base::write_file_durably(script, "#!/bin/sh\nexec '" + bare.python + "' -S \"$@\"\n");
  EXPECT_EQ(::chmod(script.c_str(), 0755), 0);
  bare.python = script;
  return bare;
}

// Writes large records until the sink has dropped one. Returns their number.
int write_until_dropped(MetricSink& sink) {
  constexpr int kMaxRecords = 40, kMetrics = 2000;
  for (int step = 10; step < kMaxRecords; ++step) {
    std::map<std::string, double> values = {{"train/step", step}};
    for (int i = 0; i < kMetrics; ++i) values[fmt::format("train/a_long_name_of_a_metric_{}", i)] = i / 3.0;
    sink.write(step, values);
    sink.flush(60);
    if (sink.dropped() > 0) return step - 9;
  }
  return kMaxRecords;
}

class WandbSink : public testing::Test {
 protected:
  TrackerRun run_named(const std::string& id) const { return run_in(folder_.path(), id); }
  static TrackerRun run_in(const std::string& directory, const std::string& id) {
    WandbConfig wandb;
    wandb.mode = "offline";
    wandb.project = "arithmetic";
    wandb.group = "sums";
    wandb.directory = directory;
    return {.kind = TrackerKind::kWandb,
            .config = tracker_config(wandb),
            .run_id = id,
            .name = "sums_" + id,
            .options = {{"lr", 1e-4}, {"n-samples-per-prompt", 8}}};
  }

  // Returns what the package itself finds in the folder.
  base::Json read_back() const { return read_by("read_wandb.py", folder_.path()); }

  base::TemporaryDirectory folder_;
  Variable home_{"HOME", folder_.path().c_str()};  // whose .netrc may hold a key
  Variable key_{"WANDB_API_KEY", nullptr};
  Variable mode_{"WANDB_MODE", nullptr};
};

TEST_F(WandbSink, WritesWhatThePackageReads) {
  const int descriptors = worker::num_descriptors();
  {
    MetricSink sink(tracker_target(worker::default_worker_config(), run_named("abcd1234")));
    sink.write(0, {{"train/step", 0.0}, {"train/loss", 0.5}});
    sink.write(0, {{"rollout/step", 0.0}, {"rollout/raw_reward", HUGE_VAL}, {"perf/rollout_time", 2.0}});
    sink.flush(60);
    // Returns what it holds open while it works: nothing that reaches another machine, nor that another could reach.
    for (const std::string& pid : cli::process_tree(::getpid())) {
      for (const cli::InternetSocket& socket : cli::internet_sockets(pid)) {
        ADD_FAILURE() << "process " << pid << " has a " << socket.protocol << " socket at " << socket.address;
      }
    }
  }
  EXPECT_EQ(worker::num_descriptors(), descriptors);
  EXPECT_EQ(worker::num_children(), 0);
  const base::Json found = read_back();
  EXPECT_EQ(found["id"], "abcd1234");
  EXPECT_EQ(found["name"], "sums_abcd1234");
  EXPECT_EQ(found["project"], "arithmetic");
  EXPECT_EQ(found["group"], "sums");
  EXPECT_EQ(found["config"]["lr"], 1e-4);
  EXPECT_EQ(found["config"]["n-samples-per-prompt"], 8);
  // Reads JSON as nlohmann::json, without an order of names.
  EXPECT_EQ(nlohmann::json::parse(found["history"].dump()),
            nlohmann::json::parse(R"([{"train/step": "0", "train/loss": "0.5"},
                {"rollout/step": "0", "rollout/raw_reward": "Infinity", "perf/rollout_time": "2"}])"));
  EXPECT_EQ(found["axes"]["train/*"], "train/step");
  EXPECT_EQ(found["axes"]["perf/*"], "rollout/step");
}

TEST_F(WandbSink, ReplacesADeadChildWithOneWarning) {
  const int64_t warnings = base::num_warnings();
  {
    MetricSink sink(tracker_target(worker::default_worker_config(), run_named("abcd1234")));
    sink.write(0, {{"train/step", 0.0}, {"x", 1.0}});
    sink.flush(60);
    ASSERT_EQ(::kill(static_cast<pid_t>(sink.process_id()), SIGKILL), 0);
    sink.write(1, {{"train/step", 1.0}, {"x", 2.0}});
    sink.flush(60);
    EXPECT_EQ(sink.dropped(), 0);
    EXPECT_EQ(sink.restarts(), 1);
  }
  EXPECT_EQ(base::num_warnings(), warnings + 1);
  const base::Json found = read_back();
  EXPECT_EQ(found["runs"], 2) << "of one id";
  EXPECT_EQ(found["id"], "abcd1234");
  const bool has_second = std::ranges::any_of(found["history"], [](const base::Json& record) {
    return record.value("train/step", "") == "1" && record.value("x", "") == "2";
  });
  EXPECT_TRUE(has_second) << found;
}

TEST_F(WandbSink, TheKeyReachesItsProcessAloneAndNoFile) {
  const Variable key("WANDB_API_KEY", "canary00canary00canary00canary00canary00");
  const Variable token("HF_TOKEN", "canary11canary11");
  const SinkTarget target = tracker_target(worker::default_worker_config(), run_named("abcd1234"));
  const std::string environment = fmt::format("{}", fmt::join(worker::child_environment(target.config, false), "\n"));
  EXPECT_NE(environment.find("WANDB_API_KEY=canary00"), std::string::npos);
  EXPECT_EQ(environment.find("canary11"), std::string::npos);
  const std::string others =
      fmt::format("{}", fmt::join(worker::child_environment(worker::default_worker_config(), false), "\n"));
  EXPECT_EQ(others.find("canary"), std::string::npos);
  {
    MetricSink sink(target);
    sink.write(0, {{"train/step", 0.0}});
  }
  const std::string command = "grep -rlE 'canary00|canary11' " + folder_.path();
  EXPECT_NE(std::system(command.c_str()), 0) << "a file holds a secret";
}

TEST_F(WandbSink, SaysWhatIsMissingBeforeARunBegins) {
  const auto refusal = [&](const worker::WorkerConfig& config, const std::string& mode) {
    WandbConfig wandb;
    wandb.mode = mode;
    return refusal_of(config, TrackerKind::kWandb, tracker_config(wandb));
  };
  EXPECT_EQ(refusal(worker::default_worker_config(), "offline"), "");
  EXPECT_EQ(refusal(worker::default_worker_config(), "online"),
            "--use-wandb: no key of Weights & Biases; set WANDB_API_KEY, run `.venv/bin/wandb login` once, or give "
            "--wandb-mode offline");
  {
    const Variable key("WANDB_API_KEY", "0123456789012345678901234567890123456789");
    EXPECT_EQ(refusal(worker::default_worker_config(), "online"), "");
  }
  {
    const Variable mode("WANDB_MODE", "offline");
    EXPECT_EQ(refusal(worker::default_worker_config(), ""), "");
  }
  const std::string absent = refusal(without_packages(folder_), "offline");
  EXPECT_NE(absent.find("the package wandb cannot be imported"), std::string::npos) << absent;
  EXPECT_NE(absent.find("`tools/setup.sh wandb` installs it"), std::string::npos) << absent;
}

TEST_F(WandbSink, SaysWhenItsFolderCannotBeWritten) {
  try {
    const MetricSink sink(tracker_target(worker::default_worker_config(), run_in("/dev/null/files", "abcd1234")));
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("/dev/null/files"), std::string::npos) << error.what();
  }
}

// trackio and MLflow write a database each, which these tests keep in a folder of their own.
struct DatabaseTracker {
  std::string key, script;
  TrackerKind kind;
  base::Json (*config)(const std::string& folder, const std::string& project);
  std::string resumed_lr;  // what its page says of an option that was 1e-4, and 2e-4 in a resumed run
  int64_t max_file_bytes;  // a fresh database is smaller, and some large records are not
};

class DatabaseSink : public testing::TestWithParam<DatabaseTracker> {
 protected:
  static void SetUpTestSuite() { folder_ = new base::TemporaryDirectory; }
  static void TearDownTestSuite() { delete folder_; }
  void SetUp() override {
    if (!has_package(GetParam().key)) GTEST_SKIP() << why_skipped(GetParam().key);
  }

  static TrackerRun run_in(const std::string& project) {
    return {.kind = GetParam().kind,
            .config = GetParam().config(folder_->path(), project),
            .run_id = "abcd1234",
            .name = "sums_abcd1234",
            .options = {{"lr", 1e-4}, {"n-samples-per-prompt", 8}}};
  }

  static base::TemporaryDirectory* folder_;  // of all tests: MLflow takes seconds to make its database
  Variable home_{"HOME", folder_->path().c_str()};
  Variable space_{"TRACKIO_SPACE_ID", nullptr};
  Variable uri_{"MLFLOW_TRACKING_URI", nullptr};
  Variable token_{"HF_TOKEN", nullptr};
};

base::TemporaryDirectory* DatabaseSink::folder_ = nullptr;

TEST_P(DatabaseSink, WritesWhatThePackageReadsAndResumesTheRun) {
  const int64_t warnings = base::num_warnings();
  {
    MetricSink sink(tracker_target(worker::default_worker_config(), run_in("sums")));
    sink.write(0, {{"train/step", 0.0}, {"train/loss", 0.5}});
    sink.write(0, {{"rollout/step", 0.0}, {"eval/x-pass@4", HUGE_VAL}});
    sink.flush(60);
    for (const std::string& pid : cli::process_tree(::getpid())) {
      for (const cli::InternetSocket& socket : cli::internet_sockets(pid)) {
        ADD_FAILURE() << "process " << pid << " has a " << socket.protocol << " socket at " << socket.address;
      }
    }
    // A process that dies is replaced, and its successor goes on with the run.
    ASSERT_EQ(::kill(static_cast<pid_t>(sink.process_id()), SIGKILL), 0);
    sink.write(1, {{"train/step", 1.0}, {"train/loss", 0.25}});
    sink.flush(60);
    EXPECT_EQ(sink.restarts(), 1);
    EXPECT_EQ(sink.dropped(), 0);
  }
  EXPECT_EQ(base::num_warnings(), warnings + 1);
  // A resumed run with another option and another process is the same run there.
  TrackerRun resumed = run_in("sums");
  resumed.options["lr"] = 2e-4;
  MetricSink(tracker_target(worker::default_worker_config(), resumed)).write(2, {{"train/loss", 0.125}});
  EXPECT_EQ(worker::num_children(), 0);
  const base::Json found = read_by(GetParam().script, folder_->path());
  EXPECT_EQ(found["runs"], base::Json::array({"sums_abcd1234"})) << found;
  EXPECT_EQ(found["lr"], GetParam().resumed_lr) << found;
  EXPECT_EQ(found["loss"], base::Json({{0, 0.5}, {1, 0.25}, {2, 0.125}})) << found;
  EXPECT_EQ(found["pass"], "inf") << found;
}

TEST_P(DatabaseSink, CountsWhatItsDiskRefusesWithOneWarning) {
  const int64_t warnings = base::num_warnings();
  worker::WorkerConfig config = worker::default_worker_config();
  config.max_file_bytes = GetParam().max_file_bytes;
  MetricSink sink(tracker_target(config, run_in("large")));
  EXPECT_LT(write_until_dropped(sink), 30);
  EXPECT_EQ(sink.dropped(), 1);
  EXPECT_EQ(base::num_warnings(), warnings + 1);
  EXPECT_EQ(sink.dropped_metric(), "fault/" + GetParam().key + "_dropped_records");
}

TEST_P(DatabaseSink, SaysWhichPackageIsMissing) {
  const std::string absent = refusal_of(without_packages(*folder_), GetParam().kind, run_in("sums").config);
  EXPECT_NE(absent.find(fmt::format("--use-{0}: the package {0} cannot be imported", GetParam().key)),
            std::string::npos)
      << absent;
  EXPECT_NE(absent.find(fmt::format("`tools/setup.sh {}` installs it", GetParam().key)), std::string::npos) << absent;
}

base::Json trackio_config(const std::string& folder, const std::string& project) {
  TrackioConfig trackio;
  trackio.project = project;
  trackio.directory = folder;
  return tracker_config(trackio);
}

base::Json mlflow_config(const std::string& folder, const std::string& project) {
  MlflowConfig mlflow;
  mlflow.tracking_uri = "sqlite:///" + folder + "/mlflow.db";
  mlflow.experiment_name = project;
  return tracker_config(mlflow);
}

INSTANTIATE_TEST_SUITE_P(Trackers, DatabaseSink,
                         testing::Values(DatabaseTracker{"trackio", "read_trackio.py", TrackerKind::kTrackio,
                                                         trackio_config, "0.0002", int64_t{1} << 20},
                                         DatabaseTracker{"mlflow", "read_mlflow.py", TrackerKind::kMlflow,
                                                         mlflow_config, "0.0001", int64_t{3} << 19}),
                         [](const auto& info) { return info.param.key; });

TEST(Trackers, SayWhatIsMissingBeforeARunBegins) {
  for (const char* const name : {"trackio", "mlflow"}) {
    if (!has_package(name)) GTEST_SKIP() << why_skipped(name);
  }
  const base::TemporaryDirectory folder;
  const Variable home("HOME", folder.path().c_str()), token("HF_TOKEN", nullptr), uri("MLFLOW_TRACKING_URI", nullptr);
  const worker::WorkerConfig config = worker::default_worker_config();
  TrackioConfig trackio;
  trackio.space_id = "me/runs";
  EXPECT_EQ(refusal_of(config, TrackerKind::kTrackio, tracker_config(trackio)),
            "--use-trackio: no token for the Hugging Face Space; set HF_TOKEN, run `hf auth login` once, or leave "
            "--trackio-space-id out");
  EXPECT_EQ(refusal_of(config, TrackerKind::kMlflow, tracker_config(MlflowConfig{})),
            "--use-mlflow: no place for its runs; give --mlflow-tracking-uri http://HOST:PORT of a server, or "
            "sqlite:///FILE");
}

}  // namespace
}  // namespace tandem::text
