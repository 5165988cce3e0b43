#include "run/prompt_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "base/check.h"
#include "base/log.h"
#include "report/report.h"
#include "run/conversations.h"
#include "run/open_parquet.h"

namespace tandem::run {

namespace {

constexpr size_t kPromptsAtOnce = 512;  // rendered and encoded together: bounds the copies of them that exist at once

void log_left_out(const config::DataOptions& options, const rl::BadLines& bad, int64_t num_too_long,
                  size_t num_prompts) {
  if (bad.count > 0) {
    base::log_warning("{}: {} bad lines left out (--skip-bad-lines), the first: {}", options.lines.path, bad.count,
                      bad.messages.empty() ? "" : bad.messages.front());
  }
  if (num_too_long > 0) {
    base::log_info("{}: {} of {} prompts left out, longer than {} {}", options.lines.path, num_too_long, num_prompts,
                   options.max_prompt_flag, options.max_prompt_len);
  }
}

// A key that was asked for and that no line has is a slip; the default key may be absent.
void warn_of_missing_labels(const config::DataOptions& options, const rl::PromptData& data) {
  const auto has_none = [](const rl::PromptRecord& record) { return record.label.is_null(); };
  if (options.lines.label_key == config::DataOptions().lines.label_key || !std::ranges::all_of(data.records, has_none))
    return;
  base::log_warning("{}: no line has a label under {} ({})", options.lines.path, options.lines.label_key,
                    options.lines.label_flag);
}

// What a line asks for beside the flags.
void log_forms(const config::DataOptions& options, const rl::PromptData& data) {
  const auto is_continued = [](const rl::PromptRecord& record) {
    return ending_of(record.prompt) == Ending::kContinued;
  };
  const auto has_system = [](const rl::PromptRecord& record) { return has_system_message(record.prompt); };
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

}  // namespace

std::set<std::string> rm_types_of(const PromptSet& set) {
  std::set<std::string> types;
  for (const PromptLine& line : set.prompts) types.insert(line.record.rm_type);
  types.erase("");
  return types;
}

PromptSet load_prompts(const config::DataOptions& options, text::TextWorker& text) {
  // The first pass, over the file's lines, takes seconds where it is of gigabytes; rendering and encoding take most.
  report::Report report;
  const std::string title = "reading " + std::filesystem::path(options.lines.path).filename().string();
  report.progress(title, 0, 0, "prompts");
  rl::PromptData data = rl::read_prompts(options.lines, open_parquet);
  warn_of_missing_labels(options, data);
  log_forms(options, data);
  const std::string file = rl::parse_data_path(options.lines.path).file;
  const auto place_of = [&file](const rl::PromptRecord& record) { return fmt::format("{}:{}", file, record.line); };
  const size_t num_prompts = data.records.size();
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> tokens;
  while (texts.size() < num_prompts) {
    std::vector<Conversation> conversations;
    for (size_t i = texts.size(); i < std::min(num_prompts, texts.size() + kPromptsAtOnce); ++i) {
      const rl::PromptRecord& record = data.records[i];
      conversations.push_back({record.prompt, record.tools, place_of(record), ending_of(record.prompt)});
    }
    std::vector<std::string> part = render_prompts(options, text, conversations);
    std::ranges::move(text.encode(part), std::back_inserter(tokens));
    std::ranges::move(part, std::back_inserter(texts));
    report.progress(title, std::ssize(texts), static_cast<int64_t>(num_prompts), "prompts");
  }

  const auto by_template = [&options](const rl::PromptRecord& record) {
    return options.apply_chat_template.value_or(record.prompt.is_array());
  };
  const auto opened_by_template = [&by_template](const rl::PromptRecord& record) {
    return by_template(record) && ending_of(record.prompt) == Ending::kOpen;
  };
  PromptSet set;
  set.is_rendered = std::ranges::any_of(data.records, by_template);
  if (std::ranges::any_of(data.records, opened_by_template)) set.template_opens_answer = opens_answer(options, text);
  set.path = options.lines.path;
  set.num_bad_lines = data.bad_lines.count;
  for (size_t i = 0; i < num_prompts; ++i) {
    rl::PromptRecord& record = data.records[i];
    const auto length = static_cast<int64_t>(tokens[i].size());
    TANDEM_USER_CHECK(length > 0, fmt::format("{}: the prompt has no tokens; remove the line", place_of(record)));
    if (options.max_prompt_len > 0 && length > options.max_prompt_len) {
      ++set.num_too_long;
      continue;
    }
    set.longest_tokens = std::max(set.longest_tokens, length);
    rl::SharedPrompt prompt = rl::make_prompt(std::move(tokens[i]), std::move(texts[i]), rl::label_text(record.label));
    set.prompts.push_back({std::move(record), std::move(prompt)});
  }
  log_left_out(options, data.bad_lines, set.num_too_long, num_prompts);
  TANDEM_USER_CHECK(!set.prompts.empty(),
                    fmt::format("{}: no prompt has at most {} tokens; raise {}", options.lines.path,
                                options.max_prompt_len, options.max_prompt_flag));
  return set;
}

}  // namespace tandem::run
