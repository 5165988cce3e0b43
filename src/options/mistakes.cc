#include "options/mistakes.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/message_text.h"

namespace tandem::options {

namespace {

constexpr size_t kWidth = 100;

std::string summary(const std::vector<OptionsError::Refused>& refused, const std::vector<std::string>& others,
                    bool has_remaining) {
  std::string text = fmt::format("{} options cannot be used", refused.size() + others.size());
  if (!refused.empty() && !others.empty())
    text += fmt::format(" ({} not supported, {} wrong)", refused.size(), others.size());
  if (!refused.empty() && others.empty()) text += ": none of them is supported";
  return text +
         (has_remaining ? "; they are listed above, with the command line that remains" : "; they are listed above");
}

// Quotes a word so that a POSIX shell reads it back.
std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@%+";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

// Quotes the words of a command line for a shell, with a flag and its values in one piece.
std::vector<std::string> flags_with_values(const std::vector<std::string>& words) {
  std::vector<std::string> pieces;
  for (const std::string& word : words) {
    if (pieces.empty() || word.starts_with("--")) {
      pieces.push_back(quoted(word));
    } else {
      pieces.back() += " " + quoted(word);
    }
  }
  return pieces;
}

// Adds `pieces` in lines of about `width` columns that begin with `indent` spaces.
void append_pieces(std::string& text, const std::vector<std::string>& pieces, size_t indent, size_t width,
                   std::string_view line_end) {
  size_t column = 0;
  for (const std::string& piece : pieces) {
    if (column > indent && column + 1 + piece.size() > width) {
      text += std::string(line_end) + "\n";
      column = 0;
    }
    text += column == 0 ? std::string(indent, ' ') : " ";
    column += (column == 0 ? indent : 1) + piece.size();
    text += piece;
  }
  text += "\n";
}

}  // namespace

OptionsError::OptionsError(std::vector<Refused> refused, std::vector<std::string> others,
                           std::vector<std::string> remaining)
    : UserError(summary(refused, others, !remaining.empty())),
      refused_(std::move(refused)),
      others_(std::move(others)),
      remaining_(std::move(remaining)) {}

std::string OptionsError::list(const std::string& command) const {
  std::string text;
  if (!refused_.empty()) text += fmt::format("not supported ({}):\n", base::counted(std::ssize(refused_), "flag"));
  std::vector<std::string> reasons;
  for (const Refused& one : refused_) {
    if (std::ranges::find(reasons, one.reason) == reasons.end()) reasons.push_back(one.reason);
  }
  for (const std::string& reason : reasons) {
    std::vector<std::string> flags;
    for (const Refused& one : refused_) {
      if (one.reason == reason) flags.push_back(one.flag);
    }
    text += "  " + reason + ":\n";
    append_pieces(text, flags, 4, kWidth, "");
  }
  if (!others_.empty()) text += fmt::format("to be mended ({}):\n", base::counted(std::ssize(others_), "option"));
  for (const std::string& message : others_) text += "  " + message + "\n";
  if (remaining_.empty()) return text;
  text += "what remains without the unsupported flags:\n  " + command + " \\\n";
  append_pieces(text, flags_with_values(remaining_), 4, kWidth, " \\");
  return text;
}

void OptionMistakes::refuse(const std::string& flag, const std::string& reason) {
  const auto same = [&](const OptionsError::Refused& one) { return one.flag == flag; };
  if (std::ranges::none_of(refused_, same)) refused_.push_back({flag, reason});
}

void OptionMistakes::add(const std::string& message) {
  if (std::ranges::find(others_, message) == others_.end()) others_.push_back(message);
}

void OptionMistakes::raise(std::vector<std::string> remaining) const {
  const size_t count = refused_.size() + others_.size();
  if (count == 0) return;
  if (count > 1) throw OptionsError(refused_, others_, std::move(remaining));
  if (!others_.empty()) throw UserError(others_.front());
  throw UserError(refused_.front().flag + ": not supported: " + refused_.front().reason);
}

}  // namespace tandem::options
