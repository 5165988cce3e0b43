#include "session/prompt_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string_view>

#include "base/check.h"
#include "base/log.h"
#include "base/message_text.h"
#include "report/report.h"
#include "session/open_parquet.h"
#include "session/unrendered_parts.h"

namespace tandem::session {

namespace {

constexpr size_t kPromptsAtOnce =
    512;  // rendered and encoded together, which bounds the copies of them that exist at once

void log_left_out(const config::DataOptions& options, const data::BadLines& bad, int64_t num_too_long,
                  size_t num_prompts) {
  if (bad.count > 0) {
    base::log_warning("{}: {} left out (--skip-bad-lines), the first: {}", options.lines.path,
                      base::counted(bad.count, "bad line"), bad.messages.empty() ? "" : bad.messages.front());
  }
  if (num_too_long > 0) {
    base::log_info("{}: {} of {} prompts left out, longer than {} {}", options.lines.path, num_too_long, num_prompts,
                   options.max_prompt_flag, options.max_prompt_len);
  }
}

// Removes the records whose numbers are in `refused`, with their texts and tokens.
void remove_records(const std::set<size_t>& refused, data::PromptData& data, std::vector<std::string>& texts,
                    std::vector<std::vector<int32_t>>& tokens) {
  if (refused.empty()) return;
  size_t kept = 0;
  for (size_t i = 0; i < data.records.size(); ++i) {
    if (refused.contains(i)) continue;
    if (kept != i) {
      data.records[kept] = std::move(data.records[i]);
      texts[kept] = std::move(texts[i]);
      tokens[kept] = std::move(tokens[i]);
    }
    ++kept;
  }
  data.records.resize(kept);
  texts.resize(kept);
  tokens.resize(kept);
}

// Gives the lines that `check` refuses to `refuse`, which may throw, and removes them.
void remove_refused(const CheckLines& check, const Refuse& refuse, PromptSet& set) {
  std::set<const rl::Prompt*> refused;
  check(set, [&](size_t i, const std::string& reason) {
    if (refused.insert(set.prompts.at(i).prompt.get()).second) refuse(i, reason);
  });
  std::erase_if(set.prompts, [&](const PromptLine& line) { return refused.contains(line.prompt.get()); });
}

void check_some_are_left(const config::DataOptions& options, const data::BadLines& bad, size_t num_left) {
  TANDEM_USER_CHECK(num_left > 0, fmt::format("{}: no record to work on: {}; the first bad one: {}", options.lines.path,
                                              base::counted(bad.count, "bad line"), bad.messages.front()));
}

// Warns of a key that was asked for and that no line has, which is a mistake; the default key may be absent.
void warn_of_missing_labels(const config::DataOptions& options, const data::PromptData& data) {
  const auto has_none = [](const data::PromptRecord& record) { return record.label.is_null(); };
  if (options.lines.label_key == config::DataOptions().lines.label_key || !std::ranges::all_of(data.records, has_none))
    return;
  base::log_warning("{}: no line has a label under {} ({})", options.lines.path, options.lines.label_key,
                    options.lines.label_flag);
}

// Logs the forms that lines ask for in addition to the flags.
void log_forms(const config::DataOptions& options, const data::PromptData& data) {
  const auto is_continued = [](const data::PromptRecord& record) {
    return ending_of(record.prompt) == Ending::kContinued;
  };
  const auto has_system = [](const data::PromptRecord& record) { return has_system_message(record.prompt); };
  if (const auto count = std::ranges::count_if(data.records, is_continued); count > 0) {
    base::log_info("{}: {} of {} prompts end with an assistant's message, which completions continue",
                   options.lines.path, count, data.records.size());
  }
  if (options.system_prompt.empty()) return;
  if (const auto count = std::ranges::count_if(data.records, has_system); count > 0) {
    base::log_info("{}: {} of {} prompts keep a system message of their own, without --system-prompt",
                   options.lines.path, count, data.records.size());
  }
}

// Counts the prompts whose tools the chat template does not show.
class HiddenTools {
 public:
  void add(const UnrenderedParts& lost, const std::vector<Conversation>& conversations) {
    num_with_tools_ += lost.num_with_part;
    if (num_hidden_ == 0 && !lost.found.empty()) first_ = conversations[lost.found.front()].place;
    num_hidden_ += std::ssize(lost.found);
  }
  void warn(const std::string& tool_key) const {
    if (num_hidden_ == 0) return;
    base::log_warning(
        "{}: {} of {} prompts with {} are rendered without them, because the chat template does not show them: give a "
        "checkpoint whose template does, or write them into a message",
        first_, num_hidden_, num_with_tools_, tool_key);
  }

 private:
  int64_t num_with_tools_ = 0, num_hidden_ = 0;
  std::string first_;  // FILE:LINE
};

void note_longest(PromptSet& set, int64_t num_tokens, const std::string& place) {
  if (num_tokens <= set.longest_tokens) return;
  set.longest_tokens = num_tokens;
  set.longest_place = place;
}

}  // namespace

std::set<std::string> rm_types_of(const PromptSet& set) {
  std::set<std::string> types;
  for (const PromptLine& line : set.prompts) types.insert(line.record.rm_type);
  types.erase("");
  return types;
}

// Returns whether a column has that name; a label "a.b" is called "b" too.
bool has_column(const PromptSet& set, const std::string& label_key, const std::string& name) {
  if (name == label_key || name == label_key.substr(label_key.rfind('.') + 1)) return true;
  return std::ranges::any_of(set.prompts, [&](const PromptLine& line) { return line.record.metadata.contains(name); });
}

std::set<std::string> columns_of(const PromptSet& set, const std::string& label_key) {
  std::set<std::string> names = {label_key.substr(label_key.rfind('.') + 1)};
  for (const PromptLine& line : set.prompts) {
    for (const auto& [key, value] : line.record.metadata.items()) names.insert(key);
  }
  return names;
}

std::vector<std::string> PromptSet::sources_of(std::span<const rl::Sample> samples) const {
  std::vector<std::string> result;
  if (sources.empty()) return result;
  for (const rl::Sample& sample : samples) {
    const auto found = sources.find(sample.prompt.get());
    result.push_back(found == sources.end() ? "" : found->second);
  }
  return result;
}

PromptSet load_prompts(const config::DataOptions& options, text::TextWorker& text, const CheckLines& check) {
  // The first pass, over the file's lines, takes seconds for gigabytes; rendering and encoding take most of the time.
  report::Report report;
  const std::string title = "reading " + std::filesystem::path(options.lines.path).filename().string();
  report.progress(title, 0, 0, "prompts");
  data::PromptData data = data::read_prompts(options.lines, open_parquet);
  if (data.num_rows_without_value > 0) {
    base::log_warning("{}: in {} of {} rows a value that Tandem does not read is left out, rewards see null: {}",
                      options.lines.path, data.num_rows_without_value, data.records.size(), data.first_without_value);
  }
  const std::string file = data::parse_data_path(options.lines.path).file;
  const auto place_of = [&file](const data::PromptRecord& record) { return fmt::format("{}:{}", file, record.line); };
  const size_t num_records = data.records.size();
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> tokens;
  std::set<size_t> refused;
  const auto refuse = [&](size_t i, const std::string& reason) {
    if (!options.lines.skip_bad_lines) throw data::bad_line_error(reason);
    if (refused.insert(i).second) data.bad_lines.add(data.records[i].line, reason);
  };
  HiddenTools hidden_tools;
  while (texts.size() < num_records) {
    const size_t begin = texts.size();
    std::vector<Conversation> conversations;
    for (size_t i = begin; i < std::min(num_records, begin + kPromptsAtOnce); ++i) {
      const data::PromptRecord& record = data.records[i];
      conversations.push_back({record.prompt, record.tools, place_of(record), ending_of(record.prompt)});
    }
    std::vector<std::string> part = render_lines(
        options, text, conversations, [&](size_t i, const std::string& reason) { refuse(begin + i, reason); });
    hidden_tools.add(find_unrendered(Part::kTools, options, text, conversations, part), conversations);
    std::ranges::move(text.encode(part), std::back_inserter(tokens));
    std::ranges::move(part, std::back_inserter(texts));
    report.progress(title, std::ssize(texts), static_cast<int64_t>(num_records), "prompts");
    for (size_t i = begin; i < texts.size(); ++i) {
      if (tokens[i].empty() && !refused.contains(i))
        refuse(i, fmt::format("{}: the prompt has no tokens; remove the line", place_of(data.records[i])));
    }
  }
  remove_records(refused, data, texts, tokens);
  const size_t num_prompts = data.records.size();
  check_some_are_left(options, data.bad_lines, num_prompts);
  warn_of_missing_labels(options, data);
  log_forms(options, data);
  hidden_tools.warn(options.lines.tool_key);

  const auto by_template = [&options](const data::PromptRecord& record) { return is_rendered(options, record.prompt); };
  const auto opened_by_template = [&by_template](const data::PromptRecord& record) {
    return by_template(record) && ending_of(record.prompt) == Ending::kOpen;
  };
  PromptSet set;
  set.is_rendered = std::ranges::any_of(data.records, by_template);
  if (std::ranges::any_of(data.records, opened_by_template)) set.template_opens_answer = opens_answer(options, text);
  int64_t num_prefixed = 0;
  set.path = options.lines.path;
  for (size_t i = 0; i < num_prompts; ++i) {
    data::PromptRecord& record = data.records[i];
    const size_t num_written = tokens[i].size();
    if (!by_template(record)) tokens[i] = plain_text_tokens(options, text, std::move(tokens[i]));
    if (tokens[i].size() > num_written) ++num_prefixed;
    const auto length = static_cast<int64_t>(tokens[i].size());
    if (options.max_prompt_len > 0 && length > options.max_prompt_len) {
      ++set.num_too_long;
      continue;
    }
    rl::SharedPrompt prompt =
        rl::make_prompt(std::move(tokens[i]), std::move(texts[i]), data::label_text(record.label));
    set.prompts.push_back({std::move(record), std::move(prompt)});
  }
  if (num_prefixed > 0) {
    set.text_prefix = text.text_prefix();
    base::log_info("{}: {} of {} prompts begin with {}, which the tokenizer writes before texts (--add-special-tokens)",
                   options.lines.path, num_prefixed, num_prompts, text.decode({set.text_prefix}, false).front());
  }
  const bool all_too_long = set.prompts.empty();
  if (check) {
    remove_refused(
        check,
        [&](size_t i, const std::string& reason) {
          if (!options.lines.skip_bad_lines) throw data::bad_line_error(reason);
          data.bad_lines.add(set.prompts[i].record.line, reason);
        },
        set);
  }
  set.num_bad_lines = data.bad_lines.count;
  log_left_out(options, data.bad_lines, set.num_too_long, num_prompts);
  TANDEM_USER_CHECK(!all_too_long, fmt::format("{}: no prompt has at most {} tokens; raise {}", options.lines.path,
                                               options.max_prompt_len, options.max_prompt_flag));
  check_some_are_left(options, data.bad_lines, set.prompts.size());
  for (const PromptLine& line : set.prompts) note_longest(set, std::ssize(line.prompt->tokens), place_of(line.record));
  set.file_sizes = {std::ssize(set.prompts)};
  return set;
}

PromptSet load_all_prompts(const config::DataOptions& options, text::TextWorker& text, const CheckLines& check) {
  PromptSet all = load_prompts(options.for_file(options.prompt_data.front()), text, check);
  if (options.prompt_data.size() == 1) return all;
  const auto name_sources = [&](const PromptSet& set, const std::string& path) {
    const std::string file = data::parse_data_path(path).file;
    for (const PromptLine& line : set.prompts)
      all.sources[line.prompt.get()] = fmt::format("{}:{}", file, line.record.line);
  };
  name_sources(all, options.prompt_data.front());
  for (size_t i = 1; i < options.prompt_data.size(); ++i) {
    PromptSet one = load_prompts(options.for_file(options.prompt_data[i]), text, check);
    name_sources(one, options.prompt_data[i]);
    std::ranges::move(one.prompts, std::back_inserter(all.prompts));
    all.file_sizes.push_back(one.file_sizes.front());
    all.num_bad_lines += one.num_bad_lines;
    all.num_too_long += one.num_too_long;
    note_longest(all, one.longest_tokens, one.longest_place);
    if (all.text_prefix.empty()) all.text_prefix = one.text_prefix;
    all.is_rendered = all.is_rendered || one.is_rendered;
    all.template_opens_answer = all.template_opens_answer && one.template_opens_answer;
  }
  return all;
}

}  // namespace tandem::session
