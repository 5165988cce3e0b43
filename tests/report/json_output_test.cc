// Records go to a file or to standard output, and a place that cannot be written is refused before any work.
#include "report/json_output.h"

#include <gtest/gtest.h>

#include <string>

#include "base/files.h"
#include "tandem/error.h"
#include "tests/base/temporary_directory.h"

namespace tandem::report {
namespace {

TEST(JsonOutput, ReplacesTheFile) {
  const base::TemporaryDirectory folder;
  base::write_file_durably(folder / "out.jsonl", "an older file with more in it than the new one has\n");
  JsonOutput output(folder / "out.jsonl");
  output.write({{"id", 1}});
  output.write({{"text", "a\nb"}});
  output.finish();
  EXPECT_EQ(base::read_file(folder / "out.jsonl"), "{\"id\":1}\n{\"text\":\"a\\nb\"}\n");
}

TEST(JsonOutput, StandardOutputThatIsNoTerminalGetsTheTextAsItIs) {
  testing::internal::CaptureStdout();
  JsonOutput output("-");
  output.write({{"text", "\u202E"}});
  output.finish();
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "{\"text\":\"\u202E\"}\n");
}

TEST(JsonOutput, WhatCannotBeWrittenIsRefused) {
  const base::TemporaryDirectory folder;
  check_output("");
  check_output("-");
  check_output(folder / "out.jsonl");
  EXPECT_FALSE(base::file_exists(folder / "out.jsonl")) << "asking leaves nothing behind";
  base::write_file_durably(folder / "file", "");
  EXPECT_THROW(check_output(folder / "file/out.jsonl"), UserError);
  EXPECT_THROW(JsonOutput(folder / "file/out.jsonl"), EnvironmentError);
  EXPECT_THROW(check_output(folder.path()), UserError);
}

}  // namespace
}  // namespace tandem::report
