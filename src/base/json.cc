// Implements strict JSON over nlohmann's event parser: the parser gives tokens and their errors, this file adds the
// rules that it lacks (duplicate keys, depth, a NUL byte, which it takes for the end of the text) and the place of each
// mistake.
#include "base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/data_json.h"
#include "base/files.h"
#include "base/message_text.h"

template class nlohmann::basic_json<nlohmann::ordered_map>;
namespace nlohmann::detail {
template class serializer<ordered_json>;
template class lexer<ordered_json, iterator_input_adapter<std::string::const_iterator>>;
template class lexer<ordered_json, iterator_input_adapter<const char*>>;
template class parser<ordered_json, iterator_input_adapter<std::string::const_iterator>>;
template class parser<ordered_json, iterator_input_adapter<const char*>>;
}  // namespace nlohmann::detail

namespace tandem::base {
namespace {

// Reads characters and counts them, because nlohmann's events do not tell where they are. Copies share the count.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, size_t* num_read) : at_(at), num_read_(num_read) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    ++*num_read_;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  size_t* num_read_;
};

struct Mistake {
  size_t offset;  // bytes from the start of the text
  std::string what;
};

// Shortens "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing value -
// invalid literal; last read: 'x'" to "syntax error while parsing value - invalid literal". The last characters read
// are left out: they may be no UTF-8, and the message has their place.
std::string short_reason(std::string reason) {
  if (const size_t at = reason.find("] "); at != std::string::npos) reason.erase(0, at + 2);
  if (reason.starts_with("parse error at ")) {
    if (const size_t at = reason.find(": "); at != std::string::npos) reason.erase(0, at + 2);
  }
  if (const size_t begin = reason.find("; last read: "); begin != std::string::npos) {
    const size_t end = reason.find("'; expected ", begin);
    reason.erase(begin, end == std::string::npos ? std::string::npos : end + 1 - begin);
  }
  return reason;
}

// Programs write these words for numbers that JSON does not have, Python's json and JavaScript among them.
bool is_not_finite(std::string_view word) {
  if (word.starts_with('-')) word.remove_prefix(1);
  for (const char* const name : {"NaN", "nan", "Infinity", "inf", "Inf"}) {
    if (word == name) return true;
  }
  return false;
}

// States what becomes of integers beyond 64 bits: tokenizer files hold 1e30 in digits, which is meant as a bound.
enum class LargeIntegers : uint8_t { kBecomeDoubles, kAreRefused };

// Builds the value from the events.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view text, const size_t* num_read, int max_depth, LargeIntegers large_integers)
      : text_(text), num_read_(num_read), max_depth_(max_depth), large_integers_(large_integers) {}

  const std::unique_ptr<Mistake>& mistake() const { return mistake_; }
  Json take() { return std::move(root_); }

  bool null() override { return add(Json(nullptr)); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(value)); }
  bool number_float(number_float_t value, const string_t& written) override {
    const bool is_integer = written.find_first_of(".eE") == std::string::npos;
    if (is_integer && large_integers_ == LargeIntegers::kAreRefused) {
      return fail(text_.substr(0, *num_read_).rfind(written), "a whole number of more than 64 bits; write it as text");
    }
    return add(Json(value));
  }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return fail(*num_read_, "binary data in JSON"); }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (!levels_.back().keys.insert(name).second) {
      return fail(last_string_begin(), "the key \"" + one_line(name) + "\" appears twice in one object; keep one");
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override {
    const size_t offset = position == 0 ? 0 : position - 1;
    if (const std::string_view word = word_at(offset); is_not_finite(word)) {
      return fail(static_cast<size_t>(word.data() - text_.data()),
                  std::string(word) + " is no JSON: write null, or leave the key out");
    }
    return fail(offset, short_reason(error.what()));
  }

 private:
  struct Level {
    Json* value;
    std::unordered_set<std::string> keys;  // keys of an object; its own lookup is linear
  };

  Json* put(Json value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *levels_.back().value;
    if (parent.is_array()) return &parent.get_ref<Json::array_t&>().emplace_back(std::move(value));
    // This bypasses the map's own insertion, which compares with every key before it.
    return &parent.get_ref<Json::object_t&>().emplace_back(std::move(key_), std::move(value)).second;
  }

  bool add(Json value) {
    put(std::move(value));
    return true;
  }

  bool open(Json value) {
    if (static_cast<int>(levels_.size()) >= max_depth_) {
      return fail(*num_read_ - 1, "nested deeper than " + std::to_string(max_depth_) + " levels; flatten it");
    }
    levels_.push_back({put(std::move(value)), {}});
    return true;
  }

  bool close() {
    levels_.pop_back();
    return true;
  }

  bool fail(size_t offset, std::string what) {
    if (!mistake_) mistake_ = std::make_unique<Mistake>(Mistake{offset, std::move(what)});
    return false;
  }

  // Returns the letters around a place, with a minus before them.
  std::string_view word_at(size_t offset) const {
    const auto is_of_word = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-'; };
    size_t begin = std::min(offset, text_.size()), end = begin;
    while (begin > 0 && is_of_word(text_[begin - 1])) --begin;
    while (end < text_.size() && is_of_word(text_[end])) ++end;
    return text_.substr(begin, end - begin);
  }

  // Returns the place of the opening quote of the string that ends at the last character read. Quotes within it have a
  // backslash before them, the opening one never has.
  size_t last_string_begin() const {
    size_t at = *num_read_ - 1;
    while (at > 0) {
      --at;
      if (text_[at] == '"' && (at == 0 || text_[at - 1] != '\\')) break;
      if (text_[at] == '"') {
        size_t num_backslashes = 0;
        while (num_backslashes < at && text_[at - 1 - num_backslashes] == '\\') ++num_backslashes;
        if (num_backslashes % 2 == 0) break;
      }
    }
    return at;
  }

  std::string_view text_;
  const size_t* num_read_;
  int max_depth_;
  LargeIntegers large_integers_;
  Json root_;
  std::vector<Level> levels_;
  std::string key_;
  std::unique_ptr<Mistake> mistake_;
};

[[noreturn]] void refuse(std::string_view text, const Mistake& mistake, const std::string& name, int64_t first_line) {
  throw UserError(place_in_text(name, text, mistake.offset, first_line) + ": " + mistake.what);
}

template <typename Number>
void append_number(std::string& out, Number value) {
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  out.append(digits, end);
}

void append(std::string& out, const Json& value) {
  switch (value.type()) {
    case Json::value_t::object: {
      const char* comma = "{";
      for (const auto& [key, member] : value.items()) {
        out += comma;
        append(out, Json(key));
        out += ':';
        append(out, member);
        comma = ",";
      }
      out += value.empty() ? "{}" : "}";
      return;
    }
    case Json::value_t::array: {
      const char* comma = "[";
      for (const Json& element : value) {
        out += comma;
        append(out, element);
        comma = ",";
      }
      out += value.empty() ? "[]" : "]";
      return;
    }
    case Json::value_t::number_integer: return append_number(out, value.get<int64_t>());
    case Json::value_t::number_unsigned: return append_number(out, value.get<uint64_t>());
    case Json::value_t::number_float: {
      const double number = value.get<double>();
      if (std::isnan(number)) {
        out += "\"nan\"";
      } else if (std::isinf(number)) {
        out += number > 0 ? "\"inf\"" : "\"-inf\"";
      } else {
        out += value.dump();  // the shortest digits that read back to the same double
      }
      return;
    }
    default: out += value.dump(-1, ' ', false, Json::error_handler_t::replace); return;
  }
}

Json parse(std::string_view text, const std::string& name, int64_t first_line, int max_depth,
           LargeIntegers large_integers) {
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    refuse(text, {nul, "a NUL byte in JSON text; is this a text file?"}, name, first_line);
  }
  size_t num_read = 0;
  const char* const end = text.data() + text.size();
  Builder builder(text, &num_read, max_depth, large_integers);
  const bool complete = Json::sax_parse(CountingIterator(text.data(), &num_read), CountingIterator(end, &num_read),
                                        &builder, nlohmann::detail::input_format_t::json, /*strict=*/true);
  if (builder.mistake()) refuse(text, *builder.mistake(), name, first_line);
  TANDEM_CHECK(complete, name);
  return builder.take();
}

}  // namespace

Json parse_json(std::string_view text, const std::string& name, int64_t first_line, int max_depth) {
  return parse(text, name, first_line, max_depth, LargeIntegers::kBecomeDoubles);
}

Json parse_data_json(std::string_view text, const std::string& name, int64_t first_line) {
  return parse(text, name, first_line, kMaxJsonDepth, LargeIntegers::kAreRefused);
}

Json read_json_file(const std::string& path, int64_t max_bytes) { return parse_json(read_file(path, max_bytes), path); }

std::string dump_json(const Json& value) {
  std::string out;
  append(out, value);
  return out;
}

}  // namespace tandem::base
