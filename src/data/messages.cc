#include "data/messages.h"

#include "base/message_text.h"

namespace tandem::data {
namespace {

using base::Json;

// Returns the text of a content of parts.
std::string join_parts(const Json& parts, const std::string& which, const std::string& key, const Place& place) {
  std::string text;
  for (const Json& part : parts) {
    const bool has_type = part.is_object() && part.contains("type") && part["type"].is_string();
    if (!has_type)
      place.fail(key, which, "has a content part without a type - write {\"type\": \"text\", \"text\": ...}");
    if (part["type"] != "text") {
      place.fail(key, which, "has a content part of type", base::one_line(part["type"].get<std::string>()),
                 "- only text is supported");
    }
    if (!part.contains("text") || !part["text"].is_string()) {
      place.fail(key, which, "has a content part without text - write {\"type\": \"text\", \"text\": ...}");
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

}  // namespace

Json read_messages(const Json& messages, const std::string& key, const Place& place) {
  if (messages.empty()) place.fail(key, "the message list is empty - give at least one message, or delete the line");
  Json result = messages;
  for (size_t i = 0; i < result.size(); ++i) {
    Json& message = result[i];
    const std::string which = "message " + std::to_string(i + 1);
    if (!message.is_object()) place.fail(key, which, "is no object - write {\"role\": ..., \"content\": ...}");
    if (!message.contains("role") || !message["role"].is_string()) {
      place.fail(key, which, "has no role - add \"role\": \"user\" or another string");
    }
    const bool has_content = message.contains("content") && !message["content"].is_null();
    if (has_content && message["content"].is_array()) {
      message["content"] = join_parts(message["content"], which, key, place);
    }
    const bool is_text = has_content && message["content"].is_string();
    if (!is_text && (has_content || !message.contains("tool_calls"))) {
      place.fail(key, which, "has no text - add \"content\": \"...\" (only text is supported)");
    }
  }
  return result;
}

Json read_prompt_value(const Json& object, const std::string& key, const Place& place) {
  const Json* const found = find_value(object, key);
  if (found == nullptr) {
    const std::string prompt_key = likely_prompt_key(object), label_key = likely_label_key(object);
    const std::string name = prompt_key.empty() ? "" : " " + prompt_key;
    const std::string label = prompt_key.empty() || label_key.empty() ? "" : " --label-key " + label_key;
    place.fail("", "the key", key, "is missing:", keys_text(object),
               "- add it, or name the prompt's key with --input-key" + name + label);
  }
  const Json& prompt = *found;
  if (prompt.is_array()) return read_messages(prompt, key, place);
  if (!prompt.is_string()) {
    place.fail(key, key, "is", base::with_article(prompt.type_name()), "- write a string or a list of messages");
  } else if (prompt.get_ref<const std::string&>().empty()) {
    place.fail(key, key, "is empty - write a prompt, or delete the line");
  }
  return prompt;
}

Json read_tools(const Json& object, const std::string& key, const Place& place) {
  const Json* const tools = find_value(object, key);
  if (tools == nullptr || tools->is_null()) return nullptr;
  if (!tools->is_array()) place.fail(key, key, "is", base::with_article(tools->type_name()), "- write a list of tools");
  return *tools;
}

}  // namespace tandem::data
