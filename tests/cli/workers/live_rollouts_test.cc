// Checks --max-weight-staleness through the whole program: devices sample while others train, no sample is older than
// the bound, and a run is repeated to the bit from its schedule, whoever died, joined or was slow.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "tests/base/soak.h"
#include "tests/cli/ranks/rank_processes.h"
#include "tests/cli/workers/worker_runs.h"

namespace tandem::cli {
namespace {

class LiveRollouts : public WorkerRuns {
 protected:
  // Six rollouts of one trainer, while two workers sample.
  static Arguments live(const std::string& name, int64_t bound, const Arguments& more = {}) {
    Arguments words = with_workers(with_drawn_lengths(run_arguments(name, {"--num-rollout", "6"})), 1, 2);
    words = with_flag(words, "--max-weight-staleness", std::to_string(bound));
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // One step off, with the checkpoints that it has saved meanwhile.
  static Arguments one_step_off() { return live("one_off", 1, {"--save-interval", "2", "--keep-latest", "9"}); }
  // Makes that run, if no test has made it before.
  static void make_one_step_off() {
    if (base::directory_exists(path("one_off"))) return;
    const Captured result = run_program(one_step_off());
    ASSERT_EQ(result.code, 0) << result.err;
  }
  static Arguments with_replay(Arguments words, const std::string& name) {
    return with_flag(std::move(words), "--replay-schedule", path(name));
  }
  static std::vector<base::Json> rollouts(const std::string& name) {
    std::vector<base::Json> result;
    for (const base::Json& record : json_lines(path(name) + "/metrics.jsonl")) {
      if (record.contains("rollout/step")) result.push_back(record);
    }
    return result;
  }
  static std::string samples(const std::string& name, int64_t first = 0) {
    std::string text;
    for (int64_t i = first; i < 6; ++i) text += base::read_file(samples_of(name, i));
    return text;
  }
  // Writes a reward, the length modulo `values`, that takes a random time, so that groups are graded in another order.
  static std::string random_reward(int values = 5) {
    base::write_file_durably(path("random.py"),
                             "import random, time\n"
                             "def reward(prompts, completions, **kwargs):\n"
                             "    time.sleep(random.SystemRandom().random() * 0.2)\n"
                             "    return [float(len(c[0]['content']) % " +
                                 std::to_string(values) + ") for c in completions]\n");
    return path("random.py:reward");
  }
};

// Without partial rollouts and a filter each rollout but the first two is of the weights one before the newest.
TEST_F(LiveRollouts, OneStepOffIsAFunctionOfTheFlags) {
  ASSERT_NO_FATAL_FAILURE(make_one_step_off());
  const std::vector<base::Json> records = rollouts("one_off");
  ASSERT_EQ(records.size(), 6U);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i]["rollout/staleness/mean"], i == 0 ? 0.0 : 1.0) << "rollout " << i;
    EXPECT_EQ(records[i]["rollout/partial_ratio"], 0.0);
  }
  const Captured again = run_program(with_flag(live("one_off_again", 1), "--rollout-num-gpus", "1"));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(weights_of(path("one_off")), weights_of(path("one_off_again")));
  EXPECT_EQ(samples("one_off"), samples("one_off_again"));
}

// The checkpoint has all groups of the next rollout, which a resumed run could take before a worker has joined it.
TEST_F(LiveRollouts, OneStepOffGoesOnFromACheckpointToTheSameBits) {
  ASSERT_NO_FATAL_FAILURE(make_one_step_off());
  for (const char* step : {"2", "4"}) {
    const std::string name = fmt::format("one_off_from_{}", step);
    Arguments rest = with_flag(going_on(one_step_off(), path("one_off")), "--save", path(name));
    rest.insert(rest.end(), {"--ckpt-step", step});
    const Captured result = run_program(rest);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(weights_of(path("one_off")), weights_of(path(name))) << step;
    EXPECT_EQ(samples("one_off", std::stol(step)), samples(name, std::stol(step)));
  }
}

TEST_F(LiveRollouts, AScheduleRepeatsARunWhateverHappenedToIt) {
  std::mt19937_64 random(11);
  int64_t num_joined = 0;
  for (int64_t i = 0; i < base::short_or_full(2, 20); ++i) {
    const std::string name = fmt::format("drawn_{}", i);
    const auto bound = static_cast<int64_t>(1 + random() % 3);
    const Arguments words = with_flag(live(name, bound, {"--partial-rollout"}), "--custom-rm-path", random_reward());
    Program program(words);
    const std::map<int, pid_t> processes = processes_of(program.pid(), 3);
    ASSERT_EQ(processes.size(), 3U);
    if (i % 2 == 0) {  // one joins, and another dies
      const std::string errors = path(name + "_joining.txt");
      Program another(joining(words), /*max_file_bytes=*/0, errors);
      wait_for_rollout(name, static_cast<int64_t>(random() % 3));
      usleep(static_cast<useconds_t>(random() % 300'000));
      kill(processes.at(1 + static_cast<int>(random() % 2)), SIGKILL);
      ASSERT_TRUE(program.wait_for(120.0));
      // One that has joined ends with the run. One that came when the run was over waits for it to begin.
      if (count_in_file(errors, "samples for the run") > 0) {
        EXPECT_TRUE(another.wait_for(60.0));
        ++num_joined;
      }
    }
    ASSERT_EQ(program.wait(), 0) << name;
    double oldest = 0.0;
    for (const base::Json& record : rollouts(name))
      oldest = std::max(oldest, record["rollout/staleness/max"].get<double>());
    EXPECT_LE(oldest, static_cast<double>(bound)) << name;
    const std::string replay = name + "_again";
    Arguments again = with_flag(with_replay(words, name), "--save", path(replay));
    const Captured result = run_program(with_flag(again, "--rollout-num-gpus", "1"));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(weights_of(path(name)), weights_of(path(replay))) << name;
    EXPECT_EQ(samples(name), samples(replay)) << name;
    EXPECT_EQ(base::read_file(path(name) + "/schedule.jsonl"), base::read_file(path(replay) + "/schedule.jsonl"));
  }
  EXPECT_TRUE(!base::soaking() || num_joined > 0) << "no worker came in time, so none was seen to join";
}

TEST_F(LiveRollouts, AKilledRunRepeatsWhatItHadDoneAndGoesOn) {
  const std::string name = "killed_live";
  const Arguments words = with_flag(live(name, 2, {"--partial-rollout"}), "--save-interval", "2");
  {
    Program program(words);
    wait_for_rollout(name, 2);
    usleep(200'000);
    program.signal(SIGKILL);
    program.wait();
  }
  // The launcher's children end by themselves.
  std::map<int64_t, std::string> before;
  for (int64_t i = 0; i < 6; ++i) {
    if (base::file_exists(samples_of(name, i))) before[i] = base::read_file(samples_of(name, i));
  }
  ASSERT_GE(before.size(), 3U);
  const Captured rest = run_program(with_replay(going_on(words, path(name)), name));
  ASSERT_EQ(rest.code, 0) << rest.err;
  const std::string log = base::read_file(path(name) + "/schedule.jsonl");
  for (const auto& [rollout, text] : before) {
    if (log.find(fmt::format("\"rollout\":{}", rollout)) == std::string::npos) continue;
    EXPECT_EQ(base::read_file(samples_of(name, rollout)), text) << "rollout " << rollout;
  }
  EXPECT_EQ(rollouts(name).size(), 6U);
  // All of it can be repeated from the beginning.
  const Captured again = run_program(with_flag(with_replay(words, name), "--save", path("killed_live_again")));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(weights_of(path(name)), weights_of(path("killed_live_again")));
}

// What was in flight goes on with the newest weights, and the schedule says so: all of it can be repeated.
TEST_F(LiveRollouts, ASignalSavesWhatIsInFlight) {
  for (const bool is_partial : {false, true}) {
    const std::string name = is_partial ? "stopped_partial" : "stopped_whole";
    const Arguments words = live(name, 1, is_partial ? Arguments{"--partial-rollout"} : Arguments());
    {
      Program program(going_on(words, path(name)));
      wait_for_rollout(name, 1);
      program.signal(SIGTERM);
      ASSERT_TRUE(program.wait_for(60.0)) << name;
      ASSERT_EQ(program.wait(), 0);
    }
    const Captured rest = run_program(going_on(words, path(name)));
    ASSERT_EQ(rest.code, 0) << rest.err;
    EXPECT_EQ(rollouts(name).size(), 6U);
    const std::string replay = name + "_again";
    const Captured again = run_program(with_flag(with_replay(words, name), "--save", path(replay)));
    ASSERT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(weights_of(path(name)), weights_of(path(replay))) << name;
  }
}

TEST_F(LiveRollouts, WithAFilterAnAdapterAndEvaluationsToo) {
  const Arguments more = {"--partial-rollout",
                          "--dynamic-sampling-filter-path",
                          "nonzero_std",
                          "--lora-rank",
                          "4",
                          "--eval-prompt-data",
                          "held_out",
                          kPrompts + "@[0:6]",
                          "--eval-interval",
                          "2"};
  const std::string kAdapter = "/hf/latest/adapter_model.safetensors";
  const Captured result = run_program(live("all_live", 2, more));
  ASSERT_EQ(result.code, 0) << result.err;
  const Captured again =
      run_program(with_flag(with_replay(live("all_live", 2, more), "all_live"), "--save", path("all_live_again")));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(base::read_file(path("all_live") + kAdapter), base::read_file(path("all_live_again") + kAdapter));
  EXPECT_EQ(samples("all_live"), samples("all_live_again"));
}

// With two rewards and two samples a prompt the filter drops half of the groups, most of them while the run trains.
// Each group that has begun is in the log, or still in flight at the end. A repetition has the same log, and can go on.
TEST_F(LiveRollouts, GroupsThatAFilterDropsMeanwhileAreCountedAndLogged) {
  const Arguments more = {"--partial-rollout", "--dynamic-sampling-filter-path", "nonzero_std"};
  Arguments words = with_flag(live("dropping", 1, more), "--custom-rm-path", random_reward(2));
  words = with_flag(with_flag(words, "--n-samples-per-prompt", "2"), "--save-interval", "2");
  const Captured result = run_program(words);
  ASSERT_EQ(result.code, 0) << result.err;
  const auto check = [&](const std::string& name) {
    std::set<int64_t> seen;
    int64_t num_dropped = 0, num_counted = 0;
    for (const base::Json& line : json_lines(path(name) + "/schedule.jsonl")) {
      for (const char* const key : {"take", "drop"}) {
        for (const base::Json& group : line.at(key)) EXPECT_TRUE(seen.insert(group.get<int64_t>()).second) << group;
      }
      num_dropped += std::ssize(line.at("drop"));
    }
    for (const base::Json& record : rollouts(name))
      num_counted += record.at("rollout/dynamic_filter/dropped").get<int64_t>();
    EXPECT_GT(num_dropped, 0);
    EXPECT_EQ(num_counted, num_dropped) << name;
    const auto num_in_flight = rollouts(name).back().at("rollout/in_flight").get<int64_t>();
    EXPECT_LE(*seen.rbegin() + 1, std::ssize(seen) + num_in_flight) << name << ": some group is nowhere";
  };
  check("dropping");
  const Arguments again = with_flag(words, "--save", path("dropping_again"));
  const Captured replayed = run_program(with_replay(again, "dropping"));
  ASSERT_EQ(replayed.code, 0) << replayed.err;
  check("dropping_again");
  EXPECT_EQ(base::read_file(path("dropping") + "/schedule.jsonl"),
            base::read_file(path("dropping_again") + "/schedule.jsonl"));
  EXPECT_EQ(weights_of(path("dropping")), weights_of(path("dropping_again")));
  const Captured longer = run_program(with_flag(going_on(again, path("dropping_again")), "--num-rollout", "8"));
  EXPECT_EQ(longer.code, 0) << longer.err;
}

// A function's turns are sampled while the run trains; new weights wait until the functions in flight have ended. So
// one step off it is a function of the flags too, from a checkpoint as well.
TEST_F(LiveRollouts, FunctionsOfSeveralTurnsRunMeanwhile) {
  const std::string functions = "tests/cli/generate/turns.py";
  for (const auto& [function, more] : std::vector<std::pair<std::string, Arguments>>{
           {"late_turns", {}}, {"two_samples", {"--custom-generate-max-sequences", "2"}}}) {
    Arguments words =
        live(function, 1, {"--custom-generate-function-path", functions + ":" + function, "--keep-latest", "9"});
    words.insert(words.end(), more.begin(), more.end());
    words = with_flag(words, "--save-interval", "2");
    if (function == "late_turns") words = with_flag(words, "--custom-rm-path", functions + ":reward");
    const Captured whole = run_program(words);
    ASSERT_EQ(whole.code, 0) << whole.err;
    const std::vector<base::Json> records = rollouts(function);
    ASSERT_EQ(records.size(), 6U);
    for (size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(records[i]["rollout/staleness/mean"], i == 0 ? 0.0 : 1.0) << "rollout " << i;
      EXPECT_GT(records[i]["multi_turn/multi_turn_metric/round_number_mean"], 1.0);
      EXPECT_EQ(records[i]["rollout/grader_failed"], 0.0);
    }
    Arguments rest = with_flag(going_on(words, path(function)), "--save", path(function + "_rest"));
    rest = with_flag(rest, "--rollout-num-gpus", "1");
    rest.insert(rest.end(), {"--ckpt-step", "2"});
    const Captured result = run_program(rest);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(weights_of(path(function)), weights_of(path(function + "_rest"))) << function;
    EXPECT_EQ(samples(function, 2), samples(function + "_rest", 2)) << function;
  }
}

// A signal does not wait for the functions in flight: they begin anew when the run goes on.
TEST_F(LiveRollouts, ASignalEndsFunctionsThatBeginAnew) {
  base::write_file_durably(path("slow_turns.py"),
                           "import asyncio\n"
                           "from slime.rollout.sglang_rollout import generate\n"
                           "async def turns(args, sample, sampling_params):\n"
                           "    sample = await generate(args, sample, sampling_params)\n"
                           "    print('acts', flush=True)\n"
                           "    await asyncio.sleep(20.0 if sample.index >= 24 and sample.index % 3 == 0 else 0.0)\n"
                           "    return sample\n");
  const std::string name = "stopped_turns";
  Arguments words = live(name, 1, {"--custom-generate-function-path", path("slow_turns.py:turns")});
  {
    Program program(going_on(words, path(name)));
    wait_for_rollout(name, 1);
    usleep(500'000);
    program.signal(SIGTERM);
    ASSERT_TRUE(program.wait_for(15.0)) << "it waits for a function that sleeps";
    ASSERT_EQ(program.wait(), 0);
  }
  const size_t done = rollouts(name).size();
  EXPECT_LT(done, 6U);
  const std::string quick = base::read_file(path("slow_turns.py"));
  base::write_file_durably(path("slow_turns.py"), quick.substr(0, quick.find("    await")) + "    return sample\n");
  words.emplace_back("--allow-changed-config");
  const Captured rest = run_program(going_on(words, path(name)));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(rollouts(name).size(), 6U);
  for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(count_in_file(samples_of(name, i), "\n"), 12) << "rollout " << i;
}

// Before workers get new weights, what they have begun ends. The other trainer once gave rank 0 up meanwhile.
TEST_F(LiveRollouts, APauseMayLastLongerThanTheTimeoutOfTwoTrainers) {
  base::write_file_durably(path("slow.py"),
                           "import time\n"
                           "def reward(prompts, completions, **kwargs):\n"
                           "    time.sleep(9)\n"
                           "    return [float(len(c[0]['content']) % 5) for c in completions]\n");
  Arguments words = with_workers(live("slow", 1, {"--distributed-timeout-minutes", "0.1"}), 2, 1);
  words = with_flag(with_flag(words, "--num-rollout", "2"), "--custom-rm-path", path("slow.py:reward"));
  const Captured result = run_program(words);
  ASSERT_EQ(result.code, 0) << result.err;
  double longest = 0.0;
  for (const base::Json& record : rollouts("slow"))
    longest = std::max(longest, record.value("perf/update_weights_time", 0.0));
  EXPECT_GT(longest, 6.0) << "nothing was tested";
}

TEST_F(LiveRollouts, WhatCannotBeIsRefused) {
  const auto with = [](Arguments words, const Arguments& more) {
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const Arguments words = live("refused_live", 2);
  expect_one_line_failure(run(with(run_arguments("refused_live"), {"--max-weight-staleness", "2"})), 2,
                          "--max-weight-staleness 2 with --colocate");
  expect_one_line_failure(run(with(words, {"--over-sampling-batch-size", "10"})), 2,
                          "at most 9 groups can be in flight");
  expect_one_line_failure(run(with(words, {"--pg-loss-type", "reinforce"})), 2, "has no trust region");
  const Arguments turns = {"--custom-generate-function-path", "tests/cli/generate/turns.py:turns"};
  expect_one_line_failure(run(with(with(words, turns), {"--partial-rollout"})), 2,
                          "--partial-rollout and --custom-generate-function-path: what a function is about");
  expect_one_line_failure(run(with(with(words, turns), {"--replay-schedule", path("one_off")})), 2,
                          "--replay-schedule and --custom-generate-function-path");
  const Captured nowhere = run_program(with(words, {"--replay-schedule", path("nowhere")}));
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_NE(nowhere.err.find("there is no schedule.jsonl"), std::string::npos) << nowhere.err;
  expect_one_line_failure(run(with(run_arguments("refused_live"), {"--replay-schedule", path("nowhere")})), 2,
                          "--replay-schedule");
  // A log of other flags is found out.
  ASSERT_NO_FATAL_FAILURE(make_one_step_off());
  const Captured other =
      run_program(with_flag(with_flag(with_replay(one_step_off(), "one_off"), "--save", path("other_flags")),
                            "--rollout-max-response-len", "9"));
  EXPECT_EQ(other.code, 2) << other.err;
  EXPECT_NE(other.err.find("which has not ended here"), std::string::npos) << other.err;
}

}  // namespace
}  // namespace tandem::cli
