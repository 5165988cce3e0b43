// The options of on-policy distillation.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/check.h"
#include "base/size.h"
#include "config/loss_options.h"
#include "rl/token_choice.h"

namespace tandem::config {

void LossOptions::visit_distillation(base::Options& options) {
  const char* const group = "distillation";
  rl::OpdConfig& opd = loss.opd;
  options.option(opd.is_on, "use-opd", group,
                 "on-policy distillation: a teacher scores the policy's own samples (docs/DISTILLATION.md); needs "
                 "--opd-teacher-load");
  options
      .option(opd_teacher_load, "opd-teacher-load", group,
              "Hugging Face directory of the teacher: of any size and family, with the vocabulary of --hf-checkpoint. "
              "Several are NAME=DIRECTORY each, and --opd-teacher-key says which line is whose")
      .one_or_more()
      .path();
  options.option(opd_teacher_key, "opd-teacher-key", group,
                 "key of a data line, or of its metadata, whose value names the teacher of its samples");
  options
      .option(opd.kl_coef, "opd-kl-coef", group,
              "what each token's advantage loses of its log-prob minus the teacher's: the reverse KL, by sampled "
              "tokens; 0: nothing, and the KL is only reported")
      .at_least(0.0)
      .at_most(rl::kMaxPenalty);
  options.option(opd.use_task_rewards, "opd-use-task-rewards", group,
                 "rewards make advantages too, beside the teacher; off: they are only reported");
  options
      .option(opd.loss_coef, "opd-loss-coef", group,
              "coefficient of a term of the loss: how far the policy's distribution of each token is from the "
              "teacher's, over the whole vocabulary; 0: no such term")
      .at_least(0.0)
      .at_most(rl::kMaxPenalty);
  options
      .option(opd.beta, "opd-beta", group,
              "divergence of --opd-loss-coef: 1 is the reverse KL, 0 the forward KL, between them lies the generalised "
              "Jensen-Shannon divergence (TRL's beta)")
      .at_least(0.0)
      .at_most(1.0);
  options
      .option(opd.top_k, "opd-top-k", group,
              "tokens that --opd-loss-coef looks at: so many that the teacher finds most likely, with both "
              "distributions renormalised over them; 0: the whole vocabulary")
      .at_least(0)
      .at_most(base::kMaxCount);
  options
      .option(opd.on_policy_share, "opd-on-policy-share", group,
              "share of the prompts whose completion the policy samples; the others, drawn from --rollout-seed, have "
              "the answer of their line, which --opd-loss-coef alone trains on (TRL's lmbda)")
      .at_least(0.0)
      .at_most(1.0);
  options.option(
      opd_answer_key, "opd-answer-key", group,
      "key of a data line's answer, with --opd-on-policy-share below 1: a text, messages, or token ids, such as "
      "completions.0.tokens in the file of tandem generate");
}

std::vector<LossOptions::Teacher> LossOptions::opd_teachers() const {
  std::vector<Teacher> teachers;
  for (const std::string& value : opd_teacher_load) {
    const size_t at = opd_teacher_key.empty() ? std::string::npos : value.find('=');
    teachers.push_back(at == std::string::npos
                           ? Teacher{.name = "", .directory = value}
                           : Teacher{.name = value.substr(0, at), .directory = value.substr(at + 1)});
  }
  return teachers;
}

void LossOptions::check_given_answers() const {
  const std::string flag = fmt::format("--opd-on-policy-share {:g}", loss.opd.on_policy_share);
  TANDEM_USER_CHECK(!opd_answer_key.empty(), "--opd-answer-key: is empty; name the key of a line's answer");
  TANDEM_USER_CHECK(
      !rl::chooses_by_entropy(loss) && !rl::chooses_by_covariance(loss),
      fmt::format("{}: the tokens that --top-entropy-quantile, clip_cov and kl_cov choose would be of given answers "
                  "too, which have no policy term; leave one out",
                  flag));
  TANDEM_USER_CHECK(custom_advantage_path.empty(),
                    fmt::format("{} with --custom-advantage-path: a given answer has no reward, no log-probs and no "
                                "advantage; leave one out",
                                flag));
}

void LossOptions::check_distillation() const {
  const rl::OpdConfig& opd = loss.opd;
  const rl::OpdConfig unset;
  const auto needs_switch = [&](bool is_given, const char* flag) {
    TANDEM_USER_CHECK(!is_given || opd.is_on,
                      fmt::format("{}: does nothing without --use-opd; give both, or leave it out", flag));
  };
  needs_switch(!opd_teacher_load.empty(), "--opd-teacher-load");
  needs_switch(!opd_teacher_key.empty(), "--opd-teacher-key");
  needs_switch(opd.kl_coef != unset.kl_coef, "--opd-kl-coef");
  needs_switch(!opd.use_task_rewards, "--no-opd-use-task-rewards");
  needs_switch(opd.loss_coef != unset.loss_coef, "--opd-loss-coef");
  const auto needs_loss = [&](bool is_given, const char* flag) {
    TANDEM_USER_CHECK(!is_given || opd.has_loss(),
                      fmt::format("{}: does nothing without --opd-loss-coef; give both, or leave it out", flag));
  };
  needs_loss(opd.beta != unset.beta, "--opd-beta");
  needs_loss(opd.top_k != unset.top_k, "--opd-top-k");
  needs_loss(opd.on_policy_share != unset.on_policy_share, "--opd-on-policy-share");
  TANDEM_USER_CHECK(opd_answer_key == LossOptions().opd_answer_key || opd.has_given_answers(),
                    "--opd-answer-key: does nothing without --opd-on-policy-share below 1; give both, or leave it out");
  if (!opd.is_on) return;
  TANDEM_USER_CHECK(!opd_teacher_load.empty(),
                    "--use-opd: needs --opd-teacher-load; give the Hugging Face directory of the teacher");
  TANDEM_USER_CHECK(opd.use_task_rewards || opd.kl_coef > 0.0 || opd.has_loss(),
                    "--no-opd-use-task-rewards with --opd-kl-coef 0: nothing is left to train on; give --opd-kl-coef "
                    "or --opd-loss-coef");
  TANDEM_USER_CHECK(custom_advantage_path.empty() || opd.kl_coef == 0.0,
                    "--custom-advantage-path with --use-opd: the function's advantages would take the place of the "
                    "teacher's; leave one out, or give --opd-kl-coef 0 and --opd-loss-coef");
  if (opd.has_given_answers()) check_given_answers();
  const std::vector<Teacher> teachers = opd_teachers();
  if (opd_teacher_key.empty()) {
    TANDEM_USER_CHECK(teachers.size() == 1,
                      fmt::format("--opd-teacher-load: {} directories are given; name them NAME=DIRECTORY, and give "
                                  "--opd-teacher-key, the key of a data line that names its teacher",
                                  teachers.size()));
    return;
  }
  std::set<std::string> names;
  for (size_t i = 0; i < teachers.size(); ++i) {
    TANDEM_USER_CHECK(!teachers[i].name.empty() && !teachers[i].directory.empty(),
                      fmt::format("--opd-teacher-load {}: write it as NAME=DIRECTORY, since --opd-teacher-key {} names "
                                  "the teacher of a line",
                                  opd_teacher_load[i], opd_teacher_key));
    TANDEM_USER_CHECK(
        names.insert(teachers[i].name).second,
        fmt::format("--opd-teacher-load {}: another teacher has this name; give each its own", opd_teacher_load[i]));
  }
}

}  // namespace tandem::config
