// Options are declared once and read from flags and file; every mistake is answered in one line.
#include "options/options.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <limits>

#include "base/files.h"
#include "base/json.h"
#include "base/sha256.h"
#include "options/help.h"
#include "options/names.h"
#include "tandem/error.h"
#include "tests/base/pseudo_terminal.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"

namespace tandem::options {
namespace {

using Words = std::vector<std::string>;

struct Config {
  int64_t batch = 32;
  double lr = 1e-6;
  bool colocate = false;
  std::string rm_type = "exact";
  std::string save;
  Words stop = {"a"};
  std::vector<int64_t> stop_ids;
  std::optional<int64_t> global_batch;
  std::optional<double> clip_high;
  std::optional<bool> offload;
  std::optional<std::string> label_key;

  template <class V>
  void visit(V& v) {
    v.option(batch, "rollout-batch-size", "rollout", "prompts per step").at_least(1).at_most(1e6);
    v.option(lr, "lr", "optimizer", "learning rate").greater_than(0);
    v.option(colocate, "colocate", "cluster", "share the device");
    v.option(rm_type, "rm-type", "reward", "how a completion is graded").one_of({"exact", "math", "dapo"});
    v.option(save, "save", "checkpoint", "run directory").required();
    v.option(stop, "rollout-stop", "rollout", "stop strings");
    v.option(stop_ids, "rollout-stop-token-ids", "rollout", "stop tokens").at_least(0);
    v.option(global_batch, "global-batch-size", "optimizer", "samples per optimizer step").at_least(1);
    v.option(clip_high, "eps-clip-high", "optimizer", "upper clip");
    v.option(offload, "offload-train", "cluster", "give memory back");
    v.option(label_key, "label-key", "data", "column of the label");
  }
  bool operator==(const Config&) const = default;
};

struct Parsed {
  Config config;
  Options options;
  Parsed() {
    config.visit(options);
    options.unsupported("use-wandb", "metrics go to metrics.jsonl and TensorBoard");
    options.unsupported("vllm-*", "Tandem has its own engine");
    options.unsupported("offload-*", "nothing else is offloaded");
  }
  ParsedAction parse(Words words) { return options.parse(words); }
};

std::string refusal_of_options(Words words) {
  Parsed parsed;
  words.insert(words.begin(), "--save=x");
  return base::thrown_by([&] { parsed.parse(words); }, "accepted");
}

class OptionsFile : public ::testing::Test {
 protected:
  std::string write(const std::string& text) {
    base::write_file_durably(directory_ / "c.toml", text);
    return directory_ / "c.toml";
  }
  std::string file_refusal(const std::string& text) {
    const std::string message = refusal_of_options({"--config", write(text)});
    return message.starts_with(directory_.path()) ? message.substr(directory_.path().size() + 1) : message;
  }
  base::TemporaryDirectory directory_;
};

TEST(Options, ReadsEveryKind) {
  Parsed p;
  EXPECT_EQ(p.parse({"--rollout-batch-size",
                     "8",
                     "--lr=3e-4",
                     "--colocate",
                     "--rm-type",
                     "math",
                     "--save",
                     "runs/x",
                     "--rollout-stop",
                     "[END]",
                     "-1",
                     "a,b",
                     "--rollout-stop-token-ids",
                     "5",
                     "6",
                     "--global-batch-size",
                     "64",
                     "--eps-clip-high",
                     "0.28",
                     "--no-offload-train",
                     "--label-key="}),
            ParsedAction::kRun);
  EXPECT_EQ(p.config.batch, 8);
  EXPECT_EQ(p.config.lr, 3e-4);
  EXPECT_TRUE(p.config.colocate);
  EXPECT_EQ(p.config.rm_type, "math");
  EXPECT_EQ(p.config.save, "runs/x");
  EXPECT_EQ(p.config.stop, (Words{"[END]", "-1", "a,b"}));
  EXPECT_EQ(p.config.stop_ids, (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(p.config.global_batch, 64);
  EXPECT_EQ(p.config.clip_high, 0.28);
  EXPECT_EQ(p.config.offload, false);
  EXPECT_EQ(p.config.label_key, "");
}

TEST(Options, GivesValuesAsJsonOfTheirKinds) {
  Parsed p;
  p.parse({"--rollout-batch-size", "8", "--lr=3e-4", "--colocate", "--rm-type", "math", "--save", "runs/x",
           "--rollout-stop", "a", "--rollout-stop-token-ids", "5", "6"});
  const base::Json values = p.options.values();
  EXPECT_EQ(values["rollout-batch-size"], 8);
  EXPECT_TRUE(values["rollout-batch-size"].is_number_integer());
  EXPECT_EQ(values["lr"], 3e-4);
  EXPECT_EQ(values["colocate"], true);
  EXPECT_EQ(values["rm-type"], "math");
  EXPECT_EQ(values["rollout-stop"], base::Json::array({"a"}));
  EXPECT_EQ(values["rollout-stop-token-ids"], base::Json::array({5, 6}));
  EXPECT_TRUE(values["eps-clip-high"].is_null());
  EXPECT_TRUE(values.contains("global-batch-size"));
}

TEST(Options, KeepsDefaultsOfWhatIsNotGiven) {
  Parsed p;
  p.parse({"--save", "x"});
  Config expected;
  expected.save = "x";
  EXPECT_EQ(p.config, expected);
}

TEST(Options, TakesValuesThatLookLikeFlags) {
  Parsed p;
  p.parse({"--save=--odd", "--lr", "1", "--rollout-stop="});
  EXPECT_EQ(p.config.save, "--odd");
  EXPECT_TRUE(p.config.stop.empty());
}

TEST(Options, RefusesWrongTypesAndRanges) {
  EXPECT_EQ(refusal_of_options({"--rollout-batch-size", "8x"}),
            "--rollout-batch-size: expects a whole number, not '8x'");
  EXPECT_EQ(refusal_of_options({"--rollout-batch-size", "1.5"}),
            "--rollout-batch-size: expects a whole number, not '1.5'");
  EXPECT_EQ(refusal_of_options({"--rollout-batch-size", ""}), "--rollout-batch-size: expects a whole number, not ''");
  EXPECT_EQ(refusal_of_options({"--rollout-batch-size", "0"}), "--rollout-batch-size: must be at least 1, not 0");
  EXPECT_EQ(refusal_of_options({"--rollout-batch-size", "1000001"}),
            "--rollout-batch-size: must be at most 1e+06, not 1000001");
  EXPECT_EQ(refusal_of_options({"--global-batch-size", "99999999999999999999"}),
            "--global-batch-size: '99999999999999999999' is too large or too small");
  EXPECT_EQ(refusal_of_options({"--lr", "0"}), "--lr: must be greater than 0, not 0");
  EXPECT_EQ(refusal_of_options({"--lr", "nan"}), "--lr: must be a number, not nan");
  EXPECT_EQ(refusal_of_options({"--lr", "1e-6 "}), "--lr: expects a number, not '1e-6 '");
  EXPECT_EQ(refusal_of_options({"--rollout-stop-token-ids", "3", "-4"}),
            "--rollout-stop-token-ids: must be at least 0, not -4");
  // The run once wrote such a value into its config.toml, which could then not be read.
  EXPECT_EQ(refusal_of_options({"--save", "a\xff"}), "--save: 'a\xEF\xBF\xBD' is no UTF-8 text; write it in UTF-8");
  EXPECT_EQ(refusal_of_options({"--colocate=maybe"}), "--colocate: expects true or false, not 'maybe'");
  EXPECT_EQ(refusal_of_options({"--no-colocate=true"}), "--no-colocate: takes no value");
  EXPECT_EQ(refusal_of_options({"--rm-type", "maths"}),
            "--rm-type: 'maths' is none of exact, math, dapo; did you mean math?");
}

// Returns the answers of an option with that range to each of these words; "" if it accepts the word.
template <typename T, typename Declare>
std::vector<std::string> answers(T field, Declare declare, const Words& words) {
  std::vector<std::string> said;
  for (const std::string& word : words) {
    Options options;
    declare(options.option(field, "x", "group", "help"));
    try {
      options.parse({"--x=" + word});
      said.emplace_back();
    } catch (const UserError& error) {
      said.emplace_back(error.what());
    }
  }
  return said;
}

TEST(Options, RangesThatLeaveOutTheirEndOrInfinity) {
  EXPECT_EQ(answers(0.5, [](Option& x) { x.at_least(0.0).less_than(1.0); }, {"0", "0.9999999999", "1", "inf", "nan"}),
            (Words{"", "", "--x: must be less than 1, not 1", "--x: must be less than 1, not inf",
                   "--x: must be a number, not nan"}));
  EXPECT_EQ(answers(0.5, [](Option& x) { x.at_least(0.25).or_zero(); }, {"0", "0.25", "0.2", "-1"}),
            (Words{"", "", "--x: must be 0 or at least 0.25, not 0.2", "--x: must be 0 or at least 0.25, not -1"}));
  EXPECT_EQ(answers(0.5, [](Option& x) { x.finite(); }, {"-1e300", "inf", "-inf"}),
            (Words{"", "--x: must be a finite number, not inf", "--x: must be a finite number, not -inf"}));
}

TEST(Options, ChoicesMayBeEmptyAndKnowWhatOthersHave) {
  const auto declare = [](Option& x) {
    x.one_of({"exact", "math"}).or_empty().unsupported({"f1", "boxed_*"}, "is not in Tandem yet");
    x.unsupported({"exactly"}, "is exact here");
  };
  EXPECT_EQ(answers(std::string(), declare, {"exact", "", "f1", "boxed_math", "exactly", "f2"}),
            (Words{"", "", "--x: 'f1' is not in Tandem yet", "--x: 'boxed_math' is not in Tandem yet",
                   "--x: 'exactly' is exact here", "--x: 'f2' is none of exact, math"}));
}

// A checkpoint from before an option had choices holds the base::fingerprint of its value.
TEST(Options, ChoicesCanBeRememberedAsFreeTextIs) {
  const auto remembered = [](auto declare) {
    std::string field = "grpo";
    Options options;
    declare(options.option(field, "x", "group", "help"));
    return options.result_options().at("x");
  };
  EXPECT_EQ(remembered([](Option& x) { x.one_of({"grpo", "gspo"}); }), "grpo");
  EXPECT_EQ(remembered([](Option& x) { x.one_of({"grpo", "gspo"}).fingerprinted(); }), remembered([](Option&) {}));
}

// These are the values that a version without an option used, where the option itself changed nothing.
TEST(Options, TellWhatACheckpointWithoutThemWasMadeWith) {
  int64_t count = 3;
  bool is_new = true;
  std::optional<double> unset;
  std::string free_text = "none", path;
  Options options;
  options.option(count, "count", "group", "help");
  options.option(is_new, "is-new", "group", "help").default_was_new();
  options.option(unset, "unset", "group", "help");
  options.option(free_text, "text", "group", "help");
  options.option(path, "path", "group", "help").does_not_affect_results();
  std::map<std::string, std::string> remembered = options.result_options();
  EXPECT_EQ(remembered.erase("is-new"), 1U);
  EXPECT_EQ(options.values_where_absent(), remembered);
  EXPECT_EQ(remembered.at("count"), "3");
  EXPECT_EQ(remembered.at("unset"), "unset");
  EXPECT_TRUE(base::is_fingerprint(remembered.at("text")));
  EXPECT_FALSE(remembered.contains("path"));
  options.parse({"--count", "4", "--text", "none"});
  EXPECT_EQ(options.result_options().at("text"), remembered.at("text")) << "a default may be typed";
  EXPECT_NE(options.result_options().at("count"), remembered.at("count"));
}

TEST(Options, RefusesWhatIsMissingOrExtra) {
  EXPECT_EQ(refusal_of_options({"--lr"}), "--lr: needs a value; one that begins with -- is written --lr=VALUE");
  EXPECT_EQ(refusal_of_options({"--lr", "--colocate"}),
            "--lr: needs a value; one that begins with -- is written --lr=VALUE");
  for (const std::string shown : {"--colocate", "--no-colocate"}) {
    EXPECT_EQ(refusal_of_options({shown, "true"}),
              shown + ": is a switch, without a value: --colocate or --no-colocate");
  }
  EXPECT_EQ(refusal_of_options({"--colocate", "yes"}),
            "unexpected argument 'yes': every option begins with -- and a name");
  EXPECT_EQ(refusal_of_options({"-x"}), "unexpected argument '-x': every option begins with -- and a name");
  EXPECT_EQ(refusal_of_options({"--config", "--lr", "1"}), "--config: needs a file name");
  Parsed p;
  EXPECT_THROW(p.parse({}), UserError);
}

// A script varies one flag by adding it last: "$CMD --lr 1e-5".
TEST(Options, TakesTheLastOfAFlagThatIsGivenTwice) {
  Parsed p;
  p.parse({"--save", "x", "--lr=1", "--colocate", "--rollout-stop", "a", "b", "--save=y", "--lr", "2", "--no-colocate",
           "--rollout-stop", "c"});
  EXPECT_EQ(p.config.save, "y");
  EXPECT_EQ(p.config.lr, 2.0);
  EXPECT_FALSE(p.config.colocate);
  EXPECT_EQ(p.config.stop, (Words{"c"}));
}

// Returns the list for a person, and the line for a script.
std::pair<std::string, std::string> mistakes(const Words& words) {
  Parsed parsed;
  try {
    parsed.parse(words);
  } catch (const OptionsError& error) {
    return {error.list("tandem train"), error.what()};
  }
  return {"", "no list"};
}

TEST(Options, TellAllMistakesAtOnce) {
  const auto [list, line] = mistakes({"--vllm-a", "1", "2", "--lr", "0", "--use-wandb", "--rollout-stop", "it's",
                                      "--lrr=1", "--colocate", "yes", "--vllm-b", "--vllm-a"});
  EXPECT_EQ(list,
            "not supported (3 flags):\n"
            "  Tandem has its own engine:\n"
            "    --vllm-a --vllm-b\n"
            "  metrics go to metrics.jsonl and TensorBoard:\n"
            "    --use-wandb\n"
            "to be mended (4 options):\n"
            "  --lr: must be greater than 0, not 0\n"
            "  --lrr: unknown option; did you mean --lr?\n"
            "  unexpected argument 'yes': every option begins with -- and a name\n"
            "  --save: is required: run directory\n"
            "what remains without the unsupported flags:\n"
            "  tandem train \\\n"
            "    --lr 0 --rollout-stop 'it'\\''s' --lrr=1 --colocate yes\n");
  EXPECT_EQ(line,
            "7 options cannot be used (3 not supported, 4 wrong); they are listed above, with the command line that "
            "remains");
}

struct MoreConfig {
  int64_t cache_bytes = 0;
  bool use_kl = false, unbiased = true;
  double kl_coef = 0.0;
  void visit(Options& options) {
    options.option(cache_bytes, "cache-bytes", "memory", "bytes of the cache").bytes().at_least(1024);
    options.option(use_kl, "use-kl", "loss", "add the KL");
    options.option(kl_coef, "kl-coef", "loss", "coefficient").needed_by(use_kl, "use-kl", "give 0.1");
    options.option(unbiased, "unbiased", "loss", "times the ratio").remembered_as("false", use_kl);
  }
};

// Returns the value of --cache-bytes, or the message that refuses it.
std::string cache_bytes(const Words& words) {
  MoreConfig config;
  Options options;
  config.visit(options);
  const std::string refusal = base::thrown_by([&] { options.parse(words); });
  return refusal.empty() ? std::to_string(config.cache_bytes) : refusal;
}

TEST(Options, BytesMayHaveAUnit) {
  EXPECT_EQ(cache_bytes({"--cache-bytes", "1GiB"}), "1073741824");
  EXPECT_EQ(cache_bytes({"--cache-bytes=1.5K"}), "1536");
  EXPECT_EQ(cache_bytes({"--cache-bytes", "2048"}), "2048");
  EXPECT_EQ(cache_bytes({"--cache-bytes", "1B"}), "--cache-bytes: must be at least 1024, not 1");
  EXPECT_EQ(cache_bytes({"--cache-bytes", "-1"}), "--cache-bytes: must be at least 1024, not -1");
  for (const char* wrong : {"1X", "GiB", "", "-1G", "1e9"}) {
    EXPECT_EQ(cache_bytes({"--cache-bytes", wrong}),
              std::string("--cache-bytes: expects bytes, such as 1073741824 or 1GiB, not '") + wrong + "'");
  }
  MoreConfig config;
  Options options;
  config.visit(options);
  const std::string help = options.help_text("tandem train", "Trains.");
  EXPECT_NE(help.find("--cache-bytes BYTES"), std::string::npos) << help;
  EXPECT_NE(help.find("powers of 1024"), std::string::npos) << help;
}

TEST_F(OptionsFile, BytesMayHaveAUnitThereToo) {
  EXPECT_EQ(cache_bytes({"--config", write("cache-bytes = \"4KiB\"\n")}), "4096");
  EXPECT_EQ(cache_bytes({"--config", write("cache-bytes = 4096\n")}), "4096");
}

TEST(Options, ASwitchMayNeedAnotherOption) {
  EXPECT_EQ(cache_bytes({"--use-kl"}), "--use-kl: needs --kl-coef; give 0.1");
  EXPECT_EQ(cache_bytes({"--use-kl", "--kl-coef", "0"}), "0") << "it was given";
  EXPECT_EQ(cache_bytes({"--kl-coef", "0.1"}), "0");
  EXPECT_EQ(cache_bytes({"--no-use-kl"}), "0");
}

TEST(Options, AnOptionThatDoesNothingIsRememberedAsItWas) {
  const auto remembered = [](const Words& words) {
    MoreConfig config;
    Options options;
    config.visit(options);
    EXPECT_EQ(options.values_where_absent().at("unbiased"), "false");
    options.parse(words);
    return options.result_options().at("unbiased");
  };
  EXPECT_EQ(remembered({}), "false");
  EXPECT_EQ(remembered({"--use-kl", "--kl-coef", "1"}), "true");
  EXPECT_EQ(remembered({"--use-kl", "--kl-coef", "1", "--no-unbiased"}), "false");
}

TEST(Options, ARefusedFlagTakesItsCompanionsAlong) {
  Parsed parsed;
  parsed.options.unsupported("method", "there is one method", {"lr", "colocate"});
  try {
    parsed.parse({"--save", "x", "--lr=0.1", "--method", "uniform", "--colocate", "--rm-type", "none"});
    FAIL() << "accepted";
  } catch (const OptionsError& error) {
    const std::string list = error.list("tandem train");
    EXPECT_NE(
        list.find("what remains without the unsupported flags:\n  tandem train \\\n    --save x --rm-type none\n"),
        std::string::npos)
        << list;
  }
}

TEST(Options, WhatIsMeantIsNotCalledMissing) {
  EXPECT_EQ(mistakes({"--sav", "x", "--lr", "0"}).first,
            "to be mended (2 options):\n"
            "  --sav: unknown option; did you mean --save?\n"
            "  --lr: must be greater than 0, not 0\n");
}

TEST(Options, AnswersATypoWithTheNearestName) {
  EXPECT_EQ(refusal_of_options({"--rollout-batchsize", "8"}),
            "--rollout-batchsize: unknown option; did you mean --rollout-batch-size?");
  EXPECT_EQ(refusal_of_options({"--rollout_batch_size=8"}),
            "--rollout_batch_size: unknown option; did you mean --rollout-batch-size?");
  EXPECT_EQ(refusal_of_options({"--no-colocat"}), "--no-colocat: unknown option; did you mean --no-colocate?");
  EXPECT_EQ(refusal_of_options({"--no-lr"}), "--no-lr: unknown option; --help lists what there is");
  EXPECT_EQ(refusal_of_options({"--confg", "x"}), "--confg: unknown option; did you mean --config?");
  EXPECT_EQ(refusal_of_options({"--global"}), "--global: unknown option; did you mean --global-batch-size?");
  EXPECT_EQ(refusal_of_options({"--help=3"}), "--help: takes no value");
  EXPECT_EQ(refusal_of_options({"--print-config=x"}), "--print-config: takes no value");
  EXPECT_EQ(refusal_of_options({"--zzzzzzzzzz"}), "--zzzzzzzzzz: unknown option; --help lists what there is");
}

TEST(Options, SaysWhyAKnownFlagIsNotSupported) {
  EXPECT_EQ(refusal_of_options({"--use-wandb"}),
            "--use-wandb: not supported: metrics go to metrics.jsonl and TensorBoard");
  EXPECT_EQ(refusal_of_options({"--no-use-wandb"}),
            "--no-use-wandb: not supported: metrics go to metrics.jsonl and TensorBoard");
  EXPECT_EQ(refusal_of_options({"--vllm-max-model-len", "9"}),
            "--vllm-max-model-len: not supported: Tandem has its own engine");
  // A family of flags that are not supported may begin as one that is.
  EXPECT_EQ(refusal_of_options({"--offload-experts"}), "--offload-experts: not supported: nothing else is offloaded");
  EXPECT_EQ(refusal_of_options({"--offload-tran"}), "--offload-tran: unknown option; did you mean --offload-train?");
}

TEST_F(OptionsFile, IsBeatenByTheCommandLine) {
  Parsed p;
  const std::string path =
      write("rollout-batch-size = 4\nlr = 1\nrollout-stop = ['x', \"\\n\"]\nsave = 'f'\ncolocate = true\n");
  p.parse({"--rollout-batch-size", "16", "--config", path, "--no-colocate"});
  EXPECT_EQ(p.config.batch, 16);
  EXPECT_EQ(p.config.lr, 1.0);
  EXPECT_EQ(p.config.stop, (Words{"x", "\n"}));
  EXPECT_EQ(p.config.save, "f");
  EXPECT_FALSE(p.config.colocate);
}

TEST_F(OptionsFile, TellsAllItsMistakesWithThoseOfTheCommandLine) {
  const std::string path = write("lr = 0\nuse-wandb = true\nsave = 'x'\n");
  const auto [list, line] = mistakes({"--config", path, "--vllm-a=1", "--rm-type", "maths"});
  EXPECT_EQ(list,
            "not supported (2 flags):\n"
            "  metrics go to metrics.jsonl and TensorBoard:\n"
            "    " +
                path +
                ":2:13: use-wandb\n"
                "  Tandem has its own engine:\n"
                "    --vllm-a\n"
                "to be mended (2 options):\n"
                "  " +
                path +
                ":1:6: lr: must be greater than 0, not 0\n"
                "  --rm-type: 'maths' is none of exact, math, dapo; did you mean math?\n"
                "what remains without the unsupported flags:\n"
                "  tandem train \\\n"
                "    --config " +
                path + " --rm-type maths\n");
  EXPECT_TRUE(line.starts_with("4 options cannot be used")) << line;
}

TEST_F(OptionsFile, TheLastFileBeatsTheOthers) {
  Parsed p;
  const std::string first = write("lr = 1\nsave = 'a'\nrollout-stop = ['x', 'y']\n");
  const std::string second = directory_ / "d.toml";
  base::write_file_durably(second, "lr = 2\nrollout-stop = ['z']\n");
  p.parse({"--config", first, "--config", second});
  EXPECT_EQ(p.config.lr, 2.0);
  EXPECT_EQ(p.config.save, "a");
  EXPECT_EQ(p.config.stop, (Words{"z"}));
}

TEST_F(OptionsFile, PointsAtItsMistakes) {
  EXPECT_EQ(file_refusal("lr = 1\nrolout-batch-size = 2\n"),
            "c.toml:2:21: rolout-batch-size: unknown option; did you mean rollout-batch-size?");
  EXPECT_EQ(file_refusal("no-colocate = true"),
            "c.toml:1:15: no-colocate: is a flag of the command line; write colocate = false");
  for (const std::string own : {"config", "print-config", "help"}) {
    EXPECT_TRUE(
        file_refusal(own + " = 'x'").ends_with(own + ": is of the command line alone; leave it out of the file"))
        << file_refusal(own + " = 'x'");
  }
  EXPECT_EQ(file_refusal("lr = 'x'"), "c.toml:1:6: lr: expects a number");
  EXPECT_EQ(file_refusal("rollout-batch-size = 2.0"), "c.toml:1:22: rollout-batch-size: expects a whole number");
  EXPECT_EQ(file_refusal("rollout-batch-size = 0"), "c.toml:1:22: rollout-batch-size: must be at least 1, not 0");
  EXPECT_EQ(file_refusal("colocate = 1"), "c.toml:1:12: colocate: expects true or false");
  EXPECT_EQ(file_refusal("rm-type = 5"), "c.toml:1:11: rm-type: expects text in quotes");
  EXPECT_EQ(file_refusal("rollout-stop = 'x'"), "c.toml:1:16: rollout-stop: expects a list in [ ]");
  EXPECT_EQ(file_refusal("lr = [1]"), "c.toml:1:6: lr: expects one value, not a list");
  EXPECT_EQ(file_refusal("[rollout]\nlr = 1"),
            "c.toml:1:1: rollout: is a table; write every option as name = value at the top level");
  EXPECT_EQ(file_refusal("vllm-config = 1"), "c.toml:1:15: vllm-config: not supported: Tandem has its own engine");
  EXPECT_TRUE(file_refusal("lr = 1\nlr = 2\n").starts_with("c.toml:2:")) << file_refusal("lr = 1\nlr = 2\n");
  EXPECT_TRUE(file_refusal("lr = \n").starts_with("c.toml:1:")) << file_refusal("lr = \n");
  EXPECT_EQ(refusal_of_options({"--config", "/none.toml"}), "/none.toml: cannot open: No such file or directory");
  EXPECT_EQ(refusal_of_options({"--config"}), "--config: needs a file name");
}

// toml++ 3.3 ended the process in an assert at the first, ran into code that it declares unreachable at the next five,
// and overflowed the stack with a million parts of the last (tests/fuzz/config_file.cc found all but that).
TEST_F(OptionsFile, RefusesWhatItsLibraryDoesNotSurvive) {
  EXPECT_TRUE(file_refusal("[#").starts_with("c.toml:1:2: ")) << file_refusal("[#");
  for (const std::string text : {"lr = 1\nsave = \xD0\xA0\n", "\nlr = 5'\xD0\xA0'\n", "\nlr = 1_000[\"\xEF\xBB\xB7\n",
                                 "\n\"\"\"\"{\"\xEF\xBB\xAF\"\"\"\"", "\nlr=1:x=\"\xEF\xBB\x9F\"\n"}) {
    EXPECT_TRUE(file_refusal(text).starts_with("c.toml:2:")) << text << "\n" << file_refusal(text);
  }
  EXPECT_EQ(file_refusal("lr = 1 # " + std::string(501, '.')),
            "c.toml:1:510: a name of many parts; write every option as name = value");
}

TEST_F(OptionsFile, TakesAnyCharacterInStringsAndComments) {
  Parsed p;
  p.parse({"--config", write("\xEF\xBB\xBFsave = '\xD0\xA0 \"'  # \xD0\xA0 ' \"\n"
                             "rollout-stop = [\"\\\"\xC3\xA9\", '''\n\xD0\xA0''''',\n  \"\"\"a\\\"\"\"\", # [\n\"\"]\n"
                             "lr = 1.5\neps-clip-high = 0.25")});
  EXPECT_EQ(p.config.save, "\xD0\xA0 \"");
  EXPECT_EQ(p.config.stop, (Words{"\"\xC3\xA9", "\xD0\xA0''", "a\"", ""}));
  EXPECT_EQ(p.config.clip_high, 0.25);
}

TEST_F(OptionsFile, IsToldOfOnOneLine) {
  EXPECT_EQ(file_refusal("rm-type = \"ma\\nth\""),
            "c.toml:1:11: rm-type: 'ma\\nth' is none of exact, math, dapo; did you mean math?");
  EXPECT_EQ(file_refusal("\"l\\nr\" = 1"), "c.toml:1:10: l\\nr: unknown option; did you mean lr?");
}

TEST_F(OptionsFile, PrintedReadsBackToTheSameConfig) {
  Parsed first;
  first.config.lr = 123456789012345680000.0;
  first.config.clip_high = std::numeric_limits<double>::infinity();
  first.config.stop = {"\"quoted\"\\", "line\nbreak\x01", "\xC3\xA9", "#"};
  first.config.stop_ids = {1, 2};
  EXPECT_EQ(first.parse({"--print-config", "--offload-train", "--save", "x y"}), ParsedAction::kPrintConfig);
  Parsed second;
  second.parse({"--config", write(first.options.config_text())});
  EXPECT_EQ(second.config, first.config);
  EXPECT_EQ(second.options.config_text(), first.options.config_text());
  // An unset option stays unset, and --print-config needs no required option.
  Parsed bare;
  EXPECT_EQ(bare.parse({"--print-config"}), ParsedAction::kPrintConfig);
  EXPECT_NE(bare.options.config_text().find("\n# save =\n"), std::string::npos);
  EXPECT_NE(bare.options.config_text().find("\n# global-batch-size =\n"), std::string::npos);
}

// A file that is read again must not load or replace anything again.
TEST(Options, EachGroupIsPrintedOnce) {
  const std::string text = Parsed().options.config_text();
  const std::string heading = "\n# rollout\n";
  ASSERT_NE(text.find(heading), std::string::npos) << text;
  EXPECT_EQ(text.find(heading), text.rfind(heading)) << text;
}

// Returns the mistakes of a verb that knows names of other programs and of other commands.
std::string refusal_with_other_names(const Words& words) {
  Parsed parsed;
  parsed.options.known_elsewhere("trainer.save_freq", "verl's trainer.save_freq is --save here");
  parsed.options.known_to_other_commands([](const std::string& name) {
    return name == "num-views" || name == "vllm-views" || name == "label-key" || name == "no-colocate"
               ? "is a flag of `tandem view` and not of `tandem train`"
               : "";
  });
  return base::thrown_by([&] { parsed.parse(words); }, "accepted");
}

TEST_F(OptionsFile, AnOptionInATableIsNotCalledMissing) {
  Parsed parsed;
  const std::string path = write("[checkpoint]\nsave = 'x'");
  EXPECT_EQ(base::thrown_by([&] { parsed.parse({"--config", path}); }),
            path + ":1:1: checkpoint: is a table; write every option as name = value at the top level");
}

TEST_F(OptionsFile, AKeyWithDotsThatNobodyQuotedIsFoundToo) {
  const auto refusal = [&](const std::string& text) {
    return refusal_with_other_names({"--config", write(text)}).substr(directory_.path().size() + 1);
  };
  const std::string known = "trainer.save_freq: verl's trainer.save_freq is --save here";
  EXPECT_EQ(refusal("trainer.save_freq = 3"), "c.toml:1:21: " + known);
  EXPECT_EQ(refusal("'trainer.save_freq' = 3"), "c.toml:1:23: " + known);
  EXPECT_EQ(refusal("[trainer]\nsave_freq = 3"), "c.toml:2:13: " + known);
  EXPECT_TRUE(refusal("trainer.x.y = 3\nsave = 'x'")
                  .ends_with("trainer: is a table; write every option as name = value at the top level"));
}

TEST(Options, AFlagOfAnotherCommandIsSaidToBeThat) {
  const std::string answer = "is a flag of `tandem view` and not of `tandem train`";
  EXPECT_EQ(refusal_with_other_names({"--save=x", "--num-views", "3"}), "--num-views: " + answer);
  EXPECT_EQ(refusal_with_other_names({"--save=x", "--num_views=3"}), "--num_views: --num-views " + answer);
  EXPECT_EQ(refusal_with_other_names({"--save=x", "--label_key=y"}),
            "--label_key: unknown option; did you mean --label-key?");
  EXPECT_EQ(refusal_with_other_names({"--save=x", "--no_colocate"}),
            "--no_colocate: unknown option; did you mean --no-colocate?");
  EXPECT_EQ(refusal_with_other_names({"--save=x", "--vllm-views", "3"}), "--vllm-views: " + answer)
      << "it is of no family of refused flags";
  EXPECT_EQ(refusal_with_other_names({"--save=x", "--vllm-other", "3"}),
            "--vllm-other: not supported: Tandem has its own engine");
}

TEST(Options, WordsThatBelongToNoFlagArePositional) {
  const auto runs_of = [](const Words& words) {
    Words runs;
    std::string output;
    bool quiet = false;
    Options options;
    options.option(runs, "run", "view", "runs").positional();
    options.option(output, "output", "view", "file");
    options.option(quiet, "quiet", "view", "less");
    options.parse(words);
    return runs;
  };
  EXPECT_EQ(runs_of({"a", "b", "--output", "x"}), (Words{"a", "b"}));
  EXPECT_EQ(runs_of({"--output", "x", "a", "b"}), (Words{"a", "b"}));
  EXPECT_EQ(runs_of({"a", "--quiet", "b", "--output=x", "c"}), (Words{"a", "b", "c"}));
  EXPECT_EQ(runs_of({"--run", "a", "--output", "x", "b"}), (Words{"a", "b"}));
  EXPECT_EQ(runs_of({"--run=a", "b"}), (Words{"a", "b"}));
  EXPECT_THROW(runs_of({"--run"}), UserError);
}

TEST(Options, WhatIsOfOneCommandIsWrittenAsAComment) {
  std::string load;
  bool overwrite = false;
  int64_t steps = 0;
  Options options("/users/ann");
  options.option(load, "load", "output", "").path().of_one_command();
  options.option(overwrite, "overwrite", "output", "").of_one_command();
  options.option(steps, "num-steps", "output", "");
  options.parse({"--load", "runs/x", "--overwrite", "--num-steps", "3"});
  const std::string text = options.text_to_repeat();
  EXPECT_NE(text.find("\n# load = \"runs/x\"\n# overwrite = true\nnum-steps = 3\n"), std::string::npos) << text;
  EXPECT_NE(options.config_text().find("\nload = \"runs/x\"\noverwrite = true\n"), std::string::npos);
}

TEST(Options, HelpShowsGroupsDefaultsAndChoices) {
  Parsed p;
  EXPECT_EQ(p.parse({"--nonsense", "--help"}), ParsedAction::kHelp);
  const std::string help = p.options.help_text("tandem train [options]", "Trains.");
  EXPECT_TRUE(help.starts_with("Usage: tandem train [options]\n\nTrains.\n\nrollout:\n")) << help;
  const auto has = [&](const std::string& part) { return help.find(part) != std::string::npos; };
  EXPECT_TRUE(has("  --rollout-batch-size N            prompts per step (default: 32)\n")) << help;
  EXPECT_TRUE(has("  --[no-]colocate                   share the device\n")) << help;
  EXPECT_TRUE(has("[exact|math|dapo] (default: exact)\n")) << help;
  EXPECT_TRUE(has("run directory (required)\n")) << help;
  EXPECT_LT(help.find("\noptimizer:\n"), help.find("\ngeneral:\n"));
}

// Returns help_columns() of a process whose standard streams are a terminal of so many columns.
int columns_at_a_terminal(int columns, const char* typed) {
  base::PseudoTerminal terminal(columns, [&] {
    if (typed != nullptr) setenv("COLUMNS", typed, 1);
    if (typed == nullptr) unsetenv("COLUMNS");
    return static_cast<int>(help_columns(STDOUT_FILENO));
  });
  return terminal.wait();
}

TEST(Help, IsAsWideAsTheTerminal) {
  EXPECT_EQ(columns_at_a_terminal(95, nullptr), 95);
  EXPECT_EQ(columns_at_a_terminal(40, nullptr), 60);
  EXPECT_EQ(columns_at_a_terminal(200, nullptr), 120);
  EXPECT_EQ(columns_at_a_terminal(0, nullptr), 80) << "it does not say";
  EXPECT_EQ(columns_at_a_terminal(95, "70"), 70);
  EXPECT_EQ(columns_at_a_terminal(95, "wide"), 95);
  EXPECT_EQ(help_columns(-1), 110U) << "no terminal";
}

TEST(Help, LinesEndBeforeTheirWidthAndLongChoicesAreBroken) {
  const auto wrapped = [](std::string_view text, size_t indent, size_t columns) {
    std::string out;
    append_wrapped(out, text, indent, columns);
    return out;
  };
  EXPECT_EQ(wrapped("one two three", 2, 10), "one two\n  three\n");
  EXPECT_EQ(wrapped("one two three", 2, 9), "one two\n  three\n");
  EXPECT_EQ(wrapped("one two three", 2, 8), "one\n  two\n  three\n");
  EXPECT_EQ(wrapped("of [aa|bb|cc|dd] (x)", 2, 10), "of\n  [aa|bb|\n  cc|dd]\n  (x)\n");
  EXPECT_EQ(wrapped("of [aa|bb|cc|dd] (x)", 2, 12), "of\n  [aa|bb|cc|\n  dd] (x)\n");
  EXPECT_EQ(wrapped("[long_name|b]", 2, 8), "[long_name|\n  b]\n") << "one choice may be longer than a line";
  EXPECT_EQ(wrapped("no/place/to/break", 2, 8), "no/place/to/break\n");
  EXPECT_EQ(wrapped("", 2, 8), "\n");
}

TEST(NearestName, PrefersTheFewestEdits) {
  EXPECT_EQ(nearest_name("lrr", {"save", "lr", "lr-decay"}), "lr");
  EXPECT_EQ(nearest_name("bf16", {"auto", "float32", "bfloat16"}), "bfloat16");
  EXPECT_EQ(nearest_name("f32", {"auto", "float32", "bfloat16"}), "float32");
  EXPECT_EQ(nearest_name("int8", {"auto", "float32", "bfloat16"}), std::nullopt);
  EXPECT_EQ(nearest_name("x", {"lr", "save"}), std::nullopt);
  EXPECT_EQ(nearest_name("", {"lr"}), std::nullopt);
}

TEST(Options, PathsAreWrittenWithoutTheHomeDirectory) {
  struct {
    std::string save, text;
    Words data;
  } config;
  const auto declare = [&config](Options& options) {
    options.option(config.save, "save", "output", "").path();
    options.option(config.data, "eval-prompt-data", "data", "").path();
    options.option(config.text, "rollout-stop", "rollout", "");
  };
  Options options("/users/ann");
  declare(options);
  options.parse({"--save", "/users/ann/run", "--eval-prompt-data", "a", "~/a.jsonl@[0:5]", "--rollout-stop", "~/"});
  EXPECT_EQ(config.data, (Words{"a", "/users/ann/a.jsonl@[0:5]"}));
  EXPECT_EQ(config.text, "~/") << "no path";
  const std::string text = options.config_text();
  EXPECT_EQ(text.find("ann"), std::string::npos) << text;
  EXPECT_NE(text.find("save = \"~/run\""), std::string::npos) << text;

  base::TemporaryDirectory folder;
  base::write_file_durably(folder / "config.toml", text);
  Options elsewhere("/users/bob");  // the same file on another machine
  declare(elsewhere);
  elsewhere.parse({"--config", folder / "config.toml"});
  EXPECT_EQ(config.save, "/users/bob/run");
  EXPECT_EQ(config.data, (Words{"a", "/users/bob/a.jsonl@[0:5]"}));
}

}  // namespace
}  // namespace tandem::options
