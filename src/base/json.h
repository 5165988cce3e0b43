// Reads and writes JSON strictly, built on nlohmann::json: a duplicate key or a malformed value is an error with its
// place.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

// This template is compiled once, in json.cc: a file that uses JSON then compiles in half the time.
extern template class nlohmann::basic_json<nlohmann::ordered_map>;
namespace nlohmann::detail {
extern template class serializer<ordered_json>;
extern template class lexer<ordered_json, iterator_input_adapter<std::string::const_iterator>>;
extern template class lexer<ordered_json, iterator_input_adapter<const char*>>;
extern template class parser<ordered_json, iterator_input_adapter<std::string::const_iterator>>;
extern template class parser<ordered_json, iterator_input_adapter<const char*>>;
}  // namespace nlohmann::detail

namespace tandem::base {

// Json keeps the order of keys, so files are rewritten in the order in which they were read.
using Json = nlohmann::ordered_json;

constexpr int kMaxJsonDepth = 128;  // of objects and lists within each other

// Parses one JSON value. Throws UserError "NAME:LINE:COLUMN: what, remedy" for malformed text, invalid UTF-8, lone
// surrogate escapes, duplicate keys, nesting deeper than `max_depth`, anything after the value, and numbers too large
// for a double. Integers beyond 64 bits become doubles (tokenizer files hold 1e30 in digits). A byte order mark at the
// start is skipped. `first_line` is the line number of the text's first line (for one line of a JSONL file).
Json parse_json(std::string_view text, const std::string& name, int64_t first_line = 1, int max_depth = kMaxJsonDepth);

// Reads the same from a file of at most `max_bytes`.
Json read_json_file(const std::string& path, int64_t max_bytes = int64_t{64} << 20);

// Returns compact JSON: UTF-8 is kept as it is, and non-finite numbers are the strings "nan", "inf", "-inf". A string
// that is no valid UTF-8 (a completion cut within a character) is written with U+FFFD in place of the bad bytes.
std::string dump_json(const Json& value);

}  // namespace tandem::base
