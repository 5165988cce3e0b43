#include "session/given_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "data/lines.h"
#include "data/sft.h"
#include "session/sft_samples.h"

namespace tandem::session {

namespace {

const base::Json* find_answer(const data::PromptRecord& record, const config::DataOptions& data,
                              const std::string& key) {
  if (key != data.lines.label_key) return data::find_present(record.metadata, key);
  return record.label.is_null() ? nullptr : &record.label;
}

void check_that_all_have_one(std::span<const PromptLine> lines, const std::string& file,
                             const config::DataOptions& data, const std::string& key, bool takes_completion) {
  for (const PromptLine& line : lines) {
    if (find_answer(line.record, data, key) != nullptr) continue;
    if (takes_completion && find_answer(line.record, data, "completion") != nullptr) continue;
    throw UserError(
        fmt::format("{}:{}: the line has no answer under {}, and with --opd-on-policy-share below 1 each line may be "
                    "asked for its own; add it, or name its key with --opd-answer-key",
                    file, line.record.line, key));
  }
}

// Returns whether an answer is a list of token ids, as `tandem generate` writes them, and no text or messages.
bool is_token_list(const base::Json& answer) {
  return answer.is_array() && !answer.empty() && answer.front().is_number();
}

std::vector<int32_t> read_token_list(const base::Json& answer, const std::string& key, const std::string& place,
                                     int64_t vocab) {
  std::vector<int32_t> tokens;
  TANDEM_USER_CHECK(is_token_list(answer),
                    fmt::format("{}: {} is no list of token ids, and that of the file's first line is; write all "
                                "answers of a file in one form",
                                place, key));
  for (const base::Json& token : answer) {
    const bool is_id = token.is_number_integer() && token >= 0 && token < vocab;
    TANDEM_USER_CHECK(is_id,
                      fmt::format("{}: {} has {}, which is no token id of the model (0 to {}); sample the answers "
                                  "from a teacher with the policy's tokenizer",
                                  place, key, token.dump(), vocab - 1));
    tokens.push_back(token.get<int32_t>());
  }
  return tokens;
}

// Returns the tokens of the answers of one file, which are texts or messages, as `tandem sft` makes them.
std::vector<std::vector<int32_t>> tokenize_answers(const config::DataOptions& data, const std::string& key,
                                                   std::span<const PromptLine> lines, const std::string& file,
                                                   text::TextWorker& text, const model::ModelConfig& model) {
  config::DataOptions one = data;
  one.lines.label_key = key;
  SftSamples answers = load_sft_samples(one, data::Answers::kToImitate, /*append_eos=*/true, text, model);
  std::unordered_map<std::string, rl::Sample*> of_place;
  for (size_t i = 0; i < answers.samples.size(); ++i) of_place[answers.places[i]] = &answers.samples[i];
  std::vector<std::vector<int32_t>> tokens;
  for (const PromptLine& line : lines) {
    const std::string place = fmt::format("{}:{}", file, line.record.line);
    const auto found = of_place.find(place);
    TANDEM_USER_CHECK(
        found != of_place.end(),
        fmt::format("{}: the answer is left out, as a line above says (--skip-bad-lines), and with "
                    "--opd-on-policy-share below 1 each line may be asked for its own; mend or remove the line",
                    place));
    const bool follows = found->second->prompt->tokens == line.prompt->tokens &&
                         std::ranges::count(found->second->loss_mask, uint8_t{0}) == 0;
    TANDEM_USER_CHECK(follows, fmt::format("{}: with its answer the line is read as another prompt than without, so "
                                           "the answer does not follow what is sampled from; write the line as one "
                                           "prompt and one answer",
                                           place));
    tokens.push_back(found->second->completion);  // two prompts may be of one line, where a file is given twice
  }
  return tokens;
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
    const std::string file = data::parse_data_path(data.prompt_data[f]).file;
    const auto place = [&](size_t i) { return fmt::format("{}:{}", file, lines[i].record.line); };
    std::vector<std::vector<int32_t>> tokens;
    const base::Json* const first = find_answer(lines.front().record, data, options.key);
    const bool has_token_lists = first != nullptr && is_token_list(*first);
    const bool takes_completion = options.key == data::SftOptions().response_key && !has_token_lists;
    check_that_all_have_one(lines, file, data, options.key, takes_completion);
    if (has_token_lists) {
      for (size_t i = 0; i < size; ++i) {
        const base::Json& answer = *find_answer(lines[i].record, data, options.key);
        tokens.push_back(read_token_list(answer, options.key, place(i), model.vocab));
      }
    } else {
      tokens = tokenize_answers(data.for_file(data.prompt_data[f]), options.key, lines, file, text, model);
    }
    for (size_t i = 0; i < size; ++i) {
      const auto length = static_cast<int64_t>(tokens[i].size());
      const int64_t in_all = length + static_cast<int64_t>(lines[i].prompt->tokens.size());
      TANDEM_USER_CHECK(length <= options.max_tokens,
                        fmt::format("{}: the answer has {} tokens, and a completion of this run at most {}; raise "
                                    "--rollout-max-response-len, or shorten or remove the line",
                                    place(i), length, options.max_tokens));
      TANDEM_USER_CHECK(
          in_all <= model.max_positions,
          fmt::format("{}: prompt and answer have {} tokens, the model's context is {}; shorten or remove "
                      "the line",
                      place(i), in_all, model.max_positions));
      TANDEM_USER_CHECK(options.max_context_tokens == 0 || in_all <= options.max_context_tokens,
                        fmt::format("{}: prompt and answer have {} tokens; raise --rollout-max-context-len {}, or "
                                    "shorten or remove the line",
                                    place(i), in_all, options.max_context_tokens));
    }
    std::vector<std::string> texts = text.decode(tokens, options.skip_special_tokens);
    for (size_t i = 0; i < size; ++i) lines[i].answer = {.tokens = std::move(tokens[i]), .text = std::move(texts[i])};
  }
}

}  // namespace tandem::session
