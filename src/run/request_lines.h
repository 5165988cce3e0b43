// Reads lines of a stream whose sender may write without end: a line that is too long is reported, and never held in
// memory.
#pragma once

#include <cstdint>
#include <istream>
#include <string>

namespace tandem::run {

class RequestLines {
 public:
  // `input` is borrowed. `max_bytes` is the limit of a line, without its end.
  RequestLines(std::istream& input, int64_t max_bytes) : input_(input), max_bytes_(max_bytes) {}

  // Reads to the end of the next line; returns false if there is none. A last line needs no end.
  bool next();

  const std::string& text() const { return text_; }  // only the beginning if the line is too long
  bool is_too_long() const { return num_bytes_ > max_bytes_; }
  int64_t num_bytes() const { return num_bytes_; }
  int64_t number() const { return number_; }  // line number, from 1

 private:
  std::istream& input_;
  const int64_t max_bytes_;
  std::string text_;
  int64_t num_bytes_ = 0, number_ = 0;
};

}  // namespace tandem::run
