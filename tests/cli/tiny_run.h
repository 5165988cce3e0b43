// Runs the golden model for a few steps, and reads what the runs leave.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"

namespace tandem::cli {

using Arguments = std::vector<std::string>;

inline const std::string kModel = "tests/golden/models/qwen3-tied";
inline const std::string kPrompts = "tests/golden/prompts/math_small.jsonl";

inline Arguments train_arguments(const std::string& save, const Arguments& more = {}) {
  Arguments arguments = {"train",
                         "--colocate",
                         "--hf-checkpoint",
                         kModel,
                         "--prompt-data",
                         kPrompts,
                         "--rm-type",
                         "exact",
                         "--rollout-batch-size",
                         "3",
                         "--n-samples-per-prompt",
                         "4",
                         "--global-batch-size",
                         "6",
                         "--num-rollout",
                         "2",
                         "--rollout-max-response-len",
                         "12",
                         "--lr",
                         "1e-3",
                         "--no-use-tensorboard",
                         "--save",
                         save};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Sets the value of a flag that is there, or adds the flag.
inline Arguments with_flag(Arguments arguments, const std::string& flag, const std::string& value) {
  const auto at = std::find(arguments.begin(), arguments.end(), flag);
  if (at == arguments.end()) {
    arguments.insert(arguments.end(), {flag, value});
  } else {
    *(at + 1) = value;
  }
  return arguments;
}

// Writes a reward that differs from sample to sample, so that there is something to learn from a model that knows
// nothing.
inline std::string write_reward(const base::TemporaryDirectory& folder) {
  base::write_file_durably(folder / "reward.py",
                           "def reward(prompts, completions, **kwargs):\n"
                           "    return [float(len(c[0]['content']) % 5) for c in completions]\n");
  return folder / "reward.py:reward";
}

inline Arguments with_custom_reward(Arguments arguments, const std::string& path) {
  const auto at = std::find(arguments.begin(), arguments.end(), "--rm-type");
  *at = "--custom-rm-path";
  *(at + 1) = path;
  return arguments;
}

inline std::vector<base::Json> json_lines(const std::string& path) {
  std::vector<base::Json> result;
  std::istringstream lines(base::read_file(path));
  for (std::string line; std::getline(lines, line);) result.push_back(base::parse_json(line, path));
  return result;
}

// Returns the records of a run without what clocks show.
inline std::string timeless_metrics(const std::string& run) {
  std::string text;
  for (const base::Json& record : json_lines(run + "/metrics.jsonl")) {
    base::Json kept = base::Json::object();
    for (const auto& [name, value] : record.items()) {
      if (!name.starts_with("perf/") && name != "time_s") kept[name] = value;
    }
    text += base::dump_json(kept) + "\n";
  }
  return text;
}

inline std::string weights_of(const std::string& run) { return base::read_file(run + "/hf/latest/model.safetensors"); }

// Counts how often a file has the text; a file that does not exist has none.
inline int64_t count_in_file(const std::string& file, const std::string& wanted) {
  if (!base::file_exists(file)) return 0;
  const std::string text = base::read_file(file);
  int64_t count = 0;
  for (size_t at = text.find(wanted); at != std::string::npos; at = text.find(wanted, at + 1)) ++count;
  return count;
}

// Waits, a minute at most, until a file has the text so often.
inline void wait_for_text(const std::string& file, const std::string& wanted, int64_t times = 1) {
  for (int tries = 0; tries < 60'000 && count_in_file(file, wanted) < times; ++tries) usleep(1'000);
  EXPECT_GE(count_in_file(file, wanted), times) << wanted << " in " << file;
}

inline void expect_one_line_failure(const Captured& result, int code, const std::string& says) {
  EXPECT_EQ(result.code, code) << result.err;
  const std::string line = last_line(result.err);
  EXPECT_TRUE(line.starts_with("tandem: error: ")) << result.err;
  EXPECT_NE(line.find(says), std::string::npos) << line << "\nexpected: " << says;
}

// While this lives, programs that are started look for leaks as they end. Elsewhere they do not, which takes a third of
// the time that a sanitized program needs to start and end. What runs in a test's own process is searched always.
class LeakSearch {
 public:
  LeakSearch() { is_on_ = true; }
  ~LeakSearch() { is_on_ = false; }
  LeakSearch(const LeakSearch&) = delete;
  LeakSearch& operator=(const LeakSearch&) = delete;
  // Sets the options of this process for the program that it becomes.
  static void set_options() {
    const char* const own = std::getenv("ASAN_OPTIONS");
    if (own == nullptr || is_on_) return;
    setenv("ASAN_OPTIONS", (std::string(own) + ":detect_leaks=0").c_str(), 1);
  }

 private:
  inline static bool is_on_ = false;
};

// Runs the program itself in a child process, which is killed if a test ends before it does.
class Program {
 public:
  // Writes beyond `max_file_bytes` fail, as on a full disk (with EFBIG); 0 means no limit. `errors` and `output` are
  // the files for its stderr and stdout.
  explicit Program(const Arguments& arguments, int64_t max_file_bytes = 0, const std::string& errors = "/dev/null",
                   const std::string& output = "/dev/null") {
    pid_ = fork();
    if (pid_ != 0) return;
    if (max_file_bytes > 0) {
      const rlimit limit = {static_cast<rlim_t>(max_file_bytes), static_cast<rlim_t>(max_file_bytes)};
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    if (std::freopen(output.c_str(), "w", stdout) == nullptr || std::freopen(errors.c_str(), "w", stderr) == nullptr)
      _exit(99);
    LeakSearch::set_options();
    std::vector<char*> words = {const_cast<char*>(TANDEM_PROGRAM)};
    for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    execv(words[0], words.data());
    _exit(127);
  }
  ~Program() {
    if (has_ended_) return;
    signal(SIGKILL);
    wait();
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  pid_t pid() const { return pid_; }
  void signal(int number) const { kill(pid_, number); }
  // Returns whether it ended by itself in that time; its exit code is wait()'s, then or later.
  bool wait_for(double seconds) const {
    for (double waited = 0.0; waited < seconds; waited += 0.01) {
      siginfo_t info = {};
      if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_)
        return true;
      usleep(10'000);
    }
    return false;
  }
  int wait() const {
    int status = 0;
    waitpid(pid_, &status, 0);
    has_ended_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  mutable bool has_ended_ = false;  // true once it was waited for: its number may be another's
};

}  // namespace tandem::cli
