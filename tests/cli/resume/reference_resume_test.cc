// Checks that a run whose KL reference is renewed, and that was ended at any moment, resumes with that reference: the
// same bits as the run that nothing happened to.
#include <gtest/gtest.h>

#include <c10/util/BFloat16.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "tests/base/soak.h"
#include "tests/cli/tiny_run.h"
#include "weights/safetensors.h"

namespace tandem::cli {
namespace {

// The reference is renewed after the second rollout, so the rewards of the third depend on it.
constexpr int kReferenceRollouts = 3;

Arguments reference_arguments(const std::string& run, const std::string& reward) {
  const Arguments more = {"--save-interval",
                          "1",
                          "--keep-latest",
                          "1",
                          "--kl-coef",
                          "0.3",
                          "--ref-update-interval",
                          "2",
                          "--advantage-estimator",
                          "reinforce_plus_plus",
                          "--num-epochs-per-rollout",
                          "2",
                          "--overlong-buffer-len",
                          "6",
                          "--dtype",
                          "bfloat16"};
  return with_flag(with_flag(with_custom_reward(train_arguments(run, more), reward), "--num-rollout",
                             std::to_string(kReferenceRollouts)),
                   "--rollout-batch-size", "2");
}

Arguments in_steps_of_four(Arguments arguments) { return with_flag(arguments, "--global-batch-size", "4"); }

std::string folder_of(const std::string& run, int step) {
  return run + "/checkpoints/step_00000" + std::to_string(step);
}

std::string reference_files_of(const std::string& run) {
  std::string text = timeless_metrics(run) + weights_of(run);
  for (const std::string& name : base::list_directory(run + "/samples"))
    text += name + base::read_file(run + "/samples/" + name);
  for (const char* name : {"/shard_00000.safetensors", "/state.json"}) {
    const std::string bytes = base::read_file(folder_of(run, kReferenceRollouts) + name);
    // The records' sizes depend on what clocks show.
    text += name == std::string("/state.json") ? bytes.substr(0, bytes.find("file_bytes")) : bytes;
  }
  return text;
}

class ReferenceResume : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new base::TemporaryDirectory();
    const std::string path = *shared_ / "undisturbed";
    const base::Clock::time_point begin = base::Clock::now();
    ASSERT_EQ(Program(in_steps_of_four(reference_arguments(path, write_reward(*shared_)))).wait(), 0);
    run_seconds_ = base::seconds_since(begin);
    undisturbed_ = reference_files_of(path);
  }
  static void TearDownTestSuite() { delete shared_; }
  void SetUp() override { reward_ = write_reward(folder_); }

  Arguments words(const std::string& run) const { return in_steps_of_four(reference_arguments(run, reward_)); }
  static Arguments go_on(Arguments arguments, const std::string& run) {
    arguments.insert(arguments.end(), {"--load", run, "--allow-fresh-start"});
    return arguments;
  }

  static inline base::TemporaryDirectory* shared_ = nullptr;
  static inline std::string undisturbed_;
  static inline double run_seconds_ = 0.0;
  base::TemporaryDirectory folder_;
  std::string reward_;
};

TEST_F(ReferenceResume, IsBitwiseFromEveryCheckpointResidentOrOffloaded) {
  for (int first = 1; first < kReferenceRollouts; ++first) {
    const std::string path = folder_ / ("run" + std::to_string(first));
    const Captured begun = run(with_flag(words(path), "--num-rollout", std::to_string(first)));
    ASSERT_EQ(begun.code, 0) << begun.err;
    const base::Json state = base::read_json_file(folder_of(path, first) + "/state.json");
    const std::string manifest = base::read_file(folder_of(path, first) + "/MANIFEST.json");
    EXPECT_EQ(state.value("reference_step", 0), first / 2 * 2);
    EXPECT_EQ(state.contains("reference_step"), first >= 2) << "before, it is that of --hf-checkpoint";
    EXPECT_EQ(manifest.find("\"reference.model.norm.weight\"") != std::string::npos, first >= 2);
    Arguments rest = go_on(words(path), path);
    if (first % 2 == 0) rest.emplace_back("--offload-reference");
    const Captured result = run(rest);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_TRUE(reference_files_of(path) == undisturbed_) << "behind rollout " << first;
  }
}

// Until it is renewed the reference is that of --hf-checkpoint, whose weights must be the same; then it is the
// checkpoint's.
TEST_F(ReferenceResume, NeedsTheWeightsOfItsDirectoryUntilItIsRenewed) {
  const std::string path = folder_ / "run", model = folder_ / "model", file = model + "/model.safetensors";
  std::filesystem::copy(kModel, model);
  const auto until = [&](const std::string& rollouts) {
    return with_flag(with_flag(go_on(words(path), path), "--hf-checkpoint", model), "--num-rollout", rollouts);
  };
  const std::string right = base::read_file(file);
  std::string wrong = right;
  wrong[wrong.size() - 2] = static_cast<char>(wrong[wrong.size() - 2] ^ 1);
  ASSERT_EQ(run(until("1")).code, 0);
  base::write_file_durably(file, wrong);
  expect_one_line_failure(run(until("2")), 2, "the weights of the reference --hf-checkpoint was ");
  base::write_file_durably(file, right);
  ASSERT_EQ(run(until("2")).code, 0);
  base::write_file_durably(file, wrong);
  const Captured result = run(until("3"));
  EXPECT_EQ(result.code, 0) << result.err;
}

// Returns the numbers of every tensor of a file whose name begins with `prefix`, by the rest of the name.
std::map<std::string, std::vector<double>> numbers_of_file(const std::string& path, const std::string& prefix) {
  const weights::SafetensorsFile file(path);
  std::map<std::string, std::vector<double>> result;
  for (const auto& [name, info] : file.tensors()) {
    if (!name.starts_with(prefix)) continue;
    const size_t element = info.dtype == "BF16" ? 2 : 4;
    EXPECT_TRUE(info.dtype == "BF16" || info.dtype == "F32") << name << ' ' << info.dtype;
    std::vector<std::byte> bytes(static_cast<size_t>(info.num_bytes()));
    file.read(info, 0, bytes);
    std::vector<double>& numbers = result[name.substr(prefix.size())];
    for (size_t i = 0; i < bytes.size(); i += element) {
      uint32_t bits = 0;
      std::memcpy(reinterpret_cast<std::byte*>(&bits) + (4 - element), &bytes[i], element);
      numbers.push_back(std::bit_cast<float>(bits));
    }
  }
  return result;
}

// A reference that becomes the policy computes as the policy does, and so does an average of both.
TEST_F(ReferenceResume, ComputesAsThePolicyWhoseWeightsItTakes) {
  const std::string other = folder_ / "other";
  std::filesystem::copy(kModel, other);
  base::Json config = base::read_json_file(other + "/config.json");
  config["rope_theta"] = 100.0;
  base::write_file_durably(other + "/config.json", config.dump());
  Arguments renewed = with_flag(words(folder_ / "renewed"), "--ref-load", other);
  expect_one_line_failure(run(renewed), 2, "--ref-load " + other + ": rope_theta of its config.json is not that of ");
  Arguments frozen = renewed;
  const auto at = std::find(frozen.begin(), frozen.end(), "--ref-update-interval");
  frozen.erase(at, at + 2);
  const auto first_kl = [&](const std::string& save, const std::string& reference) {
    const Captured result =
        run(with_flag(with_flag(with_flag(frozen, "--save", save), "--ref-load", reference), "--num-rollout", "1"));
    EXPECT_EQ(result.code, 0) << result.err;
    for (const base::Json& record : json_lines(save + "/metrics.jsonl"))
      if (record.contains("rollout/kl")) return record.at("rollout/kl").get<double>();
    ADD_FAILURE() << "no KL";
    return 0.0;
  };
  EXPECT_EQ(first_kl(folder_ / "same", kModel), 0.0);
  EXPECT_NE(first_kl(folder_ / "frozen", other), 0.0);
}

// An average once began at an adapter of zeros: its A was a share of the policy's too, so the product was the square of
// that share.
TEST_F(ReferenceResume, AnAverageOfAnAdapterBeginsAtThePolicysOwnA) {
  constexpr double kAlpha = 0.125;
  for (const char* const interval : {"1", "2"}) {
    SCOPED_TRACE(interval);
    const auto averaging = [&](const std::string& path) {
      Arguments all = with_flag(with_flag(words(path), "--ref-update-interval", interval), "--ref-mixup-alpha",
                                std::to_string(kAlpha));
      all.insert(all.end(), {"--lora-rank", "4"});
      return with_flag(all, "--keep-latest", "3");
    };
    const std::string whole = folder_ / (std::string("whole") + interval),
                      path = folder_ / (std::string("run") + interval);
    const Captured undisturbed = run(averaging(whole));
    ASSERT_EQ(undisturbed.code, 0) << undisturbed.err;
    const int renewed = std::stoi(interval);
    const auto reference = numbers_of_file(folder_of(whole, renewed) + "/shard_00000.safetensors", "reference.");
    const auto policy = numbers_of_file(folder_of(whole, renewed) + "/shard_00000.safetensors", "master.");
    ASSERT_EQ(reference.size(), policy.size());
    const auto length = [](const std::vector<double>& numbers) {
      double sum = 0.0;
      for (const double x : numbers) sum += x * x;
      return std::sqrt(sum);
    };
    for (const auto& [name, numbers] : reference) {
      const bool is_a = name.find("lora_A") != std::string::npos;
      const double wanted = (is_a ? 1.0 : kAlpha) * length(policy.at(name));
      EXPECT_NEAR(length(numbers), wanted, (is_a ? 0.05 : 0.01) * wanted) << name;
    }
    for (int first = 1; first < kReferenceRollouts; ++first) {
      const std::string cut = path + std::to_string(first);
      ASSERT_EQ(run(with_flag(averaging(cut), "--num-rollout", std::to_string(first))).code, 0);
      const Captured resumed = run(go_on(averaging(cut), cut));
      ASSERT_EQ(resumed.code, 0) << resumed.err;
      const std::string shard = "/shard_00000.safetensors";
      EXPECT_TRUE(base::read_file(folder_of(cut, 3) + shard) == base::read_file(folder_of(whole, 3) + shard)) << first;
      EXPECT_EQ(timeless_metrics(cut), timeless_metrics(whole)) << first;
    }
  }
}

// An average is kept in float32, and a copy of the policy in the policy's dtype. Such a run once could not go on.
TEST_F(ReferenceResume, GoesOnWithAReferenceOfAnotherPrecision) {
  const auto with_alpha = [&](const std::string& path, const std::string& alpha) {
    return with_flag(with_flag(with_flag(words(path), "--ref-update-interval", "1"), "--ref-mixup-alpha", alpha),
                     "--keep-latest", "3");
  };
  const auto reference = [](const std::string& path, int step) {
    return numbers_of_file(folder_of(path, step) + "/shard_00000.safetensors", "reference.");
  };
  for (const auto& [before, after] : {std::pair{"0.125", "1"}, {"1", "0.125"}}) {
    SCOPED_TRACE(before);
    const std::string path = folder_ / (std::string("from") + before);
    ASSERT_EQ(run(with_flag(with_alpha(path, before), "--num-rollout", "1")).code, 0);
    Arguments rest = go_on(with_alpha(path, after), path);
    rest.emplace_back("--allow-changed-config");
    const Captured result = run(with_flag(rest, "--num-rollout", "2"));
    ASSERT_EQ(result.code, 0) << result.err;
    const auto first = reference(path, 1), second = reference(path, 2);
    const std::string policy_file = path + "/hf/step_000002/model.safetensors";
    for (const auto& [name, policy] : numbers_of_file(policy_file, "")) {
      const double alpha = std::stod(after);
      for (size_t i = 0; i < policy.size(); ++i) {
        const double wanted = first.at(name)[i] + alpha * (policy[i] - first.at(name)[i]);
        ASSERT_NEAR(second.at(name)[i], wanted, 1e-6 * std::abs(wanted) + 1e-9) << name << ' ' << i;
      }
    }
  }
  // A run that renews it no more scores with it, rounded.
  const std::string path = folder_ / "from0.125";
  Arguments rest = go_on(with_alpha(path, "1"), path);
  const auto at = std::find(rest.begin(), rest.end(), "--ref-update-interval");
  rest.erase(at, at + 2);
  rest.emplace_back("--allow-changed-config");
  const Captured result = run(with_flag(rest, "--num-rollout", "3"));
  EXPECT_EQ(result.code, 0) << result.err;
}

// An adapter's reference is one that it had once. It stays what the checkpoint holds when the run that goes on renews
// it no more.
TEST_F(ReferenceResume, OfAnAdapterStaysAsItWasWithoutAnInterval) {
  const std::string path = folder_ / "run";
  Arguments begun = words(path);
  begun.insert(begun.end(), {"--lora-rank", "4", "--keep-latest", "3"});
  ASSERT_EQ(run(with_flag(begun, "--num-rollout", "2")).code, 0);
  Arguments rest = go_on(begun, path);
  const auto at = std::find(rest.begin(), rest.end(), "--ref-update-interval");
  rest.erase(at, at + 2);
  rest.emplace_back("--allow-changed-config");
  const Captured result = run(rest);
  ASSERT_EQ(result.code, 0) << result.err;
  const auto reference = [&](int step) {
    EXPECT_EQ(base::read_json_file(folder_of(path, step) + "/state.json")["reference_step"], 2) << step;
    return numbers_of_file(folder_of(path, step) + "/shard_00000.safetensors", "reference.");
  };
  EXPECT_FALSE(reference(2).empty());
  EXPECT_EQ(reference(3), reference(2));
}

// In bfloat16, with so small a share that a rounded average would stand still. The exports of the run are the policies
// that were averaged.
TEST_F(ReferenceResume, AnAverageIsThatOfEveryPolicyAndIsBitwise) {
  constexpr double kAlpha = 0.03125;
  const auto averaging = [&](const std::string& path) {
    return with_flag(with_flag(words(path), "--ref-update-interval", "1"), "--ref-mixup-alpha", std::to_string(kAlpha));
  };
  const std::string whole = folder_ / "whole", path = folder_ / "run";
  const Captured undisturbed = run(averaging(whole));
  ASSERT_EQ(undisturbed.code, 0) << undisturbed.err;
  auto want = numbers_of_file(std::string(kModel) + "/model.safetensors", "");
  bool has_moved = false;
  for (int step = 1; step <= kReferenceRollouts; ++step) {
    const auto policy = numbers_of_file(whole + "/hf/step_00000" + std::to_string(step) + "/model.safetensors", "");
    for (auto& [name, numbers] : want) {
      const std::vector<double>& now = policy.at(name);
      for (size_t i = 0; i < numbers.size(); ++i) {
        // The run begins with the model's weights in bfloat16.
        if (step == 1)
          numbers[i] = static_cast<double>(static_cast<float>(at::BFloat16(static_cast<float>(numbers[i]))));
        has_moved = has_moved || numbers[i] != now[i];
        numbers[i] += kAlpha * (now[i] - numbers[i]);
      }
    }
  }
  EXPECT_TRUE(has_moved);
  const auto got = numbers_of_file(folder_of(whole, kReferenceRollouts) + "/shard_00000.safetensors", "reference.");
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, numbers] : want) {
    for (size_t i = 0; i < numbers.size(); ++i)
      ASSERT_NEAR(got.at(name)[i], numbers[i], 1e-6 * std::abs(numbers[i]) + 1e-9) << name << ' ' << i;
  }

  ASSERT_EQ(run(with_flag(averaging(path), "--num-rollout", "2")).code, 0);
  Arguments rest = go_on(averaging(path), path);
  rest.emplace_back("--offload-reference");
  const Captured resumed = run(rest);
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_TRUE(reference_files_of(path) == reference_files_of(whole));
}

TEST_F(ReferenceResume, SurvivesKillAtRandomMoments) {
  const int64_t wanted = base::short_or_full(2, 300);
  const int seed = testing::UnitTest::GetInstance()->random_seed();  // set with --gtest_shuffle --gtest_random_seed=N
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  int64_t kills = 0, runs = 0;
  while (kills < wanted && !HasFailure()) {
    const std::string path = folder_ / ("killed" + std::to_string(runs++));
    const Arguments all = go_on(words(path), path);
    for (bool finished = false; !finished;) {
      const Program program(all);
      const double seconds =
          kills < wanted ? std::exponential_distribution<double>(1.0 / (0.7 * run_seconds_))(random) : 1e9;
      if (!program.wait_for(seconds)) program.signal(SIGKILL);
      const int code = program.wait();
      finished = code == 0;
      kills += code == -SIGKILL ? 1 : 0;
      ASSERT_TRUE(code == 0 || code == -SIGKILL) << "seed " << seed << " after " << kills << " kills: " << run(all).err;
    }
    EXPECT_TRUE(reference_files_of(path) == undisturbed_) << "seed " << seed << " after " << kills << " kills";
    std::filesystem::remove_all(path);
  }
}

}  // namespace
}  // namespace tandem::cli
