// The options of on-policy distillation.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/size.h"
#include "config/loss_options.h"
#include "rl/token_choice.h"

namespace tandem::config {

void LossOptions::visit_distillation(options::Options& options) {
  const char* const group = "distillation";
  rl::OpdConfig& opd = loss.opd;
  options.option(opd.is_on, "use-opd", group,
                 "on-policy distillation: a teacher scores the policy's own samples (docs/DISTILLATION.md); needs "
                 "--opd-teacher-load or --opd-teacher-address");
  options
      .option(opd_teacher_load, "opd-teacher-load", group,
              "Hugging Face directory of the teacher: of any size and family, with the vocabulary of --hf-checkpoint. "
              "Several are NAME=DIRECTORY each, and --opd-teacher-key says which line is whose")
      .one_or_more()
      .path();
  options
      .option(opd_teacher_address, "opd-teacher-address", group,
              "address of a teacher in a process of its own, which `tandem scorer` started (its --listen): it scores "
              "on its own device. Several share the samples; with --opd-teacher-key each is NAME=ADDRESS")
      .one_or_more()
      .does_not_affect_results();
  options.option(opd_teacher_key, "opd-teacher-key", group,
                 "key of a data line, or of its metadata, whose value names the teacher of its samples");
  options
      .option(opd.kl_coef, "opd-kl-coef", group,
              "coefficient of the reverse KL by sampled tokens, a token's log-prob minus the teacher's, which is "
              "subtracted from its advantage; 0: the KL is only reported")
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
              "tokens that --opd-loss-coef looks at: so many that the teacher finds most likely, 2 or more, with both "
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
  // Returns the name of a teacher and where it is.
  const auto parts_of = [&](const std::string& value) -> std::pair<std::string, std::string> {
    const size_t at = opd_teacher_key.empty() ? std::string::npos : value.find('=');
    return at == std::string::npos ? std::pair("", value) : std::pair(value.substr(0, at), value.substr(at + 1));
  };
  std::vector<Teacher> teachers;
  for (const std::string& value : opd_teacher_load) {
    const auto [name, directory] = parts_of(value);
    teachers.push_back({.name = name, .directory = directory});
  }
  for (const std::string& value : opd_teacher_address) {
    const auto [name, address] = parts_of(value);
    const auto same = std::ranges::find_if(
        teachers, [&](const Teacher& other) { return other.is_elsewhere() && other.name == name; });
    if (same != teachers.end()) {
      same->addresses.push_back(address);
    } else {
      teachers.push_back({.name = name, .directory = "", .addresses = {address}});
    }
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
  needs_switch(!opd_teacher_address.empty(), "--opd-teacher-address");
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
  TANDEM_USER_CHECK(opd.top_k != 1,
                    "--opd-top-k 1: renormalised over one token both distributions are 1, so --opd-loss-coef would "
                    "add neither loss nor gradient; give 2 or more, or 0 for the whole vocabulary");
  needs_loss(opd.on_policy_share != unset.on_policy_share, "--opd-on-policy-share");
  TANDEM_USER_CHECK(opd_answer_key == LossOptions().opd_answer_key || opd.has_given_answers(),
                    "--opd-answer-key: does nothing without --opd-on-policy-share below 1; give both, or leave it out");
  if (!opd.is_on) return;
  TANDEM_USER_CHECK(!opd_teacher_load.empty() || !opd_teacher_address.empty(),
                    "--use-opd: needs --opd-teacher-load; give the Hugging Face directory of the teacher, or "
                    "--opd-teacher-address, where a process scores");
  TANDEM_USER_CHECK(opd_teacher_address.empty() || !opd.has_loss(),
                    "--opd-loss-coef with --opd-teacher-address: whole distributions need the teacher in the run's own "
                    "process; give --opd-teacher-load, or --opd-kl-coef alone");
  TANDEM_USER_CHECK(opd.use_task_rewards || opd.kl_coef > 0.0 || opd.has_loss(),
                    "--no-opd-use-task-rewards with --opd-kl-coef 0: nothing is left to train on; give --opd-kl-coef "
                    "or --opd-loss-coef");
  TANDEM_USER_CHECK(custom_advantage_path.empty() || opd.kl_coef == 0.0,
                    "--custom-advantage-path with --use-opd: the function's advantages would take the place of the "
                    "teacher's; leave one out, or give --opd-kl-coef 0 and --opd-loss-coef");
  if (opd.has_given_answers()) check_given_answers();
  check_teacher_names();
}

void LossOptions::check_teacher_names() const {
  const std::vector<Teacher> teachers = opd_teachers();
  if (opd_teacher_key.empty()) {
    TANDEM_USER_CHECK(
        teachers.size() == 1,
        fmt::format("{}: {} teachers are given; name them NAME=DIRECTORY or NAME=ADDRESS, and give "
                    "--opd-teacher-key, the key of a data line that names its teacher",
                    opd_teacher_load.empty() ? "--opd-teacher-address" : "--opd-teacher-load", teachers.size()));
    return;
  }
  std::set<std::string> names;
  for (const Teacher& teacher : teachers) {
    const char* const flag = teacher.is_elsewhere() ? "--opd-teacher-address" : "--opd-teacher-load";
    const std::string& place = teacher.is_elsewhere() ? teacher.addresses.front() : teacher.directory;
    TANDEM_USER_CHECK(
        !teacher.name.empty() && !place.empty(),
        fmt::format("{} {}: write it as NAME={}, since --opd-teacher-key {} names the teacher of a line", flag,
                    teacher.name + place, teacher.is_elsewhere() ? "ADDRESS" : "DIRECTORY", opd_teacher_key));
    TANDEM_USER_CHECK(
        names.insert(teacher.name).second,
        fmt::format("{} {}={}: another teacher has this name; give each its own", flag, teacher.name, place));
  }
}

}  // namespace tandem::config
