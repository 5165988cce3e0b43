#include "worker/spawn.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/program_folder.h"

extern char** environ;

namespace tandem::worker {
namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// A process that was started, or why there is none.
struct Started {
  pid_t pid = -1;
  int error = 0;  // errno's; 0: it runs
};

// posix_spawn shares the parent's memory until exec, so its cost does not grow with the trainer, as that of fork would.
Started start(const std::vector<int>& child_fds, std::vector<std::string>& arguments,
              std::vector<std::string>& environment) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  TANDEM_ENV_CHECK(posix_spawn_file_actions_init(&actions) == 0 && posix_spawnattr_init(&attributes) == 0,
                   "cannot start a process: out of memory");
  int error = 0;
  for (size_t target = 0; target < child_fds.size() && error == 0; ++target) {
    error = posix_spawn_file_actions_adddup2(&actions, child_fds[target], static_cast<int>(target));
  }
  if (error == 0) error = posix_spawn_file_actions_addclosefrom_np(&actions, static_cast<int>(child_fds.size()));
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  pid_t pid = -1;
  if (error == 0) {
    error = posix_spawnp(&pid, arguments[0].c_str(), &actions, &attributes, pointers(arguments).data(),
                         pointers(environment).data());
  }
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return {.pid = pid, .error = error};
}

}  // namespace

pid_t spawn(const std::vector<int>& child_fds, std::vector<std::string> arguments, std::vector<std::string> environment,
            const std::string& python_flag) {
  const auto [pid, error] = start(child_fds, arguments, environment);
  TANDEM_USER_CHECK(error == 0 || python_flag.empty(), fmt::format("{} {}: {}; name a Python interpreter, 3.9 or newer",
                                                                   python_flag, arguments[0], std::strerror(error)));
  TANDEM_ENV_CHECK(error == 0,
                   fmt::format("cannot start the Python interpreter {}: {}; run `make setup`, or name another one",
                               arguments[0], std::strerror(error)));
  return pid;
}

pid_t spawn_tandem(std::vector<std::string> words, int output) {
  words.insert(words.begin(), base::program_folder() + "/tandem");
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.emplace_back(*entry);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const auto [pid, error] = start({nothing, output, output}, words, environment);
  close(nothing);
  TANDEM_ENV_CHECK(error == 0, fmt::format("cannot start {}: {}; put the program tandem of the same build there",
                                           words[0], std::strerror(error)));
  return pid;
}

std::string describe_exit(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was killed by signal {}", WTERMSIG(status));
  return fmt::format("exited with code {}", WEXITSTATUS(status));
}

}  // namespace tandem::worker
