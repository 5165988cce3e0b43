// Checks what comes between reward and advantage, and several epochs over a rollout, through the program as a user
// types it: a run's numbers are computed again from its own samples.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

constexpr size_t kGroup = 4;
constexpr double kLongest = 12;  // value of --rollout-max-response-len

std::vector<double> numbers_of(const base::Json& values) { return values.get<std::vector<double>>(); }

double sum_of(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  return sum;
}

double mean_of(const std::vector<double>& values) { return sum_of(values) / static_cast<double>(values.size()); }

// A sample as a run's file has it: the KL of its trained tokens, and its reward before and after penalties.
struct SampleFacts {
  explicit SampleFacts(const base::Json& line)
      : reward(line.at("reward")), advantages(numbers_of(line.at("advantages"))) {
    const std::vector<double> sampled = numbers_of(line.at("rollout_log_probs"));
    if (line.contains("ref_log_probs")) {
      const std::vector<double> reference = numbers_of(line.at("ref_log_probs"));
      for (size_t t = 0; t < sampled.size(); ++t) kl.push_back(sampled[t] - reference[t]);
    }
    length = static_cast<double>(sampled.size());
    is_cut = line.at("status") == "truncated";
    shaped = line.value("shaped_reward", reward);
    removed = line.at("remove_sample");
  }
  double reward, shaped = 0.0, length = 0.0;
  std::vector<double> advantages, kl;
  bool is_cut = false, removed = false;
};

// All runs train on one rollout, in which every third sample is declared to have ended by itself.
class RewardShaping : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<base::TemporaryDirectory>();
    const Captured result = run(arguments("base", {"--save-debug-rollout-data", in_folder("dump.jsonl.{rollout_id}")}));
    ASSERT_EQ(result.code, 0) << result.err;
    std::string text;
    size_t i = 0;
    for (base::Json line : json_lines(in_folder("dump.jsonl.0"))) {
      line["status"] = i++ % 3 == 0 ? "completed" : "truncated";
      const size_t length = i % 2 == 0 ? 12 : 7 + i % 5;
      for (const char* name : {"response_tokens", "rollout_log_probs", "loss_mask"}) {
        base::Json& values = line.at(name);
        if (values.size() > length) values.erase(values.begin() + static_cast<int64_t>(length), values.end());
      }
      text += base::dump_json(line) + "\n";
    }
    base::write_file_durably(in_folder("rollout_0.jsonl"), text);
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string in_folder(const std::string& path) { return *folder_ / path; }

  static Arguments arguments(const std::string& name, const Arguments& more) {
    return with_flag(with_custom_reward(train_arguments(in_folder(name), more), write_reward(*folder_)),
                     "--num-rollout", "1");
  }

  static Captured train(const std::string& name, Arguments more) {
    more.insert(more.end(), {"--load-debug-rollout-data", in_folder("rollout_{rollout_id}.jsonl"),
                             "--save-debug-rollout-data", in_folder(name + "/{rollout_id}.jsonl")});
    return run(arguments(name, more));
  }

  static std::vector<SampleFacts> samples_of(const std::string& name) {
    std::vector<SampleFacts> samples;
    for (const base::Json& line : json_lines(in_folder(name + "/0.jsonl"))) samples.emplace_back(line);
    return samples;
  }

  static base::Json rollout_record(const std::string& name) {
    for (const base::Json& record : json_lines(in_folder(name + "/metrics.jsonl"))) {
      if (record.contains("rollout/step")) return record;
    }
    ADD_FAILURE() << name << " has no rollout";
    return {};
  }

  static inline std::unique_ptr<base::TemporaryDirectory> folder_;
};

TEST_F(RewardShaping, TheKlIsTakenFromTheRewardOfEachSample) {
  for (const std::string row : {"grpo", "rloo"}) {
    const Captured result = train(row, {"--kl-coef", "0.5", "--ref-load", in_folder("base/hf/latest"),
                                        "--advantage-estimator", row, "--overlong-buffer-len", "4"});
    ASSERT_EQ(result.code, 0) << result.err;
    const std::vector<SampleFacts> samples = samples_of(row);
    std::vector<double> rewards, shaped, taken, late, kl;
    for (const SampleFacts& sample : samples) {
      const double overlong = std::max(0.0, (sample.length - (kLongest - 4)) / 4);
      rewards.push_back(sample.reward);
      taken.push_back(0.5 * sum_of(sample.kl));
      late.push_back(overlong);
      kl.push_back(mean_of(sample.kl));
      shaped.push_back(sample.reward - overlong - taken.back());
      EXPECT_NEAR(sample.shaped, shaped.back(), 1e-12);
    }
    for (size_t i = 0; i < samples.size(); ++i) {
      const auto first = shaped.begin() + static_cast<int64_t>(i / kGroup * kGroup);
      const std::vector<double> group(first, first + kGroup);
      double squares = 0.0;
      for (const double reward : group) squares += (reward - mean_of(group)) * (reward - mean_of(group));
      const double expected = row == "grpo" ? (shaped[i] - mean_of(group)) / (std::sqrt(squares / (kGroup - 1)) + 1e-6)
                                            : shaped[i] - (sum_of(group) - shaped[i]) / (kGroup - 1);
      ASSERT_EQ(samples[i].advantages.size(), 1U);
      EXPECT_NEAR(samples[i].advantages[0], expected, 1e-9) << row << " sample " << i;
    }
    const base::Json record = rollout_record(row);
    EXPECT_NEAR(record.at("rollout/raw_reward").get<double>(), mean_of(rewards), 1e-12);
    EXPECT_NEAR(record.at("rollout/shaped_reward").get<double>(), mean_of(shaped), 1e-12);
    EXPECT_NEAR(record.at("rollout/kl_penalty/mean").get<double>(), mean_of(taken), 1e-12);
    EXPECT_NEAR(record.at("rollout/overlong_penalty/mean").get<double>(), mean_of(late), 1e-12);
    EXPECT_NEAR(record.at("rollout/kl").get<double>(), mean_of(kl), 1e-12);
    EXPECT_NE(record.at("rollout/kl_penalty/mean"), 0.0);
    EXPECT_GT(record.at("rollout/overlong_ratio"), 0.0);
    EXPECT_FALSE(record.contains("rollout/truncated_masked"));
  }
}

TEST_F(RewardShaping, ReinforcePlusPlusHasTheKlOfEachTokenInItsReturns) {
  ASSERT_EQ(train("returns", {"--kl-coef", "0.5", "--ref-load", in_folder("base/hf/latest"), "--gamma", "0.9",
                              "--advantage-estimator", "reinforce_plus_plus"})
                .code,
            0);
  const std::vector<SampleFacts> samples = samples_of("returns");
  std::vector<double> returns;
  for (const SampleFacts& sample : samples) {
    for (size_t t = 0; t < sample.kl.size(); ++t) {
      double expected = std::pow(0.9, sample.length - 1 - static_cast<double>(t)) * sample.reward;
      for (size_t s = t; s < sample.kl.size(); ++s) expected -= std::pow(0.9, s - t) * 0.5 * sample.kl[s];
      returns.push_back(expected);
    }
  }
  double squares = 0.0;
  for (const double value : returns) squares += (value - mean_of(returns)) * (value - mean_of(returns));
  const double spread = std::sqrt(squares / static_cast<double>(returns.size() - 1) + 1e-8);
  size_t at = 0;
  for (const SampleFacts& sample : samples) {
    ASSERT_EQ(sample.advantages.size(), sample.kl.size());
    for (const double advantage : sample.advantages) {
      EXPECT_NEAR(advantage, (returns[at] - mean_of(returns)) / spread, 1e-9);
      ++at;
    }
  }
}

TEST_F(RewardShaping, TruncatedCompletionsAreMaskedAndCounted) {
  ASSERT_EQ(train("plain", {}).code, 0);
  const Captured result = train("masked", {"--mask-truncated-completions"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<SampleFacts> plain = samples_of("plain"), masked = samples_of("masked");
  for (size_t i = 0; i < masked.size(); ++i) {
    EXPECT_EQ(masked[i].removed, masked[i].is_cut);
    EXPECT_FALSE(plain[i].removed);
    EXPECT_EQ(masked[i].advantages, plain[i].advantages) << "its group's statistics have it";
    EXPECT_EQ(masked[i].shaped, masked[i].reward);
  }
  EXPECT_EQ(rollout_record("masked").at("rollout/truncated_masked"), 8.0);
  EXPECT_FALSE(rollout_record("plain").contains("rollout/truncated_masked"));
  EXPECT_NE(weights_of(in_folder("masked")), weights_of(in_folder("plain")));
}

// There are three passes over two steps of six samples: only the first step is on policy, and the schedule counts all
// six.
TEST_F(RewardShaping, EpochsOverARolloutAreStepsOfTheRun) {
  const Captured result = run(arguments("epochs", {"--num-epochs-per-rollout", "3", "--lr-decay-style", "linear"}));
  ASSERT_EQ(result.code, 0) << result.err;
  std::vector<base::Json> steps;
  for (const base::Json& record : json_lines(in_folder("epochs/metrics.jsonl"))) {
    if (record.contains("train/step")) steps.push_back(record);
  }
  ASSERT_EQ(steps.size(), 6U);
  for (size_t k = 0; k < steps.size(); ++k) {
    EXPECT_EQ(steps[k].at("train/step"), k);
    const double difference = steps[k].at("train/train_rollout_logprob_abs_diff");
    EXPECT_TRUE(k == 0 ? difference == 0.0 : difference > 0.0) << k << ": " << difference;
    EXPECT_NEAR(steps[k].at("train/lr-pg_0").get<double>(), 1e-3 * (1.0 - static_cast<double>(k) / 6), 1e-12) << k;
  }
  const Captured dry = run(arguments("dry", {"--num-epochs-per-rollout", "3", "--dry-run"}));
  EXPECT_NE(dry.out.find("6 optimizer steps of 6 samples each (3 epochs over each rollout)"), std::string::npos)
      << dry.out;
}

TEST_F(RewardShaping, AReferenceThatIsRenewedTakesRoomOnTheDisk) {
  const auto bytes_of = [&](const Arguments& more) {
    Arguments words = {"--kl-coef", "0.1", "--dry-run"};
    words.insert(words.end(), more.begin(), more.end());
    const std::string out = run(arguments("dry", words)).out;
    const size_t at = out.find(" MiB, ", out.find("on disk: about "));
    EXPECT_NE(at, std::string::npos) << out;
    return std::stoll(out.substr(at + 6));
  };
  // There is one checkpoint, and the model has 199,296 parameters in float32.
  EXPECT_EQ(bytes_of({"--ref-update-interval", "1"}), bytes_of({}) + 199'296 * 4);
}

TEST_F(RewardShaping, MistakesAreOneLine) {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--kl-coef", "-1"}, "--kl-coef: must be at least 0, not -1"},
      {{"--kl-coef", "much"}, "--kl-coef: "},
      {{"--kl-coef", "0.1", "--use-kl-loss", "--kl-loss-coef", "0.1"}, "the KL is either in the reward or in the loss"},
      {{"--kl-coef", "0.1", "--ref-load", in_folder("nowhere")}, "no such directory"},
      {{"--ref-update-interval", "2"}, "--ref-update-interval: no reference is read without --kl-coef"},
      {{"--ref-update-interval", "0", "--kl-coef", "0.1"}, "--ref-update-interval: must be at least 1, not 0"},
      {{"--overlong-buffer-len", "13"}, "--overlong-buffer-len 13: is longer than --rollout-max-response-len 12"},
      {{"--overlong-penalty-factor", "2"}, "does nothing without --overlong-buffer-len"},
      {{"--overlong-penalty-factor", "-2", "--overlong-buffer-len", "4"}, "must be greater than 0, not -2"},
      {{"--num-epochs-per-rollout", "0"}, "--num-epochs-per-rollout: must be at least 1, not 0"},
      {{"--mask-truncated-completions=maybe"}, "--mask-truncated-completions"},
  };
  for (const auto& [more, expected] : cases) {
    expect_one_line_failure(run(arguments("bad", more)), 2, expected);
    EXPECT_FALSE(base::directory_exists(in_folder("bad"))) << more[0];
  }
}

}  // namespace
}  // namespace tandem::cli
