#include "mesh/hosts.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "mesh/network.h"

namespace tandem::mesh {

std::string own_address(const LaunchVariables& launch, const std::string& interface, double wait_s) {
  if (launch.is_one_host()) return "127.0.0.1";
  if (!interface.empty()) return address_of_interface(interface);
  return address_that_reaches(launch.master_address, wait_s);
}

void check_hosts(const LaunchVariables& launch, bool trust_network, const std::string& secret, double wait_s) {
  if (launch.is_one_host()) return;
  TANDEM_USER_CHECK(
      trust_network || !secret.empty(),
      fmt::format("{}: the ranks are on several hosts, and whoever reaches their ports would be believed; set "
                  "TANDEM_SECRET_FILE for all of them, or give --trust-network if nobody else is on the network "
                  "between them",
                  launch.source));
  TANDEM_USER_CHECK(!is_loopback(address_of_host(launch.master_address, wait_s)),
                    fmt::format("MASTER_ADDR={}: the ranks are on several hosts, which do not reach it; set it to rank "
                                "0's address",
                                launch.master_address));
}

std::string machine_id() {
  try {
    return base::read_file("/proc/sys/kernel/random/boot_id");
  } catch (const std::runtime_error&) {  // the kernel does not tell
    return host_name();
  }
}

}  // namespace tandem::mesh
