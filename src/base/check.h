// Checks that name the party at fault: TANDEM_CHECK* is for our invariants (BugError), TANDEM_USER_CHECK for input
// (UserError, exit code 2), TANDEM_ENV_CHECK for the machine (EnvironmentError, exit code 3). The values after the
// condition are joined with spaces.
#pragma once

#include <sstream>
#include <string>

#include "tandem/error.h"

namespace tandem::base {

template <typename... Values>
std::string join_message(const Values&... values) {
  std::ostringstream out;
  [[maybe_unused]] const char* space = "";  // unused where the list of values is empty
  ((out << space << values, space = " "), ...);
  return out.str();
}

[[noreturn]] inline void fail_check(const char* file, int line, const char* condition, const std::string& message) {
  throw BugError(std::string(file) + ":" + std::to_string(line) + ": check failed: " + condition +
                 (message.empty() ? "" : ": " + message));
}

}  // namespace tandem::base

#define TANDEM_CHECK(condition, ...)                                                                         \
  do {                                                                                                       \
    if (!(condition)) [[unlikely]]                                                                           \
      ::tandem::base::fail_check(__FILE__, __LINE__, #condition, ::tandem::base::join_message(__VA_ARGS__)); \
  } while (false)

#define TANDEM_CHECK_EQ(a, b, ...)                                                                       \
  do {                                                                                                   \
    const auto& tandem_a = (a);                                                                          \
    const auto& tandem_b = (b);                                                                          \
    if (!(tandem_a == tandem_b)) [[unlikely]]                                                            \
      ::tandem::base::fail_check(__FILE__, __LINE__, #a " == " #b,                                       \
                                 ::tandem::base::join_message(tandem_a, "!=", tandem_b, ##__VA_ARGS__)); \
  } while (false)

#define TANDEM_USER_CHECK(condition, ...)                                   \
  do {                                                                      \
    if (!(condition)) [[unlikely]]                                          \
      throw ::tandem::UserError(::tandem::base::join_message(__VA_ARGS__)); \
  } while (false)

#define TANDEM_ENV_CHECK(condition, ...)                                           \
  do {                                                                             \
    if (!(condition)) [[unlikely]]                                                 \
      throw ::tandem::EnvironmentError(::tandem::base::join_message(__VA_ARGS__)); \
  } while (false)
