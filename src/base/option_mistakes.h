// Mistakes in command lines and config files are collected here, so that the user hears of all of them in one run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tandem/error.h"

namespace tandem::base {

// More than one mistake. what() counts them in one line, list() tells them to a person.
class OptionsError : public UserError {
 public:
  struct Refused {
    std::string flag;    // as it was typed, "--swiglu", or its place in a file, "run.toml:3:10: swiglu"
    std::string reason;  // why Tandem does not have it
  };
  OptionsError(std::vector<Refused> refused, std::vector<std::string> others, std::vector<std::string> remaining);

  // Lines, each ended: refused flags under their reasons, other mistakes, and what remains of the command line that
  // began with `command` ("tandem train") where flags of it are refused.
  std::string list(const std::string& command) const;

  const std::vector<Refused>& refused() const { return refused_; }
  const std::vector<std::string>& others() const { return others_; }

 private:
  std::vector<Refused> refused_;
  std::vector<std::string> others_;
  std::vector<std::string> remaining_;
};

// Collects mistakes while options are read.
class OptionMistakes {
 public:
  // A flag that is known and that Tandem does not have.
  void refuse(const std::string& flag, const std::string& reason);
  // Any other mistake, in a sentence that names its place.
  void add(const std::string& message);

  // Throws what was collected, if anything: a single mistake as a UserError that says it, several as an OptionsError.
  // `remaining`: the words of the command line without the refused flags, or nothing where it has none of them.
  void raise(std::vector<std::string> remaining) const;

 private:
  std::vector<OptionsError::Refused> refused_;
  std::vector<std::string> others_;
};

}  // namespace tandem::base
