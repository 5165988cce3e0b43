// Names of other trainers are answered, each with what it is here.
#include "config/other_trainers/other_trainers.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/json.h"
#include "config/other_trainers/unsupported_flags.h"
#include "config/sft_config.h"
#include "config/train_config.h"
#include "tests/base/thrown.h"

namespace tandem::config {
namespace {

using Arguments = std::vector<std::string>;

// Has the options of a verb as its command line has them.
template <typename Config>
class Verb {
 public:
  Verb() {
    config_.visit(options_);
    options_.require_only({});
    declare_other_trainers(options_);
    values_ = options_.values();
  }
  const base::Json& values() const { return values_; }
  // Returns the message that refuses these words; "" if none does.
  std::string refusal(const Arguments& words) {
    return base::thrown_by([&] { options_.parse(words); });
  }
  // Returns the answer to a flag of this name, whether it is refused or unknown.
  std::string answer_to(const std::string& name) {
    std::string text = refusal({"--" + name, "1"});
    for (const std::string& beginning : {"--" + name + ": ", std::string("not supported: ")}) {
      if (text.starts_with(beginning)) text.erase(0, beginning.size());
    }
    return text;
  }

 private:
  Config config_;
  options::Options options_;
  base::Json values_;
};

std::string dashed(std::string name) {
  std::ranges::replace(name, '_', '-');
  return name;
}

class OtherTrainers : public testing::Test {
 protected:
  std::string refusal(const Arguments& words) { return train_.refusal(words); }
  Verb<TrainConfig> train_;
  Verb<SftConfig> sft_;
};

// trl_fields.txt: the fields of GRPOConfig and ModelConfig of TRL 1.16.0, with those of TrainingArguments of
// transformers 5.24.0 under them. A '-' marks one that has no counterpart and asks for none.
TEST_F(OtherTrainers, EveryFieldOfGrpoConfigIsAnsweredOrHasNoCounterpart) {
  const base::Json& ours = train_.values();
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

std::vector<std::span<const OtherName>> all_tables() {
  return {names_of_trl(),   names_of_preferences(), names_of_sft(),     names_of_verl(),
          names_of_areal(), names_of_verl_sft(),    names_of_prime_rl()};
}

// Compares the answers to every name of the tables that is no option of the verb, with dashes and with underscores.
// Returns how many of them a family of refused flags ("vllm-*") would take for its own.
template <typename Config>
int compare_spellings(Verb<Config>& verb, const std::set<std::string>& flags_of_slime) {
  int num_in_families = 0;
  std::set<std::string> compared;
  for (const std::span<const OtherName> names : all_tables()) {
    for (const OtherName& name : names) {
      const std::string flag = dashed(name.name);
      if (verb.values().contains(flag) || flags_of_slime.contains(flag)) continue;
      const std::string answer = verb.answer_to(flag);
      EXPECT_EQ(answer, verb.answer_to(name.name)) << name.name;
      EXPECT_NE(answer, "") << name.name;
      if (compared.insert(flag).second && find_unsupported_flag(flag) != nullptr) ++num_in_families;
    }
  }
  return num_in_families;
}

TEST_F(OtherTrainers, NamesHaveOneAnswerWithDashesAndUnderscores) {
  // slime has these two flags itself: with dashes they are its own.
  EXPECT_EQ(compare_spellings(train_, {"loss-type", "bf16"}), 20);
  EXPECT_EQ(compare_spellings(sft_, {"bf16"}), 21);
  for (const OtherName& name : names_of_trl()) {
    const std::string flag = dashed(name.name);
    const UnsupportedFlag* const refused = find_unsupported_flag(flag);
    if (train_.values().contains(flag) || flag == "loss-type" || flag == "bf16" || refused == nullptr) continue;
    EXPECT_EQ(refusal({"--" + flag, "1"}), fmt::format("--{}: not supported: {}", flag, answer_of("TRL", name)));
  }
  EXPECT_EQ(train_.answer_to("loss-type"), find_unsupported_flag("loss-type")->reason);
  EXPECT_EQ(train_.answer_to("bf16"), find_unsupported_flag("bf16")->reason);
  EXPECT_TRUE(train_.answer_to("vllm-mode").starts_with("TRL's vllm_mode is --colocate, --rollout-num-gpus here;"));
  EXPECT_EQ(train_.answer_to("update-weights-bucket-megabytes"), train_.answer_to("update_weights_bucket_megabytes"));
  EXPECT_TRUE(sft_.answer_to("vllm-mode").ends_with(" (a flag that this command does not have)"));
  // A name that is in no table is still one of its family.
  EXPECT_EQ(train_.answer_to("vllm-anything"), find_unsupported_flag("vllm-*")->reason);
}

TEST_F(OtherTrainers, AnOptionOfAnotherCommandIsNoWordOfAnotherTrainer) {
  EXPECT_EQ(sft_.refusal({"--reward-weights", "1"}),
            "--reward-weights: unknown option; --help lists what there is, docs/COMING_FROM.md what other trainers "
            "call it");
}

// ---- The names of DPOConfig and KTOConfig ----

void expect_rows_of_page(const std::string& first_cell, std::span<const OtherName> names) {
  const std::string page = base::read_file("docs/COMING_FROM.md");
  const size_t begin = page.find(fmt::format("| {} | here | remark |\n", first_cell));
  ASSERT_NE(begin, std::string::npos);
  std::istringstream lines(page.substr(begin));
  std::string line;
  for (int i = 0; i < 2; ++i) std::getline(lines, line);
  std::set<std::string> of_page, of_program;
  while (std::getline(lines, line) && line.starts_with("| ")) of_page.insert(line);
  for (const OtherName& name : names) {
    const std::string remark = *name.remark == '\0' ? " " : fmt::format(" {} ", name.remark);
    of_program.insert(fmt::format("| `{}` | {} |{}|", name.name, name.here, remark));
  }
  EXPECT_EQ(of_page, of_program);
}

TEST_F(OtherTrainers, TheRowsOfSftAreThoseOfThePage) {
  expect_rows_of_page("argument of DPOConfig or KTOConfig", names_of_preferences());
  expect_rows_of_page("argument of SFTConfig", names_of_sft());
  expect_rows_of_page("key for tandem sft", names_of_verl_sft());
}

TEST_F(OtherTrainers, SftAnswersWithItsOwnRemarks) {
  for (const OtherName& name : names_of_sft()) {
    if (sft_.values().contains(dashed(name.name))) continue;
    EXPECT_EQ(sft_.refusal({fmt::format("--{}", name.name), "1"}),
              fmt::format("--{}: {}", name.name, answer_of("TRL", name)));
  }
  for (const OtherName& name : names_of_verl_sft()) {
    EXPECT_EQ(sft_.refusal({fmt::format("{}=1", name.name)}),
              fmt::format("'{}=1': {}", name.name, answer_of("verl", name)));
  }
  for (const auto names : {names_of_sft(), names_of_verl_sft()}) {
    for (const OtherName& name : names) {
      const std::string here = name.here;
      EXPECT_TRUE(here == "none" || sft_.values().contains(here.substr(3, here.size() - 4))) << here;
    }
  }
  EXPECT_EQ(sft_.refusal({"--max_steps", "5"}),
            "--max_steps: TRL's max_steps is --num-rollout here; optimizer steps, in both");
  EXPECT_EQ(sft_.refusal({"--shuffle"}),
            "--shuffle: verl's data.shuffle is --rollout-shuffle here; on by default in tandem sft");
  EXPECT_TRUE(
      refusal({"--max_steps", "5"}).starts_with("--max_steps: TRL's max_steps is --num-rollout here; a step of"));
}

TEST_F(OtherTrainers, SftAnswersWithTheRowsOfPreferencesFirst) {
  const Arguments none, with_loss = {"--preference-loss", "ipo"};
  for (const OtherName& name : names_of_preferences()) {
    const std::string flag = dashed(name.name), answer = answer_of("TRL", name);
    // The flag that the row names is one that sft has.
    const std::string here = name.here;
    EXPECT_TRUE(here == "none" || sft_.values().contains(here.substr(3, here.size() - 4))) << here;
    for (const Arguments& before : {none, with_loss}) {
      for (const std::string& typed : {std::string(name.name), flag}) {
        if (sft_.values().contains(typed)) continue;
        Arguments words = before;
        words.insert(words.end(), {"--" + typed, "1"});
        EXPECT_EQ(sft_.refusal(words), fmt::format("--{}: {}", typed, answer));
      }
    }
  }
  EXPECT_EQ(sft_.refusal({"--preference-loss", "simpo"}),
            "--preference-loss: 'simpo' has no reference, and every loss here compares with one; give sigmoid (DPO) or "
            "another of this flag's");
  EXPECT_EQ(sft_.refusal({"--beta", "0.1"}), "--beta: TRL's beta is --preference-beta here");
  EXPECT_TRUE(
      sft_.refusal({"--loss_type", "ipo"}).starts_with("--loss_type: TRL's loss_type is --preference-loss here;"));
  // Typos lead to these rows too.
  EXPECT_EQ(sft_.refusal({"--lable_smoothing", "0.1"}),
            "--lable_smoothing: unknown option; did you mean --label-smoothing? Then: TRL's label_smoothing is "
            "--preference-label-smoothing here; for robust");
}

TEST_F(OtherTrainers, TrainAnswersWithTheRowsOfGrpo) {
  EXPECT_EQ(refusal({"--beta", "0.1"}),
            "--beta: TRL's beta is --use-kl-loss --kl-loss-coef here; with --kl-loss-type k3");
  EXPECT_TRUE(refusal({"--loss_type", "dapo"})
                  .starts_with("--loss_type: TRL's loss_type is --advantage-estimator, --loss-agg-mode here;"));
  EXPECT_EQ(refusal({"--loss-type", "dapo"}),
            "--loss-type: not supported: `tandem train` optimises the policy loss; `tandem sft` the supervised one; "
            "TRL's loss_type is --advantage-estimator and --loss-agg-mode");
  for (const OtherName& name : names_of_preferences())
    EXPECT_EQ(refusal({fmt::format("--{}", name.name), "1"}).find("--preference-"), std::string::npos) << name.name;
}

}  // namespace
}  // namespace tandem::config
