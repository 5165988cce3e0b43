#include "session/read_teachers.h"

#include <fmt/format.h>

#include "base/check.h"
#include "session/read_model.h"

namespace tandem::session {

std::vector<model::ModelConfig> read_teachers(const config::LossOptions& options, const model::ModelConfig& student) {
  std::vector<model::ModelConfig> teachers;
  if (!options.loss.opd.is_on) return teachers;
  for (const config::LossOptions::Teacher& teacher : options.opd_teachers()) {
    if (teacher.is_elsewhere()) continue;
    const std::string& directory = teacher.directory;
    const std::string flag = "--opd-teacher-load " + directory;
    check_model_directory(flag, directory);
    model::ModelConfig config = model::read_model_config(directory);
    TANDEM_USER_CHECK(config.vocab >= student.vocab,
                      fmt::format("{}: has a vocabulary of {} tokens, --hf-checkpoint one of {}; a teacher scores the "
                                  "student's tokens, so it needs the same vocabulary",
                                  flag, config.vocab, student.vocab));
    config.dtype = student.dtype;
    teachers.push_back(model::shard_of(config, {.rank = student.shard.rank, .size = student.shard.size}));
  }
  return teachers;
}

}  // namespace tandem::session
