// The program itself in a child process, whose path the build gives (TANDEM_PROGRAM).
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace tandem::cli {

class Program {
 public:
  // What it prints is thrown away. `environment`: variables set besides ours.
  explicit Program(const std::vector<std::string>& arguments,
                   const std::map<std::string, std::string>& environment = {}) {
    pid_ = fork();
    if (pid_ != 0) return;
    std::freopen("/dev/null", "w", stdout);
    std::freopen("/dev/null", "w", stderr);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> words = {const_cast<char*>(TANDEM_PROGRAM)};
    for (const std::string& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
    words.push_back(nullptr);
    execv(words[0], words.data());
    _exit(127);
  }
  pid_t pid() const { return pid_; }
  void signal(int number) const { kill(pid_, number); }
  int wait() const {
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace tandem::cli
