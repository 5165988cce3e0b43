#include "session/conversations.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/check.h"

namespace tandem::session {

namespace {

// So many texts are enough for the call's cost not to show, and few enough for its deadline.
constexpr size_t kTextsPerCall = 512;

constexpr const char* kGenerationPrompt = "add_generation_prompt";
constexpr const char* kContinue =
    "continue_final_message";  // name in python/tandem_worker/templates/chat_template.py, as in transformers

base::Json template_arguments(const config::DataOptions& options, const base::Json& tools, Ending ending) {
  base::Json kwargs = base::Json::object();
  kwargs[kGenerationPrompt] = ending == Ending::kOpen;
  if (ending == Ending::kContinued) kwargs[kContinue] = true;
  const base::Json given = base::parse_json(options.apply_chat_template_kwargs, "--apply-chat-template-kwargs");
  TANDEM_USER_CHECK(given.is_object(),
                    "--apply-chat-template-kwargs: expects a JSON object such as {\"enable_thinking\": false}");
  for (const auto& [key, value] : given.items()) kwargs[key] = value;
  if (ending == Ending::kClosed) {
    kwargs[kGenerationPrompt] = false;
    kwargs.erase(kContinue);
  }
  if (!tools.is_null()) kwargs["tools"] = tools;
  return kwargs;
}

base::Json template_arguments(const config::DataOptions& options, const Conversation& conversation) {
  return template_arguments(options, conversation.tools, conversation.ending);
}

bool have_same_arguments(const Conversation& a, const Conversation& b) {
  return a.ending == b.ending && a.tools == b.tools;
}

base::Json user_message(const base::Json& text) { return base::Json({{"role", "user"}, {"content", text}}); }

// Returns the messages that the template renders, or null for a text that is used as it is.
base::Json messages_of(const config::DataOptions& options, const text::TextWorker& text,
                       const Conversation& conversation) {
  const bool is_list = conversation.prompt.is_array();
  const bool use_template = is_rendered(options, conversation.prompt);
  TANDEM_USER_CHECK(
      use_template || !is_list,
      fmt::format("{}: the prompt is a list of messages, which only the chat template makes a text; leave "
                  "--no-apply-chat-template out",
                  conversation.place));
  if (!use_template) {
    check_plain_text(options, conversation.place);
    return nullptr;
  }
  TANDEM_USER_CHECK(text.has_chat_template(),
                    fmt::format("{}: the prompt needs a chat template and the checkpoint has none (chat_template in "
                                "tokenizer_config.json); use prompts that are plain text",
                                conversation.place));
  base::Json messages = is_list ? conversation.prompt : base::Json::array({user_message(conversation.prompt)});
  if (!options.system_prompt.empty() && !has_system_message(messages)) {
    messages.insert(messages.begin(), base::Json({{"role", "system"}, {"content", options.system_prompt}}));
  }
  return messages;
}

// Returns the bytes of all texts of messages.
size_t content_bytes(const base::Json& messages) {
  size_t num_bytes = 0;
  for (const base::Json& message : messages) {
    const auto content = message.find("content");
    if (content != message.end() && content->is_string()) num_bytes += content->get_ref<const std::string&>().size();
  }
  return num_bytes;
}

// Returns the text without the white space at its end, in which templates differ.
std::string_view trimmed(std::string_view text) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  return text.substr(0, end == std::string_view::npos ? 0 : end + 1);
}

// A conversation of a question and its answer shows what the template writes before and after an answer.
constexpr std::string_view kAnswer = "the-answer";
base::Json question() { return user_message("1 + 1?"); }
base::Json answered_question() {
  return base::Json::array({question(), {{"role", "assistant"}, {"content", std::string(kAnswer)}}});
}

}  // namespace

Ending ending_of(const base::Json& prompt) {
  return prompt.is_array() && prompt.back()["role"] == "assistant" ? Ending::kContinued : Ending::kOpen;
}

bool is_rendered(const config::DataOptions& options, const base::Json& prompt) {
  return options.apply_chat_template.value_or(prompt.is_array());
}

std::vector<int32_t> plain_text_tokens(const config::DataOptions& options, const text::TextWorker& text,
                                       std::vector<int32_t> tokens) {
  const std::vector<int32_t>& prefix = text.text_prefix();
  const bool begins_so = tokens.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), tokens.begin());
  if (options.add_special_tokens && !begins_so) tokens.insert(tokens.begin(), prefix.begin(), prefix.end());
  return tokens;
}

bool has_system_message(const base::Json& prompt) {
  const auto is_system = [](const base::Json& message) {
    return message["role"] == "system" || message["role"] == "developer";  // OpenAI's newer name of "system"
  };
  return prompt.is_array() && std::ranges::any_of(prompt, is_system);
}

void check_plain_text(const config::DataOptions& options, const std::string& place) {
  TANDEM_USER_CHECK(options.system_prompt.empty(),
                    fmt::format("{}: the prompt is a plain text, which has no place for --system-prompt; give "
                                "--apply-chat-template, or write the prompt as a list of messages",
                                place));
}

bool opens_answer(const config::DataOptions& options, text::TextWorker& text) {
  const base::Json asked = base::Json::array({question()});
  base::Json arguments = template_arguments(options, nullptr, Ending::kOpen);
  try {
    const std::string rendered = text.apply_chat_template({asked}, arguments).front();
    arguments[kGenerationPrompt] = false;
    const std::string closed = text.apply_chat_template({asked}, arguments).front();
    if (rendered != closed) return true;
    const std::string whole = text.apply_chat_template({answered_question()}, arguments).front();
    const size_t begin = whole.find(kAnswer);
    // The place of an answer in a conversation shows what must come before it.
    return begin == std::string::npos ||
           trimmed(rendered).size() >= trimmed(std::string_view(whole).substr(0, begin)).size();
  } catch (const UserError&) {
    return true;  // the template cannot be asked
  }
}

std::string text_behind_answer(const config::DataOptions& options, text::TextWorker& text) {
  try {
    const base::Json arguments = template_arguments(options, nullptr, Ending::kClosed);
    const std::string whole = text.apply_chat_template({answered_question()}, arguments).front();
    const size_t begin = whole.rfind(kAnswer);
    return begin == std::string::npos ? "" : whole.substr(begin + kAnswer.size());
  } catch (const UserError&) {
    return "";
  }
}

std::string why_too_large(size_t num_bytes, const std::string& place) {
  if (num_bytes <= text::kMaxTextBytes) return "";
  return fmt::format("{}: the text has {} bytes, more than the {} that a text may have; shorten or remove it", place,
                     num_bytes, text::kMaxTextBytes);
}

std::vector<std::string> render_lines(const config::DataOptions& options, text::TextWorker& text,
                                      const std::vector<Conversation>& conversations, const Refuse& refuse,
                                      size_t max_bytes) {
  std::vector<std::string> texts(conversations.size());
  std::vector<size_t> waiting;  // indices of texts with the same arguments: many are rendered in one call
  std::vector<base::Json> messages;
  const auto render_one_by_one = [&](const base::Json& arguments) {
    for (size_t i = 0; i < waiting.size(); ++i) {
      try {
        texts[waiting[i]] = text.apply_chat_template({messages[i]}, arguments).front();
      } catch (const UserError& error) {
        const std::string reason =
            fmt::format("{}: the chat template refuses the prompt: {}", conversations[waiting[i]].place, error.what());
        TANDEM_USER_CHECK(text.takes_template_arguments(arguments), reason);
        refuse(waiting[i], reason);
      }
    }
  };
  const auto render_waiting = [&] {
    if (waiting.empty()) return;
    const base::Json arguments = template_arguments(options, conversations[waiting.front()]);
    try {
      const std::vector<std::string> rendered = text.apply_chat_template(messages, arguments);
      for (size_t i = 0; i < waiting.size(); ++i) texts[waiting[i]] = rendered[i];
    } catch (const UserError&) {
      render_one_by_one(arguments);  // the template refuses one of them, and this tells which
    }
    waiting.clear();
    messages.clear();
  };
  for (size_t i = 0; i < conversations.size(); ++i) {
    base::Json rendered = messages_of(options, text, conversations[i]);
    // The template is not asked about what is too large before anything is written around it.
    const size_t num_bytes =
        rendered.is_null() ? conversations[i].prompt.get_ref<const std::string&>().size() : content_bytes(rendered);
    if (num_bytes > max_bytes) {
      refuse(i, why_too_large(num_bytes, conversations[i].place));
    } else if (rendered.is_null()) {
      texts[i] = conversations[i].prompt.get<std::string>();
    } else {
      if (!waiting.empty() && !have_same_arguments(conversations[i], conversations[waiting.front()])) render_waiting();
      waiting.push_back(i);
      messages.push_back(std::move(rendered));
      if (waiting.size() == kTextsPerCall) render_waiting();
    }
  }
  render_waiting();
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].size() <= max_bytes) continue;
    refuse(i, why_too_large(texts[i].size(), conversations[i].place));
    texts[i].clear();
  }
  return texts;
}

std::vector<std::string> render_prompts(const config::DataOptions& options, text::TextWorker& text,
                                        const std::vector<Conversation>& conversations, size_t max_bytes) {
  return render_lines(
      options, text, conversations, [](size_t /*index*/, const std::string& reason) { throw UserError(reason); },
      max_bytes);
}

}  // namespace tandem::session
