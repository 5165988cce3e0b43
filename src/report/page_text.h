// Escapes foreign text for an HTML page: none of it is markup, and invisible characters are shown.
#pragma once

#include <string>
#include <string_view>

#include "base/env.h"

namespace tandem::report {

class PageText {
 public:
  // Returns text for HTML between tags and in quoted attributes: < > & " ' are escaped, control characters and those
  // that turn the direction of writing appear as \u001b (base/printable.h), and the value of a secret variable of this
  // process's environment as [NAME].
  std::string operator()(std::string_view text) const;
  // Does the same for a path, with the home directory as ~.
  std::string path(std::string_view text) const;

 private:
  base::Redaction redaction_;
};

}  // namespace tandem::report
