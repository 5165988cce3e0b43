#include "text/tokenizer_messages.h"

#include <string_view>

#include "base/message_text.h"
#include "worker/message.h"

namespace tandem::text {
namespace {

using base::Json;

constexpr size_t kMaxPathBytes = 4096;

void require(bool holds, const char* what) {
  if (!holds) throw worker::BadReply(std::string("answered something else than a result: ") + what);
}

const Json& member(const Json& object, const char* name) {
  const auto found = object.find(name);
  require(found != object.end(), "a fact is missing");
  return *found;
}

bool flag(const Json& object, const char* name) {
  const Json& value = member(object, name);
  require(value.is_boolean(), "a fact is neither true nor false");
  return value.get<bool>();
}

// Returns a whole number from 0 to `bound` - 1. A number above 63 bits turns negative here, and is refused as such.
int64_t number_below(const Json& value, int64_t bound) {
  require(value.is_number_integer(), "a number is not whole");
  const auto number = value.get<int64_t>();
  require(number >= 0 && number < bound, "a number is out of range");
  return number;
}

const Json::array_t& list(const Json& value, size_t size) {
  require(value.is_array(), "no list");
  const auto& elements = value.get_ref<const Json::array_t&>();
  require(elements.size() == size, "another number of results than was asked for");
  return elements;
}

const std::string& text(const Json& value) {
  require(value.is_string(), "a result is no text");
  return value.get_ref<const std::string&>();
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  require(c >= 'a' && c <= 'f', "a token's bytes are not in hexadecimal digits");
  return c - 'a' + 10;
}

std::string from_hex(std::string_view hex) {
  require(hex.size() % 2 == 0, "a token has half a byte");
  std::string bytes;
  bytes.reserve(hex.size() / 2);
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(hex_digit(hex[i]) * 16 + hex_digit(hex[i + 1])));
  }
  return bytes;
}

}  // namespace

TokenizerFacts tokenizer_facts(const Json& answer) {
  require(answer.is_object(), "no facts");
  TokenizerFacts facts;
  facts.vocab_size = number_below(member(answer, "vocab_size"), kMaxTokenizerIds + 1);
  facts.has_chat_template = flag(answer, "has_chat_template");
  if (const auto path = answer.find("template_path"); path != answer.end()) {
    facts.template_path = base::one_line(text(*path), kMaxPathBytes);
  }
  if (const auto eos = answer.find("eos_id"); eos != answer.end())
    facts.eos_id = static_cast<int32_t>(number_below(*eos, facts.vocab_size));
  facts.is_special.assign(static_cast<size_t>(facts.vocab_size), false);
  const Json& ids = member(answer, "special_ids");
  require(ids.is_array(), "no list of special ids");
  for (const Json& id : ids) {
    facts.is_special[static_cast<size_t>(number_below(id, facts.vocab_size))] = true;
  }
  if (const auto prefix = answer.find("text_prefix"); prefix != answer.end()) {
    facts.text_prefix = token_ids(Json::array({*prefix}), 1, facts.vocab_size).front();
  }
  return facts;
}

std::vector<std::vector<int32_t>> token_ids(const Json& answer, size_t num_texts, int64_t vocab_size) {
  std::vector<std::vector<int32_t>> result;
  result.reserve(num_texts);
  for (const Json& ids : list(answer, num_texts)) {
    require(ids.is_array(), "no list of ids");
    std::vector<int32_t>& tokens = result.emplace_back();
    tokens.reserve(ids.size());
    for (const Json& id : ids) tokens.push_back(static_cast<int32_t>(number_below(id, vocab_size)));
  }
  return result;
}

std::vector<std::string> texts(const Json& answer, size_t num_texts) {
  std::vector<std::string> result;
  result.reserve(num_texts);
  for (const Json& one : list(answer, num_texts)) result.push_back(text(one));
  return result;
}

std::vector<std::string> token_table(const Json& answer, int64_t vocab_size) {
  std::vector<std::string> result;
  result.reserve(static_cast<size_t>(vocab_size));
  for (const Json& hex : list(answer, static_cast<size_t>(vocab_size))) result.push_back(from_hex(text(hex)));
  return result;
}

}  // namespace tandem::text
