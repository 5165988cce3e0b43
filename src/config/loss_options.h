// Declares the options of the policy loss, of the reference that its KL compares with, and of the teacher of on-policy
// distillation. docs/LOSSES.md and docs/DISTILLATION.md explain the constants.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "options/options.h"
#include "rl/loss_config.h"

namespace tandem::config {

struct LossOptions {
  rl::LossConfig loss;
  bool use_kl_loss = false;
  std::string ref_load;  // unset: --hf-checkpoint as it is at the start
  // The reference becomes a copy of the policy after every so many rollouts; unset means never.
  std::optional<int64_t> ref_update_interval;
  double ref_mixup_alpha = 1.0;       // the policy's share of a reference that is renewed
  std::string custom_advantage_path;  // FILE.py:function that computes advantages; "": --advantage-estimator alone
  // Hugging Face directories of the teachers: one, or several as NAME=DIRECTORY (opd_teachers()).
  std::vector<std::string> opd_teacher_load;
  // Addresses of processes that score (scorer/address.h), or NAME=ADDRESS: those with one name are one teacher's.
  std::vector<std::string> opd_teacher_address;
  std::string opd_teacher_key;              // key of a data line whose value names its teacher
  std::string opd_answer_key = "response";  // key of a data line's answer, with opd.has_given_answers()

  void visit(options::Options& options);
  // Returns whether the reference is scored. That is so for the KL's metrics too, with --use-kl-loss at coefficient 0.
  bool needs_reference() const { return use_kl_loss || loss.kl_coef > 0.0; }
  // A teacher's name is "" if there is one alone, which scores every sample.
  struct Teacher {
    std::string name, directory;
    std::vector<std::string> addresses = {};  // not empty: the processes that score in its place; no directory then

    bool is_elsewhere() const { return !addresses.empty(); }
  };
  // Returns the teachers, those with a directory first, in the order of the flags; none without --use-opd. Valid after
  // check().
  std::vector<Teacher> opd_teachers() const;
  // Throws UserError when two of these flags contradict; otherwise `loss` with a divisor passes rl::check_loss_config.
  void check() const;

 private:
  // Returns the question whether the policy loss has that surrogate, for Option::used_if().
  std::function<bool()> has_surrogate(std::string_view name) const;
  void visit_policy_term(options::Options& options);
  void visit_token_choice(options::Options& options);
  void visit_other_terms(options::Options& options);
  void visit_corrections(options::Options& options);
  void visit_advantages(options::Options& options);
  void visit_reward_shaping(options::Options& options);
  void check_reward_aggregation() const;
  void visit_distillation(options::Options& options);  // opd_options.cc
  void check_reference() const;
  void check_distillation() const;
  void check_given_answers() const;
  void check_teacher_names() const;
};

}  // namespace tandem::config
