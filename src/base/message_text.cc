#include "base/message_text.h"

#include "base/json.h"
#include "base/printable.h"

namespace tandem::base {

std::string one_line(std::string_view text, size_t max_bytes) {
  const std::string quoted = Json(std::string(text.substr(0, max_bytes)))
                                 .dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  std::string line;
  bool is_cut = text.size() > max_bytes;
  for (size_t i = 1; i + 1 < quoted.size(); ++i) {
    const bool begins_character = (static_cast<unsigned char>(quoted[i]) & 0xC0) != 0x80;
    if (line.size() >= max_bytes && begins_character) {
      is_cut = true;
      break;
    }
    // Quotes and backslashes are harmless, so their escapes are undone.
    if (quoted[i] == '\\' && (quoted[i + 1] == '"' || quoted[i + 1] == '\\')) ++i;
    line += quoted[i];
  }
  return printable(is_cut ? line + "..." : line);
}

std::string with_article(std::string_view noun) {
  const bool begins_with_vowel =
      !noun.empty() && std::string_view("aeiou").find(noun.front()) != std::string_view::npos;
  return (begins_with_vowel ? "an " : "a ") + std::string(noun);
}

std::string place_in_text(const std::string& name, std::string_view text, size_t offset, int64_t first_line) {
  int64_t line = first_line, column = 1;
  for (size_t i = 0; i < offset && i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == '\n') {
      ++line;
      column = 1;
    } else if ((byte & 0xC0) != 0x80) {  // not a continuation byte of UTF-8
      ++column;
    }
  }
  return name + ":" + std::to_string(line) + ":" + std::to_string(column);
}

std::string with_commas(int64_t number) {
  std::string text = std::to_string(number);
  const size_t first_digit = number < 0 ? 1 : 0;
  for (size_t at = text.size(); at > first_digit + 3;) text.insert(at -= 3, 1, ',');
  return text;
}

std::string counted(int64_t number, std::string_view noun) {
  return with_commas(number) + " " + std::string(noun) + (number == 1 ? "" : "s");
}

}  // namespace tandem::base
