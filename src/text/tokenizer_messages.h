// Reads what a tokenizer process answers (python/tandem_worker/tokenizer.py), member by member and within bounds. There
// is no process here: a tokenizers library that misbehaves may write anything, and these functions can be asked about
// any of it. They throw BadReply for what no honest worker writes; its what() continues a sentence that begins with the
// worker's name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace tandem::text {

// Ids are below this; tokenizer.py and model/config.cc read nothing larger.
constexpr int64_t kMaxTokenizerIds = int64_t{1} << 24;

// The answer to "load".
struct TokenizerFacts {
  int64_t vocab_size = 0;  // largest id + 1: 0 to kMaxTokenizerIds
  bool has_chat_template = false;
  std::string template_path;     // "" without a template; on one line
  std::vector<bool> is_special;  // [vocab_size]
  std::optional<int32_t> eos_id;
  std::vector<int32_t> text_prefix;  // ids that the tokenizer's post-processor writes before a text, such as BOS
};
TokenizerFacts tokenizer_facts(const base::Json& answer);

// Reads the answer to "encode": the ids of each of `num_texts`, all of them below `vocab_size`.
std::vector<std::vector<int32_t>> token_ids(const base::Json& answer, size_t num_texts, int64_t vocab_size);

// Reads the answer to "decode" and "apply_chat_template": that many texts.
std::vector<std::string> texts(const base::Json& answer, size_t num_texts);

// Reads the answer to "token_bytes": the bytes of each id, from hexadecimal digits.
std::vector<std::string> token_table(const base::Json& answer, int64_t vocab_size);

}  // namespace tandem::text
