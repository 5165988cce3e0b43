// Conversations as the texts that the model sees: what the chat template makes of them, by the flags of the data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "config/data_options.h"
#include "text/text_worker.h"

namespace tandem::session {

// How the text of a conversation ends.
enum class Ending : uint8_t {
  kOpen,       // with the header of the answer that follows
  kContinued,  // within its last message, which is an answer's beginning: the model goes on with it
  kClosed,     // with its last message, whole
};
// Of a prompt that a model is to answer: kContinued where its last message is an assistant's.
Ending ending_of(const base::Json& prompt);

// The text of one prompt's conversation by the rule of --apply-chat-template, with --system-prompt before a
// conversation that has no system message; `place` stands for it in messages.
struct Conversation {
  base::Json prompt, tools;
  std::string place;
  Ending ending = Ending::kOpen;
};
// UserError where the template refuses one, or there is none.
std::vector<std::string> render_prompts(const config::DataOptions& options, text::TextWorker& text,
                                        const std::vector<Conversation>& conversations);

// Whether the template renders a prompt, by the rule of --apply-chat-template; it is a plain text otherwise.
bool is_rendered(const config::DataOptions& options, const base::Json& prompt);
// The tokens of a plain text as a model reads it: behind text.text_prefix(), which --no-add-special-tokens leaves out
// and which is there once where the text spells it out. Nothing is written behind the text, whatever the tokenizer does
// there: a prompt does not end with EOS.
std::vector<int32_t> plain_text_tokens(const config::DataOptions& options, const text::TextWorker& text,
                                       std::vector<int32_t> tokens);

bool has_system_message(const base::Json& prompt);
// UserError where a prompt that no template renders is to have a system message.
void check_plain_text(const config::DataOptions& options, const std::string& place);

// False when what the template renders stops short of the header that opens an assistant's message, so that a model
// would go on with the user's. A template that always writes the header, has none (its user's turn ends with what
// stands before an answer) or refuses the question opens it.
bool opens_answer(const config::DataOptions& options, text::TextWorker& text);

// What the template writes behind an answer that ends a conversation, such as "<|im_end|>\n"; "" where it writes
// nothing or refuses the question.
std::string text_behind_answer(const config::DataOptions& options, text::TextWorker& text);

}  // namespace tandem::session
