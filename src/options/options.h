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
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "options/mistakes.h"
#include "options/option.h"

namespace tandem::options {

struct TypedFlag;

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

}  // namespace tandem::options
