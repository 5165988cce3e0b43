#include "session/given_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "rl/data_lines.h"
#include "rl/sft_data.h"
#include "session/sft_samples.h"

namespace tandem::session {

namespace {

const base::Json* find_answer(const rl::PromptRecord& record, const config::DataOptions& data, const std::string& key) {
  const base::Json* found = key == data.lines.label_key ? &record.label : rl::find_value(record.metadata, key);
  return found == nullptr || found->is_null() ? nullptr : found;
}

void check_that_all_have_one(std::span<const PromptLine> lines, const std::string& file,
                             const config::DataOptions& data, const std::string& key) {
  const bool is_default = key == rl::SftOptions().response_key;
  for (const PromptLine& line : lines) {
    if (find_answer(line.record, data, key) != nullptr) continue;
    if (is_default && find_answer(line.record, data, "completion") != nullptr) continue;
    throw UserError(
        fmt::format("{}:{}: the line has no answer under {}, and with --opd-on-policy-share below 1 each line may be "
                    "asked for its own; add it, or name its key with --opd-answer-key",
                    file, line.record.line, key));
  }
}

}  // namespace

void read_given_answers(const config::DataOptions& data, const GivenAnswerOptions& options, text::TextWorker& text,
                        const model::ModelConfig& model, PromptSet& prompts) {
  TANDEM_CHECK_EQ(data.prompt_data.size(), prompts.file_sizes.size());
  std::span<PromptLine> rest = prompts.prompts;
  for (size_t f = 0; f < data.prompt_data.size(); ++f) {
    const auto size = static_cast<size_t>(prompts.file_sizes[f]);
    const std::span<PromptLine> lines = rest.first(size);
    rest = rest.subspan(size);
    const std::string file = rl::parse_data_path(data.prompt_data[f]).file;
    check_that_all_have_one(lines, file, data, options.key);
    config::DataOptions one = data.for_file(data.prompt_data[f]);
    one.lines.label_key = options.key;
    SftSamples answers = load_sft_samples(one, rl::Answers::kToImitate, /*append_eos=*/true, text, model);
    std::unordered_map<std::string, rl::Sample*> of_place;
    for (size_t i = 0; i < answers.samples.size(); ++i) of_place[answers.places[i]] = &answers.samples[i];
    std::vector<std::vector<int32_t>> tokens;
    for (const PromptLine& line : lines) {
      const std::string place = fmt::format("{}:{}", file, line.record.line);
      const auto found = of_place.find(place);
      const bool follows = found != of_place.end() && found->second->prompt->tokens == line.prompt->tokens &&
                           std::ranges::count(found->second->loss_mask, uint8_t{0}) == 0;
      TANDEM_USER_CHECK(follows, fmt::format("{}: with its answer the line is read as another prompt than without, so "
                                             "the answer does not follow what is sampled from; write the line as one "
                                             "prompt and one answer",
                                             place));
      const auto length = static_cast<int64_t>(found->second->completion.size());
      TANDEM_USER_CHECK(length <= options.max_tokens,
                        fmt::format("{}: the answer has {} tokens, and a completion of this run at most {}; raise "
                                    "--rollout-max-response-len, or shorten or remove the line",
                                    place, length, options.max_tokens));
      TANDEM_USER_CHECK(options.max_context_tokens == 0 || found->second->num_tokens() <= options.max_context_tokens,
                        fmt::format("{}: prompt and answer have {} tokens; raise --rollout-max-context-len {}, or "
                                    "shorten or remove the line",
                                    place, found->second->num_tokens(), options.max_context_tokens));
      // Two prompts may be of one line, where a file is given twice.
      tokens.push_back(found->second->completion);
    }
    std::vector<std::string> texts = text.decode(tokens, options.skip_special_tokens);
    for (size_t i = 0; i < size; ++i) lines[i].answer = {.tokens = std::move(tokens[i]), .text = std::move(texts[i])};
  }
}

}  // namespace tandem::session
