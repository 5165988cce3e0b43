// Collects the mistakes in command lines and config files, so that the user learns of all of them in one run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tandem/error.h"

namespace tandem::options {

// Reports more than one mistake. what() counts them in one line, list() tells them all.
class OptionsError : public UserError {
 public:
  struct Refused {
    std::string flag;    // as typed, "--swiglu", or with its place in a file, "run.toml:3:10: swiglu"
    std::string reason;  // why Tandem does not have it
  };
  OptionsError(std::vector<Refused> refused, std::vector<std::string> others, std::vector<std::string> remaining);

  // Returns lines, each ended by '\n': refused flags under their reasons, then other mistakes. If flags of the command
  // line that began with `command` ("tandem train") are refused, the rest of that command line follows.
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
  // Adds a known flag that Tandem does not have.
  void refuse(const std::string& flag, const std::string& reason);
  // Adds any other mistake, as a sentence that names its place.
  void add(const std::string& message);

  // Throws the collected mistakes, if there are any: a single one as a UserError, several as an OptionsError.
  // `remaining` holds the words of the command line without the refused flags; it is empty if the command line has none
  // of those.
  void raise(std::vector<std::string> remaining) const;

 private:
  std::vector<OptionsError::Refused> refused_;
  std::vector<std::string> others_;
};

}  // namespace tandem::options
