#include "run/learning/teachers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/version.h"
#include "data/lines.h"
#include "device/communicator.h"
#include "device/waits_for_samples.h"
#include "mesh/network.h"
#include "model/registry.h"
#include "rl/distillation.h"
#include "scorer/address.h"
#include "scorer/messages.h"
#include "session/read_teachers.h"
#include "session/stop_signal.h"
#include "session/together.h"
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
    const base::Json* const found = data::find_value(line.record.metadata, key);
    const std::string place = fmt::format("{}:{}: {}:", prompts.path, line.record.line, key);
    TANDEM_USER_CHECK(found != nullptr && found->is_string(),
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

// Returns how the processes of a teacher are asked.
scorer::Scorers::Settings scorer_settings(const config::TrainConfig& config, const Teacher& teacher,
                                          session::ModelSession& session, int64_t context_tokens) {
  scorer::Scorers::Settings settings;
  settings.flag = "--opd-teacher-address";
  settings.secret = scorer::own_secret();
  for (const std::string& text : teacher.addresses) {
    settings.addresses.push_back(scorer::address_of(text, settings.flag));
    check_guarded(settings.addresses.back(), !settings.secret.empty(), config.mesh.trust_network, settings.flag);
  }
  settings.timeout_s = config.mesh.timeout_s();
  const std::vector<std::string>& ids = session.text().token_bytes();
  const int64_t num_ids = std::ssize(ids);
  settings.hello = {.version = base::kVersion,
                    .vocab = session.config().vocab,
                    .context = context_tokens,
                    .num_ids = num_ids,
                    .tokenizer = scorer::digest_of(ids, num_ids),
                    .host = mesh::host_name(),
                    .process = getpid()};
  settings.is_asked_to_stop = session::stop_requested;
  settings.abandon = [grace = config.checkpoints.stop_grace_seconds] { return session::seconds_since_stop() > grace; };
  return settings;
}

}  // namespace

std::vector<scorer::Welcome> check_teachers(const config::TrainConfig& config, session::ModelSession& session,
                                            const session::PromptSet& prompts, const TeacherCheck& check) {
  const config::LossOptions& options = config.loss;
  const std::vector<Teacher> teachers = options.opd_teachers();
  const std::vector<model::ModelConfig> models = session::read_teachers(options, session.config());
  for (size_t i = 0; i < models.size(); ++i) {
    const std::string& directory = teachers[i].directory;
    TANDEM_USER_CHECK(models[i].max_positions >= check.context_tokens,
                      fmt::format("--opd-teacher-load {}: has a context of {} tokens, and a sample may have {}; lower "
                                  "--rollout-max-response-len or --rollout-max-prompt-len",
                                  directory, models[i].max_positions, check.context_tokens));
    check_tokenizer(directory, session);
    weights::check_hf_checkpoint(directory, model::build_layout(models[i]));
  }
  if (!options.opd_teacher_key.empty()) teachers_of(prompts, options.opd_teacher_key, names_of(teachers));
  std::vector<scorer::Welcome> elsewhere;
  for (const Teacher& teacher : teachers) {
    if (!teacher.is_elsewhere()) continue;
    scorer::Scorers::Settings settings = scorer_settings(config, teacher, session, check.context_tokens);
    settings.timeout_s = check.wait_s;
    const device::WaitsForSamples waits(check.hosts);  // rank 0 looks for them as long as it may
    const std::vector<std::string> said = session::together(check.hosts, [&]() -> std::string {
      return check.hosts.rank() == 0 ? to_bytes(scorer::Scorers(std::move(settings)).model()) : "";
    });
    elsewhere.push_back(std::get<scorer::Welcome>(scorer::message_of(said.front())));
  }
  return elsewhere;
}

Teachers::Teachers(TrainInputs& inputs, session::RunMemory& memory)
    : inputs_(inputs), names_(names_of(inputs.config.loss.opd_teachers())) {
  const config::LossOptions& options = inputs.config.loss;
  const std::vector<Teacher> teachers = options.opd_teachers();
  std::vector<model::ModelConfig> models = session::read_teachers(options, inputs.session.config());
  for (size_t i = 0; i < models.size(); ++i) {
    models[i].shard.sequence_parallel = inputs.config.mesh.sequence_parallel;
    models_.emplace_back(
        inputs.session, models[i], inputs.config.memory.offloads_teacher(),
        [&](weights::WeightStore& store) { weights::load_hf_checkpoint(teachers[i].directory, store); }, memory);
  }
  auto known = inputs.teachers_elsewhere.begin();
  for (const Teacher& teacher : teachers) {
    if (!teacher.is_elsewhere() || !inputs.mesh->is_conductor()) continue;
    scorer::Scorers::Settings settings = scorer_settings(
        inputs.config, teacher, inputs.session, inputs.plan.longest_prompt + inputs.config.rollout.response_len());
    settings.known = *known++;
    scorers_.emplace_back(std::move(settings));
  }
  if (!options.opd_teacher_key.empty()) of_prompt_ = teachers_of(inputs.prompts, options.opd_teacher_key, names_);
}

size_t Teachers::index_of(const rl::Sample& sample) const {
  if (of_prompt_.empty()) return 0;
  const auto found = of_prompt_.find(sample.prompt.get());
  TANDEM_CHECK(found != of_prompt_.end(), "no teacher is known for the prompt of sample", sample.sample_id);
  return found->second;
}

std::optional<Teachers::Logprobs> Teachers::scores_of(size_t teacher, const std::vector<const rl::Sample*>& samples,
                                                      const trainer::Ranks& ranks) {
  if (teacher >= models_.size()) return scores_from_elsewhere(teacher - models_.size(), samples);
  return models_[teacher].score(samples, inputs_.trainer.batch, inputs_.trainer.temperature, ranks).logprobs;
}

// Rank 0 asks, and tells the others.
std::optional<Teachers::Logprobs> Teachers::scores_from_elsewhere(size_t place,
                                                                  const std::vector<const rl::Sample*>& samples) {
  std::optional<Logprobs> scores;
  std::string words;  // none: the run stops
  if (inputs_.mesh->is_conductor()) {
    scores = scorers_[place].score(samples, inputs_.trainer.temperature);
    if (inputs_.mesh->is_alone()) return scores;
    if (scores) words = to_bytes(scorer::Scored{*scores});
  }
  const device::WaitsForSamples waits(inputs_.mesh->host());  // rank 0 waits for a lost teacher as long as it may
  words = device::broadcast_text(inputs_.mesh->host(), 0, words);
  if (inputs_.mesh->is_conductor() || words.empty()) return scores;
  return std::get<scorer::Scored>(scorer::message_of(words)).logprobs;
}

std::optional<report::Metrics> Teachers::score(std::span<rl::Sample> samples, const trainer::Ranks& ranks) {
  report::Metrics metrics;
  for (size_t i = 0; i < names_.size(); ++i) {
    std::vector<rl::Sample*> own;  // those that were sampled: of others no log-prob is asked for
    int64_t num_samples = 0;
    for (rl::Sample& sample : samples) {
      if (index_of(sample) != i) continue;
      ++num_samples;
      if (!sample.is_given) own.push_back(&sample);
    }
    if (!of_prompt_.empty()) metrics["rollout/opd_samples/" + names_[i]] = static_cast<double>(num_samples);
    if (own.empty()) continue;
    std::optional<Logprobs> scores = scores_of(i, {own.begin(), own.end()}, ranks);
    if (!scores) return std::nullopt;
    double kl = 0.0, num_tokens = 0.0;
    for (size_t s = 0; s < own.size(); ++s) {
      own[s]->teacher_logprobs = std::move((*scores)[s]);
      for (size_t t = 0; t < own[s]->completion.size(); ++t) {
        if (!own[s]->is_trained(t)) continue;
        kl += rl::teacher_kl(*own[s], t);
        num_tokens += 1.0;
      }
    }
    if (!of_prompt_.empty() && num_tokens > 0.0) metrics["rollout/opd_reverse_kl/" + names_[i]] = kl / num_tokens;
  }
  int64_t num_lost = 0;
  for (scorer::Scorers& scorers : scorers_) num_lost += scorers.take_num_lost();
  if (num_lost > 0) metrics["fault/lost_scorers"] = static_cast<double>(num_lost);
  return metrics;
}

trainer::TeacherOf Teachers::teacher_of() const {
  return [this](const rl::Sample& sample) -> const model::Model& { return models_[index_of(sample)].model(); };
}

void Teachers::bring(OnDeviceScope& scope) {
  for (ScoringModel& model : models_) scope.emplace_back(model);
}

}  // namespace tandem::run
