// Sockets by which the processes of one user find each other on a machine. They are files in a folder of that user
// alone, /tmp/tandem-UID-XXXXXX with mode 0700, so nobody else reaches them or takes their names beforehand; and the
// kernel says of each connection whose process is at its other end. No torch.
#pragma once

#include <optional>
#include <string>

#include "mesh/network.h"

namespace tandem::mesh {

// Listens, until it is destroyed, under a name of at most 64 letters, digits and '-'.
class LocalListener {
 public:
  // Removes sockets that killed processes have left in the folder. Throws EnvironmentError if a process of this user
  // listens under this name: its line begins with `shown`, by which the user knows the place ("": the socket's path),
  // and ends with `remedy`. Throws it too if there is no such folder and it cannot be made.
  LocalListener(const std::string& name, const std::string& remedy, const std::string& shown = "");
  ~LocalListener();
  LocalListener(const LocalListener&) = delete;
  LocalListener& operator=(const LocalListener&) = delete;

  // Returns the next process of this user that has connected, if there is one. It does not wait.
  std::optional<OwnedDescriptor> accept() const;
  int descriptor() const { return socket_.get(); }  // descriptor to poll

 private:
  std::string path_;
  OwnedDescriptor socket_;
};

// Returns a text that two processes have in common if each finds the sockets of the other: processes of one user on one
// machine that see the same folder, which containers may not.
std::string local_place();

// Returns nullopt if no process of this user listens under this name.
std::optional<OwnedDescriptor> connect_locally(const std::string& name);

}  // namespace tandem::mesh
