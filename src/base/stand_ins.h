// Protects characters from a library that cannot handle them: each one that is not ASCII is replaced by a character of
// the private plane 15 (U+F0000 and on), which no format gives a meaning, and put back in what the library returns.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::base {

class CharacterPlaceholders {
 public:
  // Replaces one character by one, so that columns stay. Bytes that are no UTF-8 stay too, for the library to refuse.
  // Throws UserError, with `name` as the file, when the text has more than 65,000 different characters.
  std::string replace(std::string_view text, const std::string& name);
  // Returns the original of a text made of pieces of what replace() returned.
  std::string restore(std::string_view text) const;

 private:
  std::map<std::string, uint32_t, std::less<>> index_of_;
  std::vector<std::string> characters_;
};

}  // namespace tandem::base
