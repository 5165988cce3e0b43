#include "run/frozen_weights.h"

#include <string>

#include "model/lora.h"
#include "model/peft.h"

namespace tandem::run {

namespace {

using checkpoint::FrozenWeights;

// Returns the base of an adapter that is trained, if there is one with weights of its own.
std::vector<FrozenWeights> base_weights(const session::ModelSession& session, bool random_init) {
  if (!session.config().lora || random_init) return {};
  return {{.kind = "", .flag = "--hf-checkpoint", .directory = session.directory()}};
}

}  // namespace

std::vector<FrozenWeights> frozen_weights(const config::TrainConfig& config, const session::ModelSession& session,
                                          const std::vector<scorer::Welcome>& teachers_elsewhere) {
  std::vector<FrozenWeights> frozen = base_weights(session, config.model.random_init);
  if (config.loss.needs_reference()) {
    const bool is_base = session.config().lora || config.model.random_init;  // the base is compared anyway
    if (!config.loss.ref_load.empty()) {
      frozen.push_back({"reference", "--ref-load", config.loss.ref_load});
    } else if (!is_base) {
      frozen.push_back({"reference", "--hf-checkpoint", session.directory()});
    }
  }
  if (!config.reward.rm_model.empty()) frozen.push_back({"reward model", "--rm-model", config.reward.rm_model});
  if (!config.loss.loss.opd.is_on) return frozen;
  const std::vector<config::LossOptions::Teacher> teachers = config.loss.opd_teachers();
  auto elsewhere = teachers_elsewhere.begin();
  for (const config::LossOptions::Teacher& teacher : teachers) {
    const std::string name = teachers.size() > 1 ? " " + teacher.name : "";
    if (teacher.is_elsewhere()) {
      frozen.push_back({"teacher", "--opd-teacher-address" + name, "", (elsewhere++)->identity()});
    } else {
      frozen.push_back({"teacher", "--opd-teacher-load" + name, teacher.directory});
    }
  }
  return frozen;
}

std::vector<FrozenWeights> frozen_weights(const config::SftConfig& config, const session::ModelSession& session) {
  std::vector<FrozenWeights> frozen = base_weights(session, config.model.random_init);
  if (!config.preference.is_on()) return frozen;
  const std::string& given = config.model.hf_checkpoint;
  if (!config.ref_load.empty()) {
    frozen.push_back({"reference", "--ref-load", config.ref_load});
  } else if (config.model.random_init) {
    return frozen;
  } else if (model::is_adapter_directory(given)) {
    frozen.push_back({"adapter", "--hf-checkpoint", given});
  } else if (!session.config().lora) {  // otherwise the reference is the base, which is compared anyway
    frozen.push_back({"reference", "--hf-checkpoint", session.directory()});
  }
  return frozen;
}

}  // namespace tandem::run
