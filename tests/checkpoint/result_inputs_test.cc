// A checkpoint is resumed by the command that made it, and by no other.
#include "checkpoint/result_inputs.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "base/files.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/run_state.h"
#include "config/sft_config.h"
#include "config/train_config.h"
#include "options/options.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"
#include "tests/checkpoint/saved_contents.h"

namespace tandem::checkpoint {
namespace {

using Flags = std::map<std::string, std::string>;

// Returns what a checkpoint of a run with the default flags of a command remembers.
template <typename Config>
Flags flags_of() {
  Config config;
  options::Options options;
  config.visit(options);
  return options.result_options();
}

Flags without(Flags flags, const std::vector<std::string>& names) {
  for (const std::string& name : names) EXPECT_EQ(flags.erase(name), 1U) << name;
  return flags;
}

class ResultInputsTest : public testing::Test {
 protected:
  // Saves a checkpoint of a run with the flags `saved`. Returns the message that refuses to a run with the flags `now`
  // to resume from it; "" if it may.
  std::string refusal(const Flags& saved, const Flags& now, bool allow_changes) {
    RunState state;
    state.step = 1;
    state.result_inputs = saved;
    const Checkpoints checkpoints(run_);
    checkpoints.save(1, state.to_json(), Contents(1).tensors());
    return base::thrown_by([&] {
      check_same_command(checkpoints.open(1), now);
      check_can_resume(checkpoints.open(1), now, now, {}, allow_changes, /*num_records=*/1);
    });
  }

  const base::TemporaryDirectory folder_;
  const std::string run_ = folder_ / "run";
  const Flags train_ = flags_of<config::TrainConfig>(), sft_ = flags_of<config::SftConfig>();
};

TEST_F(ResultInputsTest, ARunOfAnotherCommandIsRefusedFirstAndAlone) {
  for (const bool allow_changes : {false, true}) {
    EXPECT_EQ(
        refusal(train_, sft_, allow_changes),
        fmt::format("--load: {0}/checkpoints/step_000001 is of a run of `tandem train`, which `tandem sft` cannot "
                    "resume; give it to `tandem train`, or begin a new run with its weights (--hf-checkpoint "
                    "{0}/hf/latest)",
                    run_));
    EXPECT_EQ(
        refusal(sft_, train_, allow_changes),
        fmt::format("--load: {0}/checkpoints/step_000001 is of a run of `tandem sft`, which `tandem train` cannot "
                    "resume; give it to `tandem sft`, or begin a new run with its weights (--hf-checkpoint "
                    "{0}/hf/latest)",
                    run_));
  }
}

TEST_F(ResultInputsTest, OlderCheckpointsStayWithTheirCommand) {
  const Flags older_train = without(train_, {"kl-coef", "mask-truncated-completions", "system-prompt"});
  const Flags older_sft = without(sft_, {"append-eos", "preference-loss", "preference-beta", "system-prompt"});
  EXPECT_EQ(refusal(older_train, train_, false), "");
  EXPECT_EQ(refusal(older_sft, sft_, false), "");
  EXPECT_TRUE(refusal(older_train, sft_, true).ends_with("/hf/latest)"));
  EXPECT_TRUE(refusal(older_sft, train_, true).ends_with("/hf/latest)"));
}

TEST_F(ResultInputsTest, OtherFlagsOfTheSameCommandAreReportedAsBefore) {
  for (Flags now : {train_, sft_}) {
    const Flags saved = now;
    EXPECT_EQ(refusal(saved, now, false), "");
    now["seed"] = "7";
    EXPECT_EQ(
        refusal(saved, now, false),
        fmt::format("--load: the run would resume differently: --seed was {} and is 7; give them as they were, or "
                    "--allow-changed-config",
                    saved.at("seed")));
    EXPECT_EQ(refusal(saved, now, true), "");
  }
}

// Their files are where the process is that scores.
TEST(FrozenWeights, WeightsOfAnotherProcessAreWhatItHasSaid) {
  const base::TemporaryDirectory model;
  const trainer::Schedule schedule;
  const Flags inputs = result_inputs(
      {.flags = {},
       .kernels = "",
       .schedule = schedule,
       .model_directory = model.path(),
       .frozen = {{.kind = "teacher", .flag = "--opd-teacher-address", .directory = "", .checksum = "1 in float32"}},
       .prompt_data = {},
       .text_prefix = {},
       .custom_rm_paths = {}});
  EXPECT_EQ(inputs.at("the weights of the teacher --opd-teacher-address"), "1 in float32");
}

// A reference computes with the rotation, windows and epsilon of its own config.json. A run once resumed with a changed
// file without a word.
TEST_F(ResultInputsTest, ConfigurationsBesideFrozenWeightsAreCompared) {
  const std::string model = "tests/golden/models/qwen2-tied", reference = folder_ / "reference";
  std::filesystem::copy(model, reference);
  const trainer::Schedule schedule;
  const auto inputs = [&] {
    return result_inputs({.flags = flags_of<config::TrainConfig>(),
                          .kernels = "",
                          .schedule = schedule,
                          .model_directory = model,
                          .frozen = {{.kind = "reference", .flag = "--ref-load", .directory = reference},
                                     {.kind = "teacher", .flag = "--opd-teacher-load", .directory = model}},
                          .prompt_data = {},
                          .text_prefix = {},
                          .custom_rm_paths = {}});
  };
  const Flags before = inputs();
  EXPECT_FALSE(before.contains("config.json of the teacher --opd-teacher-load")) << "it is that of --hf-checkpoint";
  const std::string name = "config.json of the reference --ref-load";
  for (const std::string& of_file : {name, std::string("the adapter's scale")}) EXPECT_TRUE(is_from_file(of_file));
  for (const std::string of_flag : {"lr", "the kernels"}) EXPECT_FALSE(is_from_file(of_flag)) << of_flag;
  base::Json config = base::read_json_file(reference + "/config.json");
  config["rope_theta"] = 123456.0;
  base::write_file_durably(reference + "/config.json", config.dump());
  EXPECT_NE(refusal(before, inputs(), false).find(name + " was "), std::string::npos);
  EXPECT_EQ(refusal(without(before, {name}), inputs(), false), "") << "it is of a version that did not compare them";
}

TEST(ModelFiles, AllChatTemplatesCount) {
  const base::TemporaryDirectory model;
  const std::string folder = model / "additional_chat_templates";
  base::write_file_durably(model / "chat_template.jinja", "plain");
  const trainer::Schedule schedule;
  const auto inputs = [&] {
    return result_inputs({.flags = {},
                          .kernels = "",
                          .schedule = schedule,
                          .model_directory = model.path(),
                          .prompt_data = {},
                          .text_prefix = {},
                          .custom_rm_paths = {}});
  };
  const std::map<std::string, std::string> without = inputs();
  EXPECT_TRUE(without.contains("chat_template.jinja of --hf-checkpoint"));
  base::make_directories(folder + "/deeper.jinja");
  base::write_file_durably(folder + "/notes.txt", "no template");
  EXPECT_EQ(inputs(), without);
  base::write_file_durably(folder + "/tool_use.jinja", "tools");
  const std::map<std::string, std::string> with = inputs();
  EXPECT_EQ(with.size(), without.size() + 1);
  EXPECT_TRUE(with.contains("additional_chat_templates/tool_use.jinja of --hf-checkpoint"));
  base::write_file_durably(folder + "/tool_use.jinja", "other tools");
  EXPECT_NE(inputs(), with);
  // The files are those that an export copies, so what it would refuse is not left out here.
  std::filesystem::create_symlink("/dev/null", folder + "/rag.jinja");
  EXPECT_THROW(inputs(), UserError);
}

}  // namespace
}  // namespace tandem::checkpoint
