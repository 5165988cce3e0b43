// Tests that processes of one user find each other by a name, and that nobody else is let in, reads the name's folder,
// or takes the name.
#include "mesh/local_socket.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "mesh/channel.h"
#include "tandem/error.h"
#include "tests/mesh/foreign_user.h"

namespace tandem::mesh {
namespace {

namespace fs = std::filesystem;

std::string own_name() { return fmt::format("test-{}", getpid()); }

// Returns the path of a name of this user.
std::string path_of(const std::string& name) {
  for (const auto& folder : fs::directory_iterator("/tmp")) {
    if (!folder.path().filename().string().starts_with(fmt::format("tandem-{}-", geteuid()))) continue;
    std::error_code none;
    if (fs::exists(folder.path() / name, none)) return folder.path() / name;
  }
  return "";
}

std::string connect_by_path(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  const OwnedDescriptor socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  return connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? "connected"
                                                                                                 : std::strerror(errno);
}

TEST(LocalSocket, ANameIsOneListenersAndGoesWithIt) {
  const std::string name = own_name();
  EXPECT_FALSE(connect_locally(name).has_value());
  {
    const LocalListener listener(name, "wait");
    try {
      const LocalListener second(name, "wait until it has ended");
      ADD_FAILURE() << "two listen under one name";
    } catch (const EnvironmentError& error) {
      EXPECT_THAT(error.what(),
                  testing::EndsWith(name + ": another process listens there already; wait until it has ended"));
    }
    try {
      const LocalListener second(name, "wait", "--listen teacher");
      ADD_FAILURE() << "two listen under one name";
    } catch (const EnvironmentError& error) {
      EXPECT_STREQ(error.what(), "--listen teacher: another process listens there already; wait");
    }
    EXPECT_FALSE(listener.accept().has_value());
    std::optional<OwnedDescriptor> here = connect_locally(name);
    std::optional<OwnedDescriptor> there = listener.accept();
    ASSERT_TRUE(here && there);
    Channel a(std::move(*here), 5.0), b(std::move(*there), 5.0);
    a.send("hello");
    EXPECT_EQ(b.receive(5.0), "hello");
  }
  EXPECT_FALSE(connect_locally(name).has_value());
  EXPECT_EQ(path_of(name), "");
}

// The killed process's socket stays, and is in nobody's way.
TEST(LocalSocket, WhatAKilledProcessLeavesIsRemoved) {
  const std::string name = own_name();
  const pid_t child = fork();
  if (child == 0) {
    const LocalListener listener(name, "wait");
    raise(SIGKILL);
  }
  waitpid(child, nullptr, 0);
  EXPECT_NE(path_of(name), "");
  EXPECT_FALSE(connect_locally(name).has_value());
  { const LocalListener other(name + "-other", "wait"); }
  EXPECT_EQ(path_of(name), "");
  const LocalListener listener(name, "wait");
  EXPECT_TRUE(connect_locally(name).has_value());
}

TEST(LocalSocket, IsInAFolderOfItsUserAlone) {
  const LocalListener listener(own_name(), "wait");
  struct stat facts = {};
  ASSERT_EQ(stat(fs::path(path_of(own_name())).parent_path().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_uid, geteuid());
  EXPECT_EQ(facts.st_mode & 0777U, 0700U);
}

TEST(LocalSocket, AnotherUserNeitherConnectsNorReadsTheFolder) {
  if (!why_no_foreign_user().empty()) GTEST_SKIP() << why_no_foreign_user();
  const std::string name = own_name();
  const LocalListener listener(name, "wait");
  const std::string path = path_of(name), folder = fs::path(path).parent_path();
  EXPECT_EQ(connect_by_path(path), "connected");
  EXPECT_TRUE(listener.accept().has_value());
  EXPECT_EQ(as_foreign_user([&] { return connect_by_path(path); }), std::strerror(EACCES));
  const auto see = [&] {
    std::error_code error;
    const fs::directory_iterator entries(folder, error);
    return error.message();
  };
  EXPECT_EQ(as_foreign_user(see), std::strerror(EACCES));
  // A process that could open the folder is refused all the same.
  ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  ASSERT_EQ(chmod(path.c_str(), 0777), 0);
  EXPECT_EQ(as_foreign_user([&] { return connect_by_path(path); }), "connected");
  EXPECT_FALSE(listener.accept().has_value());
  EXPECT_FALSE(connect_locally(name).has_value()) << "a folder that others may enter is not believed";
  ASSERT_EQ(chmod(folder.c_str(), 0700), 0);
}

// Another user makes folders of our name, and listens in them.
TEST(LocalSocket, AnotherUserCannotTakeTheName) {
  if (!why_no_foreign_user().empty()) GTEST_SKIP() << why_no_foreign_user();
  const std::string name = own_name(), squatted = fmt::format("/tmp/tandem-{}-squat", geteuid());
  const auto squat = [&] {
    std::error_code error;
    fs::create_directory(squatted, error);
    fs::permissions(squatted, fs::perms::owner_all, error);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    const std::string path = squatted + "/" + name;
    std::memcpy(address.sun_path, path.data(), path.size());
    const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);  // socket of this process, until it ends
    if (bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || listen(socket, 5) != 0)
      return std::string(std::strerror(errno));
    if (fork() == 0) {
      sleep(2);
      _exit(0);
    }
    return std::string("listens");
  };
  ASSERT_EQ(as_foreign_user(squat), "listens");
  EXPECT_FALSE(connect_locally(name).has_value());
  {
    const LocalListener listener(name, "wait");
    EXPECT_TRUE(connect_locally(name).has_value());
    EXPECT_TRUE(listener.accept().has_value());
  }
  fs::remove_all(squatted);
}

}  // namespace
}  // namespace tandem::mesh
