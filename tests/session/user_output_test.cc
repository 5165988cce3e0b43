// Checks that the output of reward code is kept where a rollout worker can write, and that the user is told where.
#include "session/user_output.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/base/temporary_directory.h"

namespace tandem::session {
namespace {

TEST(UserOutput, IsTheRunsFileWhereItCanBeSeen) {
  const base::TemporaryDirectory folder;
  testing::internal::CaptureStderr();
  EXPECT_EQ(user_output_file(folder / "grader_output.txt"), folder / "grader_output.txt");
  EXPECT_EQ(user_output_file(""), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(UserOutput, IsBesideTheProcessOnAnotherMachine) {
  const std::string own = std::filesystem::current_path() / "grader_output.txt";
  testing::internal::CaptureStderr();
  EXPECT_EQ(user_output_file("/of/the/run/grader_output.txt"), own);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "warning: /of/the/run: is not to be seen on this machine; what "
            "reward code prints goes to " +
                own + "\n");
}

}  // namespace
}  // namespace tandem::session
