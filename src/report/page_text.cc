#include "report/page_text.h"

#include "base/printable.h"

namespace tandem::report {

namespace {

// Returns the text with < > & " ' escaped.
std::string html_escaped(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      case '\'': result += "&#39;"; break;
      default: result += c;
    }
  }
  return result;
}

}  // namespace

std::string PageText::operator()(std::string_view text) const {
  return html_escaped(base::printable(redaction_.hide_secrets(text)));
}

std::string PageText::path(std::string_view text) const {
  return html_escaped(base::printable(redaction_.apply(text)));
}

}  // namespace tandem::report
