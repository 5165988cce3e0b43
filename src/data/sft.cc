#include "data/sft.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/message_text.h"
#include "data/messages.h"

namespace tandem::data {
namespace {

using base::Json;

// These keys remove a message from the loss when they are false or 0: our word, slime's and OpenAI's.
constexpr std::array<const char*, 3> kLossKeys = {"train", "step_loss_mask", "weight"};

// These are the keys of lines in other formats.
constexpr const char* kConversations = "conversations";
constexpr const char* kInstruction = "instruction";
constexpr const char* kOutput = "output";
constexpr const char* kDollyOutput = "response";
constexpr const char* kSystem = "system";
constexpr const char* kText = "text";
constexpr const char* kChosen = "chosen";
constexpr const char* kRejected = "rejected";
constexpr const char* kLabel = "label";

bool has_value(const Json& object, const std::string& key) { return find_present(object, key) != nullptr; }

bool read_switch(const Json& value, const std::string& which, const char* name, const std::string& key,
                 const Place& place) {
  if (value.is_boolean()) return value.get<bool>();
  if (!value.is_number() || (value != 0 && value != 1)) {
    place.fail(key, which, "has a", name, "that is neither true nor false, 1 nor 0 - write one of them");
  }
  return value == 1;
}

// Removes the keys about the loss from the message, so that the chat template does not see them.
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

// Refuses a line that has two answers to choose from where one to imitate is missing.
void refuse_pair(const Json& object, const Place& place) {
  if (!has_value(object, kChosen) || !has_value(object, kRejected)) return;
  place.fail(kChosen, "a line with", kChosen, "and", kRejected,
             "has no answer to imitate - give --preference-loss sigmoid (DPO) to learn which of the two is better, or "
             "--label-key chosen to imitate that one");
}

// Returns the key of the answer.
std::string find_response(const Json& object, const SftOptions& options, const Place& place) {
  const std::string& key = options.response_key;
  const bool is_default = key == SftOptions().response_key;
  if (has_value(object, key)) return key;
  if (is_default && has_value(object, "completion")) return "completion";
  refuse_pair(object, place);
  if (find_value(object, key) != nullptr) return key;  // null, which is reported
  if (is_default && object.contains("completion")) return "completion";
  const std::string likely = likely_label_key(object);
  const std::string named = likely.empty() ? "" : ", or name its key with --label-key " + likely;
  place.fail("", "the key", key, "is missing:", keys_text(object), "- add the answer to train on:",
             (is_default ? "\"response\", \"completion\" or \"messages\"" : "its key is --label-key's") + named);
}

// Returns the system message of a line with a prompt, if it has one in a key of its own; "" otherwise. It is no error
// where something else than a text stands there: such lines have whatever columns they like.
std::string system_beside_prompt(const Json& object, const SftOptions& options) {
  const Json* const system = find_present(object, kSystem);
  const bool is_read_otherwise = options.prompt_key == kSystem || options.response_key == kSystem;
  return system != nullptr && system->is_string() && !is_read_otherwise ? system->get<std::string>() : "";
}

bool begins_with_system(const Json& messages) {
  return messages[0]["role"] == "system" || messages[0]["role"] == "developer";
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
    record.system = system_beside_prompt(object, options);
    return;
  }
  if (const std::string system = system_beside_prompt(object, options);
      !system.empty() && !begins_with_system(prompt)) {
    const Json message = {{"role", "system"}, {"content", system}};  // insert() takes a list for several elements
    prompt.insert(prompt.begin(), message);
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

// Maps ShareGPT's names of speakers, and those of the programs that write it, to roles.
const char* role_of(std::string_view from) {
  constexpr auto kRoles = std::to_array<std::pair<std::string_view, const char*>>({{"human", "user"},
                                                                                   {"user", "user"},
                                                                                   {"gpt", "assistant"},
                                                                                   {"chatgpt", "assistant"},
                                                                                   {"assistant", "assistant"},
                                                                                   {"model", "assistant"},
                                                                                   {"system", "system"},
                                                                                   {"tool", "tool"},
                                                                                   {"observation", "tool"}});
  const auto found = std::ranges::find(kRoles, from, &std::pair<std::string_view, const char*>::first);
  return found == kRoles.end() ? nullptr : found->second;
}

// Returns one turn of a ShareGPT conversation as a message; its other members stay with it.
Json message_of(const Json& turn, const std::string& which, const Place& place) {
  if (!turn.is_object() || !turn.contains("from") || !turn["from"].is_string() || !turn.contains("value")) {
    place.fail(kConversations, which, "is no turn - write {\"from\": \"human\", \"value\": \"...\"}");
  }
  const auto& from = turn["from"].get_ref<const std::string&>();
  const char* const role = role_of(from);
  if (role == nullptr) {
    place.fail(kConversations, which, "is from", base::one_line(from, 40),
               "- write human, gpt, system or tool, or the conversation as \"messages\"");
  }
  Json message = {{"role", role}, {"content", turn["value"]}};
  for (const auto& [key, value] : turn.items()) {
    if (key != "from" && key != "value") message[key] = value;
  }
  return message;
}

// Adds a system message before the conversation, if the line has one in a key of its own.
void add_system(Json& messages, const Json& object, const Place& place) {
  const Json* const found = find_present(object, kSystem);
  if (found == nullptr || *found == "") return;
  if (!found->is_string()) place.fail(kSystem, "system is", base::with_article(found->type_name()), "- write a text");
  messages.push_back({{"role", "system"}, {"content", *found}});
}

void read_share_gpt(SftRecord& record, const Json& object, const Place& place) {
  const Json& turns = object[kConversations];
  if (!turns.is_array() || turns.empty()) {
    place.fail(kConversations, kConversations, "is no list of turns - write [{\"from\": \"human\", \"value\": ...}]");
  }
  Json messages = Json::array();
  add_system(messages, object, place);
  for (size_t i = 0; i < turns.size(); ++i) {
    const bool is_message = turns[i].is_object() && turns[i].contains("role");  // OpenAI's message under ShareGPT's key
    messages.push_back(is_message ? turns[i] : message_of(turns[i], "turn " + std::to_string(i + 1), place));
  }
  add_messages(record, read_messages(messages, kConversations, place), /*by_default=*/true, kConversations, place);
  check_conversation(record, kConversations, place);
}

const std::string& text_at(const Json& value, const char* key, const Place& place) {
  if (!value.is_string()) place.fail(key, key, "is", base::with_article(value.type_name()), "- write a text");
  return value.get_ref<const std::string&>();
}

// Adds the pairs of question and answer that come before Alpaca's instruction, as LLaMA-Factory writes them.
void add_history(Json& messages, const Json& object, const Place& place) {
  const auto history = object.find("history");
  if (history == object.end() || history->is_null()) return;
  for (const Json& pair : *history) {
    if (!history->is_array() || !pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
      place.fail("history", "history is no list of [question, answer] - write [[\"...\", \"...\"]]");
    }
    messages.push_back({{"role", "user"}, {"content", pair[0]}});
    messages.push_back({{"role", "assistant"}, {"content", pair[1]}});
  }
}

// Reads an Alpaca line: the user's message is the instruction, followed by the input if there is one. Dolly's lines are
// the same under other names.
void read_alpaca(SftRecord& record, const Json& object, const Place& place) {
  const bool is_dolly = !object.contains(kOutput);
  std::string asked = text_at(object[kInstruction], kInstruction, place);
  for (const char* const key : {"input", "context"}) {
    const Json* const input = find_present(object, key);
    if (input == nullptr || (key == std::string_view("context") && !is_dolly)) continue;
    const std::string& text = text_at(*input, key, place);
    if (!text.empty()) asked += (asked.empty() ? "" : "\n") + text;
  }
  if (asked.empty()) place.fail(kInstruction, "instruction and input are empty - write one, or delete the line");
  Json messages = Json::array();
  add_system(messages, object, place);
  add_history(messages, object, place);
  messages.push_back({{"role", "user"}, {"content", asked}});
  const char* const output = is_dolly ? kDollyOutput : kOutput;
  messages.push_back({{"role", "assistant"}, {"content", text_at(object[output], output, place)}});
  add_messages(record, std::move(messages), /*by_default=*/true, kInstruction, place);
}

void read_text(SftRecord& record, const Json& object, const Place& place) {
  record.response = text_at(object[kText], kText, place);
  if (record.response.empty()) place.fail(kText, "text is empty - write one, or delete the line");
}

// Returns the keys that are read from lines of any format.
std::vector<std::string> keys_read(const SftOptions& options) {
  return {options.prompt_key,
          options.response_key,
          options.messages_key,
          options.tool_key,
          "completion",
          kConversations,
          kInstruction,
          "input",
          "context",
          kOutput,
          kDollyOutput,
          kText,
          kSystem,
          "history",
          kChosen,
          kRejected,
          kLabel};
}

// Moves the messages that both conversations begin with, without the last of each, into the line's prompt.
void part_prompt(Json& object, const std::string& prompt_key, const Place& place) {
  Json &chosen = object[kChosen], &rejected = object[kRejected];
  if (!chosen.is_array() || !rejected.is_array()) {
    const std::string likely = likely_prompt_key(object);
    place.fail(kChosen, "the key", prompt_key, "is missing:", keys_text(object),
               likely.empty() ? "- write it," : "- name the prompt's key with --input-key " + likely + ",",
               "or write both answers as whole conversations");
  }
  size_t shared = 0;
  while (shared + 1 < std::min(chosen.size(), rejected.size()) && chosen[shared] == rejected[shared]) ++shared;
  if (shared == 0) {
    place.fail(kChosen, kChosen, "and", kRejected, "do not begin with the same message - write the prompt as",
               prompt_key);
  }
  const auto end = static_cast<std::ptrdiff_t>(shared);
  Json prompt(Json::array_t(chosen.begin(), chosen.begin() + end));
  chosen.erase(chosen.begin(), chosen.begin() + end);
  rejected.erase(rejected.begin(), rejected.begin() + end);
  object[prompt_key] = std::move(prompt);  // it may move the answers
}

bool begins_with_answer(const Json& messages) {
  return !messages.empty() && messages[0].is_object() && messages[0].contains("role") &&
         messages[0]["role"] == "assistant";
}

// Gives a pair the prompt that its answers are read after. Where both answers are lists of messages, a prompt that is a
// text stands for a user's message before lists that begin with an assistant's; other lists are whole conversations,
// which have the prompt themselves.
void complete_prompt(Json& object, const std::string& prompt_key, const Place& place) {
  if (!has_value(object, prompt_key)) return part_prompt(object, prompt_key, place);
  const Json& chosen = object[kChosen];
  const Json& rejected = object[kRejected];
  Json prompt = *find_value(object, prompt_key);
  if (!prompt.is_string() || !chosen.is_array() || !rejected.is_array()) return;
  if (!begins_with_answer(chosen) || !begins_with_answer(rejected)) return part_prompt(object, prompt_key, place);
  object[prompt_key] = Json::array({{{"role", "user"}, {"content", std::move(prompt)}}});
}

SftRecord read_answer_at(const Json& object, const char* key, SftOptions options, const Place& place) {
  SftRecord record;
  record.line = place.line;
  record.tools = read_tools(object, options.tool_key, place);
  if (key != nullptr) options.response_key = key;
  read_answer(record, object, options, place);
  return record;
}

std::vector<SftRecord> read_pair(const SftOptions& options, const Place& place) {
  Json object = parse_object(place);
  for (const char* const key : {kChosen, kRejected}) {
    if (find_value(object, key) == nullptr) {
      place.fail("", "the key", key, "is missing:", keys_text(object),
                 "- a line of pairs has a chosen and a rejected answer");
    }
  }
  complete_prompt(object, options.prompt_key, place);
  std::vector<SftRecord> pair = {read_answer_at(object, kChosen, options, place),
                                 read_answer_at(object, kRejected, options, place)};
  pair[1].is_desirable = false;
  return pair;
}

SftRecord read_labelled(const SftOptions& options, const Place& place) {
  Json object = parse_object(place);
  const Json* const label = find_value(object, kLabel);
  if (label == nullptr || !label->is_boolean()) {
    place.fail(label == nullptr ? "" : kLabel, "label is", label == nullptr ? "missing" : "neither true nor false",
               "- write whether the answer is desirable: true or false");
  }
  const bool is_desirable = label->get<bool>();
  object.erase(kLabel);  // so no remedy takes it for the answer's key
  SftRecord record = read_answer_at(object, nullptr, options, place);
  record.is_desirable = is_desirable;
  return record;
}

SftRecord read_sft_record(const SftOptions& options, const Place& place) {
  Json object = parse_object(place);
  SftRecord record;
  record.line = place.line;
  record.tools = read_tools(object, options.tool_key, place);
  const bool imitates_one_of_pair = (options.response_key == kChosen || options.response_key == kRejected) &&
                                    has_value(object, kChosen) && has_value(object, kRejected);
  if (imitates_one_of_pair && !has_value(object, options.messages_key)) {
    complete_prompt(object, options.prompt_key, place);
  }
  const Json* const label = find_value(object, kLabel);
  record.is_desirable = label == nullptr || *label != false;
  if (has_value(object, options.messages_key)) {
    read_conversation(record, object, options.messages_key, place);
  } else if (has_value(object, options.prompt_key) || options.prompt_key != SftOptions().prompt_key) {
    read_answer(record, object, options, place);
  } else if (has_value(object, kConversations)) {
    read_share_gpt(record, object, place);
  } else if (has_value(object, kInstruction) && (object.contains(kOutput) || object.contains(kDollyOutput))) {
    read_alpaca(record, object, place);
  } else if (has_value(object, kText)) {
    read_text(record, object, place);
  } else {
    refuse_pair(object, place);
    read_answer(record, object, options, place);  // reports what is missing
  }
  return record;
}

}  // namespace

SftData read_sft(const SftOptions& options, const OpenTable& open_parquet) {
  SftData data;
  LeftOut left_out =
      for_each_row(options.path, keys_read(options), options.skip_bad_lines, open_parquet, [&](const Place& place) {
        if (options.answers == Answers::kPairs) {
          std::ranges::move(read_pair(options, place), std::back_inserter(data.records));
        } else {
          data.records.push_back(options.answers == Answers::kLabelled ? read_labelled(options, place)
                                                                       : read_sft_record(options, place));
        }
      });
  data.num_blank_lines = left_out.num_blank_lines;
  data.bad_lines = std::move(left_out.bad_lines);
  return data;
}

}  // namespace tandem::data
