// Reward code reaches neither the network nor the environment's secrets, other processes or files outside its scratch
// folder. On a kernel without all layers these tests are skipped, and say what is missing.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/log.h"
#include "tandem/error.h"
#include "tests/base/thrown.h"
#include "tests/reward/grader_fixture.h"
#include "tests/worker/process_facts.h"

namespace tandem::reward {
namespace {

namespace fs = std::filesystem;

// Returns why this machine cannot show the whole sandbox; "" when it can.
const std::string& incomplete() {
  static const std::string reason = [] {
    GraderConfig config = rule("exact");
    config.limits.num_processes = 1;
    config.sandbox = worker::Sandbox::kRequire;
    return base::thrown_by<EnvironmentError>([&] { const Graders graders(config); });
  }();
  return reason;
}

class GraderSandbox : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    std::ofstream(file_) << "precious";
  }
  void TearDown() override { fs::remove_all(folder_); }

  Graders& graders() {
    if (graders_ == nullptr) {
      GraderConfig config = function("probes.py:score");
      config.sandbox = sandbox_;
      graders_ = std::make_unique<Graders>(config);
    }
    return *graders_;
  }
  Grade probe(const std::string& what) { return grade_one(graders(), request(++num_probes_, what)); }

  void expect_denied(const std::string& what) {
    const Grade grade = probe(what);
    EXPECT_TRUE(grade.failed) << what;
    EXPECT_EQ(grade.reason_class, "exception") << what << ": " << grade.reason;
    EXPECT_EQ(grade.reason.find("AssertionError"), std::string::npos) << what << ": " << grade.reason;
  }
  void expect_done(const std::string& what) {
    const Grade grade = probe(what);
    EXPECT_EQ(grade.reward, 1.0) << what << ": " << grade.reason;
  }

  worker::Sandbox sandbox_ = worker::Sandbox::kAuto;
  std::string folder_ = testing::TempDir() + "grader_sandbox_" + std::to_string(::getpid());
  std::string file_ = folder_ + "/precious";
  std::unique_ptr<Graders> graders_;
  uint64_t num_probes_ = 0;
};

#define SKIP_UNLESS_COMPLETE() \
  if (!incomplete().empty()) GTEST_SKIP() << incomplete()

TEST_F(GraderSandbox, ChangesNothingOutsideItsScratchFolder) {
  SKIP_UNLESS_COMPLETE();
  for (const char* way : {"write", "escape_by_link", "write_by_child", "remove", "rename", "truncate", "chmod", "touch",
                          "mkdir", "link_in"}) {
    expect_denied(way + ("=" + file_));
  }
  expect_denied("write=" + folder_ + "/new");
  EXPECT_NE(probe("write=" + file_).reason.find("--rm-sandbox off lifts that"), std::string::npos);
  expect_denied("kernel_setting");
  std::ifstream file(file_);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "precious");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1);
}

// multiprocessing keeps its locks in /dev/shm: graders have one of their own, of 64 MiB.
TEST_F(GraderSandbox, HasSharedMemoryOfItsOwn) {
  SKIP_UNLESS_COMPLETE();
  const std::string name = "/dev/shm/tandem_probe_" + std::to_string(::getpid());
  expect_done("write=" + name);
  EXPECT_FALSE(fs::exists(name));
  expect_denied("fill=" + name);
}

TEST_F(GraderSandbox, LeavesReadingAndTheScratchFolderAndLibraries) {
  for (const char* what : {"write_scratch", "locks", "numpy", "sympy", "subprocess", "write=/dev/null"})
    expect_done(what);
  expect_done("read=" + file_);
}

TEST_F(GraderSandbox, OpensNoConnection) {
  SKIP_UNLESS_COMPLETE();
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  expect_denied("tcp=" + std::to_string(ntohs(address.sin_port)));
  ::close(listener);
  const int unix_listener = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  const std::string path = folder_ + "/s";
  ASSERT_LT(path.size(), sizeof(name.sun_path));
  path.copy(name.sun_path, path.size());
  ASSERT_EQ(::bind(unix_listener, reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  ASSERT_EQ(::listen(unix_listener, 1), 0);
  expect_denied("unix_socket=" + path);
  ::close(unix_listener);
  for (const char* way : {"udp", "listen", "netlink", "vsock", "resolve"}) expect_denied(way);
}

// Starts a process whose number no process of a room has, so that the number can mean this one alone.
pid_t start_outsider() {
  constexpr pid_t kLargestOfARoom = 4096;
  while (true) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::pause();
      ::_exit(0);
    }
    if (child < 0 || child > kLargestOfARoom) return child;
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
  }
}

TEST_F(GraderSandbox, ReachesNoOtherProcess) {
  SKIP_UNLESS_COMPLETE();
  const pid_t outsider = start_outsider();
  ASSERT_GT(outsider, 0);
  expect_denied("signal=" + std::to_string(outsider));
  expect_denied("secret_of=" + std::to_string(outsider));
  EXPECT_EQ(::waitpid(outsider, nullptr, WNOHANG), 0) << "it was ended";
  ::kill(outsider, SIGKILL);
  ::waitpid(outsider, nullptr, 0);
}

TEST_F(GraderSandbox, SeesNoSecret) {
  for (const char* name : {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "WANDB_API_KEY", "SOME_PASSWORD"}) {
    ::setenv(name, "canary", 1);
  }
  for (const char* name : {"HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "WANDB_API_KEY", "SOME_PASSWORD"}) {
    EXPECT_NE(probe("secret=" + std::string(name)).reason.find("not in the environment"), std::string::npos) << name;
  }
  expect_done("secret=PATH");
}

TEST_F(GraderSandbox, HoldsItsLimits) {
  SKIP_UNLESS_COMPLETE();
  EXPECT_NE(probe("write_much").reason.find("No space left on device"), std::string::npos);
  EXPECT_NE(probe("open_many").reason.find("Too many open files"), std::string::npos);
  expect_denied("raise_limits");
  expect_denied("new_namespace");
}

TEST_F(GraderSandbox, OffMeansOnlyTheLimits) {
  sandbox_ = worker::Sandbox::kOff;
  ::setenv("OPENAI_API_KEY", "canary", 1);
  expect_done("secret=OPENAI_API_KEY");
  expect_done("write_scratch");
  expect_done("write=" + file_);
  EXPECT_NE(probe("open_many").reason.find("Too many open files"), std::string::npos);
}

TEST_F(GraderSandbox, ScratchFolderLivesAsLongAsTheGraders) {
  GraderConfig config = function("probes.py:folder");
  std::string folder;
  {
    Graders graders(config);
    folder = graders.scratch_folder();
    EXPECT_EQ(grade_one(graders, request(1, folder)).extras.at("below"), 1.0);
    EXPECT_EQ(grade_one(graders, request(1, folder)).extras.at("core"), 0.0);
    struct stat status = {};
    ASSERT_EQ(::stat(folder.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700U);
  }
  EXPECT_FALSE(fs::exists(folder));
}

// strange_sandbox stands for a kernel without Landlock.
TEST_F(GraderSandbox, SaysOnceWhatTheKernelLacks) {
  const int64_t warnings = base::num_warnings();
  GraderConfig config = rule("exact");
  config.worker.worker_directory = "tests/worker/strange_sandbox:python";
  config.limits.num_processes = 2;
  {
    Graders graders(config);
    EXPECT_EQ(grade_one(graders, request(1, "1", "1")).reward, 1.0);
  }
  EXPECT_EQ(base::num_warnings(), warnings + 1);
  config.sandbox = worker::Sandbox::kRequire;
  try {
    Graders graders(config);
    FAIL() << "was not refused";
  } catch (const EnvironmentError& error) {
    EXPECT_NE(std::string(error.what()).find("--rm-sandbox require: this machine cannot give Landlock"),
              std::string::npos)
        << error.what();
  }
  config.sandbox = worker::Sandbox::kOff;
  Graders graders(config);
  EXPECT_EQ(base::num_warnings(), warnings + 1);
}

}  // namespace
}  // namespace tandem::reward
