#include "options/option.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>
#include <utility>

#include "base/byte_count.h"
#include "base/check.h"
#include "base/json.h"
#include "base/message_text.h"
#include "base/utf8.h"
#include "options/names.h"

namespace tandem::options {

namespace {

template <typename T>
struct Traits {
  using Element = T;
  static constexpr bool kIsList = false;
};
template <typename T>
struct Traits<std::optional<T>> : Traits<T> {};
template <typename T>
struct Traits<std::vector<T>> {
  using Element = T;
  static constexpr bool kIsList = true;
};

template <typename T>
constexpr OptionKind kKindOf = std::is_same_v<T, bool>      ? OptionKind::kBool
                               : std::is_same_v<T, int64_t> ? OptionKind::kInteger
                               : std::is_same_v<T, double>  ? OptionKind::kNumber
                                                            : OptionKind::kText;

std::string to_word(bool value) { return value ? "true" : "false"; }
std::string to_word(const std::string& value) { return value; }
std::string to_word(int64_t value) { return std::to_string(value); }
std::string to_word(double value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};  // shortest digits that read back
}

template <typename Number>
Number parse_number(const std::string& where, const std::string& word, const char* expected) {
  Number value{};
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  TANDEM_USER_CHECK(error != std::errc::result_out_of_range, where + ": " + shown(word) + " is too large or too small");
  const bool whole = error == std::errc() && end == word.data() + word.size();
  TANDEM_USER_CHECK(whole, where + ": expects", expected + std::string(", not ") + shown(word));
  return value;
}

void parse_word(const std::string& where, const std::string& word, int64_t& value) {
  value = parse_number<int64_t>(where, word, "a whole number");
}
void parse_word(const std::string& where, const std::string& word, double& value) {
  value = parse_number<double>(where, word, "a number");
}
// Config files, checkpoints and reward functions get the value as text.
void parse_word(const std::string& where, const std::string& word, std::string& value) {
  TANDEM_USER_CHECK(base::is_utf8(word), where + ": " + shown(word) + " is no UTF-8 text; write it in UTF-8");
  value = word;
}
void parse_word(const std::string& where, const std::string& word, bool& value) {
  TANDEM_USER_CHECK(word == "true" || word == "false", where + ": expects true or false, not " + shown(word));
  value = word == "true";
}

// Returns a byte count in digits, without its unit. A word that is no byte count stays as it is if it is a number: then
// its range is the mistake.
std::string whole_bytes(const std::string& where, const std::string& word) {
  if (const std::optional<int64_t> bytes = base::parse_byte_count(word)) return std::to_string(*bytes);
  const bool is_number = !word.empty() && word.find_first_not_of("-0123456789") == std::string::npos;
  TANDEM_USER_CHECK(is_number, where + ": expects bytes, such as 1073741824 or 1GiB, not " + shown(word));
  return word;
}

}  // namespace

Option::Option(OptionField field, std::string name, std::string group, std::string help)
    : field_(field), name_(std::move(name)), group_(std::move(group)), help_(std::move(help)) {}

Option& Option::at_least(double minimum) {
  minimum_ = minimum;
  return *this;
}

Option& Option::at_most(double maximum) {
  maximum_ = maximum;
  return *this;
}

Option& Option::greater_than(double bound) {
  lower_bound_ = bound;
  return *this;
}

Option& Option::less_than(double bound) {
  upper_bound_ = bound;
  return *this;
}

Option& Option::finite() {
  finite_ = true;
  return *this;
}

Option& Option::one_of(std::vector<std::string> choices) {
  TANDEM_CHECK(kind() == OptionKind::kText, name_);
  choices_ = std::move(choices);
  return *this;
}

Option& Option::one_of(std::span<const std::string_view> choices) {
  return one_of(std::vector<std::string>(choices.begin(), choices.end()));
}

Option& Option::or_zero() {
  may_be_zero_ = true;
  return *this;
}

Option& Option::or_empty() {
  may_be_empty_ = true;
  return *this;
}

Option& Option::unsupported(std::vector<std::string> values, std::string reason) {
  unsupported_.push_back({std::move(values), std::move(reason)});
  return *this;
}

Option& Option::fingerprinted() {
  fingerprinted_ = true;
  return *this;
}

Option& Option::required(bool is_required) {
  required_ = is_required;
  has_no_default_ = has_no_default_ || is_required;
  return *this;
}

Option& Option::default_was_new() {
  default_is_new_ = true;
  return *this;
}

Option& Option::remembered_as(std::string value, const bool& unless_is_on) {
  idle_value_ = std::move(value);
  condition_ = &unless_is_on;
  return *this;
}

Option& Option::needed_by(const bool& is_on, std::string switch_name, std::string remedy) {
  needing_ = &is_on;
  needing_name_ = std::move(switch_name);
  needing_remedy_ = std::move(remedy);
  return *this;
}

Option& Option::used_if(std::function<bool()> is_used, std::string what) {
  is_used_ = std::move(is_used);
  needs_ = std::move(what);
  return *this;
}

std::string Option::idle_text() const {
  if (!mentioned_ || !is_used_ || is_used_()) return "";
  return fmt::format("--{}: does nothing without {}", name_, needs_);
}

std::string Option::missing_text() const {
  if (needing_ == nullptr || !*needing_ || given_ || mentioned_) return "";
  return fmt::format("--{}: needs --{}; {}", needing_name_, name_, needing_remedy_);
}

Option& Option::one_or_more() {
  TANDEM_CHECK(is_list(), name_);
  may_be_single_ = true;
  return *this;
}

Option& Option::path() {
  TANDEM_CHECK(kind() == OptionKind::kText, name_);
  path_ = true;
  return *this;
}

Option& Option::bytes() {
  TANDEM_CHECK(kind() == OptionKind::kInteger, name_);
  bytes_ = true;
  return *this;
}

Option& Option::positional() {
  positional_ = true;
  return *this;
}

OptionKind Option::kind() const {
  return std::visit(
      [](const auto* field) {
        return kKindOf<typename Traits<std::remove_const_t<std::remove_pointer_t<decltype(field)>>>::Element>;
      },
      field_);
}

bool Option::is_list() const {
  return std::visit(
      [](const auto* field) { return Traits<std::remove_const_t<std::remove_pointer_t<decltype(field)>>>::kIsList; },
      field_);
}

Option& Option::does_not_affect_results() {
  may_change_numbers_ = false;
  return *this;
}

Option& Option::of_one_command() {
  of_one_command_ = true;
  return *this;
}

std::optional<std::vector<std::string>> Option::words() const {
  return std::visit(
      [this](const auto* field) -> std::optional<std::vector<std::string>> {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(field)>>;
        if constexpr (Traits<T>::kIsList) {
          if (may_be_single_ && field->empty()) return std::nullopt;
          std::vector<std::string> words;
          for (const auto& element : *field) words.push_back(to_word(element));
          return words;
        } else if constexpr (std::is_same_v<T, typename Traits<T>::Element>) {
          return {{to_word(*field)}};
        } else {
          if (!field->has_value()) return std::nullopt;
          return {{to_word(**field)}};
        }
      },
      field_);
}

base::Json Option::value() const {
  return std::visit(
      [this](const auto* field) -> base::Json {
        using T = std::remove_const_t<std::remove_pointer_t<decltype(field)>>;
        if constexpr (Traits<T>::kIsList) {
          if (may_be_single_ && field->size() < 2)
            return field->empty() ? base::Json(nullptr) : base::Json(field->front());
        }
        if constexpr (Traits<T>::kIsList || std::is_same_v<T, typename Traits<T>::Element>) {
          return *field;
        } else {
          return field->has_value() ? base::Json(**field) : base::Json(nullptr);
        }
      },
      field_);
}

void Option::set(const std::string& where, const std::vector<std::string>& words) {
  TANDEM_USER_CHECK(is_list() || words.size() == 1, where + ": expects one value, not", words.size());
  std::visit(
      [&](auto* field) {
        using T = std::remove_pointer_t<decltype(field)>;
        using Element = typename Traits<T>::Element;
        const auto read = [&](const std::string& typed) {
          const std::string word = bytes_ ? whole_bytes(where, typed) : typed;
          Element value{};
          parse_word(where, word, value);
          if constexpr (std::is_same_v<Element, std::string>) {
            check_choice(where, word);
          } else if constexpr (!std::is_same_v<Element, bool>) {
            check_range(where, word, static_cast<double>(value));
          }
          return value;
        };
        if constexpr (Traits<T>::kIsList) {
          T values;
          for (const std::string& word : words) values.push_back(read(word));
          *field = std::move(values);
        } else {
          *field = read(words.front());
        }
      },
      field_);
  given_ = true;
}

void Option::check_range(const std::string& where, const std::string& word, double value) const {
  TANDEM_USER_CHECK(!std::isnan(value), where + ": must be a number, not", base::one_line(word));
  if (may_be_zero_ && value == 0.0) return;
  TANDEM_USER_CHECK(!minimum_ || value >= *minimum_, where + ": must be", may_be_zero_ ? "0 or at least" : "at least",
                    to_word(*minimum_) + ", not", base::one_line(word));
  TANDEM_USER_CHECK(!maximum_ || value <= *maximum_, where + ": must be at most", to_word(*maximum_) + ", not",
                    base::one_line(word));
  TANDEM_USER_CHECK(!lower_bound_ || value > *lower_bound_, where + ": must be greater than",
                    to_word(*lower_bound_) + ", not", base::one_line(word));
  TANDEM_USER_CHECK(!upper_bound_ || value < *upper_bound_, where + ": must be less than",
                    to_word(*upper_bound_) + ", not", base::one_line(word));
  TANDEM_USER_CHECK(!finite_ || std::isfinite(value), where + ": must be a finite number, not", base::one_line(word));
}

void Option::check_choice(const std::string& where, const std::string& word) const {
  if (choices_.empty() || std::find(choices_.begin(), choices_.end(), word) != choices_.end()) return;
  if (may_be_empty_ && word.empty()) return;
  const auto is_unsupported = [&](const std::string& pattern) { return matches(pattern, word); };
  for (const auto& [values, reason] : unsupported_) {
    TANDEM_USER_CHECK(std::ranges::none_of(values, is_unsupported),
                      fmt::format("{}: {} {}", where, shown(word), reason));
  }
  const auto near = nearest_name(word, choices_);
  throw UserError(fmt::format("{}: {} is none of {}{}", where, shown(word), fmt::join(choices_, ", "),
                              near ? "; did you mean " + *near + "?" : ""));
}

}  // namespace tandem::options
