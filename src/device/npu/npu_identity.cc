#include "device/npu/npu_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <sstream>
#include <vector>

#include "base/check.h"
#include "base/env.h"
#include "base/files.h"

namespace tandem::device {
namespace {

using npu::AclCalls;

std::optional<std::string> uuid(const AclCalls& acl, int index) {
  npu::AclUuid uuid;
  if (acl.aclrtDeviceGetUuid == nullptr || acl.aclrtDeviceGetUuid(index, &uuid) != npu::kAclSuccess) return {};
  if (std::ranges::all_of(uuid.bytes, [](char byte) { return byte == 0; })) return {};
  std::string name = "NPU";
  for (size_t i = 0; i < uuid.bytes.size(); ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) name += '-';
    name += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return name;
}

// CANN numbers a machine's devices three times: as this process counts those that it sees (user), as the driver counts
// those of this container (logic), and as they are plugged in (physical).
std::optional<int> physical_number(const AclCalls& acl, int index) {
  if (acl.aclrtGetLogicDevIdByUserDevId == nullptr || acl.aclrtGetPhyDevIdByLogicDevId == nullptr) return {};
  int32_t logic = 0, physical = 0;
  if (acl.aclrtGetLogicDevIdByUserDevId(index, &logic) != npu::kAclSuccess) return {};
  if (acl.aclrtGetPhyDevIdByLogicDevId(logic, &physical) != npu::kAclSuccess) return {};
  return physical;
}

// Returns the number that stands at place `index` of a list like "4,5"; without a list, the process sees all devices.
int visible_number(const std::string& list, int index) {
  if (list.empty()) return index;
  std::istringstream text(list);
  std::string entry;
  for (int place = 0; std::getline(text, entry, ','); ++place) {
    if (place < index) continue;
    int number = 0;
    const char* const end = entry.data() + entry.size();
    const auto [stop, error] = std::from_chars(entry.data(), end, number);
    if (error == std::errc() && stop == end && number >= 0) return number;
    break;
  }
  throw EnvironmentError(
      fmt::format("ASCEND_RT_VISIBLE_DEVICES={}: no number at place {}, counted from 0, so npu:{} "
                  "has no name; set it to numbers with commas between them",
                  list, index, index));
}

}  // namespace

NpuHost this_npu_host() {
  NpuHost host{.boot_id = "", .visible_devices = base::value_of("ASCEND_RT_VISIBLE_DEVICES")};
  try {
    host.boot_id = base::read_file("/proc/sys/kernel/random/boot_id");
    while (host.boot_id.ends_with('\n')) host.boot_id.pop_back();
  } catch (const std::runtime_error&) {
    host.boot_id = "";  // the kernel does not tell
  }
  return host;
}

std::string npu_identity(const AclCalls& acl, int index, const NpuHost& host) {
  if (const std::optional<std::string> name = uuid(acl, index)) return *name;
  TANDEM_ENV_CHECK(!host.boot_id.empty(),
                   fmt::format("npu:{}: CANN tells no UUID, and /proc/sys/kernel/random/boot_id cannot be read, so the "
                               "device has no name; install CANN 9.1 or newer",
                               index));
  if (const std::optional<int> number = physical_number(acl, index))
    return fmt::format("{}/npu-{}", host.boot_id, *number);
  return fmt::format("{}/npu-visible-{}", host.boot_id, visible_number(host.visible_devices, index));
}

}  // namespace tandem::device
