// Returns the message of the error that a call throws, for tests that compare it.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tandem/error.h"

namespace tandem::base {

// Returns the message of the Error that `act` throws; `none` if it throws none. Other exceptions pass.
template <typename Error = UserError, typename Act>
std::string thrown_by(const Act& act, std::string none = "") {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return none;
}

// Returns the message of the Error that `act` has to throw, in one line: the test fails if it throws none.
template <typename Error = UserError, typename Act>
std::string refusal_of(const Act& act) {
  const std::string none = "no error of that type was thrown";
  const std::string message = thrown_by<Error>(act, none);
  EXPECT_NE(message, none);
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

}  // namespace tandem::base
