// UTF-8 text out of bytes that arrive in pieces: what is certain comes out, the start of a character waits for its
// rest. Bytes that are no UTF-8 become U+FFFD, one for each maximal prefix of a character (Unicode 15, section 3.9,
// "best practice"; what the published tokenizers' decoders do), so the pieces joined are the decoding of the bytes
// joined.
#pragma once

#include <string>
#include <string_view>

namespace tandem::base {

class Utf8Stream {
 public:
  std::string push(std::string_view bytes);  // what became certain
  std::string finish();                      // what waited: one U+FFFD, or nothing

 private:
  std::string waiting_;  // at most three bytes between calls
};

// Returns the text that all these bytes are, which may begin or end inside a character.
std::string utf8_text(std::string_view bytes);

}  // namespace tandem::base
