#include "device/npu/footprint.h"

#include <cstdint>

namespace tandem::device::npu {

// The operations are those of ops_aten.cc, so that nothing is recorded.
constinit const Footprint kFootprint = {
    // A margin for the context, the workspaces of its operations and the buffers of HCCL, none of which has been
    // measured: reports from cards will say what it has to be.
    .library_bytes = int64_t{2} << 30,
    .plan_ops = [](const OpsShape& shape, Size element_bytes) -> std::unique_ptr<const OpsPlan> {
      return std::make_unique<OpsPlan>(shape, element_bytes);
    }};

}  // namespace tandem::device::npu
