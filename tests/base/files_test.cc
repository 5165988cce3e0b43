// Files: what is named is complete, what fails says why, and nothing is left behind.
#include "base/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <thread>

#include "tandem/error.h"
#include "tests/base/temporary_directory.h"

namespace tandem::base {
namespace {

template <typename Error>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

#define EXPECT_ERROR(Error, part, ...)                                          \
  do {                                                                          \
    const std::string message = message_of<Error>([&] { __VA_ARGS__; });        \
    EXPECT_NE(message.find(part), std::string::npos) << "message: " << message; \
  } while (false)

// Runs `body` in a child process, since limits and user ids cannot be taken back. True when it returned true.
bool in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    bool good = false;
    try {
      good = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
    }
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Files of this process may not grow beyond `bytes`: what a full disk looks like from inside.
void limit_file_size(rlim_t bytes) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

TEST(ReadFile, ReadsFilesAndPipes) {
  const TemporaryDirectory directory;
  write_file_durably(directory / "a", "hello\n");
  EXPECT_EQ(read_file(directory / "a"), "hello\n");
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(directory / "pipe") << "through\n"; });  // waits for a reader
  EXPECT_EQ(read_file(directory / "pipe"), "through\n");
  writer.join();
}

TEST(ReadFile, SaysWhatIsWrong) {
  const TemporaryDirectory directory;
  write_file_durably(directory / "a", "hello\n");
  EXPECT_ERROR(UserError, directory / "none: cannot open: No such file", read_file(directory / "none"));
  EXPECT_ERROR(UserError, "Is a directory", read_file(directory.path()));
  EXPECT_ERROR(UserError, "larger than 5 bytes", read_file(directory / "a", 5));
  EXPECT_EQ(read_file(directory / "a", 6).size(), 6U);
}

TEST(ReadableFile, ReadsRangesAndRefusesToReadPastTheEnd) {
  const TemporaryDirectory directory;
  write_file_durably(directory / "a", "0123456789");
  ReadableFile file(directory / "a");
  EXPECT_EQ(file.size(), 10);
  std::string text(4, ' ');
  const auto buffer = std::as_writable_bytes(std::span(text));
  file.read_at(3, buffer);
  EXPECT_EQ(text, "3456");
  const ReadableFile moved(std::move(file));
  moved.read_at(6, buffer);
  EXPECT_EQ(text, "6789");
  EXPECT_ERROR(UserError, "ends at byte 10 but 1 more bytes are needed", moved.read_at(7, buffer));
  EXPECT_ERROR(UserError, "is a directory", ReadableFile(directory.path()));
  EXPECT_ERROR(UserError, "no regular file", ReadableFile("/dev/null"));
}

TEST(MakeDirectories, MakesParentsAndAcceptsWhatIsThere) {
  const TemporaryDirectory directory;
  make_directories(directory / "a/b/c/");
  make_directories(directory / "a/b/c");
  EXPECT_TRUE(directory_exists(directory / "a/b/c"));
  EXPECT_FALSE(file_exists(directory / "a/b/c"));
  write_file_durably(directory / "a/file", "");
  EXPECT_TRUE(file_exists(directory / "a/file"));
  EXPECT_ERROR(EnvironmentError, "Not a directory", make_directories(directory / "a/file/b"));
  EXPECT_ERROR(EnvironmentError, "file: cannot make the directory: Not a directory",
               make_directories(directory / "a/file"));
  EXPECT_EQ(list_directory(directory / "a"), (std::vector<std::string>{"b", "file"}));
  EXPECT_ERROR(UserError, "No such file", list_directory(directory / "none"));
}

TEST(DurableFile, AppearsOnlyWhenCommitted) {
  const TemporaryDirectory directory;
  write_file_durably(directory / "a", "old");
  {
    DurableFile file(directory / "a");
    file.write("new");
    EXPECT_EQ(read_file(directory / "a"), "old");
  }
  EXPECT_EQ(read_file(directory / "a"), "old");
  EXPECT_EQ(list_directory(directory.path()).size(), 1U) << "the temporary is left behind";
  {
    DurableFile file(directory / "a");
    file.write("ne");
    file.write("w");
    file.commit();
    EXPECT_THROW(file.write("more"), BugError);
    EXPECT_THROW(file.commit(), BugError);
  }
  EXPECT_EQ(read_file(directory / "a"), "new");
  EXPECT_EQ(list_directory(directory.path()).size(), 1U);
}

TEST(DurableFile, LeavesTheOldFileWhenTheDiskIsFull) {
  const TemporaryDirectory directory;
  write_file_durably(directory / "a", "old");
  EXPECT_TRUE(in_child([&] {
    limit_file_size(1000);
    const std::string message =
        message_of<EnvironmentError>([&] { write_file_durably(directory / "a", std::string(5000, 'x')); });
    return message.find(directory / "a: cannot write: File too large") == 0;
  }));
  EXPECT_EQ(read_file(directory / "a"), "old");
  EXPECT_EQ(list_directory(directory.path()).size(), 1U);
}

TEST(DurableFile, SaysWhyItCannotBeMade) {
  const TemporaryDirectory directory;
  EXPECT_ERROR(EnvironmentError, "none/a: cannot create: No such file", DurableFile(directory / "none/a"));
  make_directories(directory / "d/full");
  DurableFile file(directory / "d");
  EXPECT_ERROR(EnvironmentError, "put the finished file in place", file.commit());
  EXPECT_EQ(list_directory(directory.path()).size(), 1U);
}

TEST(DurableFile, RefusesAReadOnlyDirectory) {
  const TemporaryDirectory directory;
  EXPECT_EQ(::chmod(directory.path().c_str(), 0555), 0);
  EXPECT_TRUE(in_child([&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) return false;  // root may write anywhere
    const auto refused = [&](const std::function<void()>& action) {
      return message_of<EnvironmentError>(action).find("Permission denied; choose a directory") != std::string::npos;
    };
    return refused([&] { write_file_durably(directory / "a", ""); }) &&
           refused([&] { make_directories(directory / "b"); }) &&
           refused([&] { check_writable_directory(directory.path(), 0); }) &&
           refused([&] { LineFile(directory / "c", true); }) &&
           refused([&] { DurableDirectory(directory / "d", false); });
  }));
  ::chmod(directory.path().c_str(), 0755);
}

TEST(Files, NobodySaysNoSuchFileOfWhatHeMayNotLookAt) {
  const TemporaryDirectory directory;
  make_directories(directory / "closed/model");
  EXPECT_EQ(::chmod((directory / "closed").c_str(), 0), 0);
  EXPECT_TRUE(in_child([&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) return false;  // root may look everywhere
    const auto refused = [&](const std::function<void()>& action) {
      const std::string message = message_of<UserError>(action);
      return message.find("Permission denied; you need the right to read it and to search the folders above it") !=
             std::string::npos;
    };
    return refused([&] { directory_exists(directory / "closed/model"); }) &&
           refused([&] { file_exists(directory / "closed/model/config.json"); }) &&
           refused([&] { read_file(directory / "closed/model/config.json"); });
  }));
  EXPECT_EQ(::chmod((directory / "closed").c_str(), 0755), 0);
  EXPECT_TRUE(directory_exists(directory / "closed/model"));
  EXPECT_FALSE(file_exists(directory / "closed/model/config.json"));
}

TEST(DurableDirectory, AppearsWholeOrNotAtAll) {
  const TemporaryDirectory directory;
  {
    const DurableDirectory draft(directory / "x", false);
    write_file_durably(draft.path() + "/a", "1");
  }
  EXPECT_TRUE(list_directory(directory.path()).empty());
  DurableDirectory draft(directory / "x/", false);
  make_directories(draft.path() + "/sub");
  write_file_durably(draft.path() + "/sub/a", "1");
  EXPECT_FALSE(directory_exists(directory / "x"));
  draft.commit();
  EXPECT_EQ(read_file(directory / "x/sub/a"), "1");
  EXPECT_EQ(list_directory(directory.path()), std::vector<std::string>{"x"});
}

TEST(DurableDirectory, ReplacesOnlyWhenTold) {
  const TemporaryDirectory directory;
  make_directories(directory / "x");
  {
    DurableDirectory draft(directory / "x", false);  // empty: nothing is lost
    write_file_durably(draft.path() + "/old", "1");
    draft.commit();
  }
  EXPECT_ERROR(UserError, "exists and is not empty", DurableDirectory(directory / "x", false));
  DurableDirectory draft(directory / "x", true);
  write_file_durably(draft.path() + "/new", "2");
  EXPECT_TRUE(file_exists(directory / "x/old"));
  draft.commit();
  EXPECT_EQ(list_directory(directory / "x"), std::vector<std::string>{"new"});
  EXPECT_EQ(list_directory(directory.path()), std::vector<std::string>{"x"});
  write_file_durably(directory / "file", "");
  EXPECT_ERROR(UserError, "is a file", DurableDirectory(directory / "file", true));
}

TEST(LineFile, AppendsOrStartsAnew) {
  const TemporaryDirectory directory;
  LineFile(directory / "a", false).write_line("one");
  LineFile(directory / "a", false).write_line("two");
  EXPECT_EQ(read_file(directory / "a"), "one\ntwo\n");
  LineFile file(directory / "a", true);
  file.write_line("three");
  file.sync();
  EXPECT_EQ(read_file(directory / "a"), "three\n");
}

TEST(LineFile, EndsHalfALineThatWasLeft) {
  const TemporaryDirectory directory;
  write_file_durably(directory / "a", "whole\nhal");
  LineFile(directory / "a", false).write_line("next");
  EXPECT_EQ(read_file(directory / "a"), "whole\nhal\nnext\n");
}

TEST(LineFile, LeavesNoHalfLineWhenTheDiskIsFull) {
  const TemporaryDirectory directory;
  EXPECT_TRUE(in_child([&] {
    limit_file_size(10);
    LineFile file(directory / "a", true);
    file.write_line("12345");
    return !message_of<EnvironmentError>([&] { file.write_line("678901"); }).empty();
  }));
  EXPECT_EQ(read_file(directory / "a"), "12345\n");
  LineFile full("/dev/full", false);
  EXPECT_ERROR(EnvironmentError, "/dev/full: cannot write: No space left on device; free space", full.write_line("x"));
}

TEST(CheckWritableDirectory, AsksForRoomAndLeavesNothing) {
  const TemporaryDirectory directory;
  check_writable_directory(directory.path(), 1);
  check_writable_directory(directory / "new/deeper/", 1);
  EXPECT_ERROR(EnvironmentError, "MiB are needed", check_writable_directory(directory.path(), int64_t{1} << 62));
  EXPECT_TRUE(in_child([&] {
    limit_file_size(0);
    return !message_of<EnvironmentError>([&] { check_writable_directory(directory.path(), 0); }).empty();
  }));
  EXPECT_TRUE(list_directory(directory.path()).empty()) << "something is left behind";
  EXPECT_ERROR(EnvironmentError, "/proc: cannot write", check_writable_directory("/proc/none/below", 0));
  write_file_durably(directory / "file", "");
  EXPECT_ERROR(EnvironmentError, "Not a directory", check_writable_directory(directory / "file/below", 0));
}

}  // namespace
}  // namespace tandem::base
