// Formats text for messages: foreign text on one line, places as line and column, numbers as people write them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::base {

// Returns text from a file or another process as a message shows it: one line of valid UTF-8, cut off after about
// `max_bytes`.
std::string one_line(std::string_view text, size_t max_bytes = 80);

// Returns the noun with its article: "an object", "a list".
std::string with_article(std::string_view noun);

// Returns the place of byte `offset` of `text`, as an editor shows it: "NAME:LINE:COLUMN". Columns count characters,
// from 1.
std::string place_in_text(const std::string& name, std::string_view text, size_t offset, int64_t first_line = 1);

// Returns 16050 as "16,050".
std::string with_commas(int64_t number);

// Returns "1 warning", "0 warnings", "2 warnings". The plural of `noun` must end in s.
std::string counted(int64_t number, std::string_view noun);

}  // namespace tandem::base
