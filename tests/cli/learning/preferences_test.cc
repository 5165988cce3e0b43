// Checks learning from preferences through the program: each loss against the reference that transformers made
// (tests/golden/preferences/make.py), a run that resumes, held-out pairs, and what is refused.
#include <cmath>
#include <filesystem>

#include "tests/cli/resume/reseal.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {
namespace {

const std::string kData = "tests/golden/preferences/";

Arguments arguments(const std::string& loss, const std::string& save, const Arguments& more = {}) {
  Arguments words = {"sft",
                     "--hf-checkpoint",
                     kModel,
                     "--prompt-data",
                     kData + (loss == "kto" ? "labelled.jsonl" : "pairs.jsonl"),
                     "--preference-loss",
                     loss,
                     "--preference-beta",
                     "0.3",
                     "--global-batch-size",
                     "2",
                     "--no-rollout-shuffle",
                     "--num-rollout",
                     "3",
                     "--lr",
                     "1e-3",
                     "--lr-decay-style",
                     "constant",
                     "--adam-beta2",
                     "0.98",
                     "--no-use-tensorboard",
                     "--save",
                     save};
  if (loss == "robust") words.insert(words.end(), {"--preference-label-smoothing", "0.1"});
  if (loss == "kto") words.insert(words.end(), {"--undesirable-weight", "1.5"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

std::vector<base::Json> steps_of(const std::string& run, const std::string& kind = "train") {
  std::vector<base::Json> result;
  for (const base::Json& record : json_lines(run + "/metrics.jsonl")) {
    if (record.contains(kind + "/step")) result.push_back(record);
  }
  return result;
}

TEST(Preferences, LearnWhatTheReferenceLearns) {
  base::TemporaryDirectory folder;
  const base::Json reference = base::parse_json(base::read_file(kData + "reference.json"), "reference.json");
  for (const auto& [loss, expected] : reference.items()) {
    SCOPED_TRACE(loss);
    const Captured result = run(arguments(loss, folder / loss));
    ASSERT_EQ(result.code, 0) << result.err;
    const std::vector<base::Json> steps = steps_of(folder / loss);
    ASSERT_EQ(steps.size(), expected.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      for (const auto& [name, value] : expected[i].items()) {
        const bool is_ours = name == "loss" || name == "grad_norm";
        const double seen = steps[i].at((is_ours ? "train/" : "preference/") + name).get<double>();
        const double wanted = value.get<double>();
        EXPECT_NEAR(seen, wanted, 2e-3 * std::max(0.05, std::abs(wanted))) << name << " of step " << i;
      }
      EXPECT_EQ(steps[i].at("train/train_rollout_logprob_abs_diff").get<double>(), 0.0);
    }
  }
}

TEST(Preferences, CompareWithTheReferenceThatIsNamed) {
  base::TemporaryDirectory folder;
  ASSERT_EQ(run(arguments("sigmoid", folder / "first")).code, 0);
  const std::string reference = folder / "first/hf/latest";
  const Arguments asked = with_flag(arguments("sigmoid", folder / "asked"), "--num-rollout", "1");
  ASSERT_EQ(run(with_flag(asked, "--hf-checkpoint", reference)).code, 0);
  const Captured result = run(arguments("sigmoid", folder / "compared", {"--ref-load", reference}));
  ASSERT_EQ(result.code, 0) << result.err;
  const base::Json policy = steps_of(folder / "first")[0], of_reference = steps_of(folder / "asked")[0],
                   seen = steps_of(folder / "compared")[0];
  for (const std::string which : {"chosen", "rejected"}) {
    const auto logps = [&](const base::Json& step) { return step.at("preference/" + which + "_logps").get<double>(); };
    EXPECT_EQ(logps(seen), logps(policy));
    EXPECT_NEAR(seen.at("preference/" + which + "_reward").get<double>(), 0.3 * (logps(policy) - logps(of_reference)),
                1e-6);
  }
  EXPECT_NE(seen.at("preference/chosen_reward").get<double>(), 0.0);
  // The weights of the start, named, are what is compared with anyway.
  ASSERT_EQ(run(arguments("sigmoid", folder / "same", {"--ref-load", kModel})).code, 0);
  EXPECT_EQ(weights_of(folder / "same"), weights_of(folder / "first"));
  EXPECT_NE(weights_of(folder / "compared"), weights_of(folder / "first"));
  expect_one_line_failure(run(arguments("sigmoid", folder / "refused", {"--ref-load", "tests/golden/models/gemma3"})),
                          2, "not the shape of --hf-checkpoint");
}

// It was once computed with the policy's rotation, and the margin of the first step was 0.
TEST(Preferences, ComputeTheReferenceByItsOwnConfiguration) {
  base::TemporaryDirectory folder;
  const std::string other = folder / "other";
  std::filesystem::copy(kModel, other);
  const auto configure = [&](const std::string& key, const base::Json& value) {
    base::Json config = base::read_json_file(other + "/config.json");
    config[key] = value;
    base::write_file_durably(other + "/config.json", config.dump());
  };
  configure("rope_theta", 100.0);
  const auto first_step = [&](const std::string& save, const Arguments& more, const std::string& model) {
    const Captured result = run(with_flag(with_flag(arguments("sigmoid", folder / save, more), "--num-rollout", "1"),
                                          "--hf-checkpoint", model));
    EXPECT_EQ(result.code, 0) << result.err;
    return steps_of(folder / save).at(0);
  };
  const base::Json policy = first_step("policy", {}, kModel), of_reference = first_step("asked", {}, other);
  for (const Arguments& more : {Arguments{}, Arguments{"--lora-rank", "4"}}) {
    Arguments flags = {"--ref-load", other};
    flags.insert(flags.end(), more.begin(), more.end());
    const base::Json seen = first_step("seen" + std::to_string(more.size()), flags, kModel);
    for (const std::string which : {"chosen", "rejected"}) {
      const auto logps = [&](const base::Json& step) {
        return step.at("preference/" + which + "_logps").get<double>();
      };
      EXPECT_NE(logps(policy), logps(of_reference));
      EXPECT_NEAR(seen.at("preference/" + which + "_reward").get<double>(), 0.3 * (logps(policy) - logps(of_reference)),
                  1e-6);
    }
  }
}

// Matrices of one shape may be those of other heads.
TEST(Preferences, RefuseAReferenceWithOtherHeads) {
  base::TemporaryDirectory folder;
  const std::string model = "tests/golden/models/qwen2-tied", other = folder / "other";
  std::filesystem::copy(model, other);
  base::Json config = base::read_json_file(other + "/config.json");
  config["num_attention_heads"] = 12;
  config["num_key_value_heads"] = 4;
  base::write_file_durably(other + "/config.json", config.dump());
  expect_one_line_failure(run(with_flag(arguments("sigmoid", folder / "run", {"--ref-load", other, "--dry-run"}),
                                        "--hf-checkpoint", model)),
                          2, "num_attention_heads is 12 in its config.json and 6 in that of --hf-checkpoint");
}

// The reference is the weights that the first run began with, also of a run that goes on.
TEST(Preferences, ResumeBitForBit) {
  base::TemporaryDirectory folder;
  for (const char* const loss : {"sigmoid", "kto"}) {
    SCOPED_TRACE(loss);
    const Arguments evaluated = {"--eval-prompt-data", "same", arguments(loss, "")[4], "--eval-interval", "2"};
    const auto with = [&](const std::string& save, const char* steps, Arguments more) {
      more.insert(more.end(), evaluated.begin(), evaluated.end());
      return run(with_flag(arguments(loss, save, more), "--num-rollout", steps));
    };
    const std::string whole = folder / (std::string(loss) + "_whole"),
                      parted = folder / (std::string(loss) + "_parted");
    ASSERT_EQ(with(whole, "5", {}).code, 0);
    ASSERT_EQ(with(parted, "3", {}).code, 0);
    const Captured rest = with(parted, "5", {"--load", parted});
    ASSERT_EQ(rest.code, 0) << rest.err;
    EXPECT_EQ(weights_of(parted), weights_of(whole));
    EXPECT_EQ(steps_of(parted).back().at("train/loss"), steps_of(whole).back().at("train/loss"));
    const base::Json first = steps_of(whole, "eval").front(), last = steps_of(whole, "eval").back();
    EXPECT_LT(last.at("eval/same/loss").get<double>(), first.at("eval/same/loss").get<double>());
    EXPECT_EQ(last.contains("eval/same/accuracy"), std::string(loss) == "sigmoid");
  }
}

// A run once went on with other reference weights without a word. A checkpoint of before they were compared goes on.
TEST(Preferences, ResumeWithTheirReferenceAlone) {
  base::TemporaryDirectory folder;
  const auto changes = [](const std::string& path) {
    std::string bytes = base::read_file(path);
    bytes[bytes.size() - 2] = static_cast<char>(bytes[bytes.size() - 2] ^ 1);
    base::write_file_durably(path, bytes);
  };
  const std::string model = folder / "model", adapter = folder / "adapter";
  std::filesystem::copy(kModel, model);
  std::filesystem::copy("tests/golden/lora", adapter);
  struct Row {
    std::string name;
    Arguments flags;
    std::string file, what;
  };
  const std::vector<Row> rows = {
      {"named", {"--ref-load", model}, model + "/model.safetensors", "the reference --ref-load"},
      {"begun", {"--hf-checkpoint", model}, model + "/model.safetensors", "the reference --hf-checkpoint"},
      {"adapter",
       {"--hf-checkpoint", adapter, "--lora-rank", "4"},
       adapter + "/adapter_model.safetensors",
       "the adapter --hf-checkpoint"}};
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const std::string path = folder / ("run_" + row.name);
    Arguments words = arguments("sigmoid", path);
    for (size_t i = 0; i < row.flags.size(); i += 2) words = with_flag(words, row.flags[i], row.flags[i + 1]);
    const Captured begun = run(with_flag(words, "--num-rollout", "1"));
    ASSERT_EQ(begun.code, 0) << begun.err;
    words = with_flag(with_flag(words, "--load", path), "--num-rollout", "2");
    changes(row.file);
    expect_one_line_failure(run(words), 2, "differently: the weights of " + row.what + " was ");
    changes(row.file);
    const Captured resumed = run(words);
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    reseal(path + "/checkpoints/step_000002",
           [&](base::Json& state) { EXPECT_EQ(state["numbers"].erase("the weights of " + row.what), 1U); });
    changes(row.file);
    const Captured older = run(with_flag(words, "--num-rollout", "3"));
    EXPECT_EQ(older.code, 0) << older.err;
  }
}

TEST(Preferences, FlagsOfImitationAreSaidToBeIdle) {
  base::TemporaryDirectory folder;
  const Arguments idle = {"--dry-run", "--no-calculate-per-token-loss", "--label-key", "c"};
  const Captured pairs = run(arguments("sigmoid", folder / "run", idle));
  ASSERT_EQ(pairs.code, 0) << pairs.err;
  EXPECT_NE(pairs.err.find("--label-key: does nothing without --preference-loss none or kto"), std::string::npos);
  EXPECT_NE(pairs.err.find("--calculate-per-token-loss: does nothing without --preference-loss none"),
            std::string::npos);
  const Captured labelled = run(arguments("kto", folder / "run", {"--dry-run", "--label-key", "completion"}));
  EXPECT_EQ(labelled.code, 0) << labelled.err;
  EXPECT_EQ(labelled.err.find("does nothing"), std::string::npos) << labelled.err;
}

// They are scored in parts. A mean over a class is over its answers, wherever these lie in the file.
TEST(Preferences, HeldOutAnswersCountAlikeInAnyOrder) {
  base::TemporaryDirectory folder;
  const std::string once = kData + "labelled.jsonl";
  std::vector<std::string> desirable, undesirable;
  for (const base::Json& line : json_lines(once))
    (line.at("label").get<bool>() ? desirable : undesirable).push_back(line.dump() + "\n");
  std::string sorted, mixed;
  for (int i = 0; i < 70; ++i) sorted += desirable[i % desirable.size()];
  for (int i = 0; i < 70; ++i) sorted += undesirable[i % undesirable.size()];
  for (int i = 0; i < 70; ++i) mixed += desirable[i % desirable.size()] + undesirable[i % undesirable.size()];
  base::write_file_durably(folder / "sorted.jsonl", sorted);
  base::write_file_durably(folder / "mixed.jsonl", mixed);
  const Captured result = run(arguments("kto", folder / "run",
                                        {"--eval-interval", "3", "--eval-prompt-data", "once", once, "sorted",
                                         folder / "sorted.jsonl", "mixed", folder / "mixed.jsonl"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const base::Json seen = steps_of(folder / "run", "eval").back();
  for (const std::string name : {"chosen_logps", "rejected_logps", "chosen_reward", "rejected_reward", "margin"}) {
    const auto of = [&](const std::string& set) { return seen.at("eval/" + set + "/" + name).get<double>(); };
    EXPECT_NE(of("once"), 0.0) << name;
    EXPECT_NEAR(of("sorted"), of("once"), 1e-6) << name;
    EXPECT_NEAR(of("mixed"), of("once"), 1e-6) << name;
  }
}

// A step that has no undesirable answer says nothing of them.
TEST(Preferences, AMeanOverNoAnswerIsAbsent) {
  base::TemporaryDirectory folder;
  const std::string good = R"({"prompt": "1 + 2 =", "completion": " 3", "label": true})";
  base::write_file_durably(folder / "good.jsonl", good + "\n" + good + "\n");
  const Captured result = run(with_flag(arguments("kto", folder / "run"), "--prompt-data", folder / "good.jsonl"));
  ASSERT_EQ(result.code, 0) << result.err;
  const base::Json step = steps_of(folder / "run").front();
  EXPECT_TRUE(step.contains("preference/chosen_logps"));
  for (const char* const name : {"rejected_logps", "rejected_reward", "margin"})
    EXPECT_FALSE(step.contains(std::string("preference/") + name)) << name;
}

TEST(Preferences, AnAdapterLearnsToo) {
  base::TemporaryDirectory folder;
  const Captured result = run(arguments("sigmoid", folder / "run", {"--lora-rank", "4"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const std::vector<base::Json> steps = steps_of(folder / "run");
  EXPECT_DOUBLE_EQ(steps.front().at("train/loss").get<double>(), std::log(2.0));
  EXPECT_LT(steps.back().at("train/loss").get<double>(), std::log(2.0));
}

// The term that balances experts is part of the sum that is logged, as it is of what is learnt.
TEST(Preferences, TheirLossHasTheBalanceOfExperts) {
  base::TemporaryDirectory folder;
  const Arguments words = with_flag(arguments("sigmoid", folder / "run", {"--moe-aux-loss-coeff", "0.5"}),
                                    "--hf-checkpoint", "tests/golden/models/qwen3-moe");
  const Captured result = run(with_flag(words, "--num-rollout", "1"));
  ASSERT_EQ(result.code, 0) << result.err;
  const base::Json step = steps_of(folder / "run").at(0);
  constexpr double kLayers = 3;
  EXPECT_GT(step.at("moe/aux_loss").get<double>(), 0.5);
  EXPECT_NEAR(step.at("train/loss").get<double>(),
              std::log(2.0) + 0.5 * kLayers * step.at("moe/aux_loss").get<double>(), 1e-9);
}

TEST(Preferences, ConversationsAreReadAsTrlWritesThem) {
  base::TemporaryDirectory folder;
  const std::string user = R"({"role": "user", "content": "say yes"})",
                    good = R"({"role": "assistant", "content": "yes"})",
                    bad = R"({"role": "assistant", "content": "no"})";
  base::write_file_durably(folder / "data.jsonl", "{\"chosen\": [" + user + ", " + good + "], \"rejected\": [" + user +
                                                      ", " + bad + "]}\n" + "{\"prompt\": [" + user +
                                                      "], \"chosen\": [" + good + "], \"rejected\": [" + bad + "]}\n");
  const Captured result = run(with_flag(arguments("ipo", folder / "run"), "--prompt-data", folder / "data.jsonl"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(base::read_file(folder / "run/log.txt").find("2 pairs of 2 lines"), std::string::npos);
}

TEST(Preferences, MistakesAreNamedWithTheirPlace) {
  base::TemporaryDirectory folder;
  const auto refuses = [&](const std::string& loss, const std::string& line, const std::string& text) {
    base::write_file_durably(folder / "data.jsonl", line + "\n");
    expect_one_line_failure(run(with_flag(arguments(loss, folder / "run"), "--prompt-data", folder / "data.jsonl")), 2,
                            text);
  };
  refuses("sigmoid", R"({"prompt": "a", "chosen": " b"})", "the key rejected is missing");
  refuses("sigmoid", R"({"prompt": "a", "chosen": " b", "rejected": 3})", "rejected is a number");
  refuses("hinge", R"({"chosen": " b", "rejected": " c"})", "the key prompt is missing");
  refuses("ipo", R"({"chosen": [{"role": "user", "content": "a"}], "rejected": [{"role": "user", "content": "b"}]})",
          "do not begin with the same message");
  refuses("kto", R"({"prompt": "a", "completion": " b"})", "label is missing");
  refuses("kto", R"({"prompt": "a", "completion": " b", "label": "yes"})", "label is neither true nor false");
  expect_one_line_failure(run(arguments("sigmoid", folder / "run", {"--undesirable-weight", "2"})), 2,
                          "need --preference-loss kto");
  expect_one_line_failure(run(arguments("sigmoid", folder / "run", {"--preference-label-smoothing", "0.1"})), 2,
                          "needs --preference-loss robust");
  expect_one_line_failure(run(with_flag(arguments("kto", folder / "run"), "--global-batch-size", "1")), 2,
                          "at least 2");
}

}  // namespace
}  // namespace tandem::cli
