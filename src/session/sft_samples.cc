#include "session/sft_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/message_text.h"
#include "data/sft.h"
#include "report/report.h"
#include "session/conversations.h"
#include "session/open_parquet.h"
#include "session/sft_warnings.h"
#include "session/unrendered_parts.h"

namespace tandem::session {

namespace {

// So many answers are rendered and encoded together, which bounds the copies of conversations that exist at once.
constexpr size_t kAnswersAtOnce = 512;

data::SftData read_data(const config::DataOptions& data, data::Answers answers) {
  data::SftOptions options;
  options.answers = answers;
  options.path = data.lines.path;
  options.prompt_key = data.lines.input_key;
  options.response_key = data.lines.label_key;
  options.tool_key = data.lines.tool_key;
  options.skip_bad_lines = data.lines.skip_bad_lines;
  data::SftData records = data::read_sft(options, open_parquet);
  if (answers == data::Answers::kToImitate) warn_of_answers(records, data.lines.path);
  return records;
}

// One assistant's message, or one response, before it becomes tokens.
struct Answer {
  int64_t line = 0;
  std::string place;              // FILE:LINE
  bool continues_record = false;  // true if an earlier answer belongs to the same record
  bool is_desirable = true;
  std::string prompt_text, text;
  bool is_rendered = false;    // true if the chat template rendered it, which ends answers itself
  bool is_whole_text = false;  // true for a line {"text"}, which has no prompt
  std::vector<int32_t> prompt, tokens;
};

std::string why_reasoning_is_lost(const std::string& place, const UnrenderedParts& parts) {
  const std::string remedy = parts.renamed_key.empty()
                                 ? "give a checkpoint whose template renders it, write it into content,"
                                 : fmt::format("rename it to {}, which the template renders,", parts.renamed_key);
  return fmt::format(
      "{}: an answer has {}, which the chat template does not render, so it would not be trained on; {} or give "
      "--allow-unrendered-reasoning to train without it",
      place, parts.key, remedy);
}

std::string why_calls_are_lost(const std::string& place, const UnrenderedParts& parts) {
  const std::string remedy =
      parts.renamed_key.empty()
          ? "give a checkpoint whose template renders it, or write it into content as text"
          : fmt::format(
                "write it as \"{}\": [{{\"type\": \"function\", \"function\": ...}}], which the template renders",
                parts.renamed_key);
  return fmt::format("{}: an answer has {}, which the chat template does not render, so it would not be trained on; {}",
                     place, parts.key, remedy);
}

std::string why_tools_are_lost(const std::string& place, const std::string& tool_key) {
  return fmt::format(
      "{}: the line has {}, which the chat template does not show; give a checkpoint whose template shows them, write "
      "them into a message, or give --tool-key a name that no line has, to train without them",
      place, tool_key);
}

std::string_view without_space_at_end(std::string_view text) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  return text.substr(0, end == std::string_view::npos ? 0 : end + 1);
}

// Returns why a conversation that does not begin with its prompt has no answer to train on.
std::string why_no_answer(const std::string& prompt, const std::string& whole, const std::string& place) {
  const auto differ = std::mismatch(prompt.begin(), prompt.end(), whole.begin(), whole.end());
  const auto from = static_cast<size_t>(differ.first - prompt.begin());
  return fmt::format(
      "{}: what the chat template renders as the prompt does not begin the conversation with its answer: the prompt "
      "continues with '{}' where the conversation has '{}'; give --apply-chat-template-kwargs that suit the answer (such "
      "as enable_thinking), or write the line as texts: {{\"prompt\": \"...\", \"response\": \"...\"}}",
      place, base::one_line(std::string_view(prompt).substr(from), 40),
      base::one_line(std::string_view(whole).substr(from), 40));
}

// Returns whether `tokens` begin with a prompt and the answer to it.
bool begins_with(const std::vector<int32_t>& tokens, const std::vector<int32_t>& prompt,
                 const std::vector<int32_t>& answer) {
  if (tokens.size() < prompt.size() + answer.size()) return false;
  const auto rest = tokens.begin() + std::ssize(prompt);
  return std::equal(prompt.begin(), prompt.end(), tokens.begin()) && std::equal(answer.begin(), answer.end(), rest);
}

// Returns why the answers of a line are no preference, "" if they are one. All messages of an answer are one text, and
// both answers of a pair have one prompt.
std::string why_no_preference(std::span<const Answer> line) {
  const Answer* before = nullptr;
  for (const Answer& answer : line) {
    if (!answer.continues_record) {
      if (answer.prompt != line.front().prompt) {
        return fmt::format(
            "{}: the chat template renders another prompt before the chosen answer than before the rejected one; write "
            "the line as texts: {{\"prompt\": ..., \"chosen\": ..., \"rejected\": ...}}",
            answer.place);
      }
    } else if (!begins_with(answer.prompt, before->prompt, before->tokens)) {
      return fmt::format(
          "{}: an answer of several messages, which the chat template does not render as one text; a preference is "
          "about one answer: keep its last message, and write the others into the prompt",
          answer.place);
    }
    before = &answer;
  }
  return "";
}

class SampleMaker {
 public:
  SampleMaker(const config::DataOptions& data, data::Answers answers, bool append_eos, text::TextWorker& text,
              const model::ModelConfig& model)
      : data_(data), kind_(answers), append_eos_(append_eos), text_(text), model_(model) {}

  SftSamples make();

 private:
  void add(const data::SftRecord& record);
  void add_conversation(const base::Json& messages, const std::vector<size_t>& trained, const base::Json& tools,
                        const Answer& form);
  void flush();
  void refuse(const Answer& answer, const std::string& reason);
  void remove_refused();
  void render();
  void check_parts(const std::vector<std::string>& wholes);
  void check_sizes();
  void encode();
  void begin_text(std::vector<int32_t>& prompt);
  void split_text(Answer& answer);
  void end_answer(Answer& answer);
  bool ends_answer(int32_t token) const;
  bool is_eos(int32_t token) const;
  std::optional<int32_t> own_eos() const;
  size_t unit_end(size_t begin) const;
  void use_or_leave_out(std::span<const Answer> unit);
  void join(const Answer& answer);
  void begin_sample(const Answer& answer);
  void join_pairs();
  void leave_out(const Answer& answer);
  void log_prefix() const;
  void log_left_out() const;
  void warn_of_ends();
  void warn_of_reasoning() const;
  void warn_of_unread_systems() const;

  const config::DataOptions& data_;
  const data::Answers kind_;
  const bool append_eos_;
  text::TextWorker& text_;
  const model::ModelConfig& model_;
  std::vector<Answer> answers_;  // answers that wait to be encoded
  std::vector<Conversation> prompts_,
      wholes_;  // conversations of the answers that the template renders, in their order
  SftSamples result_;
  data::BadLines bad_;         // of all phases
  std::set<int64_t> refused_;  // lines among those of answers_ that are left out as bad
  bool joins_ = false;         // true while the last sample belongs to the record whose answers are being joined
  int64_t num_answers_ = 0, num_prefixed_ = 0;
  int64_t num_units_ = 0, num_too_long_ = 0, num_beyond_context_ = 0;  // units: unit_end()
  std::string first_beyond_context_;                                   // what is wrong with the first of them
  int64_t num_with_reasoning_ = 0, num_without_it_ = 0;  // answers with reasoning, and those whose text lacks it
  std::set<int64_t> unread_systems_;  // plain lines with a system message, which has no place in them
  std::string first_unread_system_;   // FILE:LINE
  std::map<int32_t, int64_t> ends_;   // tokens with which the template ends answers, to how many
};

SftSamples SampleMaker::make() {
  report::Report report;
  const std::string title = "reading " + std::filesystem::path(data_.lines.path).filename().string();
  report.progress(title, 0, 0, "lines");
  const data::SftData data = read_data(data_, kind_);
  bad_ = data.bad_lines;
  result_.context = model_.max_positions;
  result_.num_records = std::ssize(data.records);
  for (int64_t i = 0; i < result_.num_records; ++i) {
    add(data.records[static_cast<size_t>(i)]);
    const bool is_half_a_pair = kind_ == data::Answers::kPairs && i % 2 == 0;
    if (is_half_a_pair || answers_.size() < kAnswersAtOnce) continue;
    flush();
    report.progress(title, i + 1, result_.num_records, "lines");
  }
  flush();
  log_prefix();
  log_left_out();
  if (kind_ == data::Answers::kPairs) join_pairs();
  warn_of_ends();
  warn_of_reasoning();
  warn_of_unread_systems();
  result_.file_sizes = {std::ssize(result_.samples)};
  return std::move(result_);
}

void SampleMaker::add(const data::SftRecord& record) {
  Answer form;
  form.line = record.line;
  form.place = fmt::format("{}:{}", data::parse_data_path(data_.lines.path).file, record.line);
  form.is_desirable = record.is_desirable;
  if (!record.messages.is_null()) return add_conversation(record.messages, record.trained, record.tools, form);
  const bool is_whole_text = record.prompt.empty();
  if (data_.apply_chat_template.value_or(false)) {
    TANDEM_USER_CHECK(!is_whole_text, fmt::format("{}: a line of text alone asks nothing that a chat template could "
                                                  "render; leave --apply-chat-template out",
                                                  form.place));
    base::Json messages = base::Json::array();
    if (!record.system.empty()) messages.push_back({{"role", "system"}, {"content", record.system}});
    messages.push_back({{"role", "user"}, {"content", record.prompt}});
    messages.push_back({{"role", "assistant"}, {"content", record.response}});
    return add_conversation(messages, {messages.size() - 1}, record.tools, form);
  }
  check_plain_text(data_, form.place);
  if (!record.system.empty() && unread_systems_.insert(record.line).second && unread_systems_.size() == 1)
    first_unread_system_ = form.place;
  form.prompt_text = record.prompt;
  form.text = record.response;
  form.is_whole_text = is_whole_text;
  answers_.push_back(std::move(form));
}

void SampleMaker::add_conversation(const base::Json& messages, const std::vector<size_t>& trained,
                                   const base::Json& tools, const Answer& form) {
  base::Json before = base::Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool is_trained = std::ranges::find(trained, i) != trained.end();
    if (is_trained) prompts_.push_back({before, tools, form.place});
    before.push_back(messages[i]);
    if (!is_trained) continue;
    wholes_.push_back({before, tools, form.place, Ending::kClosed});
    answers_.push_back(form);
    answers_.back().is_rendered = true;
    answers_.back().continues_record = i != trained.front();
  }
}

void SampleMaker::flush() {
  render();
  check_sizes();
  remove_refused();
  encode();
  for (Answer& answer : answers_) end_answer(answer);
  for (const Answer& answer : answers_) {
    if (answer.prompt.empty() || answer.tokens.empty())
      refuse(answer, fmt::format("{}: prompt or response has no tokens; remove the line", answer.place));
  }
  remove_refused();
  for (size_t begin = 0, end = 0; begin < answers_.size(); begin = end) {
    end = unit_end(begin);
    use_or_leave_out(std::span(answers_).subspan(begin, end - begin));
  }
  answers_.clear();
  refused_.clear();
}

// Leaves out the line of an answer that is wrong, as --skip-bad-lines asks; a line is counted once.
void SampleMaker::refuse(const Answer& answer, const std::string& reason) {
  if (!data_.lines.skip_bad_lines) throw data::bad_line_error(reason);
  if (refused_.insert(answer.line).second) bad_.add(answer.line, reason);
}

void SampleMaker::remove_refused() {
  if (refused_.empty()) return;
  std::erase_if(answers_, [&](const Answer& answer) { return refused_.contains(answer.line); });
}

void SampleMaker::render() {
  std::vector<Answer*> rendered;
  for (Answer& answer : answers_) {
    if (answer.is_rendered) rendered.push_back(&answer);
  }
  const auto refuse_line = [&](size_t i, const std::string& reason) { refuse(*rendered[i], reason); };
  const std::vector<std::string> prompts = render_lines(data_, text_, prompts_, refuse_line);
  std::vector<std::string> wholes = render_lines(data_, text_, wholes_, refuse_line);
  for (size_t i = 0; i < rendered.size(); ++i) {
    Answer& answer = *rendered[i];
    if (!refused_.contains(answer.line) && !wholes[i].starts_with(prompts[i])) {
      refuse(answer, why_no_answer(prompts[i], wholes[i], answer.place));
    }
    if (refused_.contains(answer.line)) continue;
    answer.prompt_text = prompts[i];
    answer.text = wholes[i].substr(prompts[i].size());
  }
  for (size_t i = 0; i < rendered.size(); ++i) {  // a line may be refused for its last answer
    if (refused_.contains(rendered[i]->line)) wholes[i].clear();
  }
  check_parts(wholes);
  prompts_.clear();
  wholes_.clear();
}

// Texts that no template renders have their limit here.
void SampleMaker::check_sizes() {
  for (const Answer& answer : answers_) {
    const size_t num_bytes = std::max(answer.prompt_text.size(), answer.text.size());
    if (const std::string reason = why_too_large(num_bytes, answer.place); !reason.empty()) refuse(answer, reason);
  }
}

// Refuses what an answer or its tools say and the template leaves out: it would not be trained on, and may be most of
// the data. Reasoning is counted where that is allowed.
void SampleMaker::check_parts(const std::vector<std::string>& wholes) {
  const UnrenderedParts reasoning = find_unrendered(Part::kReasoning, data_, text_, wholes_, wholes);
  num_with_reasoning_ += reasoning.num_with_part;
  num_without_it_ += std::ssize(reasoning.found);
  TANDEM_USER_CHECK(reasoning.found.empty() || data_.allow_unrendered_reasoning,
                    why_reasoning_is_lost(wholes_[reasoning.found.front()].place, reasoning));
  const UnrenderedParts calls = find_unrendered(Part::kCalls, data_, text_, wholes_, wholes);
  TANDEM_USER_CHECK(calls.found.empty(), why_calls_are_lost(wholes_[calls.found.front()].place, calls));
  const UnrenderedParts tools = find_unrendered(Part::kTools, data_, text_, wholes_, wholes);
  TANDEM_USER_CHECK(tools.found.empty(), why_tools_are_lost(wholes_[tools.found.front()].place, data_.lines.tool_key));
}

void SampleMaker::warn_of_reasoning() const {
  if (num_without_it_ == 0) return;
  base::log_warning(
      "{}: {} of {} answers with reasoning are trained on without it, because the chat template does not render it "
      "(--allow-unrendered-reasoning)",
      data_.lines.path, num_without_it_, num_with_reasoning_);
}

void SampleMaker::warn_of_unread_systems() const {
  if (unread_systems_.empty()) return;
  base::log_warning(
      "{}: {} a text under system, which has no place in a plain text and is not read: give --apply-chat-template, "
      "which makes it the system message, or rename the column",
      first_unread_system_,
      unread_systems_.size() == 1 ? "1 line has" : fmt::format("{} lines have", unread_systems_.size()));
}

// White space that a template writes after the token that ends an answer does not belong to the answer: generation has
// stopped there. Without such a token all that the template writes is the answer.
void SampleMaker::encode() {
  std::vector<std::string> prompts, texts;
  for (const Answer& answer : answers_) {
    prompts.push_back(answer.prompt_text);
    texts.emplace_back(answer.is_rendered ? without_space_at_end(answer.text) : std::string_view(answer.text));
  }
  std::vector<std::vector<int32_t>> prompt_tokens = text_.encode(prompts), tokens = text_.encode(texts);
  std::vector<size_t> again;
  std::vector<std::string> again_texts;
  for (size_t i = 0; i < answers_.size(); ++i) {
    answers_[i].prompt = std::move(prompt_tokens[i]);
    answers_[i].tokens = std::move(tokens[i]);
    if (answers_[i].is_whole_text) {
      split_text(answers_[i]);
    } else if (!answers_[i].is_rendered) {
      begin_text(answers_[i].prompt);
    }
    const bool is_ended = !answers_[i].tokens.empty() && ends_answer(answers_[i].tokens.back());
    if (is_ended || texts[i].size() == answers_[i].text.size()) continue;
    again.push_back(i);
    again_texts.push_back(answers_[i].text);
  }
  tokens = text_.encode(again_texts);
  for (size_t i = 0; i < again.size(); ++i) answers_[again[i]].tokens = std::move(tokens[i]);
}

void SampleMaker::begin_text(std::vector<int32_t>& prompt) {
  const size_t num_written = prompt.size();
  prompt = plain_text_tokens(data_, text_, std::move(prompt));
  if (prompt.size() == num_written) return;
  result_.text_prefix = text_.text_prefix();
  ++num_prefixed_;
}

// Nothing precedes the first token of a text, so it cannot be predicted and becomes the prompt. It is BOS if texts
// begin with BOS.
void SampleMaker::split_text(Answer& answer) {
  if (answer.tokens.empty()) return;
  begin_text(answer.tokens);
  const size_t num_prefix = data_.add_special_tokens ? text_.text_prefix().size() : 0;
  const auto begin = answer.tokens.begin() + static_cast<std::ptrdiff_t>(std::max<size_t>(num_prefix, 1));
  answer.prompt.assign(answer.tokens.begin(), begin);
  answer.tokens.erase(answer.tokens.begin(), begin);
}

bool SampleMaker::is_eos(int32_t token) const {
  return std::ranges::find(model_.eos_token_ids, token) != model_.eos_token_ids.end();
}

// The rule is TRL's: eos_token_id of the model's files may name several tokens, or another one than its publisher
// trained texts with.
std::optional<int32_t> SampleMaker::own_eos() const {
  if (text_.eos_id()) return text_.eos_id();
  if (!model_.eos_token_ids.empty()) return model_.eos_token_ids.front();
  return std::nullopt;
}

// Templates end answers with the model's EOS, or with a special token that is not among its EOS tokens (Base
// checkpoints).
bool SampleMaker::ends_answer(int32_t token) const { return is_eos(token) || text_.is_special(token); }

void SampleMaker::end_answer(Answer& answer) {
  std::vector<int32_t>& tokens = answer.tokens;
  if (answer.is_rendered && !tokens.empty() && ends_answer(tokens.back())) {
    // If the data write the end token themselves, the answer has it twice now.
    while (tokens.size() > 1 && tokens[tokens.size() - 2] == tokens.back()) tokens.pop_back();
    ++ends_[tokens.back()];
    return;
  }
  const std::optional<int32_t> eos = own_eos();
  if (!append_eos_ || (!tokens.empty() && (is_eos(tokens.back()) || tokens.back() == eos))) return;
  TANDEM_USER_CHECK(
      eos.has_value(),
      fmt::format("{}: nothing ends the answer, and the checkpoint names no EOS token; add eos_token to its "
                  "tokenizer_config.json, or give --no-append-eos",
                  answer.place));
  tokens.push_back(*eos);
  result_.appended_eos = eos;
}

void append(rl::Sample& sample, std::span<const int32_t> tokens, uint8_t is_trained) {
  sample.completion.insert(sample.completion.end(), tokens.begin(), tokens.end());
  sample.loss_mask.resize(sample.completion.size(), is_trained);
}

// Returns the end of the answers that are used or left out together with the one at `begin`. A message to imitate
// stands alone; a preference is about all of a line: every message of an answer, and both answers of a pair.
size_t SampleMaker::unit_end(size_t begin) const {
  size_t end = begin + 1;
  if (kind_ == data::Answers::kToImitate) return end;
  while (end < answers_.size() && answers_[end].place == answers_[begin].place) ++end;
  return end;
}

int64_t num_tokens(const Answer& answer) { return std::ssize(answer.prompt) + std::ssize(answer.tokens); }

void SampleMaker::use_or_leave_out(std::span<const Answer> unit) {
  ++num_units_;
  num_answers_ += static_cast<int64_t>(unit.size());
  joins_ = joins_ && unit.front().continues_record;
  const auto has_long_prompt = [&](const Answer& answer) {
    return data_.max_prompt_len > 0 && std::ssize(answer.prompt) > data_.max_prompt_len;
  };
  if (std::ranges::any_of(unit, has_long_prompt)) {
    ++num_too_long_;
    return;
  }
  for (const Answer& answer : unit) {
    if (num_tokens(answer) > model_.max_positions) return leave_out(answer);
  }
  if (kind_ != data::Answers::kToImitate) {
    if (const std::string reason = why_no_preference(unit); !reason.empty()) return refuse(unit.front(), reason);
  }
  for (const Answer& answer : unit) join(answer);
}

void SampleMaker::join(const Answer& answer) {
  joins_ = joins_ && answer.continues_record;
  const rl::Sample* const last = joins_ ? &result_.samples.back() : nullptr;
  if (last == nullptr || !begins_with(answer.prompt, last->prompt->tokens, last->completion)) begin_sample(answer);
  rl::Sample& sample = result_.samples.back();
  const int64_t context = sample.num_tokens();
  append(sample, std::span(answer.prompt).subspan(static_cast<size_t>(context)), /*is_trained=*/0);
  append(sample, answer.tokens, /*is_trained=*/1);
  result_.num_trained_tokens += static_cast<int64_t>(answer.tokens.size());
}

void SampleMaker::begin_sample(const Answer& answer) {
  rl::Sample sample;
  sample.group_id = sample.sample_id = result_.samples.size();
  sample.prompt = rl::make_prompt(answer.prompt);
  result_.samples.push_back(std::move(sample));
  result_.places.push_back(answer.place);
  result_.desirable.push_back(answer.is_desirable ? 1 : 0);
  TANDEM_CHECK(kind_ == data::Answers::kToImitate || !answer.continues_record,
               "an answer of a preference is one sample:", answer.place);
  joins_ = true;
}

// A pair has one prompt, which the trainer computes once.
void SampleMaker::join_pairs() {
  std::vector<rl::Sample>& samples = result_.samples;
  for (size_t i = 0; i < samples.size(); i += 2) {
    const bool is_pair = i + 1 < samples.size() && result_.places[i] == result_.places[i + 1] &&
                         samples[i].prompt->tokens == samples[i + 1].prompt->tokens;
    TANDEM_CHECK(is_pair, "the two answers of a pair follow each other and have one prompt:", result_.places[i]);
    samples[i + 1].prompt = samples[i].prompt;
    samples[i + 1].group_id = samples[i].group_id;
  }
}

void SampleMaker::log_prefix() const {
  if (num_prefixed_ == 0) return;
  base::log_info("{}: {} of {} texts begin with {}, which the tokenizer writes before texts (--add-special-tokens)",
                 data_.lines.path, num_prefixed_, num_answers_, text_.decode({result_.text_prefix}, false).front());
}

// Leaves out the unit of an answer that is longer with its prompt than the context, as --skip-bad-lines asks.
void SampleMaker::leave_out(const Answer& answer) {
  const std::string what = fmt::format("{}: prompt and response have {} tokens, the model's context is {}",
                                       answer.place, num_tokens(answer), model_.max_positions);
  TANDEM_USER_CHECK(data_.lines.skip_bad_lines,
                    fmt::format("{}; shorten or remove the line, or give --skip-bad-lines", what));
  if (num_beyond_context_++ == 0) first_beyond_context_ = what;
}

void SampleMaker::log_left_out() const {
  const char* const units = kind_ == data::Answers::kToImitate ? "answers" : "lines";
  const bool all_are_bad = result_.samples.empty() && num_beyond_context_ == 0 && num_too_long_ == 0;
  TANDEM_USER_CHECK(!all_are_bad, fmt::format("{}: no record to work on: {} bad lines; the first bad one: {}",
                                              data_.lines.path, bad_.count, bad_.messages.front()));
  if (bad_.count > 0) {
    base::log_warning("{}: {} left out (--skip-bad-lines), the first: {}", data_.lines.path,
                      base::counted(bad_.count, "bad line"), bad_.messages.front());
  }
  if (num_beyond_context_ > 0) {
    base::log_warning("{}: {} of {} {} left out (--skip-bad-lines), the first: {}", data_.lines.path,
                      num_beyond_context_, num_units_, units, first_beyond_context_);
  }
  if (num_too_long_ > 0) {
    base::log_info("{}: {} of {} {} left out, their prompts are longer than --rollout-max-prompt-len {}",
                   data_.lines.path, num_too_long_, num_units_, units, data_.max_prompt_len);
  }
  TANDEM_USER_CHECK(
      !result_.samples.empty(),
      num_beyond_context_ > 0
          ? fmt::format("{}: no answer is left; {}", data_.lines.path, first_beyond_context_)
          : fmt::format("{}: none of {} {} has prompts of at most {} tokens; raise --rollout-max-prompt-len",
                        data_.lines.path, num_units_, units, data_.max_prompt_len));
}

// Warns about tokens at which generation does not stop: a model that learns to end its answers with one continues after
// it.
void SampleMaker::warn_of_ends() {
  for (const auto& [token, count] : ends_) {
    if (is_eos(token)) continue;
    base::log_warning(
        "{}: the chat template ends {} of {} answers with {} ({}), which is not among eos_token_id of config.json and "
        "generation_config.json, so generation will not stop there: add it, or give --rollout-stop-token-ids {}",
        data_.lines.path, count, num_answers_, text_.decode({{token}}, false).front(), token, token);
  }
  if (const std::optional<int32_t> eos = result_.appended_eos; eos && !is_eos(*eos)) {
    base::log_warning(
        "{}: plain answers end with the tokenizer's EOS {} ({}), which is not among eos_token_id of config.json and "
        "generation_config.json, so generation will not stop there: add it, or give --rollout-stop-token-ids {}",
        data_.lines.path, text_.decode({{*eos}}, false).front(), *eos, *eos);
  }
}

}  // namespace

SftSamples load_sft_samples(const config::DataOptions& data, data::Answers answers, bool append_eos,
                            text::TextWorker& text, const model::ModelConfig& model) {
  return SampleMaker(data, answers, append_eos, text, model).make();
}

SftSamples load_all_sft_samples(const config::DataOptions& data, data::Answers answers, bool append_eos,
                                text::TextWorker& text, const model::ModelConfig& model) {
  SftSamples all;
  for (const std::string& path : data.prompt_data) {
    SftSamples one = load_sft_samples(data.for_file(path), answers, append_eos, text, model);
    const size_t before = all.samples.size();
    for (rl::Sample& sample : one.samples) {
      sample.group_id += before;
      sample.sample_id += before;
      all.samples.push_back(std::move(sample));
    }
    std::ranges::move(one.places, std::back_inserter(all.places));
    std::ranges::move(one.desirable, std::back_inserter(all.desirable));
    all.file_sizes.push_back(one.file_sizes.front());
    if (all.text_prefix.empty()) all.text_prefix = one.text_prefix;
    if (!all.appended_eos) all.appended_eos = one.appended_eos;
    all.context = one.context;
    all.num_records += one.num_records;
    all.num_trained_tokens += one.num_trained_tokens;
  }
  warn_of_preferences(all, answers);
  return all;
}

}  // namespace tandem::session
