// Metrics arrive in Weights & Biases' own files, which its package reads; nothing else leaves, and no key is kept. The
// package must be there (tools/setup.sh wandb, which `make test` calls): without it these tests fail.
#include "text/wandb.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/process_sockets.h"
#include "tests/worker/process_facts.h"
#include "worker/child_environment.h"

namespace tandem::text {
namespace {

// An environment variable for the time of a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* const before = std::getenv(name); before != nullptr) before_ = before;
    if (value == nullptr) {
      ::unsetenv(name);
    } else {
      ::setenv(name, value, 1);
    }
  }
  ~Variable() {
    if (before_) {
      ::setenv(name_, before_->c_str(), 1);
    } else {
      ::unsetenv(name_);
    }
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

class WandbSink : public testing::Test {
 protected:
  WandbRun run_named(const std::string& id) const {
    WandbRun run;
    run.config.mode = "offline";
    run.config.project = "arithmetic";
    run.config.group = "sums";
    run.config.run_id = id;
    run.config.directory = folder_.path();
    run.name = "sums_" + id;
    run.options = {{"lr", 1e-4}, {"n-samples-per-prompt", 8}};
    return run;
  }

  // Returns what the package itself finds in the folder.
  base::Json read_back() const {
    const std::string command =
        worker::default_worker_config().python + " tests/text/read_wandb.py " + folder_.path() + " 2>/dev/null";
    FILE* const pipe = ::popen(command.c_str(), "r");
    std::string text;
    for (int c = 0; (c = std::fgetc(pipe)) != EOF;) text.push_back(static_cast<char>(c));
    ::pclose(pipe);
    return base::Json::parse(text);
  }

  base::TemporaryDirectory folder_;
  Variable home_{"HOME", folder_.path().c_str()};  // whose .netrc may hold a key
  Variable key_{"WANDB_API_KEY", nullptr};
  Variable mode_{"WANDB_MODE", nullptr};
};

TEST_F(WandbSink, WritesWhatThePackageReads) {
  const int descriptors = worker::num_descriptors();
  {
    MetricSink sink(wandb_target(worker::default_worker_config(), run_named("abcd1234")));
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
    MetricSink sink(wandb_target(worker::default_worker_config(), run_named("abcd1234")));
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
  const SinkTarget target = wandb_target(worker::default_worker_config(), run_named("abcd1234"));
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
    try {
      check_wandb(config, wandb);
    } catch (const EnvironmentError& error) {
      return std::string(error.what());
    }
    return std::string();
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
  // An interpreter that does not look into .venv has no such package.
  worker::WorkerConfig bare = worker::default_worker_config();
  const std::string script = folder_ / "python";
  base::write_file_durably(script, "#!/bin/sh\nexec '" + bare.python + "' -S \"$@\"\n");
  ASSERT_EQ(::chmod(script.c_str(), 0755), 0);
  bare.python = script;
  const std::string absent = refusal(bare, "offline");
  EXPECT_NE(absent.find("the package wandb cannot be imported"), std::string::npos) << absent;
  EXPECT_NE(absent.find("`tools/setup.sh wandb` installs it"), std::string::npos) << absent;
}

TEST_F(WandbSink, SaysWhenItsFolderCannotBeWritten) {
  WandbRun run = run_named("abcd1234");
  run.config.directory = "/dev/null/files";
  try {
    const MetricSink sink(wandb_target(worker::default_worker_config(), run));
    FAIL();
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("/dev/null/files"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tandem::text
