#include "rl/sft_data.h"

#include <array>
#include <utility>

#include "base/message_text.h"
#include "rl/messages.h"

namespace tandem::rl {
namespace {

using base::Json;

// What takes a message out of the loss when it is false or 0: our word, slime's and OpenAI's.
constexpr std::array<const char*, 3> kLossKeys = {"train", "step_loss_mask", "weight"};

bool read_switch(const Json& value, const std::string& which, const char* name, const std::string& key,
                 const Place& place) {
  if (value.is_boolean()) return value.get<bool>();
  if (!value.is_number() || (value != 0 && value != 1)) {
    place.fail(key, which, "has a", name, "that is neither true nor false, 1 nor 0 - write one of them");
  }
  return value == 1;
}

// Takes the words about the loss off the message, so that the chat template does not see them.
bool is_trained(Json& message, bool by_default, const std::string& which, const std::string& key, const Place& place) {
  bool is_told = false, told = true;
  for (const char* name : kLossKeys) {
    if (!message.contains(name)) continue;
    if (!message[name].is_null()) {
      is_told = true;
      told = read_switch(message[name], which, name, key, place) && told;
    }
    message.erase(name);
  }
  if (message["role"] != "assistant") return false;
  return is_told ? told : by_default;
}

// Adds messages to the record's, and notes which of them are trained on.
void add_messages(SftRecord& record, Json messages, bool by_default, const std::string& key, const Place& place) {
  if (record.messages.is_null()) record.messages = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string which = "message " + std::to_string(i + 1);
    const size_t index = record.messages.size();
    if (is_trained(messages[i], by_default, which, key, place)) {
      if (index == 0) {
        place.fail(key, which,
                   "is an assistant's with nothing before it to answer - delete it, or give it \"train\":", "false");
      }
      record.trained.push_back(index);
    }
    record.messages.push_back(std::move(messages[i]));
  }
}

void check_conversation(const SftRecord& record, const std::string& key, const Place& place) {
  if (record.messages.back()["role"] != "assistant") {
    place.fail(key, key, "ends with a message of role",
               base::one_line(record.messages.back()["role"].get<std::string>()),
               "- end it with an assistant's, or delete what comes after the last one");
  }
  if (record.trained.empty()) {
    place.fail(key,
               "no message is trained on, all have \"train\": false - delete the line, or take that off one of them");
  }
}

void read_conversation(SftRecord& record, const Json& object, const std::string& key, const Place& place) {
  const Json& messages = object[key];
  if (!messages.is_array())
    place.fail(key, key, "is", base::with_article(messages.type_name()), "- write a list of messages");
  add_messages(record, read_messages(messages, key, place), /*by_default=*/true, key, place);
  check_conversation(record, key, place);
}

// The key of the answer.
std::string find_response(const Json& object, const SftOptions& options, const Place& place) {
  const std::string& key = options.response_key;
  if (find_value(object, key) != nullptr) return key;
  const bool is_default = key == SftOptions().response_key;
  if (is_default && object.contains("completion")) return "completion";
  place.fail("", "the key", key, "is missing - add the answer to train on:",
             is_default ? "\"response\", \"completion\" or \"messages\"" : "its key is --label-key's");
}

void read_answer(SftRecord& record, const Json& object, const SftOptions& options, const Place& place) {
  Json prompt = read_prompt_value(object, options.prompt_key, place);
  const std::string key = find_response(object, options, place);
  const Json& answer = *find_value(object, key);
  if (!answer.is_string() && !answer.is_array()) {
    place.fail(key, key, "is", base::with_article(answer.type_name()), "- write a string or a list of messages");
  }
  if (prompt.is_string()) {
    if (answer.is_array()) {
      place.fail(key, key, "is a list of messages and", options.prompt_key, "a text - write both in one form");
    }
    record.prompt = prompt;
    record.response = answer;
    return;
  }
  add_messages(record, std::move(prompt), /*by_default=*/false, options.prompt_key, place);
  Json messages = Json::array();
  if (answer.is_array()) {
    messages = read_messages(answer, key, place);
  } else {
    messages.push_back({{"role", "assistant"}, {"content", answer}});
  }
  add_messages(record, std::move(messages), /*by_default=*/true, key, place);
  check_conversation(record, key, place);
}

SftRecord read_sft_record(const SftOptions& options, const Place& place) {
  const Json object = parse_object(place);
  SftRecord record;
  record.line = place.line;
  record.tools = read_tools(object, options.tool_key, place);
  if (object.contains(options.messages_key)) {
    read_conversation(record, object, options.messages_key, place);
  } else {
    read_answer(record, object, options, place);
  }
  return record;
}

}  // namespace

SftData read_sft(const SftOptions& options, const OpenTable& open_parquet) {
  SftData data;
  LeftOut left_out = for_each_row(options.path, options.skip_bad_lines, open_parquet,
                                  [&](const Place& place) { data.records.push_back(read_sft_record(options, place)); });
  data.num_blank_lines = left_out.num_blank_lines;
  data.bad_lines = std::move(left_out.bad_lines);
  return data;
}

}  // namespace tandem::rl
