// What user code prints is kept up to a limit, at which the file and a warning say so.
#include "worker/output_file.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/files.h"
#include "base/log.h"
#include "tests/base/temporary_directory.h"

namespace tandem::worker {
namespace {

TEST(OutputFiles, SayOnceThatTheirLimitIsReached) {
  const base::TemporaryDirectory folder;
  const std::string path = folder / "grader_output.txt";
  std::vector<std::string> warnings;
  base::set_log_sink([&](base::LogLevel level, const std::string& line) {
    if (level == base::LogLevel::kWarning) warnings.push_back(line);
  });
  {
    OutputFile file(path, 1010);
    file.write(std::string(1000, 'x'));
    EXPECT_TRUE(warnings.empty());
    file.write("a traceback of which ten bytes are kept");
    file.write("later");
    file.write("and later");
  }
  base::set_log_sink({});
  EXPECT_EQ(base::read_file(path),
            std::string(1000, 'x') + "a tracebac\n[the limit of this file is reached; later output is dropped]\n");
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_TRUE(warnings[0].ends_with(
      path +
      ": your functions have printed 1,010 bytes into it, which is the limit, so what they print from now on is "
      "dropped, and tracebacks of failures with it: let them print less"))
      << warnings[0];
}

TEST(OutputFiles, WithoutAPathKeepAndSayNothing) {
  int num_lines = 0;
  base::set_log_sink([&](base::LogLevel, const std::string&) { ++num_lines; });
  OutputFile file("", 4);
  file.write("more than four bytes");
  base::set_log_sink({});
  EXPECT_EQ(num_lines, 0);
}

}  // namespace
}  // namespace tandem::worker
