#include "session/unrendered_parts.h"

#include <iterator>
#include <span>

#include "base/json.h"
#include "data/lines.h"

namespace tandem::session {

namespace {

// The first key of each is the one that templates of several families render.
constexpr const char* kReasoningKeys[] = {"reasoning_content", "thinking", "reasoning"};
constexpr const char* kCallKeys[] = {"tool_calls", "function_call"};

std::span<const char* const> keys_of(Part part) {
  if (part == Part::kReasoning) return kReasoningKeys;
  if (part == Part::kCalls) return kCallKeys;
  return {};
}

bool says_something(Part part, const base::Json& value) {
  if (value.is_string()) return !data::is_blank(value.get_ref<const std::string&>());
  return part != Part::kReasoning && value.is_structured() && !value.empty();
}

// Returns the key under which the last message has the part, "" if it has none.
std::string key_with(Part part, const Conversation& conversation) {
  const base::Json& message = conversation.prompt.back();
  for (const char* const key : keys_of(part)) {
    const auto found = message.find(key);
    if (found != message.end() && says_something(part, *found)) return key;
  }
  return "";
}

Conversation without(Part part, Conversation conversation) {
  if (part == Part::kTools) conversation.tools = nullptr;
  for (const char* const key : keys_of(part)) conversation.prompt.back().erase(key);
  return conversation;
}

// The template may refuse a conversation without the part, which is then no text that could be the same.
std::vector<std::string> render_copies(const config::DataOptions& options, text::TextWorker& text,
                                       const std::vector<Conversation>& copies) {
  return render_lines(options, text, copies, [](size_t /*index*/, const std::string& /*reason*/) {});
}

// Returns the key under which the template renders what the message has under `key`, "" if there is none.
std::string renamed_key(Part part, const std::string& key, const config::DataOptions& options, text::TextWorker& text,
                        const Conversation& conversation, const std::string& rendered) {
  if (part == Part::kTools || key == keys_of(part).front()) return "";
  const base::Json value = conversation.prompt.back()[key];
  Conversation renamed = without(part, conversation);
  const std::string name = keys_of(part).front();
  renamed.prompt.back()[name] =
      part == Part::kCalls ? base::Json::array({{{"type", "function"}, {"function", value}}}) : value;
  const std::string again = render_copies(options, text, {renamed}).front();
  return again.empty() || again == rendered ? "" : name;
}

}  // namespace

UnrenderedParts find_unrendered(Part part, const config::DataOptions& options, text::TextWorker& text,
                                const std::vector<Conversation>& conversations, const std::vector<std::string>& texts) {
  std::vector<size_t> with_part;
  std::vector<std::string> keys;
  std::vector<Conversation> copies;
  for (size_t i = 0; i < conversations.size(); ++i) {
    if (texts[i].empty() || !is_rendered(options, conversations[i].prompt)) continue;
    const std::string key = part == Part::kTools ? "" : key_with(part, conversations[i]);
    if (key.empty() && (part != Part::kTools || conversations[i].tools.empty())) continue;
    with_part.push_back(i);
    keys.push_back(key);
    copies.push_back(without(part, conversations[i]));
  }
  UnrenderedParts result;
  result.num_with_part = std::ssize(with_part);
  const std::vector<std::string> rendered = render_copies(options, text, copies);
  for (size_t i = 0; i < copies.size(); ++i) {
    const size_t index = with_part[i];
    if (rendered[i] != texts[index]) continue;
    if (result.found.empty()) {
      result.key = keys[i];
      result.renamed_key = renamed_key(part, keys[i], options, text, conversations[index], rendered[i]);
    }
    result.found.push_back(index);
  }
  return result;
}

}  // namespace tandem::session
