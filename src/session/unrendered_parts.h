// Finds what a line says and the chat template leaves out in silence: the reasoning of an answer, its calls of tools,
// and the tools that a conversation offers. A part is left out if the conversation is rendered alike without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "config/data_options.h"
#include "session/conversations.h"
#include "text/text_worker.h"

namespace tandem::session {

enum class Part : uint8_t {
  kReasoning,  // of the last message, under reasoning_content, thinking or reasoning
  kCalls,      // of the last message, under tool_calls or OpenAI's older function_call
  kTools,      // of the conversation
};

struct UnrenderedParts {
  int64_t num_with_part = 0;  // conversations that have the part
  std::vector<size_t> found;  // indices of those whose text lacks it, ascending
  std::string key;            // key of the first one's message that holds the part; "" for tools
  std::string renamed_key;    // key under which the template would render that part; "" if there is none
};

// `texts` are what the template makes of the conversations; one that it refused has an empty text and is passed over.
UnrenderedParts find_unrendered(Part part, const config::DataOptions& options, text::TextWorker& text,
                                const std::vector<Conversation>& conversations, const std::vector<std::string>& texts);

}  // namespace tandem::session
