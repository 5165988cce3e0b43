// Turns data to imitate into samples for the trainer: each record is rendered by the chat template and encoded before
// any work begins.
//
// An assistant's message is trained on as it would be sampled. Its context is the tokens of the conversation before it,
// rendered as a prompt. The trained part is what the template writes after that prompt when the message is there:
// reasoning, tool calls and empty think blocks as the template has them, up to the token with which it ends the
// message. Prompt and answer are encoded apart, so the prompt's tokens are those that generation sees.
//
// Messages of a conversation share one sample as long as the context of each begins with the tokens of the one before.
// A template that renders earlier messages in another way (Qwen3's removes their think blocks) parts them: the
// conversation becomes several samples, each with the context that generation would have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/data_options.h"
#include "data/sft.h"
#include "model/config.h"
#include "rl/sample.h"
#include "text/text_worker.h"

namespace tandem::session {

struct SftSamples {
  std::vector<rl::Sample> samples;   // never empty; the loss mask is 1 on answers
  std::vector<std::string> places;   // place of each sample in the data: FILE:LINE
  std::vector<uint8_t> desirable;    // of each sample: 0 where it is a rejected answer, or one whose label is false
  std::vector<int64_t> file_sizes;   // number of `samples` of each file, which follow each other: 1 or more
  std::vector<int32_t> text_prefix;  // tokens that --add-special-tokens has put before plain texts; may be empty
  int64_t context = 0;               // tokens that a sample may have
  int64_t num_records = 0;
  int64_t num_trained_tokens = 0;
  std::optional<int32_t> appended_eos;  // token that was put after answers that nothing ended
};

// `data.lines.path` is the file, `data.lines.label_key` the key of the response. Of preferences each answer is one
// sample, and a pair two that follow each other, the chosen one first, with one prompt; what is left out is the whole
// line. With `append_eos`, an answer that neither the template nor the data ends with a token for that gets the
// tokenizer's EOS (eos_token of tokenizer_config.json), or the model's first if the tokenizer has none. Logs what was
// left out. Throws UserError with FILE:LINE for a line that is wrong, whose reasoning, calls of tools or tools are not
// rendered, whose rendered prompt is no beginning of the rendered conversation, or that is longer than the model's
// context; and when nothing is left. With skip_bad_lines, lines that are wrong, that the template cannot render or that
// are too long are left out instead.
SftSamples load_sft_samples(const config::DataOptions& data, data::Answers answers, bool append_eos,
                            text::TextWorker& text, const model::ModelConfig& model);

// Returns the samples of all files of data.prompt_data, one file after another.
SftSamples load_all_sft_samples(const config::DataOptions& data, data::Answers answers, bool append_eos,
                                text::TextWorker& text, const model::ModelConfig& model);

}  // namespace tandem::session
