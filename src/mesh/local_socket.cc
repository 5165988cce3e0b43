#include "mesh/local_socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/check.h"
#include "mesh/hosts.h"

namespace tandem::mesh {

namespace {

// TMPDIR is not used, because two processes of a user may have different ones.
constexpr const char* kParent = "/tmp";
constexpr mode_t kOwnersAlone = 0700;

std::string beginning_of_folders() { return fmt::format("tandem-{}-", geteuid()); }

// A folder of that name may be anybody's.
bool is_own(const std::string& folder) {
  struct stat facts = {};
  return lstat(folder.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode) && facts.st_uid == geteuid() &&
         (facts.st_mode & 0777) == kOwnersAlone;
}

// There is one, unless two processes made the first at the same time.
std::vector<std::string> own_folders() {
  std::vector<std::string> folders;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(kParent, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->path().filename().string().starts_with(beginning_of_folders())) continue;
    if (is_own(entry->path().string())) folders.push_back(entry->path().string());
  }
  return folders;
}

std::string own_folder() {
  if (const std::vector<std::string> folders = own_folders(); !folders.empty()) return folders.front();
  std::string folder = fmt::format("{}/{}XXXXXX", kParent, beginning_of_folders());
  TANDEM_ENV_CHECK(mkdtemp(folder.data()) != nullptr,
                   fmt::format("{}: no folder for the sockets of a run can be made: {}; let this user write there",
                               kParent, std::strerror(errno)));
  return folder;
}

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  TANDEM_CHECK(path.size() < sizeof address.sun_path, "the name of a local socket is too long:", path);
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

OwnedDescriptor local_socket(int type) {
  OwnedDescriptor result(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
  TANDEM_ENV_CHECK(result.get() >= 0, fmt::format("cannot open a socket: {}", std::strerror(errno)));
  return result;
}

bool is_own_users(int socket) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

int connect_at(const OwnedDescriptor& socket, const std::string& path) {
  const sockaddr_un address = address_of(path);
  return connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0 : errno;
}

// Removes the sockets of a process that was killed: no process has one there any more. A socket of datagrams asks
// without connecting: if a process listens, it is refused for its type.
void remove_stale(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string path = entry->path().string();
    if (connect_at(local_socket(SOCK_DGRAM), path) == ECONNREFUSED) unlink(path.c_str());
  }
}

}  // namespace

LocalListener::LocalListener(const std::string& name, const std::string& remedy, const std::string& shown)
    : socket_(local_socket(SOCK_STREAM | SOCK_NONBLOCK)) {
  const std::string folder = own_folder();
  // A socket that has its name and does not listen yet looks like one that nobody has any more.
  const OwnedDescriptor lock(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  while (flock(lock.get(), LOCK_EX) != 0 && errno == EINTR) {
  }
  remove_stale(folder);
  const std::string path = folder + "/" + name;
  const sockaddr_un address = address_of(path);
  const bool is_bound = bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  TANDEM_ENV_CHECK(is_bound || errno != EADDRINUSE,
                   fmt::format("{}: another process listens there already; {}", shown.empty() ? path : shown, remedy));
  TANDEM_ENV_CHECK(is_bound && listen(socket_.get(), SOMAXCONN) == 0,
                   fmt::format("{}: cannot listen there: {}", path, std::strerror(errno)));
  path_ = path;
}

LocalListener::~LocalListener() { unlink(path_.c_str()); }

std::optional<OwnedDescriptor> LocalListener::accept() const {
  while (true) {
    OwnedDescriptor peer(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (peer.get() < 0) return std::nullopt;
    if (is_own_users(peer.get())) return peer;
  }
}

std::string local_place() {
  struct stat facts = {};
  TANDEM_ENV_CHECK(stat(kParent, &facts) == 0, fmt::format("{}: {}", kParent, std::strerror(errno)));
  return fmt::format("{} {}:{} {}", geteuid(), facts.st_dev, facts.st_ino, machine_id());
}

std::optional<OwnedDescriptor> connect_locally(const std::string& name) {
  for (const std::string& folder : own_folders()) {
    OwnedDescriptor result = local_socket(SOCK_STREAM);
    if (connect_at(result, folder + "/" + name) == 0 && is_own_users(result.get())) return result;
  }
  return std::nullopt;
}

}  // namespace tandem::mesh
