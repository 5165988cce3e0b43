#include "device/npu/footprint.h"

#include <cstdint>

namespace tandem::device::npu {
namespace {

// The operations of ops_aten.cc with kCallShape. Nothing is recorded.
class NpuOpsPlan final : public OpsPlan {
 public:
  using OpsPlan::OpsPlan;

  // The host makes them.
  OpBytes sums_of_squares(Size /*elements*/, Size /*block_elements*/) const override { return {}; }
};
static_assert(!kCallShape.has_float64);

}  // namespace

constinit const Footprint kFootprint = {
    // A margin for the context, the workspaces of its operations and the buffers of HCCL, none of which has been
    // measured: reports from cards will say what it has to be.
    .library_bytes = int64_t{2} << 30,
    .plan_ops = [](const OpsShape& shape, Size element_bytes) -> std::unique_ptr<const OpsPlan> {
      return std::make_unique<NpuOpsPlan>(shape, element_bytes);
    }};

}  // namespace tandem::device::npu
