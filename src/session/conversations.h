// Turns conversations into the texts that the model sees: what the chat template makes of them, by the flags of the
// data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/data_options.h"
#include "text/text_worker.h"

namespace tandem::session {

// States how the text of a conversation ends.
enum class Ending : uint8_t {
  kOpen,       // after the header of the answer that follows
  kContinued,  // within its last message, the beginning of an answer, which the model continues
  kClosed,     // after its last message
};
// Returns the ending of a prompt that a model is to answer: kContinued if its last message is an assistant's.
Ending ending_of(const base::Json& prompt);

// One prompt's conversation. Its text follows the rule of --apply-chat-template, with --system-prompt before a
// conversation that has no system message; `place` names it in messages.
struct Conversation {
  base::Json prompt, tools;
  std::string place;
  Ending ending = Ending::kOpen;
};
// Returns the text of each. Throws UserError for one that render_lines() below would refuse, or if there is no
// template. A caller with a bound of its own gives a larger `max_bytes`.
std::vector<std::string> render_prompts(const config::DataOptions& options, text::TextWorker& text,
                                        const std::vector<Conversation>& conversations,
                                        size_t max_bytes = text::kMaxTextBytes);

// Takes the index of a conversation that cannot be used, and the reason with its place.
using Refuse = std::function<void(size_t index, const std::string& reason)>;
// Returns the text of each conversation of a data file. Gives `refuse` those that the template refuses and those with
// more than `max_bytes`; their text is empty, unless `refuse` throws. Throws UserError for mistakes of the
// flags and the checkpoint: arguments that are no JSON, a plain text for a system prompt, no template, one that could
// render nothing with the arguments.
std::vector<std::string> render_lines(const config::DataOptions& options, text::TextWorker& text,
                                      const std::vector<Conversation>& conversations, const Refuse& refuse,
                                      size_t max_bytes = text::kMaxTextBytes);

// Returns why a text of so many bytes is not made tokens, "" if it is.
std::string why_too_large(size_t num_bytes, const std::string& place);

// Returns whether the template renders a prompt, by the rule of --apply-chat-template; otherwise it is a plain text.
bool is_rendered(const config::DataOptions& options, const base::Json& prompt);
// Returns the tokens of a plain text as a model reads it: text.text_prefix() and the text. --no-add-special-tokens
// leaves the prefix out, and a text that spells it out gets it once. Nothing is written after the text, whatever the
// tokenizer does there: a prompt does not end with EOS.
std::vector<int32_t> plain_text_tokens(const config::DataOptions& options, const text::TextWorker& text,
                                       std::vector<int32_t> tokens);

bool has_system_message(const base::Json& prompt);
// Throws UserError if a prompt that no template renders is to have a system message.
void check_plain_text(const config::DataOptions& options, const std::string& place);

// Returns false when the rendered text ends before the header that opens an assistant's message, so that a model would
// continue the user's message. A template opens the answer if it always writes the header, if it has none (its user's
// turn ends with what comes before an answer), or if it refuses the question.
bool opens_answer(const config::DataOptions& options, text::TextWorker& text);

// Returns what the template writes after an answer that ends a conversation, such as "<|im_end|>\n"; "" if it writes
// nothing or refuses the question.
std::string text_behind_answer(const config::DataOptions& options, text::TextWorker& text);

}  // namespace tandem::session
