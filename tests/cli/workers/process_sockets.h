// Lists the internet sockets that a process and its descendants hold open, as /proc shows them.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/worker/process_facts.h"

namespace tandem::cli {

struct InternetSocket {
  std::string protocol;  // tcp, tcp6, udp, udp6
  std::string address;   // local one in hexadecimal, as the kernel writes it: bytes of 32-bit words in host order
  bool listens = false;  // true if anyone who reaches the address may talk to it

  bool is_loopback() const {
    if (address.size() == 8) return address.ends_with("7F");  // 127.x.x.x
    return address == "00000000000000000000000001000000" ||   // ::1
           (address.starts_with("0000000000000000FFFF0000") && address.ends_with("7F"));
  }
};

// Returns `root` and all living processes below it.
inline std::vector<std::string> process_tree(pid_t root) {
  std::multimap<pid_t, std::string> children;  // by their parent
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    const bool is_process = name.find_first_not_of("0123456789") == std::string::npos;
    if (is_process) children.emplace(worker::process_state(name).parent, name);
  }
  std::vector<std::string> tree = {std::to_string(root)};
  for (size_t i = 0; i < tree.size(); ++i) {
    const auto [first, last] = children.equal_range(std::stoi(tree[i]));
    for (auto child = first; child != last; ++child) tree.push_back(child->second);
  }
  return tree;
}

// Returns the numbers of all sockets that a process has open, of any family.
inline std::set<std::string> open_sockets(const std::string& pid) {
  std::set<std::string> inodes;
  std::error_code error;  // the process may end while it is looked at
  for (std::filesystem::directory_iterator entry("/proc/" + pid + "/fd", error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    const std::string target = std::filesystem::read_symlink(entry->path(), ignored).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

// Returns those of them that are internet sockets, looked up in the process's own network namespace.
inline std::vector<InternetSocket> internet_sockets(const std::string& pid) {
  std::vector<InternetSocket> result;
  const std::set<std::string> inodes = open_sockets(pid);
  for (const std::string protocol : {"tcp", "tcp6", "udp", "udp6"}) {
    std::ifstream table("/proc/" + pid + "/net/" + protocol);
    std::string line;
    std::getline(table, line);  // the heading
    while (std::getline(table, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      fields >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
      if (inodes.count(inode) == 0) continue;
      const bool is_tcp = protocol.starts_with("tcp");
      // State 0A is LISTEN. A UDP socket hears whoever writes to it as soon as it is bound.
      result.push_back({protocol, local.substr(0, local.find(':')), !is_tcp || state == "0A"});
    }
  }
  return result;
}

}  // namespace tandem::cli
