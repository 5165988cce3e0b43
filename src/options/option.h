// One option of a verb: its name, type, bounds and help, and the field that holds its value.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tandem::options {

// An option can have these types. An optional is empty until it is given; a list that is given replaces the default
// list.
using OptionField = std::variant<int64_t*, double*, bool*, std::string*, std::vector<std::string>*,
                                 std::vector<int64_t>*, std::vector<double>*, std::optional<int64_t>*,
                                 std::optional<double>*, std::optional<bool>*, std::optional<std::string>*>;

enum class OptionKind : uint8_t { kInteger, kNumber, kBool, kText };

class Option {
 public:
  Option(OptionField field, std::string name, std::string group, std::string help);

  // For numbers (each element of a list): at_least() and at_most() are inclusive bounds, greater_than() and less_than()
  // exclusive ones. NaN never fits.
  Option& at_least(double minimum);
  Option& at_most(double maximum);
  Option& greater_than(double bound);
  Option& less_than(double bound);
  Option& finite();
  // Allows 0 too, below what at_least() asks for: it turns something off.
  Option& or_zero();
  // For text (each element of a list): the value must be one of these; a typo is answered with the nearest.
  Option& one_of(std::vector<std::string> choices);
  Option& one_of(std::span<const std::string_view> choices);
  // Allows the empty text too, which leaves the choice to something else.
  Option& or_empty();
  // Values that users of other trainers know and this option does not have; one that ends in '*' stands for every value
  // with that beginning. `reason` completes "--name: 'value' ...". Each call adds some.
  Option& unsupported(std::vector<std::string> values, std::string reason);
  // A checkpoint remembers the fingerprint of the value, as it does for free text. For an option that was free text
  // when it was first saved.
  Option& fingerprinted();
  // The option must be given, on the command line or in the file.
  Option& required(bool is_required = true);
  // No result depends on the option: a run may resume from a checkpoint with another value.
  Option& does_not_affect_results();
  // The value is of one command and not of what it makes: in text_to_repeat() it is a comment, so that the file repeats
  // the run and does not load, replace or permit anything again.
  Option& of_one_command();
  // The program behaved otherwise before it had this option. So a checkpoint from before it does not count as made with
  // the default when a run resumes from it.
  Option& default_was_new();
  // The option does nothing unless `unless_is_on`, another field of the same options, is true: until then a checkpoint
  // remembers `value` for it, whatever it is. So a default may change, and only the runs that it concerns are told.
  Option& remembered_as(std::string value, const bool& unless_is_on);
  // The option must be given if `is_on`, the switch of that name, is true; else the mistake is "--SWITCH: needs --NAME;
  // REMEDY".
  Option& needed_by(const bool& is_on, std::string switch_name, std::string remedy);
  // The option does nothing unless `is_used`, asked when all options are set, says otherwise: typed all the same, it is
  // one of Options::idle_texts(), which say that it does nothing without `what`.
  Option& used_if(std::function<bool()> is_used, std::string what);
  // A list that mostly has one element: a single element is read and written like the value of an option that is no
  // list, and an empty list counts as unset.
  Option& one_or_more();
  // The value is a whole number of bytes, which may be written with a unit: 1GiB (base/byte_count.h). In a file a value
  // with a unit is text.
  Option& bytes();
  // The value is a path (each element of a list may be one): "~/" at its start is the home directory. It is written so
  // too, so that a configuration does not reveal whose machine it was made on.
  Option& path();
  // Words that belong to no flag are its value too: `tandem view RUN`. At most one option of a verb is positional, and
  // it is a list.
  Option& positional();

  const std::string& name() const { return name_; }
  const std::string& group() const { return group_; }
  const std::string& help() const { return help_; }
  const std::vector<std::string>& choices() const { return choices_; }
  bool is_required() const { return required_; }
  // Whether some verb requires it: then its value means nothing until it is given.
  bool has_no_default() const { return has_no_default_; }
  bool may_change_numbers() const { return may_change_numbers_; }
  bool is_of_one_command() const { return of_one_command_; }
  bool is_default_new() const { return default_is_new_; }
  // Returns what a checkpoint remembers in place of the value; null: the value itself.
  const std::string* remembered() const { return condition_ != nullptr && !*condition_ ? &idle_value_ : nullptr; }
  // Returns "--SWITCH: needs --NAME; REMEDY" if needed_by() asks for an option that is not given; "" otherwise.
  std::string missing_text() const;
  // Returns "--NAME: does nothing without WHAT" for an option that was typed and that used_if() says is not used; ""
  // otherwise.
  std::string idle_text() const;
  bool is_path() const { return path_; }
  bool is_positional() const { return positional_; }
  bool is_bytes() const { return bytes_; }
  // Returns whether a checkpoint remembers the fingerprint of the value: text without a list of choices may be a
  // secret.
  bool is_fingerprinted() const { return fingerprinted_ || (kind() == OptionKind::kText && choices_.empty()); }
  OptionKind kind() const;
  bool is_list() const;
  bool may_be_single() const { return may_be_single_; }

  // Returns the value as it would be typed, one word per element; nullopt if it is unset.
  std::optional<std::vector<std::string>> words() const;
  // Returns the value as JSON: a number, bool, text or list of them; null if it is unset.
  nlohmann::ordered_json value() const;
  // Reads the value from words. Throws UserError "WHERE: what" for a wrong type, number of words or range.
  void set(const std::string& where, const std::vector<std::string>& words);
  bool is_given() const { return given_; }
  // Marks the option as given, even if with a mistake, so that it is not reported as missing too.
  void set_mentioned() { mentioned_ = true; }
  bool is_mentioned() const { return mentioned_; }

 private:
  void check_range(const std::string& where, const std::string& word, double value) const;
  void check_choice(const std::string& where, const std::string& word) const;

  OptionField field_;
  std::string name_, group_, help_;
  std::optional<double> minimum_, maximum_, lower_bound_, upper_bound_;
  struct UnsupportedValues {
    std::vector<std::string> values;
    std::string reason;
  };
  std::vector<std::string> choices_;
  std::vector<UnsupportedValues> unsupported_;
  bool finite_ = false, may_be_zero_ = false, may_be_empty_ = false, fingerprinted_ = false;
  bool required_ = false, has_no_default_ = false, given_ = false, mentioned_ = false, path_ = false,
       may_change_numbers_ = true, of_one_command_ = false;
  bool default_is_new_ = false;
  bool may_be_single_ = false, positional_ = false, bytes_ = false;
  const bool* condition_ = nullptr;  // set by remembered_as()
  std::string idle_value_;
  const bool* needing_ = nullptr;  // set by needed_by()
  std::string needing_name_, needing_remedy_;
  std::function<bool()> is_used_;  // set by used_if()
  std::string needs_;
};

}  // namespace tandem::options
