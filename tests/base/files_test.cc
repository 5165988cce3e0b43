// Files: a named file is complete, a failure tells its reason, and nothing is left behind.
#include "base/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <system_error>

#include "base/file_calls.h"
#include "tandem/error.h"
#include "tests/base/faulty_disk.h"
#include "tests/base/temporary_directory.h"
#include "tests/base/thrown.h"

namespace tandem::base {
namespace {

namespace fs = std::filesystem;

#define EXPECT_ERROR(Error, part, ...)                                          \
  do {                                                                          \
    const std::string message = thrown_by<Error>([&] { __VA_ARGS__; });         \
    EXPECT_NE(message.find(part), std::string::npos) << "message: " << message; \
  } while (false)

// Runs `body` in a child process, since limits and user ids cannot be taken back. Returns true if `body` did.
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

// Limits the size of this process's files to `bytes`, which looks like a full disk from inside.
void limit_file_size(rlim_t bytes) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{bytes, bytes};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

// Opening a pipe waited for its other end for ever, through more than one SIGTERM; a socket was "no such device". The
// alarm ends a test that hangs.
TEST(Reading, RefusesWhatIsNoRegularFileAndNeverWaits) {
  const TemporaryDirectory directory;
  write_file_durably(directory / "a", "hello\n");
  EXPECT_EQ(read_file(directory / "a"), "hello\n");
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  ASSERT_EQ(::symlink("pipe", (directory / "link").c_str()), 0);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  (directory / "socket").copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::alarm(20);
  for (const std::string& path : {directory / "pipe", directory / "link", directory / "socket",
                                  std::string("/dev/null"), std::string("/dev/zero"), std::string("/dev/tty")}) {
    const std::string says = path + ": is no regular file (a pipe, a socket or a device); copy its content into one";
    EXPECT_ERROR(UserError, says, read_file(path));
    EXPECT_ERROR(UserError, says, ReadableFile{path});
  }
  EXPECT_ERROR(UserError, "is a directory, and a file is needed", read_file(directory.path()));
  ::alarm(0);
  ::close(socket);
}

TEST(CheckDirectory, TellsAFileFromAMissingDirectory) {
  const TemporaryDirectory directory;
  write_file_durably(directory / "a", "hello\n");
  check_directory(directory.path(), "--x", "give one");
  EXPECT_ERROR(UserError, "--x a: is a file, and a directory is needed; give one",
               check_directory(directory / "a", "--x a", "give one"));
  EXPECT_ERROR(UserError, "--x none: no such directory; give one",
               check_directory(directory / "none", "--x none", "give one"));
}

TEST(ReadFile, SaysWhatIsWrong) {
  const TemporaryDirectory directory;
  write_file_durably(directory / "a", "hello\n");
  EXPECT_ERROR(UserError, directory / "none: cannot open: No such file", read_file(directory / "none"));
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
        thrown_by<EnvironmentError>([&] { write_file_durably(directory / "a", std::string(5000, 'x')); });
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
      return thrown_by<EnvironmentError>(action).find("Permission denied; choose a directory") != std::string::npos;
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
    if (::geteuid() == 0 && ::setuid(65534) != 0) return false;  // root may search every folder
    const auto refused = [&](const std::function<void()>& action) {
      const std::string message = thrown_by(action);
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
    return !thrown_by<EnvironmentError>([&] { file.write_line("678901"); }).empty();
  }));
  EXPECT_EQ(read_file(directory / "a"), "12345\n");
  LineFile full("/dev/full", false);
  EXPECT_ERROR(EnvironmentError, "/dev/full: cannot write: No space left on device; free space", full.write_line("x"));
}

// A network file system that does not answer made every file "not there", and a run began anew over its checkpoints.
TEST(Files, ThatADiskCannotShowAreNotTakenForAbsent) {
  const TemporaryDirectory directory;
  make_directories(directory / "run");
  write_file_durably(directory / "run/a", "x");
  for (const int error : {EIO, ESTALE, ETIMEDOUT}) {
    UnreadablePaths disk("/run", error);
    const ReplacedFileCalls replaced(disk);
    const std::string said = ": cannot look at: " + std::generic_category().message(error) + "; the disk or";
    EXPECT_ERROR(EnvironmentError, directory / "run" + said, directory_exists(directory / "run"));
    EXPECT_ERROR(EnvironmentError, directory / "run/a" + said, file_exists(directory / "run/a"));
    EXPECT_ERROR(EnvironmentError, directory / "run/a" + said, read_file(directory / "run/a"));
  }
  EXPECT_FALSE(file_exists(directory / "run/none"));
  EXPECT_FALSE(file_exists(directory / "run/a/b"));
  EXPECT_FALSE(file_exists(directory / std::string(300, 'n')));
  fs::create_symlink("loop", directory / "loop");
  EXPECT_ERROR(UserError, "loop: cannot look at: Too many levels of symbolic links", file_exists(directory / "loop"));
}

TEST(Files, ThatADiskCannotReadAreTheMachinesFault) {
  const TemporaryDirectory directory;
  write_file_durably(directory / "a", "x");
  UnreadablePaths disk("/a", EIO);
  disk.only_reads_fail = true;
  const ReplacedFileCalls replaced(disk);
  EXPECT_ERROR(EnvironmentError, "a: cannot read: Input/output error; the disk or", read_file(directory / "a"));
  std::byte byte{};
  EXPECT_ERROR(EnvironmentError, "a: cannot read: Input/output error; the disk or",
               ReadableFile(directory / "a").read_at(0, {&byte, 1}));
}

// Another user of a shared folder planted links under every name that the probe could have, ".write-test-PID", and
// files of the user who started a run there were truncated. Random names cannot be planted, so here the disk itself
// puts a link under each name that is opened, as an attacker who guessed the name would.
class PlantedLinks : public FileCalls {
 public:
  explicit PlantedLinks(const std::string& victim, int num_planted) : victim_(victim), num_planted_(num_planted) {}
  int open(const char* path, int flags, mode_t mode) override {
    if ((flags & O_CREAT) != 0) {
      names_.insert(path);
      if (num_planted_-- > 0) {
        EXPECT_EQ(::symlink(victim_.c_str(), path), 0) << path;
      }
    }
    return FileCalls::open(path, flags, mode);
  }
  const std::set<std::string>& names() const { return names_; }

 private:
  std::string victim_;
  int num_planted_;
  std::set<std::string> names_;
};

TEST(Files, AreNeverWrittenThroughALinkThatIsPlanted) {
  const TemporaryDirectory shared, own;
  write_file_durably(own / "victim", "precious");
  PlantedLinks planted(own / "victim", 4);  // under the first names that are tried
  {
    const ReplacedFileCalls replaced(planted);
    check_writable_directory(shared.path(), 0);
    write_file_durably(shared / "a", "new");
  }
  EXPECT_EQ(read_file(own / "victim"), "precious");
  EXPECT_EQ(read_file(shared / "a"), "new");
  EXPECT_EQ(planted.names().size(), 6U) << "tries under other names";
  for (const std::string& name : planted.names()) {
    EXPECT_EQ(name.find(std::to_string(::getpid())), std::string::npos) << name << ": can be foreseen";
  }
  // Now a name that is ours alone, and a file of the run that a link has replaced.
  fs::create_symlink(own / "victim", shared / "link");
  EXPECT_ERROR(EnvironmentError, "link: cannot create: File exists",
               DurableFile(shared / "link", Durable::kWithDirectory));
  EXPECT_ERROR(EnvironmentError, "link: cannot open: Too many levels of symbolic links",
               truncate_durably(shared / "link", 0));
  EXPECT_ERROR(EnvironmentError, "link: cannot open: Too many levels of symbolic links", sync_durably(shared / "link"));
  fs::create_symlink(own / "made", shared / DirectoryLock::kName);
  EXPECT_ERROR(UserError, "lock: is a symbolic link", DirectoryLock(shared.path()));
  EXPECT_FALSE(file_exists(own / "made"));
  EXPECT_EQ(read_file(own / "victim"), "precious");
}

TEST(Files, OnlyTemporariesOfOursAreRemoved) {
  const TemporaryDirectory directory;
  const std::vector<std::string> others = {"model.tmp-1",           "notes.tmp-12-3",        "x.tmp-0123456789ABCDEF",
                                           "x.tmp-0123456789abcde", ".tmp-0123456789abcdef", "y.tmp-old"};
  for (const std::string& name : others) write_file_durably(directory / name, "mine");
  for (const std::string name : {"a.tmp-0123456789abcdef", "b.tmp-fedcba9876543210.old"})
    write_file_durably(directory / name, "");
  const auto draft = std::make_unique<DurableFile>(directory / "c");  // as a kill leaves it
  EXPECT_EQ(list_directory(directory.path()).size(), others.size() + 3);
  for (const std::string& name : list_directory(directory.path())) {
    if (name.starts_with("c.")) {
      EXPECT_EQ(name_without_temporary_mark(name), "c");
    }
  }
  remove_temporaries(directory.path());
  std::vector<std::string> sorted = others;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(list_directory(directory.path()), sorted);
}

TEST(CheckWritableDirectory, AsksForRoomAndLeavesNothing) {
  const TemporaryDirectory directory;
  check_writable_directory(directory.path(), 1);
  check_writable_directory(directory / "new/deeper/", 1);
  EXPECT_ERROR(EnvironmentError, "MiB are needed", check_writable_directory(directory.path(), int64_t{1} << 62));
  EXPECT_TRUE(in_child([&] {
    limit_file_size(0);
    return !thrown_by<EnvironmentError>([&] { check_writable_directory(directory.path(), 0); }).empty();
  }));
  EXPECT_TRUE(list_directory(directory.path()).empty()) << "something is left behind";
  EXPECT_ERROR(EnvironmentError, "/proc: cannot write", check_writable_directory("/proc/none/below", 0));
  write_file_durably(directory / "file", "");
  EXPECT_ERROR(UserError, "file: is a file, where " + directory.path() + "/file/below needs a directory; name another",
               check_writable_directory(directory / "file/below", 0));
}

TEST(CheckWritableDirectory, CountsWhatIsReplacedAsFree) {
  const TemporaryDirectory directory;
  constexpr int64_t kFar = int64_t{1} << 60;
  check_writable_directory(directory.path(), kFar, "", kFar);
  EXPECT_ERROR(EnvironmentError, " more once this run has replaced what is there; free space or write elsewhere",
               check_writable_directory(directory.path(), kFar, "", kFar / 2));
}

TEST(BytesFreedWith, AreThoseThatNothingElseHolds) {
  const TemporaryDirectory directory;
  const std::string tree = directory / "tree";
  constexpr int64_t kBytes = 1 << 20;
  make_directories(tree + "/deep");
  const int64_t empty = bytes_freed_with(tree, directory.path());
  write_file_durably(tree + "/deep/own", std::string(kBytes, 'x'));
  const int64_t with_own = bytes_freed_with(tree, directory.path());
  EXPECT_GE(with_own, empty + kBytes);
  EXPECT_LT(with_own, empty + 2 * kBytes);
  write_file_durably(directory / "shared", std::string(kBytes, 'x'));
  fs::create_hard_link(directory / "shared", tree + "/linked");
  fs::create_directory_symlink(directory.path(), tree + "/link");
  EXPECT_LT(bytes_freed_with(tree, directory.path()), with_own + kBytes / 2) << "both stay when the tree goes";
  EXPECT_LT(bytes_freed_with(tree + "/link", directory.path()), kBytes / 2);
  EXPECT_EQ(bytes_freed_with(tree, "/proc"), 0) << "another file system";
  EXPECT_EQ(bytes_freed_with(directory / "none", directory.path()), 0);
}

}  // namespace
}  // namespace tandem::base
