#include "run/learning/reward_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "session/conversations.h"
#include "session/read_reward_model.h"
#include "trainer/sequence_scores.h"
#include "weights/checkpoint_files.h"

namespace tandem::run {

namespace {

using base::Json;

std::string flag_of(const std::string& directory) { return "--rm-model " + directory; }

// Returns the reward model's reward among those of the sum.
config::RewardOptions::Source source_of(const config::RewardOptions& options) {
  for (const config::RewardOptions::Source& source : options.sources()) {
    if (source.is_model) return source;
  }
  throw BugError("the rewards have no model");
}

model::ModelConfig config_of(const config::RewardOptions& options, const session::ModelSession& session,
                             bool sequence_parallel) {
  model::ModelConfig config = session::read_reward_model(options, session.config()).value();
  config.shard.sequence_parallel = sequence_parallel;
  return config;
}

// Returns the prompt with its completion: a list of messages, or the text of both where no template renders the prompt.
Json answered(const config::DataOptions& data, const session::PromptLine& line, const std::string& completion) {
  const Json& prompt = line.record.prompt;
  if (!session::is_rendered(data, prompt)) return line.prompt->text + completion;
  Json messages = prompt;
  if (prompt.is_string()) messages = Json::array({{{"role", "user"}, {"content", prompt}}});
  if (session::ending_of(messages) == session::Ending::kContinued) {
    Json& content = messages.back()["content"];
    content = (content.is_string() ? content.get<std::string>() : "") + completion;
  } else {
    messages.push_back({{"role", "assistant"}, {"content", completion}});
  }
  return messages;
}

}  // namespace

void check_reward_model(const config::RewardOptions& options, const session::ModelSession& session, bool is_rendered) {
  if (options.rm_model.empty()) return;
  const std::string flag = flag_of(options.rm_model);
  const model::ModelConfig config = config_of(options, session, /*sequence_parallel=*/false);
  weights::check_hf_checkpoint(options.rm_model, model::build_reward_layout(config));
  const model::RewardHead head(options.rm_model, config);
  const text::TextWorker text(worker::default_worker_config(), options.rm_model);
  TANDEM_USER_CHECK(
      text.vocab_size() <= config.vocab,
      fmt::format("{}: its tokenizer has {} ids and the model {} (vocab_size of config.json); they are of "
                  "two models, take the files of one",
                  flag, text.vocab_size(), config.vocab));
  TANDEM_USER_CHECK(!is_rendered || text.has_chat_template(),
                    fmt::format("{}: has no chat template (chat_template in tokenizer_config.json), which prompts that "
                                "are messages need; add the one that it was trained with",
                                flag));
}

RewardModel::RewardModel(const config::RewardOptions& options, const config::DataOptions& data,
                         session::ModelSession& session, const Settings& settings, session::RunMemory* memory)
    : session_(session),
      directory_(options.rm_model),
      data_(data),
      settings_(settings),
      text_(worker::default_worker_config(), directory_),
      head_(directory_, config_of(options, session, settings.sequence_parallel)) {
  const model::ModelConfig config = config_of(options, session, settings.sequence_parallel);
  const auto fill = [this](weights::WeightStore& store) { weights::load_hf_checkpoint(directory_, store); };
  if (memory != nullptr) {
    model_.emplace(session, config, model::build_reward_layout(config), settings.is_offloaded, fill, *memory);
    return;
  }
  weights_.emplace(weights::WeightStore::without_storage(model::build_reward_layout(config), session.dtype(),
                                                         session.ops().device()));
  fill(*weights_);
  model_.emplace(session, config, weights_->view());
}

std::vector<std::vector<int32_t>> RewardModel::conversations(const session::PromptSet& prompts,
                                                             const std::vector<const rl::Sample*>& samples) {
  std::unordered_map<const rl::Prompt*, const session::PromptLine*> lines;
  for (const rl::Sample* sample : samples) lines.emplace(sample->prompt.get(), nullptr);
  for (const session::PromptLine& line : prompts.prompts) {
    if (const auto asked_for = lines.find(line.prompt.get()); asked_for != lines.end()) asked_for->second = &line;
  }
  std::vector<std::vector<int32_t>> completions;
  for (const rl::Sample* sample : samples) completions.push_back(sample->completion);
  const std::vector<std::string> texts = session_.text().decode(completions, /*skip_special_tokens=*/true);
  std::vector<session::Conversation> asked;
  for (size_t i = 0; i < samples.size(); ++i) {
    const session::PromptLine* line = lines.at(samples[i]->prompt.get());
    TANDEM_CHECK(line != nullptr, "no line is known for the prompt of sample", samples[i]->sample_id);
    asked.push_back({.prompt = answered(data_, *line, texts[i]),
                     .tools = line->record.tools,
                     .place = fmt::format("{}: {}:{}", flag_of(directory_), prompts.path, line->record.line),
                     .ending = session::Ending::kClosed});
  }
  // The arguments of --apply-chat-template-kwargs are for the policy's template. Lists are rendered, texts are whole.
  config::DataOptions options = data_;
  options.apply_chat_template_kwargs = config::DataOptions().apply_chat_template_kwargs;
  options.apply_chat_template.reset();
  return text_.encode(session::render_prompts(options, text_, asked));
}

void RewardModel::score(const config::RewardOptions& options, const session::PromptSet& prompts,
                        sampling::Rollout& rollout, const trainer::Ranks& ranks) {
  const config::RewardOptions::Source source = source_of(options);
  std::vector<size_t> places;  // of the samples that are scored; the others have failed before any reward
  std::vector<const rl::Sample*> samples;
  for (size_t i = 0; i < rollout.samples.size(); ++i) {
    if (std::ranges::count(rollout.grades.at(i).parts, source.name, &reward::RewardPart::name) == 0) continue;
    places.push_back(i);
    samples.push_back(&rollout.samples[i]);
  }
  std::vector<sampling::ModelScore> scores(rollout.samples.size());
  std::vector<std::vector<int32_t>> sequences = conversations(prompts, samples), scored;
  std::vector<size_t> scored_places;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t num_tokens = std::ssize(sequences[i]);
    if (num_tokens == 0 || num_tokens > settings_.max_tokens) {
      scores[places[i]] = {.reason_class = "too_long",
                           .reason = fmt::format("the conversation has {} tokens, and the reward model reads 1 to {}",
                                                 num_tokens, settings_.max_tokens)};
      continue;
    }
    scored_places.push_back(places[i]);
    scored.push_back(std::move(sequences[i]));
  }
  const ScoringModel::OnDeviceScope here(*model_);
  const std::vector<double> values = trainer::score_sequences(model_->model(), head_, scored, settings_.batch, ranks);
  for (size_t i = 0; i < values.size(); ++i) scores[scored_places[i]].value = values[i];
  sampling::put_model_rewards(source.name, source.weight, scores, options.failure(), rollout);
}

}  // namespace tandem::run
