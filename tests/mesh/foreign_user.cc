#include "tests/mesh/foreign_user.h"

#include <grp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>

namespace tandem::mesh {

std::string why_no_foreign_user() {
  return geteuid() == 0 ? "" : "root alone can become another user, and this process is not root's";
}

void become_foreign_user() {
  const bool has_become = setgroups(0, nullptr) == 0 && setresgid(kForeignUser, kForeignUser, kForeignUser) == 0 &&
                          setresuid(kForeignUser, kForeignUser, kForeignUser) == 0;
  if (!has_become) _exit(98);
}

int enter_local_sockets_of(unsigned user, int process) {
  const std::string folders = "/tmp/tandem-" + std::to_string(user) + "-";
  int num_tried = 0;
  const std::string watched = "/proc/" + std::to_string(process) + "/stat";
  for (std::string state; std::getline(std::ifstream(watched), state) && state.find(") Z") == std::string::npos;) {
    std::ifstream table("/proc/net/unix");  // every user reads it
    for (std::string line; std::getline(table, line);) {
      const size_t at = line.find(folders);
      if (at == std::string::npos) continue;
      const std::string path = line.substr(at);
      sockaddr_un address = {};
      address.sun_family = AF_UNIX;
      std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof address.sun_path));
      const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
      const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
      const bool is_in = connect(socket, reinterpret_cast<const sockaddr*>(&address), size) == 0;
      close(socket);
      if (is_in) return 101;
      ++num_tried;
    }
    usleep(20'000);
  }
  return num_tried == 0 ? 100 : 0;
}

std::string as_foreign_user(const std::function<std::string()>& work) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    become_foreign_user();
    std::string said;
    try {
      said = work();
    } catch (const std::exception& error) {
      said = error.what();
    }
    [[maybe_unused]] const ssize_t written = write(ends[1], said.data(), said.size());
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t size = 0; (size = read(ends[0], buffer, sizeof buffer)) > 0;) {
    said.append(buffer, static_cast<size_t>(size));
  }
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return said;
}

}  // namespace tandem::mesh
