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

// As thrown_by(); the message must have one line, and a missing error fails the test.
template <typename Error = UserError, typename Act>
std::string refusal_of(const Act& act) {
  try {
    act();
  } catch (const Error& error) {
    std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  ADD_FAILURE() << "no error of that type was thrown";
  return "";
}

}  // namespace tandem::base
