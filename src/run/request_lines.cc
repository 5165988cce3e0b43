#include "run/request_lines.h"

#include <streambuf>

namespace tandem::run {

bool RequestLines::next() {
  using Traits = std::istream::traits_type;
  if (text_.capacity() > size_t{1} << 20) text_ = std::string();  // frees the memory of a long line before this one
  text_.clear();
  num_bytes_ = 0;
  std::streambuf& bytes = *input_.rdbuf();
  for (Traits::int_type byte = bytes.sbumpc();; byte = bytes.sbumpc()) {
    const bool is_end = Traits::eq_int_type(byte, Traits::eof());
    if (is_end && num_bytes_ == 0) return false;
    if (is_end || byte == '\n') break;
    if (++num_bytes_ <= max_bytes_) text_.push_back(Traits::to_char_type(byte));
  }
  ++number_;
  return true;
}

}  // namespace tandem::run
