// Names an Ascend NPU so that no other device of any machine has the name, and every process knows it by the same. No
// torch.
#pragma once

#include <string>

#include "device/npu/acl_calls.h"

namespace tandem::device {

// The facts of this machine that a name may need.
struct NpuHost {
  std::string boot_id;          // the kernel's, another one on each machine and after each start
  std::string visible_devices;  // the value of ASCEND_RT_VISIBLE_DEVICES, "" where it is unset
};

// Reads them from the kernel and the environment. The boot id is "" where the kernel does not tell.
NpuHost this_npu_host();

// Returns the name of device `index` of those that this process sees. It is the device's UUID where CANN tells one (all
// zeros are none); else the boot id and the device's physical number; else the boot id and its place in
// ASCEND_RT_VISIBLE_DEVICES. An index alone is no name, because each process counts its own devices from 0. Throws
// EnvironmentError where none of these can be known.
std::string npu_identity(const npu::AclCalls& acl, int index, const NpuHost& host);

}  // namespace tandem::device
