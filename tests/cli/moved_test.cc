// Checks that a clone that was moved, or a program that was copied with its folder, runs with what is next to it now.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tests/cli/tiny_run.h"
#include "text/text_worker.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

// Makes links if the file system can, and copies otherwise.
void put(const fs::path& from, const fs::path& to) {
  fs::create_directories(to.parent_path());
  std::error_code error;
  fs::create_hard_link(fs::canonical(from), to, error);
  if (error) fs::copy_file(from, to);
}

// Puts what a program needs of its clone in another place: .venv's libraries by a link, and its interpreter by a script
// that reports itself before it runs.
void move_clone(const fs::path& to, const fs::path& program) {
  put(TANDEM_PROGRAM, to / program);
  fs::create_directories(to / "python");
  fs::copy("python/tandem_worker", to / "python/tandem_worker", fs::copy_options::recursive);
  fs::create_directories(to / ".venv/bin");
  fs::create_directory_symlink(fs::canonical(".venv/lib"), to / ".venv/lib");
  const std::string python = worker::default_worker_config().python;
  base::write_file_durably((to / ".venv/bin/python").string(),
                           "#!/bin/sh\necho ran >> '" + (to / "ran").string() + "'\nexec '" + python + "' \"$@\"\n");
  fs::permissions(to / ".venv/bin/python", fs::perms::owner_all);
}

std::string output_of(const std::string& command, int& code) {
  const base::TemporaryDirectory folder;
  const int status = std::system((command + " > " + (folder / "out") + " 2>&1").c_str());
  code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return base::read_file(folder / "out");
}

// The test runs for a clone, and for a folder with the program itself, python and .venv.
TEST(Moved, ProgramRunsWithWhatLiesBesideItNow) {
  for (const char* program : {"build/dev/src/cli/tandem", "tandem"}) {
    const base::TemporaryDirectory folder;
    const fs::path clone = fs::path(folder.path()) / "elsewhere";
    move_clone(clone, program);
    const std::string moved = (clone / program).string();

    int code = 0;
    const std::string libraries = output_of("LD_TRACE_LOADED_OBJECTS=1 '" + moved + "'", code);
    for (const char* library : {"libtorch_cpu.so", "libc10.so", "libgomp.so.1"}) {
      const std::string found = std::string(library) + " => " + clone.string() + "/";
      EXPECT_NE(libraries.find(found), std::string::npos) << libraries;
    }
    const std::string generate = "'" + moved + "' generate --hf-checkpoint " + kModel + " --prompt-data '" + kPrompts +
                                 "@[0:1]' --rollout-max-response-len 4 --output -";
    const std::string completion = output_of(generate, code);
    EXPECT_EQ(code, 0) << completion;
    EXPECT_NE(completion.find("\"completions\""), std::string::npos) << completion;
    EXPECT_TRUE(fs::exists(clone / "ran")) << "another interpreter was taken";

    // The program also runs with its package of the workers.
    base::write_file_durably((clone / "python/tandem_worker/tokenizer.py").string(), "raise SystemExit('moved too')\n");
    const std::string failure = output_of(generate, code);
    EXPECT_EQ(code, 3);
    EXPECT_NE(failure.find("its last line: moved too"), std::string::npos) << failure;
  }
}

}  // namespace
}  // namespace tandem::cli
