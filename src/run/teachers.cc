#include "run/teachers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/registry.h"
#include "rl/distillation.h"
#include "session/read_teachers.h"
#include "text/text_worker.h"
#include "weights/checkpoint_files.h"

namespace tandem::run {

namespace {

using Teacher = config::LossOptions::Teacher;

std::vector<std::string> names_of(const std::vector<Teacher>& teachers) {
  std::vector<std::string> names;
  for (const Teacher& teacher : teachers) names.push_back(teacher.name);
  return names;
}

// A token's id must mean the same text to both.
void check_tokenizer(const std::string& directory, session::ModelSession& session) {
  text::TextWorker text(worker::default_worker_config(), directory);
  const std::vector<std::string>&own = session.text().token_bytes(), &theirs = text.token_bytes();
  for (size_t id = 0; id < own.size(); ++id) {
    TANDEM_USER_CHECK(id < theirs.size() && own[id] == theirs[id],
                      fmt::format("--opd-teacher-load {}: its tokenizer has another token {} than that of "
                                  "--hf-checkpoint {}; a teacher needs the same vocabulary",
                                  directory, id, session.directory()));
  }
}

// Returns the index of the teacher that each prompt's line names.
std::unordered_map<const rl::Prompt*, size_t> teachers_of(const session::PromptSet& prompts, const std::string& key,
                                                          const std::vector<std::string>& names) {
  std::unordered_map<const rl::Prompt*, size_t> result;
  for (const session::PromptLine& line : prompts.prompts) {
    const auto found = line.record.metadata.find(key);
    const std::string place = fmt::format("{}:{}: {}:", prompts.path, line.record.line, key);
    TANDEM_USER_CHECK(found != line.record.metadata.end() && found->is_string(),
                      fmt::format("{} the line names no teacher; give it one of {} there, as --opd-teacher-key says",
                                  place, fmt::join(names, ", ")));
    const auto name = std::ranges::find(names, found->get<std::string>());
    TANDEM_USER_CHECK(name != names.end(), fmt::format("{} no teacher of --opd-teacher-load has the name '{}'; there "
                                                       "are {}",
                                                       place, found->get<std::string>(), fmt::join(names, ", ")));
    result[line.prompt.get()] = static_cast<size_t>(name - names.begin());
  }
  return result;
}

}  // namespace

void check_teachers(const config::LossOptions& options, session::ModelSession& session,
                    const session::PromptSet& prompts, int64_t context_tokens) {
  const std::vector<Teacher> teachers = options.opd_teachers();
  const std::vector<model::ModelConfig> models = session::read_teachers(options, session.config());
  for (size_t i = 0; i < models.size(); ++i) {
    const std::string& directory = teachers[i].directory;
    TANDEM_USER_CHECK(models[i].max_positions >= context_tokens,
                      fmt::format("--opd-teacher-load {}: has a context of {} tokens, and a sample may have {}; lower "
                                  "--rollout-max-response-len or --rollout-max-prompt-len",
                                  directory, models[i].max_positions, context_tokens));
    check_tokenizer(directory, session);
    weights::check_hf_checkpoint(directory, model::build_layout(models[i]));
  }
  if (!options.opd_teacher_key.empty()) teachers_of(prompts, options.opd_teacher_key, names_of(teachers));
}

Teachers::Teachers(const TrainInputs& inputs, session::RunMemory& memory)
    : inputs_(inputs), names_(names_of(inputs.config.loss.opd_teachers())) {
  const config::LossOptions& options = inputs.config.loss;
  const std::vector<Teacher> teachers = options.opd_teachers();
  std::vector<model::ModelConfig> models = session::read_teachers(options, inputs.session.config());
  for (size_t i = 0; i < teachers.size(); ++i) {
    models[i].shard.sequence_parallel = inputs.config.mesh.sequence_parallel;
    models_.emplace_back(
        inputs.session, models[i], inputs.config.memory.offloads_teacher(),
        [&](weights::WeightStore& store) { weights::load_hf_checkpoint(teachers[i].directory, store); }, memory);
  }
  if (!options.opd_teacher_key.empty()) of_prompt_ = teachers_of(inputs.prompts, options.opd_teacher_key, names_);
}

size_t Teachers::index_of(const rl::Sample& sample) const {
  if (of_prompt_.empty()) return 0;
  const auto found = of_prompt_.find(sample.prompt.get());
  TANDEM_CHECK(found != of_prompt_.end(), "no teacher is known for the prompt of sample", sample.sample_id);
  return found->second;
}

report::Metrics Teachers::score(std::span<rl::Sample> samples, const trainer::Ranks& ranks) {
  report::Metrics metrics;
  for (size_t i = 0; i < models_.size(); ++i) {
    std::vector<rl::Sample*> own;  // those that were sampled: of others no log-prob is asked for
    int64_t num_samples = 0;
    for (rl::Sample& sample : samples) {
      if (index_of(sample) != i) continue;
      ++num_samples;
      if (!sample.is_given) own.push_back(&sample);
    }
    if (!of_prompt_.empty()) metrics["rollout/opd_samples/" + names_[i]] = static_cast<double>(num_samples);
    if (own.empty()) continue;
    trainer::Scores scores =
        models_[i].score({own.begin(), own.end()}, inputs_.trainer.batch, inputs_.trainer.temperature, ranks);
    double kl = 0.0, num_tokens = 0.0;
    for (size_t s = 0; s < own.size(); ++s) {
      own[s]->teacher_logprobs = std::move(scores.logprobs[s]);
      for (size_t t = 0; t < own[s]->completion.size(); ++t) {
        if (!own[s]->is_trained(t)) continue;
        kl += rl::teacher_kl(*own[s], t);
        num_tokens += 1.0;
      }
    }
    if (!of_prompt_.empty() && num_tokens > 0.0) metrics["rollout/opd_reverse_kl/" + names_[i]] = kl / num_tokens;
  }
  return metrics;
}

trainer::TeacherOf Teachers::teacher_of() const {
  return [this](const rl::Sample& sample) -> const model::Model& { return models_[index_of(sample)].model(); };
}

void Teachers::bring(OnDeviceScope& scope) {
  for (ScoringModel& model : models_) scope.emplace_back(model);
}

}  // namespace tandem::run
