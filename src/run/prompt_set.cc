#include "run/prompt_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "base/check.h"
#include "base/log.h"
#include "report/report.h"

namespace tandem::run {

namespace {

// Large enough that a call's cost does not show, small enough for its deadline.
constexpr size_t kTextsPerCall = 512;

base::Json template_arguments(const config::DataOptions& options, const base::Json& tools, bool is_answered = false) {
  base::Json kwargs = base::Json::object();
  kwargs["add_generation_prompt"] = true;
  const base::Json given = base::parse_json(options.apply_chat_template_kwargs, "--apply-chat-template-kwargs");
  TANDEM_USER_CHECK(given.is_object(),
                    "--apply-chat-template-kwargs: expects a JSON object such as {\"enable_thinking\": false}");
  for (const auto& [key, value] : given.items()) kwargs[key] = value;
  if (is_answered) kwargs["add_generation_prompt"] = false;
  if (!tools.is_null()) kwargs["tools"] = tools;
  return kwargs;
}

base::Json template_arguments(const config::DataOptions& options, const Conversation& conversation) {
  return template_arguments(options, conversation.tools, conversation.is_answered);
}

bool have_same_arguments(const Conversation& a, const Conversation& b) {
  return a.is_answered == b.is_answered && a.tools == b.tools;
}

std::string apply_template(const config::DataOptions& options, text::TextWorker& text, const Conversation& conversation,
                           const base::Json& messages) {
  try {
    return text.apply_chat_template({messages}, template_arguments(options, conversation)).front();
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}: the chat template refuses the prompt: {}", conversation.place, error.what()));
  }
}

// The messages that the template renders, or null for a text that is used as it is.
base::Json messages_of(const config::DataOptions& options, const text::TextWorker& text,
                       const Conversation& conversation) {
  const bool is_list = conversation.prompt.is_array();
  const bool use_template = options.apply_chat_template.value_or(is_list);
  TANDEM_USER_CHECK(
      use_template || !is_list,
      fmt::format("{}: the prompt is a list of messages, which only the chat template makes a text; leave "
                  "--no-apply-chat-template out",
                  conversation.place));
  if (!use_template) return nullptr;
  TANDEM_USER_CHECK(text.has_chat_template(),
                    fmt::format("{}: the prompt needs a chat template and the checkpoint has none (chat_template in "
                                "tokenizer_config.json); use prompts that are plain text",
                                conversation.place));
  if (is_list) return conversation.prompt;
  return base::Json::array({base::Json({{"role", "user"}, {"content", conversation.prompt}})});
}

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

// The text without the white space at its end, in which templates differ.
std::string_view trimmed(std::string_view text) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  return text.substr(0, end == std::string_view::npos ? 0 : end + 1);
}

}  // namespace

bool opens_answer(const config::DataOptions& options, text::TextWorker& text) {
  const std::string answer = "the-answer";
  const base::Json question = base::Json({{"role", "user"}, {"content", "1 + 1?"}});
  const base::Json answered = base::Json::array({question, {{"role", "assistant"}, {"content", answer}}});
  base::Json arguments = template_arguments(options, nullptr);
  try {
    const std::string rendered = text.apply_chat_template({base::Json::array({question})}, arguments).front();
    arguments["add_generation_prompt"] = false;
    const std::string closed = text.apply_chat_template({base::Json::array({question})}, arguments).front();
    if (rendered != closed) return true;
    const std::string whole = text.apply_chat_template({answered}, arguments).front();
    const size_t begin = whole.find(answer);
    // Where an answer stands in a conversation shows what must come before it.
    return begin == std::string::npos ||
           trimmed(rendered).size() >= trimmed(std::string_view(whole).substr(0, begin)).size();
  } catch (const UserError&) {
    return true;  // it cannot be asked
  }
}

std::vector<std::string> render_prompts(const config::DataOptions& options, text::TextWorker& text,
                                        const std::vector<Conversation>& conversations) {
  std::vector<std::string> texts(conversations.size());
  std::vector<size_t> waiting;  // with the same arguments: rendered many a call
  std::vector<base::Json> messages;
  const auto render_waiting = [&] {
    if (waiting.empty()) return;
    try {
      const auto rendered =
          text.apply_chat_template(messages, template_arguments(options, conversations[waiting.front()]));
      for (size_t i = 0; i < waiting.size(); ++i) texts[waiting[i]] = rendered[i];
    } catch (const UserError&) {
      // One of them is refused: one by one, to say which.
      for (size_t i = 0; i < waiting.size(); ++i) {
        texts[waiting[i]] = apply_template(options, text, conversations[waiting[i]], messages[i]);
      }
    }
    waiting.clear();
    messages.clear();
  };
  for (size_t i = 0; i < conversations.size(); ++i) {
    base::Json rendered = messages_of(options, text, conversations[i]);
    if (rendered.is_null()) {
      texts[i] = conversations[i].prompt.get<std::string>();
    } else {
      if (!waiting.empty() && !have_same_arguments(conversations[i], conversations[waiting.front()])) render_waiting();
      waiting.push_back(i);
      messages.push_back(std::move(rendered));
      if (waiting.size() == kTextsPerCall) render_waiting();
    }
  }
  render_waiting();
  return texts;
}

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
  rl::PromptData data = rl::read_prompts(options.lines);
  warn_of_missing_labels(options, data);
  const std::string file = rl::parse_data_path(options.lines.path).file;
  const auto place_of = [&file](const rl::PromptRecord& record) { return fmt::format("{}:{}", file, record.line); };
  const size_t num_prompts = data.records.size();
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> tokens;
  while (texts.size() < num_prompts) {
    std::vector<Conversation> conversations;
    for (size_t i = texts.size(); i < std::min(num_prompts, texts.size() + kTextsPerCall); ++i) {
      const rl::PromptRecord& record = data.records[i];
      conversations.push_back({record.prompt, record.tools, place_of(record)});
    }
    std::vector<std::string> part = render_prompts(options, text, conversations);
    std::ranges::move(text.encode(part), std::back_inserter(tokens));
    std::ranges::move(part, std::back_inserter(texts));
    report.progress(title, std::ssize(texts), static_cast<int64_t>(num_prompts), "prompts");
  }

  const auto by_template = [&options](const rl::PromptRecord& record) {
    return options.apply_chat_template.value_or(record.prompt.is_array());
  };
  PromptSet set;
  if (std::ranges::any_of(data.records, by_template)) set.template_opens_answer = opens_answer(options, text);
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
