// tests/reward/reward_service.py, a program that computes rewards, as a child of the test.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

namespace tandem::reward {

class ServiceProcess {
 public:
  // `python`: an interpreter of at least 3.9.
  explicit ServiceProcess(const std::string& python) {
    int from[2], to[2];
    EXPECT_EQ(pipe(from), 0);
    EXPECT_EQ(pipe(to), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(to[0], 0);
      dup2(from[1], 1);
      for (const int descriptor : {from[0], from[1], to[0], to[1]}) close(descriptor);
      execl(python.c_str(), python.c_str(), "-B", "tests/reward/reward_service.py", nullptr);
      _exit(127);
    }
    close(from[1]);
    close(to[0]);
    stdin_ = to[1];
    std::FILE* const lines = fdopen(from[0], "r");
    EXPECT_EQ(std::fscanf(lines, "%d", &port_), 1);
    std::fclose(lines);
  }
  ~ServiceProcess() { stop(); }
  ServiceProcess(const ServiceProcess&) = delete;
  ServiceProcess& operator=(const ServiceProcess&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/reward?key=a-secret"; }
  std::string address() const { return "http://127.0.0.1:" + std::to_string(port_) + "/reward"; }
  void stop() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(stdin_);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  int stdin_ = -1, port_ = 0;
};

}  // namespace tandem::reward
