// Runs with rollout workers, and the colocated run that they are compared with.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "base/json.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/ranks/rank_processes.h"
#include "tests/cli/ranks/rank_runs.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {

// Returns the arguments of the same run with rollout workers.
inline Arguments with_workers(Arguments words, int trainers, int workers) {
  std::erase(words, "--colocate");
  words = with_flag(words, "--rollout-num-gpus", std::to_string(workers));
  return with_flag(words, "--actor-num-gpus-per-node", std::to_string(trainers));
}

// Returns the arguments of the same run with completions of different lengths: one token in ten ends them.
inline Arguments with_drawn_lengths(Arguments words) {
  words = with_flag(std::move(words), "--rollout-max-response-len", "16");
  words.emplace_back("--rollout-stop-token-ids");
  for (int id = 3; id < 512; id += 10) words.push_back(std::to_string(id));
  return words;
}

// Returns the arguments of one more worker, for a run that has begun.
inline Arguments joining(Arguments words) {
  words.push_back("--rollout-join");
  return words;
}

inline Arguments going_on(Arguments words, const std::string& run) {
  words = with_flag(words, "--load", run);
  words.push_back("--allow-fresh-start");
  return words;
}

class WorkerRuns : public testing::Test {
 protected:
  static void SetUpTestSuite() { folder_ = new base::TemporaryDirectory(); }
  static void TearDownTestSuite() {
    delete own_;
    own_ = nullptr;
    delete folder_;
  }

  // Returns the results of the run without workers. The first test of the process that compares with them makes it.
  static const Results& colocated() {
    static const Results made = [] {
      const Captured alone = run(run_arguments("colocated"));
      EXPECT_EQ(alone.code, 0) << alone.err;
      return Results(path("colocated"));
    }();
    return made;
  }

  static std::string path(const std::string& name) { return *folder_ / name; }
  static std::string samples_of(const std::string& name, int64_t rollout) {
    return fmt::format("{}/samples/rollout_{:06}.jsonl", path(name), rollout);
  }
  // Waits for the samples of a rollout, whose weights have been sent by then.
  static void wait_for_rollout(const std::string& name, int64_t rollout) {
    wait_for_text(samples_of(name, rollout), "\n");
  }
  // Waits until so many optimizer steps are recorded, two of each rollout, before its weights are sent.
  static void wait_for_steps(const std::string& name, int64_t count) {
    wait_for_text(path(name) + "/metrics.jsonl", "\"train/step\"", count);
  }

  // Returns the arguments of a colocated run.
  static Arguments run_arguments(const std::string& name, const Arguments& more = {}) {
    Arguments result =
        with_custom_reward(train_arguments(path(name), {"--max-tokens-per-gpu", "64", "--save-interval", "1", "--dtype",
                                                        "float32", "--num-threads", "1"}),
                           write_reward(*folder_));
    for (size_t i = 0; i + 1 < more.size(); i += 2) result = with_flag(result, more[i], more[i + 1]);
    return result;
  }

  // Gives the same rewards, so late that the run lasts until a death is noticed. Each grading prints "graded".
  static Arguments graded_slowly(double seconds = 0.2) {
    base::write_file_durably(path("slow.py"),
                             "import time\n"
                             "def reward(prompts, completions, **kwargs):\n"
                             "    print('graded', flush=True)\n"
                             "    time.sleep(" +
                                 fmt::format("{}", seconds) +
                                 ")\n"
                                 "    return [float(len(c[0]['content']) % 5) for c in completions]\n");
    return {"--custom-rm-path", path("slow.py:reward"), "--rm-num-workers", "1"};
  }

  // Returns the results without what is counted of processes that were lost.
  static Results results(const std::string& name) {
    Results of_run(path(name));
    std::string text;
    std::istringstream lines(of_run.metrics);
    for (std::string line; std::getline(lines, line);) {
      base::Json record = base::parse_json(line, name);
      record.erase("fault/lost_workers");
      record.erase("fault/weights_sent_again");
      text += base::dump_json(record) + "\n";
    }
    of_run.metrics = text;
    return of_run;
  }
  static void expect_same(const std::string& name, const Results& want) { expect_equal(results(name), want, name); }
  static void expect_same(const std::string& name) { expect_same(name, own_ == nullptr ? colocated() : *own_); }
  // Returns how many workers were missed.
  static int64_t num_lost_workers(const std::string& name) {
    double sum = 0.0;
    for (const base::Json& record : json_lines(path(name) + "/metrics.jsonl"))
      if (record.contains("fault/lost_workers")) sum += record["fault/lost_workers"].get<double>();
    return static_cast<int64_t>(sum);
  }

  static inline base::TemporaryDirectory* folder_ = nullptr;
  // What expect_same() compares with in suites whose runs are not those of colocated().
  static inline Results* own_ = nullptr;
};

}  // namespace tandem::cli
