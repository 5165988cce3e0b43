// Declares the options of a verb once: flags, config file, --help and --print-config all read the same list.
//
//   struct RolloutConfig {
//     int64_t rollout_batch_size = 32;  // the value here is the default that --help shows
//     void visit(Options& options) {
//       options.option(rollout_batch_size, "rollout-batch-size", "rollout", "prompts per step").at_least(1);
//     }
//   };
//
//   Options options;
//   config.visit(options);
//   switch (options.parse(arguments)) { ... }
//
// The command line takes `--name value` or `--name=value`, lists as `--name a b c`, bools as `--name` and `--no-name`.
// A file of `--config FILE` is TOML with `name = value` at the top level. The command line beats the file, the file the
// default; if an option is given twice, the last value holds, for lists too. Nothing is ignored: all mistakes are
// reported at once.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/option_mistakes.h"

namespace tandem::base {

// An option can have these types. An optional is empty until it is given; a list that is given replaces the default
// list.
using OptionField = std::variant<int64_t*, double*, bool*, std::string*, std::vector<std::string>*,
                                 std::vector<int64_t>*, std::vector<double>*, std::optional<int64_t>*,
                                 std::optional<double>*, std::optional<bool>*, std::optional<std::string>*>;

enum class OptionKind : uint8_t { kInteger, kNumber, kBool, kText };

struct TypedFlag;

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

enum class ParsedAction : uint8_t { kRun, kHelp, kPrintConfig };

class OptionTables;

// Holds the options of one verb. It borrows the fields: the config structs must outlive it and stay where they are.
class Options {
 public:
  // `home` is the directory that "~/" stands for in paths; with "" it stands for itself.
  explicit Options(std::string home = "") : home_(std::move(home)) {}

  // Groups appear in --help in the order of their first option. The returned reference is valid until the next call of
  // option().
  template <typename T>
  Option& option(T& field, const std::string& name, const std::string& group, const std::string& help) {
    return add(Option(OptionField(&field), name, group, help));
  }

  // Refuses, with the reason, a flag that users of other trainers know and Tandem does not have. `name` has no "--"; a
  // name that ends in '*' stands for every flag with that beginning ("vllm-*"). `companions` are flags that mean
  // something else without it, which are left out of the remaining command with it.
  void unsupported(const std::string& name, const std::string& reason, const std::vector<std::string>& companions = {});
  // Answers a name that another program has for something (learning_rate, data.train_files; data.* for all others that
  // begin so): an unknown flag, key or argument of that name, with - or _, or of the last parts of it, is answered
  // "NAME: `answer`".
  void known_elsewhere(const std::string& name, const std::string& answer);

  // Answers a flag or key of an unknown name that another command has: `answer` returns the answer to a name, with
  // dashes and without "--", or "" if no command has it. No family of refused flags ("vllm-*") takes such a name for
  // its own.
  void known_to_other_commands(std::function<std::string(const std::string& name)> answer);

  // Makes these, and no other, of the options so far required: for a verb that needs fewer than the one it shares them
  // with.
  void require_only(const std::vector<std::string>& names);

  // Reads the files that --config names, then the arguments after the verb, into the fields. With --help nothing is
  // read; with --print-config required options may be missing. Throws UserError for one mistake, OptionsError for
  // several.
  ParsedAction parse(const std::vector<std::string>& arguments);
  // Returns what Option::idle_text() says of each typed option that does nothing with the others as they are.
  std::vector<std::string> idle_texts() const;

  // Returns "Usage: " `usage` and the description, then the options by group with their present values as defaults.
  std::string help_text(const std::string& usage, const std::string& description) const;
  // Returns the present values as TOML that parses back to the same values; an unset option is a comment.
  std::string config_text() const { return toml_text(/*repeats=*/false); }
  // Does the same for a file that repeats what the command makes: options of_one_command() are comments.
  std::string text_to_repeat() const { return toml_text(/*repeats=*/true); }
  // Returns what a checkpoint remembers: name and value ("unset"; free text by its fingerprint()) of every option that
  // may change a result.
  std::map<std::string, std::string> result_options() const;
  // Returns the same before parse(), as the values that a checkpoint lacks because its version had no such option: the
  // defaults, except those marked by default_was_new().
  std::map<std::string, std::string> values_where_absent() const;
  // Returns the name and present value of every option, as one JSON object.
  nlohmann::ordered_json values() const;

 private:
  friend class OptionTables;  // reads tables of a file by the same rules

  struct Unsupported {
    std::string name, reason;
    std::vector<std::string> companions;
  };
  struct Elsewhere {
    std::string name, answer;
  };

  Option& add(Option option);
  Option* find(std::string_view name);
  void read_config_file(const std::string& path, OptionMistakes& mistakes);
  // Reads the entries of a file, name = value; `table` is one of its tables.
  struct FileTable;
  void read_entries(const FileTable& table, OptionMistakes& mistakes);
  // Returns how many of the words after the flag are its value.
  size_t read_flag(const TypedFlag& flag);
  std::string toml_text(bool repeats) const;
  // For a name that no option has, find_unsupported() returns the row with the reason why it is not supported, and
  // unknown_text() the message for an unknown name.
  const Unsupported* find_unsupported(std::string_view name) const;
  // Returns "WHERE: answer" of known_elsewhere(), or "" if no program has that name; options that the answer names
  // count as mentioned.
  std::string elsewhere_text(const std::string& where, std::string_view name);
  // Adds to the mistakes an answer for each entry of a table of which the whole key, "trainer.save_freq", is a name of
  // known_elsewhere(). Returns whether there was one.
  bool answer_whole_keys(const FileTable& table, const std::string& key, OptionMistakes& mistakes);
  // Returns the answer of known_to_other_commands(), or "" if no other command has an option of that name, or this one
  // has it, with - or _.
  std::string text_of_others(std::string_view name) const;
  // Returns the groups in the order of their first option.
  std::vector<std::string> groups() const;
  std::string unexpected_text(const std::string& word);
  // Returns the words of the flags without the refused ones and their companions.
  std::vector<std::string> remaining_words(const std::vector<TypedFlag>& flags) const;
  std::string unknown_text(const std::string& where, const std::string& name);
  std::string unknown_key_text(const std::string& where) const;

  void set(Option& option, const std::string& where, std::vector<std::string> words) const;

  std::string home_;
  std::vector<Option> options_;
  std::vector<Unsupported> unsupported_;
  std::vector<Elsewhere> elsewhere_;
  std::function<std::string(const std::string& name)> answer_of_others_;
};

// Returns the candidate with the fewest single-character edits from `name` ('_' counts as '-'), or the first that
// begins with it or that it abbreviates; nullopt when all are far from it.
std::optional<std::string> nearest_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace tandem::base
