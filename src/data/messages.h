// Reads conversations from data files: lists of {"role", "content", ...} as in OpenAI's chat format.
#pragma once

#include <string>

#include "base/json.h"
#include "data/lines.h"

namespace tandem::data {

// Returns the messages of a list that is not empty, each with a role and a text as its content. A content of parts,
// [{"type": "text", "text": "..."}], becomes the text that they make together; a message with tool calls may have no
// content. Other members stay as they are, for the chat template. Throws UserError for anything else; `key` is the key
// of the list.
base::Json read_messages(const base::Json& messages, const std::string& key, const Place& place);

// Returns the value of `key`: a text that is not empty, or messages.
base::Json read_prompt_value(const base::Json& object, const std::string& key, const Place& place);

// Returns the list of tools under `key`, or null if there is none.
base::Json read_tools(const base::Json& object, const std::string& key, const Place& place);

}  // namespace tandem::data
