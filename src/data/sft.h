// Reads a file of data to imitate into records, strictly (data/lines.h). A line is a conversation or two texts:
//
//   {"messages": [...]}                               trains on every assistant's message
//   {"prompt": [messages], "completion": [messages]}  on every assistant's message of the completion (TRL's format)
//   {"prompt": [messages], "response": text}          on the text, as an assistant's message
//   {"prompt": text, "response": text}                on the text; "completion" is read like "response"
//   {"conversations": [{"from", "value"}, ...]}       on every assistant's turn (ShareGPT's format)
//   {"instruction", "input", "output"}                on the output, as an assistant's message (Alpaca's format)
//   {"instruction", "context", "response"}            on the response, as the same (Dolly's format)
//   {"text": text}                                    on all of it
//
// Preferences are lines of their own (Answers): {"prompt", "chosen", "rejected"}, where each answer is read like a
// response; TRL's {"chosen": [messages], "rejected": [messages]}, whose prompt is what both begin with, whether or not
// the line repeats it as a text; or, for answers that are judged one by one, {"prompt", "completion", "label": true or
// false}.
//
// A key whose value is null counts as absent where the format is chosen: a table of several formats has such columns.
//
// A text under "system" is the system message of a line whose messages have none, except where the line is one of
// "messages", which have their own.
//
// A message with "train": false, slime's "step_loss_mask": 0 or OpenAI's "weight": 0 is not trained on and stays in the
// conversation; with true or 1 a message of the prompt is trained on too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/lines.h"

namespace tandem::data {

// The answers of a line: one to imitate, a chosen and a rejected one, or one with a judgement.
enum class Answers : uint8_t { kToImitate, kPairs, kLabelled };

struct SftOptions {
  std::string path = "";
  std::string prompt_key = "prompt";
  std::string response_key = "response";  // a line without this default key may have "completion"
  std::string messages_key = "messages";
  std::string tool_key = "tools";
  bool skip_bad_lines = false;
  Answers answers = Answers::kToImitate;
};

struct SftRecord {
  int64_t line = 0;              // line in the file, from 1; the row in Parquet
  base::Json messages;           // a conversation that ends with an assistant's message, or null
  std::vector<size_t> trained;   // indices of the messages to train on, ascending: one or more, never 0
  std::string prompt, response;  // both texts of a line without messages; the prompt of a {"text"} line is empty
  std::string system;            // its system message, beside a prompt that is a text; "": none
  base::Json tools;              // list, or null
  bool is_desirable = true;      // false: the rejected answer of a pair, or one with "label": false
};

struct SftData {
  std::vector<SftRecord> records;  // never empty; two for each pair, the chosen answer's first
  int64_t num_blank_lines = 0;
  BadLines bad_lines;  // only with skip_bad_lines
};
// Throws UserError if the file cannot be read, a line is wrong or has nothing to train on, or no record is left.
SftData read_sft(const SftOptions& options, const OpenTable& open_parquet = {});

}  // namespace tandem::data
