// Names of TRL and verl are answered, each with what it is here.
#include "config/other_trainers/other_trainers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/files.h"
#include "base/json.h"
#include "config/other_trainers/unsupported_flags.h"
#include "config/train_config.h"
#include "tandem/error.h"

namespace tandem::config {
namespace {

class OtherTrainers : public testing::Test {
 protected:
  OtherTrainers() {
    config_.visit(options_);
    options_.require_only({});
    declare_other_trainers(options_);
  }
  std::string refusal(const std::vector<std::string>& words) {
    try {
      options_.parse(words);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  TrainConfig config_;
  base::Options options_;
};

// trl_fields.txt: the fields of GRPOConfig and ModelConfig of TRL 1.16.0, with those of TrainingArguments of
// transformers 5.24.0 under them. A '-' marks one that has no counterpart and asks for none.
TEST_F(OtherTrainers, EveryFieldOfGrpoConfigIsAnsweredOrHasNoCounterpart) {
  const base::Json ours = options_.values();
  const auto is_answered = [&](std::string name) {
    if (std::ranges::find(names_of_trl(), name, &OtherName::name) != names_of_trl().end()) return true;
    std::ranges::replace(name, '_', '-');
    return ours.contains(name) || find_unsupported_flag(name) != nullptr;
  };
  std::istringstream lines(base::read_file("tests/config/trl_fields.txt"));
  int num_fields = 0, num_unanswered = 0;
  for (std::string line; std::getline(lines, line); ++num_fields) {
    const bool has_none = line.ends_with(" -");
    num_unanswered += has_none ? 1 : 0;
    EXPECT_NE(is_answered(line.substr(0, line.find(' '))), has_none) << line;
  }
  EXPECT_EQ(num_fields, 210);
  EXPECT_EQ(num_unanswered, 82);
}

TEST_F(OtherTrainers, UnknownNamesLeadToThePageOfOtherTrainers) {
  EXPECT_EQ(
      refusal({"--zzzzzzzzzz"}),
      "--zzzzzzzzzz: unknown option; --help lists what there is, docs/COMING_FROM.md what other trainers call it");
  for (const char* word : {"trainer.no_such_key=1", "+data.no_such_key=1", "actor_rollout_ref.actor.no_such=1",
                           "algorithm.no_such=1", "reward.no_such=1", "reward_model.no_such=1", "critic.optim.lr=1"}) {
    EXPECT_EQ(refusal({word}), "'" + std::string(word) +
                                   "': this key of verl has no counterpart that Tandem knows; docs/COMING_FROM.md "
                                   "lists the keys that have one");
  }
  EXPECT_EQ(refusal({"trainer.save_freq=1"}),
            "'trainer.save_freq=1': verl's trainer.save_freq is --save-interval here");
  EXPECT_EQ(refusal({"nothing=like"}),
            "unexpected argument 'nothing=like': every option begins with -- and a name; "
            "docs/COMING_FROM.md lists keys of verl");
}

}  // namespace
}  // namespace tandem::config
